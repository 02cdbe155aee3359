"""Rows of alarm."""

from collections.abc import Iterable

from btrkeep.catalogue.model_alarm import StoredAlarm
from btrkeep.catalogue.sqlite import Session
from btrkeep.catalogue.tables import alarm

_ALL = f"SELECT {alarm.select()} FROM alarm ORDER BY what, subject"
_DROP = "DELETE FROM alarm WHERE what = :what AND subject = :subject"


def every(session: Session) -> list[StoredAlarm]:
    """All of them, by event and subject."""
    return [StoredAlarm(*row) for row in session.all(_ALL)]


def put(session: Session, changed: Iterable[StoredAlarm], gone: Iterable[tuple[str, str]]) -> None:
    """Insert or replace the ones, forget the others, which are given by event and subject."""
    rows = [alarm.values(one) for one in changed]
    session.run_many(_DROP, [*rows, *({"what": what, "subject": subject} for what, subject in gone)])
    session.run_many(alarm.insert(), rows)
