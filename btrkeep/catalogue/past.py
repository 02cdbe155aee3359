"""What ran: runs of hosts by many things at once, and the nights that they make up. A later id is a later run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Text, bindparam, false, func, or_, select, type_coerce

from btrkeep.catalogue.model import Expiry, Run
from btrkeep.catalogue.model_balance import Balance, BalanceStep
from btrkeep.catalogue.model_past import Night, PastRuns, SampleMark
from btrkeep.catalogue.model_sample import Sample
from btrkeep.catalogue.tables import balance, balance_step, expiry, run, sample

_APART = timedelta(hours=12)
"""Two runs of one process number that are further apart are of two nights: numbers come again, after a boot start times too."""
_HOUR = func.substr(type_coerce(run.c.started, Text), 1, len("2026-11-20T22"))
_NIGHTS = (
    select(
        run.c.pid,
        run.c.pid_started,
        func.coalesce(run.c.outcome, "").label("outcome"),
        func.count().label("runs"),
        func.min(run.c.id).label("first"),
        func.max(run.c.id).label("last"),
        func.min(run.c.started).label("started"),
        func.max(run.c.finished).label("finished"),
        func.coalesce(func.sum(run.c.literal_bytes), 0).label("literal_bytes"),
    )
    .where(run.c.night, run.c.id.between(bindparam("lowest"), bindparam("highest")))
    .group_by(run.c.pid, run.c.pid_started, _HOUR, run.c.outcome)
    .order_by(func.min(run.c.id))
)
_LONGEST = 50_000  # runs of a night, with those of others between them
_NIGHT_BEFORE = select(func.max(run.c.id)).where(run.c.night, run.c.id < bindparam("the_id"))
_AT_A_TIME = 1000
_SAMPLES = select(sample)
_MARKS = (
    select(sample.c.id, sample.c.taken, sample.c.orphans, sample.c.activity)
    .where(
        sample.c.filesystem == bindparam("the_filesystem"),
        sample.c.taken >= bindparam("the_start"),
        sample.c.taken < bindparam("the_end"),
    )
    .order_by(sample.c.taken, sample.c.id)
)
_ONE_EXPIRY = select(expiry).where(expiry.c.id == bindparam("the_id"))
_MOVES = (
    select(balance_step)
    .join(balance, balance.c.id == balance_step.c.balance)
    .where(balance.c.filesystem == bindparam("the_filesystem"), balance_step.c.vaddr == bindparam("the_vaddr"))
    .order_by(balance.c.id.desc(), balance_step.c.number.desc())
)
_ONE_BALANCE = select(balance).where(balance.c.id == bindparam("the_id"))


def nights(connection: Connection, among: int) -> list[Night]:
    """The nights among so many of the last runs, newest first; without one that may have begun before these."""
    newest = connection.scalar(select(func.max(run.c.id))) or 0
    found = _nights(connection, newest - among + 1, newest)
    return found if newest <= among else found[:-1]


def night(connection: Connection, first_run: int) -> Night | None:
    """The night that began with this run, None when it began none; of what came long after it nothing is read."""
    before = connection.scalar(_NIGHT_BEFORE, {"the_id": first_run})
    found = _nights(connection, first_run if before is None else before, first_run + _LONGEST)
    return next((one for one in found if one.first_run == first_run), None)


def _nights(connection: Connection, lowest: int, highest: int) -> list[Night]:
    pieces: dict[tuple[int, str | None], list[list[Row[Any]]]] = {}
    for row in connection.execute(_NIGHTS, {"lowest": lowest, "highest": highest}):
        found = pieces.setdefault((row.pid, row.pid_started), [])
        if found and row.started - (found[-1][-1].finished or found[-1][-1].started) <= _APART:
            found[-1].append(row)
        else:
            found.append([row])
    made = (_night(rows) for some in pieces.values() for rows in some)
    return sorted(made, key=lambda night: night.first_run, reverse=True)


def _night(rows: list[Row[Any]]) -> Night:
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


def sample_marks(connection: Connection, filesystem: str, since: datetime, until: datetime) -> list[SampleMark]:
    """Of all samples from `since` on and before `until`, oldest first."""
    when = {"the_filesystem": filesystem, "the_start": since, "the_end": until}
    return [SampleMark(*row) for row in connection.execute(_MARKS, when)]


def samples_by_id(connection: Connection, ids: Sequence[int]) -> list[Sample]:
    """Those of these ids, oldest first."""
    found: list[Sample] = []
    for first in range(0, len(ids), _AT_A_TIME):
        rows = connection.execute(_SAMPLES.where(sample.c.id.in_(ids[first : first + _AT_A_TIME])))
        found += [Sample(*row) for row in rows]
    return sorted(found, key=lambda one: (one.taken, one.id))


def of(connection: Connection, wanted: PastRuns, limit: int) -> list[Run]:
    """The last `limit` of those that are wanted, newest first."""
    query = select(run).where(*_conditions(wanted)).order_by(run.c.id.desc()).limit(limit)
    return [Run(*row) for row in connection.execute(query)]


def _conditions(wanted: PastRuns) -> Iterator[ColumnElement[bool]]:
    if wanted.hosts is not None:
        names = sorted(wanted.hosts)
        yield run.c.host == names[0] if len(names) == 1 else run.c.host.in_(names) if names else false()
    if wanted.outcomes:
        ended = sorted(set(wanted.outcomes) - {""})
        yield or_(run.c.outcome.in_(ended), run.c.outcome.is_(None) if "" in wanted.outcomes else false())
    if wanted.since is not None:
        yield run.c.started >= wanted.since
    if wanted.night is not None:
        yield run.c.night.is_(wanted.night)
    if wanted.process is not None:
        yield run.c.pid == wanted.process[0]
        yield run.c.pid_started.is_not_distinct_from(wanted.process[1])
    if wanted.ids is not None:
        yield run.c.id.between(*wanted.ids)
    if wanted.before is not None:
        yield run.c.id < wanted.before


def one_run(connection: Connection, run_id: int) -> Run | None:
    """The run of that id, None when there is none."""
    found = of(connection, PastRuns(ids=(run_id, run_id)), 1)
    return found[0] if found else None


def one_expiry(connection: Connection, expiry_id: int) -> Expiry | None:
    """The run of `expire` of that id, None when there is none."""
    row = connection.execute(_ONE_EXPIRY, {"the_id": expiry_id}).first()
    return Expiry(*row) if row else None


def one_balance(connection: Connection, balance_id: int) -> Balance | None:
    """The run of balance of that id, None when there is none."""
    row = connection.execute(_ONE_BALANCE, {"the_id": balance_id}).first()
    return Balance(*row) if row else None


def moves_of(connection: Connection, filesystem: str, vaddr: int, limit: int) -> list[BalanceStep]:
    """The last steps of balances that were about the block group at this address, newest first."""
    if vaddr >= 1 << 63:  # a database's numbers end there, and no filesystem comes near
        return []
    rows = connection.execute(_MOVES.limit(limit), {"the_filesystem": filesystem, "the_vaddr": vaddr})
    return [BalanceStep(*row) for row in rows]
