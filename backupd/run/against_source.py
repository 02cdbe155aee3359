"""Files of a host's newest complete backup compared with what the host has now, by content.

Size and time alike and another content: the backup is damaged, or the host changed the file and put its time back, which no backup
notices that goes by size and time. Which of the two it is cannot be told from here. Either way the next run has to fetch the file,
so it is recorded as damaged. A file whose size or time has moved was changed since, and says nothing.
"""

import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from pathlib import Path

from backupd.actions.shared_damage import FoundDamage, backups_that_share
from backupd.files.backup_selector import Restorable, find
from backupd.files.tree import Tree
from backupd.files.walking import walk
from backupd.repo.backup_json import DATA
from backupd.repo.checksums import key_of
from backupd.repo.compared import Comparison, HostComparisons, read_compared, write_compared
from backupd.repo.final_backups import LATEST
from backupd.repo.listing import names_of
from backupd.repo.read_lock import read
from backupd.rsync.bandwidth import prepare
from backupd.rsync.comparing import ContentVerdict, compare
from backupd.run.context import buckets_of
from btrkeep.catalogue import Catalogue, Damage
from btrkeep.config import Config, HostConfig
from btrkeep.pool.marker import Pool
from btrkeep.process.cancellation import Cancellation

_BATCH = 2000  # files in one connection
_PAUSE = 5.0  # seconds before the second look: a file that is just being written has another time by then


@dataclass(frozen=True, slots=True)
class SourceScope:
    """Which files are compared: with a number, about so many, chosen by chance; else the next slice of that share.

    `seconds`: after so long no further connection is begun. One that runs then is ended at the host's deadline, or at once with
    `must_end`; then nothing is recorded of that host.
    """

    sample: int | float = 1.0
    seconds: float | None = None
    must_end: bool = False


@dataclass(frozen=True, slots=True)
class SourceFindings:
    """What came of one host. `differing`: paths; `is_over`: the whole sample was compared."""

    backup: Restorable
    comparison: Comparison
    differing: tuple[bytes, ...]
    is_over: bool


def in_slice(path: bytes, key: bytes, number: int, slices: int) -> bool:
    """Whether a path is in that one of so many slices: each path is in one, for ever. A host does not know the key."""
    return int.from_bytes(blake2b(path, key=key, digest_size=8).digest()) % slices == number % slices


def slices_of(share: float) -> int:
    """How many slices of that share there are: as many comparisons meet every file once."""
    return max(1, round(1 / share)) if share > 0 else 0


