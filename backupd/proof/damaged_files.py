"""The damaged files: each once, with all backups that share it, and with the backups that have another copy of it.

A file that snapshots share is the same data in all of them. Recorded checksums prove that another copy is good, without reading. A
damaged file keeps the checksum of its last good read, and the run that fetched it may have recorded one. A copy is proven to be
good if it was read without errors and one of the two checksums is equal.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import groupby
from os import fsencode
from pathlib import Path
from types import TracebackType
from typing import Self

from backupd.files.backup_selector import Restorable, restorable
from backupd.files.tree import Entry, Tree
from backupd.files.walking import entries
from backupd.repo.backup_json import UnreadableRecord
from backupd.repo.checksums import NO_DIGEST, Checksums, Key, key_of, read_sums
from backupd.repo.common_backups import CommonBackups, common_backups
from backupd.repo.pool_context import PoolContext
from backupd.repo.pool_files import names_of
from backupd.repo.read_lock import lock_for_reading
from btrkeep.backup_states import COMPLETE
from btrkeep.catalogue import Damage
from btrkeep.errors import OperatorError, UsageError
from btrkeep.pool.marker import Pool


@dataclass(frozen=True, slots=True)
class RecordedContent:
    """The recorded content of a file. `digest`: of the last read without error; `summed`: of the fetched file. None:
    not recorded.
    """

    digest: bytes | None = None
    summed: bytes | None = None
    is_damaged: bool = False
    """True if it was damaged when it was last read."""


class RecordedContents:
    """The recorded contents of the host with this folder. A context manager."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError."""
        self._folder, self._checksums = folder, Checksums(folder)
        self._sums = cache(lambda name: read_sums(folder / name))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._checksums.__exit__(kind, error, trace)

    def of(self, name: str, entry: Entry) -> RecordedContent:
        """Returns the recorded content of a file of that backup."""
        before = self._checksums.find(key_of(entry.inode, entry.changed, entry.size))
        digest = before.digest if before and before.digest != NO_DIGEST else None
        return RecordedContent(digest, self._sums(name).get(entry.path), before is not None and before.damaged)


def is_proven(copy: RecordedContent, damaged: Iterable[RecordedContent]) -> bool:
    """Returns True if the last recorded content of the copy equals that of the damaged file."""
    if copy.is_damaged or copy.digest is None:
        return False
    return any(
        copy.digest == recorded_content.digest or (copy.summed is not None and copy.summed == recorded_content.summed)
        for recorded_content in damaged
    )


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """A damaged path of one host. Backups are named by their folders, oldest first."""

    host: str
    """The host's name."""
    path: str
    """Absolute, as on the host; surrogate escapes for bytes that are not UTF-8."""
    backups: tuple[str, ...]
    """Backups in which it is damaged."""
    places: tuple[tuple[int, int], ...]
    """First byte and number of bytes (0: unknown) of each damaged range, over all backups."""
    found_by: tuple[str, ...]
    """The checks that found it, of FOUND_BY."""
    found_at: datetime
    """When the damage was found."""
    similar: tuple[str, ...]
    """Backups with another inode at that path, of the same size and time, without known damage.

    A backup with the same inode, changed since, may still share damaged data.
    """
    next_night: bool
    """True if it is damaged in the newest complete backup, so that the next run fetches it from the host."""
    known: tuple[str, ...]
    """All backups of the host."""
    proven: tuple[str, ...] = ()
    """Backups with another copy that has the recorded checksum of the file, at any time."""
    replicas: tuple[str, ...] = ()
    """Replicas that have one of these backups."""

    @property
    def bytes(self) -> int:
        """Returns the number of bytes known to be damaged."""
        return sum(length for _, length in self.places)


def damaged_files(context: PoolContext, rows: Iterable[Damage]) -> list[DamagedFile]:
    """Returns the damaged files by host and path. Opens each damaged backup once. Raises OSError for anything but damage."""
    ordered = sorted(rows, key=lambda row: (row.host, row.path))
    files: list[DamagedFile] = []
    common = _common(context)
    for host, damages in groupby(ordered, key=lambda damage: damage.host):
        with RecordedContents(context.pool.host(host)) as recorded:
            files += _of_host(context, host, list(damages), recorded, common.get(host, {}))
    return files


def _common(context: PoolContext) -> CommonBackups:
    try:
        return common_backups(context.pool, with_initial_copies=False)
    except UnreadableRecord:  # expiry reports it
        return {}


