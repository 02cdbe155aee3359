"""Commands of a stream of `btrfs send`, as bytes: complete ones, whatever their content is.

Written from btrfs's documentation of the stream alone, without importing btrkeep.
"""

import struct
from collections.abc import Iterable
from uuid import UUID


def crc32c(data: bytes) -> int:
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc


def command(which: int, *attributes: tuple[int, bytes]) -> bytes:
    return _of(which, _fields(attributes))


def _with_data(which: int, *attributes: tuple[int, bytes], data: bytes) -> bytes:
    """Appends data. From version 2 on, the length of the last attribute, the data, is the rest of the command's length."""
    return _of(which, _fields(attributes) + struct.pack("<H", 19) + data)


def _fields(attributes: Iterable[tuple[int, bytes]]) -> bytes:
    return b"".join(struct.pack("<HH", kind, len(value)) + value for kind, value in attributes)


def _of(which: int, content: bytes) -> bytes:
    checksum = crc32c(struct.pack("<IHI", len(content), which, 0) + content)
    return struct.pack("<IHI", len(content), which, checksum) + content


def subvolume(path: bytes, uuid: str) -> bytes:
    return command(1, (15, path), (1, UUID(uuid).bytes), (2, number(5)))


def file(path: bytes, content: bytes, version: int = 1) -> bytes:
    return command(3, (15, path), (3, number(300))) + write(path, content, version)


def write(path: bytes, content: bytes, version: int = 1) -> bytes:
    where = (15, path), (18, number(0))
    return _with_data(15, *where, data=content) if version > 1 else command(15, *where, (19, content))


def symlink(path: bytes, target: bytes) -> bytes:
    return command(8, (15, path), (3, struct.pack("<Q", 301)), (17, target))


def number(value: int) -> bytes:
    return struct.pack("<Q", value)


def clone(path: bytes, uuid: str, source: bytes, length: int = 4096, *, at: int = 0) -> bytes:
    into = ((15, path), (18, number(at)), (24, number(length)))
    return command(16, *into, (20, UUID(uuid).bytes), (21, number(5)), (22, source), (23, number(0)))


def truncate(path: bytes, size: int) -> bytes:
    return command(17, (15, path), (4, number(size)))


def node(path: bytes, mode: int, device: int = 0) -> bytes:
    return command({0o010000: 6}.get(mode & 0o170000, 5), (15, path), (3, number(9)), (5, number(mode)), (8, number(device)))


def attribute(path: bytes, name: bytes, value: bytes) -> bytes:
    return command(13, (15, path), (13, name), (14, value))


def reserve(path: bytes, length: int, *, at: int = 0, mode: int = 0) -> bytes:
    return command(23, (15, path), (25, struct.pack("<I", mode)), (18, number(at)), (4, number(length)))


def encoded(
    path: bytes, data: bytes, *, length: int, whole: int, offset: int = 0, compression: int = 1, encryption: int = 0, at: int = 0
) -> bytes:
    kinds = ((30, struct.pack("<I", compression)), (31, struct.pack("<I", encryption)))
    sizes = ((18, number(at)), (27, number(length)), (28, number(whole)), (29, number(offset)))
    return _with_data(25, (15, path), *sizes, *kinds, data=data)