class SourceComparison:
    """Compares hosts one after the other. Whoever makes one has the lock `source` of the pool."""

    def __init__(
        self,
        pool: Pool,
        catalogue: Catalogue,
        config: Config,
        scope: SourceScope,
        cancellation: Cancellation,
        tell: Callable[[int], None],
        *,
        confined: bool,
    ) -> None:
        """`tell` hears how many files were compared in all. `confined`: rsync is, where it talks to a host."""
        self.pool, self.catalogue, self.config, self.scope = pool, catalogue, config, scope
        self.cancellation, self.tell, self.confined = cancellation, tell, confined
        self.files = 0
        self._begun = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether no further connection is begun: cancelled, or out of time."""
        return bool(self.cancellation) or self._left <= 0

    @property
    def _left(self) -> float:
        return math.inf if self.scope.seconds is None else self._begun + self.scope.seconds - time.monotonic()

    def compare(self, host: HostConfig, now: datetime) -> SourceFindings | None:
        """The newest complete backup of the host; None when cancelled, then nothing is recorded.

        Raises OperatorError, too, when the host cannot be reached or ends in the middle: nothing is recorded then either.
        """
        backup = find(self.pool, host.name, LATEST)
        known = read_compared(self.pool.host(host.name))
        chooses, next_slice = self._choice(backup, known)
        found: dict[bytes, ContentVerdict] = {}
        with read(backup.path), Tree(backup.path) as tree:
            suspects = []
            is_over = True
            for path in _outermost(host.paths):
                for names in _batches(tree, os.fsencode(path), chooses):
                    if self.is_over:
                        is_over = False
                        break
                    looked = self._look(host, backup, path, names)
                    if looked is None:
                        return None
                    found |= looked
                    if suspect := [name for name in names if looked[_joined(path, name)] is ContentVerdict.DIFFERS]:
                        suspects.append((path, suspect))
            if suspects:
                self.cancellation.sleep(_PAUSE)
            for path, names in suspects:
                if self.cancellation or (looked := self._look(host, backup, path, names, again=True)) is None:
                    return None
                found |= looked
            differing = tuple(sorted(path for path, one in found.items() if one is ContentVerdict.DIFFERS))
            self._enter(backup, tree, differing, now)
        kinds = Counter(found.values())
        comparison = Comparison(now, len(found), kinds[ContentVerdict.ALIKE], kinds[ContentVerdict.CHANGED], len(differing))
        self._write_down(host.name, backup.name, comparison, next_slice if is_over else known.next_slice)
        return SourceFindings(backup, comparison, differing, is_over)

    def _choice(self, backup: Restorable, known: HostComparisons) -> tuple[Callable[[bytes], bool], int]:
        """Which paths are compared, and the number of the slice after that."""
        if isinstance(self.scope.sample, int):
            share, chance = self.scope.sample / max(1, backup.record.files or 0), random.SystemRandom()
            return lambda _: chance.random() < share, known.next_slice
        slices, key = slices_of(self.scope.sample), self.pool.id.encode()[:64]
        if not slices:
            return lambda _: False, known.next_slice
        return lambda path: in_slice(path, key, known.next_slice, slices), known.next_slice + 1

    def _look(
        self, host: HostConfig, backup: Restorable, path: str, names: Sequence[bytes], *, again: bool = False
    ) -> dict[bytes, ContentVerdict] | None:
        """By paths in the backup. None when cancelled."""
        found = compare(
            self.config,
            host,
            path,
            backup.path / DATA,
            names,
            [prepare(self.pool.bandwidth, one.path.name, one.rate) for one in buckets_of(self.config, self.pool, host)],
            self.cancellation,
            confined=self.confined and bool(host.address),
            seconds=min(host.deadline, self._left) if self.scope.must_end else host.deadline,
        )
        if found is None:
            return None
        if not again:
            self.files += len(found)
            self.tell(self.files)
        return {_joined(path, name): one for name, one in found.items()}

    def _enter(self, backup: Restorable, tree: Tree, differing: Sequence[bytes], now: datetime) -> None:
        """In the catalogue: of this backup, and of those made since that share the file, for the next run looks at its base alone.

        Older ones are left out: what the host changed without moving the time was right when they were made.
        """
        found = []
        for path in differing:
            entry = tree.stat(path)
            found.append(FoundDamage(path, 0, key_of(entry.inode, entry.changed, entry.size)))
        self.catalogue.put_damages(_damage(backup.host, backup.name, one, now) for one in found)
        for name, files in backups_that_share(self.pool, backup.host, backup.name, found):
            if name > backup.name:
                self.catalogue.put_damages(_damage(backup.host, name, one, now) for one in files)

    def _write_down(self, host: str, name: str, comparison: Comparison, next_slice: int) -> None:
        folder, there = self.pool.host(host), names_of(self.pool, host)
        known = {other: one for other, one in read_compared(folder).backups.items() if other in there}
        write_compared(folder, HostComparisons(next_slice, known | {name: comparison}))


def _damage(host: str, name: str, file: FoundDamage, now: datetime) -> Damage:
    return Damage(host, name, os.fsdecode(file.path), file.start, 0, "source", now)


def _outermost(paths: Sequence[str]) -> list[str]:
    """Without those that are below another."""
    folders = [Path(path) for path in paths]
    return [str(one) for one in folders if not any(other in one.parents for other in folders)]


def _joined(path: str, name: bytes) -> bytes:
    return os.fsencode(path.rstrip("/")) + b"/" + name


def _batches(tree: Tree, path: bytes, chooses: Callable[[bytes], bool]) -> Iterator[list[bytes]]:
    """The names of chosen plain files below `path`. What cannot be read is `verify`'s to tell, and a path may be missing."""
    batch: list[bytes] = []
    try:
        for one in walk(tree, path, unreadable=lambda _path, _error: None):
            if not one.left and one.entry.kind == "file" and one.entry.path != path and chooses(one.entry.path):
                batch.append(one.entry.path[len(path.rstrip(b"/")) + 1 :])
            if len(batch) >= _BATCH:
                yield batch
                batch = []
    except (FileNotFoundError, NotADirectoryError):
        pass
    if batch:
        yield batch
