"""Alarms: what people were told, and whether it still holds."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "alarm",
        sa.Column("what", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("grade", sa.BigInteger, nullable=False),
        sa.Column("since", sa.Text, nullable=False),
        sa.Column("times", sa.Integer, nullable=False),
        sa.Column("told", sa.Text),
        sa.Column("recovered", sa.Text),
        sa.Column("cleared", sa.Text),
        sa.PrimaryKeyConstraint("what", "subject", name="alarm_key"),
    )
