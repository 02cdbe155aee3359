"""Exports and imports data that exists only in the catalogue: runs, expiries, dedupes, balances, scores, samples, alarms.

Rows are exported as text and numbers, so that they can be written as JSON. Imported rows come from a file, so the type, range and
allowed words of each value are checked. Rows that are inserted between others get new ids, because a later run must have a higher
id.
"""

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from types import UnionType
from typing import Any, get_args, get_origin

from btrkeep.backup_states import Cause
from btrkeep.catalogue import hosts, tables
from btrkeep.catalogue.model_backup import DEDUPE_OUTCOMES, EXPIRY_OUTCOMES, RUN_OUTCOMES
from btrkeep.catalogue.model_pool import BALANCE_OUTCOMES, SPANS, STEP_OUTCOMES, read_space_name
from btrkeep.catalogue.sqlite import CatalogueContradicted, Session, cause_out
from btrkeep.catalogue.sqlite import moment as moment_text
from btrkeep.errors import OperatorError
from btrkeep.units import LARGEST_NUMBER

Row = Sequence[Any]
Alive = Callable[[int, str | None], bool]
"""Returns True if the process with that pid and start time is running."""

_AT_A_TIME = 1000
_JSON = ("lines", "document", "rows", "cause")
_KNOWN = {
    "run.outcome": RUN_OUTCOMES,
    "expiry.outcome": EXPIRY_OUTCOMES,
    "dedupe.outcome": DEDUPE_OUTCOMES,
    "balance.outcome": BALANCE_OUTCOMES,
    "balance_step.outcome": STEP_OUTCOMES,
    "sample.span": SPANS,
}
_MAY_BE_EMPTY = ("run.last_lines", "balance.before", "balance.after")


@dataclass(frozen=True, slots=True)
class _Kind:
    """A table of the history. `key`: the columns that identify a row, independent of its id.

    `moment`: the column with the row's time. `most`: how many of the newest rows are exported. `in_order`: ids must increase with
    time.
    """

    table: tables.Table[Any]
    key: tuple[str, ...]
    moment: str
    most: int
    in_order: bool = False

    @property
    def name(self) -> str:
        return self.table.name


# The smallest first, so that old runs are omitted when the limit is reached.
_KINDS = (
    _Kind(tables.alarm, ("what", "subject"), "since", 10_000),
    _Kind(tables.expiry, ("started", "pid"), "started", 10_000, in_order=True),
    _Kind(tables.dedupe, ("started", "pid"), "started", 10_000, in_order=True),
    _Kind(tables.balance, ("filesystem", "started", "pid"), "started", 10_000, in_order=True),
    _Kind(tables.balance_step, ("balance", "number"), "started", 50_000),
    _Kind(tables.score, ("filesystem", "taken"), "taken", 20_000),
    _Kind(tables.sample, ("filesystem", "taken", "span"), "taken", 50_000),
    _Kind(tables.run, ("host", "started", "pid"), "started", 200_000, in_order=True),
)
COLUMNS: Mapping[str, tuple[str, ...]] = {kind.name: kind.table.columns for kind in _KINDS}
"""The columns of each exported table, in the order of the values in `rows`."""
MOST_ROWS = sum(kind.most for kind in _KINDS)
"""Maximum number of rows in a copy."""
_TYPES = {kind.name: {field.name: field.type for field in fields(kind.table.row)} for kind in _KINDS}


class HistoryInUse(OperatorError):
    """The import would have to change the id of a running job."""


def rows(session: Session) -> Iterator[tuple[str, Row]]:
    """Yields the table and the values of each row, the newest of each table first: JSON as text, times as text.

    Runs without an end are left out: they are running, or the next run ends them.
    """
    for kind in _KINDS:
        order = ", ".join(f"{name} DESC" for name in ("id", "balance", "number", kind.moment) if name in kind.table.columns)
        ended = "WHERE finished IS NOT NULL" if kind.table is tables.run else ""
        names = [f"CAST({name} AS BLOB)" if how in _JSON else name for name, how in kind.table.kinds.items()]
        for row in session.stream(
            f"SELECT {', '.join(names)} FROM {kind.name} {ended} ORDER BY {order} LIMIT :most", {"most": kind.most}
        ):
            yield kind.name, [value.decode() if type(value) is bytes else value for value in row]


def values_of(table: str, columns: Sequence[str], row: Row) -> dict[str, Any]:
    """Returns the values of an imported row for the present columns. Raises ValueError for invalid ones."""
    if len(row) != len(columns):
        raise ValueError(f"a row of {table} has {len(columns)} values, not {len(row)}")
    given = dict(zip(columns, row, strict=True))
    return {name: _value(f"{table}.{name}", _TYPES[table][name], given.get(name)) for name in COLUMNS[table]}


def _value(name: str, kind: Any, value: Any) -> Any:
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    if value is None and (type(None) in kinds or name in _MAY_BE_EMPTY):
        return None
    if Cause in kinds:
        return cause_out(value) if isinstance(value, str) else None
    parsed = _read(kinds[0], value)
    if parsed is None or parsed not in _KNOWN.get(name, (parsed,)) or not _IS_NAMED.get(name, _is_anything)(parsed):
        raise ValueError(f"{name} has an invalid value")
    return parsed


