"""Whether the kernel can drop a subvolume: it reads what no other one shares, and makes the pool read-only if it cannot.

A backup that is not damaged is read here a moment before the kernel reads the same, and the kernel finds it in memory.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from backupd.repo.backup_json import Record
from backupd.repo.final_backups import FinalBackup
from btrkeep.backup_states import COMPLETE
from btrkeep.pool.subvolume import opened
from btrkeep.process.threads import running_threads
from btrkeep.treescan import has_readable_tree, has_readable_where_changed

_READERS = 4
"""Backups that are read at the same time: one alone waits for each of its leaves, and the disks for it."""


@contextmanager
def looks_ahead(going: Sequence[str], there: Mapping[str, FinalBackup]) -> Iterator[list[Future[bool]]]:
    """Yields for each of the host's backups that are going to be deleted, oldest first, whether the kernel can drop it.

    False: the disk does not give back metadata that none of the host's other backups shares. An OSError comes with the result. What
    was not begun at the end is not read any more. Raises NoThread.
    """
    with running_threads(min(_READERS, len(going)), "look") as readers:
        try:
            yield [readers.submit(_can_be_dropped, name, there, going) for name in going]
        finally:
            readers.shutdown(cancel_futures=True)


def _can_be_dropped(name: str, there: Mapping[str, FinalBackup], going: Collection[str]) -> bool:
    """Reads what was written after the next older base: all before is shared with that, and is read for it if it goes too.

    Without an older one, what the oldest newer backup that stays has changed is read; without that, all. Raises OSError.
    """
    own = there[name]
    created = own.subvolume.created
    bases = [one.subvolume.written for other, one in there.items() if other != name and _is_base(one.record)]
    older = [written for written in bases if written <= created]
    newer = {
        one.subvolume.created: one.path
        for other, one in there.items()
        if one.subvolume.created > created and _grew(one.record) and other not in going
    }
    with opened(own.path) as fd:
        if older and _grew(own.record):
            return has_readable_tree(fd, max(older) + 1)
        if newer and _is_base(own.record) and not own.record.imported:
            with opened(newer[min(newer)]) as descendant:
                return has_readable_where_changed(fd, descendant, created)
        return has_readable_tree(fd)


def _is_base(record: Record) -> bool:
    """Returns True if all later backups have grown from it, or from what has."""
    return record.state == COMPLETE and not record.repaired


def _grew(record: Record) -> bool:
    """Returns True if it grew from the newest base that there was."""
    return not (record.imported or record.unread_bases or record.repaired)
