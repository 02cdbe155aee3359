"""Reads the files of one backup in several threads.

One thread lists folders and distributes names, some dozens at a time; the others examine each name, decide whether its file is read
in this pass, and read it. A file of more than one piece is returned to the first thread, which distributes it alone, so that a
folder of large files keeps all threads busy. Only the first thread records results.
"""

import os
import random
import stat
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import groupby
from mmap import mmap
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from backupd.files.backup_selector import Restorable
from backupd.files.file_digest import FileRead, PlainSum, read_file, read_small
from backupd.files.tree import Tree, open_seen_direct
from backupd.files.walking import FolderNames, name_batches
from backupd.proof.damaged_files import FoundDamage
from backupd.proof.verify_pass import STREAMS, VerifyPass
from backupd.repo.backup_json import UnreadableRecord
from backupd.repo.checksums import NO_DIGEST, Checksums, Key, ReadBefore, changed_of, key_of, read_sums
from backupd.repo.notes_json import read_notes
from backupd.repo.seals import first_change
from btrkeep.decisions.due import latest
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import DAMAGED
from btrkeep.fs.file_data import PIECE
from btrkeep.fs.openat import FOLDER
from btrkeep.pool.subvolume import describe
from btrkeep.treescan.changed import written_files

_WAITING = 2 * STREAMS  # files handed out in advance, so that no thread waits for work
_MOST_RECORDS = 200_000  # records in memory
_LONGEST = 300.0  # seconds of reading that may be lost if it is killed
_TELL = 0.5  # seconds between reports, even while all threads read large files


class _FileToRead(NamedTuple):
    """A file to be read. `before`: the recorded facts about it."""

    path: bytes
    size: int
    key: Key
    before: ReadBefore | None


@dataclass(slots=True)
class _BatchRead:
    """The result of one batch: files that were read, and large ones that are still to be read."""

    read: list[tuple[FileRead, ReadBefore | None]] = field(default_factory=list)
    large: list[_FileToRead] = field(default_factory=list)
    names: int = 0
    """Number of files that were checked."""
    is_cut: bool = False
    """True if some files were not read, because the pass was over."""
    error: OSError | None = None
    """The error that ended it, which is not damage."""


