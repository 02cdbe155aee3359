"""Copies an inode with everything that a backup keeps of it, sharing its data; and makes two files share equal data.

Copied are owner, mode, times in nanoseconds, extended attributes of all namespaces (including POSIX ACLs and file capabilities),
holes and preallocated extents, and the btrfs flags that determine whether data can be shared. Symlinks, fifos, sockets and device
nodes are made again. No symlink is followed: both names are in open folders.

With FIDEDUPERANGE the kernel locks and compares both files, so no content changes. Times, owner and attributes remain. Root may do
this with files that are open for reading, also in a read-only subvolume.
"""

import errno
import fcntl
import os
import stat
from array import array
from collections.abc import Iterator
from struct import Struct

from btrkeep.checkpoints import Checkpoint
from btrkeep.descriptors import ClosingFd, ioctl
from btrkeep.fs.file_data import data_runs
from btrkeep.fs.openat import FILE, by_descriptor

# Numbers of x86, arm, s390 and riscv.
_FICLONE = 0x40049409
_GETFLAGS, _SETFLAGS = 0x80086601, 0x40086602
IMMUTABLE, APPEND, NOCOW = 0x10, 0x20, 0x800000
# FS_COMPR_FL, FS_NOCOMP_FL, FS_NOCOW_FL. Files with nocow have no checksums, and cannot share data with files that have them.
_KEPT_FLAGS = 0x4 | 0x400 | NOCOW


@Checkpoint("inode copied")
def copy_inode(folder: int, name: bytes, to_folder: int, to_name: bytes) -> None:
    """Makes `to_name` in `to_folder`, which must not exist, a copy of `name`, which is not a folder. Raises OSError."""
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISREG(status.st_mode):
        _copy_file(folder, name, to_folder, to_name, status)
    else:
        _copy_special(folder, name, to_folder, to_name, status)


def _copy_file(folder: int, name: bytes, to_folder: int, to_name: bytes, status: os.stat_result) -> None:
    new = os.O_RDWR | os.O_CREAT | os.O_EXCL | FILE
    with (
        ClosingFd(os.open(name, os.O_RDONLY | FILE, dir_fd=folder)) as source,
        ClosingFd(os.open(to_name, new, 0o600, dir_fd=to_folder)) as copy,
    ):
        _copy_flags(source, copy)
        if status.st_size:
            _share_data(source, copy, status.st_size)
        # Data first, because a write removes file capabilities. Then the owner, because chown removes setuid bits.
        os.fchown(copy, status.st_uid, status.st_gid)
        os.fchmod(copy, stat.S_IMODE(status.st_mode))
        _copy_xattrs(source, copy)
        os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))


def _copy_flags(source: int, copy: int) -> None:
    wanted, have = inode_flags(source), inode_flags(copy)
    if (wanted ^ have) & _KEPT_FLAGS:
        fcntl.ioctl(copy, _SETFLAGS, array("l", [have & ~_KEPT_FLAGS | wanted & _KEPT_FLAGS]))


def inode_flags(fd: int) -> int:
    """Returns the flags that chattr shows and sets: FS_IOC_GETFLAGS."""
    flags = array("l", [0])
    fcntl.ioctl(fd, _GETFLAGS, flags)
    return flags[0]


def clear_inode_flags(fd: int, flags: int) -> None:
    """Removes these flags. Raises OSError, EINVAL for NOCOW of a file with content."""
    fcntl.ioctl(fd, _SETFLAGS, array("l", [inode_flags(fd) & ~flags]))


def clone(source: int, copy: int) -> None:
    """Shares all data of an open file with another one. Raises OSError, EINVAL if only one of the two has checksums."""
    fcntl.ioctl(copy, _FICLONE, source)


def _share_data(source: int, copy: int, size: int) -> None:
    try:
        clone(source, copy)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # One of the two has no checksums, because of the mount option nodatasum: no flag shows that. Such data cannot be shared.
        _copy_data(source, copy, size)


def _copy_data(source: int, copy: int, size: int) -> None:
    os.ftruncate(copy, size)
    for position, end in data_runs(source, size):
        while position < end:
            position += os.copy_file_range(source, copy, end - position, position, position)


def _copy_special(folder: int, name: bytes, to_folder: int, to_name: bytes, status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(name, dir_fd=folder), to_name, dir_fd=to_folder)
    else:
        os.mknod(to_name, stat.S_IFMT(status.st_mode) | 0o600, status.st_rdev, dir_fd=to_folder)
    os.chown(to_name, status.st_uid, status.st_gid, dir_fd=to_folder, follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        os.chmod(to_name, stat.S_IMODE(status.st_mode), dir_fd=to_folder)
    _copy_xattrs(by_descriptor(folder, name), by_descriptor(to_folder, to_name))
    os.utime(to_name, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=to_folder, follow_symlinks=False)


def _copy_xattrs(source: int | bytes, copy: int | bytes) -> None:
    """Copies extended attributes of all namespaces, including POSIX ACLs, and removes those that the copy inherited when it was
    made.
    """
    follow = isinstance(source, int)
    attributes, inherited = os.listxattr(source, follow_symlinks=follow), os.listxattr(copy, follow_symlinks=follow)
    for attribute in set(inherited) - set(attributes):
        os.removexattr(copy, attribute, follow_symlinks=follow)
    for attribute in attributes:
        os.setxattr(copy, attribute, os.getxattr(source, attribute, follow_symlinks=follow), follow_symlinks=follow)


DEDUPE_PIECE = 16 << 20
"""Bytes of one call: the piece that btrfs compares at a time, for whose end a cancellation waits."""
OF_ONE_FILE = frozenset(
    (
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.EXDEV,
        errno.EINVAL,
        errno.EIO,
        errno.EOPNOTSUPP,
        errno.ETXTBSY,
    )
)
"""Errors of one file: it is missing, of another type, behind a symlink or a mount, without checksums, or cannot be read
or shared.
"""
_FIDEDUPERANGE = 0xC0189436
_RANGE = Struct("=QQHHIqQQiI")  # source offset, length, count; of the single destination: fd, offset, bytes shared, status
_ARE_EQUAL = 0


def shared_pieces(source: int, destination: int, size: int) -> Iterator[int]:
    """Makes `destination` share the data of `source` in pieces; yields for each piece the bytes that are now shared, 0 if it
    differs.

    Both files have `size` bytes. Holes of the destination remain. Raises OSError, EINVAL if only one of the two has checksums, EIO
    if data cannot be read.
    """
    for start, end in data_runs(destination, size):
        for at in range(start, end, DEDUPE_PIECE):
            yield _share(source, destination, at, min(DEDUPE_PIECE, end - at))


def _share(source: int, destination: int, at: int, length: int) -> int:
    buffer = bytearray(_RANGE.pack(at, length, 1, 0, 0, destination, at, 0, 0, 0))
    ioctl(source, _FIDEDUPERANGE, buffer)
    *_, shared, status, _ = _RANGE.unpack(buffer)
    if status < 0:
        raise OSError(-status, "the data cannot be shared")
    return int(shared) if status == _ARE_EQUAL else 0
