"""The data of a plain file, read, copied and compared piece by piece, its holes left out."""

import ctypes
import errno
import os
from collections.abc import Iterator

PIECE = 1 << 20
_SYNC_FILE_RANGE_WRITE = 2
_libc = ctypes.CDLL(None)
_libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_NO_SENDFILE = (errno.EINVAL, errno.ENOSYS)
Run = tuple[int, int]  # from here, up to there: offsets in a file, bytes


def data_runs(fd: int, size: int, position: int = 0) -> Iterator[Run]:
    """Yields the runs of data from `position` up to `size`; holes and preallocated room are not data. Raises OSError."""
    while position < size and (position := _next_data(fd, position, size)) < size:
        end = min(os.lseek(fd, position, os.SEEK_HOLE), size)
        yield position, end
        position = end


def _next_data(fd: int, position: int, size: int) -> int:
    try:
        return os.lseek(fd, position, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:  # nothing but a hole up to the end
            raise
        return size


def pieces(fd: int, start: int, end: int) -> Iterator[bytes]:
    """The bytes from `start` up to `end`. Raises OSError, also when the file ends before."""
    while start < end:
        data = os.pread(fd, min(PIECE, end - start), start)
        if not data:
            raise OSError(errno.EIO, "the file is shorter than it says")
        yield data
        start += len(data)


def copy_run(source: int, copy: int, start: int, end: int) -> Iterator[int]:
    """Copies the bytes from `start` up to `end` to the same place of another open file; yields the number after each piece.

    The kernel copies them by itself (sendfile), in half of the time of a read and a write. Raises OSError, also when the source
    ends before.
    """
    os.lseek(copy, start, os.SEEK_SET)
    while start < end:
        try:
            number = os.sendfile(copy, source, start, min(PIECE, end - start))
        except OSError as error:
            if error.errno not in _NO_SENDFILE:
                raise
            number = os.write(copy, next(pieces(source, start, end)))
        if not number:
            raise OSError(errno.EIO, "the file is shorter than it says")
        yield number
        start += number


def send_run(source: int, stream: int, start: int, end: int) -> Iterator[int]:
    """Passes the bytes from `start` up to `end` to an open stream by the kernel (sendfile); yields the number after each piece.

    Raises nothing: it ends early at any error, and the rest must be read and written, which shows whose error it is.
    """
    while start < end:
        try:
            number = os.sendfile(stream, source, start, min(PIECE, end - start))
        except OSError:
            return
        if not number:
            return
        yield number
        start += number


def begin_writing(fd: int, start: int, end: int) -> None:
    """Has the disk begin to write a part of a file, so that a sync later waits for less. An error is that sync's to tell."""
    _libc.sync_file_range(fd, start, end - start, _SYNC_FILE_RANGE_WRITE)