class BackupReader:
    """Reads the files of one backup, and counts them.

    `is_walked`: all its names were checked, and all files that were started were read to their end. `is_whole`: also, each file was
    read in this pass.
    """

    def __init__(
        self,
        work: VerifyPass,
        backup: Restorable,
        folder: Path,
        since: datetime,
        known_bad: Collection[bytes],
        enter: Callable[[Sequence[FoundDamage]], Mapping[str, Sequence[bytes]]],
    ) -> None:
        """`folder`: of the host. `since`: when the pass over this backup started. `known_bad`: damaged paths, to be read again.

        `enter` records damage, and returns the paths in other backups that have it too.
        """
        self._enter = enter
        self._known_bad = known_bad
        self._work, self._host, self._folder, self.since = work, backup.host, folder, since
        self._now = _microseconds(work.now)
        self._since, self._until = _microseconds(since), _microseconds(latest(work.now))  # later times: from a wrong clock
        self.read, self.compared, self.bytes = 0, 0, 0
        self.bad: list[FoundDamage] = []
        self._entered = 0
        """How many of them are recorded."""
        self._damaged_before = work.count.damaged
        self.shared: dict[str, list[bytes]] = {}
        """By backup, the damaged paths of the host's other backups that share these files."""
        self.is_walked, self.is_whole = False, True
        self._read_before: dict[Key, ReadBefore] = {}
        self._large = deque[_FileToRead]()
        self._is_listed = self._is_cut = False
        self._error: OSError | None = None
        self._first_change: int | None = None
        """The time after which changes are manual: such files are altered, and differ from their checksums without damage."""
        self._sums = read_sums(backup.path)
        """The checksums recorded when the files were fetched, by path."""
        with suppress(UnreadableRecord):
            self._first_change = first_change(read_notes(folder), backup.name)
        self._linked_sums: dict[Key, bytes] | None = None
        """The checksums of files with several names, of which rsync fetched one. None until the first such file."""
        self._written = _written_inodes(backup) if work.scope.crash else None
        """The files to read, None: all."""
        self._chance = random.SystemRandom()  # a host must not be able to predict which of its files are read
        self._deciding = Lock()
        self._summed = set[Key]()
        """Files that matched their sum in this pass, but have another digest, because they contain zeros."""
        self._linked = set[Key]()
        """Files with several names that are being read."""
        self._other_names: dict[Key, list[bytes]] = {}
        """Their names found so far."""

    def verify(self, tree: Tree) -> None:
        """Reads. Raises OSError."""
        with closing(name_batches(tree, self._unreadable)) as batches, ThreadPoolExecutor(STREAMS) as streams:
            while not self.is_walked and not self._work.is_over:
                with Checksums(self._folder) as checksums:
                    try:
                        self.is_walked = self._take_some(tree, batches, checksums, streams)
                    finally:  # damage is recorded before its files count as read, so that a kill cannot hide it
                        self._enter_bad()
                    if self._read_before:
                        checksums.write(self._read_before, self._now if self._work.scope.forgets else None)
                self._read_before.clear()
        if self.is_walked:  # files that could not be opened by their first name
            self.bad += [FoundDamage(path, 0) for paths in self._other_names.values() for path in paths]
            self._enter_bad()
        self.is_whole = self.is_whole and self.is_walked

    def _enter_bad(self) -> None:
        """Records damage that was found since the last call."""
        found_damages = self.bad[self._entered :]
        self._entered = len(self.bad)
        for name, paths in (self._enter(found_damages) if found_damages else {}).items():
            self.shared.setdefault(name, []).extend(paths)

    # --- in the thread that hands out files

    def _take_some(
        self, tree: Tree, batches: Iterator[list[FolderNames]], checksums: Checksums, streams: ThreadPoolExecutor
    ) -> bool:
        """Reads until it is time to record results. Returns whether all names were checked."""
        until, waiting, work = time.monotonic() + _LONGEST, set[Future[_BatchRead]](), self._work
        try:
            while not (work.is_over or self._error or len(self._read_before) >= _MOST_RECORDS or time.monotonic() >= until):
                while len(waiting) < _WAITING and (job := self._next_job(tree, batches, checksums)):
                    waiting.add(streams.submit(job))
                if not waiting:
                    break
                done, waiting = wait(waiting, timeout=_TELL, return_when=FIRST_COMPLETED)
                for future in done:
                    self._note_batch(future.result())
                work.report_progress()
        finally:
            for future in waiting:
                self._note_batch(future.result())
        if self._error:
            raise self._error
        return self._is_listed and not (self._large or self._is_cut or work.cancellation)

    def _next_job(self, tree: Tree, batches: Iterator[list[FolderNames]], checksums: Checksums) -> Callable[[], _BatchRead] | None:
        if self._large:
            return partial(self._read_large, tree, self._large.popleft())
        if not self._is_listed and (batch := next(batches, None)) is not None:
            return partial(self._read_batch, tree, batch, checksums)
        self._is_listed = True
        return None

    def _note_batch(self, done: _BatchRead) -> None:
        for file_read, before in done.read:
            self._note(file_read, before)
        self._large.extend(done.large)
        self._is_cut |= done.is_cut
        self._work.count.names += done.names
        self._work.count.damaged = self._damaged_before + len(self.bad)
        self._error = self._error or done.error

    def _note(self, file_read: FileRead, before: ReadBefore | None) -> None:
        work, before = self._work, self._read_before.get(file_read.key) or before
        digest = before.digest if before else NO_DIGEST
        is_known = digest != NO_DIGEST
        summed = self._sum_of(file_read.path, file_read.key)
        is_right = summed is not None and file_read.plain == summed
        is_wrong = summed is not None and file_read.plain not in (None, summed)
        differs = is_wrong or (before is not None and before.differs and not is_right)
        is_other = differs or (is_known and file_read.digest != digest)
        place = 0 if file_read.bad is None and is_other else file_read.bad
        if place is None:
            digest = file_read.digest
        elif differs and file_read.digest == digest:
            digest = NO_DIGEST  # the next pass must not compare with a wrong digest
        self._read_before[file_read.key] = ReadBefore(self._now, place is not None, digest, differs)
        if summed is not None and file_read.plain != file_read.digest:
            self._summed.add(file_read.key)
        if place is not None:
            work.bad[self._host, file_read.key] = place
            paths = [file_read.path, *self._names_met(file_read.key)]
            self.bad += [FoundDamage(path, place, file_read.key) for path in paths]
        else:
            self._names_met(file_read.key)
            self.read += 1
            self.compared += is_known or summed is not None
        self.bytes += file_read.size
        work.count.files += 1
        work.count.bytes += file_read.size

    def _names_met(self, key: Key) -> list[bytes]:
        """Returns the other names of a file that were found while it was being read, and ends that state."""
        if key not in self._linked:
            return []
        with self._deciding:
            self._linked.discard(key)
            return self._other_names.pop(key, [])

    # --- in any thread

    def _read_batch(self, tree: Tree, batch: list[FolderNames], checksums: Checksums) -> _BatchRead:
        done = _BatchRead()
        with self._work.buffer() as buffer:
            for folder_names in batch:
                try:
                    if done.error is None and not done.is_cut:
                        self._read_names(tree, folder_names, checksums, done, buffer)
                except OSError as error:
                    done.error = error
                finally:
                    os.close(folder_names.folder)
        return done

    def _read_names(self, tree: Tree, folder_names: FolderNames, checksums: Checksums, done: _BatchRead, buffer: mmap) -> None:
        """Raises OSError for anything but damage."""
        looked = [(name, status) for name in folder_names.names if (status := self._stat_file(folder_names, name)) is not None]
        done.names += len(looked)
        with self._deciding:
            if self._linked_sums is None and any(status.st_nlink > 1 for _, status in looked):
                self._linked_sums = self._sums_of_linked(tree)
            chosen = [
                (name, to_read) for name, status in looked if (to_read := self._choose(folder_names.above, name, status, checksums))
            ]
        for name, file in chosen:
            if self._work.is_over:
                done.is_cut = True
                return
            if file.size > PIECE:
                done.large.append(file)
                continue
            if not self._work.keep_pace():
                done.is_cut = True
                return
            try:
                fd = open_seen_direct(name, folder_names.folder)
                done.read.append((read_small(fd, file.path, file.size, file.key, buffer), file.before))
            except OSError as error:
                self._unreadable(file.path, error)

    def _read_large(self, tree: Tree, file: _FileToRead) -> _BatchRead:
        done = _BatchRead()
        plain = PlainSum() if self._sum_of(file.path, file.key) else None
        try:
            with self._work.reading(file.path) as goes_on:
                file_read = read_file(tree.open_file(file.path), file.path, file.size, file.key, goes_on, plain)
            if file_read is None:
                done.is_cut = True
            else:
                done.read.append((file_read, file.before))
        except OSError as error:
            try:
                self._unreadable(file.path, error)
            except OSError:
                done.error = error
        return done

    def _stat_file(self, folder_names: FolderNames, name: bytes) -> os.stat_result | None:
        """Returns the status of a plain file, None for anything else. Reads the target of a symlink, because it may be
        damaged too.
        """
        try:
            status = os.stat(name, dir_fd=folder_names.folder, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                return status
            if stat.S_ISLNK(status.st_mode):
                os.readlink(name, dir_fd=folder_names.folder)
        except OSError as error:
            self._unreadable(folder_names.above + b"/" + name, error)
        return None

    def _choose(self, above: bytes, name: bytes, status: os.stat_result, checksums: Checksums) -> _FileToRead | None:
        """Returns None for a file that is not to be read now: it was read in this pass, or is not selected.

        A file that was damaged when it was last read is read again.
        """
        path, key = above + b"/" + name, key_of(status.st_ino, status.st_ctime_ns, status.st_size)
        if (place := self._work.bad.get((self._host, key))) is not None:
            self.bad.append(FoundDamage(path, place))  # the other backups that have it were reported when it was read
            return None
        before = self._read_before.get(key) or checksums.find(key)
        if before and self._since <= before.at <= self._until and not before.damaged:
            if key in self._summed or (self._sum_of(path, key) or before.digest) == before.digest:
                return None  # otherwise it was read without a recorded checksum
        elif not self._is_sampled(path, key, status.st_ino) and not (before and before.damaged):
            self.is_whole = False
            return None
        if status.st_nlink > 1:
            if key in self._linked:
                self._other_names.setdefault(key, []).append(path)
                return None
            self._linked.add(key)
        return _FileToRead(path, status.st_size, key, before)

    def _sum_of(self, path: bytes, key: Key) -> bytes | None:
        if self._first_change is not None and changed_of(key) > self._first_change:
            return None
        return self._sums.get(path) or (self._linked_sums or {}).get(key)

    def _sums_of_linked(self, tree: Tree) -> dict[Key, bytes]:
        """Checks all recorded files that the walk did not find. The walk itself reports what it cannot read."""
        sums: dict[Key, bytes] = {}
        for above, paths in groupby(sorted(self._sums), key=lambda path: path.rpartition(b"/")[0]):
            with suppress(OSError, ValueError), tree.folder(above or b"/") as folder:
                for path in paths:
                    with suppress(OSError):
                        status = os.stat(path.rpartition(b"/")[2], dir_fd=folder, follow_symlinks=False)
                        if status.st_nlink > 1 and stat.S_ISREG(status.st_mode):
                            sums[key_of(status.st_ino, status.st_ctime_ns, status.st_size)] = self._sums[path]
        return sums

    def _is_sampled(self, path: bytes, key: Key, inode: int) -> bool:
        is_meant = self._written is None or inode in self._written or self._sum_of(path, key) is not None
        share = self._work.scope.of_all
        return path in self._known_bad or (is_meant and (share >= 1.0 or self._chance.random() < share))

    def _unreadable(self, path: bytes, error: OSError) -> None:
        """Records a folder, or a name in it, as damaged. Raises an OSError that is not damage."""
        if error.errno not in DAMAGED:
            raise error
        self.bad.append(FoundDamage(path, 0))


def _written_inodes(backup: Restorable) -> set[int] | None:
    """Returns the files that got data after the subvolume was made; None: all did, or it is unknown."""
    subvolume = describe(backup.path)
    if subvolume is None or backup.record.base is None:
        return None
    try:
        with ClosingFd(os.open(backup.path, FOLDER)) as root:
            return set(written_files(root, subvolume.created - 1, 1, compressed=True))
    except OSError as error:
        if error.errno not in DAMAGED:
            raise
        return None


def _microseconds(moment: datetime) -> int:
    """Returns the microseconds since 1970."""
    return round(moment.timestamp() * 10**6)
