"""Known damage of copies that are fetched: what a difference inherits from its parent, and what is still damaged of a copy that
was fetched again.

A difference shares with its parent all that did not change, so it has the parent's damage, too. That is recorded before the new
copy has its name. It ends only by a read: `backupd verify`, a scrub, or the read here of a copy that takes a damaged one's place.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from backupd.actions.shared_damage import FoundDamage, backups_that_share, recorded_damage
from backupd.files.tree import Tree
from backupd.files.walking import entries
from backupd.repo.checksums import key_of
from backupd.repo.recorded_rows import forgotten_damages
from btrkeep.catalogue import WHOLE, Damage
from btrkeep.errors import DAMAGED
from btrkeep.fs.fiemap import NO_PLACE, extents
from btrkeep.pool.marker import Pool
from btrkeep.pool.subvolume import describe, opened
from btrkeep.treescan.links import InodeNames

_PIECE = 1 << 20
_MOST_EXTENTS = 1000  # of a file; one with more counts as sharing damaged data


def _recorded_damages(pool: Pool, host: str, name: str) -> list[Damage]:
    """Returns what is recorded beside the backups as damaged in one of them."""
    return forgotten_damages(pool, host, {name}, (), recorded_damage)


def inherited_damages(pool: Pool, host: str, parent: str, name: str, path: Path) -> list[Damage]:
    """Returns the damages that the backup `name`, which lies at `path`, has from its `parent`.

    A file inherits damage if it is the same inode, under any of its names, and refers to data of the damaged part.
    """
    rows = _recorded_damages(pool, host, parent)
    found = describe(path) if rows else None
    if found is None:
        return []
    inherited = dict[tuple[str, int], Damage]()
    with Tree(pool.host(host) / parent) as old, Tree(path) as new, opened(path) as root:
        names = InodeNames(root)
        for row in rows:
            paths = [row.path] if row.path == WHOLE else map(os.fsdecode, _names_in(old, new, names, found.id, row))
            inherited |= {(other, row.start): replace(row, name=name, path=other) for other in paths}
    return list(inherited.values())


def _names_in(old: Tree, new: Tree, names: InodeNames, subvolume: int, row: Damage) -> Iterator[bytes]:
    """Yields the paths in the new backup that inherit this damage. What cannot be found out counts as inherited."""
    path = os.fsencode(row.path)
    try:
        before = old.stat(path)
        for name in names.of(subvolume, before.inode):
            other = b"/" + name.partition(b"/")[2]  # in the subvolume it lies below `data`
            now = new.stat(other)
            is_unchanged = (now.changed, now.size) == (before.changed, before.size)
            if now.kind == "file" and (is_unchanged or _share(old, path, new, other, row)):
                yield other
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the parent has no such file
        return
    except OSError as error:
        if error.errno not in DAMAGED:
            raise
        yield path


def _share(old: Tree, path: bytes, new: Tree, other: bytes, row: Damage) -> bool:
    """Returns True if the second file refers to data of the damaged part of the first. Raises OSError."""
    damaged, after = _places(old, path, row.start, row.length), _places(new, other)
    if damaged is None or after is None:
        return True
    return any(begin < other_end and other_begin < end for begin, end in damaged for other_begin, other_end in after)


def _places(tree: Tree, path: bytes, start: int = 0, length: int = 0) -> list[tuple[int, int]] | None:
    """Returns where on the disk the extents lie that a part of a file refers to; None if there are too many to compare."""
    fd = tree.open_file(path)
    try:
        places = list[tuple[int, int]]()
        for logical, physical, size, flags in extents(fd):
            if flags & NO_PLACE or logical + size <= start or (length and logical >= start + length):
                continue
            places.append((physical, physical + size))
            if len(places) > _MOST_EXTENTS:
                return None
        return places
    finally:
        os.close(fd)


def still_damaged(pool: Pool, host: str, name: str, now: datetime) -> list[Damage]:
    """Reads the files that are recorded as damaged in a backup, which is another subvolume now, and returns the damages that it
    still has, and those of the host's other backups that have the same files.
    """
    rows = _recorded_damages(pool, host, name)
    paths = {os.fsencode(row.path) for row in rows}
    bad = list[FoundDamage]()
    with Tree(pool.host(host) / name) as tree:
        if os.fsencode(WHOLE) in paths:
            every = (entry.path for entry in entries(tree, b"/") if entry.kind == "file")
        else:
            every = (path for path in sorted(paths))
        for path in every:
            with suppress(FileNotFoundError, NotADirectoryError, ValueError):
                entry = tree.stat(path)
                if entry.kind == "file" and (start := _first_unreadable(tree, path)) is not None:
                    bad.append(FoundDamage(path, start, key_of(entry.inode, entry.changed, entry.size)))
    return list(_rows(pool, host, name, bad, now))


def _rows(pool: Pool, host: str, name: str, bad: list[FoundDamage], now: datetime) -> Iterator[Damage]:
    found: Iterable[tuple[str, list[FoundDamage]]] = [(name, bad), *(backups_that_share(pool, host, name, bad) if bad else ())]
    for backup, files in found:
        for file in files:
            yield Damage(host, backup, os.fsdecode(file.path), file.start, 0, "verify", now)


def _first_unreadable(tree: Tree, path: bytes) -> int | None:
    """Returns where the first piece begins that the disk does not give back; None if all of the file can be read."""
    fd = tree.open_file(path)
    at = 0
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        while piece := os.pread(fd, _PIECE, at):
            at += len(piece)
    except OSError as error:
        if error.errno in DAMAGED:
            return at
        raise
    finally:
        os.close(fd)
    return None
