"""Which job ran when, out of the tables of runs, expiries and balances."""

from datetime import datetime

from btrkeep.catalogue.model_sample import Job
from btrkeep.catalogue.sqlite import Session
from btrkeep.catalogue.tables import Table, balance, expiry, run


def _ran(kind: str, of: Table, updated: str, data: str, where: str = "TRUE") -> str:
    return f"""
        SELECT '{kind}', {of.select("started", "finished")}, {updated}, {data}, {of.select("pid", "pid_started")} FROM {of.name}
        WHERE {where} AND started < :end AND (finished IS NULL OR finished > :start)"""


_QUERIES = (
    _ran("backup", run, "NULL", "literal_bytes"),
    _ran("expire", expiry, expiry.select("updated"), "0"),
    _ran("balance", balance, balance.select("updated"), "moved", "filesystem = :filesystem"),
)


def between(session: Session, filesystem: str, start: datetime, end: datetime) -> list[Job]:
    """Those that ran at any time from `start` to `end`, oldest first. A run that was killed and never ended counts as running."""
    values = {"start": start, "end": end, "filesystem": filesystem}
    return sorted((Job(*row) for query in _QUERIES for row in session.all(query, values)), key=lambda job: job.started)
