"""Plans the repair of a damaged backup: reads every copy that would be used, and changes nothing."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby
from os import fsencode
from pathlib import Path

from backupd.files.backup_selector import Restorable, restorable
from backupd.files.file_digest import FileRead
from backupd.files.tree import Entry, Tree
from backupd.repo.checksums import NO_DIGEST, Checksums, Key
from backupd.repo.context import PoolContext
from backupd.repo.read_lock import read
from backupd.repo.sums import read_sums
from backupd.run.repair.proof import RecordedSums, RepairProof, equal_where_readable, key, read_whole
from btrkeep.process.cancellation import Cancelled


class FileFate(StrEnum):
    """The planned treatment of a damaged file."""

    REPAIRED = "repaired"
    WHOLE = "whole"
    """It can be read, and its content is right: it was repaired, or is now read from another disk."""
    UNPROVEN = "unproven"
    """There is a copy of the same size and time, but nothing proves its content."""
    NO_COPY = "no-copy"
    HOST_DIFFERS = "host-differs"
    """The host has other content: it is unknown which of the two is right."""
    NO_FILE = "no-file"
    """It is no plain file, or its metadata cannot be read."""


@dataclass(frozen=True, slots=True)
class GoodCopy:
    """An intact copy of a damaged file. `place`: the folder of a backup, or one given with --from.

    `key`: its state when it was read.
    """

    place: Path
    backup: str | None
    """The backup's name."""
    path: bytes
    key: Key
    proof: RepairProof
    digest: bytes

    @property
    def name(self) -> str:
        """Returns the name of the backup or folder."""
        return self.backup or str(self.place)

    def tree(self) -> Tree:
        """Opens where it lies. Raises OSError."""
        return Tree(self.place) if self.backup else Tree.of_folder(self.place)


@dataclass(frozen=True, slots=True)
class DamagedCopy:
    """A damaged path of one backup and its treatment. `inode`: of the damaged file; 0 if it is missing."""

    path: bytes
    fate: FileFate
    inode: int = 0
    copy: GoodCopy | None = None


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """A damaged backup. `repaired_in`: an earlier repair has made that copy of it, so nothing is done."""

    backup: Restorable
    files: tuple[DamagedCopy, ...]
    repaired_in: str | None = None

    @property
    def repairs(self) -> tuple[DamagedCopy, ...]:
        """Returns the files that would be replaced."""
        return tuple(one for one in self.files if one.fate == FileFate.REPAIRED)

    @property
    def is_proven(self) -> bool:
        """Returns True if each of these has the recorded content."""
        return all(one.copy and one.copy.proof == RepairProof.CHECKSUM for one in self.repairs)

    @property
    def leaves(self) -> tuple[DamagedCopy, ...]:
        """Returns the files that stay damaged in the copy, too."""
        return tuple(one for one in self.files if one.fate not in (FileFate.REPAIRED, FileFate.WHOLE))


