"""The files of backups read from the disk, and compared with what they were when they were read before.

What the filesystem cannot read (its checksum does not fit, and there is no good copy) is damaged, and so is what it reads with
another content than was recorded, though the inode was not changed: it lay without a checksum (nodatasum), or memory flipped a bit
between the two. So is what differs from the checksum that was made when it was fetched. What was never read before is recorded for
the next time. A file that several backups share is read once in a pass.
"""

import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from threading import Lock

from backupd.actions.shared_damage import FoundDamage, backups_that_share
from backupd.files.backup_selector import Restorable
from backupd.files.file_digest import DAMAGED, FileRead, PlainSum, read_file
from backupd.files.tree import Tree, open_plain
from backupd.files.walking import WalkEntry, walk
from backupd.repo.checksums import NO_DIGEST, Checksums, Key, ReadBefore, key_of
from backupd.repo.listing import names_of
from backupd.repo.read_lock import read
from backupd.repo.sums import read_sums
from backupd.repo.verified import read_verified, verified_row, write_verified
from btrkeep.catalogue import Catalogue, Damage
from btrkeep.decisions.due import latest
from btrkeep.decisions.verification import Verification
from btrkeep.fs.openat import FOLDER
from btrkeep.pool.marker import Pool
from btrkeep.pool.subvolume import describe
from btrkeep.process.cancellation import Cancellation
from btrkeep.procfs import IoPressure
from btrkeep.treescan.written import written_files

_STREAMS = 4
_WAITING = 4 * _STREAMS  # open files that wait for a stream
_MOST_RECORDS = 200_000  # that are held in memory
_LONGEST = 300.0  # seconds of reading that a kill may cost
_NAMED = 100  # damaged files that verified.json names
_LOOK = 1.0  # seconds between two looks at the pressure


@dataclass(frozen=True, slots=True)
class ReadScope:
    """Which files are read: each with this probability. After `seconds` none is begun any more. None: no limit."""

    of_all: float = 1.0
    seconds: float | None = None
    pressure: float | None = None
    """Above this share of the time in which processes wait for I/O (PSI) it pauses."""
    forgets: bool = True
    """Whether checksums that nobody compared for years go: not while the clock is in doubt."""
    crash: datetime | None = None
    """Of each backup the files that were written into it are read, and what was read before this moment is read again."""


