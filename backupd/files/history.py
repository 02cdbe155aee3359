"""The history of one path: its versions, when it was missing, and its state in each backup. Pure."""

from dataclasses import dataclass
from datetime import datetime

from backupd.files.tree import Entry

THERE, MISSING, LEFT_OUT, UNFINISHED, LINKED, UNREADABLE = (
    "there",
    "missing",
    "not backed up",
    "not finished",
    "behind a symlink",
    "unreadable",
)
"""What a backup can say of a path. Only the first two say what the host had; LINKED: a folder on the way was a symlink then."""


@dataclass(frozen=True, slots=True)
class Version:
    """One distinct version. Times are starts of backups."""

    entry: Entry
    """As the newest backup that has it has it."""
    first: str
    last: str
    """The oldest and the newest backup that has it; one in between may have another version."""
    names: tuple[str, ...]
    """Of all backups that have it, oldest first."""
    first_seen: datetime
    last_seen: datetime
    best: str
    """The backup to restore it from: the newest complete one that has it; without one, the newest."""
    states: tuple[str, ...]
    """Of those backups, each state once: ("expired",) for one that goes with them."""
    changed: tuple[str, ...]
    """In what it differs from the version before; empty for the first."""
    certain: bool
    """True if the data in all of these backups is known to be the same."""
    vanished: datetime | None = None
    """When the path was found to be gone right after this version; None when another followed, or it is still there."""
    same_content_as: str | None = None
    """The `first` of the version before, when their data is known to be the same: only time, mode or owner changed."""
    sha256: str | None = None
    """Of a plain file that was read: by content, and only where that was needed."""

    @property
    def backups(self) -> int:
        """The number of backups that have it."""
        return len(self.names)


@dataclass(frozen=True, slots=True)
class Absence:
    """The path had been there, and was not. `came_back`: the backup in which it was there again, None when it never was."""

    first: str
    since: datetime
    last: str
    backups: int
    came_back: str | None
    until: datetime | None
    doubtful: bool
    """True if only backups say so that are suspect or failed."""


@dataclass(frozen=True, slots=True)
class PathInBackup:
    """The path in one backup: `found` is one of the words above, `version` a number in `History.versions`."""

    name: str
    started: datetime
    state: str
    found: str
    version: int | None


@dataclass(frozen=True, slots=True)
class PathHistory:
    """All versions of a path, oldest first, the times when it was missing, and its state in each backup, oldest first."""

    path: bytes
    by_content: bool
    versions: tuple[Version, ...]
    gone: tuple[Absence, ...]
    backups: tuple[PathInBackup, ...]
    stopped: bool = False
    """True if time was over before all backups had been looked at: those after the last one here."""


def has_data(entry: Entry) -> bool:
    """Returns True for a plain file: the size of other types says nothing about the content."""
    return entry.kind == "file"


def key_of(entry: Entry) -> tuple[object, ...]:
    """Returns what two entries of one version have in common."""
    size = entry.size if has_data(entry) else 0
    return entry.kind, size, entry.mtime, entry.mode, entry.uid, entry.gid, entry.target, entry.rdev


def changed_fields(before: Entry, after: Entry) -> tuple[str, ...]:
    """Returns in what two entries of one path differ: kind (and then nothing else), size, mtime, mode, owner, target, device."""
    if before.kind != after.kind:
        return ("kind",)
    pairs = {
        "size": (before.size, after.size) if has_data(before) else (0, 0),
        "mtime": (before.mtime, after.mtime),
        "mode": (before.mode, after.mode),
        "owner": ((before.uid, before.gid), (after.uid, after.gid)),
        "target": (before.target, after.target),
        "device": (before.rdev, after.rdev),
    }
    return tuple(name for name, (one, other) in pairs.items() if one != other)
