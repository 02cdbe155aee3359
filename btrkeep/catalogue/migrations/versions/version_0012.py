"""Data shared between files: by a run with its sibling (`share_with`), and by runs of `backupd dedupe`."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    for table in ("backup", "run"):
        op.add_column(table, sa.Column("shared_bytes", sa.BigInteger))
    op.create_table(
        "dedupe",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("started", sa.Text, nullable=False),
        sa.Column("finished", sa.Text),
        sa.Column("outcome", sa.Text),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("pid_started", sa.Text),
        sa.Column("backups", sa.Integer, nullable=False),
        sa.Column("files", sa.BigInteger, nullable=False),
        sa.Column("shared_bytes", sa.BigInteger, nullable=False),
        sa.Column("read_bytes", sa.BigInteger, nullable=False),
        sa.Column("left_out", sa.Integer, nullable=False),
        sa.Column("data_saved", sa.BigInteger),
        sa.Column("metadata_added", sa.BigInteger),
        sa.Column("updated", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="dedupe_key"),
        sa.CheckConstraint("outcome IN ('complete', 'stopped', 'failed', 'killed')", name=op.f("dedupe_outcome_known")),
        sqlite_autoincrement=True,  # the id of a job is never given to another one
    )
