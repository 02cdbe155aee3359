"""Compares files of a host's newest complete backup with the host's present files, by content.

If size and time are equal and the content differs, either the backup is damaged, or the host changed the file and reset its time,
which no backup by size and time detects. The two cases cannot be distinguished here. In both the next run has to fetch the file, so
it is recorded as damaged. A file whose size or time differs was changed since, and proves nothing.
"""

import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import blake2b
from pathlib import Path

from backupd.files.backup_selector import Restorable, find
from backupd.files.tree import Tree, components
from backupd.files.walking import walk
from backupd.proof.damaged_files import FoundDamage, backups_that_share
from backupd.repo.backup_json import DATA
from backupd.repo.checksums import key_of
from backupd.repo.final_backups import LATEST
from backupd.repo.pool_files import names_of
from backupd.repo.read_lock import lock_for_reading
from backupd.repo.verification_files import (
    Comparison,
    HostComparisons,
    NextSlice,
    compared_row,
    enter_damages,
    read_compared,
    write_compared,
)
from backupd.rsync.bandwidth import make_buckets
from backupd.rsync.comparing import ContentVerdict, HostFolder, HostSession, OutOfTime, compare, real_folders
from btrkeep.catalogue import Catalogue, Damage
from btrkeep.config import Config, HostConfig
from btrkeep.decisions.repeated import AttemptOutcome, Step, noted_attempt
from btrkeep.pool.marker import Pool
from btrkeep.process.progress import Cancellation

_FIRST, _MOST = 250, 2000  # files in a connection: in the first one, and at most
_FIRST_SIZE, _LARGEST = 64 << 20, 1 << 30  # their bytes, unless a single file is larger
_PAUSE = 5.0  # seconds before the second comparison: a file that is being written has a new time by then


@dataclass(frozen=True, slots=True)
class SourceScope:
    """The files to compare."""

    sample: int | float = 1.0
    """A number: about this many files, chosen at random; a share: the next slice of that size."""
    seconds: float | None = None
    """The time limit; files that are being compared when it ends count as not compared. None: no limit."""


@dataclass(frozen=True, slots=True)
class SourceFindings:
    """The result for one host."""

    backup: Restorable
    """The backup that was compared."""
    comparison: Comparison
    """The numbers."""
    differing: tuple[bytes, ...]
    """The paths that differ."""
    is_over: bool
    """True if the whole sample was compared."""
    passed_over: int = 0
    """Number of files that were skipped for lack of time."""


@dataclass(slots=True)
class _HostLook:
    """The progress of the comparison with one host."""

    verdicts: dict[bytes, ContentVerdict] = field(default_factory=dict)
    """The verdict on each file."""
    after: bytes | None = None
    """The last path that was compared; None: none."""
    is_over: bool = True
    """True if the whole sample was compared."""
    passed_over: int = 0
    """Number of files that were skipped for lack of time."""


def in_slice(path: bytes, key: bytes, number: int, slices: int) -> bool:
    """Returns True if a path is in that slice: each path is always in the same one. A host does not know the key."""
    return int.from_bytes(blake2b(path, key=key, digest_size=8).digest()) % slices == number % slices


def slices_of(share: float) -> int:
    """Returns the number of slices of that share: this many comparisons cover every file once."""
    return max(1, round(1 / share)) if share > 0 else 0


