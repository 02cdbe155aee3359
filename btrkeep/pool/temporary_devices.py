"""Temporary devices of a pool: their record, and how to find these block devices.

The record is a file in the state folder, written before each step: a process that is killed leaves a pool with one more device, and
the next process finds out from this file which one that is.
"""

import contextlib
import json
import stat
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from btrkeep.checkpoints import Checkpoint
from btrkeep.errors import OperatorError
from btrkeep.hung_storage import HINT, answers
from btrkeep.pool.atomic import write_atomically
from btrkeep.procfs import sysfs_text

RECORD = "temporary-devices.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class TemporaryDevice:
    """`path`: a block device, or a file of btrkeep for a loop device (`is_file`). `size`: bytes of the file, 0 for a device."""

    path: Path
    is_file: bool
    size: int = 0


@dataclass(frozen=True, slots=True)
class TemporaryRecord:
    """The record while temporary devices are part of the pool."""

    filesystem: str
    """The UUID of the filesystem."""
    started: str
    """When they were added."""
    goal: int
    """The goal of unallocated bytes on the permanent devices."""
    devices: tuple[TemporaryDevice, ...]
    """The temporary devices."""
    highest: int = -1
    """Address of the last block group before anything was moved; -1: the devices are not added yet."""
    is_returning: bool = False
    """True if the devices are being emptied."""
    round: int = 1
    """How often block groups were moved and moved back, from 1."""
    lasting: tuple[str, ...] = ()
    """UUIDs of the earlier devices of the pool. A device may have another name after a reboot."""
    added: tuple[str, ...] = ()
    """UUIDs of the temporary devices, after they were added."""


def read_record(state: Path) -> TemporaryRecord | None:
    """Reads the record, None if there is none. Raises OperatorError if it cannot be read or understood."""
    path = state / RECORD
    if not answers(state):
        raise OperatorError(f"{path} does not answer", HINT)
    try:
        return _parsed(json.loads(path.read_text("utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise OperatorError(f"{path}: {error.strerror}", "run this as root") from error
    except (ValueError, KeyError, TypeError) as error:
        hint = "find the temporary device with `btrfs filesystem show`; remove it, then delete this file"
        raise OperatorError(f"{path} is invalid: {error}", hint) from error


def _parsed(record: dict[str, Any]) -> TemporaryRecord:
    if record.pop("format") != _FORMAT:
        raise ValueError("another version wrote it")
    devices = tuple(
        TemporaryDevice(Path(device["path"]), bool(device["is_file"]), int(device["size"])) for device in record.pop("devices")
    )
    lasting, added = (tuple(map(str, record.pop(name, ()))) for name in ("lasting", "added"))
    return TemporaryRecord(devices=devices, lasting=lasting, added=added, **record)


@Checkpoint("temporary devices recorded")
def write_record(state: Path, record: TemporaryRecord) -> None:
    """Replaces the record. Raises OSError."""
    fields = asdict(record) | {"devices": [asdict(device) | {"path": str(device.path)} for device in record.devices]}
    write_atomically(state / RECORD, json.dumps({"format": _FORMAT, **fields}, indent=1) + "\n")


@Checkpoint("temporary devices forgotten")
def delete_record(state: Path) -> None:
    """Deletes the record. Raises OSError."""
    (state / RECORD).unlink(missing_ok=True)


def left_devices(state: Path) -> tuple[str, ...]:
    """Returns the names of the recorded devices; that of the record itself if it cannot be read, none if its folder does not
    answer, which is reported for the catalogue in it.
    """
    if not answers(state):
        return ()
    try:
        record = read_record(state)
    except OperatorError:
        return (str(state / RECORD),)
    return tuple(str(device.path) for device in record.devices) if record else ()


def loop_of(device: TemporaryDevice) -> Path | None:
    """Returns the loop device of a file, None if it has none."""
    for folder in Path("/sys/block").glob("loop*"):
        if sysfs_text(folder / "loop" / "backing_file") == str(device.path):
            return Path("/dev") / folder.name
    return None


def block_device(device: TemporaryDevice) -> Path | None:
    """Returns the block device, None if a file has none now."""
    return loop_of(device) if device.is_file else device.path


def is_same_device(path: Path, other: Path | None) -> bool:
    """Returns True if both are names of one block device."""
    if other is None:
        return False
    with contextlib.suppress(OSError):
        first, second = path.stat(), other.stat()
        return stat.S_ISBLK(first.st_mode) and stat.S_ISBLK(second.st_mode) and first.st_rdev == second.st_rdev
    return False


def paths_of(devices: Iterable[TemporaryDevice]) -> str:
    """Returns their names for a message."""
    return ", ".join(str(device.path) for device in devices)
