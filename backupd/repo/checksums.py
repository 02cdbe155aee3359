"""`checksums` of a host: the SHA-256 of each of its files when it was last read, for all of its backups in one file. A file is
identified by inode number, time of its last change on this server (ctime) and size. No host can choose these, and a snapshot keeps
them, so one record is valid for every backup that has the file. The records are sorted, and found in the mapped file without
reading all of it: a host may have ten million. Each record has its own checksum; an invalid record is ignored.

SHA256SUMS, beside backup.json, has the checksums of some files of a backup, made right after they were fetched. It has the format
of `sha256sum`, so `sha256sum -c SHA256SUMS` in the backup's folder compares without btrkeep. It is in the subvolume, and so is
copied with it to another pool, where inode numbers differ.
"""

import os
import re
import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from backupd.repo.backup_json import DATA
from btrkeep.checkpoints import Checkpoint
from btrkeep.fs.file_data import settle
from btrkeep.pool.atomic import write_pieces_atomically

SUMS = "SHA256SUMS"
_DATA = DATA.encode()
_LINE = re.compile(rb"(\\?)([0-9a-f]{64})  " + re.escape(_DATA) + rb"(/.*)", re.DOTALL)
_ESCAPES = {b"\\": b"\\\\", b"\n": b"\\n", b"\r": b"\\r"}
_MEANT = {escaped: plain for plain, escaped in _ESCAPES.items()}
_LARGEST = 64 << 20  # bytes; files written by btrkeep have at most 100,000 lines

LONGEST_HOLE = 64 << 20
"""Maximum bytes of holes in one of these files: reading zeros must end, even with a hostile list."""


