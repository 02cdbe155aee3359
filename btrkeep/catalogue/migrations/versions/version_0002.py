"""Retention: holds, the time at which a backup was marked as expired, and the runs of `expire`."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("backup", sa.Column("outcome", sa.Text))
    op.add_column("backup", sa.Column("held", sa.Text))
    op.add_column("backup", sa.Column("expired", sa.Text))
    # Nothing expired before this version, so the state of a final backup is its outcome.
    op.execute("UPDATE backup SET outcome = state WHERE state IN ('complete', 'suspect', 'failed')")
    _create_expiry()


def _create_expiry() -> None:
    op.create_table(
        "expiry",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("started", sa.Text, nullable=False),
        sa.Column("finished", sa.Text),
        sa.Column("outcome", sa.Text),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("pid_started", sa.Text),
        sa.Column("planned", sa.Integer, nullable=False),
        sa.Column("marked", sa.Integer, nullable=False),
        sa.Column("revived", sa.Integer, nullable=False),
        sa.Column("deleted", sa.Integer, nullable=False),
        sa.Column("left_out", sa.Integer, nullable=False),
        sa.Column("waiting", sa.Integer),
        sa.Column("most_waiting", sa.Integer),
        sa.Column("rate", sa.Float),
        sa.Column("eta", sa.Float),
        sa.Column("written_bytes", sa.BigInteger),
        sa.Column("mount_option", sa.Text),
        sa.Column("paused", sa.Text),
        sa.Column("error", sa.Text),
        sa.Column("updated", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="expiry_key"),
        sa.CheckConstraint("outcome IN ('complete', 'partial', 'stopped', 'failed', 'killed')", name=op.f("expiry_outcome_known")),
        sqlite_autoincrement=True,  # the id of an expiry is never given to another one
    )
