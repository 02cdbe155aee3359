"""The pool as its newest sample has it: its space by type and profile, its devices and their errors."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from btrkeep.catalogue import Catalogue, FreeSpaceScore, Sample
from btrkeep.decisions.trend import Point, metadata_share
from web.same_names import of_row

ERRORS = ("writing", "reading", "flushing", "corruption", "generation")


@dataclass(frozen=True, slots=True)
class SpaceRow:
    """The space allocated to one type of one profile ("data raid1"), and used of it: bytes as files have them.

    `copies`: bytes of the devices for one byte of a file.
    """

    name: str
    allocated: int
    used: int
    copies: float

    @property
    def share(self) -> float:
        """Returns the used share of the allocated space."""
        return self.used / self.allocated if self.allocated else 0.0


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A device; bytes. `errors` are counts since they were reset last, in the order of ERRORS; None: not known."""

    devid: int
    size: int
    allocated: int
    errors: tuple[int, ...] | None

    @property
    def has_errors(self) -> bool:
        """Returns True if any error was ever counted."""
        return any(self.errors or ())


@dataclass(frozen=True, slots=True)
class PoolNow(Point):
    """The newest sample, with its profiles and devices. Sizes are bytes of the devices: data stored twice counts twice."""

    spaces: tuple[SpaceRow, ...]
    devices: tuple[DeviceRow, ...]
    scored: datetime | None
    options: str
    activity: str


def pool_now(catalogue: Catalogue, filesystem: str) -> PoolNow | None:
    """Returns the newest sample; None if there is none yet."""
    sample = catalogue.newest_sample(filesystem)
    return _now(sample, catalogue.newest_score(filesystem)) if sample else None


def _now(sample: Sample, scored: FreeSpaceScore | None) -> PoolNow:
    """Returns the sample with the newest score: a balance may have scored the free space since."""
    is_newer = scored and (sample.scored is None or scored.taken > sample.scored)
    return of_row(
        PoolNow,
        sample,
        metadata_share=metadata_share(sample),
        spaces=tuple(SpaceRow(name, total, used, factor / 1000) for name, (total, used, factor) in sorted(sample.spaces.items())),
        devices=tuple(_device(name, numbers) for name, numbers in sorted(sample.devices.items(), key=lambda pair: int(pair[0]))),
        score=scored.score if scored and is_newer else sample.score,
        scored=scored.taken if scored and is_newer else sample.scored,
    )


def _device(name: str, numbers: Sequence[int]) -> DeviceRow:
    size, allocated, *errors = numbers
    return DeviceRow(int(name), size, allocated, tuple(errors) or None)
