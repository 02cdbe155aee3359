"""A sender that speaks rsync's protocol itself, for the attacks of tests/beds/attacks.py.

It uses protocol 31, which all versions since rsync 3.1 understand, without incremental recursion, so there is one list. Its answer
does not depend on the requested file: all files have the same content.

The wire: whole numbers are little-endian; a `varint` has the number of its bytes in the highest bits of the first. After the
greeting all goes in frames (four bytes: a length, and 7 and a kind in the highest one), from both sides.
"""

import hashlib
import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from stat import S_IFBLK, S_IFCHR, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG
from typing import IO

DATA, INFO, ERROR, NOOP = 0, 2, 1, 42  # kinds of frames
SAFE_LIST, NO_XATTR_SAVING, SEED_ORDER, NEGOTIATE = 1 << 3, 1 << 4, 1 << 5, 1 << 7  # flags of the greeting
TOP, EXTENDED, LONG_NAME, NO_CONTENT, HARD_LINK, FIRST_LINK = 1 << 0, 1 << 2, 1 << 6, 1 << 8, 1 << 9, 1 << 12  # of a name
BASIS_TYPE, XNAME, XATTR, TRANSFER = 1 << 11, 1 << 12, 1 << 8, 1 << 15  # flags of the receiver's requests
DONE, DELETED = -1, -3  # instead of a file's number
ENTRY_TIME = 1_700_000_000
PIECE = 1 << 15


@dataclass(frozen=True)
class Listed:
    """A name of the list. `linked`: the number in the list of its first hard link; its own number for the first one."""

    name: bytes
    mode: int = S_IFREG | 0o644
    size: int = 0
    target: bytes = b""
    device: tuple[int, int] = (0, 0)
    linked: int | None = None
    xattrs: tuple[tuple[bytes, bytes], ...] = ()