class RepairPlanner:
    """Plans for one host. Files read for one backup are not read again for the next."""

    def __init__(
        self, site: PoolContext, host: str, folders: Sequence[Path], goes_on: Callable[[], bool], *, unproven: bool = False
    ) -> None:
        """`folders`: with files as the host has them, below their own paths. `unproven`: size and time are enough."""
        self._site, self._host, self._folders, self._goes_on, self._unproven = site, host, folders, goes_on, unproven
        self.backups = list(restorable(site.pool, host))
        """All of the host's, newest first."""
        self._damages = [one for one in site.catalogue.damages(host) if one.fate is None]
        self._bad = {(one.name, fsencode(one.path)) for one in self._damages}
        self._known: dict[tuple[Key, bytes, RecordedSums], DamagedCopy] = {}

    @property
    def damaged(self) -> list[Restorable]:
        """Returns the backups that have damaged files, oldest first."""
        names = {one.name for one in self._damages}
        return [one for one in reversed(self.backups) if one.name in names]

    def plan(self, backup: Restorable) -> RepairPlan:
        """Raises OSError that is no damage, OperatorError when the backup is being deleted, and Cancelled."""
        rows = sorted((one for one in self._damages if one.name == backup.name), key=lambda one: one.path)
        done = next((one.name for one in self.backups if _is_copy_of(one, backup)), None)
        with read(backup.path), Tree(backup.path) as tree, Checksums(self._site.pool.host(self._host)) as known:
            sums, files = read_sums(backup.path), []
            found = {path: {one.found_by for one in some} for path, some in groupby(rows, key=lambda one: fsencode(one.path))}
            by_inode = {_inode(tree, path): sums[path] for path in found.keys() & sums.keys()}
            for path, found_by in found.items():
                summed = sums.get(path) or by_inode.get(_inode(tree, path))  # the run recorded one of a file's names
                files.append(self._file(backup, tree, path, found_by, (known, summed)))
        return RepairPlan(backup, tuple(files), done)

    def _file(
        self, backup: Restorable, tree: Tree, path: bytes, found_by: set[str], recorded: tuple[Checksums, bytes | None]
    ) -> DamagedCopy:
        try:
            entry = tree.stat(path)
        except (OSError, ValueError):
            return DamagedCopy(path, FileFate.NO_FILE)
        if entry.kind != "file":
            return DamagedCopy(path, FileFate.NO_FILE)
        if "source" in found_by:
            return DamagedCopy(path, FileFate.HOST_DIFFERS, entry.inode)
        known, summed = recorded
        before = known.find(key(entry))
        expected = RecordedSums.of(summed, before.digest if before else NO_DIGEST)
        asked = (key(entry), path, expected)
        if asked not in self._known:
            self._known[asked] = self._look(backup, tree, entry, expected)
        return self._known[asked]

    def _look(self, backup: Restorable, tree: Tree, entry: Entry, expected: RecordedSums) -> DamagedCopy:
        own = self._read(tree, entry, expected)
        if own is not None and own.bad is None and (not expected.are_known or expected.are_those_of(own)):
            return DamagedCopy(entry.path, FileFate.WHOLE, entry.inode)
        unproven: GoodCopy | None = None
        for copy, there in self._candidates(backup, entry, expected):
            with copy.tree() as other:
                found = self._read(other, there, expected)
                if found is None or found.bad is not None:
                    continue
                if expected.are_known:
                    if expected.are_those_of(found):
                        return DamagedCopy(
                            entry.path,
                            FileFate.REPAIRED,
                            entry.inode,
                            replace(copy, digest=found.digest, proof=RepairProof.CHECKSUM),
                        )
                elif unproven is None and (proof := self._compared(tree, other, entry)):
                    unproven = replace(copy, digest=found.digest, proof=proof)
        if unproven is None:
            return DamagedCopy(entry.path, FileFate.NO_COPY, entry.inode)
        fate = FileFate.REPAIRED if self._unproven else FileFate.UNPROVEN
        return DamagedCopy(entry.path, fate, entry.inode, unproven)

    def _read(self, tree: Tree, entry: Entry, expected: RecordedSums) -> FileRead | None:
        """Returns None for a file that cannot be opened. Raises Cancelled."""
        try:
            fd = tree.open_file(entry.path)
        except (OSError, ValueError):
            return None
        found = read_whole(fd, entry, expected, self._goes_on)
        if found is None:
            raise Cancelled
        return found

    def _compared(self, tree: Tree, other: Tree, entry: Entry) -> RepairProof | None:
        """Returns how the other file agrees with the readable part of the damaged one; None if it differs."""
        with ExitStack() as held:
            bad, good = (held.enter_context(_closing(one.open_file(entry.path))) for one in (tree, other))
            equal = equal_where_readable(bad, good, entry.size, self._goes_on)
        if not self._goes_on():
            raise Cancelled
        if equal is None:
            return None
        return RepairProof.READABLE if equal else RepairProof.TIME

    def _candidates(self, backup: Restorable, entry: Entry, expected: RecordedSums) -> Iterator[tuple[GoodCopy, Entry]]:
        """Yields other files at that path, of that size; without a recorded checksum also of that time. Those of the same time
        come first.
        """
        found = list(self._others(backup, entry))
        if not expected.are_known:
            found = [one for one in found if one[1].mtime == entry.mtime]
        tried = {key(entry)}
        for copy, there in sorted(found, key=lambda one: one[1].mtime != entry.mtime):
            if copy.backup is None or copy.key not in tried:
                tried.add(copy.key)
                yield copy, there

    def _others(self, backup: Restorable, entry: Entry) -> Iterator[tuple[GoodCopy, Entry]]:
        named = [(one.path, one.name) for one in self.backups if one.name != backup.name]
        for place, name in [*named, *((folder, None) for folder in self._folders)]:
            if name and (name, entry.path) in self._bad:
                continue
            copy = GoodCopy(place, name, entry.path, b"", RepairProof.TIME, NO_DIGEST)
            with suppress(OSError, ValueError), copy.tree() as tree:
                there = tree.stat(entry.path)
                if there.kind == "file" and there.size == entry.size:
                    yield replace(copy, key=key(there)), there


def _inode(tree: Tree, path: bytes) -> int:
    """Returns 0 for what is not there."""
    try:
        return tree.stat(path).inode
    except (OSError, ValueError):
        return 0


def _is_copy_of(one: Restorable, backup: Restorable) -> bool:
    made_of = one.record.repaired or {}
    return made_of.get("of") == backup.name and made_of.get("of_uuid") == backup.record.uuid


@contextmanager
def _closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)
