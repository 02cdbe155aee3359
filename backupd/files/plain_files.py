"""Copies and compares plain files and symlinks of one folder, many at a time: most of a restore.

They are copied to unused names. More complicated files, and those that fail, are returned: the caller restores them one by one,
with a reason. The same safety rules apply here: everything goes through descriptors, a copy gets its name only when it is complete,
and never replaces another file.
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from backupd.files.attributes import LABEL, is_power
from backupd.files.destination import PREFIX, rename_to_nothing
from backupd.files.tree import identity, open_plain
from backupd.files.walking import PlainFile
from backupd.files.writing import Undeleted, comparable, remove_unfinished
from btrkeep.descriptors import ClosingFd
from btrkeep.fs.file_data import have_same_items, share_all
from btrkeep.fs.openat import by_descriptor
from btrkeep.fs.reflink import clone
from btrkeep.pool.marker import filesystem_of
from btrkeep.process.batch_workers import is_worker

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOATIME | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NAMELESS = os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC
_NONE = frozenset[str]()
_HAS_NO_NAMELESS = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS)  # the filesystem or the kernel does not support it


class BatchResult(NamedTuple):
    """The result of a batch: the numbers of the files that were not done, and bytes that were copied, or read on both sides.

    `identities`: those of the copies of files with several names, in their order; 0 for one that was not done. `is_folder_done`:
    for a folder that was given with its files. `is_bare`: everything was copied, and nothing of it has an attribute in the backup.
    `undeleted`: unfinished names in the destination's folder that could not be deleted, each with the reason.
    """

    left_over: Sequence[int]
    size: int
    identities: Sequence[int] = ()
    is_folder_done: bool = True
    is_bare: bool = False
    undeleted: Sequence[tuple[bytes, str]] = ()


def copy(
    source: int,
    to: int,
    files: Sequence[PlainFile],
    *,
    reflinks: bool,
    privileged: bool,
    staged: "StagingState | None" = None,
    device: int | None = None,
) -> BatchResult:
    """Copies files of the open folder `source` into the open folder `to`, where their names are unused.

    `reflinks`: both are on one btrfs, and data is shared. Without `privileged`, files with attributes that grant privileges are
    returned. `staged`: only root can enter the folder `to`, whose attributes are not inherited, and the files get into a folder in
    it. Then files have their names from the start, and are deleted again if they are returned: the caller that moves that folder
    to its place checks `undeleted` first. `device`: that of `source`, if known.
    """
    left_over, size, identities, undeleted = list[int](), 0, list[int](), Undeleted()
    folder = _NewFiles(to, undeleted, reflinks=reflinks, privileged=privileged, staged=staged)
    device = os.fstat(source).st_dev if device is None else device
    is_bare, prefix, inherits = True, None, None
    copied: int | None
    for number, file in enumerate(files):
        try:
            if file.target is None:
                original = os.open(file.name, _READ, dir_fd=source)
                try:
                    copied = folder.add(original, file) if os.fstat(original).st_dev == device else None  # None: a mount point
                finally:
                    os.close(original)
            elif staged:
                prefix = folder_prefix(source) if prefix is None else prefix
                is_bare &= _copy_staged_symlink(source, to, file, prefix, staged, undeleted, privileged)
                copied = 0
            else:
                inherits = may_inherit(to) if inherits is None else inherits
                is_bare = False  # rare in folders that are not created completely
                copied = _copied_symlink(source, to, file, undeleted, privileged=privileged, inherits=inherits)
        except OSError:  # the caller handles it by itself, gets the same error and reports it
            copied = None
        if copied is None:
            left_over.append(number)
        else:
            size += file.size
        if file.links > 1:
            identities.append(copied or 0)
    return BatchResult(
        left_over, size, identities, is_bare=is_bare and folder.is_bare and not left_over, undeleted=list(undeleted.items())
    )


def _copied_symlink(source: int, to: int, file: PlainFile, undeleted: Undeleted, *, privileged: bool, inherits: bool) -> int | None:
    """Copies a symlink. Returns the copy's identity; None, and leaves nothing there, if it cannot be copied in this way. Raises
    OSError.
    """
    temporary, copied = PREFIX + os.urandom(8).hex().encode("ascii"), None
    try:
        if made := copy_symlink(source, to, file, temporary, privileged=privileged, inherits=inherits):
            rename_to_nothing(to, temporary, file.name)
            copied = made
    finally:
        if copied is None:
            remove_unfinished(to, temporary, undeleted)
    return copied


class Defaults(NamedTuple):
    """The attributes that every new file of a folder gets automatically."""

    owner: tuple[int, int]
    """The group, which with the mount option `grpid`, in a setgid folder and on NFS may differ from that of this process."""
    denied: int
    """Bits that the umask removes from a mode."""
    inherits: bool
    """True if it gets extended attributes, such as an ACL of the folder."""


class StagingState:
    """The owner of new names and the attributes of new files in folders that only root can enter. `prefix`: the present folder."""

    def __init__(self) -> None:
        self.prefix = b""
        self.owner = os.geteuid(), os.getegid()
        self.defaults: Defaults | None = None


class _NewFiles:
    """Makes files in an open folder. A file gets its name when it is complete; before that no other user can open it.

    If the filesystem does not support this, the file first has a temporary name, and only root can open it.
    """

    def __init__(self, folder: int, undeleted: Undeleted, *, reflinks: bool, privileged: bool, staged: StagingState | None) -> None:
        self._folder, self._reflinks, self._privileged, self._staged = folder, reflinks, privileged, staged
        self._undeleted = undeleted
        self._defaults = staged.defaults if staged else None
        self._temporary = b""
        self.is_bare = True
        """Returns True as long as no file had an attribute in the backup."""

    def add(self, original: int, file: PlainFile) -> int | None:
        """Copies a file. Returns the identity of the copy if the file has several names, otherwise 0; None, and leaves nothing
        there, if it cannot be copied in this way. Raises OSError.
        """
        if self._staged:
            return self._add_staged(original, file, self._staged)
        if self._temporary:
            return self._add_named(original, file)
        try:
            made = os.open(b".", _NAMELESS, file.mode if self._defaults else 0o777, dir_fd=self._folder)
        except OSError as error:
            if error.errno not in _HAS_NO_NAMELESS:
                raise
            return self._add_named(original, file)
        try:
            gets_mode = self._defaults is None or bool(file.mode & (~0o777 | self._defaults.denied))
            if not self._completed(original, made, file, gets_mode=gets_mode):
                return None
            copied = identity(os.fstat(made)) if file.links > 1 else 0
            os.link(b"/proc/self/fd/%d" % made, file.name, dst_dir_fd=self._folder, follow_symlinks=True)  # never replaces a file
            return copied
        finally:
            os.close(made)

    def _add_staged(self, original: int, file: PlainFile, staged: StagingState) -> int | None:
        """Copies a file with one name, like `add`, into a folder that only root can enter."""
        name = staged.prefix + file.name
        made = os.open(name, _MAKE, file.mode & 0o777 if self._defaults else 0o777, dir_fd=self._folder)
        is_whole = False
        try:
            gets_mode = self._defaults is None or bool(file.mode & (~0o777 | self._defaults.denied))
            is_whole = self._completed(original, made, file, gets_mode=gets_mode)
            return 0 if is_whole else None
        finally:
            os.close(made)
            if not is_whole:
                remove_unfinished(self._folder, name, self._undeleted)

    def _add_named(self, original: int, file: PlainFile) -> int | None:
        if not self._temporary or self._temporary in self._undeleted:
            self._temporary = PREFIX + os.urandom(8).hex().encode("ascii")
        made = os.open(self._temporary, _MAKE, 0o600, dir_fd=self._folder)
        result = None
        try:
            if self._completed(original, made, file, gets_mode=True):
                copied = identity(os.fstat(made)) if file.links > 1 else 0
                rename_to_nothing(self._folder, self._temporary, file.name)
                result = copied
        finally:
            os.close(made)
            if result is None:
                remove_unfinished(self._folder, self._temporary, self._undeleted)
        return result

    def _completed(self, original: int, made: int, file: PlainFile, *, gets_mode: bool) -> bool:
        """Copies the data, and sets owner, attributes, mode and time, in this order. Returns False if the file has changed since it
        was examined, or cannot be copied in this way. Raises OSError.
        """
        defaults = self._defaults = self._defaults or _defaults(made)
        if self._staged:
            self._staged.defaults = defaults
        if defaults.inherits or not _filled(original, made, file, self._reflinks):
            return False
        if defaults.owner != (file.uid, file.gid):
            os.fchown(made, file.uid, file.gid)
        for name in os.listxattr(original):
            self.is_bare = False
            if is_power(name) and not self._privileged:
                if name != LABEL:
                    return False
                continue
            os.setxattr(made, name, os.getxattr(original, name))
            gets_mode = True  # an ACL changes the group's mode bits
        if gets_mode:
            os.fchmod(made, file.mode)
        os.utime(made, ns=(file.mtime, file.mtime))
        return True


def _defaults(made: int) -> Defaults:
    """Examines the first file that was made in a folder; the file has all mode bits if it has no name."""
    status = os.fstat(made)
    return Defaults((status.st_uid, status.st_gid), 0o777 & ~status.st_mode, any(map(comparable, os.listxattr(made))))


def _filled(original: int, made: int, file: PlainFile, reflinks: bool) -> bool:
    """Copies the data. Returns False if the file has changed since it was examined. Raises OSError."""
    if not file.size:
        return True
    if reflinks:
        clone(original, made)
        return True
    data = os.read(original, file.size + 1)
    return len(data) == file.size and os.write(made, data) == file.size


def compare(
    source: int,
    to: int,
    files: Sequence[PlainFile],
    *,
    reflinks: bool,
    privileged: bool,
    content: bool,
    is_bare: bool = False,
    synced: int = 0,
) -> BatchResult:
    """Returns the files that may differ. With `content` data is read on both sides, from the disk and not from memory; with
    `reflinks` only data that is not shared. Bytes are counted as read.

    `is_bare`: none has an attribute in the backup. Without long symlinks and `content`, `source` is not used then. `synced`: when
    the sync of the destination began, in nanoseconds: a file that changed later is opened, which writes its delayed data.
    """
    left_over, equal = list[int](), list[int]()
    attribute_names = [] if is_bare else _attribute_names(source, files)
    prefix = folder_prefix(to)
    for number, file in enumerate(files):
        ours = attribute_names[number] if attribute_names else _NONE
        try:
            names = os.listxattr(prefix + file.name, follow_symlinks=False)
            is_same = (
                ours is not None
                and ours == (frozenset(filter(comparable, names)) if names else _NONE)
                and _same_metadata(source, to, file, ours, privileged)
            )
        except OSError:
            is_same = False
        (equal if is_same else left_over).append(number)
    if not content:
        return BatchResult(left_over, 0)
    size = 0
    reflinks = reflinks and filesystem_of(source) == filesystem_of(to)
    examined = [(number, files[number]) for number in equal if files[number].size]
    for number, read in _same_contents(source, to, examined, reflinks, synced):
        if read is None:
            left_over.append(number)
        else:
            size += read
    return BatchResult(sorted(left_over), size)


def _attribute_names(folder: int, files: Sequence[PlainFile]) -> list[frozenset[str] | None]:
    """Returns the names of those attributes of each file that a restore keeps; None if they cannot be read."""
    prefix, names_of_each = folder_prefix(folder), list[frozenset[str] | None]()
    for file in files:
        try:
            names = os.listxattr(prefix + file.name, follow_symlinks=False)
            names_of_each.append(frozenset(filter(comparable, names)) if names else _NONE)
        except OSError:
            names_of_each.append(None)
    return names_of_each


def folder_prefix(folder: int) -> bytes:
    """Returns the prefix for a path of a name in an open folder, for the calls that accept no descriptor. A worker process changes
    to the folder: a short path takes half of the time.
    """
    if is_worker():
        with suppress(OSError):  # it may be listed, but not entered
            os.fchdir(folder)
            return b""
    return by_descriptor(folder, b"")


def _same_metadata(source: int, to: int, file: PlainFile, names: frozenset[str], privileged: bool) -> bool:
    """Compares everything except the data and the attributes' `names`, which are the same on both sides."""
    if file.target is not None:
        return not names and _same_symlink(source, to, file)
    status = os.stat(file.name, dir_fd=to, follow_symlinks=False)
    if (
        (status.st_mtime_ns, status.st_size, status.st_uid, status.st_gid) != (file.mtime, file.size, file.uid, file.gid)
        or not stat.S_ISREG(status.st_mode)
        or stat.S_IMODE(status.st_mode) != file.mode
    ):
        return False
    if not privileged and any(map(is_power, names)):
        return False
    if not names:
        return True
    ours, theirs = by_descriptor(source, file.name), by_descriptor(to, file.name)
    return all(_value(ours, name) == _value(theirs, name) for name in names)