class Wire:
    """Both directions of the connection, in frames once `framed`."""

    def __init__(self) -> None:
        os.set_blocking(0, True)
        os.set_blocking(1, True)
        self.framed = False
        self.copied_to: IO[bytes] | None = None
        self._in = self._out = b""
        self._before = {"in": [-1, 1], "out": [-1, 1]}  # the last numbers of files: positive and negative ones

    def read(self, size: int) -> bytes:
        while len(self._in) < size:
            self.flush()
            piece = self._frame() if self.framed else self._raw(size - len(self._in))
            self._in += piece
        taken, self._in = self._in[:size], self._in[size:]
        return taken

    def _frame(self) -> bytes:
        head = int.from_bytes(self._raw(4), "little")
        content = self._raw(head & 0xFFFFFF)
        return content if head >> 24 == 7 + DATA else b""

    def _raw(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = os.read(0, size - len(data))
            if not piece:
                sys.exit(0)  # the other side has closed the connection
            data += piece
        return data

    def write(self, data: bytes) -> None:
        self._out += data
        if len(self._out) > PIECE:
            self.flush()

    def flush(self) -> None:
        data, self._out = self._out, b""
        if data and self.framed:
            self.frame(DATA, data)
        else:
            self.raw(data)

    def frame(self, kind: int, data: bytes) -> None:
        self.raw((7 + kind << 24 | len(data)).to_bytes(4, "little") + data)

    def raw(self, data: bytes) -> None:
        if self.copied_to:
            self.copied_to.write(data)
        while data:
            data = data[os.write(1, data) :]

    def read_int(self, size: int = 4) -> int:
        return int.from_bytes(self.read(size), "little", signed=size == 4)

    def write_int(self, number: int, size: int = 4) -> None:
        self.write((number & (1 << 8 * size) - 1).to_bytes(size, "little"))

    def read_varint(self) -> int:
        first = self.read(1)[0]
        extra = (8 - (first ^ 0xFF).bit_length()) if first & 0x80 else 0
        rest = self.read(extra)
        return int.from_bytes(rest + bytes([first & (1 << 8 - extra) - 1]), "little") if extra else first

    def write_varint(self, number: int, least: int = 1) -> None:
        """`least`: bytes that are always there; more than one is a `varlong`."""
        number &= 0xFFFFFFFF if least == 1 else (1 << 64) - 1
        data = number.to_bytes(8, "little").rstrip(b"\0").ljust(least, b"\0")
        extra = len(data) - least
        if data[-1] >= 1 << 7 - extra:
            extra += 1
            data += b"\0"
        first = data[-1] | (0xFF << 8 - extra & 0xFF)
        self.write(bytes([first]) + data[:-1])

    def read_number(self) -> int:
        """A file's number: mostly how much more it is than the one before."""
        first, negative = self.read(1)[0], False
        if first == 0:
            return DONE
        if first == 0xFF:
            first, negative = self.read(1)[0], True
        number = self._before["in"][negative] + first
        if first == 0xFE:
            pair = self.read(2)
            number = self._before["in"][negative] + int.from_bytes(pair, "big")
            if pair[0] & 0x80:
                number = int.from_bytes(pair[1:] + self.read(2) + bytes([pair[0] & 0x7F]), "little")
        self._before["in"][negative] = number
        return -number if negative else number

    def write_number(self, number: int) -> None:
        if number == DONE:
            return self.write(b"\0")
        self.write(b"\xff" if number < 0 else b"")
        self._before["out"][number < 0] = abs(number)
        data = abs(number).to_bytes(4, "little")
        return self.write(bytes([0xFE, data[3] | 0x80, *data[:3]]))


class Sender:
    """One conversation. An attack may replace any of its parts."""

    flags = SAFE_LIST | NO_XATTR_SAVING | SEED_ORDER
    content = b"of the host"

    def __init__(self, words: list[str], number: int) -> None:
        self.wire = Wire()
        self.source = words[-1].partition("/./")[2].strip("/").encode()
        self.number = number
        self._acls_said = self._no_xattrs_at = 0
        self._xattr_lists = 0

    # --- what an attack is made of

    def listed(self) -> Iterable[Listed]:
        """Returns the entries below the source path."""
        return ()

    def above(self) -> Iterable[Listed]:
        """The source path and what is above it; of a folder that is asked for without --relative itself alone."""
        if not self.source:
            return (Listed(b".", S_IFDIR | 0o755),)
        parts = self.source.split(b"/")
        return (Listed(b"/".join(parts[:depth]), S_IFDIR | 0o755) for depth in range(1, len(parts) + 1))

    def pieces(self, blocks: int) -> Iterator[bytes | int]:
        """Yields the content of a file: data, or numbers of the existing blocks, of which there are that many."""
        del blocks
        yield self.content

    def digest(self) -> bytes:
        return hashlib.md5(self.content, usedforsecurity=False).digest()

    def in_front(self) -> None:
        """Sends nothing before the list; attacks may."""

    def after_list(self) -> None:
        """Sends nothing before the first answer; attacks may."""

    def after_all(self) -> None:
        """Does nothing after all data was sent; attacks may."""

    # --- the protocol

    def run(self) -> None:
        wire = self.wire
        wire.write_int(31)
        wire.read_int()
        self.greet()
        wire.write_int(1234)  # the seed of checksums
        wire.flush()
        wire.framed = True
        while size := wire.read_int():
            wire.read(size)  # a filter rule
        self.in_front()
        for listed in itertools.chain(self.above(), self.listed()):
            self.list_one(listed)
        wire.write(b"\0")
        wire.flush()
        self.after_list()
        self.answer()
        self.after_all()

    def greet(self) -> None:
        self.wire.write_varint(self.flags)

    def list_one(self, listed: Listed) -> None:
        wire, is_folder = self.wire, S_IFMT(listed.mode) == S_IFDIR
        flags = TOP | EXTENDED | (LONG_NAME if len(listed.name) > 255 else 0)
        if is_folder and self.source and not (listed.name == self.source or listed.name.startswith(self.source + b"/")):
            flags |= NO_CONTENT
        elif is_folder and listed.name != b".":
            flags &= ~TOP
        if listed.linked is not None:
            flags |= HARD_LINK | (FIRST_LINK if listed.linked < 0 else 0)
        wire.write_int(flags, 2)
        wire.write_varint(len(listed.name)) if len(listed.name) > 255 else wire.write_int(len(listed.name), 1)
        wire.write(listed.name)
        if listed.linked is not None and listed.linked >= 0:
            wire.write_varint(listed.linked)
        else:
            self._describe(listed)
        if S_IFMT(listed.mode) != S_IFLNK:
            for kind in range(1 + is_folder):  # a folder has a default one too
                self._say_no_acl(kind)
        self._say_xattrs(listed)

    def _describe(self, listed: Listed) -> None:
        wire = self.wire
        wire.write_varint(listed.size, 3)
        wire.write_varint(ENTRY_TIME, 4)
        wire.write_int(listed.mode)
        wire.write_varint(0)  # owner
        wire.write_varint(0)  # group
        if S_IFMT(listed.mode) in (S_IFCHR, S_IFBLK):
            wire.write_varint(listed.device[0])
            wire.write_varint(listed.device[1])
        if S_IFMT(listed.mode) == S_IFLNK:
            wire.write_varint(len(listed.target))
            wire.write(listed.target)

    def _say_no_acl(self, kind: int) -> None:
        """Sends an ACL without entries: described the first time, then by the number of the first one."""
        count, self._acls_said = self._acls_said & 1 << kind, self._acls_said | 1 << kind
        self.wire.write(b"\1" if count else b"\0\0")

    def _say_xattrs(self, listed: Listed) -> None:
        wire = self.wire
        if not listed.xattrs and self._no_xattrs_at:
            wire.write_varint(self._no_xattrs_at)
            return
        self._xattr_lists += 1
        if not listed.xattrs:
            self._no_xattrs_at = self._xattr_lists
        wire.write_varint(0)
        wire.write_varint(len(listed.xattrs))
        for name, value in listed.xattrs:
            wire.write_varint(len(name) + 1)
            wire.write_varint(len(value))
            wire.write(name + b"\0")
            wire.write(value if len(value) <= 32 else hashlib.md5(value, usedforsecurity=False).digest())

    def answer(self) -> None:
        """Answers requests until the receiver has completed all phases."""
        wire, phase = self.wire, 0
        while phase < 3:
            number = wire.read_number()
            if number == DONE:
                phase += 1
                if phase < 3:
                    wire.write_number(DONE)
            elif number == DELETED:
                self._deleted()
            else:
                self._answer_request(number)
        wire.write_number(DONE)
        for _ in range(5):
            wire.write_varint(1000, 3)  # statistics
        wire.flush()
        self._goodbye()
        wire.write_number(DONE)
        wire.flush()
        self._goodbye()

    def _goodbye(self) -> None:
        while self.wire.read_number() == DELETED:
            self._deleted()

    def _deleted(self) -> None:
        numbers = [self.wire.read_varint() for _ in range(5)]
        self.wire.write_number(DELETED)
        for number in numbers:
            self.wire.write_varint(number)

    def _answer_request(self, number: int) -> None:
        wire = self.wire
        flags = wire.read_int(2)
        echo = wire.read(1) if flags & BASIS_TYPE else b""
        if flags & XNAME:
            size = wire.read(1)
            length = size[0]
            if length & 0x80:
                size += wire.read(1)
                length = (length & 0x7F) << 8 | size[1]
            echo += size + wire.read(length)
        wanted = list(iter(wire.read_varint, 0)) if flags & XATTR else []
        sums: tuple[int, ...] = (0, 0, 0, 0)
        if flags & TRANSFER:
            sums = tuple(wire.read_int() for _ in range(4))  # blocks, their length, that of a checksum, the last one's length
            wire.read(sums[0] * (4 + sums[2]))
        wire.write_number(number)
        wire.write_int(flags, 2)
        wire.write(echo)
        if flags & XATTR:
            self.send_xattrs(wanted)
        if flags & TRANSFER:
            for value in sums:
                wire.write_int(value)
            self.send_content(sums[0])
            wire.write(self.digest())

    def send_xattrs(self, wanted: list[int]) -> None:
        value = next((listed.xattrs[0][1] for listed in self.listed() if listed.xattrs), b"")
        for step in wanted:
            self.wire.write_varint(step)
            self.wire.write_varint(len(value))
            self.wire.write(value)
        self.wire.write(b"\0")

    def send_content(self, blocks: int) -> None:
        for piece in self.pieces(blocks):
            if isinstance(piece, int):
                self.wire.write_int(-1 - piece)
            elif piece:
                self.wire.write_int(len(piece))
                self.wire.write(piece)
        self.wire.write_int(0)

    def below(self, name: bytes) -> bytes:
        return self.source + b"/" + name if self.source else name
