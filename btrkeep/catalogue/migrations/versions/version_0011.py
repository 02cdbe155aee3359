"""Result of comparing each backup with its host."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_table(  # without a key of its backups, as `verification`
        "comparison",
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("at", sa.Text, nullable=False),
        sa.Column("files", sa.BigInteger, nullable=False),
        sa.Column("alike", sa.BigInteger, nullable=False),
        sa.Column("changed", sa.BigInteger, nullable=False),
        sa.Column("differing", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("host", "name", name="comparison_key"),
    )
