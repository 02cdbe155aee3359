"""Damages: ranges of files in backups that cannot be read or have changed."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(  # its rows refer to no backup by a key: a backup's row is replaced as a whole, and they have to stay
        "damage",
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("start", sa.BigInteger, nullable=False),
        sa.Column("length", sa.BigInteger, nullable=False),
        sa.Column("found_by", sa.Text, nullable=False),
        sa.Column("found_at", sa.Text, nullable=False),
        sa.Column("fate", sa.Text),
        sa.CheckConstraint("found_by IN ('scrub', 'verify', 'source', 'device')", name="damage_found_by"),
        sa.PrimaryKeyConstraint("host", "name", "path", "start", name="damage_key"),
    )
