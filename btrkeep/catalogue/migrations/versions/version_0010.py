"""Verification state of each backup: when its data was read from the disk, and how much of it."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(  # without a key of its backups, as `damage`: a backup's row is replaced as a whole
        "verification",
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("begun", sa.Text, nullable=False),
        sa.Column("at", sa.Text, nullable=False),
        sa.Column("read", sa.BigInteger, nullable=False),
        sa.Column("compared", sa.BigInteger, nullable=False),
        sa.Column("whole", sa.Text),
        sa.PrimaryKeyConstraint("host", "name", name="verification_key"),
    )
