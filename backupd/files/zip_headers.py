"""Builds everything around a member's data in a zip: its header before it, the sizes after it, its record in the index. Reads
nothing.

APPNOTE.TXT of PKWARE, with Info-ZIP's extra fields for times and owners. Python's zipfile keeps an object of a kilobyte or more for
each name until the end, and a host may have millions: here the index is bytes, which the caller stores.
"""

import errno
import struct
import time
from dataclasses import dataclass

from backupd.files.tree import Entry

_FORMATS = {"file": 0o100000, "folder": 0o040000, "symlink": 0o120000}
KINDS = tuple(_FORMATS)
_FULL, _FULL_COUNT, _LONGEST = 0xFFFFFFFF, 0xFFFF, 0xFFFF
_LARGE = 1 << 31
_UTF8, _SIZES_AFTER = 0x800, 0x8
_STORED, _DEFLATED = 0, 8
_UNIX = 3 << 8


@dataclass(frozen=True, slots=True)
class ZipMember:
    """One name of a zip."""

    entry: Entry
    """The name in the backup."""
    name: bytes
    """The name in the zip."""
    packed: bool
    """True if its data is deflated, and its sizes follow the data."""

    @property
    def large(self) -> bool:
        """Returns True if its sizes need eight bytes."""
        return self.entry.size >= _LARGE


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a member's data."""

    crc: int = 0
    """CRC-32 of the data."""
    packed: int = 0
    """Bytes in the zip."""
    size: int = 0
    """Bytes when unpacked."""


def member(entry: Entry, name: bytes) -> ZipMember:
    """Returns the member for an entry. Raises OSError for a path that is too long for a zip."""
    shown = zip_name(name).encode() + (b"/" if entry.kind == "folder" else b"")
    if len(shown) > _LONGEST:
        raise OSError(errno.ENAMETOOLONG, "a path is too long for a zip")
    return ZipMember(entry, shown, entry.kind == "file" and entry.size > 0)


def header(zip_member: ZipMember, sizes: Sizes) -> bytes:
    """Returns the header before the data. `sizes` are not known yet for deflated members."""
    extra = _extra(zip_member.entry)
    shown = sizes
    if zip_member.packed and zip_member.large:
        extra, shown = struct.pack("<HHQQ", 1, 16, 0, 0) + extra, Sizes(0, _FULL, _FULL)
    words = (
        0x04034B50,
        _version(zip_member.large),
        *_flags_and_method(zip_member),
        *_dos_time(zip_member.entry),
        shown.crc,
        shown.packed,
        shown.size,
    )
    return struct.pack("<IHHHHHIIIHH", *words, len(zip_member.name), len(extra)) + zip_member.name + extra


def trailer(zip_member: ZipMember, sizes: Sizes) -> bytes:
    """Returns the record of sizes that follows deflated data."""
    return struct.pack("<IIQQ" if zip_member.large else "<IIII", 0x08074B50, sizes.crc, sizes.packed, sizes.size)


def record(zip_member: ZipMember, sizes: Sizes, offset: int) -> bytes:
    """Returns the record for the index; `offset` is the position of the header."""
    wide = [value for value in (sizes.size, sizes.packed, offset) if value >= _FULL]
    extra = (struct.pack(f"<HH{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b"") + _extra(zip_member.entry)
    size, packed, at = (min(value, _FULL) for value in (sizes.size, sizes.packed, offset))
    version = _version(zip_member.large or bool(wide))
    mode = (zip_member.entry.mode | _FORMATS[zip_member.entry.kind]) << 16 | (0x10 if zip_member.entry.kind == "folder" else 0)
    words = (
        0x02014B50,
        _UNIX | version,
        version,
        *_flags_and_method(zip_member),
        *_dos_time(zip_member.entry),
        sizes.crc,
        packed,
        size,
    )
    return struct.pack("<IHHHHHHIIIHHHHHII", *words, len(zip_member.name), len(extra), 0, 0, 0, mode, at) + zip_member.name + extra


def end(count: int, begun: int, length: int) -> bytes:
    """Returns the end of the archive, after an index of `count` records and `length` bytes at the position `begun`."""
    records = b""
    if count >= _FULL_COUNT or begun >= _FULL or length >= _FULL:
        records = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, _UNIX | 45, 45, 0, 0, count, count, length, begun)
        records += struct.pack("<IIQI", 0x07064B50, 0, begun + length, 1)
    few = min(count, _FULL_COUNT)
    return records + struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, few, few, min(length, _FULL), min(begun, _FULL), 0)


def zip_name(name: bytes) -> str:
    """Returns a name for a zip: bytes that are not UTF-8 become %FF, because a zip has only text; and a backslash becomes %5C,
    because Windows takes it for a slash, so that a host could choose where a file named ..\\x is extracted.
    """
    text = name.decode("utf-8", "surrogateescape").replace("\\", "%5C")
    if text.isascii():
        return text
    return "".join(f"%{ord(char) - 0xDC00:02X}" if 0xDC80 <= ord(char) <= 0xDCFF else char for char in text)


def _version(wide: bool) -> int:
    return 45 if wide else 20


def _flags_and_method(zip_member: ZipMember) -> tuple[int, int]:
    """Returns the flags and the compression method."""
    return (0 if zip_member.name.isascii() else _UTF8) | (
        _SIZES_AFTER if zip_member.packed else 0
    ), _DEFLATED if zip_member.packed else _STORED


def _dos_time(entry: Entry) -> tuple[int, int]:
    """Returns time and date, in UTC because a zip has no zones. The range is 1980 to 2107."""
    moment = time.gmtime(min(max(_seconds(entry), 315532800), 4354819198))
    clock = moment.tm_hour << 11 | moment.tm_min << 5 | moment.tm_sec // 2
    return clock, (moment.tm_year - 1980) << 9 | moment.tm_mon << 5 | moment.tm_mday


def _extra(entry: Entry) -> bytes:
    """Returns time and owner in the extra fields of Info-ZIP."""
    times, seconds = b"", _seconds(entry)
    if -(2**31) <= seconds < 2**31:
        times = struct.pack("<HHBl", 0x5455, 5, 1, seconds)
    return times + struct.pack("<HHBBLBL", 0x7875, 11, 1, 4, entry.uid, 4, entry.gid)


def _seconds(entry: Entry) -> int:
    return entry.mtime // 10**9
