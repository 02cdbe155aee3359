"""Finds equal files of backups by their content, and makes them share their data by FIDEDUPERANGE.

The first file with a content keeps its data, and every later one refers to it, in each of its snapshots, because data is freed only
when it is no longer referenced. Contents are known from `checksums`, which `backupd verify` writes; files that were never read
are read.

Nothing here changes the files of a backup, its read-only flag or its UUIDs. But btrfs counts the subvolume as changed, so its seal
gets another transaction at the next check (backupd/repo/seals.py). This also applies to copies from other pools.

Only files with the size of another file can be equal: no others are read. A pacer makes it wait for I/O pressure, and while backups
are made, expired or balanced.
"""

import errno
import math
import os
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from backupd.files.backup_selector import Restorable
from backupd.files.file_digest import read_file
from backupd.files.tree import Tree, components, joined, open_plain, tree_of_backup
from backupd.files.walking import WalkEntry, walk
from backupd.repo.checksums import NO_DIGEST, Checksums, Key, ReadBefore, key_of
from backupd.repo.read_lock import is_read_by_others, lock_for_reading
from btrkeep.checkpoints import Checkpoint
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import LockHeld, OperatorError
from btrkeep.fs.file_data import share_all
from btrkeep.fs.reflink import OF_ONE_FILE, shared_pieces
from btrkeep.pool.atomic import NO_ROOM
from btrkeep.pool.locks import at_work, read_holder
from btrkeep.pool.marker import Pool
from btrkeep.pool.subvolume import describe
from btrkeep.process.progress import Cancellation
from btrkeep.procfs import IoPressure

if TYPE_CHECKING:
    from btrkeep.treescan.items import Array


_CHECK_EVERY = 1.0  # seconds


class Pacer:
    """Pauses the job, and ends it in time; called between small steps.

    `pressure`: the share of time (0 to 1) in which processes may wait for I/O; None: no limit. `seconds`: the time limit.
    """

    def __init__(
        self,
        locks: Path,
        cancellation: Cancellation,
        *,
        seconds: float | None,
        pressure: float | None,
        tell: Callable[[str], None],
    ) -> None:
        self._locks, self._cancellation, self._tell = locks, cancellation, tell
        self._seconds, self._most = seconds, pressure
        self._begun, self._checked_at = time.monotonic(), 0.0
        self._pressure = IoPressure()

    @property
    def is_over(self) -> bool:
        """Returns True if no further file may be started: cancelled, or the time is over."""
        return bool(self._cancellation) or (self._seconds is not None and time.monotonic() - self._begun >= self._seconds)

    @property
    def has_to_wait(self) -> bool:
        """Returns whether a job makes, expires or balances backups: `goes_on` waits for that, possibly for hours."""
        return bool(at_work(self._locks))

    def wait_for(self, why: str) -> bool:
        """Waits a moment and reports why; returns False once no further file may be started."""
        self._tell(f"waits: {why}")
        self._cancellation.sleep(_CHECK_EVERY)
        return not self.is_over

    def goes_on(self) -> bool:
        """Waits while other jobs run, or the disks are busy; returns False once no further file may be started."""
        if time.monotonic() - self._checked_at >= _CHECK_EVERY:
            while not self.is_over and (why := self._obstacle()):
                self._tell(why)
                self._pressure.restart()
                self._cancellation.sleep(_CHECK_EVERY)
            self._pressure.restart()
            self._checked_at = time.monotonic()
        return not self.is_over

    def _obstacle(self) -> str:
        if who := at_work(self._locks):
            return f"waiting for {who}"
        busy = self._most is not None and (self._pressure.share() or 0.0) > self._most
        return "waiting for the disks" if busy else ""


_MOST_RECORDS = 100_000  # records in memory before they are written
_COST = 32 << 10
"""Bytes that sharing a file costs in each snapshot that has it: a leaf of its tree, stored twice (docs/benchmarks.rst)."""
_BATCH = 1.0  # seconds between two checks for other readers of the backup
_FRESH = 600.0  # seconds during which data read from the disk is assumed unchanged
_LEFT = (errno.EAGAIN, errno.EROFS)  # the subvolume is being sent; the pool is read-only

_ROOT = b"/"


class _InUse(Exception):
    """Another process uses the backup; the argument names the process."""