class Verifier:
    """Reads backups until it is cancelled or the time is over. Whoever makes one has the lock `verify` of the pool."""

    def __init__(
        self,
        pool: Pool,
        catalogue: Catalogue,
        now: datetime,
        scope: ReadScope,
        cancellation: Cancellation,
        tell: Callable[[int], None],
    ) -> None:
        """`tell` hears after each file how many bytes were read in all."""
        self.pool, self.catalogue, self.now, self.scope = pool, catalogue, now, scope
        self.cancellation, self.tell = cancellation, tell
        self.bytes, self.files = 0, 0
        self._begun = time.monotonic()
        self.bad: dict[tuple[str, Key], int] = {}
        """By host and file, where those are damaged that were read."""
        self._pace, self._pressure, self._looked = Lock(), IoPressure(), time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether no further file is read: cancelled, or out of time."""
        return bool(self.cancellation) or self._is_late

    @property
    def _is_late(self) -> bool:
        return self.scope.seconds is not None and time.monotonic() - self._begun >= self.scope.seconds

    def verify(self, backup: Restorable) -> Verification:
        """One backup. Raises OperatorError when it is being deleted or gone, OSError for an error that is no damage."""
        with read(backup.path), Tree(backup.path) as tree:
            return self._verify(backup, tree)

    def _verify(self, backup: Restorable, tree: Tree) -> Verification:
        before = read_verified(self.pool.host(backup.host)).get(backup.name)
        was_ahead = before is not None and before.at > latest(self.now)  # then its moments say nothing
        goes_on = before if before and not before.is_over and not was_ahead else None
        if goes_on and self.scope.crash and goes_on.begun < self.scope.crash:
            goes_on = None
        begun = goes_on.begun if goes_on else self.now
        whole = before.whole if before and not was_ahead else None
        if goes_on is None:  # a kill must not cost more than the files that were not written down
            since = Verification(begun, begun, whole=whole)
            self._write_down(backup, replace(since, damages=before.damages, damaged=before.damaged) if before else since)
        look = _BackupLook(self, backup, begun)
        try:
            look.take(tree)
        finally:  # damage is known also when a full pool takes no notes
            self._enter_damages(backup, look)
        has_looked = look.read or look.bad or look.is_whole
        found = Verification(
            begun,
            self.now if has_looked or not goes_on else goes_on.at,  # what was come to no further was not looked at
            look.read + (goes_on.read if goes_on else 0),
            look.compared + (goes_on.compared if goes_on else 0),
            look.bytes + (goes_on.bytes if goes_on else 0),
            self.now if look.is_whole else whole,
        )
        found = _with_damages(found, before, [one.path for one in look.bad], are_all=look.is_walked)
        self._write_down(backup, found, look.shared)
        return found

    def _enter_damages(self, backup: Restorable, look: "_BackupLook") -> None:
        """In the catalogue, and also of the host's other backups that share what is damaged, which are read another day."""
        found = [self._damage(backup.host, backup.name, one) for one in look.bad]
        if look.is_walked:
            self.catalogue.replace_damages(backup.host, backup.name, "verify", found)
        else:  # what was not come to is as it was
            self.catalogue.put_damages(found)
        if look.is_whole:  # what others could not read is as it was read here, unless they met it since
            known = self.catalogue.damages(backup.host, backup.name)
            later = [one for one in known if one.found_by == "device" and one.found_at >= look.since]
            self.catalogue.replace_damages(backup.host, backup.name, "device", later)
        for name, files in backups_that_share(self.pool, backup.host, backup.name, look.bad):
            self.catalogue.put_damages(self._damage(backup.host, name, one) for one in files)
            look.shared[name] = [one.path for one in files]

    def _damage(self, host: str, name: str, file: FoundDamage) -> Damage:
        return Damage(host, name, os.fsdecode(file.path), file.start, 0, "verify", self.now)

    def _write_down(self, backup: Restorable, found: Verification, shared: Mapping[str, Sequence[bytes]] | None = None) -> None:
        """`shared`: paths of damaged files in other backups. One of these that was never read is left to be the next that is."""
        folder, there = self.pool.host(backup.host), names_of(self.pool, backup.host)
        known = {name: one for name, one in read_verified(folder).items() if name in there}
        for name, paths in (shared or {}).items():
            if other := known.get(name):
                known[name] = _with_damages(other, other, paths, are_all=False)
        write_verified(folder, known | {backup.name: found})
        self.catalogue.put_verifications([verified_row(backup.host, backup.name, found)])

    def count(self, size: int) -> None:
        """One more file of so many bytes."""
        self.files += 1
        self.bytes += size
        self.tell(self.bytes)

    def keep_pace(self) -> bool:
        """Pauses as long as other work waits for the disks more than was agreed; whether reading goes on. For every thread.

        What is begun when the time is over is read to its end, or a file that takes longer would never be, with short pauses.
        """
        with self._pace:
            if self.scope.pressure is not None and time.monotonic() - self._looked >= _LOOK:
                while (self._pressure.share() or 0.0) > self.scope.pressure and not self.cancellation:
                    self._pressure.restart()
                    self.cancellation.sleep(_LOOK)
                    if self._is_late:
                        break
                self._pressure.restart()
                self._looked = time.monotonic()
        return not self.cancellation


