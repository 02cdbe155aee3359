"""What rsync prints while it runs: progress and, at the end, its statistics.

Records end in newline or carriage return. The sender can have anything printed here, of any length: lines that look like these,
numbers that no filesystem can have. So what is kept does not grow with what is said, and numbers are bounded.
"""

import re
from dataclasses import dataclass, field

# The sender can have anything printed here, so numbers are no longer than the catalogue can hold.
_PROGRESS = re.compile(rb"\s*(\d{1,18})\s+(\d+)%\s+[\d.]+[kMGT]?B/s\s+\S+(?:\s+\(xfr#(\d+), (ir|to)-chk=(\d{1,18})/(\d{1,18})\))?")
_PROTOCOL = re.compile(rb"\((?:Client|Server)\) Protocol versions: remote=\d+, negotiated=(\d{1,4})")
_ESCAPED = re.compile(rb"\\#([0-3][0-7]{2})")
_COMPLAINT = b"IO error encountered -- skipping file deletion"  # the one that does not come on standard error
LONGEST_REST = 1 << 16
"""Bytes of a line that has not ended: the longest name there is, every byte of it escaped, takes a quarter of it."""
_STATISTICS = {
    b"Number of files": "files",
    b"Number of created files": "created",
    b"Number of deleted files": "deleted",
    b"Number of regular files transferred": "transferred",
    b"Total file size": "bytes",
    b"Total transferred file size": "transferred_bytes",
    b"Literal data": "literal",
    b"Matched data": "matched",
    b"Total bytes sent": "sent",
    b"Total bytes received": "received",
}
_STATISTIC = re.compile(rb"(" + b"|".join(_STATISTICS) + rb"): (\d{1,18})(?: \(((?:[a-z]+: \d{1,18}(?:, )?)+)\))?")
_KIND = re.compile(rb"([a-z]+): (\d{1,18})")
MOST = 1 << 60
"""An exbibyte: no host has more bytes or files. Eight times as much is what SQLite and others keep as a whole number."""


def bounded(number: int) -> int:
    """Limits a count or a size from a host, or a sum of such, to the possible values: from 0 to MOST."""
    return min(max(0, number), MOST)


@dataclass(slots=True)
class TransferProgress:
    """The progress of a running rsync."""

    bytes: int = 0
    """Transferred so far."""
    checked: int = 0
    """Number of names that are done."""
    known: int = 0
    """Number of names in the list so far."""
    whole: bool = False
    """True if the list is complete."""


@dataclass(slots=True)
class Output:
    """What one rsync wrote to its standard output."""

    progress: TransferProgress = field(default_factory=TransferProgress)
    """The progress."""
    numbers: dict[str, int] = field(default_factory=dict)
    """The statistics by short name, in bytes and counts; empty if rsync died before it printed them."""
    protocol: int | None = None
    """The version of the protocol; None: not known yet."""
    complaints: tuple[bytes, ...] = ()
    """Lines that belong to those of standard error."""
    _rest: bytes = b""

    def feed(self, data: bytes) -> None:
        """Takes the next bytes as they came. Of progress, which comes once for each file, only the last is read."""
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            *before, last = line.rsplit(b"\r", 2)
            self._progress(before)
            self._record(last)
        *before, rest = rest.rsplit(b"\r", 2)
        self._progress(before)
        self._rest = rest[-LONGEST_REST:]

    def _record(self, record: bytes) -> None:
        if match := _STATISTIC.fullmatch(record.removesuffix(b" bytes")):
            self._statistic(match)
        elif match := _PROTOCOL.fullmatch(record):
            self.protocol = int(match[1])
        elif record == _COMPLAINT:
            self.complaints = (record,)  # rsync says it once
        else:
            self._progress([record])

    def _progress(self, records: list[bytes]) -> None:
        """Uses the last of them, if it is about progress."""
        if not records or not (match := _PROGRESS.match(records[-1])):
            return
        progress = self.progress
        progress.bytes = max(progress.bytes, bounded(int(match[1])))
        if match[4]:
            progress.known = bounded(int(match[6]))
            progress.checked = max(progress.checked, progress.known - int(match[5]))
            progress.whole = match[4] == b"to"

    def _statistic(self, match: re.Match[bytes]) -> None:
        self.numbers[_STATISTICS[match[1]]] = bounded(int(match[2]))
        if match[1] == b"Number of files" and match[3]:
            self.numbers["regular"] = bounded(int(dict(_KIND.findall(match[3])).get(b"reg", 0)))


def unescape(name: bytes) -> bytes:
    """Returns the real name behind rsync's escapes: ``a\\#012b`` is a, newline, b."""
    return _ESCAPED.sub(lambda match: bytes([int(match[1], 8)]), name) if b"\\#" in name else name
