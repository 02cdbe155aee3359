"""Rows of progress: what runs now, written about once a second for each transfer."""

from btrkeep.catalogue import hosts
from btrkeep.catalogue.model import Progress
from btrkeep.catalogue.sqlite import Session
from btrkeep.catalogue.tables import progress

_UPDATE = progress.update(progress.kinds, "host = :host")
_DROP = "DELETE FROM progress WHERE host = :host"
_ALL = f"SELECT {progress.select()} FROM progress ORDER BY host"


def put(session: Session, one: Progress) -> None:
    """Insert the host's row, or replace it."""
    row = progress.values(one)
    if session.run(_UPDATE, row).rowcount == 0:
        hosts.know(session, one.host)
        session.run(progress.insert(), row)


def drop(session: Session, host: str) -> None:
    """Delete the host's row, if it is there."""
    session.run(_DROP, {"host": host})


def every(session: Session) -> list[Progress]:
    """What runs now, by host."""
    return [Progress(*row) for row in session.all(_ALL)]