class _BackupLook:
    """What is read of one backup. `is_walked`: all its names were come to, and what was begun was read to its end; `is_whole`: each
    file was read in this pass, too.
    """

    def __init__(self, work: Verifier, backup: Restorable, since: datetime) -> None:
        self._work, self._host, self._folder, self.since = work, backup.host, work.pool.host(backup.host), since
        self._since, self._until = _microseconds(since), _microseconds(latest(work.now))  # later: the clock was ahead
        self.read, self.compared, self.bytes = 0, 0, 0
        self.bad: list[FoundDamage] = []
        self.shared: dict[str, list[bytes]] = {}
        """The host's other backups that have some of them, by name: which paths."""
        self.is_walked, self.is_whole = False, True
        self._found: dict[Key, ReadBefore] = {}
        self._sums = read_sums(backup.path)
        """What was recorded when the files were fetched, by path."""
        self._written = _written_inodes(backup) if work.scope.crash else None
        """Those that are read, None: all."""
        self._chance = random.SystemRandom()  # a host must not know which of its files are looked at

    def take(self, tree: Tree) -> None:
        """Reads. Raises OSError."""
        found = walk(tree, b"/", unreadable=self._unreadable)
        with ThreadPoolExecutor(_STREAMS) as streams:
            while not self.is_walked and not self._work.is_over:
                with Checksums(self._folder) as known:
                    self.is_walked = self._take_some(found, known, streams)
                    if self._found:
                        known.write(self._found, _microseconds(self._work.now) if self._work.scope.forgets else None)
                self._found.clear()
        self.is_whole = self.is_whole and self.is_walked

    def _take_some(self, entries: Iterator[WalkEntry], known: Checksums, streams: ThreadPoolExecutor) -> bool:
        """Until it is time to write down what was found; whether all names were come to."""
        begun, waiting = time.monotonic(), deque[Future[FileRead | None]]()
        over, work = False, self._work
        try:
            for one in entries:
                if one.left or one.entry.kind != "file":
                    continue
                key = key_of(one.entry.inode, one.entry.changed, one.entry.size)
                is_meant = self._written is None or one.entry.inode in self._written or one.entry.path in self._sums
                if not self._is_settled(one.entry.path, key, known, is_meant=is_meant):
                    try:
                        waiting.append(self._submit(streams, one, key))
                    except OSError as error:
                        self._unreadable(one.entry.path, error)
                if len(waiting) >= _WAITING:
                    self._note(waiting.popleft().result(), known)
                if work.is_over or len(self._found) >= _MOST_RECORDS or time.monotonic() - begun > _LONGEST:
                    break
            else:
                over = True
        finally:
            while waiting:
                self._note(waiting.popleft().result(), known)
        return over and not work.cancellation

    def _submit(self, streams: ThreadPoolExecutor, one: WalkEntry, key: Key) -> Future[FileRead | None]:
        plain = PlainSum() if one.entry.path in self._sums else None
        return streams.submit(read_file, open_plain(one.name, one.folder), one.entry, key, self._work.keep_pace, plain)

    def _is_settled(self, path: bytes, key: Key, known: Checksums, *, is_meant: bool) -> bool:
        """Whether the file is not read now: it was in this pass, or is not among those meant. A damaged one is read again."""
        if (place := self._work.bad.get((self._host, key))) is not None:
            self.bad.append(FoundDamage(path, place))  # whoever else has it was told of when it was read
            return True
        before = self._found.get(key) or known.find(key)
        if before and self._since <= before.at <= self._until and not before.damaged:
            return self._sums.get(path, before.digest) == before.digest  # or it was read where there is no sum of it
        is_drawn = is_meant and self._chance.random() < self._work.scope.of_all
        is_chosen = is_drawn or (before is not None and before.damaged)
        self.is_whole = self.is_whole and is_chosen
        return not is_chosen

    def _note(self, found: FileRead | None, known: Checksums) -> None:
        if found is None:
            return
        work, before = self._work, self._found.get(found.key) or known.find(found.key)
        digest = before.digest if before else NO_DIGEST
        is_known = digest != NO_DIGEST
        summed = self._sums.get(found.path)
        is_other_than_summed = summed is not None and found.plain not in (None, summed)
        is_other = (is_known and found.digest != digest) or is_other_than_summed
        place = 0 if found.bad is None and is_other else found.bad
        if not is_known and is_other_than_summed:
            found = found._replace(digest=NO_DIGEST)  # what is wrong must not be what the next look compares with
        self._found[found.key] = ReadBefore(_microseconds(work.now), place is not None, digest if is_known else found.digest)
        if place is not None:
            work.bad[self._host, found.key] = place
            self.bad.append(FoundDamage(found.path, place, found.key))
        else:
            self.read += 1
            self.compared += is_known or summed is not None
        self.bytes += found.size
        work.count(found.size)

    def _unreadable(self, path: bytes, error: OSError) -> None:
        """A folder, or a name in one."""
        if error.errno not in DAMAGED:
            raise error
        self.bad.append(FoundDamage(path, 0))


def _with_damages(found: Verification, before: Verification | None, paths: Sequence[bytes], *, are_all: bool) -> Verification:
    """With these damaged files, and, unless they are all, with those from before, of which not all may be named."""
    names, known = {os.fsdecode(path) for path in paths}, None if are_all else before
    names |= set(known.damaged) if known else set()
    number = max(len(names), known.damages if known else 0)
    return replace(found, damages=number, damaged=tuple(sorted(names, key=os.fsencode)[:_NAMED]))


def _written_inodes(backup: Restorable) -> set[int] | None:
    """The files that were given data after the subvolume was made; None: all were, or nobody can tell."""
    subvolume = describe(backup.path)
    if subvolume is None or backup.record.base is None:
        return None
    try:
        root = os.open(backup.path, FOLDER)
        try:
            return set(written_files(root, subvolume.created - 1, 1, compressed=True))
        finally:
            os.close(root)
    except OSError as error:
        if error.errno not in DAMAGED:
            raise
        return None


def _microseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 10**6)