def _value(path: bytes, name: str) -> bytes:
    return os.getxattr(path, name, follow_symlinks=False)


def _same_contents(
    source: int, to: int, files: Iterable[tuple[int, PlainFile]], reflinks: bool, synced: int
) -> Iterator[tuple[int, int | None]]:
    """Yields for each file the bytes that were read on each side; None if it differs or cannot be read.

    All are requested before the first is read, so that the disk has many requests at a time.
    """
    opened: list[tuple[int, PlainFile, int, int]] = []
    try:
        for number, file in files:
            if reflinks and _is_shared(source, to, file, synced):
                yield number, 0
                continue
            pair = _opened(source, to, file)
            if pair is None:
                yield number, None
            elif reflinks and are_shared(*pair):
                os.close(pair[0])
                os.close(pair[1])
                yield number, 0
            else:
                opened.append((number, file, *pair))
                for fd in pair:
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # the page cache proves nothing about the disk
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_WILLNEED)
        for number, file, ours, theirs in opened:
            yield number, file.size if _equal(ours, theirs, file.size) else None
    finally:
        for _, _, ours, theirs in opened:
            os.close(ours)
            os.close(theirs)


def _is_shared(source: int, to: int, file: PlainFile, synced: int) -> bool:
    """Returns True if a file and its copy share all data; False also if only open files can show it."""
    try:
        status = os.stat(file.name, dir_fd=to, follow_symlinks=False)
        return (
            stat.S_ISREG(status.st_mode)
            and status.st_ctime_ns < synced  # delayed data has no items; only the mtime can be set to an old one
            and status.st_dev == os.fstat(to).st_dev
            and have_same_items(source, file.inode, to, status.st_ino)
        )
    except OSError:
        return False


