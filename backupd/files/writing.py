"""Makes one name of a backup again below a destination. It is completed under a temporary name beside its place, and then renamed.

New entries are held by descriptors, through which owners, modes, attributes and times are set, because another user of the
destination may replace a name at any moment.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Container, Iterator
from functools import partial
from pathlib import Path

from backupd.files.attributes import LABEL
from backupd.files.destination import PREFIX, Destination, put
from backupd.files.placing import Names, Visit
from backupd.files.privileged_attributes import given_attributes
from backupd.files.tree import Entry, entry_of, identity, names_in, open_plain
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import DAMAGED
from btrkeep.fs.file_data import Run, SourceUnreadable, at_source, begin_writing, copy_run, data_runs
from btrkeep.fs.reflink import clone

_CANNOT_CLONE = (errno.EXDEV, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.ENOSYS)
_ATTRIBUTE_LOST = (errno.EPERM, errno.EOPNOTSUPP, errno.EINVAL, errno.E2BIG, errno.EACCES, errno.ERANGE)
_FULL_BELOW = 1 << 20  # bytes
_HELD = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_BEGUN = 32 << 20
"""Bytes that the disk starts to write while the next bytes are copied. With fewer there would be more extents."""
_OWN_SPACE = "btrfs."  # properties of files on btrfs, such as compression

Moved = Callable[[int], None]
"""Called with the bytes of each piece; may raise to stop the copy."""
Undeleted = dict[bytes, str]
"""Names in a folder that could not be deleted, each with the reason."""


class Writer:
    """Makes names below one destination. `reflinked` and `copied` count bytes; `lost` gets the attributes that could not be kept.
    `undeleted` gets temporary names that could not be deleted, with the reasons.

    With `clones` data is shared with the backup if possible; without, it is read and written.
    """

    def __init__(self, to: Destination, moved: Moved, *, clones: bool = True) -> None:
        self.to = to
        self.moved = moved
        self.reflinked = 0
        self.copied = 0
        self.lost: list[str] = []
        self.undeleted: Undeleted = {}
        self._clones = clones

    def make(self, visit: Visit, instead_of: Entry | None) -> int:
        """Creates the entry, a folder without its content; returns its identity. Raises OSError; PlaceOccupied if the existing
        entry has changed.
        """
        self.lost = []
        folder, name = self.to.parent(visit.place)
        with self._temporary(folder) as temporary:
            with ClosingFd(self._made(visit, folder, temporary)) as held:
                self._dress(visit, held, mode_to_fill(visit.entry) if visit.entry.kind == "folder" else visit.entry.mode)
                made = identity(os.fstat(held))
            put(folder, temporary, name, instead_of)
        return made

    def link(self, first: Names, copied: int, place: Names, instead_of: Entry | None) -> None:
        """Adds a hard link to the file at `first`. Raises OSError; PlaceOccupied if that is no longer the same file."""
        with ClosingFd(os.dup(self.to.folder(first[:-1]))) as above:
            folder, name = self.to.parent(place)
            with self._temporary(folder) as temporary:
                os.link(first[-1], temporary, src_dir_fd=above, dst_dir_fd=folder, follow_symlinks=False)
                if identity(os.stat(temporary, dir_fd=folder, follow_symlinks=False)) != copied:
                    raise OSError(errno.EEXIST, "its other name has changed since it was written")
                put(folder, temporary, name, instead_of)

    def finish(self, visit: Visit, *, all_of_it: bool) -> None:
        """Sets the time of a folder, which its new entries have changed; with `all_of_it` also owner, mode and attributes."""
        self.lost = []
        folder, name = self.to.parent(visit.place)
        with ClosingFd(os.open(name, _HELD | os.O_DIRECTORY, dir_fd=folder)) as held:
            if all_of_it:
                self._dress(visit, held, visit.entry.mode)
            else:
                self._attempt("time", lambda: os.utime(_path(held), ns=(visit.entry.mtime, visit.entry.mtime)))

    def _made(self, visit: Visit, folder: int, temporary: bytes) -> int:
        """Returns a new open inode of the right type with its data; only root can use it yet."""
        entry = visit.entry
        if entry.kind == "file":
            return self._file(visit, folder, temporary)
        if entry.kind == "folder":
            os.mkdir(temporary, 0o700, dir_fd=folder)
        elif entry.target is not None:
            os.symlink(entry.target, temporary, dir_fd=folder)
        else:
            with at_source():
                kind = stat.S_IFMT(os.stat(visit.name, dir_fd=visit.folder, follow_symlinks=False).st_mode)
            os.mknod(temporary, kind | 0o600, entry.rdev, dir_fd=folder)
        held = os.open(temporary, _HELD, dir_fd=folder)
        is_ours = False
        try:
            is_ours = entry_of(b"", os.fstat(held), None).kind == entry.kind and (entry.kind != "folder" or is_empty(_path(held)))
        finally:
            if not is_ours:
                os.close(held)
        if not is_ours:
            raise OSError(errno.EEXIST, "another file has replaced it")
        return held

    def _file(self, visit: Visit, folder: int, temporary: bytes) -> int:
        with at_source():
            opened = open_plain(visit.name, visit.folder)
        with ClosingFd(opened) as source:
            if os.fstat(source).st_dev != os.fstat(visit.folder).st_dev:
                raise OSError(errno.EXDEV, "another filesystem is mounted there in the backup")
            copy = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
            try:
                self._fill(source, copy, visit.entry)
            except BaseException:
                os.close(copy)
                raise
            return copy

    def _fill(self, source: int, copy: int, entry: Entry) -> None:
        if not entry.size:
            return
        if self._cloned(source, copy):
            self.reflinked += entry.size
            self.moved(entry.size)
            return
        os.ftruncate(copy, entry.size)
        done = begun = waiting = 0
        for start, end in _data_runs(source, entry.size):
            self.moved(start - done)
            for number in copy_run(source, copy, start, end):
                self.moved(number)
                start += number
                self.copied += number
                waiting += number  # without the holes: 32 MiB of a sparse image may be one block
                if waiting >= _BEGUN:
                    begin_writing(copy, begun, start)
                    begun, waiting = start, 0
            done = end
        self.moved(entry.size - done)

    def _cloned(self, source: int, copy: int) -> bool:
        """Returns True if the copy now shares all data with the backup's file: on the same btrfs, in one call."""
        if not self._clones:
            return False
        try:
            clone(source, copy)
        except OSError as error:
            if error.errno not in (*_CANNOT_CLONE, *DAMAGED):
                raise
            # EINVAL: one of the two files has no checksums, so they cannot share data; other files still can.
            # Damage: reading and writing show which of the two it is.
            self._clones = error.errno in (errno.EINVAL, *DAMAGED)
            return False
        return True

    def _dress(self, visit: Visit, held: int, mode: int) -> None:
        """Sets the owner first, because that removes setuid and capabilities; an ACL before the mode, whose bits for the group
        would otherwise apply to the group itself for a moment; the time last.
        """
        entry, path = visit.entry, _path(held)
        self._attempt("owner", lambda: os.chown(path, entry.uid, entry.gid))
        with at_source():
            wanted = given_attributes(visit)
        self._give_attributes(path, wanted)
        if entry.kind != "symlink":
            self._attempt("mode", lambda: Path(path).chmod(mode))
        self._attempt("time", lambda: os.utime(path, ns=(entry.mtime, entry.mtime)))

    def _give_attributes(self, path: str, wanted: dict[str, bytes]) -> None:
        """Sets the attributes, and removes those that the new name inherited, especially an ACL."""
        try:
            inherited = set(os.listxattr(path)) - set(wanted)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            inherited = set()
        for name in sorted(inherited):
            if comparable(name):
                self._attempt(name, partial(os.removexattr, path, name))
        for name, value in sorted(wanted.items()):
            self._attempt(name, partial(_set_attribute, path, name, value))

    @contextlib.contextmanager
    def _temporary(self, folder: int) -> Iterator[bytes]:
        """Yields an unused name; an error removes it again."""
        name = PREFIX + os.urandom(8).hex().encode("ascii")
        try:
            yield name
        except BaseException:
            remove_unfinished(folder, name, self.undeleted)
            raise

    def _attempt(self, attribute: str, act: Callable[[], None]) -> None:
        """Records an attribute that this filesystem cannot store; the rest of the name is restored."""
        try:
            act()
        except OSError as error:
            if error.errno not in _ATTRIBUTE_LOST:
                raise
            if comparable(attribute):
                self.lost.append(attribute)


