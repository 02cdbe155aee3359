"""The states of a backup, as backup.json, the catalogue and JSON name them; why a backup or a run is not complete; and conditions
that may last for several backups, as data. btrkeep.decisions.cause_words has the text of causes; btrkeep.decisions.lasting follows
conditions and has their text.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from btrkeep.units import LARGEST_NUMBER, format_time, parse_time

RUNNING, PARTIAL = "running", "partial"
COMPLETE, SUSPECT, FAILED = "complete", "suspect", "failed"
ALTERED = "altered"  # changed after it was final; only the host's notes have it, never a record
EXPIRED, DELETING = "expired", "deleting"
FINAL = (COMPLETE, SUSPECT, FAILED)
"""The states of a final backup in its own record."""
FINISHED = (*FINAL, ALTERED)
"""The states according to its record and its host's notes together, without expiry."""
GOING = (EXPIRED, DELETING)
BACKUP_STATES = (RUNNING, PARTIAL, *FINISHED, *GOING)


class CauseCode(StrEnum):
    """Code of a cause in backup.json and the catalogue. The meaning of a code never changes."""

    POOL = "pool"  # messages of this machine about itself: for administrators only
    SERVER_FAULT = "server-fault"
    STOPPED = "stopped"
    RSYNC_UNFINISHED = "rsync-unfinished"
    RSYNC_FAILED = "rsync-failed"
    NO_STATISTICS = "no-statistics"
    SOURCE_MISSING = "source-missing"
    NOTHING_READ = "nothing-read"
    NOT_LISTED = "not-listed"
    UNREADABLE = "unreadable"
    DELETIONS_LIMITED = "deletions-limited"
    NO_FILE_LEFT = "no-file-left"
    FEWER_FILES = "fewer-files"
    FEWER_BYTES = "fewer-bytes"
    NOT_MOUNTED = "not-mounted"
    EMPTIED_UNDATED = "emptied-undated"
    EMPTIED_SETTINGS = "emptied-settings"
    NOT_COMPARED = "not-compared"
    NOT_NAMED = "not-named"
    NO_SNAPSHOTS = "no-snapshots"
    NOT_FROM_SNAPSHOT = "not-from-snapshot"
    DUMP_FAILED = "dump-failed"
    STREAM_FAILED = "stream-failed"
    DEADLINE = "deadline"
    WINDOW_CLOSED = "window-closed"
    STALLED = "stalled"
    SIGNAL = "signal"
    ENDLESS_OUTPUT = "endless-output"
    TOO_MANY_PROCESSES = "too-many-processes"
    MAX_FILES = "max-files"
    MAX_NEW_BYTES = "max-new-bytes"
    MAX_MEMORY = "max-memory"
    QUOTA = "quota"
    KILLED = "killed"
    INTERNAL_ERROR = "internal-error"


_RSYNC: Mapping[str, type] = {"exit_cause": str, "exit_code": int, "line": str}
_EXCEEDED: Mapping[str, type] = {"found": int, "limit": int}
_EMPTIED: Mapping[str, type] = {"folder": str, "others": int, "files": int, "bytes": int}
_SHRUNK: Mapping[str, type] = {"before": int, "after": int, "limit": float}
FACTS: Mapping[CauseCode, Mapping[str, type]] = {
    CauseCode.POOL: {"text": str},
    CauseCode.SERVER_FAULT: {"line": str},
    CauseCode.RSYNC_UNFINISHED: _RSYNC,
    CauseCode.RSYNC_FAILED: _RSYNC,
    CauseCode.NO_STATISTICS: {"exit_code": int},
    CauseCode.SOURCE_MISSING: {"line": str},
    CauseCode.NOTHING_READ: {"line": str},
    CauseCode.NOT_LISTED: {"paths": int},
    CauseCode.UNREADABLE: {"missed": int, "below": int, "files": int, "limit": float},
    CauseCode.NO_FILE_LEFT: {"before": int},
    CauseCode.FEWER_FILES: _SHRUNK,
    CauseCode.FEWER_BYTES: _SHRUNK,
    CauseCode.NOT_MOUNTED: _EMPTIED,
    CauseCode.EMPTIED_UNDATED: _EMPTIED,
    CauseCode.EMPTIED_SETTINGS: _EMPTIED,
    CauseCode.NOT_COMPARED: {"why": str},
    CauseCode.NO_SNAPSHOTS: {"line": str},
    CauseCode.NOT_FROM_SNAPSHOT: {"line": str},
    CauseCode.DUMP_FAILED: {"name": str, "line": str},
    CauseCode.STREAM_FAILED: {"line": str},
    CauseCode.WINDOW_CLOSED: {"window": str},
    CauseCode.STALLED: {"seconds": float},
    CauseCode.SIGNAL: {"name": str},
    CauseCode.ENDLESS_OUTPUT: {"bytes": int},
    CauseCode.TOO_MANY_PROCESSES: {"processes": int},
    CauseCode.MAX_FILES: _EXCEEDED,
    CauseCode.MAX_NEW_BYTES: _EXCEEDED,
    CauseCode.MAX_MEMORY: _EXCEEDED,
    CauseCode.QUOTA: _EXCEEDED,
}
"""The facts of each code; a code that is missing here has no facts. Shares are fractions; `line` is a line of rsync or
btrkeep-source, printed by a host.
"""
_ADDED_LATER = {(CauseCode.RSYNC_UNFINISHED, "line"): "", (CauseCode.RSYNC_FAILED, "line"): ""}


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a run failed."""

    code: CauseCode
    """The kind of cause."""
    path: str = ""
    """The source path that it concerns; "" for the whole run."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Its details, see FACTS."""

    def as_json(self) -> dict[str, object]:
        """An object of the code, the path and the facts."""
        return {"code": self.code.value, **({"path": self.path} if self.path else {}), **self.facts}