def _opened(source: int, to: int, file: PlainFile) -> tuple[int, int] | None:
    try:
        ours = os.open(file.name, _READ, dir_fd=source)
    except OSError:
        return None
    try:
        return ours, open_plain(file.name, to)  # another user may have replaced it by a fifo since the check
    except OSError:
        os.close(ours)
        return None


def are_shared(ours: int, theirs: int) -> bool:
    """Returns True if two open files share all data; False also if that cannot be found out, so that they are read."""
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


_HELD = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def copy_symlink(source: int, to: int, file: PlainFile, temporary: bytes, *, privileged: bool, inherits: bool) -> int:
    """Makes the symlink `temporary` in the open folder `to`. Returns its identity; 0 if it cannot be copied in this way.
    `inherits`: it may get attributes from its folder. Raises OSError.
    """
    os.symlink(file.target or os.readlink(file.name, dir_fd=source), temporary, dir_fd=to)
    with ClosingFd(os.open(temporary, _HELD, dir_fd=to)) as made:
        status = os.fstat(made)
        if not stat.S_ISLNK(status.st_mode):
            return 0
        path = b"/proc/self/fd/%d" % made  # another user may replace the name
        if (status.st_uid, status.st_gid) != (file.uid, file.gid):
            os.chown(path, file.uid, file.gid)
        if inherits and any(map(comparable, os.listxattr(path))):
            return 0
        original = by_descriptor(source, file.name)
        for name in os.listxattr(original, follow_symlinks=False):
            if privileged or not is_power(name):
                os.setxattr(path, name, os.getxattr(original, name, follow_symlinks=False))
        os.utime(path, ns=(file.mtime, file.mtime))
        return identity(status)