def _set_attribute(path: str, name: str, value: bytes) -> None:
    """Sets an attribute. Raises OSError. ext4 and btrfs return ENOSPC also for an attribute that is too large: it is E2BIG here if
    there is space.
    """
    try:
        os.setxattr(path, name, value)
    except OSError as error:
        status = os.statvfs(path)
        is_full = status.f_blocks and status.f_bavail * status.f_frsize < _FULL_BELOW
        if error.errno == errno.ENOSPC and not is_full:
            raise OSError(errno.E2BIG, os.strerror(errno.E2BIG)) from error
        raise


def _data_runs(source: int, size: int) -> Iterator[Run]:
    with at_source():
        yield from data_runs(source, size)


def why_unmade(error: OSError) -> str:
    """Returns the reason why a name was not restored, with the side of the error."""
    why = error.strerror or str(error)
    if isinstance(error, SourceUnreadable):
        return f"it cannot be read in the backup: {why}"
    return f"it cannot be written at the destination: {why}" if error.errno in DAMAGED else why


def mode_to_fill(entry: Entry) -> int:
    """Returns the mode of a new folder until its content is complete: without root's rights its owner must be allowed to write
    there.
    """
    return entry.mode | 0o700 if os.geteuid() else entry.mode


def comparable(attribute: str) -> bool:
    """True if a restored name gets this attribute of the backup. The properties of btrfs and SELinux's labels belong to the
    destination.
    """
    return not is_own_space(attribute) and attribute != LABEL


