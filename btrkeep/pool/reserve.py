"""Reserves space in the pool for indispensable writes when it is full: the notes without which nothing may be deleted.

The reserve is a file whose blocks are allocated and never written, POOL/.btrkeep/reserve. Truncating it needs only metadata, for
which btrfs reserves some space; after the next commit its blocks are free. For metadata there is also an empty file with extended
attributes that fill a leaf each: .btrkeep/reserve-metadata, which is deleted. See docs/decisions/0020.
"""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import btrfs

from btrkeep.checkpoints import Checkpoint
from btrkeep.descriptors import ClosingFd
from btrkeep.pool.atomic import NO_ROOM
from btrkeep.pool.locks import POOL_LOCKS
from btrkeep.pool.marker import MARKER
from btrkeep.pool.subvolume import commit

if TYPE_CHECKING:
    from btrkeep.pool.space_by_profile import Room

log = logging.getLogger(__name__)

RESERVE, FOR_METADATA = "reserve", "reserve-metadata"
_MOST = 256 << 20
_SHARE = 100
_METADATA = 16 << 20  # to replace a file, the kernel reserves more than 6 MiB, although it writes only some leaves
_METADATA_SHARE = 256
_LEAF_LESS = 384  # bytes of a leaf that an attribute cannot use, even if it fills the leaf


def size_of(total: int) -> int:
    """Returns the size of the reserve of a filesystem of `total` bytes: a hundredth of it, at most 256 MiB."""
    return min(_MOST, total // _SHARE)


@Checkpoint("reserve made")
def ensure_reserve(pool: Path) -> None:
    """Makes the reserve if it is missing or too small and enough free space is left, and the files of the pool's locks.

    Never raises OSError. Without a reserve, everything works while there is free space, so a failure is only logged.
    """
    from btrkeep.pool.allocation import read_room  # commands that only read start faster without it

    path = pool / MARKER / RESERVE
    try:
        for name in POOL_LOCKS:
            (pool / MARKER / "locks" / name).touch(mode=0o600)
        room = read_room(pool)
        size = size_of(room.total)
        if room.available >= 2 * size and not (path.exists() and path.stat().st_size >= size):
            with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb") as file:
                try:
                    os.posix_fallocate(file.fileno(), 0, size)
                except OSError:
                    file.truncate(0)  # a partial reserve would look complete
                    raise
        _ensure_metadata_reserve(pool, room)
    except OSError as error:
        log.info("%s cannot be made: %s", path, error.strerror)


def _ensure_metadata_reserve(pool: Path, room: "Room") -> None:
    """Makes the reserve for metadata in a pool of 4 GiB or more; it gets its name when it is complete. Raises OSError."""
    path = pool / MARKER / FOR_METADATA
    if path.exists() or room.total < _METADATA_SHARE * _METADATA or room.metadata_free + room.unallocated < 4 * _METADATA:
        return
    making = path.with_name(path.name + ".new")
    making.unlink(missing_ok=True)
    making.touch(mode=0o600)
    try:
        with ClosingFd(os.open(making, os.O_RDONLY | os.O_CLOEXEC)) as fd:
            size = btrfs.ioctl.fs_info(fd).nodesize - _LEAF_LESS  # 4 KiB was the default of mkfs.btrfs until 2013
            for number in range(_METADATA // size):
                os.setxattr(fd, f"user.{number}", bytes(size))
        making.replace(path)
    except OSError:
        making.unlink()
        raise


@Checkpoint("reserve given back")
def give_back(pool: Path) -> None:
    """Frees the reserve and recently deleted data. Raises OSError."""
    path, metadata = pool / MARKER / RESERVE, pool / MARKER / FOR_METADATA
    if metadata.exists():  # first: truncating the other file may need space for metadata
        log.warning("the pool is full: the reserved space of %s is used now, for writes that free more", metadata)
        metadata.unlink()
        commit(pool)
    if path.exists() and path.stat().st_size:
        log.warning("the pool is full: the reserved space of %s is used now, for writes that free more", path)
        with ClosingFd(os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)) as fd:
            os.ftruncate(fd, 0)
    commit(pool)


def with_reserve(pool: Path, write: Callable[[], None]) -> None:
    """Calls `write`, and again after freeing the pool's reserve if there was no free space. Raises OSError like `write`."""
    try:
        write()
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        give_back(pool)
        write()
