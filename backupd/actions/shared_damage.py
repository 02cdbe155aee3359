"""Damage that was found in one backup, in the others of its host: a file that snapshots share is the same data in all of them."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from backupd.files.tree import Tree
from backupd.repo.checksums import Key, key_of
from backupd.repo.listing import names_of
from backupd.repo.read_lock import read
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
        with suppress(OperatorError, OSError), read(path), Tree(path) as tree:
            if same := [one for one in known if _has(tree, one)]:
                yield other, same


def _has(tree: Tree, file: FoundDamage) -> bool:
    try:
        there = tree.stat(file.path)
    except OSError:
        return False
    return there.kind == "file" and key_of(there.inode, there.changed, there.size) == file.key
