"""The history of one path: every distinct version of it over all backups of a host, and when it was missing. Needs no index.

Two entries are the same version if rsync takes the file for unchanged: they have the same type, size, time of modification, mode,
owner, symlink's target and device number, and the same extended attributes and ACLs. Inode numbers do not count, because they
change without the file: the hard link guard gives linked files new ones every night, and a backup that started from an empty
subvolume has only new ones. They serve as a proof: `certain` means that the data of all backups with this version is known to be
equal (an untouched inode, the same extents, or read because it is short). With `by_content` only the data decides, and files are
read unless they are proven to be equal.

A folder is its own entry: its time changes when a name in it is added or removed, not when a file in it or in a folder below
changes. By content, it is the list of everything below it: names, types, sizes and times of files, targets. Its files are not read.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime

from backupd.files.attributes import attributes
from backupd.files.backup_selector import Restorable
from backupd.files.sameness import Pulse, TimeBudgetUsedUp, same_data, sha256, steady, untouched
from backupd.files.tree import NOT_THERE, Entry, Tree, components, deepest
from backupd.files.walking import entries, parent_of
from backupd.repo.backup_json import PathOutcome
from btrkeep.backup_states import COMPLETE

THERE, MISSING, LEFT_OUT, UNFINISHED, LINKED, UNREADABLE = (
    "there",
    "missing",
    "not backed up",
    "not finished",
    "behind a symlink",
    "unreadable",
)
"""The states of a path in a backup. Only the first two show the state of the host; LINKED: a folder above the path was a symlink in
that backup.
"""


@dataclass(frozen=True, slots=True)
class Version:
    """One distinct version. Times are starts of backups."""

    entry: Entry
    """The entry in the newest backup with this version."""
    first: str
    """The name of the oldest backup that has it."""
    last: str
    """The name of the newest backup that has it. A backup in between may have another version."""
    names: tuple[str, ...]
    """The names of all backups that have it, oldest first."""
    first_seen: datetime
    """When `first` began."""
    last_seen: datetime
    """When `last` began."""
    best: str
    """The backup from which to restore it: the newest complete backup that has it, otherwise the newest."""
    states: tuple[str, ...]
    """The states of these backups, each once."""
    changed: tuple[str, ...]
    """The fields that differ from the previous version; empty for the first."""
    certain: bool
    """True if the data of all these backups is known to be the same."""
    vanished: datetime | None = None
    """When the path was missing directly after this version; None: another version followed, or it still exists."""
    same_content_as: str | None = None
    """The `first` of the previous version if the data is known to be equal and only time, mode or owner changed."""
    sha256: str | None = None
    """The digest of a plain file that had to be read to compare its content; otherwise None."""

    @property
    def backups(self) -> int:
        """The number of backups that have it."""
        return len(self.names)


@dataclass(frozen=True, slots=True)
class Absence:
    """A period in which the path was missing."""

    first: str
    """The first backup without it."""
    since: datetime
    """When the run of `first` started."""
    last: str
    """The last backup without it."""
    backups: int
    """Number of backups without it."""
    came_back: str | None
    """The first later backup that has the path again; None: no later backup has it."""
    until: datetime | None
    """When the run of `came_back` started."""
    doubtful: bool
    """True if it is missing only in suspect or failed backups."""


@dataclass(frozen=True, slots=True)
class PathInBackup:
    """The state of the path in one backup."""

    name: str
    """The backup's name."""
    started: datetime
    """When it started."""
    state: str
    """The backup's state."""
    found: str
    """One of THERE, MISSING, LEFT_OUT, UNFINISHED, LINKED, UNREADABLE."""
    version: int | None
    """The number in `PathHistory.versions`; None: it is missing."""


