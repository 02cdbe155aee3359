"""Builds the headers of tar members: the ustar header, and pax records for what does not fit into it. Reads nothing.

POSIX.1-2001 (pax) with the keywords that GNU tar, star and libarchive share: SCHILY.xattr.* and SCHILY.acl.* for extended
attributes and ACLs, GNU.sparse.* (format 1.0) for holes. Python's tarfile cannot write holes, and accepts attributes only as text.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from zlib import adler32

from backupd.files.attributes import ACCESS, DEFAULT, acl_text
from backupd.files.tree import Entry
from backupd.files.walking import PlainFile
from btrkeep.fs.file_data import Run

BLOCK = 512
TYPES = {
    "file": b"0",
    "link": b"1",
    "symlink": b"2",
    "character device": b"3",
    "block device": b"4",
    "folder": b"5",
    "fifo": b"6",
    "pax": b"x",
}
_LARGEST = 0o7777777  # the largest number of seven octal digits
_LARGEST_SIZE = 0o77777777777
_NUMBERS = b"%07o\0%07o\0%07o\0%011o\0%011o\0"
_MAGIC = b"ustar\x0000" + bytes(64)  # owner and group only as numbers, without names
_BLANKS = 8 * ord(" ")
"""The value of the checksum's own field in the checksum."""
_FIRST_TIME, _FIRST_TIME_TOO_LATE = 10**18, (_LARGEST_SIZE + 1) * 10**9  # nanoseconds: times of ten digits of seconds fit
_AT_ONCE = 1000  # runs of a map
_ACLS = {ACCESS: b"SCHILY.acl.access", DEFAULT: b"SCHILY.acl.default"}


def member(entry: Entry, name: bytes, xattrs: Mapping[str, bytes], link: bytes | None = None) -> bytes:
    """Returns everything before the data of one member. `name` has no leading slash; `link` is the name of the member of which this
    one is a hard link.
    """
    if link is None and entry.kind == "file" and not xattrs and (usual := usual_file(entry, name)):
        return usual
    records = _records(entry, name, link if link is not None else entry.target or b"")
    records |= {} if link is not None else _attributes(xattrs)
    size = entry.size if entry.kind == "file" and link is None else 0
    kind = TYPES["link" if link is not None else entry.kind]
    return _pax(records) + _header(entry, _shown(name, entry.kind), kind, size, link or entry.target or b"")


def usual_file(file: Entry | PlainFile, name: bytes) -> bytes | None:
    """Returns the result of `member`, in a tenth of the time, for a regular file that needs only its time in a pax record; else
    None.
    """
    mtime, uid, gid, size = file.mtime, file.uid, file.gid, file.size
    fits = len(name) <= 100 and uid <= _LARGEST and gid <= _LARGEST and size <= _LARGEST_SIZE
    if not (fits and _FIRST_TIME <= mtime < _FIRST_TIME_TOO_LATE and name.isascii()):
        return None
    seconds, nanoseconds = divmod(mtime, 10**9)
    start = _NAME_AND_NUMBERS % (name, _ZEROS[len(name) :], file.mode, uid, gid, size, seconds)
    # Adler's lower half is 1 and the sum of all bytes: these 136 cannot reach its modulus.
    checksum = (adler32(start) & 0xFFFF) + _USUAL_SUM
    return _USUAL % (seconds, nanoseconds, start, checksum)


@dataclass(frozen=True, slots=True)
class DataMap:
    """The map of the data of a file of `size` bytes with holes, which is written before the data. `runs` yields the same at each
    call, because there may be millions.

    `data`: the bytes in `count` runs; `length`: the bytes of the map without its padding.
    """

    size: int
    runs: Callable[[], Iterator[Run]]
    data: int
    count: int
    length: int

    @classmethod
    def of(cls, size: int, runs: Callable[[], Iterator[Run]]) -> "DataMap":
        """Counts all runs. Raises the errors of `runs`."""
        data, count, length = 0, 0, 0
        for first, behind in _pairs(size, runs()):
            data, count, length = data + behind - first, count + 1, length + len(_line(first, behind))
        return cls(size, runs, data, count, length + len(b"%d\n" % count))

    def pieces(self) -> Iterator[bytes]:
        """Yields the map. Raises the errors of `runs`."""
        yield b"%d\n" % self.count
        lines = (_line(first, behind) for first, behind in _pairs(self.size, self.runs()))
        while piece := b"".join(islice(lines, _AT_ONCE)):
            yield piece
        yield padding(self.length)


def sparse_member(entry: Entry, name: bytes, xattrs: Mapping[str, bytes], data_map: DataMap) -> bytes:
    """Returns everything before the data of a file with holes, including the map of its data."""
    size = data_map.length + len(padding(data_map.length)) + data_map.data
    records = _records(entry, b"", b"", size) | _attributes(xattrs)
    records |= {b"GNU.sparse.major": b"1", b"GNU.sparse.minor": b"0", b"GNU.sparse.name": name}
    records[b"GNU.sparse.realsize"] = b"%d" % entry.size
    return _pax(records) + _header(entry, b"GNUSparseFile.0/" + name.rsplit(b"/", 1)[-1], TYPES["file"], size, b"")


