"""Whether the kernel can drop a subvolume: it reads what no other one shares, and makes the pool read-only if it cannot.

A backup that is not damaged is read here a moment before the kernel reads the same.
"""

from collections.abc import Mapping

from backupd.repo.backup_json import Record
from backupd.repo.final_backups import FinalBackup
from btrkeep.backup_states import COMPLETE
from btrkeep.pool.subvolume import opened
from btrkeep.treescan import has_readable_tree, has_readable_where_changed


def can_be_dropped(name: str, there: Mapping[str, FinalBackup]) -> bool:
    """Returns False if the disk does not give back metadata of that backup which none of the host's others shares.

    What was written before the next older base was made is shared with that. Without one, what the next newer backup has changed is
    read; without that, all. Raises OSError.
    """
    own = there[name]
    created = own.subvolume.created
    older = [one.subvolume.created for one in there.values() if one.subvolume.created < created and _is_base(one.record)]
    newer = {one.subvolume.created: one.path for one in there.values() if one.subvolume.created > created and _grew(one.record)}
    with opened(own.path) as fd:
        if older and _grew(own.record):
            return has_readable_tree(fd, max(older))
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
