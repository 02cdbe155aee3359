"""The destination folder of a restore. Nothing below it is reached through a symlink, even if others write there at the
same time.
"""

import ctypes
import errno
import fcntl
import os
import shlex
import stat
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from backupd.files.placing import Names
from backupd.files.tree import Entry, components, entry_of, joined, read_entry
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import LockHeld, OperatorError, UsageError
from btrkeep.fs.openat import FOLDER, open_folder, open_inner
from btrkeep.hung_storage import answers
from btrkeep.pool.marker import Pool
from btrkeep.pool.mounts import mount_id
from btrkeep.pool.syncfs import SyncfsSet
from btrkeep.trusted_path import untrusted_step

PREFIX = b".btrkeep-restore-"
"""The start of the names of incomplete files; a killed run leaves them, the next one removes them."""
_NOREPLACE = 1
_KEPT_OPEN, _EVERY = 32, 32
_TRUSTED = 10.0  # seconds: a restore checks the same folders three times before it writes, each time in a new process
_CANNOT = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_libc = ctypes.CDLL(None, use_errno=True)


class PlaceOccupied(OSError):
    """Another file has appeared where a file was to be written."""


def names_of(path: Path) -> Names:
    """Returns the names in an absolute path. Raises ValueError for ".."."""
    return tuple(components(os.fsencode(path)))