@dataclass(frozen=True, slots=True)
class PathHistory:
    """All versions of a path."""

    path: bytes
    """The path on the host."""
    by_content: bool
    """True if files were read when their metadata was not sufficient."""
    versions: tuple[Version, ...]
    """Oldest first."""
    gone: tuple[Absence, ...]
    """The periods in which it was missing, oldest first."""
    backups: tuple[PathInBackup, ...]
    """The state of the path in each backup, oldest first."""
    stopped: bool = False
    """True if the time limit ended it: later backups than the last one here were not read."""


def has_data(entry: Entry) -> bool:
    """Returns True for a regular file: the size of other types is not related to the content."""
    return entry.kind == "file"


def key_of(entry: Entry) -> tuple[object, ...]:
    """Returns the identity of a version, equal for all of its entries."""
    size = entry.size if has_data(entry) else 0
    return entry.kind, size, entry.mtime, entry.mode, entry.uid, entry.gid, entry.target, entry.rdev


def changed_fields(before: Entry, after: Entry) -> tuple[str, ...]:
    """Returns the fields in which two entries of one path differ: kind (and then nothing else), size, mtime, mode, owner, target,
    device.
    """
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
    return tuple(name for name, (old, other) in pairs.items() if old != other)


@dataclass(slots=True, eq=False)
class _CollectedVersion:
    """A version under construction."""

    key: tuple[object, ...]
    """The key that distinguishes it from other versions, without its content."""
    sightings: list[tuple[Restorable, Entry]]
    """The backups that have it."""
    certain: bool = True
    """True if their data is known to be the same."""
    differs: bool = False
    """True if its data differs from that of the previous version."""
    xattrs_differ: bool = False
    """True if its attributes differ from those of the previous version."""
    same_as: str | None = None
    """The `first` of the previous version if the data is equal."""
    digest: str | None = None
    """SHA-256 of its content if it was read."""
    before: Entry | None = None
    """The entry of the previous version."""
    vanished: datetime | None = None
    """When the path was missing directly after this version."""

    @property
    def last(self) -> tuple[Restorable, Entry]:
        return self.sightings[-1]


@dataclass(slots=True)
class _VersionCollector:
    """The versions collected so far."""

    by_content: bool
    """True if files are read when their metadata is not sufficient."""
    pulse: Pulse
    """Called while files are read; may raise to end the reading."""
    kept: list[_CollectedVersion] = field(default_factory=list)
    """The finished versions."""
    current: _CollectedVersion | None = None
    """The version of the last backup; None: the path was missing there."""

    def take(self, backup: Restorable, tree: Tree, entry: Entry) -> int:
        """Returns the number of the version to which this entry belongs."""
        version = self._by_content(tree, entry) if self.by_content else self._by_inode_item(tree, entry)
        if version not in self.kept:
            version.before = self.current.last[1] if self.current else None
            self.kept.append(version)
        version.sightings.append((backup, entry))
        self.current = version
        return self.kept.index(version)

    def _by_inode_item(self, tree: Tree, entry: Entry) -> _CollectedVersion:
        key = key_of(entry)
        for version in self._newest_first(key):
            same = _compared(version, tree, entry)
            if same is not False and _same_xattrs(
                version, tree, entry
            ):  # short files with equal size and time, but different content, are two versions
                version.certain &= bool(same)
                return version
        made = _CollectedVersion(key, [])
        made.xattrs_differ = self.current is not None and not _same_xattrs(self.current, tree, entry)
        if self.current and has_data(entry) and has_data(self.current.last[1]):
            same = _compared(self.current, tree, entry)
            made.same_as = self.current.sightings[0][0].name if same else None
            made.differs = same is False
        return made

    def _by_content(self, tree: Tree, entry: Entry) -> _CollectedVersion:
        key: tuple[object, ...]
        if not has_data(entry):
            key = (entry.kind, content_of_folder(tree, entry, self.pulse) if entry.kind == "folder" else (entry.target, entry.rdev))
            return next(iter(self._newest_first(key)), None) or _CollectedVersion(key, [], differs=True)
        key = (entry.kind, entry.size)
        alike = list(self._newest_first(key))
        for version in alike:
            if _compared(version, tree, entry):
                return version
        made = _CollectedVersion(key, [], differs=True)
        if alike:
            made.digest = sha256(tree, entry.path, self.pulse)
            for version in alike:
                if _digest(version, self.pulse) == made.digest:
                    return version
        return made

    def _newest_first(self, key: tuple[object, ...]) -> Iterable[_CollectedVersion]:
        """Yields the versions with that key; the most recent one first, because it is the most likely."""
        alike = [version for version in self.kept if version.key == key]
        return sorted(alike, key=lambda version: version.last[0].name, reverse=True)


