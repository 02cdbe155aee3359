"""The catalogue's data types that summarise many rows: nights, totals, what became of backups. See model.py for conventions."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Night:
    """One process of `backupd run` over all hosts. Counts only the rows that are still in the catalogue."""

    first_run: int
    """Ids of its first and of its last run; those of other processes may lie between."""
    last_run: int
    started: datetime
    """When its first run did."""
    finished: datetime | None
    """When the last one ended; None: one has no end."""
    pid: int
    pid_started: str | None
    outcomes: Mapping[str, int]
    """How many runs ended how, one of RUN_OUTCOMES; "": those without an end."""
    literal_bytes: int
    """New data that all of them brought."""

    @property
    def runs(self) -> int:
        """Number of hosts that it tried."""
        return sum(self.outcomes.values())


@dataclass(frozen=True, slots=True)
class PastRuns:
    """Which runs of hosts are asked for: those that are all of this. None, or nothing given: any."""

    hosts: Collection[str] | None = None
    outcomes: Collection[str] = ()
    """Of RUN_OUTCOMES; "" is a run without an end."""
    since: datetime | None = None
    """Started then or later."""
    night: bool | None = None
    process: tuple[int, str | None] | None = None
    """pid and start time of the process that made them."""
    ids: tuple[int, int] | None = None
    """From the one to the other, both included."""
    before: int | None = None
    """With a lower id: for the next page."""


class HostRuns(NamedTuple):
    """One run without rsync's output. A tuple, because a month of 3,000 hosts has 90,000 of them."""

    host: str
    id: int
    started: datetime
    finished: datetime | None
    outcome: str | None
    """One of RUN_OUTCOMES; None: running now, or killed."""
    backup: str | None
    error: str | None
    literal_bytes: int | None
    pid: int
    pid_started: str | None
    night: bool


class BackupOutcome(NamedTuple):
    """The first and the present state of a final backup."""

    host: str
    name: str
    state: str
    """One of BACKUP_STATES."""
    outcome: str | None
    """complete, suspect or failed, whatever became of it since; None where the catalogue does not know."""


@dataclass(frozen=True, slots=True)
class RunTotals:
    """All runs of hosts that ended with one outcome in some time: how many, and the bytes of new data that they brought."""

    outcome: str
    runs: int
    literal_bytes: int


@dataclass(frozen=True, slots=True)
class BalanceTotals:
    """All runs of balance on a filesystem, ever. `written`: by those of which it is known."""

    runs: int
    block_groups: int
    moved: int
    written: int


@dataclass(frozen=True, slots=True)
class ExpiryTotals:
    """All runs of `expire`, ever."""

    runs: int
    deleted: int
