"""Files that appear completely or not at all: they are written beside their place and then moved; and the exchange of two names."""

import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from btrkeep.errors import OperatorError

STDOUT = "-"


@contextmanager
def whole_file(name: str, *, durable: bool = False, mode: int | None = None) -> Iterator[BinaryIO]:
    """Yields a file to write to. After an error there is no new file, and an old one of that name is unchanged.

    `name` may be "-", standard output. A device or a pipe (/dev/null, /dev/stdout) is written at the end, when the content is
    complete; a link remains and its target is replaced. `durable`: synced to disk before it gets its name. `mode`: replaces the
    mode of the old file or of the umask. Raises OperatorError if the file cannot be written, also for an OSError within the
    context, and if its path contains a link that another user owns.
    """
    if name != STDOUT:
        require_own_links(Path(name))
    try:
        if name == STDOUT or _is_special(Path(name)):
            buffer = io.BytesIO()
            yield buffer
            with buffer.getbuffer() as data:  # the buffer cannot be freed while a view exists
                _write_out(name, data)
        else:
            path = Path(os.path.realpath(name)) if Path(name).is_symlink() else Path(name)  # a link created since is replaced
            with _beside(path, durable, mode) as file:
                yield file
    except BrokenPipeError:  # its reader has ended
        raise OperatorError("the program that reads the output has ended") from None
    except OSError as error:
        raise cannot_write(name, error) from None


def require_own_links(path: Path) -> None:
    """Raises OperatorError if a folder in the path, or the file itself, is a symlink that neither root nor this user owns.

    Such a link in a folder that all users may write to could redirect a file of root to any place.
    """
    absolute = path.absolute()
    for place in (*reversed(absolute.parents), absolute):
        try:
            status = place.lstat()
        except OSError:
            return
        if stat.S_ISLNK(status.st_mode) and status.st_uid not in (0, os.geteuid()):
            raise OperatorError(f"{path} cannot be written: {place} is a symlink of another user", "name another file")


def cannot_write(name: str, error: OSError) -> OperatorError:
    """Returns the error for a file that cannot be written."""
    folder = Path(name).parent
    if isinstance(error, FileNotFoundError) and not folder.is_dir():
        return OperatorError(f"{name} cannot be written: there is no folder {folder}", "create it, or name another file")
    if isinstance(error, IsADirectoryError):
        return OperatorError(f"{name} cannot be written: it is a folder", "name a file in it")
    hint = "check the free space with `df`" if error.errno in (28, 122) else "name another file"
    return OperatorError(f"{name} cannot be written: {error.strerror}", hint)


def _is_special(path: Path) -> bool:
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(kind):
        raise IsADirectoryError
    return not stat.S_ISREG(kind)


def _write_out(name: str, data: memoryview) -> None:
    if name == STDOUT:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        with Path(name).open("wb") as file:
            file.write(data)


@contextmanager
def _beside(path: Path, durable: bool, mode: int | None) -> Iterator[BinaryIO]:
    if mode is None and path.exists():
        mode = stat.S_IMODE(path.stat().st_mode)
    beside = path.with_name(f".{path.name[:200]}.{os.urandom(4).hex()}")
    descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            if mode is not None:
                os.fchmod(descriptor, mode)
            yield cast(BinaryIO, file)
            file.flush()
            if durable:
                os.fsync(descriptor)
        beside.rename(path)
    except BaseException:  # including Ctrl-C: never leave a partial file
        beside.unlink(missing_ok=True)
        raise


_AT_FDCWD, _EXCHANGE = -100, 2


def exchange(path: Path, other: Path) -> None:
    """Exchanges two names atomically: both exist at all times. Raises OSError."""
    import ctypes  # other users of this module do not need it

    if ctypes.CDLL(None, use_errno=True).renameat2(_AT_FDCWD, os.fsencode(path), _AT_FDCWD, os.fsencode(other), _EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(other))