@Checkpoint("SHA256SUMS replaced")
def write_sums(subvolume: Path, sums: Mapping[bytes, bytes]) -> None:
    """Replaces the file inherited from the base. Paths are absolute, as on the host. Raises OSError.

    Not synced, because a sync would take longer than computing the checksums: after a power cut within seconds the file may be
    empty, which is harmless.
    """
    (subvolume / SUMS).unlink(missing_ok=True)
    if not sums:
        return
    try:
        fd = os.open(subvolume / SUMS, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.writelines(_line(path, digest) for path, digest in sorted(sums.items()))
            file.flush()
            settle(fd)  # a later writeback would change the subvolume after its seal
    except OSError:
        (subvolume / SUMS).unlink(missing_ok=True)
        raise


def read_sums(subvolume: Path) -> dict[bytes, bytes]:
    """Returns SHA-256 by path; empty if the file is missing or cannot be read. Skips invalid lines."""
    sums: dict[bytes, bytes] = {}
    with suppress(OSError):
        fd = os.open(subvolume / SUMS, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            for line in file.read(_LARGEST).split(b"\n"):
                if parts := _LINE.fullmatch(line):
                    escaped, digest, path = parts.groups()
                    meant = re.sub(rb"\\[\\nr]", lambda match: _MEANT[match[0]], path) if escaped else path
                    sums[meant] = bytes.fromhex(digest.decode())
    return sums


def _line(path: bytes, digest: bytes) -> bytes:
    escaped = re.sub(rb"[\\\n\r]", lambda match: _ESCAPES[match[0]], path)
    return (b"\\" if escaped != path else b"") + digest.hex().encode() + b"  " + _DATA + escaped + b"\n"


CHECKSUMS = "checksums"
CHECKSUMS_LOG = "checksums.log"
_KEY = struct.Struct(">QQQ")
_REST = struct.Struct(">QI32s")
_CHECK = struct.Struct(">I")
_IN_BLOCK = 256
_IN_PIECE = 10_000  # records in a write
_LENGTH = _KEY.size + _REST.size + _CHECK.size
_MAGIC = b"btrkeep checksums 2\n".ljust(_LENGTH, b"\0")
_FORGOTTEN_AFTER = (
    3 * 365 * 86400 * 10**6
)  # microseconds: a file that was not read for that long is most likely in no backup any longer
_FEW = 50_000  # records: a file with fewer is rewritten every time, a larger one has a log for new records
_LONGEST_LOG = 200_000  # records, all in memory while the file is open
_DAMAGED, _DIFFERS = 1, 2
_WHOLE = (1 << 64) - 1

Key = bytes
NO_DIGEST = bytes(32)
"""The digest of a file that was never read completely."""


class ReadBefore(NamedTuple):
    """The record of one file: when it was last read (microseconds since 1970), whether it was damaged then, and its SHA-256.

    The digest of a damaged file is the one from before the damage; all zeros if there was none. `differs`: its content differed
    from the checksum of the run that fetched it. Only the backup of that run can prove that it is correct again.
    """

    at: int
    damaged: bool
    digest: bytes
    differs: bool = False


def key_of(inode: int, changed: int, size: int) -> Key:
    """Returns the key of a file; `changed` in nanoseconds."""
    return _KEY.pack(inode, changed & _WHOLE, size)


def changed_of(key: Key) -> int:
    """Returns the time of the file's last change, in nanoseconds."""
    changed: int = _KEY.unpack(key)[1]
    return changed


class Checksums:
    """The records of the host with that folder, as they were when this object was opened."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError. A file in another format counts as empty and is replaced; so does the part that cannot be read."""
        self._folder, self._fd, count = folder, -1, 0
        with suppress(FileNotFoundError):
            self._fd = os.open(folder / CHECKSUMS, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            if self._read(0, _LENGTH) == _MAGIC:
                count = os.fstat(self._fd).st_size // _LENGTH - 1
        self._blocks, self._count = range(0, count, _IN_BLOCK), count
        self._logged = _logged(folder / CHECKSUMS_LOG) if count else {}
        self._first = [self._read((start + 1) * _LENGTH, _KEY.size) for start in self._blocks]
        self._at_hand: tuple[int, list[bytes]] = (-1, [])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def find(self, key: Key) -> ReadBefore | None:
        """Returns the record of that file. Thread-safe."""
        if (logged := self._logged.get(key)) is not None:
            return logged
        number = bisect_right(self._first, key) - 1
        if number < 0:
            return None
        at_hand = self._at_hand  # other threads may replace the block
        if at_hand[0] != number:
            self._at_hand = at_hand = (number, self._block(number))
        records = at_hand[1]
        place = bisect_left(records, key)
        record = records[place] if place < len(records) else b""
        return _parsed(record) if record[: _KEY.size] == key else None

    def write(self, results: Mapping[Key, ReadBefore], now: int | None) -> None:
        """Adds these records; they are on disk when this returns. This open reader remains unchanged.

        A small file, or one with a long log, is replaced by one with all records. Drops records that are too old at `now`
        (microseconds since 1970); None: drops nothing.
        """
        if self._count > _FEW and len(self._logged) + len(results) <= _LONGEST_LOG:
            _add(self._folder / CHECKSUMS_LOG, results)
            return
        since = now - _FORGOTTEN_AFTER if now is not None else 0
        new = {key: read_before for key, read_before in {**self._logged, **results}.items() if read_before.at >= since}
        old = (self._block(number) for number in range(len(self._blocks)))
        write_pieces_atomically(self._folder / CHECKSUMS, _pieces(old, new, since))
        (self._folder / CHECKSUMS_LOG).unlink(missing_ok=True)  # left behind by a kill: the file already has its records

    def _block(self, number: int) -> list[bytes]:
        data = self._read((self._blocks[number] + 1) * _LENGTH, _IN_BLOCK * _LENGTH)
        return [data[start : start + _LENGTH] for start in range(0, len(data) - _LENGTH + 1, _LENGTH)]

    def _read(self, place: int, length: int) -> bytes:
        try:
            return os.pread(self._fd, length, place)
        except OSError:  # the file itself is damaged: its files are read again
            return b""


def _logged(path: Path) -> dict[Key, ReadBefore]:
    """Returns the added records, only the last of each file. Ignores a record that a kill or a full pool truncated."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}
    results: dict[Key, ReadBefore] = {}
    with os.fdopen(fd, "rb") as file, suppress(OSError):  # the log itself is damaged: its files are read again
        while len(record := file.read(_LENGTH)) == _LENGTH:
            if read_before := _parsed(record):
                results[record[: _KEY.size]] = read_before
    return results


@Checkpoint("checksums.log added to")
def _add(path: Path, results: Mapping[Key, ReadBefore]) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "ab") as file:
        whole = os.fstat(fd).st_size // _LENGTH * _LENGTH
        os.ftruncate(fd, whole)  # records after a partial one would not be found
        file.writelines(_record(key, read_before) for key, read_before in results.items())
        file.flush()
        os.fsync(fd)


def _record(key: Key, read_before: ReadBefore) -> bytes:
    flags = (_DAMAGED if read_before.damaged else 0) | (_DIFFERS if read_before.differs else 0)
    body = key + _REST.pack(max(0, read_before.at), flags, read_before.digest)
    return body + _CHECK.pack(zlib.crc32(body))


def _parsed(record: bytes) -> ReadBefore | None:
    body = record[: -_CHECK.size]
    if _CHECK.pack(zlib.crc32(body)) != record[-_CHECK.size :]:
        return None
    at, flags, digest = _REST.unpack(body[_KEY.size :])
    return ReadBefore(at, bool(flags & _DAMAGED), digest, bool(flags & _DIFFERS))


def _pieces(blocks: Iterator[list[bytes]], new: Mapping[Key, ReadBefore], since: int) -> Iterator[bytes]:
    """Yields the file in blocks: all new records, and the old ones that are not replaced.

    Leaves out an old record with an invalid checksum or older than `since`.
    """
    yield _MAGIC
    keys, start = sorted(new), 0
    for block in blocks:
        kept_records = {
            record[: _KEY.size]: record for record in block if record[: _KEY.size] not in new and _is_kept(record, since)
        }
        end = bisect_right(keys, max(kept_records), start) if kept_records else start
        yield _in_order(kept_records, keys[start:end], new)
        start = end
    for first in range(start, len(keys), _IN_PIECE):
        yield _in_order({}, keys[first : first + _IN_PIECE], new)


def _is_kept(record: bytes, since: int) -> bool:
    read_before = _parsed(record)
    return read_before is not None and read_before.at >= since


def _in_order(block_records: dict[Key, bytes], keys: Sequence[Key], new: Mapping[Key, ReadBefore]) -> bytes:
    for key in keys:
        block_records[key] = _record(key, new[key])
    return b"".join(block_records[key] for key in sorted(block_records))
