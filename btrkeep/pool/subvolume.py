"""Subvolumes by ioctl: create, snapshot, describe, read-only, delete, commit, send.

python-btrfs has no calls for these; the layouts are those of include/uapi/linux/btrfs.h. Every function takes a path or a name
inside an open folder and raises OSError as the kernel gives it. `btrfs receive` reads the stream that `send` writes.
"""

import ctypes
import errno
import fcntl
import os
import struct
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import btrfs
from btrfs import ctree
from btrfs.ioctl import ULLONG_MAX, search_v2

from btrkeep.checkpoints import Checkpoint
from btrkeep.clock import moment, wait_for_tick
from btrkeep.descriptors import ClosingFd, ioctl, ior, iow, iowr

ROOT_FOLDER: int = ctree.FIRST_FREE_OBJECTID
"""The inode number of every subvolume's root folder."""
_RDONLY = 1 << 1
_LAST = 253_402_300_799  # the last second of 9999: the kernel's times are unsigned, so a time before 1970 is later than that
_SPEC_BY_ID = 1 << 4
_ATTEMPTS, _PAUSE = 8, 0.1  # seconds: less than 3 s in total
_ARGS_V2 = struct.Struct("=qQQ32x4040s")  # fd, transid, flags, unused, name
_ARGS_V2_BY_ID = struct.Struct("=qQQ32xQ4032x")
_FLAGS = struct.Struct("=Q")
# treeid, name, parent_id, dirid, generation, flags, uuid, parent_uuid, received_uuid, four transids, four times (otime is the
# second), reserved
_INFO = struct.Struct("=Q256sQQQQ16s16s16sQQ16x16xQL4x32x64x")

_SNAP_CREATE_V2 = iow(23, 4096)
_SUBVOL_CREATE_V2 = iow(24, 4096)
_SUBVOL_GETFLAGS = ior(25, 8)
_SUBVOL_SETFLAGS = iow(26, 8)
_GET_SUBVOL_INFO = ior(60, _INFO.size)
_SNAP_DESTROY_V2 = iow(63, 4096)
_UUID_KEY = struct.Struct("<QQ")
_ID = struct.Struct("<Q")
_RECEIVED = struct.Struct("=16sQQ16x16xQ128x")  # uuid, stransid, rtransid, two times, flags, reserved
_SET_RECEIVED_SUBVOL = iowr(37, _RECEIVED.size)


@dataclass(frozen=True, slots=True)
class Subvolume:
    """The kernel's information about a subvolume. Generations are numbers of transactions."""

    id: int
    """Its number."""
    uuid: str
    """Its UUID."""
    parent_uuid: str | None
    """UUID of the subvolume of which it is a snapshot; None: it is not a snapshot."""
    read_only: bool
    """True if it is read-only."""
    generation: int
    """Generation of its last change, possibly only of its place on the disk."""
    created: int
    """The generation in which it was created."""
    received_uuid: str | None = None
    """UUID of the subvolume in another pool from which `btrfs receive` made it; None: it was made here."""
    written: int = 0
    """The generation of the last change to a file (ctransid)."""
    created_at: int = 0
    """When it was created, nanoseconds."""


def opened(path: Path) -> ClosingFd:
    """Opens a folder, but not through a symlink at the end of its path."""
    return ClosingFd(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))


@Checkpoint("subvolume created")
def create(path: Path) -> None:
    """Creates an empty subvolume."""
    with opened(path.parent) as parent:
        ioctl(parent, _SUBVOL_CREATE_V2, bytearray(_ARGS_V2.pack(0, 0, 0, os.fsencode(path.name))))


@Checkpoint("snapshot made")
def snapshot(source: Path, path: Path, *, read_only: bool = False) -> None:
    """Makes a snapshot of `source`; when this returns, the snapshot is committed. A read-only one also has the `received_uuid` of
    `source`.

    In a writable one every later change has a later time than those in `source`.
    """
    begun = moment()
    with opened(source) as origin, opened(path.parent) as parent:
        ioctl(parent, _SNAP_CREATE_V2, bytearray(_ARGS_V2.pack(origin, 0, _RDONLY if read_only else 0, os.fsencode(path.name))))
    if not read_only:
        wait_for_tick(begun)