def _of_host(
    context: PoolContext,
    host: str,
    rows: Sequence[Damage],
    recorded: RecordedContents,
    common: Mapping[str, tuple[str, ...]],
) -> list[DamagedFile]:
    backups = _backups(context, host)
    names = tuple(sorted(backup.name for backup in backups))
    newest = next((backup.name for backup in backups if backup.state == COMPLETE), None)
    paths = {fsencode(row.path) for row in rows}
    seen = {backup.name: _entries(backup, paths) for backup in backups}
    bad = {(damage.name, damage.path) for damage in context.catalogue.damages(host) if damage.fate is None}
    files = []
    for path, group in groupby(rows, key=lambda row: row.path):
        damages = list(group)
        have = {damage.name for damage in damages}
        entries = {name: entry for name in have if (entry := seen.get(name, {}).get(fsencode(path)))}
        contents = {_size_and_time(entry) for entry in entries.values()}
        inodes = {entry.inode for entry in entries.values()}
        copies = {
            name: entry
            for name in names
            if (name, path) not in bad and (entry := seen[name].get(fsencode(path))) and entry.inode not in inodes
        }
        similar = tuple(name for name, entry in copies.items() if _size_and_time(entry) in contents)
        places = tuple(sorted({(damage.start, damage.length) for damage in damages}))
        by = tuple(sorted({damage.found_by for damage in damages}))
        at = min(damage.found_at for damage in damages)
        was = [recorded.of(name, entry) for name, entry in entries.items()] if "source" not in by else []  # readable, but wrong
        proven = tuple(name for name, entry in copies.items() if is_proven(recorded.of(name, entry), was))
        replicas = tuple(sorted({replica for name in have for replica in common.get(name, ())}))
        files.append(DamagedFile(host, path, tuple(sorted(have)), places, by, at, similar, newest in have, names, proven, replicas))
    return files


def _backups(context: PoolContext, host: str) -> list[Restorable]:
    try:
        return list(restorable(context.pool, host))
    except UsageError:  # the pool no longer has the host; the catalogue will be updated
        return []


def _entries(backup: Restorable, paths: set[bytes]) -> dict[bytes, Entry]:
    """Returns the entries at those paths that can be read."""
    entries_by_path = {}
    try:
        with Tree(backup.path) as tree:
            for path in paths:
                try:
                    entry = tree.stat(path)
                except (OSError, ValueError):  # missing, or damaged itself: not a copy
                    continue
                if entry.kind == "file":
                    entries_by_path[path] = entry
    except OSError:  # just deleted
        return {}
    return entries_by_path


def _size_and_time(entry: Entry) -> tuple[int, int]:
    return entry.size, entry.mtime


_MOST = 1000  # files that are searched in each backup; others are found when the backup is read


@dataclass(frozen=True, slots=True)
class FoundDamage:
    """A path in a backup that is damaged."""

    path: bytes
    """The path on the host."""
    start: int
    """The first damaged byte."""
    key: Key | None = None
    """The file's inode and change time, by which other backups with it are found; None: they are not searched."""


def backups_that_share(pool: Pool, host: str, name: str, files: Sequence[FoundDamage]) -> Iterator[tuple[str, list[FoundDamage]]]:
    """Returns the host's backups except `name` that have some of the files at the same path, with those paths. Unreadable backups
    have none.
    """
    found_damages = [file for file in files if file.key is not None][:_MOST]
    for other in sorted(names_of(pool, host) - {name}) if found_damages else ():
        path = pool.host(host) / other
        with suppress(OperatorError, OSError), lock_for_reading(path), Tree(path) as tree:
            if same := [found_damage for found_damage in found_damages if _has(tree, found_damage)]:
                yield other, same


def recorded_damage(pool: Pool, host: str, name: str) -> list[bytes]:
    """Returns the paths of all files of a backup that were damaged when last read; none for an unreadable backup."""
    path = pool.host(host) / name
    with suppress(OperatorError, OSError), lock_for_reading(path), Tree(path) as tree, Checksums(pool.host(host)) as checksums:
        return [entry.path for entry in entries(tree, b"/") if entry.kind == "file" and _is_damaged(entry, checksums)]
    return []


def _is_damaged(entry: Entry, checksums: Checksums) -> bool:
    before = checksums.find(key_of(entry.inode, entry.changed, entry.size))
    return before is not None and before.damaged


def _has(tree: Tree, file: FoundDamage) -> bool:
    try:
        entry = tree.stat(file.path)
    except OSError:
        return False
    return entry.kind == "file" and key_of(entry.inode, entry.changed, entry.size) == file.key
