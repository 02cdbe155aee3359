"""From addresses on the disks to every file in every backup that has the data there, without walking the pool.

References lead to inodes, these to names, both by searches in trees. Neighbouring places that cannot be read become one row.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from backupd.files.tree import Tree
from backupd.repo.backup_json import DATA
from backupd.repo.context import PoolContext
from btrkeep.catalogue import Damage
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import DAMAGED
from btrkeep.fs.file_data import address
from btrkeep.treescan.links import InodeNames
from btrkeep.treescan.owners import Owners, Reference

if TYPE_CHECKING:
    from btrkeep.pool.kernel_log import ReadFailure
    from btrkeep.pool.marker import Pool


_PREFIX = os.fsencode(DATA) + b"/"
_MOST_ADDRESSES, _MOST_REFERENCES = 1024, 200_000  # of which the names are looked up together
Backups = Mapping[int, tuple[str, str]]
"""Host and name by the id of the subvolume."""
_Referred = tuple[int, list[Reference] | None]
_Paths = dict[int, list[bytes]]


class FilePlace(NamedTuple):
    """A byte of one file of one backup. `path` is absolute, as the host has it."""

    host: str
    name: str
    path: bytes
    start: int


class Resolver:
    """Asks one filesystem; `fd` is any folder of it."""

    def __init__(self, fd: int, backups: Backups) -> None:
        self._owners, self._names, self._backups = Owners(fd), InodeNames(fd), backups
        self.lost = 0
        """How many addresses or backups have not all their names, because metadata on the way to them cannot be read."""

    def places(self, vaddr: int) -> list[FilePlace] | None:
        """Returns every name, in every backup, of the files that have the byte at `vaddr`. None: nobody refers to it."""
        return next(self.resolve((vaddr,)))[1]

    def resolve(self, vaddrs: Iterable[int]) -> Iterator[tuple[int, list[FilePlace] | None]]:
        """Yields each address with its places, in order. Looks up the names of many together, which is faster."""
        some, count = list[_Referred](), 0
        for vaddr in vaddrs:
            references = self._references(vaddr)
            some.append((vaddr, references))
            count += len(references or ())
            if len(some) >= _MOST_ADDRESSES or count >= _MOST_REFERENCES:
                yield from self._named(some)
                some, count = [], 0
        yield from self._named(some)

    def sharing(self, fault: "ReadFailure", pool: "Pool") -> list[FilePlace]:
        """Returns the same for a block of a file that could not be read; nothing if it is in no backup any more."""
        for _, file_places in self._named([(0, [(fault.inode, fault.offset, fault.subvolume)])]):
            for file_place in file_places or ():
                try:
                    vaddr = _address(pool, file_place)
                except OSError as error:
                    if error.errno in DAMAGED:  # what leads there cannot be read either
                        return [file_place]
                    continue  # gone, or no plain file: the line is of a filesystem that was on the device before
                return (self.places(vaddr) if vaddr is not None else None) or [file_place]
        return []

    def _references(self, vaddr: int) -> list[Reference] | None:
        try:
            return self._owners.references(vaddr)
        except OSError as error:
            if error.errno not in DAMAGED:
                raise
            self.lost += 1
            return None

    def _named(self, some: list[_Referred]) -> Iterator[tuple[int, list[FilePlace] | None]]:
        paths = self._paths_of(some)
        for vaddr, references in some:
            yield vaddr, list(self._places(references, paths)) if references else None

    def _places(self, references: list[Reference], paths: Mapping[int, _Paths]) -> Iterator[FilePlace]:
        for inode, offset, subvolume in references:
            if (there := paths.get(subvolume)) and (here := there.get(inode)):
                host, name = self._backups[subvolume]
                for path in here:
                    yield FilePlace(host, name, path, offset)

    def _paths_of(self, some: list[_Referred]) -> dict[int, _Paths]:
        """The paths as the host has them, by subvolume and inode; only of backups."""
        wanted: dict[int, set[int]] = {}
        for _, references in some:
            for inode, _, subvolume in references or ():
                if subvolume in self._backups:
                    wanted.setdefault(subvolume, set()).add(inode)
        found, before, paths = dict[int, _Paths](), None, _Paths()
        for subvolume, inodes in wanted.items():
            try:
                names = self._names.of_many(subvolume, inodes)
            except OSError as error:
                if error.errno not in DAMAGED:
                    raise
                self.lost += 1
                continue
            if names is not before:
                before, paths = names, {inode: _as_on_host(some) for inode, some in names.items()}
            found[subvolume] = paths
        return found


def _as_on_host(paths: Iterable[bytes]) -> list[bytes]:
    return [path[len(_PREFIX) - 1 :] for path in paths if path.startswith(_PREFIX)]


def _address(pool: "Pool", place: FilePlace) -> int | None:
    with Tree(pool.host(place.host) / place.name) as tree, ClosingFd(tree.open_file(place.path)) as fd:
        return address(fd, place.start)


BLOCK = 4096  # the smallest sector size, so that no block is missed where they are larger


def backups_by_id(context: PoolContext) -> Backups:
    """Returns all backups that have a name, by subvolume id, which is never given twice."""
    return {
        state.subvolume_id: (state.host, state.name) for state in context.catalogue.states() if state.subvolume_id and state.name
    }


def is_bad(context: PoolContext, places: list[FilePlace]) -> bool:
    """Whether the block cannot be read, by the first of its names that is still there."""
    for place in places:
        try:
            with Tree(context.pool.host(place.host) / place.name) as tree:
                fd = tree.open_file(place.path)
        except OSError:  # deleted meanwhile, or unreadable on the way to it
            continue
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.pread(fd, BLOCK, place.start)
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
    ordered = sorted(places, key=lambda place: (place.host, place.name, place.path, place.start))
    for (host, name, path), file_places in groupby(
        ordered, key=lambda file_place: (file_place.host, file_place.name, file_place.path)
    ):
        row: Damage | None = None
        for file_place in file_places:
            if row and file_place.start == row.start + row.length:
                row = replace(row, length=row.length + BLOCK)
                continue
            if row:
                yield row
            row = Damage(host, name, os.fsdecode(path), file_place.start, BLOCK, found_by, now)
        if row:
            yield row
