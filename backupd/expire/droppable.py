"""Whether the kernel can drop a subvolume: it makes the pool read-only if it cannot read what it needs for that.

It needs what no other subvolume shares, and what was written in this one even if others share it by now. A backup that is not
damaged is read here a moment before the kernel reads the same, and the kernel finds it in memory.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from backupd.repo.final_backups import FinalBackup
from btrkeep.pool.subvolume import opened
from btrkeep.process.threads import running_threads
from btrkeep.treescan import has_readable_tree

_READERS = 4
"""Backups that are read at the same time: one alone waits for each of its leaves, and the disks for it."""


@contextmanager
def looks_ahead(going: Sequence[str], there: Mapping[str, FinalBackup]) -> Iterator[list[Future[bool]]]:
    """Yields for each backup of a host that is going to be deleted whether the kernel can drop it.

    False: the disk does not give back metadata that the kernel needs for that. An OSError comes with the result. What was not begun
    at the end is not read any more. Raises NoThread.
    """
    with running_threads(min(_READERS, len(going)), "look") as readers:
        try:
            yield [readers.submit(_can_be_dropped, name, there) for name in going]
        finally:
            readers.shutdown(cancel_futures=True)


def _can_be_dropped(name: str, there: Mapping[str, FinalBackup]) -> bool:
    """Reads what the backup does not have from one of `there` that it grew from: if that goes too, it is read for that one.

    All is read of one that grew from none of them, or was received. Raises OSError.
    """
    own = there[name]
    with opened(own.path) as fd:
        return has_readable_tree(fd, max(_shared_before(own, one) for one in there.values()))


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
