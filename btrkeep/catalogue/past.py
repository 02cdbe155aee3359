"""What ran: runs of hosts by many things at once, and the nights that they make up. A later id is a later run."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from btrkeep.catalogue.columns import Json
from btrkeep.catalogue.model import Expiry, Run
from btrkeep.catalogue.model_balance import Balance, BalanceStep
from btrkeep.catalogue.model_past import Night, PastRuns, SampleMark
from btrkeep.catalogue.model_sample import Sample
from btrkeep.catalogue.sqlite import Session
from btrkeep.catalogue.tables import balance, balance_step, expiry, run, sample
from btrkeep.catalogue.tried import among

_APART = timedelta(hours=12)
"""Two runs of one process number that are further apart are of two nights: numbers come again, after a boot start times too."""
_NIGHTS = f"""
    SELECT {run.select("pid", "pid_started")}, coalesce(outcome, ''), count(*), min(id), max(id),
        min(started) AS "started [moment]", max(finished) AS "finished [moment]", coalesce(sum(literal_bytes), 0)
    FROM run WHERE night AND id BETWEEN :lowest AND :highest
    GROUP BY pid, pid_started, substr(started, 1, length('2026-11-20T22')), outcome ORDER BY min(id)"""
_LONGEST = 50_000  # runs of a night, with those of others between them
_NEWEST = "SELECT max(id) FROM run"
_NIGHT_BEFORE = "SELECT max(id) FROM run WHERE night AND id < :id"
_SAMPLES = f"SELECT {sample.select()} FROM sample WHERE id IN (SELECT value FROM json_each(:ids)) ORDER BY taken, id"
_MARKS = f"""
    SELECT {sample.select(*SampleMark._fields)} FROM sample
    WHERE filesystem = :filesystem AND taken >= :since AND taken < :until ORDER BY taken, id"""
_ONE_EXPIRY = f"SELECT {expiry.select()} FROM expiry WHERE id = :id"
_ONE_BALANCE = f"SELECT {balance.select()} FROM balance WHERE id = :id"
_MOVES = f"""
    SELECT {balance_step.select()} FROM balance_step JOIN balance ON balance.id = balance_step.balance
    WHERE balance.filesystem = :filesystem AND balance_step.vaddr = :vaddr
    ORDER BY balance.id DESC, balance_step.number DESC LIMIT :most"""


class _Piece(NamedTuple):
    """Runs of one process that began within one hour and ended alike."""

    pid: int
    pid_started: str | None
    outcome: str
    runs: int
    first: int
    last: int
    started: datetime
    finished: datetime | None
    literal_bytes: int


def nights(session: Session, among: int) -> list[Night]:
    """The nights among so many of the last runs, newest first; without one that may have begun before these."""
    newest = session.value(_NEWEST) or 0
    found = _nights(session, newest - among + 1, newest)
    return found if newest <= among else found[:-1]


def night(session: Session, first_run: int) -> Night | None:
    """The night that began with this run, None when it began none; of what came long after it nothing is read."""
    before = session.value(_NIGHT_BEFORE, {"id": first_run})
    found = _nights(session, first_run if before is None else before, first_run + _LONGEST)
    return next((one for one in found if one.first_run == first_run), None)


def _nights(session: Session, lowest: int, highest: int) -> list[Night]:
    pieces: dict[tuple[int, str | None], list[list[_Piece]]] = {}
    for row in map(_Piece._make, session.all(_NIGHTS, {"lowest": lowest, "highest": highest})):
        found = pieces.setdefault((row.pid, row.pid_started), [])
        if found and row.started - (found[-1][-1].finished or found[-1][-1].started) <= _APART:
            found[-1].append(row)
        else:
            found.append([row])
    made = (_night(rows) for some in pieces.values() for rows in some)
    return sorted(made, key=lambda night: night.first_run, reverse=True)


def _night(rows: list[_Piece]) -> Night:
    ends = [row.finished for row in rows if row.finished]
    is_over = all(row.outcome for row in rows)
    return Night(
        min(row.first for row in rows),
        max(row.last for row in rows),
        min(row.started for row in rows),
        max(ends) if ends and is_over else None,
        rows[0].pid,
        rows[0].pid_started,
        _added((row.outcome, row.runs) for row in rows),
        sum(row.literal_bytes for row in rows),
    )


def _added(pairs: Iterable[tuple[str, int]]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for outcome, count in pairs:
        found[outcome] = found.get(outcome, 0) + count
    return found


def sample_marks(session: Session, filesystem: str, since: datetime, until: datetime) -> list[SampleMark]:
    """Of all samples from `since` on and before `until`, oldest first."""
    when = {"filesystem": filesystem, "since": since, "until": until}
    return [SampleMark._make(row) for row in session.all(_MARKS, when)]


def samples_by_id(session: Session, ids: Sequence[int]) -> list[Sample]:
    """Those of these ids, oldest first."""
    return [Sample(*row) for row in session.all(_SAMPLES, {"ids": Json(json.dumps(list(ids)))})]


def of(session: Session, wanted: PastRuns, limit: int) -> list[Run]:
    """The last `limit` of those that are wanted, newest first."""
    conditions = " AND ".join(_conditions(wanted)) or "TRUE"
    first, last = wanted.ids or (None, None)
    pid, pid_started = wanted.process or (None, None)
    values = {
        "host": next(iter(wanted.hosts or ()), None),
        "hosts": among(wanted.hosts or ()),
        "outcomes": among(wanted.outcomes),
        "since": wanted.since,
        "night": wanted.night,
        "pid": pid,
        "pid_started": pid_started,
        "first": first,
        "last": last,
        "before": wanted.before,
        "most": limit,
    }
    query = f"SELECT {run.select()} FROM run WHERE {conditions} ORDER BY id DESC LIMIT :most"
    return [Run(*row) for row in session.all(query, values)]


def _conditions(wanted: PastRuns) -> Iterator[str]:
    if wanted.hosts is not None and len(wanted.hosts) == 1:
        yield "host = :host"  # read from the newest back, not all of them
    elif wanted.hosts is not None:
        yield "host IN (SELECT value FROM json_each(:hosts))"
    if wanted.outcomes:
        yield "coalesce(outcome, '') IN (SELECT value FROM json_each(:outcomes))"
    if wanted.since is not None:
        yield "started >= :since"
    if wanted.night is not None:
        yield "night = :night"
    if wanted.process is not None:
        yield "pid = :pid AND pid_started IS NOT DISTINCT FROM :pid_started"
    if wanted.ids is not None:
        yield "id BETWEEN :first AND :last"
    if wanted.before is not None:
        yield "id < :before"


def one_run(session: Session, run_id: int) -> Run | None:
    """The run of that id, None when there is none."""
    found = of(session, PastRuns(ids=(run_id, run_id)), 1)
    return found[0] if found else None


def one_expiry(session: Session, expiry_id: int) -> Expiry | None:
    """The run of `expire` of that id, None when there is none."""
    row = session.first(_ONE_EXPIRY, {"id": expiry_id})
    return Expiry(*row) if row else None


def one_balance(session: Session, balance_id: int) -> Balance | None:
    """The run of balance of that id, None when there is none."""
    row = session.first(_ONE_BALANCE, {"id": balance_id})
    return Balance(*row) if row else None


def moves_of(session: Session, filesystem: str, vaddr: int, limit: int) -> list[BalanceStep]:
    """The last steps of balances that were about the block group at this address, newest first."""
    if vaddr >= 1 << 63:  # a database's numbers end there, and no filesystem comes near
        return []
    rows = session.all(_MOVES, {"filesystem": filesystem, "vaddr": vaddr, "most": limit})
    return [BalanceStep(*row) for row in rows]