class _Paused(Exception):
    """Sharing has to wait for other jobs, and releases its locks during that time."""


class _SourceDeleted(Exception):
    """The backup has just been deleted."""


@dataclass(slots=True)
class _Source:
    """The file whose data is kept."""

    backup: Restorable
    """The backup that has it."""
    path: bytes
    """Path in the backup."""
    key: Key
    """Its inode and change time when it was read."""
    read_at: float = -math.inf
    """When it was read from the disk and not from memory, by time.monotonic()."""


@dataclass(slots=True)
class SharedBackup:
    """The result of one backup."""

    backup: Restorable
    """The backup."""
    files: int = 0
    """Number of files that now share data."""
    shared: int = 0
    """Their bytes."""
    read: int = 0
    """Bytes that were read."""
    left: str = ""
    """The reason why it was skipped, in part or completely; "" if it was not."""


@dataclass(slots=True)
class SharingPlan:
    """The result of a dry run."""

    files: int = 0
    """Number of files that are known to be equal to another file."""
    equal: int = 0
    """Their bytes."""
    unread: int = 0
    """Bytes that would have to be read to compare further files."""
    left: list[tuple[Restorable, str]] = field(default_factory=list)
    """Backups that would be skipped, with the reason."""


@dataclass(slots=True)
class Deduper:
    """Shares data between backups."""

    pool: Pool
    """The pool."""
    now: datetime
    """When it started."""
    pacer: Pacer
    """Pauses under load."""
    smallest: int | None
    """Bytes of the smallest file that is considered; None: a size at which sharing saves more than it costs, by the number of
    backups of its host.
    """
    tell: Callable[[str], None]
    """Called with each event, in words."""
    alone: Callable[[], AbstractContextManager[object]] = nullcontext
    """Takes the lock `verify` of the pool for one backup, because `checksums` must have only one writer. Raises LockHeld."""
    settled: datetime | None = None
    """Backups that were finished later are skipped, because a crash of this server could still lose their data. None: no backup is
    skipped.
    """
    shared: int = 0
    """Bytes shared so far."""
    _sources: dict[bytes, _Source] = field(default_factory=dict)
    """Files by digest and size together: the digest ignores zeros, including those at the end."""
    _went_on: float = -math.inf
    """When a job was last found to be running."""
    _least: dict[str, int] = field(default_factory=dict)

    def share(self, backups: Sequence[Restorable]) -> Iterator[SharedBackup]:
        """Shares data among these backups, whose hosts may share. Yields the result of each. Raises OSError if the pool is full."""
        sizes = self._repeated_sizes(backups)
        self._sources.clear()
        for backup in backups:
            if not self.pacer.goes_on():
                return
            done = SharedBackup(backup, left=self._why_skipped(backup))
            if not done.left:
                sharing = _BackupSharing(self, done, sizes)
                while not self._taken(sharing) and self.pacer.goes_on():
                    self._went_on = time.monotonic()
            yield done

    def _taken(self, sharing: "_BackupSharing") -> bool:
        """Processes one backup; returns False if it has to wait and be continued."""
        try:
            with ExitStack() as held:
                try:
                    held.enter_context(self.alone())
                except LockHeld as error:  # a verify has started since
                    return not self.pacer.wait_for(error.message)
                sharing.take()
        except _Paused:
            return False
        except (_InUse, OperatorError) as error:
            sharing.done.left = str(error)
        return True

    def plan(self, backups: Sequence[Restorable]) -> SharingPlan:
        """Returns what `share` would do, as far as that is known without reading files."""
        sizes, sharing_plan = self._repeated_sizes(backups), SharingPlan()
        sharing_plan.left = [(backup, why) for backup in backups if (why := self._why_skipped(backup))]
        seen, digests = set[tuple[str, Key]](), set[bytes]()
        for backup, entry, key in self._files(backups):
            if entry.entry.size not in sizes or (backup.host, key) in seen:
                continue
            seen.add((backup.host, key))
            with Checksums(self.pool.host(backup.host)) as checksums:
                before = checksums.find(key)
            if before is None or before.digest == NO_DIGEST:
                sharing_plan.unread += entry.entry.allocated
            elif before.digest in digests:
                sharing_plan.files, sharing_plan.equal = sharing_plan.files + 1, sharing_plan.equal + entry.entry.allocated
            else:
                digests.add(before.digest)
        return sharing_plan

    def _repeated_sizes(self, backups: Sequence[Restorable]) -> frozenset[int]:
        count = Counter(backup.host for backup in backups)
        self._least = {host: self.smallest or _COST * number for host, number in count.items()}
        counter = SizeCounter()
        for backup, entry, key in self._files(backups):
            counter.add(backup.host, key, entry.entry.size)
        return counter.repeated()

    def _files(self, backups: Sequence[Restorable]) -> Iterator[tuple[Restorable, WalkEntry, Key]]:
        for backup in backups:
            self.tell(f"reading {backup.host} {backup.name}")
            if self._why_skipped(backup):
                continue
            try:
                with lock_for_reading(backup.path), tree_of_backup(backup.path) as tree:
                    for entry in self.candidates(backup.host, tree):
                        yield backup, entry, key_of(entry.entry.inode, entry.entry.changed, entry.entry.size)
            except OperatorError:  # it is being deleted, or was deleted
                continue
            if not self.pacer.goes_on():
                return

    def candidates(self, host: str, tree: Tree) -> Iterator[WalkEntry]:
        """Yields plain files that are large enough. Unreadable ones are skipped."""
        for walk_entry in walk(tree, _ROOT, lambda _path, _error: None):
            entry = walk_entry.entry
            if not walk_entry.left and entry.kind == "file" and min(entry.size, entry.allocated) >= self._least[host]:
                yield walk_entry

    def _why_skipped(self, backup: Restorable) -> str:
        if describe(backup.path) is None:
            return "was deleted"
        if self.settled and (backup.record.finished or backup.started) > self.settled:
            return "made in the last minutes: a crash could still lose its data, and the data of all files that share it"
        return ""


