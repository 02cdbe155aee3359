"""Whether the kernel can drop a subvolume: it makes the pool read-only if it cannot read what it needs for that.

It needs what no other subvolume shares, and what was written in this one even if others share it by now. A backup that is not
damaged is read here a moment before the kernel reads the same, and the kernel finds it in memory.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from backupd.repo.final_backups import FinalBackup
from btrkeep.pool.subvolume import opened
from btrkeep.process.threads import running_threads
from btrkeep.treescan import has_readable_tree

_READERS = 4
"""Backups that are read at the same time: one alone waits for each of its leaves, and the disks for it."""


class MetadataReader:
    """Reads the metadata of backups that are going to be deleted, several at the same time.

    What was read is remembered by the subvolume, so it can be asked for ahead, while the cleaner drops others. `pulse` is called
    after each piece; what it raises ends the look, and comes with the result.
    """

    def __init__(self, pulse: Callable[[], None]) -> None:
        self._pulse = pulse
        self._readers: ThreadPoolExecutor | None = None
        self._read: dict[int, tuple[int, Future[bool]]] = {}

    def can_be_dropped(self, own: FinalBackup, there: Iterable[FinalBackup]) -> Future[bool]:
        """Begins to look whether the kernel can drop a backup of a host that has those of `there`. Raises NoThread.

        The result is False if the disk does not give back metadata that the kernel needs for that; an OSError comes with it. What
        the backup has from one of `there` that it grew from is not read: if that goes too, it is read for that one. All is read of
        one that grew from none of them, or was received.
        """
        since = max((_shared_before(own, one) for one in there), default=0)
        known = self._read.get(own.subvolume.id)
        if known and known[0] <= since:
            return known[1]
        if self._readers is None:
            self._readers = running_threads(_READERS, "look")
        look = self._readers.submit(_is_readable, own.path, since, self._pulse)
        self._read[own.subvolume.id] = since, look
        return look

    def forget(self) -> None:
        """Forgets what was read: time has passed."""
        self._read.clear()

    def close(self) -> None:
        """Reads nothing more that was not begun."""
        if self._readers:
            self._readers.shutdown(cancel_futures=True)


def _is_readable(path: Path, since: int, pulse: Callable[[], None]) -> bool:
    with opened(path) as fd:
        return has_readable_tree(fd, since, pulse)


def _shared_before(own: FinalBackup, other: FinalBackup) -> int:
    """Returns the generation before which all metadata of `own` is that of the other one, too; 0 if none is known to be.

    Nothing in the other one may have changed since, as `backupd dedupe` changes it.
    """
    since = 0
    if other.subvolume.uuid == own.subvolume.parent_uuid:
        since = own.subvolume.created
    elif not own.subvolume.received_uuid:  # else its record is about another pool
        since = min(own.record.ancestors.get(other.path.name, 0), own.subvolume.created)
    return since if max(other.subvolume.created, other.subvolume.written) <= since else 0
