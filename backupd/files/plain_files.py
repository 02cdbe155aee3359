"""Copies and compares plain files of one folder, many at a time: what most of a restore is.

They are copied to where nothing was. Whatever is not so simple, and each file that fails, is given back: whoever asked does that
one by itself, with a reason. What is safe there is safe here: all goes through descriptors, a copy has its name only when it is
whole, and a name is never taken from something else.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from backupd.files.attributes import LABEL, is_power
from backupd.files.destination import PREFIX, rename_to_nothing
from backupd.files.tree import open_plain
from backupd.files.walking import PlainFile
from backupd.files.writing import comparable
from btrkeep.descriptors import ClosingFd
from btrkeep.fs.fiemap import share_all
from btrkeep.fs.openat import by_descriptor
from btrkeep.fs.reflink import clone
from btrkeep.pool.marker import filesystem_of

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOATIME | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Handled(NamedTuple):
    """What became of a batch: the numbers of the files that were not done, and bytes that were copied, or read on both sides."""

    left_over: Sequence[int]
    size: int


def copy(source: int, to: int, files: Sequence[PlainFile], *, reflinks: bool, privileged: bool) -> Handled:
    """Copies files of the open folder `source` into the open folder `to`, where nothing has their names.

    `reflinks`: both are on one btrfs, and data are shared. Without `privileged`, files with attributes that grant privileges are
    given back.
    """
    prefix = b"%s%s-" % (PREFIX, os.urandom(8).hex().encode("ascii"))
    left_over, size = [], 0
    for number, file in enumerate(files):
        temporary = b"%s%d" % (prefix, number)
        try:
            with ClosingFd(os.open(file.name, _READ, dir_fd=source)) as original:
                with ClosingFd(os.open(temporary, _MAKE, 0o600, dir_fd=to)) as made:
                    is_done = _filled(original, made, file, reflinks) and _dressed(original, made, file, privileged)
                if is_done:
                    rename_to_nothing(to, temporary, file.name)
                    size += file.size
                    continue
        except OSError:  # whoever does it by itself meets the same, and names it
            pass
        with suppress(OSError):
            os.unlink(temporary, dir_fd=to)
        left_over.append(number)
    return Handled(left_over, size)


def _filled(original: int, made: int, file: PlainFile, reflinks: bool) -> bool:
    """Copies the data. Returns False if the file is not as it was looked at. Raises OSError."""
    if not file.size:
        return True
    if reflinks:
        clone(original, made)
        return True
    data = os.read(original, file.size + 1)
    return len(data) == file.size and os.write(made, data) == file.size


def _dressed(original: int, made: int, file: PlainFile, privileged: bool) -> bool:
    """Gives owner, attributes, mode and time, in this order. Returns False if it needs more than that. Raises OSError."""
    if any(map(comparable, os.listxattr(made))):  # inherited from the folder, such as an ACL
        return False
    status = os.fstat(made)  # the folder, a mount with `grpid` and NFS may have given another owner than this process
    if (status.st_uid, status.st_gid) != (file.uid, file.gid):
        os.fchown(made, file.uid, file.gid)
    for name in os.listxattr(original):
        if is_power(name) and not privileged:
            if name != LABEL:
                return False
            continue
        os.setxattr(made, name, os.getxattr(original, name))
    os.fchmod(made, file.mode)
    os.utime(made, ns=(file.mtime, file.mtime))
    return True


def compare(source: int, to: int, files: Sequence[PlainFile], *, reflinks: bool, privileged: bool, content: bool) -> Handled:
    """Gives back the files that may differ. With `content` data are read on both sides, from the disk and not from memory; with
    `reflinks` only those that are not shared. Bytes are counted as read.
    """
    left_over, equal = list[int](), list[int]()
    for number, file in enumerate(files):
        try:
            is_same = _same_metadata(source, to, file, privileged)
        except OSError:
            is_same = False
        (equal if is_same else left_over).append(number)
    if not content:
        return Handled(left_over, 0)
    size = 0
    reflinks = reflinks and filesystem_of(source) == filesystem_of(to)
    for number, read in _same_contents(source, to, [(number, files[number]) for number in equal if files[number].size], reflinks):
        if read is None:
            left_over.append(number)
        else:
            size += read
    return Handled(sorted(left_over), size)


def _same_metadata(source: int, to: int, file: PlainFile, privileged: bool) -> bool:
    there = os.stat(file.name, dir_fd=to, follow_symlinks=False)
    if (
        (there.st_mtime_ns, there.st_size, there.st_uid, there.st_gid) != (file.mtime, file.size, file.uid, file.gid)
        or not stat.S_ISREG(there.st_mode)
        or stat.S_IMODE(there.st_mode) != file.mode
    ):
        return False
    ours, theirs = by_descriptor(source, file.name), by_descriptor(to, file.name)
    names = set(filter(comparable, os.listxattr(ours, follow_symlinks=False)))
    if names != set(filter(comparable, os.listxattr(theirs, follow_symlinks=False))):
        return False
    if not privileged and any(map(is_power, names)):
        return False
    return all(_value(ours, name) == _value(theirs, name) for name in names)


def _value(path: bytes, name: str) -> bytes:
    return os.getxattr(path, name, follow_symlinks=False)


def _same_contents(
    source: int, to: int, files: Iterable[tuple[int, PlainFile]], reflinks: bool
) -> Iterator[tuple[int, int | None]]:
    """Yields for each file the bytes that were read on each side; None if it differs or cannot be read.

    All are asked for before the first is read, so that the disk has many at a time.
    """
    opened: list[tuple[int, PlainFile, int, int]] = []
    try:
        for number, file in files:
            pair = _opened(source, to, file)
            if pair is None:
                yield number, None
            elif reflinks and _shared(*pair):
                os.close(pair[0])
                os.close(pair[1])
                yield number, 0
            else:
                opened.append((number, file, *pair))
                for fd in pair:
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # what is in memory says nothing of the disk
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_WILLNEED)
        for number, file, ours, theirs in opened:
            yield number, file.size if _equal(ours, theirs, file.size) else None
    finally:
        for _, _, ours, theirs in opened:
            os.close(ours)
            os.close(theirs)


def _opened(source: int, to: int, file: PlainFile) -> tuple[int, int] | None:
    try:
        ours = os.open(file.name, _READ, dir_fd=source)
    except OSError:
        return None
    try:
        return ours, open_plain(file.name, to)  # others may write there: a fifo or a device may have come since the look
    except OSError:
        os.close(ours)
        return None


def _shared(ours: int, theirs: int) -> bool:
    try:
        return share_all(ours, theirs)
    except OSError:
        return False


def _equal(ours: int, theirs: int, size: int) -> bool:
    try:
        data = os.read(ours, size + 1)
        return len(data) == size and os.read(theirs, size + 1) == data
    except OSError:
        return False