class AllowedFolders:
    """Folders to which a restore is limited if its user may not choose any place.

    They are absolute, and not reached through symlinks. A missing one allows nothing. All places are reached from the root by
    names, so a place is where its names are. A filesystem that is mounted below such a folder is somewhere else and is not entered.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._mounts = {names: _mount(names) for names in map(names_of, folders)}

    def containing(self, names: Names) -> Names | None:
        """Returns the folder that is or contains the place; None if it is outside of all."""
        return next((folder for folder in self._mounts if names[: len(folder)] == folder), None)

    def require(self, fd: int, names: Names) -> None:
        """Raises PermissionError if the open file `fd`, reached by these names, must not be restored into.

        Folders above an allowed one may only be read.
        """
        folder = self.containing(names)
        if folder is None:
            if not any(inner[: len(names)] == names for inner in self._mounts):
                raise PermissionError(errno.EPERM, "it is outside of the folder that restores may write to")
        elif mount_id(fd) != self._mounts[folder]:
            raise PermissionError(errno.EPERM, "another filesystem is mounted there, and restores may not write to it")

    def open(self, path: Path, *, make: bool) -> tuple[int, bool]:
        """Returns a descriptor of the destination folder, and whether it was made for the restore, only accessible to root.

        Raises OSError; UsageError if other users can write to it, who might redirect the restore.
        """
        names = names_of(path)
        with ClosingFd(_open(names[:-1])) as above:
            made = bool(names) and make and _made(above, names)
            fd = os.open(names[-1] if names else b".", FOLDER, dir_fd=above)
        try:
            self.require(fd, names)
            status = os.fstat(fd)
            if names and (status.st_uid or status.st_mode & _OTHERS):
                raise UsageError(
                    f"{path} can be written by users other than root", "remove it, or change it: chown root, chmod go-w"
                )
        except BaseException:
            os.close(fd)
            raise
        return fd, made


def _made(above: int, names: Names) -> bool:
    try:
        os.mkdir(names[-1], 0o700, dir_fd=above)
    except FileExistsError:
        return False
    return True


def _open(names: Names) -> int:
    with ClosingFd(os.open("/", FOLDER)) as root:
        return open_folder(root, names)


def _mount(names: Names) -> int:
    """Returns the mount id, or -1, which no mount has, if the place does not exist."""
    try:
        fd = _open(names)
    except OSError:
        return -1
    with ClosingFd(fd):
        return mount_id(fd)


class Destination:
    """A folder, open and locked against a second restore. If it does not exist and `make` is true, it is made, only accessible to
    root.

    Without `make` a missing folder counts as empty. Folders in `excluded` are not entered; with `allowed`, nothing outside of these
    folders is entered. `trusted`: no other user may control the path, as in `require_destination`, which checked it earlier.
    """

    def __init__(
        self,
        path: Path,
        *,
        make: bool,
        excluded: Sequence[Path] = (),
        allowed: AllowedFolders | None = None,
        trusted: bool = False,
    ) -> None:
        self.path = path
        self._allowed = allowed
        self._base = names_of(path.absolute()) if allowed else ()
        self._excluded = {_inode(status) for status in map(_stat, filter(_answers, excluded)) if status}
        self.made = False
        self._root = self._opened(make)
        if trusted and self._root is not None:
            self._require_trusted(self._root)
        self._filesystems = SyncfsSet()
        self._devices: set[int] = set()
        self._way: list[tuple[bytes, int | None]] = []
        self._last: tuple[Names, int] | None = None

    def _opened(self, make: bool) -> int | None:
        try:
            if self._allowed:
                fd, self.made = self._allowed.open(self.path, make=make)
            else:
                if make and not self.path.exists():
                    self.path.mkdir(mode=0o700)
                    self.made = True
                fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UsageError(f"{self.path}: {error.strerror}", "name a folder to restore into") from None
        try:
            if make:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise LockHeld(f"another restore writes to {self.path}", "wait for it to end, or restore to another folder") from None
        return fd

    def _require_trusted(self, fd: int) -> None:
        """Raises UsageError if another user controls the path, or has exchanged the folder. Then closes the descriptor."""
        try:
            _require_trusted(self.path)
            if _inode(os.fstat(fd)) != _inode(self.path.stat()):
                raise UsageError(
                    f"{self.path} was replaced during the restore", "find the program that did that, and restore to another folder"
                )
        except BaseException:
            os.close(fd)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._forget()
        self._filesystems.close()
        if self._root is not None:
            os.close(self._root)

    def _forget(self, kept: int = 0) -> None:
        """Closes the open folders of the path, except the first `kept`."""
        self._last = None
        while len(self._way) > kept:
            if (fd := self._way.pop()[1]) is not None:
                os.close(fd)

    def folder(self, names: Names) -> int:
        """Returns a descriptor of a folder below the destination, valid until the next call. Raises OSError: ENOENT, and ENOTDIR
        for a symlink in the path.

        The folders in its path remain open for the next one, except in very deep places: there each thirty-second.
        """
        if self._last:
            last, fd = self._last
            if last == names:
                return fd
            if last == names[:-1] and names:  # one level down, the usual case in a walk
                self._enter(open_inner(fd, names[-1]), names)
                return self._at(names)
            if last[: len(names)] == names:  # up
                self._forget(len(names) + 1)
                if self._way[-1][1] is not None:
                    return self._at(names)
        if self._root is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        wanted = (b"", *names)
        pairs = enumerate(zip(self._way, wanted, strict=False))
        self._forget(next((depth for depth, (step, name) in pairs if step[0] != name), len(wanted)))
        while self._way and self._way[-1][1] is None:
            self._way.pop()
        for depth in range(len(self._way), len(wanted)):
            above = self._way[-1][1] if self._way else None
            entered = os.dup(self._root) if above is None else open_inner(above, wanted[depth])
            self._enter(entered, names[:depth])
        return self._at(names)

    def _at(self, names: Names) -> int:
        """Records that the open path is now that of this folder."""
        fd = self._way[-1][1]
        assert fd is not None  # the last folder is always open
        self._last = names, fd
        return fd

    def _enter(self, fd: int, names: Names) -> None:
        """Makes an open folder the last one of the path. Raises OSError, and closes it, if nothing may be written there."""
        try:
            status = os.fstat(fd)
            if _inode(status) in self._excluded:
                raise PermissionError(errno.EPERM, "it is in the pool, or beside the catalogue")
            if self._allowed:
                self._allowed.require(fd, (*self._base, *names))
            if status.st_dev not in self._devices:
                self._filesystems.add(fd, self.path, names)
                self._devices.add(status.st_dev)
        except BaseException:
            os.close(fd)
            raise
        self._append(fd, names)

    def enter_new(self, place: Names, fd: int) -> None:
        """Adds an open folder that was just made at a place, in `folder(place[:-1])`."""
        self.folder(place[:-1])
        self._append(fd, place)
        self._at(place)

    def _append(self, fd: int, names: Names) -> None:
        self._way.append((names[-1] if names else b"", fd))
        far = len(self._way) - _KEPT_OPEN - 1
        if far > 0 and far % _EVERY and (old := self._way[far][1]) is not None:
            os.close(old)
            self._way[far] = (self._way[far][0], None)

    def parent(self, place: Names) -> tuple[int, bytes]:
        """Returns a descriptor of the folder that contains a place, and the name in it; for the destination itself the name is
        b".".
        """
        return self.folder(place[:-1]), place[-1] if place else b"."

    def read_entry(self, place: Names) -> Entry | None:
        """Returns the existing entry; None if there is none, or if a parent is not a folder."""
        try:
            folder, name = self.parent(place)
            return read_entry(folder, name, joined(list(place)))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def excludes(self, entry: Entry) -> bool:
        """Returns True if it is a folder that must not be changed."""
        return (entry.device, entry.inode) in self._excluded

    def outside(self, place: Names) -> bool:
        """Returns True if a place is outside of the allowed folders."""
        return self._allowed is not None and self._allowed.containing((*self._base, *place)) is None

    def enter(self, place: Names) -> None:
        """Raises OSError if the folder at a place may not be written to."""
        self.folder(place)

    def is_empty(self, place: Names) -> bool:
        """Returns True if the folder at a place is empty or missing. Raises OSError."""
        try:
            with os.scandir(self.folder(place)) as entries:
                return next(entries, None) is None
        except FileNotFoundError:
            return True

    def sync(self) -> None:
        """Syncs what was written, also to filesystems that are mounted below. Raises OSError with the folder if one lost data.

        Entries that are examined afterwards are found by name again, and not through folders that were open before.
        """
        self._forget()
        self._filesystems.sync()

    def free(self) -> int | None:
        """Returns the bytes that can be written; None for a filesystem that does not report them, such as ramfs."""
        statvfs_result = os.statvfs(existing_folder(self.path))
        return statvfs_result.f_bavail * statvfs_result.f_frsize if statvfs_result.f_blocks else None


def existing_folder(path: Path) -> Path:
    """Returns the folder, or the folder that will contain it if it does not exist yet."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def put(folder: int, temporary: bytes, name: bytes, instead_of: Entry | None) -> None:
    """Gives a complete file its name. Raises PlaceOccupied if an unexpected file has appeared at that name."""
    if instead_of is None:
        rename_to_nothing(folder, temporary, name)
        return
    now = entry_of(b"", os.stat(name, dir_fd=folder, follow_symlinks=False), None)
    if (now.kind, now.inode, now.mtime, now.size) != (instead_of.kind, instead_of.inode, instead_of.mtime, instead_of.size):
        raise PlaceOccupied(errno.EEXIST, "it has changed since it was checked")
    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def rename_to_nothing(folder: int, temporary: bytes, name: bytes, above: int | None = None) -> None:
    """Renames from one open folder into another, `above`, or within it, to a name that nothing has.

    Raises OSError; PlaceOccupied if an entry has that name.
    """
    above = folder if above is None else above
    if not _libc.renameat2(folder, temporary, above, name, _NOREPLACE):
        return
    number = ctypes.get_errno()
    if number == errno.EEXIST:
        raise PlaceOccupied(number, "a file has appeared there")
    if number not in _CANNOT:
        raise OSError(number, os.strerror(number))
    # This filesystem (NFS) cannot refuse to replace on rename: a file may appear between the check and the rename.
    try:
        os.stat(name, dir_fd=above, follow_symlinks=False)
    except FileNotFoundError:
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=above)
        return
    raise PlaceOccupied(errno.EEXIST, "a file has appeared there")


