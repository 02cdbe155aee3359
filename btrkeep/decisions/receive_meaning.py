"""What a message of `btrfs receive` means, and what to do about it. Pure.

The words are those of btrfs-progs 5.10 to 6.19 (cmds/receive.c, common/send-stream.c), and of the C library behind them.
"""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum


class ReceiveCause(StrEnum):
    """Why a `btrfs receive` ended with an error."""

    FULL = "full"
    QUOTA = "quota"
    READ_ONLY = "read-only"
    OUTSIDE = "outside"
    DISK = "disk"
    GARBLED = "garbled"
    PARENT = "parent"
    TOO_OLD = "too-old"
    CELL = "cell"
    UNKNOWN = "unknown"


_PATTERNS: tuple[tuple[str, ReceiveCause], ...] = (
    (r"^bwrap: ", ReceiveCause.CELL),
    (r": No space left on device$", ReceiveCause.FULL),
    (r": Disk quota exceeded$", ReceiveCause.QUOTA),
    (r": Read-only file system$", ReceiveCause.READ_ONLY),
    (r": Input/output error$", ReceiveCause.DISK),
    (r"^ERROR: (crc32 mismatch|unexpected EOF|send stream is truncated|invalid tlv|unexpected header)", ReceiveCause.GARBLED),
    (r"parent subvol(ume)?\b|source subvol\b|default subvolume", ReceiveCause.PARENT),
    (r"not compiled in$|unknown compression|encryption not supported$|stream version \d+ not supported", ReceiveCause.TOO_OLD),
)

HINTS: Mapping[ReceiveCause, str] = {
    ReceiveCause.FULL: "the pool is full: `backupd expire` deletes what is due; keep less, or add a device (see `backupd usage`)",
    ReceiveCause.QUOTA: "a quota of this pool's filesystem ends it: `btrfs qgroup show` names its limit",
    ReceiveCause.READ_ONLY: "this pool's filesystem has become read-only: dmesg says why, and `backupd doctor` what to do",
    ReceiveCause.OUTSIDE: "the stream wants to write outside of the backup, which nothing honest does: look at the other server",
    ReceiveCause.DISK: "a disk of this pool could not be read or written: see dmesg and `backupd doctor`",
    ReceiveCause.GARBLED: "it was garbled on the way and comes again the next time; if that repeats, test both memories",
    ReceiveCause.PARENT: "another copy of what it is a difference to appeared while it came; it comes again the next time",
    ReceiveCause.TOO_OLD: "the program btrfs here cannot read what the other server sends: a newer btrfs-progs can",
    ReceiveCause.CELL: "the cell in which it is received cannot be made: `backupd check` says what is missing",
    ReceiveCause.UNKNOWN: "",
}
"""What to do next, "" if that is not known."""


def receive_cause(said: Iterable[str], *, is_read_only: bool) -> ReceiveCause:
    """Returns the cause that its messages name; the first one that says something counts.

    `is_read_only`: whether the pool's filesystem is; if not, it was the cell that kept something from being written.
    """
    for line in said:
        for pattern, cause in _PATTERNS:
            if re.search(pattern, line):
                return ReceiveCause.OUTSIDE if cause is ReceiveCause.READ_ONLY and not is_read_only else cause
    return ReceiveCause.UNKNOWN
