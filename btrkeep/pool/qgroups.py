"""Simple quotas (Linux 6.7): how much of the data on the disks a host wrote, and a limit for it.

An extent belongs to the subvolume for which it was written, as long as the extent exists, however many snapshots share it. The
subvolumes of a host are members of one group of level 1, whose byte count is therefore the number of bytes that the host wrote and
that still exist, including metadata. Data written before simple quotas were enabled belongs to no group.

The number of a host's group is computed from the pool's subvolume and the inode of the host's folder: no two hosts share one, a
renamed host keeps it, and nothing that could be lost needs to be stored. The group of a deleted subvolume remains until it is
removed; the kernel allows that when none of its data is left. Layouts: include/uapi/linux/btrfs.h, btrfs_tree.h. Changes,
and reading trees, need CAP_SYS_ADMIN.
"""

import errno
import json
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import btrfs
from btrfs import ctree
from btrfs.ioctl import ULLONG_MAX, search_v2

from btrkeep.checkpoints import Checkpoint
from btrkeep.descriptors import ioctl, ior, iow, iowr
from btrkeep.errors import OperatorError
from btrkeep.pool.atomic import write_atomically
from btrkeep.pool.marker import MARKER, SYSFS, Pool
from btrkeep.pool.subvolume import opened
from btrkeep.procfs import sysfs_text
from btrkeep.units import format_time, parse_time

SIMPLE, FULL, OFF = "squota", "qgroup", ""
"""The possible results of `mode`."""

_CONTROL = struct.Struct("=QQ")  # command, status
_ASSIGN = struct.Struct("=QQQ")  # add or remove, member, group
_CREATE = struct.Struct("=QQ")  # create or remove, group
_LIMIT = struct.Struct("=QQQ24x")  # group, which limits, bytes referenced
_DISABLE, _ENABLE_SIMPLE = 2, 4
_MAX_REFERENCED = 1
_NO_LIMIT = ULLONG_MAX

_QUOTA_TREE = 8
_INFO_KEY, _RELATION_KEY = 242, 246
_INFO = struct.Struct("<8xQ")  # generation, bytes referenced
_LEVEL_SHIFT, _INODE_BITS, _SUBVOLUME_BITS = 48, 28, 20  # in a group's number, which has 64 bits

_QUOTA_CTL = iowr(40, _CONTROL.size)
_QGROUP_ASSIGN = iow(41, _ASSIGN.size)
_QGROUP_CREATE = iow(42, _CREATE.size)
_QGROUP_LIMIT = ior(43, _LIMIT.size)


def mode(filesystem: str) -> str:
    """Returns the mode of the btrfs with that UUID: SIMPLE, FULL (qgroups that find all owners of an extent) or OFF."""
    folder = SYSFS / filesystem / "qgroups"
    if sysfs_text(folder / "enabled") != "1":
        return OFF
    return sysfs_text(folder / "mode") or FULL  # since Linux 6.7 there are two modes


def is_known_to_kernel() -> bool:
    """Returns True if this kernel has simple quotas."""
    return (SYSFS / "features" / "simple_quota").exists()


def was_ever_on(filesystem: str) -> bool:
    """Returns True if the filesystem has the incompatible feature, which remains when simple quotas are disabled."""
    return (SYSFS / filesystem / "features" / "simple_quota").exists()


@Checkpoint("simple quotas switched on")
def enable(pool: Pool, now: datetime) -> None:
    """Enables simple quotas for the whole filesystem. Raises OSError."""
    write_atomically(_since_file(pool), json.dumps({"since": format_time(now)}) + "\n")
    _control(pool, _ENABLE_SIMPLE)


@Checkpoint("simple quotas switched off")
def disable(pool: Pool) -> None:
    """Disables simple quotas; the kernel deletes all groups and their byte counts. Raises OSError."""
    _control(pool, _DISABLE)
    _since_file(pool).unlink(missing_ok=True)


