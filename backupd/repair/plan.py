"""Plans the repair of a damaged backup: reads every copy that would be used, verifies it against the damaged file, and changes
nothing.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from itertools import groupby
from os import fsencode
from pathlib import Path

from backupd.files.backup_selector import Restorable, restorable
from backupd.files.file_digest import FileRead, PlainSum, read_file
from backupd.files.tree import Entry, Tree
from backupd.proof.read_errors import OwnReads
from backupd.repo.checksums import NO_DIGEST, Checksums, Key, ReadBefore, key_of, read_sums
from backupd.repo.pool_context import PoolContext
from backupd.repo.pool_files import names_of
from backupd.repo.read_lock import lock_for_reading
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import DAMAGED
from btrkeep.fs.file_data import PIECE, data_runs
from btrkeep.process.progress import Cancelled

_BLOCK = 4096


class RepairProof(StrEnum):
    """The proof that a copy has the content of the damaged file. The best proof is first."""

    CHECKSUM = "checksum"
    """It has the recorded SHA-256."""
    READABLE = "readable"
    """No checksum is recorded; size and time are equal, and so are all readable blocks."""
    TIME = "time"
    """No checksum is recorded and no block is readable; size and time are equal."""


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
        """Returns True if a checksum is recorded."""
        return self.plain is not None or self.digest is not None

    def matches(self, file_read: FileRead) -> bool:
        """Returns True if the file was read completely and matches its recorded checksum: the one of the run, if there is one."""
        if file_read.bad is not None:
            return False
        return file_read.plain == self.plain if self.plain is not None else file_read.digest == self.digest


def read_whole(fd: int, entry: Entry, sums: RecordedSums, goes_on: Callable[[], bool]) -> FileRead | None:
    """Reads an open file for such a comparison, and closes it; None if it was cancelled. Raises OSError for all errors except
    damage.
    """
    return read_file(fd, entry.path, entry.size, key(entry), goes_on, PlainSum() if sums.plain is not None else None)


def key(entry: Entry) -> Key:
    """Returns the key that identifies the file on this server."""
    return key_of(entry.inode, entry.changed, entry.size)


def equal_where_readable(bad: int, good: int, size: int, goes_on: Callable[[], bool]) -> int | None:
    """Returns the number of readable bytes of the damaged file, if the other file has the same bytes there; None if they differ.

    Holes are zeros. Raises OSError for the good file.
    """
    equal = 0
    for fd in (bad, good):  # including data that only one of them has
        for start, end in data_runs(fd, size):
            for place in range(start, end, PIECE):
                equal_bytes = _equal_piece(bad, good, place, min(PIECE, end - place)) if goes_on() else None
                if equal_bytes is None:
                    return None
                equal += equal_bytes if fd == bad else 0
    return equal


def _equal_piece(bad: int, good: int, place: int, length: int) -> int | None:
    try:
        readable = os.pread(bad, length, place)
    except OSError as error:
        if error.errno not in DAMAGED:
            raise
        if length <= _BLOCK:
            return 0
        parts = [_equal_piece(bad, good, at, min(_BLOCK, place + length - at)) for at in range(place, place + length, _BLOCK)]
        return None if None in parts else sum(part or 0 for part in parts)
    if not readable or os.pread(good, len(readable), place) != readable:
        return None
    if len(readable) == length:
        return length
    rest = _equal_piece(bad, good, place + len(readable), length - len(readable))  # a short read: an unreadable block
    return None if rest is None else len(readable) + rest


class FileFate(StrEnum):
    """The planned treatment of a damaged file."""

    REPAIRED = "repaired"
    WHOLE = "whole"
    """It can be read, and its content is right: it was repaired, or is now read from another disk."""
    UNPROVEN = "unproven"
    """There is a copy of the same size and time, but its content is not proven."""
    NO_COPY = "no-copy"
    HOST_DIFFERS = "host-differs"
    """The host has other content: it is unknown which of the two is right."""
    NO_FILE = "no-file"
    """It is not a plain file, or its metadata cannot be read."""


@dataclass(frozen=True, slots=True)
class GoodCopy:
    """An intact copy of a damaged file."""

    place: Path
    """The folder of a backup, or one given with --from."""
    backup: str | None
    """The backup's name."""
    path: bytes
    """The path of the file in it."""
    key: Key
    """Its inode and change time when it was read."""
    proof: RepairProof
    """The proof that it is undamaged."""
    digest: bytes
    """SHA-256 of its content."""

    @property
    def name(self) -> str:
        """Returns the name of the backup or folder."""
        return self.backup or str(self.place)

    def tree(self) -> Tree:
        """Opens the folder that contains it. A given folder may consist of several mounts of a host's disks. Raises OSError."""
        return Tree(self.place) if self.backup else Tree.of_folder(self.place, with_mounts=True)


