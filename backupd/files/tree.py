"""The files of one backup, opened and listed without ever leaving it, because its names and symlinks come from an untrusted host.

A path is the host's own, absolute, in bytes: b"/etc/passwd". b"/" is the folder `data` of the backup.
"""

import errno
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from types import TracebackType
from typing import Self

from backupd.files.spool import IN_MEMORY, ordered
from backupd.repo.backup_json import DATA
from btrkeep.descriptors import Closing, ClosingFd
from btrkeep.errors import OperatorError
from btrkeep.fs.openat import FOLDER, open_folder, open_inner
from btrkeep.procfs import mounts
from btrkeep.units import printable

KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
}

NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EXDEV}
"""The errors for a path that is not in the backup."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A name in a backup. `size` is bytes, `allocated` the bytes on disk as `du` counts them, `mtime` nanoseconds."""

    path: bytes
    """Absolute, as on the host."""
    kind: str
    """One of KINDS' words."""
    size: int
    allocated: int
    mode: int
    """Permission bits, with setuid, setgid and sticky."""
    uid: int
    """The owner's number."""
    gid: int
    """The group's number."""
    mtime: int
    """Time of the last modification, nanoseconds."""
    inode: int
    """The inode number."""
    links: int
    """Number of names of the file."""
    device: int
    """The device number of its subvolume. Two names are one file if `device` and `inode` are equal."""
    target: bytes | None = None
    """The target of a symlink; None for all others."""
    rdev: int = 0
    """The number of a device node; 0 for all others."""
    changed: int = 0
    """ctime on this server, nanoseconds. No host can set it and a snapshot keeps it, so equal `inode` and `changed` in two
    backups of a host mean the same file, unchanged."""

    @property
    def name(self) -> bytes:
        """The last component; b"/" for the root."""
        return self.path.rsplit(b"/", 1)[-1] or b"/"

    @property
    def identity(self) -> int:
        """The number of its file, as the function `identity` returns it."""
        return self.device << 64 | self.inode


def identity(status: os.stat_result) -> int:
    """Returns a number that two names share only if they are one file; never 0. Inode numbers alone are unique only in one
    filesystem.
    """
    return status.st_dev << 64 | status.st_ino


def components(path: bytes) -> list[bytes]:
    """Returns the components of a path; repeated slashes, slashes at the end and "." do not count.

    Raises ValueError for "..", for a NUL, and for a path that is not absolute.
    """
    if not path.startswith(b"/"):
        raise ValueError("a path in a backup is absolute, such as /etc/passwd")
    if b"\0" in path:
        raise ValueError("a path must not contain a NUL")
    names = [name for name in path.split(b"/") if name not in (b"", b".")]
    if b".." in names:
        raise ValueError("a path in a backup must not contain ..")
    return names


def joined(names: list[bytes]) -> bytes:
    """Returns the path of these components."""
    return b"/" + b"/".join(names)


def outermost(paths: Sequence[bytes]) -> list[bytes]:
    """Returns the paths without duplicates and without those that are below another one; in their order."""
    split = {joined(components(path)): components(path) for path in paths}
    above = {tuple(names) for names in split.values()}
    return [path for path, names in split.items() if not any(tuple(names[:depth]) in above for depth in range(len(names)))]


