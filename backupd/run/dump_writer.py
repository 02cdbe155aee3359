"""Writes a stream into an open file, as a process of its own, so that its writes count as those of the host's transfer.

`python -I -S dump_writer.py STREAM FILE`, both descriptors. The file may have the data of the last backup: only pages that differ
are written, so that the others stay shared. Prints the bytes received and written, from time to time and at the end.
"""

import errno
import os
import sys
import time

_CHUNK, _PAGE = 1 << 18, 1 << 12  # bytes
_OFTEN = 1.0  # seconds


def write_stream(stream: int, file: int) -> tuple[int, int]:
    """Returns the bytes received and written. Raises OSError."""
    received = written = 0
    shown = time.monotonic()
    ended = False
    while not ended:
        chunk = bytearray()
        while len(chunk) < _CHUNK and not ended:
            data = os.read(stream, _CHUNK - len(chunk))
            chunk += data
            ended = not data
            if time.monotonic() - shown > _OFTEN:
                shown = time.monotonic()
                _show(received + len(chunk), written)
        written += _write_changes(file, bytes(chunk), received)
        received += len(chunk)
    os.ftruncate(file, received)
    return received, written


def _write_changes(file: int, chunk: bytes, offset: int) -> int:
    """Writes the pages that differ from the file's; returns their bytes."""
    before = _before(file, len(chunk), offset)
    if before == chunk:
        return 0
    differing = [at for at in range(0, len(chunk), _PAGE) if before[at : at + _PAGE] != chunk[at : at + _PAGE]]
    written = 0
    while differing:
        start = end = differing.pop(0)
        while differing and differing[0] == end + _PAGE:
            end = differing.pop(0)
        run = chunk[start : end + _PAGE]
        while run:
            count = os.pwrite(file, run, offset + start)
            run, start, written = run[count:], start + count, written + count
    return written


def _before(file: int, size: int, offset: int) -> bytes:
    """Returns what the file has there. Data that the disk cannot read is cut off with all behind it, so it is written again."""
    try:
        before = os.pread(file, size, offset)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        before = b""
    if len(before) < size:  # the end of the file, or the rest of it cannot be read
        before = before[: len(before) // _PAGE * _PAGE]
        os.ftruncate(file, offset + len(before))
    return before


def _show(received: int, written: int) -> None:
    sys.stdout.write(f"{received} {written}\n")
    sys.stdout.flush()


def main(stream: int, file: int) -> int:
    """Returns the exit status."""
    try:
        _show(*write_stream(stream, file))
    except OSError as error:
        sys.stderr.write(f"{error.strerror or error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
