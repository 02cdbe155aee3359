"""Free space: scores, balances, and the cost of each block group."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    _create_score()
    _create_balance()
    _create_balance_step()


def _create_score() -> None:
    op.create_table(
        "score",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("filesystem", sa.Text, nullable=False),
        sa.Column("taken", sa.Text, nullable=False),
        sa.Column("block_groups", sa.Integer, nullable=False),
        sa.Column("length", sa.BigInteger, nullable=False),
        sa.Column("used", sa.BigInteger, nullable=False),
        sa.Column("unallocated", sa.BigInteger, nullable=False),
        sa.Column("fragments", sa.BigInteger, nullable=False),
        sa.Column("score", sa.Float, nullable=False),
        sa.Column("bad", sa.Integer, nullable=False),
        sa.Column("largest_free", sa.BigInteger, nullable=False),
        sa.Column("free_in_large", sa.BigInteger, nullable=False),
        sa.Column("histogram", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="score_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("score_by_time", "score", ["filesystem", "taken", "id"])


def _create_balance() -> None:
    op.create_table(
        "balance",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("filesystem", sa.Text, nullable=False),
        sa.Column("mountpoint", sa.Text, nullable=False),
        sa.Column("started", sa.Text, nullable=False),
        sa.Column("finished", sa.Text),
        sa.Column("outcome", sa.Text),
        sa.Column("why", sa.Text),
        sa.Column("policy", sa.Text, nullable=False),
        sa.Column("budget", sa.BigInteger),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("pid_started", sa.Text),
        sa.Column("block_groups", sa.Integer, nullable=False),
        sa.Column("moved", sa.BigInteger, nullable=False),
        sa.Column("written", sa.BigInteger),
        sa.Column("gained", sa.Float, nullable=False),
        sa.Column("failed", sa.Integer, nullable=False),
        sa.Column("current", sa.BigInteger),
        sa.Column("before", sa.Text),
        sa.Column("after", sa.Text),
        sa.Column("updated", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="balance_key"),
        sa.CheckConstraint(
            "outcome IN ('done', 'budget', 'time', 'window', 'stopped', 'unallocated', 'exclusive operation', 'backups', "
            "'pressure', 'no space', 'failed', 'killed')",
            name=op.f("balance_outcome_known"),
        ),
        sqlite_autoincrement=True,  # the id of a balance is never given to another one
    )
    op.create_index("balance_by_filesystem", "balance", ["filesystem", "id"])


def _create_balance_step() -> None:
    op.create_table(
        "balance_step",
        sa.Column("balance", sa.Integer, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("vaddr", sa.BigInteger, nullable=False),
        sa.Column("length", sa.BigInteger, nullable=False),
        sa.Column("used", sa.BigInteger, nullable=False),
        sa.Column("extents", sa.BigInteger),
        sa.Column("refs", sa.BigInteger),
        sa.Column("fragments", sa.BigInteger, nullable=False),
        sa.Column("score", sa.Float, nullable=False),
        sa.Column("started", sa.Text, nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
        sa.Column("moved", sa.BigInteger, nullable=False),
        sa.Column("written", sa.BigInteger),
        sa.Column("estimate_written", sa.BigInteger),
        sa.Column("estimate_seconds", sa.Float),
        sa.Column("gained", sa.Float, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("error", sa.Text),
        sa.PrimaryKeyConstraint("balance", "number", name="balance_step_key"),
        sa.ForeignKeyConstraint(["balance"], ["balance.id"], name="balance_step_of_balance", ondelete="CASCADE"),
        sa.CheckConstraint(
            "outcome IN ('done', 'gone', 'no space', 'cancelled', 'failed')", name=op.f("balance_step_outcome_known")
        ),
    )
