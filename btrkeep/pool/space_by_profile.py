"""The data about the pool's space, without the code that reads it, and how much data fits on devices of given sizes, by profile.
Pure.

The kernel's allocator works like this: a chunk takes its stripes from the devices with the most unallocated space, one from each
(gather_device_info and decide_stripe_size in fs/btrfs/volumes.c): two for raid1, as many devices as have space for raid0, raid10
(an even number), raid5 and raid6.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from btrkeep.units import format_size

DEVICE_ERRORS = ("write", "read", "flush", "corruption", "generation")
"""The counters of GET_DEV_STATS for a device, in the order of `DeviceUse.errors`."""


@dataclass(frozen=True, slots=True)
class ChunkUse:
    """The chunks of one type and profile on the same devices."""

    type: str
    """"data", "metadata", "system" or "mixed"."""
    profile: str
    """Such as "raid1"."""
    used: int
    """Used bytes in all of them."""
    devids: tuple[int, ...]
    """The devices, in the order of the stripes."""


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes of data that fit, by location.

    `free` is unused inside allocated data block groups, `unallocated` belongs to no block group yet (in bytes of data: halved for
    raid1 and dup), `total` is the capacity of the empty filesystem. `metadata_free` is unused in allocated metadata block groups,
    including mixed ones, without the kernel's own reserve.
    """

    total: int
    free: int
    unallocated: int
    metadata_free: int

    @property
    def available(self) -> int:
        """Room for data: free in block groups and unallocated."""
        return self.free + self.unallocated

    def __str__(self) -> str:
        return f"{format_size(self.unallocated)} unallocated and {format_size(self.free)} free in data block groups"


@dataclass(frozen=True, slots=True)
class Profile:
    """`least`: how many devices with unallocated space a new chunk needs. `copies` of each byte, on that many devices; `parity`:
    stripes of a chunk without data. `striped`: a chunk uses all devices that have space.
    """

    least: int
    copies: int = 1
    parity: int = 0
    striped: bool = False


PROFILES = {
    "single": Profile(1),
    "dup": Profile(1, 2),
    "raid0": Profile(1, striped=True),
    "raid1": Profile(2, 2),
    "raid1c3": Profile(3, 3),
    "raid1c4": Profile(4, 4),
    "raid10": Profile(2, 2, striped=True),
    "raid5": Profile(2, parity=1, striped=True),
    "raid6": Profile(3, parity=2, striped=True),
}
_STEPS = 256  # steps on the largest device, for an odd number of stripes that alternate between devices


def devices_needed(profile: str) -> int:
    """Returns how many devices with unallocated space a new chunk of this profile needs; 1 for an unknown one."""
    return PROFILES[profile].least if profile in PROFILES else 1


def data_that_fits(profile: str, sizes: Iterable[int]) -> int:
    """Returns the bytes of data that fit on devices with that unallocated space. An unknown profile counts as single."""
    return _fits(profile, _in_order(sizes))[0]


def space_for_chunks(profile: str, sizes: Iterable[int]) -> int:
    """Returns the bytes of these devices that chunks with the profile can use, including all copies and parity."""
    return _fits(profile, _in_order(sizes))[1]


def _in_order(sizes: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted((size for size in sizes if size > 0), reverse=True))


@lru_cache(maxsize=64)
def _fits(name: str, sizes: tuple[int, ...]) -> tuple[int, int]:
    """Returns the bytes of data that fit, and the bytes of the devices that they use."""
    profile = PROFILES.get(name, PROFILES["single"])
    if len(sizes) < profile.least:
        return 0, 0
    if profile.striped:
        return _striped(profile, list(sizes))
    if profile.least == 1:  # all copies on one device
        return sum(size // profile.copies for size in sizes), sum(sizes)
    data = _mirrored(profile.copies, sizes)
    return data, data * profile.copies


def _mirrored(copies: int, sizes: tuple[int, ...]) -> int:
    """Returns the maximum bytes whose copies can be on different devices.

    Only a part of a device that is larger than all others together can be used: without the `larger` largest, which store one copy
    each, the rest must store the other copies.
    """
    return min(sum(sizes[larger:]) // (copies - larger) for larger in range(copies))


def _striped(profile: Profile, sizes: list[int]) -> tuple[int, int]:
    data = space = 0
    step = max(1, sizes[0] // _STEPS)
    while True:
        sizes = sorted((size for size in sizes if size > 0), reverse=True)
        count = len(sizes) - len(sizes) % profile.copies
        if count < profile.least:
            return data, space
        stripe = sizes[count - 1] if count == len(sizes) else min(step, sizes[count - 1])
        sizes = [size - stripe if index < count else size for index, size in enumerate(sizes)]
        data += stripe * (count - profile.parity) // profile.copies
        space += stripe * count
