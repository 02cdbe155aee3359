"""The space that fits, on fresh pools of unequal devices in each profile: compared with df, `btrfs filesystem usage` and chunks of
the kernel.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from btrkeep.pool.allocation import read_allocation, read_room
from tests.beds import btrfs, work

pytestmark = [pytest.mark.btrfs, pytest.mark.root]
MIB = 1 << 20
SMALL, LARGE = "400M", 900 * MIB


def grown(point: Path, device: int, size: int) -> None:
    """Makes one device larger, so that they are unequal."""
    os.truncate(point.parent / f"disk{device - 1}", size)
    for loop in btrfs.devices_of(point):
        work("losetup", "--set-capacity", loop)
    work("btrfs", "filesystem", "resize", f"{device}:max", point)


@pytest.mark.parametrize(
    ("profile", "devices"), [("raid1", 2), ("raid1", 3), ("raid1c3", 3), ("raid1c4", 4), ("raid10", 4), ("raid5", 3), ("raid6", 4)]
)
def test_what_fits_on_unequal_devices(make_btrfs: Callable[..., Path], profile: str, devices: int) -> None:
    point = make_btrfs(size=SMALL, devices=devices, mkfs=("-d", profile, "-m", "raid1"))
    if profile not in ("raid5", "raid6"):  # `btrfs filesystem usage` does not count unequal ones
        grown(point, 1, LARGE)
    room, allocation, counted = read_room(point), read_allocation(point), os.statvfs(point)
    sizes = sorted((device.size for device in allocation.devices), reverse=True)
    least = {"raid1": 2, "raid1c3": 3, "raid1c4": 4}.get(profile)
    if least:  # the largest device cannot be full: each byte has a copy elsewhere
        expected = min(sum(sizes) // least, sum(sizes[1:]) // (least - 1))
        assert 0.8 * expected <= room.total <= expected + MIB  # less the chunks of metadata in unfavourable places
    assert room.total <= counted.f_blocks * counted.f_frsize
    new = allocation.new_data
    assert new is not None
    unusable = max(0, sizes[0] - sum(sizes[1:])) if least == 2 else 0  # of raid1
    if profile in ("raid1", "raid5", "raid6"):
        assert allocation.size == sum(sizes) - unusable
    free = sum(space.total - space.used for space in allocation.spaces if space.type == "data")
    if devices != least:
        assert room.available == pytest.approx(new + free, abs=MIB)
    if profile in ("raid5", "raid6"):
        usage = work("btrfs", "filesystem", "usage", "-b", point).stdout
        estimated = re.search(r"Free \(estimated\):\s+(\d+)\s+\(min: (\d+)\)", usage)
        assert estimated
        lopsided = 2 * sum(space.total for space in allocation.spaces if space.type != "data")  # on two of the devices
        assert int(estimated[1]) - lopsided <= room.available <= int(estimated[1]) + MIB
        expected = sum(sizes) - (1 if profile == "raid5" else 2) * sizes[0]
        assert 0.8 * expected <= room.total <= expected
    elif devices == least:  # no choice of devices: df counts that
        assert room.available == pytest.approx(counted.f_bavail * counted.f_frsize, abs=32 * MIB)
    else:
        assert room.available >= counted.f_bavail * counted.f_frsize - 32 * MIB


def test_unequal_mirrors_take_as_much_as_the_kernel_then_does(make_btrfs: Callable[..., Path]) -> None:
    """The truth is what can be allocated; nothing is written."""
    point = make_btrfs(size="300M", devices=2, mkfs=("-d", "raid1", "-m", "raid1"))
    grown(point, 1, 700 * MIB)
    available = read_room(point).available
    allocation = read_allocation(point)
    assert allocation.size == 2 * min(device.size for device in allocation.devices)
    with (point / "file").open("wb") as file:
        size = 0
        while size < 2000 * MIB:
            try:
                os.posix_fallocate(file.fileno(), size, 4 * MIB)
            except OSError:
                break
            size += 4 * MIB
    assert available == pytest.approx(size, abs=40 * MIB)


def test_a_device_that_was_added_to_a_full_mirror_makes_no_room_by_itself(make_btrfs: Callable[..., Path]) -> None:
    """raid1 needs unallocated space on two devices: the kernel refuses a chunk, and the function has none."""
    point = make_btrfs(size="300M", devices=2, mkfs=("-d", "raid1", "-m", "raid1"))
    for number in range(1000):
        try:
            with (point / f"f{number}").open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, 8 * MIB)
        except OSError:
            break
    before, image = read_room(point), point.parent / "disk2"
    with image.open("wb") as file:
        file.truncate(300 * MIB)
    work("btrfs", "device", "add", "-f", btrfs.attach(image), point)
    allocation = read_allocation(point)
    assert sorted(device.unallocated > 64 * MIB for device in allocation.devices) == [False, False, True]
    assert (allocation.new_data or 0) < 32 * MIB
    assert read_room(point).unallocated < 32 * MIB
    assert read_room(point).total == pytest.approx(before.total, abs=16 * MIB), "so no further limit is crossed"
    with pytest.raises(OSError, match="No space"), (point / "more").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 100 * MIB)