def describe(path: Path) -> Subvolume | None:
    """Describes the subvolume at `path`; None if that is not the root folder of a subvolume (nothing, a file, a
    symlink, a folder).
    """
    try:
        with opened(path) as fd:
            if os.fstat(fd).st_ino != ROOT_FOLDER:
                return None
            fields = _INFO.unpack(fcntl.ioctl(fd, _GET_SUBVOL_INFO, bytes(_INFO.size)))
            (flags,) = _FLAGS.unpack(fcntl.ioctl(fd, _SUBVOL_GETFLAGS, bytes(8)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:  # a symlink
            return None
        raise
    parent, received = uuid.UUID(bytes=fields[7]), uuid.UUID(bytes=fields[8])
    return Subvolume(
        id=fields[0],
        uuid=str(uuid.UUID(bytes=fields[6])),
        parent_uuid=str(parent) if parent.int else None,
        read_only=bool(flags & _RDONLY),
        generation=fields[4],
        created=fields[10],
        written=fields[9],
        created_at=fields[11] * 10**9 + fields[12],
        received_uuid=str(received) if received.int else None,
    )


def last_written(path: Path) -> dict[int, datetime]:
    """Returns by id when a file of each subvolume on the filesystem of `path` was last written, or when it was received.

    Times are by this server's clock, read in one pass through the root tree. Raises OSError.
    """
    with btrfs.FileSystem(str(path)) as filesystem:
        moments = ((subvolume.objectid, max(subvolume.ctime.sec, subvolume.rtime.sec)) for subvolume in filesystem.subvolumes())
        return {id_: datetime.fromtimestamp(min(seconds, _LAST), UTC) for id_, seconds in moments}


def origins(path: Path) -> dict[int, str]:
    """Returns by id, for each subvolume on the filesystem of `path`, its UUID, or that of its original if it is a copy. The
    subvolumes themselves are not opened, so damage in them does no harm. Raises OSError.
    """
    with btrfs.FileSystem(str(path)) as filesystem:
        return {
            subvolume.objectid: str(subvolume.received_uuid if subvolume.received_uuid.int else subvolume.uuid)
            for subvolume in filesystem.subvolumes()
        }


@Checkpoint("subvolume made read-only")
def set_read_only(path: Path) -> None:
    """Makes the subvolume read-only; the kernel commits that before this returns."""
    with opened(path) as fd:
        (flags,) = _FLAGS.unpack(fcntl.ioctl(fd, _SUBVOL_GETFLAGS, bytes(8)))
        fcntl.ioctl(fd, _SUBVOL_SETFLAGS, _FLAGS.pack(flags | _RDONLY))


@Checkpoint("copy marked")
def set_received(path: Path, origin: str) -> None:
    """Writes the UUID of the original of a copy into a writable subvolume, as `btrfs receive` does. The kernel adds its own
    generation and time. Raises OSError; needs CAP_SYS_ADMIN.
    """
    with opened(path) as fd:
        fcntl.ioctl(fd, _SET_RECEIVED_SUBVOL, _RECEIVED.pack(uuid.UUID(origin).bytes, 0, 0, 0))


def marked_copies(folder: Path, origin: str) -> list[int]:
    """Returns the ids of the subvolumes on the filesystem of `folder` that are marked as copies of the one with that UUID.

    If there are several, `btrfs receive` uses any of them, or none, as the parent of a difference. Raises OSError; needs
    CAP_SYS_ADMIN.
    """
    first, last = _UUID_KEY.unpack(uuid.UUID(origin).bytes)
    key = ctree.Key(first, ctree.UUID_KEY_RECEIVED_SUBVOL, last)
    with opened(folder) as fd:
        return [id_ for _, data in search_v2(fd, ctree.UUID_TREE_OBJECTID, key, key) for (id_,) in _ID.iter_unpack(data)]


def delete(folder: Path, subvolume_id: int) -> None:
    """Deletes the subvolume of that id in `folder`. By id, because its name may belong to another one now.

    Raises FileNotFoundError if there is none of that id in the folder: another filesystem, which uses the same numbers, may be
    mounted there.

    On a full filesystem the kernel uses its reserve for this, which may be in use: it is tried again after a commit.
    """
    with opened(folder) as fd:
        _require_in(fd, subvolume_id)
        _destroy(fd, subvolume_id)


def delete_with_nested(folder: Path, subvolume_id: int) -> None:
    """Does the same, after deleting all subvolumes in that one, at any depth. Needs CAP_SYS_ADMIN."""
    with opened(folder) as fd:
        _require_in(fd, subvolume_id)
        for within in list(_below(fd, subvolume_id)):
            _destroy(fd, within)
        _destroy(fd, subvolume_id)


def _require_in(folder: int, subvolume_id: int) -> None:
    above = int(btrfs.ioctl.ino_lookup(folder).treeid)
    key = ctree.Key(subvolume_id, ctree.ROOT_BACKREF_KEY, above)
    for _, data in search_v2(folder, ctree.ROOT_TREE_OBJECTID, key, key):
        if _ID.unpack_from(data)[0] == os.fstat(folder).st_ino:
            return
    raise FileNotFoundError(errno.ENOENT, "no subvolume with that number is there")


@Checkpoint("subvolume deleted")
def _destroy(fd: int, subvolume_id: int) -> None:
    """Deletes the subvolume of that id on the filesystem of `fd`, wherever it is."""
    for attempt in range(_ATTEMPTS):
        try:
            ioctl(fd, _SNAP_DESTROY_V2, bytearray(_ARGS_V2_BY_ID.pack(0, 0, _SPEC_BY_ID, subvolume_id)))
            return
        except OSError as error:
            if error.errno != errno.ENOSPC or attempt == _ATTEMPTS - 1:
                raise
        btrfs.ioctl.sync(fd)
        time.sleep(_PAUSE * attempt)


def _below(fd: int, id_: int) -> Iterator[int]:
    """Yields the ids of all subvolumes in that one, the deepest first: the order in which they can be deleted."""
    first, last = ctree.Key(id_, ctree.ROOT_REF_KEY, 0), ctree.Key(id_, ctree.ROOT_REF_KEY, ULLONG_MAX)
    for within in [header.offset for header, _ in search_v2(fd, ctree.ROOT_TREE_OBJECTID, first, last, buf_size=1 << 16)]:
        yield from _below(fd, within)
        yield within


def inodes_made(path: Path) -> int:
    """Returns how many inodes were created so far in the subvolume of the folder `path` and its ancestors: an upper bound of its
    files, because btrfs numbers inodes consecutively. Raises OSError.
    """
    with ClosingFd(os.open(path, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC)) as fd:
        return os.fstat(fd).st_ino - ROOT_FOLDER


@Checkpoint("filesystem committed")
def commit(path: Path) -> None:
    """Writes all data of the filesystem and commits the transaction; also wakes the cleaner.

    `path` may be a symlink, such as that of a pool.
    """
    with ClosingFd(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        btrfs.ioctl.sync(fd)


_ARGS = struct.Struct("=qQQQQI28x")  # fd, number of clone sources, their address, parent's id, flags, version
_SEND = iow(38, _ARGS.size)
_VERSION, _COMPRESSED = 1 << 3, 1 << 4
NEWEST = 2
_KNOWN = Path("/sys/fs/btrfs/features/send_stream_version")


def newest_stream() -> int:
    """The newest known version of the stream that this kernel sends; before Linux 6.0 there was only one."""
    try:
        return min(NEWEST, int(_KNOWN.read_text()))
    except (OSError, ValueError):
        return 1


def send(subvolume: Path, out: int, parent: int | None, version: int) -> None:
    """Writes a send stream to the pipe `out`, incremental to the subvolume with the id `parent`. Raises OSError.

    Since version 2, compressed extents are sent as they are on disk. Blocks while the reader is slow; other threads continue.
    """
    source = ctypes.c_uint64(parent or 0)
    flags = _VERSION | _COMPRESSED if version > 1 else 0
    args = _ARGS.pack(out, int(parent is not None), ctypes.addressof(source) if parent else 0, parent or 0, flags, version)
    with opened(subvolume) as fd:
        ioctl(fd, _SEND, bytearray(args))