class _BackupSharing:
    """Shares the data of one backup's files."""

    def __init__(self, work: Deduper, done: SharedBackup, sizes: frozenset[int]) -> None:
        self._work, self.done, self._sizes, self._backup = work, done, sizes, done.backup
        self._new: dict[Key, ReadBefore] = {}
        self._checked_at = 0.0
        self._passed = 0
        """Files that were processed, in the order of the walk; after a pause they are skipped."""

    def take(self) -> None:
        """Processes the files of the backup, continuing after the last pause. Raises _Paused, _InUse, OperatorError, OSError."""
        folder = self._work.pool.host(self._backup.host)
        with lock_for_reading(self._backup.path) as fd, tree_of_backup(self._backup.path) as tree, Checksums(folder) as checksums:
            try:
                candidates = self._work.candidates(self._backup.host, tree)
                for number, entry in enumerate(candidate for candidate in candidates if candidate.entry.size in self._sizes):
                    if number < self._passed:
                        continue
                    if not self._goes_on(fd):
                        break
                    self._file(entry, checksums)
                    self._passed = number + 1
            finally:
                if self._new:
                    self._write_down(checksums)

    def _write_down(self, checksums: Checksums) -> None:
        """Records the checksums. On a full pool, which this job is meant to relieve, nothing is recorded, and the files are read
        again the next time. Raises OSError.

        Keeps no records in memory during a wait: a verify may run then, and its results are newer.
        """
        try:
            checksums.write(self._new, None)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
        finally:
            self._new.clear()

    def _goes_on(self, fd: int) -> bool:
        """Returns True if there is time left. Raises _InUse if another process uses the backup, _Paused if it has to wait."""
        if time.monotonic() - self._checked_at < _BATCH:
            return not self._work.pacer.is_over
        if self._work.pacer.has_to_wait:
            raise _Paused
        if not self._work.pacer.goes_on():
            return False
        holder = read_holder(self._work.pool.host_lock(self._backup.host))
        if holder and holder.is_alive:
            raise _InUse(f"{holder.what} is running (process {holder.pid})")
        if is_read_by_others(fd):
            raise _InUse("it is being read")
        self._checked_at = time.monotonic()
        return True

    def _file(self, walk_entry: WalkEntry, checksums: Checksums) -> None:
        key = key_of(walk_entry.entry.inode, walk_entry.entry.changed, walk_entry.entry.size)
        content = b""
        try:
            digest = self._digest(walk_entry, key, checksums)
            if digest is None:
                return
            content = digest + walk_entry.entry.size.to_bytes(8, "little")
            source = self._work._sources.setdefault(content, _Source(self._backup, walk_entry.entry.path, key))
            if (source.backup.host, source.key) == (self._backup.host, key):
                return  # a snapshot of the same file
            self._share(walk_entry, source)
        except _SourceDeleted:
            self._work._sources[content] = _Source(self._backup, walk_entry.entry.path, key)
        except OSError as error:
            if error.errno in _LEFT:
                raise _InUse("it is being sent") from None
            if error.errno not in OF_ONE_FILE:
                raise

    def _digest(self, walk_entry: WalkEntry, key: Key, checksums: Checksums) -> bytes | None:
        """Returns the digest of its content; None if it cannot be read, or the job ends."""
        before = self._new.get(key) or checksums.find(key)
        if before and (before.damaged or before.digest != NO_DIGEST):
            return None if before.damaged else before.digest
        entry, goes_on = walk_entry.entry, lambda: not self._work.pacer.is_over
        done = read_file(open_plain(walk_entry.name, walk_entry.folder), entry.path, entry.size, key, goes_on)
        if done is None or done.bad is not None:
            return None  # damaged files are left to `backupd verify`
        self.done.read += done.size
        if len(self._new) < _MOST_RECORDS:
            self._new[key] = ReadBefore(round(self._work.now.timestamp() * 10**6), False, done.digest)
        return done.digest

    @Checkpoint("file shared")
    def _share(self, walk_entry: WalkEntry, source: _Source) -> None:
        """Raises OSError, _SourceDeleted."""
        with _opened(source) as source_fd, ClosingFd(open_plain(walk_entry.name, walk_entry.folder)) as other:
            if os.fstat(source_fd).st_size != walk_entry.entry.size or share_all(source_fd, other):
                return
            bytes_ = 0
            now = time.monotonic()
            if source.read_at < max(self._work._went_on, now - _FRESH):
                # the kernel compares cached data; the data on the disk may have been damaged since
                os.posix_fadvise(source_fd, 0, 0, os.POSIX_FADV_DONTNEED)
                source.read_at = now
            for shared in shared_pieces(source_fd, other, walk_entry.entry.size):
                bytes_ += shared
                if self._work.pacer.is_over:
                    break
        self.done.files, self.done.shared = self.done.files + bool(bytes_), self.done.shared + bytes_
        self._work.shared += bytes_
        self._work.tell(f"{self._backup.host} {self._backup.name}")


