"""Why a backup or a run is not complete: as data beside the words, which older rows have alone."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    for table in ("backup", "run"):
        op.add_column(table, sa.Column("cause", sa.Text))  # a JSON object: code, path, facts
