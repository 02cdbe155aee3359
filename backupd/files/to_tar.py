"""Restores paths of a backup into a tar file, which gets its name only when it is complete, or into a stream."""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from backupd.files.archive import ArchiveResult, SourceUnreadable, write_archive
from backupd.files.destination import PlaceOccupied, put
from backupd.files.restore_types import RestoreProgress, Tell
from backupd.files.spool import SpoolFull, SpoolTooLarge
from backupd.files.tree import Entry, Tree, entry_of
from backupd.files.walking import walk
from backupd.files.writing import remove_unfinished
from btrkeep.descriptors import ClosingFd, widen_pipe
from btrkeep.errors import DAMAGED, OperatorError, UsageError
from btrkeep.fs.file_data import send_run
from btrkeep.units import printable

_NO_SPACE = "free some space where the tar is written, and start again"
_HINTS = {
    errno.ENOSPC: _NO_SPACE,
    errno.EDQUOT: _NO_SPACE,
    errno.EROFS: "write the tar to another filesystem",
    errno.EFBIG: "raise the limit of file sizes (`ulimit -f`), use another filesystem, or restore fewer paths at a time",
}
_DAMAGED_HINT = "restore with --to, which restores all other files and names each unreadable one; or check `backupd damaged`"
_PREFIX = b".btrkeep-tar-"  # not the prefix of a restore's temporary names, which a later restore deletes as leftovers
_SMALL = 512  # bytes: pieces of an archive are larger, and the first must not wait for a full buffer


class _ProgressWriter:
    """An open file or pipe as the destination of a tar, which counts the bytes written to it."""

    def __init__(self, out: IO[bytes], tell: Tell) -> None:
        self._out = out
        self._tell = tell
        self._progress = RestoreProgress("writing")

    def write(self, data: bytes, /) -> None:
        """Writes data."""
        self._out.write(data)
        self._report(len(data))

    def send(self, fd: int, start: int, end: int) -> Iterator[int]:
        """Passes on a run of bytes of an open file in the kernel: see `send_run`."""
        self._out.flush()
        for number in send_run(fd, self._out.fileno(), start, end):
            self._report(number)
            yield number

    def _report(self, size: int) -> None:
        self._progress.size += size
        self._tell(self._progress)


def _write_tar(tree: Tree, paths: Sequence[bytes], out: IO[bytes], tell: Tell) -> ArchiveResult:
    writer = _ProgressWriter(out, tell)
    return write_archive(tree, paths, "tar", writer, writer.send)


@contextmanager
def _failures_reported() -> Iterator[None]:
    """Raises OperatorError for an error that makes a tar incomplete, except PlaceOccupied."""
    try:
        yield
    except PlaceOccupied:
        raise
    except BrokenPipeError:
        raise OperatorError(
            "the tar archive is incomplete: the reading program closed the pipe", "check that program's error message"
        ) from None
    except SpoolFull as error:
        hint = "free some space there, or set TMPDIR to another folder, and start again"
        raise OperatorError(f"the tar is incomplete: {error.strerror}", hint) from error
    except SpoolTooLarge as error:
        raise OperatorError(f"the tar is incomplete: {error.strerror}", "restore fewer paths at a time") from error
    except SourceUnreadable as error:
        if error.errno not in DAMAGED:
            raise
        path = printable(error.filename)
        raise OperatorError(f"the tar is incomplete: {path}: {error.strerror}", _DAMAGED_HINT) from error
    except OSError as error:  # of the place where it is written: the backup is not to blame
        hint = _HINTS.get(error.errno or 0, "check the filesystem where the tar is written, and the kernel's messages (dmesg)")
        raise OperatorError(f"the tar is incomplete: {error.strerror or error}", hint) from error


def write_stream(tree: Tree, paths: Sequence[bytes], fd: int, tell: Tell) -> ArchiveResult:
    """Writes the tar to an open descriptor, which stays open."""
    widen_pipe(fd)
    with _failures_reported(), _waiting(fd), os.fdopen(os.dup(fd), "wb", _SMALL) as out:
        return _write_tar(tree, paths, out, tell)


@contextmanager
def _waiting(fd: int) -> Iterator[None]:
    """In the context writes wait for the reader, also into a pipe that another program has opened with O_NONBLOCK."""
    waits = os.get_blocking(fd)
    os.set_blocking(fd, True)
    try:
        yield
    finally:
        os.set_blocking(fd, waits)


def total(tree: Tree, paths: Sequence[bytes]) -> tuple[int, int]:
    """Counts names and bytes of files, without writing anything."""
    names = size = 0
    for path in paths:
        for entry in walk(tree, path):
            names += not entry.left
            size += entry.entry.size if entry.entry.kind == "file" and not entry.left else 0
    return names, size


def write_file(tree: Tree, paths: Sequence[bytes], file: Path, replace: bool, tell: Tell) -> ArchiveResult:
    """Writes the tar as a file of mode 0600. Raises UsageError if the file exists and must not be replaced."""
    if file.is_dir() or (not replace and os.path.lexists(file)):
        raise UsageError(f"{file} already exists", "name another file, or add --overwrite=all")
    try:
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{file.parent}: {error.strerror}", "name a file in an existing folder") from None
    with ClosingFd(folder):
        return _written(folder, os.fsencode(file.name), replace, lambda out: _write_tar(tree, paths, out, tell))


def _written(folder: int, name: bytes, replace: bool, write: Callable[[IO[bytes]], ArchiveResult]) -> ArchiveResult:
    temporary, undeleted = _PREFIX + os.urandom(8).hex().encode("ascii"), dict[bytes, str]()
    try:
        with _failures_reported():
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
            with os.fdopen(fd, "wb", _SMALL) as out:
                done = write(out)
                out.flush()
                os.fsync(fd)
            put(folder, temporary, name, _existing(folder, name) if replace else None)
    except BaseException as error:
        remove_unfinished(folder, temporary, undeleted)
        if isinstance(error, PlaceOccupied):
            raise UsageError(f"{os.fsdecode(name)}: {error.strerror}", "name another file") from None
        if undeleted and isinstance(error, OperatorError):
            hint = f"{error.hint}; delete the temporary file {os.fsdecode(temporary)} beside the tar: btrkeep could not delete it"
            raise OperatorError(str(error), hint) from error
        raise
    return done


def _existing(folder: int, name: bytes) -> Entry | None:
    try:
        return entry_of(b"", os.stat(name, dir_fd=folder, follow_symlinks=False), None)
    except FileNotFoundError:
        return None
