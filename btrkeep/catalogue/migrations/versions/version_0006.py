"""Expiries: which were of some hosts alone."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("expiry", sa.Column("hosts", sa.Integer))