def foreign_groups(pool: Pool) -> list[str]:
    """Returns the groups that were made by hand and do not belong to this pool, in btrfs-progs' notation. Raises OSError."""
    try:
        names = [entry.name.split("_") for entry in os.scandir(SYSFS / pool.filesystem / "qgroups")]
    except FileNotFoundError:
        return []
    ours = group_number(_subvolume_of(pool), 0) >> _INODE_BITS
    numbers = [int(words[0]) << _LEVEL_SHIFT | int(words[1]) for words in names if len(words) == 2 and words[0].isdecimal()]
    return [group_name(number) for number in sorted(numbers) if number >> _LEVEL_SHIFT and number >> _INODE_BITS != ours]


def since(pool: Pool) -> datetime | None:
    """Returns when `enable` was called last; None if never, or if it cannot be read."""
    try:
        return parse_time(json.loads(_since_file(pool).read_text())["since"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _since_file(pool: Pool) -> Path:
    return pool.path / MARKER / "quota.json"


def _control(pool: Pool, command: int) -> None:
    with opened(pool.path.resolve()) as fd:
        ioctl(fd, _QUOTA_CTL, bytearray(_CONTROL.pack(command, 0)))


def group_of(pool: Pool, host: str) -> int:
    """Returns the number of the group of the host, whose folder must exist. Raises OSError; OperatorError if no number
    is possible.
    """
    return group_number(_subvolume_of(pool), pool.host(host).stat(follow_symlinks=False).st_ino)


def require_numbers(pool: Pool) -> None:
    """Raises OperatorError if hosts of this pool could have no group."""
    group_number(_subvolume_of(pool), pool.hosts.stat().st_ino)


def _subvolume_of(pool: Pool) -> int:
    """Returns the id of the subvolume that contains the pool's folder of hosts."""
    with opened(pool.hosts) as fd:
        return int(btrfs.ioctl.ino_lookup(fd).treeid)


def group_number(subvolume: int, inode: int) -> int:
    """Returns the group number of the folder with this inode in this subvolume. Raises OperatorError."""
    if subvolume >> _SUBVOLUME_BITS or inode >> _INODE_BITS:
        raise OperatorError(
            f"the number of a quota group cannot hold subvolume {subvolume} and inode {inode}",
            "this pool cannot use simple quotas: run `backupd quota disable`",
        )
    return 1 << _LEVEL_SHIFT | subvolume << _INODE_BITS | inode


def group_name(group: int) -> str:
    """Formats a group as btrfs-progs does: "1/68719476993"."""
    return f"{group >> _LEVEL_SHIFT}/{group & (1 << _LEVEL_SHIFT) - 1}"


def live_bytes(pool: Pool) -> dict[str, int]:
    """Returns for each host the bytes that it wrote since simple quotas were enabled and that still exist, as of the last commit.

    Leaves out hosts that wrote nothing since. Needs only the right to list the pool's folder of hosts.
    """
    if mode(pool.filesystem) != SIMPLE:
        return {}
    subvolume, sizes = _subvolume_of(pool), {}
    for entry in os.scandir(pool.hosts):
        with suppress(OperatorError):  # the host cannot have a group; its run reports that
            number = referenced(pool, group_number(subvolume, entry.inode()))
            if number is not None:
                sizes[entry.name] = number
    return sizes


@Checkpoint("subvolume counted for its host")
def join(pool: Pool, host: str, subvolume_id: int) -> None:
    """Makes the subvolume, with all of its data, a member of the host's group. Raises OSError, OperatorError."""
    group = group_of(pool, host)
    with opened(pool.hosts) as fd:
        with suppress(FileExistsError):
            _change(fd, _QGROUP_CREATE, _CREATE.pack(1, group))
        with suppress(FileExistsError):
            _change(fd, _QGROUP_ASSIGN, _ASSIGN.pack(1, subvolume_id, group))


def _change(fd: int, request: int, arguments: bytes) -> None:
    """Changes a group. Does nothing if quotas have just been disabled: then nothing is counted and no limit applies."""
    try:
        ioctl(fd, request, bytearray(arguments))
    except OSError as error:
        if error.errno != errno.ENOTCONN:
            raise


@Checkpoint("limit of the host's group set")
def limit(pool: Pool, group: int, most: int | None) -> None:
    """Limits the group to `most` live bytes; None removes the limit. Writes beyond it fail with EDQUOT. Raises OSError."""
    with opened(pool.hosts) as fd:
        _change(fd, _QGROUP_LIMIT, _LIMIT.pack(group, _MAX_REFERENCED, _NO_LIMIT if most is None else most))


def referenced(pool: Pool, group: int) -> int | None:
    """Returns the bytes of a group that still exist; None if there is no such group."""
    number = sysfs_text(_folder(pool, group) / "referenced")
    return int(number) if number.isdecimal() else None


def limit_of(pool: Pool, group: int) -> int | None:
    """Returns the present limit of the kernel, None: none."""
    folder = _folder(pool, group)
    flags, most = sysfs_text(folder / "limit_flags"), sysfs_text(folder / "max_referenced")
    return int(most) if flags.isdecimal() and int(flags) & _MAX_REFERENCED and most.isdecimal() else None


def _folder(pool: Pool, group: int) -> Path:
    return SYSFS / pool.filesystem / "qgroups" / group_name(group).replace("/", "_")


def remove_unused(pool: Pool) -> int:
    """Removes unused groups of this pool and returns their number. Raises OSError.

    These are groups of deleted subvolumes without remaining extents, and of hosts without a folder.
    """
    if mode(pool.filesystem) != SIMPLE:
        return 0
    removed = 0
    with opened(pool.hosts) as fd:
        first = 1 << _LEVEL_SHIFT | _subvolume_of(pool) << _INODE_BITS
        ours = range(first, first + (1 << _INODE_BITS))
        empty = sorted(_empty_groups(fd))  # subvolumes' groups first: a group with members cannot be removed
        folders = {first + entry.inode() for entry in os.scandir(pool.hosts)}  # afterwards: a folder is older than its group
        for group in empty:
            is_of_subvolume = group >> _LEVEL_SHIFT == 0
            if is_of_subvolume and (_has_subvolume(fd, group) or not any(parent in ours for parent in _parents(fd, group))):
                continue
            if not is_of_subvolume and (group not in ours or group in folders):
                continue
            try:
                with Checkpoint("empty group removed"):
                    ioctl(fd, _QGROUP_CREATE, bytearray(_CREATE.pack(0, group)))
                removed += 1
            except OSError as error:
                if error.errno not in (errno.EBUSY, errno.ENOENT):  # in use after all, or just removed
                    raise
    return removed


def _empty_groups(fd: int) -> Iterator[int]:
    first, last = ctree.Key(0, _INFO_KEY, 0), ctree.Key(0, _INFO_KEY, ULLONG_MAX)
    for header, data in search_v2(fd, _QUOTA_TREE, first, last, buf_size=1 << 16):
        if _INFO.unpack_from(data)[0] == 0:
            yield header.offset


def _parents(fd: int, group: int) -> Iterator[int]:
    first, last = ctree.Key(group, _RELATION_KEY, 0), ctree.Key(group, _RELATION_KEY, ULLONG_MAX)
    for header, _ in search_v2(fd, _QUOTA_TREE, first, last):
        yield header.offset


def _has_subvolume(fd: int, id_: int) -> bool:
    """Returns True if there is a subvolume of that id, including a deleted one that the cleaner has not dropped yet."""
    first, last = ctree.Key(id_, ctree.ROOT_ITEM_KEY, 0), ctree.Key(id_, ctree.ROOT_ITEM_KEY, ULLONG_MAX)
    return any(True for _ in search_v2(fd, ctree.ROOT_TREE_OBJECTID, first, last, nr_items=1))
