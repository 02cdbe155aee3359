"""Whether the kernel can drop a subvolume: it reads what no other one shares, and makes the pool read-only if it cannot.

A backup that is not damaged is read here a moment before the kernel reads the same.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from backupd.repo.backup_json import Record
from btrkeep.backup_states import COMPLETE
from btrkeep.pool.subvolume import Subvolume, opened
from btrkeep.treescan import has_readable_tree, has_readable_where_changed


class OwnBackup(NamedTuple):
    """A final backup of ours."""

    subvolume: Subvolume
    record: Record

    @property
    def is_base(self) -> bool:
        """Returns True if all later backups have grown from it, or from what has."""
        return self.record.state == COMPLETE and not self.record.repaired

    @property
    def grew(self) -> bool:
        """Returns True if it grew from the newest base that there was."""
        return not (self.record.imported or self.record.unread_bases or self.record.repaired)


def can_be_dropped(folder: Path, name: str, there: Mapping[str, OwnBackup]) -> bool:
    """Returns False if the disk does not give back metadata of that backup which none of the host's others shares.

    What was written before the next older base was made is shared with that. Without one, what the next newer backup has changed is
    read; without that, all. Raises OSError.
    """
    own = there[name]
    created = own.subvolume.created
    older = [one.subvolume.created for one in there.values() if one.subvolume.created < created and one.is_base]
    newer = {one.subvolume.created: other for other, one in there.items() if one.subvolume.created > created and one.grew}
    with opened(folder / name) as fd:
        if older and own.grew:
            return has_readable_tree(fd, max(older))
        if newer and own.is_base and not own.record.imported:
            with opened(folder / newer[min(newer)]) as descendant:
                return has_readable_where_changed(fd, descendant, created)
        return has_readable_tree(fd)
