"""The catalogue's data types for samples of the pool and for jobs. See model.py for conventions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

SPANS = ("raw", "hour", "day")
"""raw: as it was taken. hour, day: what is left of all samples of that hour or day."""
JOBS = ("backup", "expire", "balance")


class SpaceType(NamedTuple):
    """The type ("data", "metadata", "system", "mixed") and the profile ("single", "raid1") of block groups."""

    type: str
    profile: str


def space_name(space: SpaceType) -> str:
    """Returns the key of `Sample.spaces` for block groups of this type and profile: "data raid1"."""
    return f"{space.type} {space.profile}"


def read_space_name(name: str) -> SpaceType:
    """Returns the type and profile that `space_name` wrote. Raises ValueError for anything else."""
    type_, profile = name.split()
    return SpaceType(type_, profile)


def join_activities(activities: Iterable[str]) -> str:
    """Returns the column `activity`: the operations ("balance", "scrub") with commas between; "" for none."""
    return ", ".join(activities)


def split_activities(activity: str) -> tuple[str, ...]:
    """Returns the operations that `join_activities` wrote."""
    return tuple(activity.split(", ")) if activity else ()


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of a filesystem at a moment, and the activity of its devices since the sample before. Fields are in the order of
    the columns.

    Sizes are raw bytes of the devices: data stored twice counts twice. For an hour or a day they are those of its last sample.
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
    """By `space_name` ("data raid1"): allocated, used, both as files have them, and a thousand times the bytes of devices that a
    byte of them takes."""
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
    """What the kernel did besides ("balance", "scrub"), as `join_activities` writes it."""
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
    """The part of a sample that is needed to choose among thousands; the rest is some hundred bytes of JSON."""

    id: int
    taken: datetime
    orphans: int | None
    activity: str


@dataclass(frozen=True, slots=True)
class Job:
    """A job that ran, one of JOBS. `data`: bytes of file data that it wrote or moved; None if unknown."""

    kind: str
    started: datetime
    finished: datetime | None
    """None: running now, or killed."""
    updated: datetime | None
    """When it was last heard of; None: nobody writes that down."""
    data: int | None
    pid: int = 0
    pid_started: str | None = None
