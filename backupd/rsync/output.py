"""What rsync prints while it runs: itemised changes, progress and, at the end, its statistics.

Records end in newline or carriage return. Itemised lines are ``%i|%l|%n``: eleven signs, the length, the name with everything
but printable characters escaped as ``\\#ooo``, so one line is one record whatever a file is called.
"""

import re
from dataclasses import dataclass, field

_RECORD_END = re.compile(rb"[\r\n]")
# The sender can have anything printed here, so numbers are no longer than the catalogue can hold.
_ITEM = re.compile(rb"(\*deleting  |[<>ch.*][fdLDS][^|]{9})\|(\d{1,18})\|(.*)", re.DOTALL)
_PROGRESS = re.compile(rb"\s*(\d{1,18})\s+(\d+)%\s+[\d.]+[kMGT]?B/s\s+\S+(?:\s+\(xfr#(\d+), (ir|to)-chk=(\d{1,18})/(\d{1,18})\))?")
_PROTOCOL = re.compile(rb"\((?:Client|Server)\) Protocol versions: remote=\d+, negotiated=(\d{1,4})")
_ESCAPED = re.compile(rb"\\#([0-3][0-7]{2})")
_COMPLAINT = b"IO error encountered -- skipping file deletion"  # the one that does not come on standard error
_LONGEST_REST = 1 << 16  # the longest name there is, every byte of it escaped, takes a quarter of it
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


@dataclass(slots=True)
class Progress:
    """How far a running rsync is. `checked` of `known` names; `whole`: the file list has come to its end."""

    bytes: int = 0
    checked: int = 0
    known: int = 0
    whole: bool = False


@dataclass(slots=True)
class Output:
    """Everything read from one rsync's standard output.

    `written` are the names (relative to the destination, as bytes) of regular files that got data, with their lengths;
    `numbers` the statistics by short name (bytes and counts), empty when rsync died before printing them; `complaints` lines that
    belong with those of standard error.
    """

    progress: Progress = field(default_factory=Progress)
    numbers: dict[str, int] = field(default_factory=dict)
    written: list[tuple[bytes, int]] = field(default_factory=list)
    changed: int = 0
    deleted: int = 0
    protocol: int | None = None
    complaints: tuple[bytes, ...] = ()
    _rest: bytes = b""

    def feed(self, data: bytes) -> None:
        """Takes the next bytes as they came."""
        records = _RECORD_END.split(self._rest + data)
        self._rest = records.pop()[-_LONGEST_REST:]
        last_progress = None
        for record in records:
            if item := _ITEM.fullmatch(record):
                self._item(item[1], int(item[2]), item[3])
            elif match := _PROGRESS.match(record):
                last_progress = match
            elif match := _STATISTIC.fullmatch(record.removesuffix(b" bytes")):
                self._statistic(match)
            elif match := _PROTOCOL.fullmatch(record):
                self.protocol = int(match[1])
            elif record == _COMPLAINT:
                self.complaints = (record,)  # rsync says it once
        if last_progress:
            self._progress(last_progress)

    def _item(self, signs: bytes, length: int, name: bytes) -> None:
        if signs.startswith(b"*"):
            self.deleted += 1
            return
        self.changed += 1
        if signs.startswith(b">f"):
            self.written.append((unescape(name), length))

    def _progress(self, match: re.Match[bytes]) -> None:
        progress = self.progress
        progress.bytes = max(progress.bytes, int(match[1]))
        if match[4]:
            progress.known = int(match[6])
            progress.checked = max(progress.checked, progress.known - int(match[5]))
            progress.whole = match[4] == b"to"

    def _statistic(self, match: re.Match[bytes]) -> None:
        self.numbers[_STATISTICS[match[1]]] = int(match[2])
        if match[1] == b"Number of files" and match[3]:
            kinds = dict(part.split(b": ") for part in match[3].split(b", "))
            self.numbers["regular"] = int(kinds.get(b"reg", 0))


def unescape(name: bytes) -> bytes:
    """The real name behind rsync's escapes: ``a\\#012b`` is a, newline, b."""
    return _ESCAPED.sub(lambda match: bytes([int(match[1], 8)]), name) if b"\\#" in name else name