def _read(kind: Any, value: Any) -> Any:
    """Returns the value converted to the column's type, or None if it is absent. Raises ValueError, TypeError."""
    if kind is bool:
        return bool(value) if type(value) is int and value in (0, 1) else None
    if kind is int:
        return value if type(value) is int and abs(value) <= LARGEST_NUMBER else None
    if kind is float:
        return float(value) if type(value) in (int, float) and abs(value) <= LARGEST_NUMBER else None
    if type(value) is not str:
        return None
    if kind is str:
        return value
    if kind is datetime:
        moment = datetime.fromisoformat(value)
        return moment if moment_text(moment) else None
    return _of_json(kind, json.loads(value))


def _of_json(kind: Any, value: Any) -> Any:
    if get_origin(kind) is Mapping:
        return value if isinstance(value, dict) else None
    if kind == tuple[str, ...]:
        return tuple(value) if all(isinstance(line, str) for line in value) else None
    return tuple(map(tuple, value)) if all(map(_are_numbers, value)) else None


def _is_anything(_value: Any) -> bool:
    return True


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(number) is int and abs(number) <= LARGEST_NUMBER for number in value)


_IS_NAMED: Mapping[str, Callable[[Any], bool]] = {  # values that are unpacked without a check
    "sample.spaces": lambda spaces: (
        all(map(read_space_name, spaces)) and all(_are_numbers(of) and len(of) == 3 for of in spaces.values())
    ),
    "sample.devices": lambda devices: all(key.isdecimal() and _are_numbers(of) and len(of) >= 2 for key, of in devices.items()),
    "sample.pressure": lambda pressure: all(type(value) in (int, float) for value in pressure.values()),
}


def put_back(session: Session, missing_rows: Mapping[str, Sequence[dict[str, Any]]], is_alive: Alive) -> dict[str, int]:
    """Inserts those rows, by table and in the form of `values_of`, that are missing; returns their number by table.

    Raises HistoryInUse if a running job would need another id, OperatorError for rows that the tables refuse.
    """
    counts: dict[str, int] = {}
    new_ids: dict[int, int] = {}
    for kind in _KINDS:
        given = missing_rows.get(kind.name, ())
        if kind.table is tables.balance_step:
            given = [{**row, "balance": new_ids[row["balance"]]} for row in given if row["balance"] in new_ids]
        missing = _missing(session, kind, given)
        counts[kind.name] = len(missing)
        if not missing:
            continue
        if kind.table is tables.run:
            names = sorted({row["host"] for row in missing})
            for start in range(0, len(names), _AT_A_TIME):
                hosts.ensure_hosts(session, set(names[start : start + _AT_A_TIME]))
        if "id" in kind.table.columns:
            first = _make_place(session, kind, missing, is_alive) if kind.in_order else _highest(session, kind.name) + 1
            if kind.table is tables.balance:
                new_ids = {row["id"]: first + place for place, row in enumerate(missing)}
            missing = [{**row, "id": first + place} for place, row in enumerate(missing)]
        try:
            session.run_many(kind.table.insert(), [kind.table.column_values(row) for row in missing])
        except (sqlite3.IntegrityError, CatalogueContradicted) as error:
            raise OperatorError(f"rows of {kind.name} do not fit: {error}", "nothing was restored") from error
    return counts


def _missing(session: Session, kind: _Kind, given: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the rows that are missing, in the order of their ids; of two rows with the same key, the first."""
    existing = set(session.all(f"SELECT {kind.table.select(*kind.key)} FROM {kind.name}"))
    missing: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(given, key=lambda row: row.get("id", 0)):
        key = tuple(row[name] for name in kind.key)
        if key not in existing:
            missing.setdefault(key, row)
    return list(missing.values())


def _make_place(session: Session, kind: _Kind, missing: Sequence[dict[str, Any]], is_alive: Alive) -> int:
    """Returns the first of as many free ids as there are rows, after the ids of all older rows. Later rows are moved to
    higher ids.
    """
    name, up = kind.name, _highest(session, kind.name) + len(missing)
    values = {"moment": min(row[kind.moment] for row in missing), "up": up}
    is_later = f"{kind.moment} > :moment AND id <= :up"
    older = session.value(f"SELECT max(id) FROM {name} WHERE {kind.moment} <= :moment", values) or 0
    for pid, started in session.all(f"SELECT pid, pid_started FROM {name} WHERE {is_later} AND finished IS NULL", values):
        if is_alive(pid, started):
            raise HistoryInUse("the history is not restored while a job runs", "wait until it ends, then run `backupd rebuild`")
    others = ", ".join(column for column in kind.table.columns if column != "id")
    session.run(f"INSERT INTO {name} (id, {others}) SELECT id + :up, {others} FROM {name} WHERE {is_later}", values)
    if kind.table is tables.balance:
        session.run(
            f"UPDATE balance_step SET balance = balance + :up WHERE balance IN (SELECT id FROM {name} WHERE {is_later})", values
        )
    session.run(f"DELETE FROM {name} WHERE {is_later}", values)
    return older + 1


def _highest(session: Session, table: str) -> int:
    return session.value(f"SELECT max(id) FROM {table}") or 0
