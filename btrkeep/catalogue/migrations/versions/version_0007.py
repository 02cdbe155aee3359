"""Holds: until when and why, in columns of their own, where before there was a sentence."""

import re
from datetime import datetime

import sqlalchemy as sa
from alembic import op

from btrkeep.catalogue.columns import moment

revision = "0007"
down_revision = "0006"

_HELD = re.compile(r"held(?: until (?P<until>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ))?(?:: (?P<why>.*))?", re.DOTALL)


def upgrade() -> None:
    op.add_column("backup", sa.Column("held_until", sa.Text))
    op.add_column("backup", sa.Column("held_why", sa.Text))  # NULL: it is not held
    rows = op.get_bind().execute(sa.text("SELECT host, name, held FROM backup WHERE held IS NOT NULL"))
    for host, name, held in rows.fetchall():
        found = _HELD.fullmatch(held)
        until = found["until"] if found else None
        values = {"until": moment(datetime.fromisoformat(until)) if until else None, "why": (found["why"] or "") if found else held}
        op.get_bind().execute(
            sa.text("UPDATE backup SET held_until = :until, held_why = :why WHERE host = :host AND name = :name"),
            {**values, "host": host, "name": name},
        )
    op.drop_column("backup", "held")