def cause_of(stored_cause: object) -> Cause | None:
    """Parses an object written by `as_json`. Returns None for an unknown or invalid cause."""
    if not isinstance(stored_cause, dict):
        return None
    try:
        code = CauseCode(str(stored_cause.get("code")))
    except ValueError:
        return None
    path, facts = (
        stored_cause.get("path", ""),
        {name: stored_cause.get(name, _ADDED_LATER.get((code, name))) for name in FACTS.get(code, ())},
    )
    if not isinstance(path, str) or not all(_is_a(FACTS[code][name], value) for name, value in facts.items()):
        return None
    return Cause(code, path, facts)


def _is_a(kind: type, value: Any) -> bool:
    if kind is str:
        return isinstance(value, str)
    return type(value) in ((int,) if kind is int else (int, float)) and abs(value) <= LARGEST_NUMBER


LONGEST_NAME = 500
"""Maximum characters of a name; a longer one is truncated, and no pattern is made from it."""
CUT = "..."
MOST = 20
"""Maximum conditions in a record, and maximum lasting ones: a host chooses their names."""
_MOST_TIMES = 100_000


class ConditionKind(StrEnum):
    """The kinds of conditions, the most serious first. The meaning of a code in backup.json never changes."""

    DELETIONS_SKIPPED = "deletions-skipped"
    EMPTIED = "emptied"
    DUMP_FAILED = "dump-failed"
    NO_SNAPSHOT = "no-snapshot"
    UNREADABLE = "unreadable"
    NOT_TRANSFERRED = "not-transferred"
    NOT_KEPT = "not-kept"
    VANISHED = "vanished"
    LEFT_OUT = "left-out"
    FETCHED_TWICE = "fetched-twice"


STANDING = frozenset({ConditionKind.LEFT_OUT, ConditionKind.FETCHED_TWICE})
"""Effects of the configuration: they are reported as long as they last, and raise no alarm."""


@dataclass(frozen=True, slots=True)
class ConditionKey:
    """The properties that identify a condition."""

    kind: ConditionKind
    """The kind of condition."""
    path: str
    """The source path."""
    name: str = ""
    """The path on the host; "" if it concerns all of `path`."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of a backup."""

    key: ConditionKey
    """The condition."""
    since: datetime
    """When the first of the successive backups with it started."""
    times: int = 1
    """Number of successive backups with it."""

    @property
    def kind(self) -> ConditionKind:
        return self.key.kind

    def as_json(self) -> dict[str, object]:
        """Returns it in the form of backup.json."""
        key = self.key
        return {
            "kind": key.kind.value,
            "path": key.path,
            "name": key.name,
            "since": format_time(self.since),
            "times": self.times,
        }


def conditions_of(entries: object) -> tuple[Condition, ...]:
    """Parses a list in the form of `as_json`. Ignores invalid entries, and kinds of a newer version."""
    if not isinstance(entries, list | tuple):
        return ()
    return tuple(condition for condition in _parsed_conditions(entries) if condition)[: 2 * MOST]


def _parsed_conditions(entries: Iterable[Any]) -> Iterable[Condition | None]:
    for entry in entries:
        try:
            kind, path, name, since, times = (entry[field] for field in ("kind", "path", "name", "since", "times"))
            is_valid = isinstance(path, str) and isinstance(name, str) and type(times) is int
            key = ConditionKey(ConditionKind(kind), path, shortened(name))
            yield Condition(key, parse_time(since), min(max(1, times), _MOST_TIMES)) if is_valid else None
        except (ValueError, TypeError, KeyError, AttributeError, IndexError):
            yield None


def shortened(name: str) -> str:
    """Returns the name, truncated to the length that is stored."""
    return name if len(name) <= LONGEST_NAME + len(CUT) else name[:LONGEST_NAME] + CUT
