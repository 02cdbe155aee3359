"""How allocated and used went: a point for each hour or day out of whatever samples there are. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from btrkeep.catalogue import Sample

_STEPS = tuple(timedelta(minutes=minutes) for minutes in (5, 60, 360, 1440, 7 * 1440))
_MOST = 400


@dataclass(frozen=True, slots=True)
class Point:
    """How a filesystem was at a moment; sizes are bytes of the devices. `metadata_share`: how much of what is used is metadata."""

    taken: datetime
    size: int
    allocated: int
    used: int
    metadata_share: float
    orphans: int | None
    score: float | None

    @property
    def unallocated(self) -> int:
        """What no chunk has."""
        return max(self.size - self.allocated, 0)

    @property
    def unused(self) -> int:
        """What is allocated and not used: what balance gives back."""
        return max(self.allocated - self.used, 0)


def step_for(length: timedelta) -> timedelta:
    """How far apart points are that show so much time: five minutes, an hour, six, a day or a week, for at most 400 points."""
    return next((step for step in _STEPS if length / step <= _MOST), _STEPS[-1])


def points(samples: Sequence[Sample], start: datetime, step: timedelta) -> list[Point]:
    """Of samples, oldest first, the last within each step from `start` on; steps without one have no point."""
    last = {int((sample.taken - start) / step): sample for sample in samples if sample.taken >= start}
    return [point_of(sample) for sample in last.values()]


def point_of(sample: Sample) -> Point:
    """What a sample says of the moment."""
    return Point(sample.taken, sample.size, sample.allocated, sample.used, metadata_share(sample), sample.orphans, sample.score)


def metadata_share(sample: Sample) -> float:
    """Bytes of the devices that are used by metadata, as a share of all that are used. Mixed block groups are data here."""
    used = {name: bytes_used * factor for name, (_, bytes_used, factor) in sample.spaces.items()}
    whole = sum(used.values())
    return sum(value for name, value in used.items() if name.startswith("metadata ")) / whole if whole else 0.0


def data_factor(sample: Sample) -> float:
    """How many bytes of the devices a byte of data takes: 2 with raid1. That of the profile that most data has."""
    kinds = [(used, factor / 1000) for name, (_, used, factor) in sample.spaces.items() if name.startswith(("data ", "mixed "))]
    return max(kinds, default=(0, 1.0))[1]