class Tree(Closing):
    """The files of one open backup.

    Every method raises the kernel's OSError: ENOENT, ENOTDIR, and ELOOP or ENOTDIR if a component of the path is a symlink, EXDEV
    for a mount in the backup; and ValueError for an invalid path.
    """

    def __init__(self, subvolume: Path) -> None:
        """Opens the backup whose subvolume is at that path. Raises OSError if it or its `data` is missing or a symlink."""
        with ClosingFd(os.open(subvolume, FOLDER)) as outer:
            self._take(os.open(DATA, FOLDER, dir_fd=outer))

    @classmethod
    def of_folder(cls, folder: Path, *, with_mounts: bool = False) -> Self:
        """Opens the files below a folder that is not a backup; `with_mounts`: including those of filesystems mounted there. Raises
        OSError.
        """
        tree = cls.__new__(cls)
        tree._take(os.open(folder, FOLDER))
        tree._with_mounts = with_mounts
        return tree

    def _take(self, root: int) -> None:
        self._root = root
        self._with_mounts = False
        self.device = os.fstat(root).st_dev
        """The device number of the backup's subvolume: an entry with another one does not belong to the backup."""

    def owns(self, device: int) -> bool:
        """Returns True if the device belongs to the backup or folder, and not to a mount that does not count.

        If the backup is deleted, its device number changes; its files exist as long as this is open.
        """
        return self._with_mounts or device == self.device or device == os.fstat(self._root).st_dev

    def close(self) -> None:
        """Closes the tree; it cannot be used afterwards."""
        os.close(self._root)

    def open_folder(self, names: list[bytes]) -> int:
        """Opens the folder with these components."""
        fd = open_folder(self._root, names)
        if self.owns(os.fstat(fd).st_dev):
            return fd
        os.close(fd)
        raise OSError(errno.EXDEV, "another filesystem is mounted there")

    def folder(self, path: bytes) -> ClosingFd:
        """Opens the folder at `path`, for a `with`."""
        return ClosingFd(self.open_folder(components(path)))

    def stat(self, path: bytes) -> Entry:
        """Returns the entry at `path`; a symlink is not followed."""
        names = components(path)
        if not names:
            return entry_of(b"/", os.fstat(self._root), None)
        with self.folder(joined(names[:-1])) as above:
            return read_entry(above, names[-1], joined(names))

    def names(self, path: bytes) -> list[bytes]:
        """Returns the names in the folder at `path`, in byte order."""
        return list(self.each_name(path))

    def each_name(self, path: bytes) -> Iterator[bytes]:
        """Yields the names one by one, so that they are not all in memory."""
        with self.folder(path) as fd:
            return names_in(fd)

    def list(self, path: bytes) -> Iterator[Entry]:
        """Lists the folder at `path`, in the filesystem's order."""
        names = components(path)
        with self.folder(path) as fd:
            yield from _entries(fd, joined(names).rstrip(b"/"))

    def open_file(self, path: bytes) -> int:
        """Opens the plain file at `path`, for reading. Raises OSError; EINVAL if it is not a plain file."""
        names = components(path)
        if not names:
            raise IsADirectoryError(errno.EISDIR, "Is a directory")
        with self.folder(joined(names[:-1])) as above:
            return open_plain(names[-1], above)


_KEPT_OPEN, _EVERY = 32, 32


class DataUnreadable(OperatorError):
    """The files of a backup cannot be read: its `data` is damaged, missing, or not a folder."""


def tree_of_backup(backup: Path) -> Tree:
    """Opens a Tree for callers that continue with other backups. Raises DataUnreadable."""
    try:
        return Tree(backup)
    except OSError as error:
        raise DataUnreadable(
            f"the data of {backup.parent.name}@{backup.name} cannot be read: {error.strerror}",
            "check the kernel's messages (dmesg) and `backupd scrub`; if it is a copy, check the server that it comes from",
        ) from None


def require_nothing_mounted(backup: Path, path: bytes = b"/") -> None:
    """Raises DataUnreadable if something is mounted in the backup, at or below `path`: the mount hides files of the backup, and a
    program would take its files for those of the backup.
    """
    top = Path(os.path.realpath(backup), DATA, os.fsdecode(path).strip("/"))
    if target := next((mount.target for mount in mounts() if mount.target.is_relative_to(top)), None):
        where = f"{backup.parent.name}@{backup.name}"
        raise DataUnreadable(f"a mount in {where} hides files: {printable(str(target))}", "unmount it first")


