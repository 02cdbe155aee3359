"""Rows of sample: how a filesystem was. A clock that was set back does not change which is the newest: the one kept last."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from btrkeep.catalogue.model_sample import Sample
from btrkeep.catalogue.sqlite import Session
from btrkeep.catalogue.tables import sample

_INSERT = sample.insert(but="id")
# Not what was made of older ones: it was put in later than they were.
_NEWEST = f"SELECT {sample.select()} FROM sample WHERE filesystem = :filesystem AND span = 'raw' ORDER BY id DESC LIMIT 1"
_OLDEST = 'SELECT min(taken) AS "taken [moment]" FROM sample WHERE filesystem = :filesystem AND span = :span'
_DROP = "DELETE FROM sample WHERE id = :id"


def add(session: Session, one: Sample) -> int:
    """Insert it; its id."""
    return session.run(_INSERT, sample.values(one)).lastrowid or 0


def newest(session: Session, filesystem: str) -> Sample | None:
    """The one that was kept last."""
    row = session.first(_NEWEST, {"filesystem": filesystem})
    return Sample(*row) if row else None


def oldest(session: Session, filesystem: str, span: str) -> datetime | None:
    """When the oldest one of that span was taken; None when there is none."""
    moment: datetime | None = session.value(_OLDEST, {"filesystem": filesystem, "span": span})
    return moment


def of(session: Session, filesystem: str, since: datetime | None, until: datetime | None, span: str | None) -> list[Sample]:
    """Those of a filesystem from `since` on and before `until`, oldest first; with `span` only those of it."""
    wanted = ["filesystem = :filesystem"]
    wanted += ["taken >= :since"] if since else []
    wanted += ["taken < :until"] if until else []
    wanted += ["span = :span"] if span else []
    query = f"SELECT {sample.select()} FROM sample WHERE {' AND '.join(wanted)} ORDER BY taken, id"
    values = {"filesystem": filesystem, "since": since, "until": until, "span": span}
    return [Sample(*row) for row in session.all(query, values)]


def replace(session: Session, ids: Sequence[int], by: Iterable[Sample]) -> int:
    """Delete these and insert those; how many were deleted."""
    session.run_many(_INSERT, [sample.values(one) for one in by])
    return session.run_many(_DROP, [{"id": id_} for id_ in ids])
