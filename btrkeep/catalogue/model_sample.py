"""What the catalogue gives out and takes in about how the pool was at a moment, and which job ran when. As in model.py."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

SPANS = ("raw", "hour", "day")
"""raw: as it was taken. hour, day: what is left of all samples of that hour or day."""
JOBS = ("backup", "expire", "balance")


@dataclass(frozen=True, slots=True)
class Sample:
    """How a filesystem was at a moment, and what its devices did in the time before. Orders of fields are orders of columns.

    Sizes are bytes of the devices: what is stored twice counts twice. For an hour or a day they are those of its last sample.
    """

    filesystem: str
    """The UUID."""
    taken: datetime
    span: str
    """One of SPANS."""
    size: int
    allocated: int
    used: int
    spaces: Mapping[str, Sequence[int]]
    """By type and profile ("data raid1"): allocated, used, both as files have them, and a thousand times the bytes of devices that
    a byte of them takes."""
    devices: Mapping[str, Sequence[int]]
    """By number ("1"): size, allocated, and errors of writing, reading, flushing, corruption, generation, unless unknown."""
    orphans: int | None
    """Deleted subvolumes that waited for the cleaner; of an hour or a day the most. None: not known."""
    score: float | None
    """Of the free space, as it was scored last; None: never."""
    scored: datetime | None
    """When that was."""
    options: str
    """The mount options, those of the filesystem and those of the mount."""
    activity: str
    """What the kernel did besides: "", or "balance", "scrub" and the like, with commas between."""
    seconds: float
    """The time up to `taken` that `read` and all that follow are about; 0: they are not known."""
    read: int
    """From all devices."""
    written: int
    peak_read: float
    """The most in a second, on average over the shortest span that was kept."""
    peak_written: float
    pressure: Mapping[str, float]
    """Seconds that processes waited, by kind ("io some"); empty: the kernel does not tell."""
    counters: Mapping[str, object] = field(default_factory=dict)
    """The counters themselves, of a raw sample, for the difference to the next one."""
    id: int = 0
    """0: not kept yet."""


class SampleMark(NamedTuple):
    """Of a sample what it takes to choose among thousands: the rest is some hundred bytes of JSON."""

    id: int
    taken: datetime
    orphans: int | None
    activity: str


@dataclass(frozen=True, slots=True)
class Job:
    """A job that ran: one of JOBS. `data`: bytes that it wrote or moved for the sake of data, None when that is not known."""

    kind: str
    started: datetime
    finished: datetime | None
    """None: running now, or killed."""
    updated: datetime | None
    """When it was last heard of; None: nobody writes that down."""
    data: int | None
    pid: int = 0
    pid_started: str | None = None
