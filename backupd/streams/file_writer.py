"""Writes data of a stream to regular files below a folder: plain, compressed as it is, cloned, and holes.

Part of the applier's program (`applier`), so it imports only its neighbours.
"""

import errno
import fcntl
import os
import stat
import struct
from array import array

from backupd.streams import stream_format as wire
from backupd.streams.open_folders import Folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CLONE_RANGE, ENCODED_WRITE = 0x4020940D, 0x40809440  # linux/btrfs.h
UNRESVSP = 0x4030582B  # linux/falloc.h: punches a hole, like fallocate(2), which Python does not have
HOLE_ARGUMENTS = struct.Struct("=hh4xqq24x")  # type, SEEK_SET, offset, length
PUNCH_HOLE = 3  # of fallocate(2), with KEEP_SIZE
CLONE_ARGUMENTS = struct.Struct("=qQQQ")  # source descriptor, its offset, length, offset
ENCODED_ARGUMENTS = struct.Struct("=QQqQQQQII64x")  # iovec, count, offset, flags, length, unencoded length and offset, kinds
NOT_CLONED = {errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP}
NOT_AS_IT_IS = {errno.ENOTTY, errno.EINVAL, errno.EOPNOTSUPP}
"""Of an encoded write: an older kernel, or a pool without checksums."""
ZLIB, ZSTD = 1, 2  # linux/btrfs.h
LONGEST_EXTENT = 1 << 17  # bytes of compressed data, uncompressed
BLOCK = 4096  # the smallest sector of btrfs


