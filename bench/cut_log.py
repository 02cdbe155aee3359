"""All writes and flushes of several disks in one log, and the state of the disks at each flush.

It works on disks of bench/cut_cache.py like the kernel's dm-log-writes and its `replay-log`: each state that a flush has made
safe is restored, in its order. The disks with a cache show the states between two flushes.

An entry is a head and its data: a write (the number of the disk, the offset), a flush (of a disk), or a mark (the number of a step,
and its next action, as text). The log of the kernel's own dm-log-writes is read as if it had such entries: see `of_kernel`.
"""

import fcntl
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_HEAD = struct.Struct(">BBQI")  # kind, disk, offset or step, length of the data
_WRITE, _FLUSH, _MARK = range(3)
_FICLONE = 0x40049409
# Documentation/admin-guide/device-mapper/log-writes.rst: numbers are little-endian, and count sectors unless said.
_KERNEL_HEAD = struct.Struct("<QQQI")  # magic, version, number of entries, bytes of a sector
_KERNEL_ENTRY = struct.Struct("<QQQQ")  # sector, number of sectors, flags, bytes of a mark's text
_KERNEL_MAGIC, _KERNEL_VERSION = 0x6A736677736872, 1
_KERNEL_FLUSH, _KERNEL_FUA, _KERNEL_DISCARD = 1, 2, 4

Entry = tuple[int, int, int, bytes]  # kind, disk, offset or step, data


def clone(source: Path, copy: Path) -> None:
    """Makes a copy on the same btrfs that shares the present data of the source."""
    with source.open("rb") as read, copy.open("wb") as written:
        fcntl.ioctl(written, _FICLONE, read.fileno())


class Recorder:
    """Appends the writes of one disk to the log; the lock of the disks is held."""

    def __init__(self, log: BinaryIO, disk: int) -> None:
        self._log, self._disk = log, disk

    def write(self, offset: int, data: bytes) -> None:
        """Appends a write."""
        self._add(_WRITE, offset, data)

    def flush(self) -> None:
        """Appends a flush."""
        self._add(_FLUSH, 0, b"")

    def mark(self, step: int, moment: str) -> None:
        """Appends a mark: the writes after it belong to that step."""
        self._add(_MARK, step, moment.encode())

    def _add(self, kind: int, number: int, data: bytes) -> None:
        self._log.write(_HEAD.pack(kind, self._disk, number, len(data)) + data)


def base_of(image: Path) -> Path:
    """Returns the path of the image's state at the start of its record."""
    return image.with_name(f"{image.name}-base")


def record(log: Path, images: Sequence[Path]) -> list[Recorder]:
    """Returns a recorder for each image; IMAGE-base is the present state of the image."""
    for image in images:
        clone(image, base_of(image))
    file = log.open("wb", buffering=0)
    return [Recorder(file, number) for number in range(len(images))]


@dataclass(frozen=True, slots=True)
class Flush:
    """The `number`th flush of the log, the step to which it belongs, and the last message of the step before it."""

    number: int
    step: int
    moment: str


def flushes(log: Path) -> Iterator[Flush]:
    """Yields all flushes after the first mark."""
    number, step, moment = 0, -1, ""
    for kind, _, offset, data in entries(log):
        number += kind == _FLUSH
        if kind == _MARK:
            step, moment = offset, data.decode()
        elif kind == _FLUSH and step >= 0:
            yield Flush(number, step, moment)


def flushes_of(log: Iterator[Entry]) -> int:
    """Returns the number of flushes of a log."""
    return sum(kind == _FLUSH for kind, *_ in log)


class Replay:
    """The images in the states of the log, from the first flush to the last."""

    def __init__(self, log: Iterator[Entry], bases: Sequence[Path]) -> None:
        self._entries, self._flushed = log, 0
        self._images = [base.with_name(f"{base.name}-replayed") for base in bases]
        for base, image in zip(bases, self._images, strict=True):
            clone(base, image)

    def copies(self, number: int, copies: Sequence[Path]) -> None:
        """Makes copies of the images at that flush, which is later than that of the previous call."""
        files = [image.open("r+b", buffering=0) for image in self._images]
        while self._flushed < number:
            kind, disk, offset, data = next(self._entries)
            self._flushed += kind == _FLUSH
            if kind == _WRITE:
                files[disk].seek(offset)
                files[disk].write(data)
        for file in files:
            file.close()
        for image, copy in zip(self._images, copies, strict=True):
            clone(image, copy)


def entries(log: Path) -> Iterator[Entry]:
    """Yields the entries of a log; a truncated last entry is left out."""
    with log.open("rb") as file:
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            kind, disk, offset, length = _HEAD.unpack(head)
            if len(data := file.read(length)) == length:
                yield kind, disk, offset, data


def of_kernel(log: Path, sizes: Sequence[int]) -> Iterator[Entry]:
    """Yields the same for a log of dm-log-writes, on one device that contains disks of these sizes one after the other.

    The kernel logs a write when a flush has made it safe, or at once if it was written through (FUA); that counts as a flush.
    """
    with log.open("rb") as file:
        magic, version, count, sector = _KERNEL_HEAD.unpack(file.read(_KERNEL_HEAD.size))
        assert (magic, version) == (_KERNEL_MAGIC, _KERNEL_VERSION), f"{log} is no log of dm-log-writes"
        file.seek(sector)
        for _ in range(count):
            start, number, flags, _ = _KERNEL_ENTRY.unpack_from(file.read(sector))
            length = number * sector
            data = bytes(length) if flags & _KERNEL_DISCARD else file.read(length)
            if data:
                disk, offset = _place(start * sector, sizes)
                yield _WRITE, disk, offset, data
            if flags & (_KERNEL_FLUSH | _KERNEL_FUA):
                yield _FLUSH, 0, 0, b""


def _place(offset: int, sizes: Sequence[int]) -> tuple[int, int]:
    """Returns the disk that contains this position, and the offset on it."""
    for disk, size in enumerate(sizes):
        if offset < size:
            return disk, offset
        offset -= size
    raise ValueError(f"{offset} bytes behind the last disk")
