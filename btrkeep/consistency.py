"""How consistent the files of a backup are with each other: how each source path was read, and the dumps of the host's databases.

Both are in backup.json. The host's program btrkeep-source reports them, so texts and numbers are limited, and control characters
are escaped when they are parsed.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from btrkeep.units import bounded, format_time, local_time, parse_time, printable

SNAPSHOT, LIVE = "snapshot", "live"
LONGEST_TEXT = 300
"""Maximum characters of a reason or an error of the host."""
MOST_DUMPS = 100
_MOST_METHODS = 10
_WORD = re.compile(r"[A-Za-z0-9-]{1,20}", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}", re.ASCII)
_LONGEST_PATH = 4096
_INVALID = (ValueError, KeyError, TypeError, AttributeError, OverflowError)


@dataclass(frozen=True, slots=True)
class PathConsistency:
    """How one source path was read."""

    kind: str
    """SNAPSHOT, or LIVE: the host could change files while others were read."""
    methods: tuple[str, ...] = ()
    """How its snapshots were made: btrfs, lvm, lvm-thin, zfs; empty if LIVE."""
    taken: datetime | None = None
    """When the oldest of them was made, by the host's clock; None: LIVE, or unknown."""
    reason: str = ""
    """Why it is LIVE; "" for SNAPSHOT."""

    @property
    def is_live(self) -> bool:
        """Returns True if it was not read from snapshots."""
        return self.kind == LIVE

    def as_json(self) -> dict[str, object]:
        """Returns it in the form of backup.json."""
        if self.is_live:
            return {"kind": LIVE, "reason": self.reason}
        return {"kind": SNAPSHOT, "methods": list(self.methods), "taken": format_time(self.taken) if self.taken else None}


@dataclass(frozen=True, slots=True)
class HostDump:
    """A dump that the host made for a backup."""

    name: str
    """Its name in the host's configuration."""
    path: str
    """The host's file or folder that has it."""
    status: int | None
    """The exit status of its command; None: it was not run, or was killed."""
    required: bool
    """Whether a backup without it is suspect."""
    seconds: float = 0.0
    """How long it took."""
    bytes: int = 0
    """Its size."""
    error: str = ""
    """The last line of its command's errors, or why it was not run; "": it succeeded."""

    @property
    def failed(self) -> bool:
        """Returns True if its command failed or was not run."""
        return self.status != 0 or bool(self.error)

    def as_json(self) -> dict[str, object]:
        """Returns it in the form of backup.json."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def limited_text(value: object) -> str:
    """Returns a text of the host in a form that is safe to show, shortened; "" for None. Raises TypeError for another value."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError("not a text")
    text = printable(value[: 2 * LONGEST_TEXT])
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}..."


def methods_of(value: object) -> tuple[str, ...]:
    """Parses the methods of snapshots. Raises ValueError."""
    if not isinstance(value, list | tuple) or len(value) > _MOST_METHODS:
        raise ValueError("methods are not a list")
    if not all(isinstance(word, str) and _WORD.fullmatch(word) for word in value):
        raise ValueError("a method is not a word")
    return tuple(value)


def consistency_of(stored: object) -> PathConsistency | None:
    """Parses what PathConsistency.as_json has written. Returns None for a missing, invalid or unknown value."""
    try:
        fields: Any = stored
        if fields["kind"] == LIVE:
            return PathConsistency(LIVE, reason=limited_text(fields["reason"]))
        if fields["kind"] == SNAPSHOT:
            taken = fields["taken"]
            return PathConsistency(SNAPSHOT, methods_of(fields["methods"]), None if taken is None else parse_time(taken))
    except _INVALID:
        return None
    return None


def parse_dump(fields: Mapping[str, Any]) -> HostDump:
    """Parses a dump as btrkeep-source reports it, or as backup.json has it. Raises ValueError, KeyError or TypeError."""
    name, path, status, seconds = fields["name"], fields["path"], fields["status"], fields["seconds"]
    if not _NAME.fullmatch(name) or not isinstance(path, str) or not path.startswith("/") or len(path) > _LONGEST_PATH:
        raise ValueError("a dump has no valid name or path")
    if status is not None and (type(status) is not int or abs(status) > 1 << 31):
        raise ValueError("a dump has no valid status")
    if type(fields["bytes"]) is not int:
        raise ValueError("a dump has no valid size")
    if type(seconds) not in (int, float) or not math.isfinite(seconds) or type(fields["required"]) is not bool:
        raise ValueError("a dump has no valid time or requirement")
    error = limited_text(fields["error"])
    return HostDump(name, path, status, fields["required"], round(max(0.0, min(seconds, 1e9)), 3), bounded(fields["bytes"]), error)


def dumps_of(stored: object) -> tuple[HostDump, ...]:
    """Parses the list of backup.json. Ignores invalid entries."""
    return tuple(_valid_dumps(stored[:MOST_DUMPS])) if isinstance(stored, list | tuple) else ()


def _valid_dumps(entries: Iterable[Any]) -> Iterable[HostDump]:
    for entry in entries:
        try:
            yield parse_dump(entry)
        except _INVALID:
            continue


def consistency_words(path: str, consistency: PathConsistency) -> str:
    """Formats how a source path was read: "/srv: read from a snapshot (btrfs) of 2026-11-20T23:00:03+01:00"."""
    if consistency.is_live:
        why = f": {consistency.reason}" if consistency.reason else ""
        return f"{printable(path)}: not read from a snapshot{why}"
    methods = f" ({', '.join(consistency.methods)})" if consistency.methods else ""
    return f"{printable(path)}: read from a snapshot{methods}" + (
        f" of {local_time(consistency.taken)}" if consistency.taken else ""
    )


def do_overlap(folder: str, other: str) -> bool:
    """Returns True if one of two folders contains the other, or they are the same."""
    first, second = (f"{path.rstrip('/')}/" for path in (folder, other))
    return first.startswith(second) or second.startswith(first)
