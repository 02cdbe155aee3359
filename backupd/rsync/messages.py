"""The output of rsync: progress and, at the end, statistics; and the messages of rsync and ssh by their meaning for the backup.
Records of its output end in newline or carriage return. A hostile sender can make rsync print anything of any length: lines that
look like these, impossible numbers. So memory does not grow with the output, numbers are limited, and nothing here can affect
another host.

Exit status 23 alone is ambiguous: a full pool, a missing source and one unreadable file are all 23. A line of the receiving side
(``[receiver]``, ``[generator]``, ``[Receiver]``) with ENOSPC, EROFS or EIO means a fault of the server, and so does EDQUOT unless
the host has a quota here; a line of the sender means a fault of the host.
"""

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from btrkeep.errors import DAMAGED
from btrkeep.units import bounded, printable

# The sender controls this output, so numbers are limited to the range of the catalogue.
_PROGRESS = re.compile(rb"\s*(\d{1,18})\s+(\d+)%\s+[\d.]+[kMGT]?B/s\s+\S+(?:\s+\(xfr#(\d+), (ir|to)-chk=(\d{1,18})/(\d{1,18})\))?")
_NEGOTIATED = re.compile(rb"\((?:Client|Server)\) Protocol versions: remote=\d+, negotiated=(\d{1,4})")
_ESCAPED = re.compile(rb"\\#([0-3][0-7]{2})")
_COMPLAINT = b"IO error encountered -- skipping file deletion"  # the only message not on standard error
LONGEST_REST = 1 << 16
"""Maximum bytes of a line without an end: four times the longest possible name with every byte escaped."""
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


@dataclass(slots=True)
class TransferProgress:
    """The progress of a running rsync."""

    bytes: int = 0
    """Transferred so far."""
    checked: int = 0
    """Number of names that are finished."""
    listed: int = 0
    """Number of names in the list so far."""
    whole: bool = False
    """True if the list is complete."""


@dataclass(slots=True)
class Output:
    """The standard output of one rsync."""

    progress: TransferProgress = field(default_factory=TransferProgress)
    """The progress."""
    numbers: dict[str, int] = field(default_factory=dict)
    """The statistics by short name, in bytes and counts; empty if rsync died before it printed them."""
    protocol: int | None = None
    """The version of the protocol; None: not yet known."""
    complaints: tuple[bytes, ...] = ()
    """Lines that are error messages."""
    _rest: bytes = b""

    def feed(self, data: bytes) -> None:
        """Takes the next bytes of output. Of the progress, which is printed for each file, only the last record is parsed."""
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
        elif match := _NEGOTIATED.fullmatch(record):
            self.protocol = int(match[1])
        elif record == _COMPLAINT:
            self.complaints = (record,)  # rsync prints it once
        else:
            self._progress([record])

    def _progress(self, records: list[bytes]) -> None:
        """Parses the last record, if it is about progress."""
        if not records or not (match := _PROGRESS.match(records[-1])):
            return
        progress = self.progress
        progress.bytes = max(progress.bytes, bounded(int(match[1])))
        if match[4]:
            progress.listed = bounded(int(match[6]))
            progress.checked = max(progress.checked, progress.listed - int(match[5]))
            progress.whole = match[4] == b"to"

    def _statistic(self, match: re.Match[bytes]) -> None:
        self.numbers[_STATISTICS[match[1]]] = bounded(int(match[2]))
        if match[1] == b"Number of files" and match[3]:
            self.numbers["regular"] = bounded(int(dict(_KIND.findall(match[3])).get(b"reg", 0)))


def unescape(name: bytes) -> bytes:
    """Returns the name without rsync's escapes: ``a\\#012b`` is a, newline, b."""
    return _ESCAPED.sub(lambda match: bytes([int(match[1], 8)]), name) if b"\\#" in name else name


SAMPLES = 5
MOST_UNLISTED = 10_000
"""Maximum number of unlisted paths that are recorded for one transfer, and their bytes."""
MOST_UNLISTED_BYTES = 4 << 20
LONGEST_PATH = 2 * 4096
"""Maximum bytes: those of the source path, and of a path below it in rsync's form (PATH_MAX each)."""
LAST_LINES = 20
_LONGEST_LINE = 1000  # characters kept; the end matters as much as the start, because it has the errno
_SERVER_ERRNOS = {
    "28": "no space left",
    "30": "read-only filesystem",
    "5": "input/output error",
    "117": "structure needs cleaning",  # btrfs returns it for damaged metadata
}
_EDQUOT = "122"
# On btrfs an attribute above 16 KiB always gives ENOSPC; hosts with other filesystems can have such attributes.
_ATTRIBUTE = re.compile(r"\w+: [lf]?setxattr\(|set_acl: ")
_CONNECTION_ERRNOS = {"32", "104"}  # broken pipe, reset by peer: a lost connection, not an error of the file
_ERROR = re.compile(r"rsync: (?:\[(?P<role>\w+)\] )?(?P<what>.*?)(?: \((?P<errno>\d+)\))?")
_OWN_END = re.compile(r"rsync (?:error|warning): |rsync: (?:\[\w+\] )?connection unexpectedly closed ")
_PROTOCOL = re.compile(r"\((?:Client|Server)\) Protocol versions: ")  # from --debug=proto, not an error message
# flist.c, acls.c and xattrs.c of rsync: unreadable files and folders are not listed, nor is anything below them.
_UNLISTED = re.compile(rb"rsync: (?:\[\w+\] )?(?:opendir |readdir\(|readlink|get_acl|get_xattr)")
_AROUND_PATH = ((b'getxattr("', b'","'), (b'listxattr("', b'",'), (b"get_file(", b", ACL_TYPE_"), (b'"', b'"'))