def is_own_space(attribute: str) -> bool:
    """Returns True for a property of btrfs, such as the compression of a folder, which new files in it also get."""
    return attribute.startswith(_OWN_SPACE)


def is_empty(folder: int | str) -> bool:
    """Returns True if a folder is empty, as each new one is: another user may have moved another folder to its name."""
    with os.scandir(folder) as names:
        return next(names, None) is None


def _path(held: int) -> str:
    """Returns a path for any open file, also a symlink, for calls that accept no such descriptor."""
    return f"/proc/self/fd/{held}"


def leftovers(folder: int) -> list[bytes]:
    """Names in a folder that a killed restore has left."""
    return [name for name in names_in(folder) if name.startswith(PREFIX)]


def unfinished_size(folder: int) -> int:
    """Returns the bytes on disk that a killed restore has left in a folder, and that the next one deletes."""
    return sum(os.stat(name, dir_fd=folder, follow_symlinks=False).st_blocks * 512 for name in leftovers(folder))


def remove_leftovers(folder: int, kept: Container[bytes], undeleted: Undeleted) -> None:
    """Deletes what a killed restore has left in a folder, except the names to be `kept`."""
    for name in leftovers(folder):
        if name not in kept:
            remove_unfinished(folder, name, undeleted)


def remove_unfinished(folder: int, name: bytes, undeleted: Undeleted) -> None:
    """Deletes an incomplete entry of any type, but not a folder with content. Records the reason of a failure in `undeleted`."""
    try:
        is_folder = stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
        (os.rmdir if is_folder else os.unlink)(name, dir_fd=folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            undeleted[name] = error.strerror or str(error)