class SourceComparison:
    """Compares hosts one after the other. The caller holds the lock `source` of the pool."""

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
        """`tell` is called with the number of compared files. `confined`: the rsync that talks to a host is confined."""
        self.pool, self.catalogue, self.config, self.scope = pool, catalogue, config, scope
        self.cancellation, self.tell, self.confined = cancellation, tell, confined
        self.files = 0
        self._begun = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Returns True if no further connection may be opened: cancelled, or the time is over."""
        return bool(self.cancellation) or self._left <= 0

    @property
    def _left(self) -> float:
        return math.inf if self.scope.seconds is None else self._begun + self.scope.seconds - time.monotonic()

    def compare(self, host: HostConfig, now: datetime) -> SourceFindings | None:
        """Compares the newest complete backup of the host; returns None if cancelled, without recording anything.

        Raises OperatorError, also if the host cannot be reached or the connection breaks; then only that is recorded.
        """
        with noted_attempt(self.catalogue, Step.AGAINST_SOURCE, now, host.name) as attempt:
            findings = self._compare(host, now)
            if findings is None:
                attempt.end(AttemptOutcome.UNFINISHED, "it was stopped")
            else:
                attempt.end(AttemptOutcome.DONE)
        return findings

    def _compare(self, host: HostConfig, now: datetime) -> SourceFindings | None:
        backup = find(self.pool, host.name, LATEST)
        host_comparisons = read_compared(self.pool.host(host.name))
        slices = 0 if isinstance(self.scope.sample, int) else slices_of(self.scope.sample)
        following = host_comparisons.next_of(slices)
        chooses = self._choice(backup, following, slices)
        session = HostSession(host, self.config.ssh)
        with lock_for_reading(backup.path), Tree(backup.path) as tree, session:
            done = self._look_at(session, host, backup, tree, chooses, following.after)
            if done is None:
                return None
            differing = tuple(
                sorted(path for path, content_verdict in done.verdicts.items() if content_verdict is ContentVerdict.DIFFERS)
            )
            self._enter(backup, tree, differing, now)
            kinds = Counter(done.verdicts.values())
            alike, changed = kinds[ContentVerdict.ALIKE], kinds[ContentVerdict.CHANGED]
            comparison = Comparison(now, len(done.verdicts), alike, changed, len(differing), tuple(map(os.fsdecode, differing)))
            if slices:
                to_come = NextSlice(following.number + 1) if done.is_over else NextSlice(following.number, done.after)
                host_comparisons = replace(host_comparisons, slices={**host_comparisons.slices, slices: to_come})
            self._write_down(backup, comparison, host_comparisons)
        return SourceFindings(backup, comparison, differing, done.is_over, done.passed_over)

    def _choice(self, backup: Restorable, following: NextSlice, slices: int) -> Callable[[bytes], bool]:
        """Returns how the paths to compare are chosen."""
        if isinstance(self.scope.sample, int):
            share, chance = self.scope.sample / max(1, backup.record.files or 0), random.SystemRandom()
            return lambda _: chance.random() < share
        key = self.pool.id.encode()[:64]
        return lambda path: slices > 0 and in_slice(path, key, following.number, slices)

    def _look_at(
        self,
        session: HostSession,
        host: HostConfig,
        backup: Restorable,
        tree: Tree,
        chooses: Callable[[bytes], bool],
        after: bytes | None,
    ) -> _HostLook | None:
        """Compares the chosen files after `after`, in the order of paths, until the end or the time limit; None if cancelled.

        Skips a file that takes more than half of the time: otherwise the next comparison would start with it, and perhaps every
        one.
        """
        done = _HostLook(after=after)
        for path in sorted(_outermost(host.paths), key=_order_of):
            folder = self._folder(session, host, backup, path)
            for names in _batches(tree, os.fsencode(path), chooses, after):
                left = self._left
                looked = None if self.is_over else self._looked_twice(folder, names)
                if self.cancellation:
                    return None
                if looked is None:
                    done.is_over = False
                    if self.scope.seconds is not None and left >= self.scope.seconds / 2:
                        done.after, done.passed_over = _joined(path, names[-1]), len(names)
                    return done
                done.verdicts |= {_joined(path, name): content_verdict for name, content_verdict in looked.items()}
                done.after = _joined(path, names[-1])
                self.files += len(names)
                self.tell(self.files)
        return done

    def _looked_twice(self, folder: HostFolder, names: Sequence[bytes]) -> dict[bytes, ContentVerdict] | None:
        """Compares differing files and the folders above them again, a while later; None: cancelled, or the time is over."""
        try:
            verdicts = compare(folder, names, self.cancellation, seconds=self._seconds(folder.host))
            suspect = [name for name, content_verdict in (verdicts or {}).items() if content_verdict is ContentVerdict.DIFFERS]
            if verdicts is None or not suspect:
                return verdicts
            self.cancellation.sleep(min(_PAUSE, max(0.0, self._left)))
            again = compare(folder, suspect, self.cancellation, seconds=self._seconds(folder.host))
            above = {name: set(_folders_above(name)) for name in suspect}
            every = set[bytes]().union(*above.values())
            real = real_folders(folder, every, self.cancellation, seconds=self._seconds(folder.host)) if every else set[bytes]()
        except OutOfTime:
            if self._left > 0:
                raise
            return None
        if again is None or real is None:
            return None
        return verdicts | {
            name: content_verdict if above[name] <= real else ContentVerdict.CHANGED for name, content_verdict in again.items()
        }

    def _seconds(self, host: HostConfig) -> float:
        return min(host.deadline, max(0.0, self._left))

    def _folder(self, session: HostSession, host: HostConfig, backup: Restorable, path: str) -> HostFolder:
        buckets = make_buckets(self.config, self.pool, host)
        return HostFolder(self.config, host, path, backup.path / DATA, session, buckets, self.confined and bool(host.address))

    def _enter(self, backup: Restorable, tree: Tree, differing: Sequence[bytes], now: datetime) -> None:
        """Records the damage: for this backup, and for later ones that share the file, because the next run only checks its base.

        Older ones are not included: if the host changed a file without changing its time, they were right when they were made.
        """
        found_damages = []
        for path in differing:
            entry = tree.stat(path)
            found_damages.append(FoundDamage(path, 0, key_of(entry.inode, entry.changed, entry.size)))
        every = {
            name: files
            for name, files in backups_that_share(self.pool, backup.host, backup.name, found_damages)
            if name > backup.name
        }
        every[backup.name] = found_damages
        rows = [_damage(backup.host, name, file, now) for name, files in every.items() for file in files]
        enter_damages(self.pool, self.catalogue, [backup.host], rows)

    def _write_down(self, backup: Restorable, comparison: Comparison, comparisons: HostComparisons) -> None:
        """Records the result in the pool, then in the catalogue. A comparison without files replaces no other result."""
        folder, names = self.pool.host(backup.host), names_of(self.pool, backup.host)
        backups = {name: comparison for name, comparison in comparisons.backups.items() if name in names}
        if comparison.files or backup.name not in backups:
            backups[backup.name] = comparison.with_those_of(backups.get(backup.name))
        write_compared(folder, replace(comparisons, backups=backups))
        self.catalogue.put_comparisons(compared_row(backup.host, name, comparison) for name, comparison in backups.items())


def _damage(host: str, name: str, file: FoundDamage, now: datetime) -> Damage:
    return Damage(host, name, os.fsdecode(file.path), file.start, 0, "source", now)


def _outermost(paths: Sequence[str]) -> list[str]:
    """Returns the paths that are not below another one."""
    folders = [Path(path) for path in paths]
    return [str(folder) for folder in folders if not any(other in folder.parents for other in folders)]


def _joined(path: str, name: bytes) -> bytes:
    return os.fsencode(path.rstrip("/")) + b"/" + name


def _order_of(path: str | bytes) -> list[bytes]:
    """Returns a key that sorts paths in the order of the walk, whatever characters come before a slash."""
    return components(os.fsencode(path))


def _folders_above(name: bytes) -> Iterator[bytes]:
    while name := name.rpartition(b"/")[0]:
        yield name


def _batches(tree: Tree, path: bytes, chooses: Callable[[bytes], bool], after: bytes | None) -> Iterator[list[bytes]]:
    """Yields the names of chosen plain files below `path`, and after `after`; the first batches are small, so that some fit into
    any time limit.

    Skips unreadable files, which `verify` reports; a path may be missing.
    """
    batch, size, most, largest = list[bytes](), 0, _FIRST, _FIRST_SIZE
    last = _order_of(after) if after is not None else []
    try:
        for walk_entry in walk(tree, path, unreadable=lambda _path, _error: None):
            entry = walk_entry.entry
            if (
                walk_entry.left
                or entry.kind != "file"
                or entry.path == path
                or not chooses(entry.path)
                or _order_of(entry.path) <= last
            ):
                continue
            if batch and (len(batch) >= most or size + entry.size > largest):
                yield batch
                batch, size, most, largest = [], 0, min(_MOST, 4 * most), min(_LARGEST, 4 * largest)
            batch.append(entry.path[len(path.rstrip(b"/")) + 1 :])
            size += entry.size
    except (FileNotFoundError, NotADirectoryError):
        pass
    if batch:
        yield batch
