"""The format of a stream of `btrfs send`: its commands and their attributes, from a hostile host.

The layout is that of Documentation/dev/dev-send-stream of btrfs. The checksum of each command is not verified: ssh has one of its
own, and in Python it takes 100 ns for each byte.
"""

import struct
from uuid import UUID

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, BinaryIO

BAD_STREAM, DOES_NOT_FIT, NOT_ENCODED, CUT, SERVER_FAULT, OVER_LIMIT = 3, 4, 5, 6, 7, 8
"""Exit statuses: it is no valid stream; the folder has not what the stream expects; compressed data cannot be written as it is;
the stream ends too early; this server could not write; a limit is exceeded."""

MAGIC = b"btrfs-stream\0"
VERSION = struct.Struct("<I")
COMMAND = struct.Struct("<IHI")  # bytes that follow, number, crc32c
NEWEST = 2
LONGEST = 1 << 24  # bytes of a command; the kernel's are below 200 KiB
LONGEST_PATH, LONGEST_NAME, LONGEST_XATTR = 4095, 255, 1 << 16
LARGEST = (1 << 63) - 1

SUBVOL, SNAPSHOT, END, FILEATTR = 1, 2, 21, 24
A_UUID, A_CTRANSID, A_SIZE, A_MODE, A_UID, A_GID, A_RDEV, A_MTIME, A_ATIME = 1, 2, 4, 5, 6, 7, 8, 10, 11
A_XATTR_NAME, A_XATTR_DATA, A_PATH, A_PATH_TO, A_PATH_LINK, A_OFFSET, A_DATA = 13, 14, 15, 16, 17, 18, 19
A_CLONE_UUID, A_CLONE_CTRANSID, A_CLONE_PATH, A_CLONE_OFFSET, A_CLONE_LEN = 20, 21, 22, 23, 24
A_FALLOCATE_MODE = 25
A_FILE_LEN, A_UNENCODED_LEN, A_UNENCODED_OFFSET, A_COMPRESSION, A_ENCRYPTION = 27, 28, 29, 30, 31
NEWEST_ATTRIBUTE = 31
TIME = struct.Struct("<qI")


class StreamError(Exception):
    """Ends the program with a status and one line."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def bad(text: str) -> StreamError:
    return StreamError(BAD_STREAM, text)


def shown(path: bytes) -> str:
    return ascii(path.decode("utf-8", "replace"))[1:-1][:300]


def parsed(payload: bytes, version: int) -> "dict[int, Any]":
    """Returns the attributes of a command by their kind. From version 2 on, data are last and have no length."""
    attributes: dict[int, Any] = {}
    at, end = 0, len(payload)
    while at < end:
        is_data = version > 1 and end - at >= 2 and payload[at] == A_DATA and not payload[at + 1]
        if end - at < 4 and not is_data:
            raise bad("a command is cut")
        kind = payload[at] | payload[at + 1] << 8
        if not 0 < kind <= NEWEST_ATTRIBUTE or kind in attributes:
            raise bad(f"a command has an unknown attribute ({kind})")
        if is_data:
            attributes[kind] = memoryview(payload)[at + 2 :]
            break
        length = payload[at + 2] | payload[at + 3] << 8
        at += 4
        if end - at < length:
            raise bad("a command is cut")
        attributes[kind] = payload[at : at + length]
        at += length
    return attributes


def number(attributes: "dict[int, Any]", kind: int, most: int = LARGEST) -> int:
    """Returns an attribute of 8 bytes."""
    value = attributes[kind]
    if len(value) != 8:
        raise bad(f"a number has {len(value)} bytes")
    result = int.from_bytes(value, "little")
    if result > most:
        raise bad(f"a number is too large: {result}")
    return result


def small(attributes: "dict[int, Any]", kind: int) -> int:
    """Returns an attribute of 4 bytes; 0 if it is missing."""
    value = attributes.get(kind, bytes(4))
    if len(value) != 4:
        raise bad(f"a number has {len(value)} bytes")
    return int.from_bytes(value, "little")


def identity(attributes: "dict[int, Any]", uuid: int, ctransid: int) -> str:
    """Returns UUID:CTRANSID of a subvolume."""
    if len(attributes[uuid]) != 16:
        raise bad("a UUID is too short")
    return f"{UUID(bytes=attributes[uuid])}:{number(attributes, ctransid, (1 << 64) - 1)}"


def moment(value: bytes) -> int:
    """Returns a time in nanoseconds."""
    if len(value) != TIME.size:
        raise bad("a time has a wrong length")
    seconds, nanoseconds = TIME.unpack(value)
    if nanoseconds >= 1_000_000_000:
        raise bad("a time is invalid")
    return int(seconds) * 1_000_000_000 + int(nanoseconds)


def read(stream: "BinaryIO", size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise StreamError(CUT, "the stream ends too early")
    return data


def read_commands(stream: "BinaryIO") -> "Iterator[tuple[int, dict[int, Any], int]]":
    """Yields each command before the end: its number, its attributes, and the bytes read so far.

    Raises StreamError, also if the end is missing or something follows it.
    """
    header = stream.read(len(MAGIC) + VERSION.size)
    if len(header) < len(MAGIC) + VERSION.size:
        raise StreamError(CUT, "the host sent no stream")
    if not header.startswith(MAGIC):
        raise bad("this is not a stream of btrfs send")
    (version,) = VERSION.unpack_from(header, len(MAGIC))
    if not 0 < version <= NEWEST:
        raise bad(f"the stream has the unknown version {version}")
    received = len(header)
    while True:
        length, command, _ = COMMAND.unpack(read(stream, COMMAND.size))
        if length > LONGEST:
            raise bad(f"the stream has an unknown command ({command}, {length} bytes)")
        payload = read(stream, length)
        received += COMMAND.size + length
        if command == END:
            break
        yield command, parsed(payload, version), received
    if stream.read(1):
        raise bad("data follows the end of the stream")