@dataclass(frozen=True, slots=True)
class DamagedPath:
    """A damaged file of one backup and its treatment."""

    path: bytes
    """The path on the host."""
    fate: FileFate
    """The treatment of the file."""
    inode: int = 0
    """Its inode number; 0: it is not a plain file, or its metadata cannot be read."""
    copy: GoodCopy | None = None
    """The undamaged copy that replaces it; None: none."""


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """The treatment of a damaged backup."""

    backup: Restorable
    """The backup."""
    files: tuple[DamagedPath, ...]
    """Its damaged files."""
    repaired_in: str | None = None
    """The repaired copy that an earlier repair made, so that nothing is done; None: none."""

    @property
    def repairs(self) -> tuple[DamagedPath, ...]:
        """Returns the files that would be replaced."""
        return tuple(file for file in self.files if file.fate == FileFate.REPAIRED)

    @property
    def unrepaired(self) -> tuple[DamagedPath, ...]:
        """Returns the files that stay damaged in the copy too."""
        return tuple(file for file in self.files if file.fate not in (FileFate.REPAIRED, FileFate.WHOLE))


class RepairPlanner:
    """Plans for one host. Files read for one backup are not read again for the next."""

    def __init__(
        self,
        context: PoolContext,
        host: str,
        folders: Sequence[Path],
        goes_on: Callable[[], bool],
        own: OwnReads,
        *,
        unproven: bool = False,
    ) -> None:
        """`folders`: with files at the same paths as on the host. `unproven`: size and time are sufficient."""
        self._own = own
        self._site, self._host, self._folders, self._goes_on, self._unproven = context, host, folders, goes_on, unproven
        self.backups = list(restorable(context.pool, host))
        """All backups of the host, newest first."""
        self._damages = [damage for damage in context.catalogue.damages(host) if damage.fate is None]
        self._bad = {(damage.name, fsencode(damage.path)) for damage in self._damages}
        self._damaged_paths: dict[tuple[Key, bytes, RecordedSums], DamagedPath] = {}
        self._sums = cache(read_sums)

    @property
    def damaged(self) -> list[Restorable]:
        """Returns the backups that have damaged files, oldest first."""
        names = {damage.name for damage in self._damages}
        return [backup for backup in reversed(self.backups) if backup.name in names]

    @property
    def unreadable(self) -> list[str]:
        """Returns the names of the damaged backups that the disk cannot read, oldest first."""
        unread = names_of(self._site.pool, self._host) - {backup.name for backup in self.backups}
        return sorted({damage.name for damage in self._damages} & unread)

    def plan(self, backup: Restorable) -> RepairPlan:
        """Raises OSError for anything but damage, OperatorError if the backup is being deleted, and Cancelled."""
        rows = sorted((damage for damage in self._damages if damage.name == backup.name), key=lambda damage: damage.path)
        done = next((candidate.name for candidate in self.backups if _is_copy_of(candidate, backup)), None)
        with lock_for_reading(backup.path), Tree(backup.path) as tree, Checksums(self._site.pool.host(self._host)) as checksums:
            found_by = {
                path: {damage.found_by for damage in damages} for path, damages in groupby(rows, key=lambda row: fsencode(row.path))
            }
            entries = {path: _plain_file(tree, path) for path in found_by}
            sums = self._recorded(backup, [entry for entry in entries.values() if entry])
            files = []
            for path, entry in entries.items():
                if entry is None:
                    files.append(DamagedPath(path, FileFate.NO_FILE))
                elif "source" in found_by[path]:
                    files.append(DamagedPath(path, FileFate.HOST_DIFFERS, entry.inode))
                else:
                    files.append(self._file(backup, tree, entry, checksums.find(key(entry)), sums.get(key(entry))))
        return RepairPlan(backup, tuple(_with_other_names(files)), done)

    def _recorded(self, backup: Restorable, entries: Sequence[Entry]) -> dict[Key, bytes]:
        """Returns the checksums that runs recorded for these files, by key: for one name of each, in the backup that fetched it."""
        sums_by_key: dict[Key, bytes] = {}
        for other_backup in (backup, *(other for other in self.backups if other.name != backup.name)):
            sums = self._sums(other_backup.path) if len(sums_by_key) < len({key(entry) for entry in entries}) else {}
            missing_entries = [entry for entry in entries if entry.path in sums and key(entry) not in sums_by_key]
            with suppress(OSError), Tree(other_backup.path) as tree:
                for entry in missing_entries:
                    same_entry = entry if other_backup is backup else _plain_file(tree, entry.path)
                    if same_entry and key(same_entry) == key(entry):
                        sums_by_key[key(entry)] = sums[entry.path]
        return sums_by_key

    def _file(self, backup: Restorable, tree: Tree, entry: Entry, before: ReadBefore | None, summed: bytes | None) -> DamagedPath:
        expected = RecordedSums.of(summed, before.digest if before else NO_DIGEST)
        asked = (key(entry), entry.path, expected)
        if asked not in self._damaged_paths:
            self._damaged_paths[asked] = self._find_good_copy(
                backup, tree, entry, expected, differs=before is not None and before.differs
            )
        return self._damaged_paths[asked]

    def _find_good_copy(
        self, backup: Restorable, tree: Tree, entry: Entry, expected: RecordedSums, *, differs: bool
    ) -> DamagedPath:
        with self._own.counting():
            own = self._read(tree, entry, expected)
        is_right = own is not None and (expected.matches(own) if expected.are_known else own.bad is None and not differs)
        if is_right:
            return DamagedPath(entry.path, FileFate.WHOLE, entry.inode)
        unproven: GoodCopy | None = None
        for copy, candidate in self._candidates(backup, entry, expected):
            with copy.tree() as other:
                file_read = self._read(other, candidate, expected)
                if file_read is None or file_read.bad is not None:
                    continue
                if expected.are_known:
                    if expected.matches(file_read):
                        return DamagedPath(
                            entry.path,
                            FileFate.REPAIRED,
                            entry.inode,
                            replace(copy, digest=file_read.digest, proof=RepairProof.CHECKSUM),
                        )
                elif unproven is None and (proof := self._compared(tree, other, entry)):
                    unproven = replace(copy, digest=file_read.digest, proof=proof)
        if unproven is None:
            return DamagedPath(entry.path, FileFate.NO_COPY, entry.inode)
        fate = FileFate.REPAIRED if self._unproven else FileFate.UNPROVEN
        return DamagedPath(entry.path, fate, entry.inode, unproven)

    def _read(self, tree: Tree, entry: Entry, expected: RecordedSums) -> FileRead | None:
        """Returns None for a file that cannot be opened. Raises Cancelled."""
        try:
            fd = tree.open_file(entry.path)
        except (OSError, ValueError):
            return None
        file_read = read_whole(fd, entry, expected, self._goes_on)
        if file_read is None:
            raise Cancelled
        return file_read

    def _compared(self, tree: Tree, other: Tree, entry: Entry) -> RepairProof | None:
        """Returns how the other file agrees with the readable part of the damaged one; None if it differs."""
        with ExitStack() as held:
            held.enter_context(self._own.counting())
            bad, good = (held.enter_context(ClosingFd(each_tree.open_file(entry.path))) for each_tree in (tree, other))
            equal = equal_where_readable(bad, good, entry.size, self._goes_on)
        if not self._goes_on():
            raise Cancelled
        if equal is None:
            return None
        return RepairProof.READABLE if equal else RepairProof.TIME

    def _candidates(self, backup: Restorable, entry: Entry, expected: RecordedSums) -> Iterator[tuple[GoodCopy, Entry]]:
        """Yields other files at that path with that size; if no checksum is recorded, also with that time. Those of the same time
        come first.
        """
        candidates = list(self._others(backup, entry))
        if not expected.are_known:
            candidates = [pair for pair in candidates if pair[1].mtime == entry.mtime]
        tried = {key(entry)}
        for copy, candidate in sorted(candidates, key=lambda pair: pair[1].mtime != entry.mtime):
            if copy.backup is None or copy.key not in tried:
                tried.add(copy.key)
                yield copy, candidate

    def _others(self, backup: Restorable, entry: Entry) -> Iterator[tuple[GoodCopy, Entry]]:
        named = [(other.path, other.name) for other in self.backups if other.name != backup.name]
        for place, name in [*named, *((folder, None) for folder in self._folders)]:
            if name and (name, entry.path) in self._bad:
                continue
            copy = GoodCopy(place, name, entry.path, b"", RepairProof.TIME, NO_DIGEST)
            with suppress(OSError, ValueError), copy.tree() as tree:
                other_entry = tree.stat(entry.path)
                if other_entry.kind == "file" and other_entry.size == entry.size:
                    yield replace(copy, key=key(other_entry)), other_entry


def _plain_file(tree: Tree, path: bytes) -> Entry | None:
    """Returns None for anything that is not a plain file, does not exist or cannot be read."""
    try:
        entry = tree.stat(path)
    except (OSError, ValueError):
        return None
    return entry if entry.kind == "file" else None


def _with_other_names(files: Sequence[DamagedPath]) -> Iterator[DamagedPath]:
    """Repairs a file in all backups that share it, if there is a copy for one of its names: it is the same data."""
    repaired = {file.inode: file for file in files if file.fate == FileFate.REPAIRED}
    for file in files:
        yield replace(repaired[file.inode], path=file.path) if file.inode in repaired and file.fate != FileFate.REPAIRED else file


def _is_copy_of(candidate: Restorable, backup: Restorable) -> bool:
    made_of = candidate.record.repaired or {}
    return made_of.get("of") == backup.name and made_of.get("of_uuid") == backup.record.uuid
