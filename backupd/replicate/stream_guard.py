"""Checks a stream of `btrfs send` from another machine before `btrfs receive` reads it.

Each command is a length, a number, a checksum and its data (fs/btrfs/send.h, Documentation/dev/dev-send-stream). One stream is one
subvolume, which gets our temporary name; it is the requested one, as a difference to the named parent; it has no second subvolume,
and nothing follows its end. `btrfs receive` parses the commands in between, within its cell. If it would find another parent than
the intended one, each command that names the parent gets another UUID.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from uuid import UUID

from btrkeep.errors import OperatorError

_MAGIC = b"btrfs-stream\0"
_VERSION = struct.Struct("<I")
_HEADER = len(_MAGIC) + _VERSION.size
_COMMAND = struct.Struct("<IHI")  # bytes that follow, number, crc32c
_ATTRIBUTE = struct.Struct("<HH")
_SUBVOL, _SNAPSHOT, _CLONE, _END, _NEWEST = 1, 2, 16, 21, 26
_UUID, _PATH, _CLONE_UUID = 1, 15, 20
_LONGEST = 1 << 24  # bytes of a command; the kernel's are below 200 KiB
_LONGEST_KEPT = 1 << 16  # of a command that is changed: it has at most two paths of 4096 bytes

_ASLEEP = "the stream was damaged in transit, or the other server was stopped or suspended: the next replication sends it again"
"""The kernel restarts a `btrfs send` that was stopped, after the data that it had written."""


class BadStream(OperatorError):
    """The stream is not the requested one, or not a stream at all."""


@dataclass(slots=True)
class StreamGuard:
    """Checks one stream piece by piece, and passes on the permitted parts."""

    uuid: str
    """UUID of the requested subvolume."""
    parent: str | None
    """The UUID of the parent of the difference; None: the stream is complete."""
    name: bytes
    """The name of the subvolume here."""
    newest: int
    """The newest version of the stream format that is accepted."""
    parent_mark: str | None = None
    """The UUID by which `btrfs receive` finds the parent here; None: the one in the stream."""
    whole: bool = False
    """True if the end of the stream has arrived."""
    _left: bytes = b""
    _skip: int = 0
    _begun: bool = False
    _named: bool = False

    def filter(self, piece: bytes) -> Iterator[bytes]:
        """Yields the permitted parts of the stream, in order. Raises BadStream."""
        data = self._left + piece if self._left else piece
        at = 0
        if not self._begun:
            if len(data) < _HEADER:
                self._left = data
                return
            self._require_header(data)
            at = _HEADER
        start = 0  # the bytes from here to `at` may pass
        while True:
            if self._skip:
                step = min(self._skip, len(data) - at)
                at, self._skip = at + step, self._skip - step
            if self._skip or len(data) - at < _COMMAND.size:
                break
            if self.whole:
                raise BadStream("data follows the end of the stream")
            length, number, checksum = _COMMAND.unpack_from(data, at)
            if length > _LONGEST or not 0 < number <= _NEWEST:
                raise BadStream(f"the stream has an unknown command ({number}, {length} bytes)", _ASLEEP)
            if self._named and number in (_SUBVOL, _SNAPSHOT):
                raise BadStream("the stream has more than one subvolume")
            if not self._named or (self.parent_mark and number == _CLONE):
                if length > _LONGEST_KEPT:  # gathering it in small pieces would take hours
                    raise BadStream(f"the stream has an unknown command ({number}, {length} bytes)", _ASLEEP)
                if len(data) - at < _COMMAND.size + length:
                    break
                changed = self._changed(number, data[at + _COMMAND.size : at + _COMMAND.size + length], checksum)
                yield data[start:at] + changed
                start = at = at + _COMMAND.size + length
                continue
            self.whole = number == _END
            at, self._skip = at + _COMMAND.size, length
        if self.whole and not self._skip and at < len(data):
            raise BadStream("data follows the end of the stream")
        self._left = data[at:]
        if at > start:
            yield data[start:at]

    def _require_header(self, data: bytes) -> None:
        if not data.startswith(_MAGIC):
            raise BadStream("this is not a stream of btrfs send")
        if not 0 < _VERSION.unpack_from(data, len(_MAGIC))[0] <= self.newest:
            raise BadStream("the stream has a version that was not requested")
        self._begun = True

    def _changed(self, number: int, payload: bytes, checksum: int) -> bytes:
        """Returns the first command with our name, and with the parent as it is found here. Raises BadStream.

        A wrong checksum stays wrong.
        """
        attributes = _attributes(payload)
        if not self._named:
            self._require_subvolume(number, attributes)
            self._named = True
            attributes[_PATH] = self.name
        if self.parent_mark and not _is_not(attributes.get(_CLONE_UUID), str(self.parent)):
            attributes[_CLONE_UUID] = UUID(self.parent_mark).bytes
        content = b"".join(_ATTRIBUTE.pack(kind, len(value)) + value for kind, value in attributes.items())
        checksum ^= _checksum(number, payload) ^ _checksum(number, content)
        return _COMMAND.pack(len(content), number, checksum) + content

    def _require_subvolume(self, number: int, attributes: Mapping[int, bytes]) -> None:
        """Raises BadStream unless it is the requested subvolume."""
        if number != (_SNAPSHOT if self.parent else _SUBVOL):
            raise BadStream("the stream does not begin with the requested subvolume")
        if _is_not(attributes.get(_UUID), self.uuid):
            raise BadStream("the stream contains another subvolume")
        if self.parent and _is_not(attributes.get(_CLONE_UUID), self.parent):
            raise BadStream("the stream is a difference to another subvolume")
        if _PATH not in attributes:
            raise BadStream("the stream's subvolume has no name")


def _is_not(value: bytes | None, uuid: str) -> bool:
    return value is None or len(value) != 16 or str(UUID(bytes=value)) != uuid


def _attributes(payload: bytes) -> dict[int, bytes]:
    attributes, at = {}, 0
    while at < len(payload):
        if len(payload) - at < _ATTRIBUTE.size:
            raise BadStream("the stream is damaged")
        kind, length = _ATTRIBUTE.unpack_from(payload, at)
        at += _ATTRIBUTE.size
        if len(payload) - at < length or kind in attributes:
            raise BadStream("the stream is damaged")
        attributes[kind] = payload[at : at + length]
        at += length
    return attributes


def _checksum(number: int, payload: bytes) -> int:
    """Returns the command's crc32c, Castagnoli's, as in btrfs: it starts with 0 and is not inverted."""
    crc = 0
    for byte in _COMMAND.pack(len(payload), number, 0) + payload:
        crc = crc >> 8 ^ _CRCS[(crc ^ byte) & 0xFF]
    return crc


def _crc_of(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_CRCS = [_crc_of(byte) for byte in range(256)]