class FileWriter:
    """Writes to regular files, and counts what changes."""

    def __init__(
        self,
        folder: int,
        base: int | None,
        parent: str | None,
        most_names: int | None,
        most_bytes: int | None,
        compression: bytes | None = None,
    ) -> None:
        self.here = Folders(folder)
        self.base = None if base is None else Folders(base)
        self.parent = parent
        self.own: str | None = None
        self.most_names, self.most_bytes = most_names, most_bytes
        self.compression = compression
        self.numbers = dict.fromkeys(
            ("files", "regular", "bytes", "created", "deleted", "transferred", "transferred_bytes", "literal", "matched"), 0
        )
        """Differences for `files`, `regular` and `bytes`; else counts, with the names of rsync's statistics."""
        self.new_bytes = 0
        self.not_kept = 0
        self.samples: list[str] = []
        self._path: bytes | None = None
        self._fd = self._size = self._links = 0
        self._has_data = False
        self._cut: int | None = None  # where `encoded_write` has cut the open file, until the stream does that too
        self._top_times = (0, 0)

    def _file(self, path: bytes) -> int:
        """Returns the descriptor of a regular file for writing."""
        if path == self._path:
            return self._fd
        self.close()
        folder, name = self.here.above(path)
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISREG(info.st_mode):
            raise wire.bad(f"{wire.shown(path)} is written, but is not a regular file")
        self._fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
        self._path, self._size, self._links, self._has_data = path, info.st_size, info.st_nlink, False
        return self._fd

    def close(self) -> None:
        """Closes the file that is being written, and counts it."""
        if self._path is None:
            return
        size = os.fstat(self._fd).st_size
        os.close(self._fd)
        path, self._path = self._path, None
        if self._cut is not None:  # an inline extent may have others behind it: unchanged ones are not in the stream
            raise wire.StreamError(wire.DOES_NOT_FIT, f"{wire.shown(path)} was cut, but does not end there on the host")
        self.numbers["bytes"] += (size - self._size) * self._links
        if self._has_data:
            self.numbers["transferred"] += 1
            self.numbers["transferred_bytes"] += size

    def _takes(self, size: int) -> None:
        self.new_bytes += size
        if self.most_bytes is not None and self.new_bytes > self.most_bytes:
            raise wire.StreamError(wire.OVER_LIMIT, f"bytes {self.new_bytes}")

    def write(self, path: bytes, attributes: "dict[int, Any]") -> None:
        data, offset = attributes[wire.A_DATA], wire.number(attributes, wire.A_OFFSET)
        file, size = self._file(path), len(data)
        self._takes(size)
        self._write_all(file, memoryview(data), offset)
        self._has_data = True
        self.numbers["literal"] += size

    def _write_all(self, file: int, data: memoryview, offset: int) -> None:
        while data:
            written = os.pwrite(file, data, offset)
            data, offset = data[written:], offset + written

    def encoded_write(self, path: bytes, attributes: "dict[int, Any]") -> None:
        if wire.small(attributes, wire.A_ENCRYPTION):
            raise wire.bad(f"{wire.shown(path)} is encrypted")
        length, whole = wire.number(attributes, wire.A_FILE_LEN), wire.number(attributes, wire.A_UNENCODED_LEN)
        if len(attributes[wire.A_DATA]) >= whole:  # of a small file: some kernels make and send such an extent, but none accepts it
            self._decoded_write(path, attributes, "the data is longer than uncompressed")
            return
        file, data = self._file(path), array("B")
        data.frombytes(attributes[wire.A_DATA])
        self._takes(len(data))
        end = wire.number(attributes, wire.A_OFFSET) + length
        if end % BLOCK and os.fstat(file).st_size > end:  # the kernel only accepts it at the end of a file; see `close`
            os.ftruncate(file, end)
            self._cut = end
        vector = array("Q", (data.buffer_info()[0], len(data)))
        words = ENCODED_ARGUMENTS.pack(
            vector.buffer_info()[0],
            1,
            wire.number(attributes, wire.A_OFFSET),
            0,
            length,
            whole,
            wire.number(attributes, wire.A_UNENCODED_OFFSET),
            wire.small(attributes, wire.A_COMPRESSION),
            0,
        )
        try:
            fcntl.ioctl(file, ENCODED_WRITE, words)
        except OSError as error:
            if error.errno == errno.ENOSPC:  # no free extent is large enough
                self._decoded_write(path, attributes, os.strerror(errno.ENOSPC))
                return
            if error.errno in NOT_AS_IT_IS:
                raise wire.StreamError(wire.NOT_ENCODED, f"{wire.shown(path)}: {error.strerror}") from None
            raise
        self._has_data = True
        self.numbers["literal"] += length

    def _decoded_write(self, path: bytes, attributes: "dict[int, Any]", why: str) -> None:
        """Writes compressed data uncompressed. Asks for a plain stream if it cannot be decoded here."""
        length, whole = wire.number(attributes, wire.A_FILE_LEN), wire.number(attributes, wire.A_UNENCODED_LEN, LONGEST_EXTENT)
        start = wire.number(attributes, wire.A_UNENCODED_OFFSET, LONGEST_EXTENT)
        # zlib takes 0 for "no limit"
        data = decoded(wire.small(attributes, wire.A_COMPRESSION), bytes(attributes[wire.A_DATA]), whole) if whole else None
        if data is None or start + length > whole:
            raise wire.StreamError(wire.NOT_ENCODED, f"{wire.shown(path)}: {why}")
        self._takes(length)
        part = memoryview(data.ljust(whole, b"\0"))[start : start + length]
        self._write_all(self._file(path), part, wire.number(attributes, wire.A_OFFSET))
        self._has_data = True
        self.numbers["literal"] += length

    def clone(self, path: bytes, attributes: "dict[int, Any]") -> None:
        """Shares data of a file of this subvolume, or of the parent."""
        file, source_path = self._file(path), attributes[wire.A_CLONE_PATH]
        of, offset = wire.identity(attributes, wire.A_CLONE_UUID, wire.A_CLONE_CTRANSID), wire.number(attributes, wire.A_OFFSET)
        start, length = wire.number(attributes, wire.A_CLONE_OFFSET), wire.number(attributes, wire.A_CLONE_LEN)
        if not length:
            raise wire.bad("an empty range is cloned")
        if of == self.own:
            tree = self.here
        elif self.base and of == self.parent:
            tree = self.base
        else:
            raise wire.bad("data of another subvolume is cloned")
        folder, name = tree.above(source_path)
        if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise wire.bad(f"{wire.shown(source_path)} is cloned, but is not a regular file")
        source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
        try:
            fcntl.ioctl(file, CLONE_RANGE, CLONE_ARGUMENTS.pack(source, start, length, offset))
        except OSError as error:
            if error.errno not in NOT_CLONED:
                raise
            self._copy(source, start, file, offset, length)
        finally:
            os.close(source)
        self._has_data = True
        self.numbers["matched"] += length

    def _copy(self, source: int, start: int, file: int, offset: int, length: int) -> None:
        while length:
            data = os.pread(source, min(length, 1 << 20), start)
            if not data:
                raise wire.StreamError(wire.DOES_NOT_FIT, "data beyond the end of a file is cloned")
            self._takes(len(data))
            self._write_all(file, memoryview(data), offset)
            start, offset, length = start + len(data), offset + len(data), length - len(data)

    def punch_hole(self, path: bytes, attributes: "dict[int, Any]") -> None:
        if wire.A_FALLOCATE_MODE not in attributes or wire.small(attributes, wire.A_FALLOCATE_MODE) != PUNCH_HOLE:
            raise wire.bad(f"{wire.shown(path)} would reserve space")
        words = HOLE_ARGUMENTS.pack(0, os.SEEK_SET, wire.number(attributes, wire.A_OFFSET), wire.number(attributes, wire.A_SIZE))
        fcntl.ioctl(self._file(path), UNRESVSP, words)

    def truncate(self, path: bytes, attributes: "dict[int, Any]") -> None:
        os.ftruncate(self._file(path), size := wire.number(attributes, wire.A_SIZE))
        self._cut = None if size == self._cut else self._cut


def decoded(kind: int, data: bytes, most: int) -> bytes | None:
    """Returns uncompressed data, at most that many bytes; None if it is invalid, or of a kind that cannot be decoded here.

    The library of zstd comes with btrfs-progs. `btrfs receive` uses it for the same purpose.
    """
    if kind == ZLIB:
        import zlib

        try:
            return zlib.decompressobj().decompress(data, most)
        except zlib.error:
            return None
    if kind != ZSTD:
        return None
    import ctypes

    try:
        library = ctypes.CDLL("libzstd.so.1")
    except OSError:
        return None
    for function in (library.ZSTD_findFrameCompressedSize, library.ZSTD_decompress):
        function.restype = ctypes.c_size_t
    size = library.ZSTD_findFrameCompressedSize(data, ctypes.c_size_t(len(data)))  # zeros follow up to the end of a sector
    if size > len(data):  # an error
        return None
    place = ctypes.create_string_buffer(most)
    length = library.ZSTD_decompress(place, ctypes.c_size_t(most), data, ctypes.c_size_t(size))
    return place.raw[:length] if length <= most else None
