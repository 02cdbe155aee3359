"""Samples: how the filesystem was, every few minutes."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "sample",
        sa.Column("filesystem", sa.Text, nullable=False),
        sa.Column("taken", sa.Text, nullable=False),
        sa.Column("span", sa.Text, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("allocated", sa.BigInteger, nullable=False),
        sa.Column("used", sa.BigInteger, nullable=False),
        sa.Column("spaces", sa.Text, nullable=False),
        sa.Column("devices", sa.Text, nullable=False),
        sa.Column("orphans", sa.Integer),
        sa.Column("score", sa.Float),
        sa.Column("scored", sa.Text),
        sa.Column("options", sa.Text, nullable=False),
        sa.Column("activity", sa.Text, nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
        sa.Column("read", sa.BigInteger, nullable=False),
        sa.Column("written", sa.BigInteger, nullable=False),
        sa.Column("peak_read", sa.Float, nullable=False),
        sa.Column("peak_written", sa.Float, nullable=False),
        sa.Column("pressure", sa.Text, nullable=False),
        sa.Column("counters", sa.Text, nullable=False),
        sa.Column("id", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("id", name="sample_key"),
        sa.CheckConstraint("span IN ('raw', 'hour', 'day')", name=op.f("sample_span_known")),
        sqlite_autoincrement=True,  # a later id is a later sample, also after the newest was removed
    )
    op.create_index("sample_by_time", "sample", ["filesystem", "taken", "id"])
    op.create_index("sample_by_span", "sample", ["filesystem", "span", "taken"])
