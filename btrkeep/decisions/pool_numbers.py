"""The pool's filesystem in numbers: of a sample, or of what was just read."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from btrkeep.catalogue.model_sample import Sample, read_space_name
from btrkeep.pool.model import DEVICE_ERRORS


@dataclass(frozen=True, slots=True)
class PoolNumbers:
    """How the pool's filesystem was at a moment. Sizes are bytes of the devices: what is stored twice counts twice.

    `spaces`: by type ("data"), allocated and used, as files have them. `errors`: by number of the device what it has counted since
    its counters were reset, by the names in DEVICE_ERRORS. `orphans`: None where nobody may count them.
    """

    taken: datetime
    size: int
    allocated: int
    used: int
    spaces: Mapping[str, tuple[int, int]]
    errors: Mapping[int, Mapping[str, int]]
    orphans: int | None


def numbers_of_sample(sample: Sample) -> PoolNumbers:
    """Returns the numbers of a sample."""
    errors = {int(devid): errors_by_name(values[2:]) for devid, values in sample.devices.items()}
    spaces = ((read_space_name(name).type, values[0], values[1]) for name, values in sample.spaces.items())
    return PoolNumbers(sample.taken, sample.size, sample.allocated, sample.used, summed_spaces(spaces), errors, sample.orphans)


def errors_by_name(errors: Sequence[int]) -> dict[str, int]:
    """Returns the counters by name; empty for a device that has none, such as a missing one."""
    return dict(zip(DEVICE_ERRORS, errors, strict=True)) if errors else {}


def summed_spaces(spaces: Iterable[tuple[str, int, int]]) -> dict[str, tuple[int, int]]:
    """Returns the sums by type, over all profiles: while a filesystem is converted it has two."""
    found: dict[str, tuple[int, int]] = {}
    for kind, allocated, used in spaces:
        before = found.get(kind, (0, 0))
        found[kind] = (before[0] + allocated, before[1] + used)
    return found
