"""The data of a plain file, piece by piece, its holes left out."""

import errno
import os
from collections.abc import Iterator

PIECE = 1 << 20
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
