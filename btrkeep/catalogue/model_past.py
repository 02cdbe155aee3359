"""What the catalogue gives out about what ran in the past. As in model.py."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Night:
    """One process of `backupd run` over all hosts. Only what is left of it in the catalogue is counted."""

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
        """How many hosts it tried."""
        return sum(self.outcomes.values())


class SampleMark(NamedTuple):
    """Of a sample what it takes to choose among thousands: the rest is some hundred bytes of JSON."""

    id: int
    taken: datetime
    orphans: int | None
    activity: str


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
