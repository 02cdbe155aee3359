"""Whether a file is what a damaged one was, and how that is known."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from backupd.files.file_digest import FileRead, PlainSum, read_file
from backupd.files.tree import Entry
from backupd.repo.checksums import NO_DIGEST, Key, key_of
from btrkeep.errors import DAMAGED
from btrkeep.fs.sparse import PIECE, data_runs

_BLOCK = 4096


class RepairProof(StrEnum):
    """The proof that a copy has the content of the damaged file. The best proof is first."""

    CHECKSUM = "checksum"
    """It has the recorded SHA-256."""
    READABLE = "readable"
    """Nothing was recorded; size and time are the same, and so are all readable blocks."""
    TIME = "time"
    """Nothing was recorded and no block is readable; size and time are the same."""


@dataclass(frozen=True, slots=True)
class RecordedSums:
    """The recorded checksums of a file: `plain` as sha256sum computes it, `digest` as `backupd verify` does. None: not recorded."""

    plain: bytes | None
    digest: bytes | None

    @classmethod
    def of(cls, plain: bytes | None, digest: bytes) -> "RecordedSums":
        """`digest` may be NO_DIGEST."""
        return cls(plain, None if digest == NO_DIGEST else digest)

    @property
    def are_known(self) -> bool:
        """Returns True if anything is recorded."""
        return self.plain is not None or self.digest is not None

    def are_those_of(self, found: FileRead) -> bool:
        """Returns True if that file was read completely and matches the record. The checksum made by the run takes precedence."""
        if found.bad is not None:
            return False
        return found.plain == self.plain if self.plain is not None else found.digest == self.digest


def read_whole(fd: int, entry: Entry, sums: RecordedSums, goes_on: Callable[[], bool]) -> FileRead | None:
    """Reads an open file for such a comparison, and closes it; None when it was not to go on. Raises OSError that is no damage."""
    return read_file(fd, entry.path, entry.size, key(entry), goes_on, PlainSum() if sums.plain is not None else None)


def key(entry: Entry) -> Key:
    """Returns the key that identifies the file on this server."""
    return key_of(entry.inode, entry.changed, entry.size)


def equal_where_readable(bad: int, good: int, size: int, goes_on: Callable[[], bool]) -> int | None:
    """Returns how many bytes of the damaged file are readable, if the other file has the same bytes; None if they differ.

    Holes are zeros. Raises OSError for the good one.
    """
    equal = 0
    for fd in (bad, good):  # what is data in only one of them, too
        for start, end in data_runs(fd, size):
            for place in range(start, end, PIECE):
                found = _equal_piece(bad, good, place, min(PIECE, end - place)) if goes_on() else None
                if found is None:
                    return None
                equal += found if fd == bad else 0
    return equal


def _equal_piece(bad: int, good: int, place: int, length: int) -> int | None:
    try:
        there = os.pread(bad, length, place)
    except OSError as error:
        if error.errno not in DAMAGED:
            raise
        if length <= _BLOCK:
            return 0
        parts = [_equal_piece(bad, good, at, min(_BLOCK, place + length - at)) for at in range(place, place + length, _BLOCK)]
        return None if None in parts else sum(part or 0 for part in parts)
    if not there or os.pread(good, len(there), place) != there:
        return None
    if len(there) == length:
        return length
    rest = _equal_piece(bad, good, place + len(there), length - len(there))  # it was short before a block that cannot be read
    return None if rest is None else len(there) + rest