def _compared(collected: _CollectedVersion, tree: Tree, entry: Entry) -> bool | None:
    """Returns True if a version has the same data as `entry`; None if unknown. Entries without data are equal."""
    backup, last = collected.last
    if not has_data(entry) or untouched(last, entry):
        return True
    try:
        with Tree(backup.path) as other:
            return same_data(tree, entry, other, last)
    except OSError:
        return None


def _same_xattrs(collected: _CollectedVersion, tree: Tree, entry: Entry) -> bool:
    """Returns True if a version has the same extended attributes as `entry`, as far as they can be read."""
    backup, last = collected.last
    if untouched(last, entry):
        return True
    try:
        with Tree(backup.path) as other, parent_of(other, last.path) as before, parent_of(tree, entry.path) as after:
            return _of_the_host(attributes(*before)) == _of_the_host(attributes(*after))
    except OSError:
        return True


def _of_the_host(xattrs: dict[str, bytes]) -> dict[str, bytes]:
    """Leaves out the properties of btrfs, such as the compression, which a rewritten file gets from the pool."""
    return {name: value for name, value in xattrs.items() if not name.startswith("btrfs.")}


def _digest(collected: _CollectedVersion, pulse: Pulse) -> str | None:
    """Returns the checksum of a version's data; None if the backup that has it was just deleted."""
    backup, last = collected.last
    if collected.digest is None:
        try:
            with Tree(backup.path) as tree:
                collected.digest = sha256(tree, last.path, pulse)
        except OSError:
            return None
    return collected.digest


def content_of_folder(tree: Tree, folder: Entry, pulse: Pulse) -> str:
    """Returns a checksum of the list of everything below a folder."""
    from hashlib import sha256 as new

    digest, above = new(), len(folder.path.rstrip(b"/"))
    for entry in entries(tree, folder.path):
        pulse()
        time = entry.mtime if has_data(entry) else 0
        size = entry.size if has_data(entry) else 0
        words = (entry.kind, size, time, entry.target, entry.rdev) if entry.path != folder.path else entry.kind
        digest.update(entry.path[above:] + b"\0" + repr(words).encode() + b"\0")
    return digest.hexdigest()


def versions(
    backups: Sequence[Restorable],
    path: bytes,
    by_content: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
    pulse: Pulse = steady,
) -> PathHistory:
    """Returns the history of `path` over these backups of one host, in any order. A backup that is deleted during this is
    skipped.

    `progress` is called with the number of backups done, and of all. If `pulse` raises TimeBudgetUsedUp, this returns the history
    of the backups before. Raises ValueError if `path` is not a path.
    """
    collected, seen, stopped = _VersionCollector(by_content, pulse), list[tuple[Restorable, str, int | None]](), False
    ordered = sorted(backups, key=lambda backup: backup.name)
    for number, backup in enumerate(ordered):
        progress(number, len(ordered))
        try:
            pulse()
            sighting = _read_backup(collected, backup, path)
        except TimeBudgetUsedUp:
            stopped = True
            break
        if sighting is not None:
            seen.append((backup, *sighting))
    return replace(_history(path, by_content, collected.kept, seen), stopped=stopped)