class MessageClass(Enum):
    """The meaning of one line of standard error."""

    SERVER_FAULT = auto()
    OVER_QUOTA = auto()
    PATH_BROKEN = auto()
    UNREADABLE = auto()
    NOT_KEPT = auto()
    VANISHED = auto()
    DELETIONS_SKIPPED = auto()
    DELETE_LIMIT = auto()
    UNKNOWN = auto()  # any other message that rsync passed on
    OTHER = auto()


_WORDS = (
    (re.compile(r"(?:file|directory) has vanished: "), MessageClass.VANISHED),
    (re.compile(r"IO error encountered .* skipping file deletion"), MessageClass.DELETIONS_SKIPPED),
    (re.compile(r"Deletions stopped due to --max-delete limit"), MessageClass.DELETE_LIMIT),
    (re.compile(r"ERROR: .* failed verification"), MessageClass.UNREADABLE),
    (re.compile(r"filename overflows max-path len by \d+: "), MessageClass.UNREADABLE),
)


def classify(line: str) -> MessageClass:
    """Returns the class of one line of standard error (without its newline)."""
    for pattern, kind in _WORDS:
        if pattern.match(line):
            return kind
    match = _ERROR.fullmatch(line)
    if not match or not match["errno"] or match["errno"] in _CONNECTION_ERRNOS:
        return MessageClass.OTHER
    if match["role"] in ("receiver", "generator", "Receiver"):
        if match["errno"] == _EDQUOT:
            return MessageClass.OVER_QUOTA
        too_big = match["errno"] == "28" and _ATTRIBUTE.match(match["what"])
        return MessageClass.SERVER_FAULT if match["errno"] in _SERVER_ERRNOS and not too_big else MessageClass.NOT_KEPT
    if match["what"].startswith(("link_stat ", "change_dir ")):
        return MessageClass.PATH_BROKEN
    return MessageClass.UNREADABLE


def reports_damage(line: str) -> bool:
    """Returns True if the line is about something that this server cannot read from its disk."""
    match = _ERROR.fullmatch(line)
    return bool(match and match["errno"] and int(match["errno"]) in DAMAGED)


def unlisted_path(line: bytes) -> bytes | None:
    """Returns the path that could not be listed, as the sender writes it; None if the line has none.

    Uses no regular expression: the line comes from the host, has up to 128 KiB, and one that makes a regular expression backtrack
    takes seconds.
    """
    for before, behind in _AROUND_PATH:
        start, end = line.find(before), line.rfind(behind)
        if 0 <= start < end - len(before):
            return unescape(line[start + len(before) : end])
    return None


def named_path(line: str) -> str:
    """Returns the path in a line that `Messages` keeps; "" if it has none, or if the line was truncated."""
    raw = line.encode("utf-8", "surrogateescape")
    return "" if len(raw) > _LONGEST_LINE else (unlisted_path(raw) or b"").decode("utf-8", "surrogateescape")


def _shortened(line: bytes) -> bytes:
    half = _LONGEST_LINE // 2
    return line if len(line) <= _LONGEST_LINE else line[:half] + b" ... " + line[-half:]


@dataclass(slots=True)
class Messages:
    """The error output of one rsync."""

    counts: dict[MessageClass, int] = field(default_factory=dict)
    """Number of lines by class."""
    samples: dict[MessageClass, list[str]] = field(default_factory=dict)
    """Some lines of each class."""
    last: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))
    """The last lines."""
    unlisted: set[bytes] = field(default_factory=set)
    """Paths that could not be checked or entered, as the sender writes them: older files below them in the backup were not checked
    either.
    """
    unlisted_beyond: int = 0
    """Number of further unlisted paths that are not stored, or that a line did not name."""
    answered: bool = False
    """True if rsync on the host has answered; earlier lines are a banner, or come from the startup files of the host's shell."""
    _rest: bytes = b""
    _unlisted_bytes: int = 0

    def feed(self, data: bytes) -> None:
        """Takes the next bytes of output."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_REST:
            self._rest = _shortened(self._rest)
        for line in lines:
            self._line(line)

    def close(self, others: Iterable[bytes] = ()) -> None:
        """Takes a last line without an end, and lines received elsewhere."""
        for line in (self._rest, *others):
            self._line(line)
        self._rest = b""

    def _line(self, raw: bytes) -> None:
        line = printable(_shortened(raw.rstrip(b"\r")))
        if not line or _PROTOCOL.match(line):
            return
        kind = classify(line)
        if kind is MessageClass.OTHER and self.answered and not _OWN_END.match(line):
            kind = MessageClass.UNKNOWN
        self.last.append(line)
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if kind is MessageClass.UNREADABLE and _UNLISTED.match(raw):
            self._remember(raw)
        samples = self.samples.setdefault(kind, [])
        if len(samples) < SAMPLES:
            samples.append(line)

    def _remember(self, raw: bytes) -> None:
        path = unlisted_path(raw)
        if path in self.unlisted:
            return
        self._unlisted_bytes += len(path or b"")
        if (
            path is None
            or len(path) > LONGEST_PATH
            or len(self.unlisted) >= MOST_UNLISTED
            or self._unlisted_bytes > MOST_UNLISTED_BYTES
        ):
            self.unlisted_beyond += 1
        else:
            self.unlisted.add(path)

    def count(self, kind: MessageClass) -> int:
        """Returns how many lines of that class were read."""
        return self.counts.get(kind, 0)

    def first(self, kind: MessageClass) -> str:
        """Returns the first line of that class, or ""."""
        return self.samples.get(kind, [""])[0]
