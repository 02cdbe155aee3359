"""Which backup a run's `.working` grows from: the newest complete one that the disk gives back."""

import contextlib
import logging
import os
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from backupd.repo import backup_json as records
from backupd.repo.final_backups import FinalBackup, bases
from backupd.repo.notes_json import Notes
from btrkeep.catalogue import WHOLE, Damage
from btrkeep.pool.marker import Pool
from btrkeep.pool.subvolume import opened
from btrkeep.treescan import has_readable_tree

log = logging.getLogger(__name__)


def choose_base(
    pool: Pool, host: str, now: datetime, notes: Notes, checked: bool, damages: Iterable[Damage] = ()
) -> tuple[FinalBackup | None, tuple[str, ...]]:
    """Returns the base, and the names of the newer backups that the disk does not give back.

    Those that a continued run has passed over are read again: a disk may have been away. So are those that are known to be damaged
    as a whole; and one of which not all damaged files are named is none, for a run could not fetch the others again.
    """
    paths: dict[str, set[str]] = {}
    for row in damages:
        if row.fate is None:
            paths.setdefault(row.name, set()).add(row.path)
    known, unread = _known_unread(pool.working(host)), list[str]()
    for base in bases(pool, host, now, notes, unread):
        name = base.path.name
        damaged = paths.get(name, set())
        is_lost = WHOLE in damaged and len(damaged) > 1
        if not is_lost and (not (checked or name in known or damaged == {WHOLE}) or _is_whole(base.path)):
            return base, tuple(sorted(unread))
        unread.append(name)
    return None, tuple(sorted(unread))


def _known_unread(working: Path) -> tuple[str, ...]:
    with contextlib.suppress(records.UnreadableRecord, OSError):
        found = records.read(working)
        return found.unread_bases if found else ()
    return ()


def _is_whole(subvolume: Path) -> bool:
    with opened(subvolume) as fd:
        return has_readable_tree(fd)


def is_damaged(subvolume: Path) -> bool:
    """Returns True if the disk does not give back some of the metadata of a subvolume that it gave a moment ago."""
    try:
        return not _is_whole(subvolume)
    except OSError as error:
        log.warning("%s: %s", subvolume, error)
        return False


def damaged_paths(base: FinalBackup, damages: Iterable[Damage]) -> list[bytes]:
    return sorted({os.fsencode(one.path) for one in damages if one.name == base.record.name and one.fate is None})


def linked_since(base: FinalBackup | None) -> int:
    """Returns the generation before which no file in a snapshot of `base` can have been linked: a hundredth of the tree to search.

    Every run splits before its rsync, so the links in a backup were made after the snapshot that it started from. A base that does
    not record this (made by hand) is searched as a whole, and so is a subvolume without a base, and one
    that came from another pool: it was made here after all of its links.
    """
    is_known = base is not None and base.record.links_split and not base.subvolume.received_uuid
    return base.subvolume.created if base and is_known else 0


def ancestors_of(base: FinalBackup | None, created: int) -> dict[str, int]:
    """Returns the Record's of a snapshot of `base` that was made in that generation."""
    if base is None:
        return {}
    older = {} if base.subvolume.received_uuid else base.record.ancestors  # else they are another pool's generations
    there = {path.name for path in base.path.parent.iterdir()} if older else set()
    return {name: generation for name, generation in older.items() if name in there} | {base.path.name: created}
