"""The files of one backup, opened and listed without ever leaving it: every name in it is an untrusted host's, every symlink too.

A path is the host's own, absolute, in bytes: b"/etc/passwd". What is b"/" is the folder `data` of the backup.
"""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from backupd.beneath import FILE, FOLDER, open_folder
from backupd.record import DATA

KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a backup. `size` is bytes, `allocated` those that are on disk as `du` counts them, `mtime` nanoseconds."""

    path: bytes
    """Absolute, as the host has it."""
    kind: str
    """One of KINDS' words."""
    size: int
    allocated: int
    mode: int
    """Permission bits, with setuid, setgid and sticky."""
    uid: int
    gid: int
    mtime: int
    inode: int
    links: int
    device: int
    """Of the subvolume that it is in; with `inode` what tells two names of one file from two files."""
    target: bytes | None = None
    """What a symlink says; None for all others."""
    rdev: int = 0

    @property
    def name(self) -> bytes:
        """The last component; b"/" for the root."""
        return self.path.rsplit(b"/", 1)[-1] or b"/"


def components(path: bytes) -> list[bytes]:
    """The names that a path is made of; slashes at its end and doubled ones do not count, and neither does ".".

    Raises ValueError for "..", for a NUL, and for a path that is not absolute.
    """
    if not path.startswith(b"/"):
        raise ValueError("a path in a backup is absolute, such as /etc/passwd")
    if b"\0" in path:
        raise ValueError("a path has no NUL in it")
    names = [name for name in path.split(b"/") if name not in (b"", b".")]
    if b".." in names:
        raise ValueError("a path in a backup has no .. in it")
    return names


def joined(names: list[bytes]) -> bytes:
    """The path of those names."""
    return b"/" + b"/".join(names)


class Tree:
    """The files of one backup, open. Every method raises OSError as the kernel has it: ENOENT, ENOTDIR, and ELOOP or ENOTDIR where
    a component on the way is a symlink; and ValueError for what is no path.
    """

    def __init__(self, subvolume: Path) -> None:
        """Opens the backup whose subvolume is at that path. Raises OSError when it or its `data` is missing or a symlink."""
        outer = os.open(subvolume, FOLDER)
        try:
            self._root = os.open(DATA, FOLDER, dir_fd=outer)
        finally:
            os.close(outer)

    def close(self) -> None:
        """Nothing of it can be used any more."""
        os.close(self._root)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @contextmanager
    def folder(self, path: bytes) -> Iterator[int]:
        """A descriptor of the folder at `path`, for as long as the context lasts."""
        fd = open_folder(self._root, components(path))
        try:
            yield fd
        finally:
            os.close(fd)

    def stat(self, path: bytes) -> Entry:
        """The entry at `path`, a symlink as itself."""
        names = components(path)
        if not names:
            return entry_of(b"/", os.fstat(self._root), None)
        with self.folder(joined(names[:-1])) as above:
            return _look(above, names[-1], joined(names))

    def list(self, path: bytes) -> Iterator[Entry]:
        """What is in the folder at `path`, in the order that the filesystem has it."""
        names = components(path)
        with self.folder(path) as fd:
            yield from _entries(fd, joined(names).rstrip(b"/"))

    def open_file(self, path: bytes) -> int:
        """A descriptor of the plain file at `path`, for reading. Raises OSError; EINVAL when it is anything but a plain file."""
        names = components(path)
        if not names:
            raise IsADirectoryError(21, "Is a directory")
        with self.folder(joined(names[:-1])) as above:
            return open_plain(names[-1], above)

    def walk(self, path: bytes, skip: Callable[[Entry], bool] = lambda _: False) -> Iterator[Entry]:
        """The entry at `path` and all below it, a folder before what is in it, names in the order of their bytes.

        What `skip` says yes to is given, but not entered. Memory: the names of one folder at a time on each level.
        """
        first = self.stat(path)
        yield first
        if first.kind != "folder" or skip(first):
            return
        with self.folder(path) as fd:
            yield from _walk(fd, first.path.rstrip(b"/"), skip)


def _walk(fd: int, above: bytes, skip: Callable[[Entry], bool]) -> Iterator[Entry]:
    for name in sorted(os.fsencode(name) for name in os.listdir(fd)):
        entry = _look(fd, name, above + b"/" + name)
        yield entry
        if entry.kind == "folder" and not skip(entry):
            inner = os.open(name, FOLDER, dir_fd=fd)
            try:
                yield from _walk(inner, entry.path, skip)
            finally:
                os.close(inner)


def _entries(fd: int, above: bytes) -> Iterator[Entry]:
    for name in os.listdir(fd):
        raw = os.fsencode(name)
        yield _look(fd, raw, above + b"/" + raw)


def _look(folder: int, name: bytes, path: bytes) -> Entry:
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    target = os.readlink(name, dir_fd=folder) if stat.S_ISLNK(found.st_mode) else None
    return entry_of(path, found, target)


def entry_of(path: bytes, found: os.stat_result, target: bytes | None) -> Entry:
    """The entry that a stat describes."""
    return Entry(
        path=path,
        kind=KINDS[stat.S_IFMT(found.st_mode)],
        size=found.st_size,
        allocated=found.st_blocks * 512,
        mode=stat.S_IMODE(found.st_mode),
        uid=found.st_uid,
        gid=found.st_gid,
        mtime=found.st_mtime_ns,
        inode=found.st_ino,
        links=found.st_nlink,
        device=found.st_dev,
        target=target,
        rdev=found.st_rdev,
    )


def open_plain(name: bytes, folder: int) -> int:
    """A descriptor of a plain file by its name in an open folder. Raises OSError; EINVAL when it is anything else.

    It is looked at before it is opened, and again after: opening a device or a fifo may do something.
    """
    if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        raise OSError(22, "no plain file")
    fd = os.open(name, os.O_RDONLY | FILE, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(22, "no plain file")
    return fd