class Descent:
    """The open folders from the start of a walk to its present position.

    Only the deepest ones and each thirty-second of the others are kept open, because a host may nest folders deeper than a process
    may have descriptors. A folder to return to is opened again from the nearest open one above it, through no symlink.
    """

    def __init__(self, tree: Tree, path: bytes) -> None:
        self._names = components(path)
        self._above = b"".join(b"/" + name for name in self._names)
        self._top = len(self._names)
        self._open: list[int | None] = [tree.open_folder(self._names)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        while self._open:
            self._close()

    @property
    def path(self) -> bytes:
        """Returns the path of the present folder."""
        return self._above or b"/"

    @property
    def fd(self) -> int:
        """Returns a descriptor of the present folder, until the next step."""
        fd = self._open[-1]
        return self._open_anew() if fd is None else fd

    def path_of(self, name: bytes) -> bytes:
        """Returns the path of a name in the present folder."""
        return self._above + b"/" + name

    def read_entry(self, name: bytes) -> Entry:
        """Returns the entry of a name in the present folder."""
        return read_entry(self.fd, name, self._above + b"/" + name)

    def enter(self, name: bytes) -> None:
        """Goes one step down."""
        self.enter_open(os.open(name, FOLDER, dir_fd=self.fd), name)

    def enter_open(self, fd: int, name: bytes) -> None:
        """Goes one step down, into the open folder of that name."""
        self._open.append(fd)
        self._names.append(name)
        self._above += b"/" + name
        far = len(self._open) - _KEPT_OPEN - 1
        if far > 0 and far % _EVERY and (old := self._open[far]) is not None:
            os.close(old)
            self._open[far] = None

    def leave(self) -> None:
        """Goes one step up."""
        self._close()
        if self._open:
            self._above = self._above[: -len(self._names.pop()) - 1]

    def _open_anew(self) -> int:
        """Reopens the folders below the nearest open one: the walk will pass through all of them."""
        number, fd = next((number, fd) for number, fd in reversed(list(enumerate(self._open))) if fd is not None)
        for depth in range(number + 1, len(self._open)):
            fd = self._open[depth] = open_inner(fd, self._names[self._top + depth - 1])
        return fd

    def _close(self) -> None:
        if (fd := self._open.pop()) is not None:
            os.close(fd)


_ENCODING = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()  # os.fsencode takes three times as long


def names_in(folder: int) -> Iterator[bytes]:
    """Yields the names in an open folder, in byte order. The folder is read at once; the names of a very large one are not all in
    memory.
    """
    with os.scandir(folder) as entries:
        names = [entry.name.encode(*_ENCODING) for entry in islice(entries, IN_MEMORY)]
        if len(names) == IN_MEMORY:
            return ordered(chain(names, (os.fsencode(entry.name) for entry in entries)))[1]
    names.sort()
    return iter(names)


def _entries(fd: int, above: bytes) -> Iterator[Entry]:
    for name in os.listdir(fd):
        raw = os.fsencode(name)
        yield read_entry(fd, raw, above + b"/" + raw)


def read_entry(folder: int, name: bytes, path: bytes) -> Entry:
    """Returns the entry of a name in an open folder, without following a symlink; `path` is its path in the backup."""
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    target = os.readlink(name, dir_fd=folder) if stat.S_ISLNK(status.st_mode) else None
    return entry_of(path, status, target)


def entry_of(path: bytes, status: os.stat_result, target: bytes | None) -> Entry:
    """Returns the entry for the result of a stat."""
    return Entry(
        path=path,
        kind=KINDS[stat.S_IFMT(status.st_mode)],
        size=status.st_size,
        allocated=status.st_blocks * 512,
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
        mtime=status.st_mtime_ns,
        inode=status.st_ino,
        links=status.st_nlink,
        device=status.st_dev,
        target=target,
        rdev=status.st_rdev,
        changed=status.st_ctime_ns,
    )


def open_plain(name: bytes, folder: int) -> int:
    """Opens a plain file by its name in an open folder. Raises OSError; EINVAL for any other type.

    Opening a device or a fifo may have effects. So the inode is first obtained without opening it (O_PATH), checked, and then
    exactly that inode is opened, whatever its name refers to by then.
    """
    with ClosingFd(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)) as held:
        if not stat.S_ISREG(os.fstat(held).st_mode):
            raise OSError(errno.EINVAL, "not a plain file")
        return os.open(f"/proc/self/fd/{held}", _READ)


def open_seen_direct(name: bytes, folder: int) -> int:
    """Opens a file with O_DIRECT. Its subvolume is read-only, so it is still a plain file, as just checked. Raises OSError."""
    return os.open(name, _READ | os.O_NOFOLLOW | os.O_DIRECT, dir_fd=folder)


_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOATIME | os.O_CLOEXEC


def deepest(tree: Tree, names: Sequence[bytes]) -> tuple[Entry, int]:
    """Returns the deepest existing entry on the path, and how many of the names lead to it, in one walk down. Raises OSError if it
    cannot be read.
    """
    last, depth, folder = tree.stat(b"/"), 0, tree.open_folder([])
    try:
        for name in names:
            last, depth = read_entry(folder, name, b""), depth + 1
            if last.kind != "folder" or not tree.owns(last.device) or depth == len(names):
                break
            inner = os.open(name, FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
    except OSError as error:
        if error.errno not in NOT_THERE:
            raise
    finally:
        os.close(folder)
    return replace(last, path=joined(list(names[:depth]))), depth
