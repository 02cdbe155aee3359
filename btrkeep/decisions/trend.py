"""Reduces samples of allocated and used space to one point per hour or day. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from btrkeep.catalogue import Sample
from btrkeep.catalogue.model_sample import read_space_name

_STEPS = tuple(timedelta(minutes=minutes) for minutes in (5, 60, 360, 1440, 7 * 1440))
MOST_POINTS = 400


@dataclass(frozen=True, slots=True)
class Point:
    """The state of a filesystem at a moment; sizes are raw bytes of the devices. `metadata_share`: share of metadata in the used
    bytes.
    """

    taken: datetime
    size: int
    allocated: int
    used: int
    metadata_share: float
    orphans: int | None
    score: float | None

    @property
    def unallocated(self) -> int:
        """Returns the bytes that belong to no chunk."""
        return max(self.size - self.allocated, 0)

    @property
    def unused(self) -> int:
        """Returns the bytes that are allocated and unused, which a balance can give back."""
        return max(self.allocated - self.used, 0)


def step_for(length: timedelta) -> timedelta:
    """Returns the distance of points for a span of this length: five minutes, an hour, six, a day or a week, for at most 400
    points.
    """
    return next((step for step in _STEPS if length / step <= MOST_POINTS), _STEPS[-1])


def points(samples: Sequence[Sample], start: datetime, step: timedelta) -> list[Point]:
    """Returns the last sample of each step from `start` on; samples are given oldest first. Steps without a sample have no
    point.
    """
    last = {int((sample.taken - start) / step): sample for sample in samples if sample.taken >= start}
    return [point_of(sample) for sample in last.values()]


def point_of(sample: Sample) -> Point:
    """Converts a sample to a point."""
    return Point(sample.taken, sample.size, sample.allocated, sample.used, metadata_share(sample), sample.orphans, sample.score)


def metadata_share(sample: Sample) -> float:
    """Bytes of the devices that are used by metadata, as a share of all that are used. Mixed block groups are data here."""
    used = [(read_space_name(name).type, bytes_used * factor) for name, (_, bytes_used, factor) in sample.spaces.items()]
    whole = sum(value for _, value in used)
    return sum(value for type_, value in used if type_ == "metadata") / whole if whole else 0.0


def data_factor(sample: Sample) -> float:
    """Returns how many raw bytes a byte of data takes: 2 with raid1. Uses the profile that most of the data has."""
    profiles = [
        (used, factor / 1000)
        for name, (_, used, factor) in sample.spaces.items()
        if read_space_name(name).type in ("data", "mixed")
    ]
    return max(profiles, default=(0, 1.0))[1]
