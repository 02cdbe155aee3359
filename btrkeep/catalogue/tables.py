"""The present tables of the catalogue: their columns are the fields of the objects made from rows. The migrations to these tables,
with keys, checks and indexes, are in schema/; a test compares both.

`host` has one row for each host that ever had a backup or a run. With it the newest row of each host is found by one index seek per
host, however long the history is.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cache
from operator import attrgetter
from typing import Any, Generic, TypeVar, get_origin

from btrkeep.backup_states import Cause
from btrkeep.catalogue import sqlite
from btrkeep.catalogue.model_alarm import Silence, StoredAlarm
from btrkeep.catalogue.model_backup import Backup, Dedupe, Expiry, Progress, Run
from btrkeep.catalogue.model_pool import Balance, BalanceStep, FreeSpaceScore, Sample
from btrkeep.catalogue.model_verification import ComparedBackup, Damage, VerifiedBackup
from btrkeep.catalogue.sqlite import Session, Values

SCHEMA_VERSION = 4
"""The number of the newest file in schema/."""
APPLICATION_ID = 0x6274726B
"""The letters "btrk", in the header of the file: https://www.sqlite.org/fileformat.html#application_id"""

_KINDS: tuple[tuple[Any, str], ...] = (
    (datetime, "moment"),
    (tuple[str, ...], "lines"),
    (tuple[tuple[int, int, int], ...], "rows"),
    (bool, "flag"),
    (Cause, "cause"),
)
_IN: Mapping[str, Callable[[Any], Any]] = {
    "lines": sqlite.lines_in,
    "document": sqlite.document_in,
    "rows": sqlite.rows_in,
    "cause": sqlite.cause_in,
}


RowT = TypeVar("RowT")


