"""Extends damage found in one backup to the others of its host: a file that snapshots share is the same data in all of them.

Also finds what is recorded about the files of a backup that the catalogue no longer knows.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from backupd.files.tree import Entry, Tree
from backupd.files.walking import entries
from backupd.repo.checksums import Checksums, Key, key_of
from backupd.repo.listing import names_of
from backupd.repo.read_lock import lock_for_reading
from btrkeep.errors import OperatorError
from btrkeep.pool.marker import Pool

_MOST = 1000  # files that are looked for in each backup; the others are found when that is read


@dataclass(frozen=True, slots=True)
class FoundDamage:
    """A path in a backup, and the first byte that is damaged. `key` None: others that have it are not looked for."""

    path: bytes
    start: int
    key: Key | None = None


def backups_that_share(pool: Pool, host: str, name: str, files: Sequence[FoundDamage]) -> Iterator[tuple[str, list[FoundDamage]]]:
    """The host's backups but `name` that have some of the files at the same path, and which. One that cannot be read has none."""
    known = [one for one in files if one.key is not None][:_MOST]
    for other in sorted(names_of(pool, host) - {name}) if known else ():
        path = pool.host(host) / other
        with suppress(OperatorError, OSError), lock_for_reading(path), Tree(path) as tree:
            if same := [one for one in known if _has(tree, one)]:
                yield other, same


def recorded_damage(pool: Pool, host: str, name: str) -> list[bytes]:
    """The paths of all files of a backup that were damaged when they were last read; of one that cannot be read none."""
    path = pool.host(host) / name
    with suppress(OperatorError, OSError), lock_for_reading(path), Tree(path) as tree, Checksums(pool.host(host)) as known:
        return [one.path for one in entries(tree, b"/") if one.kind == "file" and _is_damaged(one, known)]
    return []


def _is_damaged(one: Entry, known: Checksums) -> bool:
    before = known.find(key_of(one.inode, one.changed, one.size))
    return before is not None and before.damaged


def _has(tree: Tree, file: FoundDamage) -> bool:
    try:
        there = tree.stat(file.path)
    except OSError:
        return False
    return there.kind == "file" and key_of(there.inode, there.changed, there.size) == file.key
