"""Whether a place of a file can be read, and one row for neighbouring places that cannot."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from itertools import groupby

from backupd.actions.damage_resolver import Backups, FilePlace
from backupd.files.tree import Tree
from backupd.repo.context import PoolContext
from btrkeep.catalogue import Damage
from btrkeep.errors import DAMAGED

BLOCK = 4096  # the smallest sector size, so that no block is missed where they are larger


def backups_by_id(context: PoolContext) -> Backups:
    """Returns all backups that have a name, by subvolume id, which is never given twice."""
    return {one.subvolume_id: (one.host, one.name) for one in context.catalogue.states() if one.subvolume_id and one.name}


def is_bad(context: PoolContext, places: list[FilePlace]) -> bool:
    """Whether the block cannot be read, by the first of its names that is still there."""
    for one in places:
        try:
            with Tree(context.pool.host(one.host) / one.name) as tree:
                fd = tree.open_file(one.path)
        except OSError:  # deleted meanwhile, or unreadable on the way to it
            continue
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.pread(fd, BLOCK, one.start)
        except OSError as error:
            if error.errno not in DAMAGED:
                raise
            return True
        finally:
            os.close(fd)
        return False
    return True


def merged(places: Iterable[FilePlace], found_by: str, now: datetime) -> Iterator[Damage]:
    """One row for neighbouring blocks of a file."""
    ordered = sorted(places, key=lambda one: (one.host, one.name, one.path, one.start))
    for (host, name, path), some in groupby(ordered, key=lambda one: (one.host, one.name, one.path)):
        row: Damage | None = None
        for one in some:
            if row and one.start == row.start + row.length:
                row = replace(row, length=row.length + BLOCK)
                continue
            if row:
                yield row
            row = Damage(host, name, os.fsdecode(path), one.start, BLOCK, found_by, now)
        if row:
            yield row