@contextmanager
def _opened(source: _Source) -> Iterator[int]:
    """Opens the file. Raises OSError, and _SourceDeleted if its backup is deleted or being deleted."""
    try:
        with lock_for_reading(source.backup.path), Tree(source.backup.path) as tree:
            names = components(source.path)
            with tree.folder(joined(names[:-1])) as folder:
                fd = open_plain(names[-1], folder)
    except OperatorError:
        raise _SourceDeleted from None
    with ClosingFd(fd):
        yield fd


_COMPACT_EVERY = 1 << 20  # files


class SizeCounter:
    """Counts files by size; a file in many snapshots counts once. Memory: 16 bytes for each file, and 16 MiB."""

    def __init__(self) -> None:
        self._files_and_sizes: tuple[Array, Array] | None = None  # files, and their sizes
        self._new = array("Q")

    def add(self, host: str, key: Key, size: int) -> None:
        """Adds one file. `key` identifies it among the backups of its host."""
        self._new.append(int.from_bytes(blake2b(host.encode() + b"\0" + key, digest_size=8).digest(), "big"))
        self._new.append(size)
        if len(self._new) >= 2 * _COMPACT_EVERY:
            self._compacted()

    def _compacted(self) -> "tuple[Array, Array]":
        import numpy as np  # importing it takes 0.1 s, which other commands avoid

        new = np.array(self._new, np.uint64)
        self._new = array("Q")
        files, sizes = self._files_and_sizes or (new[:0], new[:0])
        files, places = np.unique(np.concatenate((files, new[::2])), return_index=True)
        self._files_and_sizes = files, np.concatenate((sizes, new[1::2]))[places]
        return self._files_and_sizes

    def repeated(self) -> frozenset[int]:
        """Returns the sizes that at least two files have."""
        import numpy as np

        _, sizes = self._compacted()
        repeated, counts = np.unique(sizes, return_counts=True)
        return frozenset(repeated[counts > 1].tolist())
