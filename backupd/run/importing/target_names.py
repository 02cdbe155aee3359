"""Changes names in the backup of an import, and never anything outside of it: owners, modes, times and attributes, special files,
further hard links, and deletions.

The names were found in the old tree before it was copied. The owner of a folder may have replaced it by a symlink since, which
is then in the copy too. So each folder above a name is opened by its name in the folder above, never through a symlink.
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

from backupd.files.attributes import LABEL
from backupd.repo.leftovers import remove_tree
from btrkeep.descriptors import ClosingFd
from btrkeep.fs.openat import FOLDER, open_folder

_UNOPENED = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC  # refers to an entry, even a symlink, without the effects of opening a device
_ACLS = ("system.posix_acl_access", "system.posix_acl_default")


class CopyPlace(NamedTuple):
    """A name in a folder of the tree and of the backup."""

    source: int
    """The open folder of the tree."""
    here: int
    """The open folder of the backup."""
    name: bytes
    inode: int
    """The inode in the tree when it was examined."""
    inherits: bool
    """True if the folder of the backup has attributes that new entries get."""


@contextmanager
def opened_name(place: CopyPlace, flags: int) -> Iterator[tuple[int, os.stat_result]]:
    """Opens the name in the tree. Raises OSError, also if the examined file was replaced."""
    with ClosingFd(os.open(place.name, flags, dir_fd=place.source)) as fd:
        if (status := os.fstat(fd)).st_ino != place.inode:
            raise OSError(errno.EAGAIN, "it was replaced during the import: another program may be changing the history")
        yield fd, status


def changed_meanwhile() -> OSError:
    return OSError(errno.EAGAIN, "it was changed during the import: another program may be changing the history")


def status_or_none(folder: int, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def make_special(place: CopyPlace) -> bool:
    """Makes a symlink, a device node, a named pipe or a socket, unless an equal one exists. Returns whether anything
    was changed.
    """
    with opened_name(place, _UNOPENED) as (old, status):
        if stat.S_ISREG(status.st_mode):
            raise changed_meanwhile()
        leads_to = os.readlink(b"", dir_fd=old) if stat.S_ISLNK(status.st_mode) else None
        if (has := _same_special(place, status, leads_to)) is None:
            _replace_special(place, status, leads_to)
        with ClosingFd(os.open(place.name, _UNOPENED, dir_fd=place.here)) as new:
            paths = b"/proc/self/fd/%d" % old, b"/proc/self/fd/%d" % new
            if has and _has_attributes(*paths, status, has):
                return False
            os.chown(place.name, status.st_uid, status.st_gid, dir_fd=place.here, follow_symlinks=False)
            _keep_xattrs(*paths)
            if leads_to is None:
                os.chmod(place.name, stat.S_IMODE(status.st_mode), dir_fd=place.here)
            os.utime(place.name, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=place.here, follow_symlinks=False)
    return True


def _same_special(place: CopyPlace, status: os.stat_result, leads_to: bytes | None) -> os.stat_result | None:
    """Returns the status of the entry with that name in the backup, if it is the same except for attributes."""
    has = status_or_none(place.here, place.name)
    if has is None or (stat.S_IFMT(has.st_mode), has.st_rdev) != (stat.S_IFMT(status.st_mode), status.st_rdev):
        return None
    return has if leads_to is None or os.readlink(place.name, dir_fd=place.here) == leads_to else None


def _replace_special(place: CopyPlace, status: os.stat_result, leads_to: bytes | None) -> None:
    """Makes the entry; replaces an existing entry with its name."""
    with suppress(FileNotFoundError):
        os.unlink(place.name, dir_fd=place.here)
    if leads_to is None:
        os.mknod(place.name, stat.S_IFMT(status.st_mode) | 0o600, status.st_rdev, dir_fd=place.here)
    else:
        os.symlink(leads_to, place.name, dir_fd=place.here)


def correct_attributes(old: int, new: int, status: os.stat_result, has: os.stat_result) -> None:
    """Like `keep_attributes`, but writes only if something differs: writing to an inode costs a separate metadata block in the
    backup.
    """
    if not _has_attributes(old, new, status, has):
        keep_attributes(old, new, status)


def _has_attributes(old: int | bytes, new: int | bytes, old_status: os.stat_result, has: os.stat_result) -> bool:
    wanted, other = ((status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns) for status in (old_status, has))
    return wanted == other and _values(old) == _values(new)


def give_attributes(old: int, new: int, status: os.stat_result, *, inherits: bool) -> None:
    """Sets the attributes of a new file. `inherits`: its folder may have given it extended attributes.

    An owner and a mode that it has already are not set again: each change of an inode takes 5 to 10 us.
    """
    if inherits or _xattrs(old):
        keep_attributes(old, new, status)
        return
    has = os.fstat(new)
    if (has.st_uid, has.st_gid) != (status.st_uid, status.st_gid):
        os.fchown(new, status.st_uid, status.st_gid)
        has = os.fstat(new)
    if has.st_mode != status.st_mode:
        os.fchmod(new, stat.S_IMODE(status.st_mode))
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))


def keep_attributes(old: int, new: int, status: os.stat_result) -> None:
    """Sets the attributes of an open file or folder. The owner is set first, because that removes set-user-ID bits and
    capabilities; the time is set last.
    """
    os.fchown(new, status.st_uid, status.st_gid)
    _keep_xattrs(old, new)
    os.fchmod(new, stat.S_IMODE(status.st_mode))
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))


def _keep_xattrs(old: int | bytes, new: int | bytes) -> None:
    """Sets extended attributes, including ACLs; removes others that the new entry got from its folder."""
    wanted = _values(old)
    for name in _xattrs(new):
        if name not in wanted and name != LABEL:
            os.removexattr(new, name)
    for name, value in wanted.items():
        os.setxattr(new, name, value)


def _values(of: int | bytes) -> dict[str, bytes]:
    return {name: os.getxattr(of, name) for name in _xattrs(of)}


def _xattrs(of: int | bytes) -> list[str]:
    try:
        names = os.listxattr(of)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        return []
    return [name for name in names if not name.startswith("system.") or name in _ACLS]


def link_names(target: Path, groups: Iterable[Sequence[bytes]]) -> None:
    """Makes hard links of the names of each group, some of which were not copied. Raises OSError."""
    with ClosingFd(os.open(target, FOLDER)) as root:
        for names in groups:
            with _above(root, names[0]) as (folder, name):
                inode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_ino
                for other in names[1:]:
                    with _above(root, other) as (its_folder, its_name):
                        _link(folder, name, inode, its_folder, its_name)


def _link(folder: int, name: bytes, inode: int, its_folder: int, its_name: bytes) -> None:
    """Makes a hard link. The folder keeps its time."""
    try:
        if os.stat(its_name, dir_fd=its_folder, follow_symlinks=False).st_ino == inode:
            return
        is_there = True
    except FileNotFoundError:
        is_there = False
    before = os.fstat(its_folder)
    if is_there:
        os.unlink(its_name, dir_fd=its_folder)
    os.link(name, its_name, src_dir_fd=folder, dst_dir_fd=its_folder, follow_symlinks=False)
    os.utime(its_folder, ns=(before.st_atime_ns, before.st_mtime_ns))


def remove_names(target: Path, names: Iterable[bytes]) -> None:
    """Removes the names, folders with their content. Raises OSError.

    Folders are moved into a temporary one, which is then removed: one process for each folder would take a hundred times as long.
    """
    with ClosingFd(os.open(target, FOLDER)) as root, ExitStack() as at_last:
        grave = None
        for number, path in enumerate(names):
            with _above(root, path) as (folder, name):
                try:
                    mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
                except FileNotFoundError:
                    continue
                if not stat.S_ISDIR(mode):
                    os.unlink(name, dir_fd=folder)
                    continue
                grave = grave or at_last.enter_context(_removed_at_last(root))
                os.rename(name, b"%d" % number, src_dir_fd=folder, dst_dir_fd=grave)


@contextmanager
def _removed_at_last(root: int) -> Iterator[int]:
    """Yields a new open folder in the folder `root`, which keeps its time; it is removed with its content at the end."""
    before = os.fstat(root)
    path = mkdtemp(prefix=".btrkeep-gone-", dir=f"/proc/{os.getpid()}/fd/{root}")
    try:
        with ClosingFd(os.open(path, FOLDER)) as fd:
            yield fd
    finally:
        remove_tree(path)
        os.utime(root, ns=(before.st_atime_ns, before.st_mtime_ns))


@contextmanager
def _above(root: int, path: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the open folder that contains the name, and the name. Raises OSError with the path, ENOTDIR also for a symlink above
    it.
    """
    above, _, name = path.rpartition(b"/")
    try:
        folder = open_folder(root, above.split(b"/") if above else ())
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fsdecode(path)) from error
    with ClosingFd(folder):
        yield folder, name