def _read_backup(collected: _VersionCollector, backup: Restorable, path: bytes) -> tuple[str, int | None] | None:
    """Returns what a backup shows, and the number of the version; None if the backup was just deleted."""
    try:
        tree = Tree(backup.path)
    except OSError:
        return None if not backup.path.is_dir() else (UNREADABLE, None)
    with tree:
        try:
            return THERE, collected.take(backup, tree, tree.stat(path))
        except OSError as error:
            if error.errno not in NOT_THERE:
                return UNREADABLE, None
            return (_absence(tree, backup, path), None) if backup.path.is_dir() else None


def _absence(tree: Tree, backup: Restorable, path: bytes) -> str:
    names = components(path)
    with suppress(OSError):
        last, depth = deepest(tree, names)
        if last.kind == "symlink" and depth < len(names):
            return LINKED
    return absence(backup, path)


def absence(backup: Restorable, path: bytes) -> str:
    """Returns the reason why a backup lacks that path. Only a backup that read the source path proves that the host did not have
    the path.
    """
    sources = [source.encode("utf-8", "surrogateescape") for source in backup.record.settings.get("paths", ())]
    covering = [source for source in sources if path == source or path.startswith(source.rstrip(b"/") + b"/")]
    if sources and not covering:
        return LEFT_OUT
    done = [backup.record.path(source.decode("utf-8", "surrogateescape")) for source in covering]
    looked_through = (None, PathOutcome.COMPLETE, PathOutcome.SUSPECT)
    return MISSING if all((path_result and path_result.outcome) in looked_through for path_result in done) else UNFINISHED


def _history(
    path: bytes, by_content: bool, kept: list[_CollectedVersion], seen: list[tuple[Restorable, str, int | None]]
) -> PathHistory:
    gone = list(_gone(kept, seen))
    return PathHistory(
        path,
        by_content,
        tuple(_version(version) for version in kept),
        tuple(gone),
        tuple(PathInBackup(backup.name, backup.started, backup.state, state, version) for backup, state, version in seen),
    )


def _gone(kept: list[_CollectedVersion], seen: list[tuple[Restorable, str, int | None]]) -> Iterable[Absence]:
    """Yields the periods in which the path was missing after it had existed. A backup that shows nothing about the path neither
    starts nor ends one.
    """
    current: _CollectedVersion | None = None
    span: list[Restorable] = []
    for backup, state, version in seen:
        if version is not None:
            if span:
                yield _span(span, backup)
            current, span = kept[version], []
            current.vanished = None
        elif state == MISSING and current:
            if not span:
                current.vanished = backup.started
            span.append(backup)
    if span:
        yield _span(span, None)


def _span(span: Sequence[Restorable], after: Restorable | None) -> Absence:
    return Absence(
        first=span[0].name,
        since=span[0].started,
        last=span[-1].name,
        backups=len(span),
        came_back=after.name if after else None,
        until=after.started if after else None,
        doubtful=not any(backup.state in (COMPLETE, "expired") for backup in span),
    )


def _version(collected: _CollectedVersion) -> Version:
    backups = [backup for backup, _ in collected.sightings]
    first, (last, entry) = backups[0], collected.last
    complete = [backup.name for backup in backups if backup.state == COMPLETE]
    return Version(
        entry=entry,
        first=first.name,
        last=last.name,
        names=tuple(backup.name for backup in backups),
        first_seen=first.started,
        last_seen=last.started,
        best=complete[-1] if complete else last.name,
        states=tuple(sorted({backup.state for backup in backups})),
        changed=_changed(collected),
        certain=collected.certain,
        vanished=collected.vanished,
        same_content_as=collected.same_as,
        sha256=collected.digest,
    )


def _changed(collected: _CollectedVersion) -> tuple[str, ...]:
    if collected.before is None:
        return ()
    fields = changed_fields(collected.before, collected.sightings[0][1])
    kind, is_same_kind = collected.before.kind, collected.before.kind == collected.last[1].kind
    fields = (*fields, "xattrs") if collected.xattrs_differ and is_same_kind else fields
    return (*fields, "content") if collected.differs and is_same_kind and kind in ("file", "folder") else fields
