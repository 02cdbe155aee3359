"""The catalogue's tables, as they are now: their columns are the fields of what a row becomes. How a file gets there, with its
keys, checks and indexes, is in migrations/; a test holds the two together.

`host` has one row for each host that ever had a backup or a run. It lets the newest row of each host be found by one index seek per
host, however long the history has grown.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from operator import attrgetter
from typing import Any, get_origin

from btrkeep.catalogue import columns
from btrkeep.catalogue.model import Backup, Expiry, Progress, Run
from btrkeep.catalogue.model_alarm import StoredAlarm
from btrkeep.catalogue.model_balance import Balance, BalanceStep, FreeSpaceScore
from btrkeep.catalogue.model_sample import Sample

SCHEMA_VERSION = "0007"
"""The newest migration. Versions are numbers of four digits, so that text order is their order."""

_KINDS: tuple[tuple[Any, str], ...] = (
    (datetime, "moment"),
    (tuple[str, ...], "lines"),
    (tuple[tuple[int, int, int], ...], "rows"),
    (bool, "flag"),
)
_IN: Mapping[str, Callable[[Any], Any]] = {"lines": columns.lines_in, "document": columns.document_in, "rows": columns.rows_in}


@dataclass(frozen=True, slots=True)
class Table:
    """Its name, its columns in the order of the row's fields, and of each column how its values come out, "" for as they are."""

    name: str
    kinds: Mapping[str, str]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.kinds)

    def select(self, *names: str, of: str = "") -> str:
        """These columns for a SELECT, all when none is named; `of` is the alias that the query gives the table."""
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

    def insert(self, *, but: str = "") -> str:
        """The statement that inserts a row; without the column `but`."""
        names = [name for name in self.kinds if name != but]
        values = ", ".join(f"coalesce(:{name}, '')" if self.kinds[name] == "name" else f":{name}" for name in names)
        return f"INSERT INTO {self.name} ({', '.join(names)}) VALUES ({values})"

    def values(self, row: object) -> dict[str, Any]:
        """What `insert` takes, of an object with these fields."""
        return self.kept(dict(zip(self.kinds, attrgetter(*self.kinds)(row), strict=True)))

    def kept(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Values by column, with those that are kept as JSON as such."""
        return {
            name: convert(value) if value is not None and (convert := _IN.get(self.kinds[name])) else value
            for name, value in given.items()
        }

    def update(self, given: Mapping[str, Any], where: str) -> str:
        """The statement that sets the given columns."""
        return f"UPDATE {self.name} SET {', '.join(f'{name} = :{name}' for name in given)} WHERE {where}"


def _table(name: str, row: type, *, but: str = "", special: Mapping[str, str] = {}) -> Table:
    kinds = {field.name: _kind(field.type) for field in fields(row) if field.name != but}
    return Table(name, {**kinds, **special})


def _kind(of_type: Any) -> str:
    for known, kind in _KINDS:
        if of_type in (known, known | None):
            return kind
    return "document" if get_origin(of_type) is Mapping else ""


# A backup's name is '' while it is in `.working`: NULLs are never equal, and a key must be unique. Its detail has a table of its
# own, because it is some kilobytes: a list of all backups must not read it.
backup = _table("backup", Backup, but="detail", special={"name": "name"})
run = _table("run", Run)
progress = _table("progress", Progress)
expiry = _table("expiry", Expiry)
score = _table("score", FreeSpaceScore)
balance = _table("balance", Balance)
balance_step = _table("balance_step", BalanceStep)
sample = _table("sample", Sample)
alarm = _table("alarm", StoredAlarm)
TABLES = (backup, run, progress, expiry, score, balance, balance_step, sample, alarm)
