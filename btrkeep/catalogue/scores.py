"""Rows of score: one look at the free space of a filesystem each. A wrong clock does not change which is the newest: the one kept
last.
"""

from datetime import datetime

from btrkeep.catalogue.model_balance import FreeSpaceScore
from btrkeep.catalogue.sqlite import Session
from btrkeep.catalogue.tables import score

_SELECT = f"SELECT {score.select()} FROM score WHERE filesystem = :filesystem"
_BY_TIME = f"{_SELECT} AND (:since IS NULL OR taken >= :since) ORDER BY taken, id"
_NEWEST = f"{_SELECT} ORDER BY id DESC LIMIT 1"


def add(session: Session, one: FreeSpaceScore) -> int:
    """Insert it; its id."""
    return session.run(score.insert(), score.values(one)).lastrowid or 0


def of(session: Session, filesystem: str, since: datetime | None) -> list[FreeSpaceScore]:
    """Those of a filesystem, taken at `since` or later if it is given, oldest first."""
    return [FreeSpaceScore(*row) for row in session.all(_BY_TIME, {"filesystem": filesystem, "since": since})]


def newest(session: Session, filesystem: str) -> FreeSpaceScore | None:
    """The one that was kept last; None when there is none."""
    row = session.first(_NEWEST, {"filesystem": filesystem})
    return FreeSpaceScore(*row) if row else None