def _pairs(size: int, runs: Iterator[Run]) -> Iterator[Run]:
    """Yields the runs, and the end of the file if it ends with a hole."""
    end = -1
    for first, end in runs:
        yield first, end
    if end < size:
        yield size, size


def _line(first: int, behind: int) -> bytes:
    return b"%d\n%d\n" % (first, behind - first)


def padding(size: int) -> bytes:
    """Returns the zeros that fill the last block of that many bytes."""
    return bytes(-size % BLOCK)


def _records(entry: Entry, name: bytes, link: bytes, size: int | None = None) -> dict[bytes, bytes]:
    """Returns the values that do not fit into the header, or that it represents less exactly."""
    size = entry.size if size is None and entry.kind == "file" else size or 0
    records = {b"mtime": b"%d.%09d" % divmod(entry.mtime, 10**9) if entry.mtime >= 0 else _negative(entry.mtime)}
    shown = _shown(name, entry.kind)
    texts = {b"path": shown, b"linkpath": link}
    records |= {key: text for key, text in texts.items() if len(text) > 100 or _is_foreign(text)}
    numbers = {b"uid": (entry.uid, _LARGEST), b"gid": (entry.gid, _LARGEST), b"size": (size, _LARGEST_SIZE)}
    return records | {key: b"%d" % number for key, (number, largest) in numbers.items() if number > largest}


def _negative(mtime: int) -> bytes:
    whole, rest = divmod(-mtime, 10**9)
    return b"-%d.%09d" % (whole, rest)


def _is_foreign(text: bytes) -> bool:
    """Returns True for UTF-8 beyond ASCII, which needs pax: names in the header are not converted."""
    if text.isascii():
        return False
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _attributes(xattrs: Mapping[str, bytes]) -> dict[bytes, bytes]:
    headers = {}
    for name, value in sorted(xattrs.items()):
        if name in _ACLS:
            headers[_ACLS[name]] = acl_text(value).encode("ascii")
        else:  # GNU tar's escapes: a record's keyword ends at the first "="
            raw = name.encode("utf-8", "surrogateescape").replace(b"%", b"%25").replace(b"=", b"%3D")
            headers[b"SCHILY.xattr." + raw] = value
    return headers


def _pax(records: Mapping[bytes, bytes]) -> bytes:
    data = b"".join(_record(keyword, value) for keyword, value in records.items())
    name = b"././@PaxHeader"
    return _block(name, 0o644, 0, 0, len(data), 0, TYPES["pax"], b"", 0) + data + padding(len(data))


def _record(keyword: bytes, value: bytes) -> bytes:
    """Returns LENGTH KEYWORD=VALUE newline; the length includes itself."""
    rest = len(keyword) + len(value) + 3
    length = rest + len(str(rest))
    if len(str(length)) != len(str(rest)):
        length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, keyword, value)


def _header(entry: Entry, name: bytes, kind: bytes, size: int, link: bytes) -> bytes:
    owner, group = (number if number <= _LARGEST else 0 for number in (entry.uid, entry.gid))
    shown = size if size <= _LARGEST_SIZE else 0
    seconds = min(max(0, entry.mtime // 10**9), _LARGEST_SIZE)
    return _block(name[:100], entry.mode, owner, group, shown, seconds, kind, link[:100], entry.rdev)


def _block(name: bytes, mode: int, uid: int, gid: int, size: int, mtime: int, kind: bytes, link: bytes, device: int) -> bytes:
    major, minor = (os.major(device), os.minor(device)) if kind in b"34" else (0, 0)
    numbers = _NUMBERS % (mode, uid, gid, size, mtime)
    end = kind + link.ljust(100, b"\0") + _MAGIC + b"%07o\0%07o\0" % (major, minor)
    checksum = sum(name) + sum(numbers) + sum(end) + _BLANKS
    return b"%b%b%06o\0 %b" % (name.ljust(100, b"\0"), numbers, checksum, end.ljust(BLOCK - 156, b"\0"))


def _shown(name: bytes, kind: str) -> bytes:
    """Returns the name for tar: a folder's name ends with a slash; that of the root is "./"."""
    name = name or b"."
    return name + b"/" if kind == "folder" else name


_ZEROS = bytes(100)
_NAME_AND_NUMBERS = b"%b%b" + _NUMBERS
_TIME_LENGTH = len(b"30 mtime=1234567890.123456789\n")
_TIME_PAX = _block(b"././@PaxHeader", 0o644, 0, 0, _TIME_LENGTH, 0, TYPES["pax"], b"", 0)
CUT_OFF = _block(b"././@PaxHeader", 0o644, 0, 0, BLOCK, 0, TYPES["pax"], b"", 0)
"""Announces records that do not follow: every program that reads it reports an unexpected end, and makes no file of it."""
_USUAL_END = (TYPES["file"] + bytes(100) + _MAGIC + b"0000000\x000000000\0").ljust(BLOCK - 156, b"\0")
_USUAL_SUM = sum(_USUAL_END) + _BLANKS - 1
_USUAL = b"".join((_TIME_PAX, b"30 mtime=%d.%09d\n", padding(_TIME_LENGTH), b"%b%06o\0 ", _USUAL_END))
