"""The facts about a mounted btrfs: from mountinfo, /sys/fs/btrfs, and the ioctls that btrkeep.pool knows."""

import re
from collections.abc import Mapping
from pathlib import Path

from backupd.doctor.facts import FilesystemFacts
from backupd.doctor.layers import SYS, device
from backupd.health.pool_facts import device_errors, read_redundancy
from btrkeep.pool import quota
from btrkeep.pool.allocation import Allocation, read_allocation
from btrkeep.pool.balance import exclusive_operation, missing_devices
from btrkeep.pool.marker import filesystem_uuid
from btrkeep.pool.mounts import machine_mount, mount_of
from btrkeep.pool.room import read_room
from btrkeep.pool.subvolume import opened
from btrkeep.procfs import sysfs_text
from btrkeep.treescan.devices import count_subvolumes

_KNOBS = ("dynamic_reclaim", "periodic_reclaim", "bg_reclaim_threshold")


def read_filesystem(path: Path) -> FilesystemFacts:
    """Reads the facts of the btrfs of `path`. Raises OSError."""
    uuid, mount = filesystem_uuid(path), mount_of(path)
    folder = SYS / "fs" / "btrfs" / uuid
    machine, allocation, missing = machine_mount(path), read_allocation(path), missing_devices(path)
    checksum, driver = _checksum(folder)
    options = tuple(option for option in mount.super_options if not option.startswith("subvol"))
    return FilesystemFacts(
        uuid=uuid,
        target=mount.target,
        mount_options=frozenset(machine.mount_options) if machine else None,
        options=options,
        features=frozenset(_names(folder / "features")),
        kernel_features=frozenset(_names(SYS / "fs" / "btrfs" / "features")),
        free_space_tree="space_cache=v2" in options,
        checksum=checksum,
        checksum_driver=driver,
        profiles=_profiles(allocation),
        devices=tuple(device(name) for name in _present(folder / "devices")),
        missing=missing,
        errors=device_errors(allocation),
        quota=quota.mode(uuid),
        reclaim=_reclaim(folder / "allocation" / "data"),
        exclusive_operation=exclusive_operation(path) if (folder / "exclusive_operation").exists() else None,
        room=read_room(path),
        allocated=sum(space.total for space in allocation.spaces),
        subvolumes=_subvolumes(path),
        redundancy=read_redundancy(path, allocation, missing),
        unallocated={device.devid: device.unallocated for device in allocation.devices if device.present},
    )


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except FileNotFoundError:
        return []


def _present(folder: Path) -> list[str]:
    """Returns the names of the present devices: a missing one appears in sysfs without a link target."""
    return [name for name in _names(folder) if (SYS / "class" / "block" / name).exists()]


def _checksum(folder: Path) -> tuple[str, str]:
    """Algorithm and driver of "crc32c (crc32c-intel)" (Linux 5.5)."""
    match = re.fullmatch(r"(\S+) \((.+)\)", sysfs_text(folder / "checksum"))
    return (match[1], match[2]) if match else ("", "")


def _profiles(allocation: Allocation) -> Mapping[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for space in allocation.spaces:
        if space.total:
            found.setdefault(space.type, []).append(space.profile)
    return {kind: tuple(sorted(profiles)) for kind, profiles in found.items()}


def _reclaim(folder: Path) -> Mapping[Path, str]:
    """The threshold alone does nothing where dynamic reclaim sets it by itself, and is shown as that then."""
    values = {folder / name: sysfs_text(folder / name) for name in _KNOBS}
    return {file: value for file, value in values.items() if value not in ("", "0")}


def _subvolumes(path: Path) -> int | None:
    with opened(path.resolve()) as fd:
        try:
            return count_subvolumes(fd)
        except PermissionError:
            return None