@dataclass(frozen=True, slots=True, eq=False)
class Table(Generic[RowT]):
    """A table of the catalogue."""

    name: str
    """Its name."""
    row: type[RowT]
    """The class of its rows."""
    kinds: Mapping[str, str]
    """The conversion of each column's value, in the order of the fields; "": none."""

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.kinds)

    def select(self, *names: str, of: str = "") -> str:
        """Returns these columns for a SELECT, all if none is named. `of`: the alias of the table in the query."""
        return ", ".join(self._out(name, of or self.name) for name in names or self.kinds)

    def _out(self, name: str, of: str) -> str:
        kind, column = self.kinds[name], f"{of}.{name}"
        match kind:
            case "":
                return column
            case "name":
                return f"nullif({column}, '')"
            case "lines" | "document":
                empty = "[]" if kind == "lines" else "{}"
                return f"coalesce({column}, '{empty}') AS \"{name} [{kind}]\""
        return f'{column} AS "{name} [{kind}]"'

    @cache  # noqa: B019  tables are never freed
    def query(self, rest: str) -> str:
        """Returns the SELECT of whole rows. `rest`: the text after the table's name: WHERE, ORDER BY, LIMIT."""
        return f"SELECT {self.select()} FROM {self.name} {rest}"

    def find(self, session: Session, rest: str, values: Values = {}) -> list[RowT]:  # noqa: B006  it is never changed
        """Returns the rows of `query(rest)`."""
        return [self.row(*row) for row in session.all(self.query(rest), values)]

    def first(self, session: Session, rest: str, values: Values = {}) -> RowT | None:  # noqa: B006
        """Returns the first of them, or None."""
        row = session.first(self.query(rest), values)
        return self.row(*row) if row else None

    def add(self, session: Session, rows: Iterable[RowT]) -> None:
        """Inserts rows. A row with an id gets a new one."""
        session.run_many(self.insert(but="id"), [self.values(row) for row in rows])

    @cache  # noqa: B019
    def insert(self, *, but: str = "") -> str:
        """Returns the statement that inserts a row; without the column `but`."""
        names = [name for name in self.kinds if name != but]
        values = ", ".join(f"coalesce(:{name}, '')" if self.kinds[name] == "name" else f":{name}" for name in names)
        return f"INSERT INTO {self.name} ({', '.join(names)}) VALUES ({values})"

    def values(self, row: object) -> dict[str, Any]:
        """Returns the parameters of `insert` for an object with these fields."""
        return self.column_values(dict(zip(self.kinds, attrgetter(*self.kinds)(row), strict=True)))

    def column_values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns values by column; those stored as JSON are encoded."""
        return {
            name: convert(value) if value is not None and (convert := _IN.get(self.kinds[name])) else value
            for name, value in given.items()
        }

    def update(self, given: Mapping[str, Any], where: str) -> str:
        """The statement that sets the given columns."""
        return f"UPDATE {self.name} SET {', '.join(f'{name} = :{name}' for name in given)} WHERE {where}"


@dataclass(frozen=True, slots=True, eq=False)
class JobTable(Table[RowT]):
    """A table of jobs: a row is inserted, changed, and ended with `finished` and `outcome`. A later job has a higher id.

    `fixed`: columns that never change. `counts`: columns that start with 0; other columns that are not given are NULL.
    `is_corrected`: the outcome may be changed after the end.
    """

    counts: tuple[str, ...]
    fixed: tuple[str, ...] = ("id", "started", "pid", "pid_started")
    is_corrected: bool = False

    def start(self, session: Session, **values: Any) -> int:
        """Inserts a row; returns its id. Raises TypeError for an unknown column."""
        self._validate({name: value for name, value in values.items() if name not in self.fixed})
        row = (
            dict.fromkeys(self.kinds) | dict.fromkeys(self.counts, 0) | {"updated": values["started"]} | self.column_values(values)
        )
        return session.run(self.insert(but="id"), row).lastrowid or 0

    def change(self, session: Session, row_id: int, changes: Mapping[str, Any]) -> None:
        """Sets these columns. Raises KeyError if there is no such row, TypeError for columns that cannot change and for an
        incomplete end.
        """
        self._validate(changes)
        if changes and session.run(self.update(changes, "id = :id"), {**self.column_values(changes), "id": row_id}).rowcount == 0:
            raise KeyError(row_id)

    def unfinished(self, session: Session) -> list[RowT]:
        """Rows without an end, oldest first."""
        return self.find(session, "WHERE finished IS NULL ORDER BY id")

    def require_end(self, given: Mapping[str, Any]) -> None:
        """Raises TypeError unless both or none of `finished` and `outcome` are given."""
        if given.get("finished") is None or given.get("outcome") is None:
            raise TypeError(f"a row of {self.name} ends with `finished` and `outcome`")

    def _validate(self, given: Mapping[str, Any]) -> None:
        if unknown := given.keys() - (self.kinds.keys() - set(self.fixed)):
            raise TypeError(f"{self.name} has no column {', '.join(sorted(unknown))} that could be changed")
        if not self.is_corrected and (given.get("finished") is not None or given.get("outcome") is not None):
            self.require_end(given)


def _kinds(row: type, *, but: str = "", **special: str) -> Mapping[str, str]:
    return {field.name: _kind(field.type) for field in fields(row) if field.name != but} | special


def _kind(of_type: Any) -> str:
    for known_type, kind in _KINDS:
        if of_type in (known_type, known_type | None):
            return kind
    return "document" if get_origin(of_type) is Mapping else ""


# A backup's name is '' while it is in `.working`: a key must be unique, and NULLs are never equal. Details of some kilobytes are
# in a separate table, so that a list of all backups does not read them.
backup = Table("backup", Backup, _kinds(Backup, but="detail", name="name"))
run = JobTable("run", Run, _kinds(Run), fixed=("id", "host", "started", "night"), counts=("attempts",), is_corrected=True)
progress = Table("progress", Progress, _kinds(Progress))
expiry = JobTable("expiry", Expiry, _kinds(Expiry), counts=("planned", "marked", "revived", "deleted", "left_out"))
dedupe = JobTable("dedupe", Dedupe, _kinds(Dedupe), counts=("backups", "files", "shared_bytes", "read_bytes", "left_out"))
score = Table("score", FreeSpaceScore, _kinds(FreeSpaceScore))
balance = JobTable(
    "balance",
    Balance,
    _kinds(Balance),
    fixed=("id", "filesystem", "mountpoint", "started", "policy", "budget", "pid", "pid_started"),
    counts=("block_groups", "moved", "gained", "failed"),
)
balance_step = Table("balance_step", BalanceStep, _kinds(BalanceStep))
sample = Table("sample", Sample, _kinds(Sample))
alarm = Table("alarm", StoredAlarm, _kinds(StoredAlarm))
silence = Table("silence", Silence, _kinds(Silence))
damage = Table("damage", Damage, _kinds(Damage))
verification = Table("verification", VerifiedBackup, _kinds(VerifiedBackup))
comparison = Table("comparison", ComparedBackup, _kinds(ComparedBackup))
NOTED = (damage.name, verification.name, comparison.name)
"""Tables of results about backups. Their rows remain when a backup's row is replaced, and are deleted with the backup."""
TABLES: tuple[Table[Any], ...] = (
    *(backup, run, progress, expiry, score, balance, balance_step, sample, alarm),
    *(damage, verification, comparison, dedupe, silence),
)