def _copy_staged_symlink(
    source: int, to: int, file: PlainFile, prefix: bytes, staged: StagingState, undeleted: Undeleted, privileged: bool
) -> bool:
    """Makes a symlink under its own name in the open folder `to`, in which no other process can change names. Raises OSError.

    Returns True if it has no attributes in the backup. `prefix`: the prefix for a path of a name in `source`.
    """
    made = staged.prefix + file.name
    os.symlink(file.target or os.readlink(file.name, dir_fd=source), made, dir_fd=to)
    try:
        if (file.uid, file.gid) != staged.owner:
            os.chown(made, file.uid, file.gid, dir_fd=to, follow_symlinks=False)
        original = prefix + file.name
        names = os.listxattr(original, follow_symlinks=False)
        for name in names:
            if privileged or not is_power(name):
                value = os.getxattr(original, name, follow_symlinks=False)
                os.setxattr(by_descriptor(to, made), name, value, follow_symlinks=False)
        os.utime(made, ns=(file.mtime, file.mtime), dir_fd=to, follow_symlinks=False)
    except BaseException:
        remove_unfinished(to, made, undeleted)
        raise
    return not names


def _same_symlink(source: int, to: int, file: PlainFile) -> bool:
    """Returns True if the folder `to` has the same symlink; its attributes are not checked. Raises OSError."""
    status = os.stat(file.name, dir_fd=to, follow_symlinks=False)
    return (
        stat.S_ISLNK(status.st_mode)
        and (status.st_mtime_ns, status.st_uid, status.st_gid) == (file.mtime, file.uid, file.gid)
        and (file.target or os.readlink(file.name, dir_fd=source)) == os.readlink(file.name, dir_fd=to)
    )


def may_inherit(folder: int) -> bool:
    """Returns True if a new name in an open folder may get attributes from it: a default ACL, or a label of a security module."""
    try:
        return any(map(comparable, os.listxattr(folder)))
    except OSError:
        return True
