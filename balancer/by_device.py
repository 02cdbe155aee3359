"""Chooses block groups by the devices that they are on: all on one, or all that are not on one, to fill it."""

from collections.abc import Collection
from pathlib import Path

import numpy as np

from balancer.run_types import RunSettings
from btrkeep.errors import UsageError
from btrkeep.pool.allocation import read_allocation
from btrkeep.treescan.block_groups import Chunks, chunks


def elsewhere(fd: int, settings: RunSettings) -> set[int]:
    """Returns the addresses of the block groups that the settings leave out by device. Raises OSError."""
    if not settings.devices and settings.fill is None:
        return set()
    chunk = chunks(fd)
    left_out = on_devices(chunk, (settings.fill,)) if settings.fill is not None else set()
    return left_out | (set(chunk.vaddr.tolist()) - on_devices(chunk, settings.devices) if settings.devices else set())


def on_devices(chunk: Chunks, devids: Collection[int]) -> set[int]:
    """Returns the addresses of the chunks that have a stripe on one of these devices."""
    is_there = np.isin(chunk.stripe_devid, np.array(list(devids), np.uint64))
    return set(chunk.vaddr[np.unique(chunk.stripe_chunk[is_there])].tolist())


def is_filled(folder: Path, devid: int) -> bool:
    """Returns True if the device has no more unallocated space than another one: the kernel then prefers it no longer. Raises
    OSError.
    """
    unallocated = {device.devid: device.unallocated for device in read_allocation(folder).devices if device.present}
    others = [size for number, size in unallocated.items() if number != devid]
    return unallocated.get(devid, 0) <= max(others, default=0)


def require_devices(folder: Path, settings: RunSettings) -> None:
    """Raises UsageError for a number that no device of the filesystem has, and OSError."""
    present = sorted(device.devid for device in read_allocation(folder).devices)
    for devid in (*settings.devices, *(() if settings.fill is None else (settings.fill,))):
        if devid not in present:
            raise UsageError(f"the filesystem has no device {devid}", f"its devices: {', '.join(map(str, present))}")