def require_destination(
    pool: Pool, state: Path, to: Path, others: Sequence[Path], *, anyway: bool = False, sticky: bool = False
) -> None:
    """Raises UsageError if the folder must not be restored into (the pool, the catalogue's folder, `others` of further pools), or
    cannot be made, or if users other than root could redirect or read the restored files, unless `anyway`.

    `sticky`: a single file is written there, so a folder such as /tmp is allowed.
    """
    real = Path(os.path.realpath(to))
    above = [real, *real.parents]
    of_others = ((other, "in another pool, or beside its catalogue") for other in others)
    for forbidden, words in ((pool.path, "in the pool, among the backups"), (state, "in the catalogue's folder"), *of_others):
        is_hung = not _answers(forbidden)  # then only paths are compared: nothing could be written there anyway
        if any(folder == forbidden if is_hung else _is_same(folder, forbidden) for folder in above):
            raise UsageError(f"{to} is {words}", "restore to another folder, such as /root/restored")
    if not anyway:
        _require_trusted(to, sticky=sticky)
    if not to.exists() and not to.parent.is_dir():
        hint = "name a folder" if to.parent.exists() else f"create it first: mkdir -p {shlex.quote(str(to.parent))}"
        raise UsageError(f"{to.parent} is not a folder", hint)
    if to.exists() and not to.is_dir():
        raise OperatorError(f"{to} is not a folder", "--to must be a folder, also for a single file")


def _require_trusted(to: Path, *, sticky: bool = False) -> None:
    if step := untrusted_step(to.absolute(), sticky=sticky):
        raise UsageError(
            f"{to}: {step.place} {step.reason}, who could redirect or read the restored files",
            "restore to a folder that only root can write to, such as /root/restored, or add --anyway",
        )


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _answers(path: Path) -> bool:
    return answers(path, _TRUSTED)


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _is_same(folder: Path, other: Path) -> bool:
    try:
        return folder.samefile(other)
    except OSError:
        return False
