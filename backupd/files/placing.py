"""Decides where restored files go: names below the destination, like those of `cp -a`. Pure except for the walk at the end."""

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from backupd.files.batched_walk import PlainFolder, PlainFolders, Walked
from backupd.files.tree import Entry, Tree, components, joined, outermost, read_entry
from backupd.files.walking import PlainFile, PlainFiles, Unreadable, parent_of, report
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import UsageError
from btrkeep.fs.openat import open_on_same_device
from btrkeep.units import printable

Names = tuple[bytes, ...]
"""A place below the destination folder; () is that folder itself."""
Walk = Callable[[Tree, bytes, Unreadable | None], Iterator[Walked]]
"""A batched walk of RepeatedWalk."""


@dataclass(frozen=True, slots=True)
class Root:
    """A requested path and its place."""

    path: bytes
    """The path on the host."""
    names: Names
    """Its place below the destination. The root of a backup has no name: its content goes directly into the folder."""

    def holds(self, path: bytes) -> bool:
        """Returns True if `path` is the root or below it."""
        names = components(self.path)
        return components(path)[: len(names)] == names

    def place(self, path: bytes) -> Names:
        """Returns the place of `path`, which is at or below the root."""
        return (*self.names, *components(path)[len(components(self.path)) :])


class Visit(NamedTuple):
    """An entry of the backup being restored: an open descriptor of its folder, its name there, and its place. With `left`, which
    only folders have, everything below it has been visited. `privileged`: its place gets all attributes.
    """

    entry: Entry
    folder: int
    name: bytes
    place: Names
    left: bool
    privileged: bool = True

    def at(self, to: str) -> bytes:
        """Returns its place, below the destination's own name."""
        return place_path(to, self.place)


class PlainVisits(NamedTuple):
    """Plain files and symlinks being restored into the folder at `place`."""

    group: PlainFiles
    place: Names

    def each(self, files: Iterable[PlainFile], unreadable: Unreadable) -> Iterator[Visit]:
        """Yields some of its files one by one."""
        device = os.fstat(self.group.folder).st_dev
        for file in files:
            path = self.group.above + b"/" + file.name
            try:
                entry = read_entry(self.group.folder, file.name, path)
                if entry.device != device:
                    raise OSError(errno.EXDEV, "another filesystem is mounted there")
            except OSError as error:
                unreadable(path, error)
                continue
            yield Visit(entry, self.group.folder, file.name, (*self.place, file.name), left=False)


class FolderVisits(NamedTuple):
    """Folders that contain only plain files and symlinks, being restored into the folder at `place`."""

    group: PlainFolders
    place: Names
    privileged: bool = True

    def of_folder(self, folder: PlainFolder, *, left: bool) -> Visit:
        """Returns the visit of one of the folders. Its entry has what a restore needs of a folder."""
        path = self.group.above + b"/" + folder.name
        entry = Entry(path, "folder", 0, 0, *folder[1:5], inode=0, links=1, device=0)
        return Visit(entry, self.group.folder, folder.name, (*self.place, folder.name), left, self.privileged)

    def files_of(self, folder: PlainFolder) -> PlainVisits:
        """Returns the files of one of the folders, without an open folder."""
        return PlainVisits(PlainFiles(self.group.above + b"/" + folder.name, -1, folder.files), (*self.place, folder.name))

    def parts(self, folders: Iterable[PlainFolder], unreadable: Unreadable) -> Iterator[Visit | PlainVisits]:
        """Yields some of its folders, after each its content, and the folder once more."""
        for folder in folders:
            yield self.of_folder(folder, left=False)
            if folder.files:
                try:
                    opened = open_on_same_device(self.group.folder, folder.name)
                except OSError as error:
                    unreadable(self.group.above + b"/" + folder.name, error)
                else:
                    with ClosingFd(opened) as fd:
                        files = self.files_of(folder)
                        yield files._replace(group=files.group._replace(folder=fd))
            yield self.of_folder(folder, left=True)


AnyVisit = Visit | PlainVisits | FolderVisits


def placed(paths: Sequence[bytes], parents: bool) -> list[Root]:
    """Returns the places of the paths: their last names, with `parents` the whole paths. Raises UsageError if two places are the
    same.
    """
    by_place: dict[Names, bytes] = {}
    for path in outermost(paths):
        names = tuple(components(path))
        place = names if parents else names[-1:]
        if place in by_place:
            both = f"{printable(by_place[place])} and {printable(path)}"
            raise UsageError(f"{both} would both become {printable(place[-1])}", "--parents keeps their whole paths")
        by_place[place] = path
    if () in by_place and len(by_place) > 1:  # only with "/", which contains all other requested paths
        raise AssertionError(by_place)
    return [Root(path, place) for place, path in by_place.items()]


def place_path(to: str, place: Names) -> bytes:
    """Returns the path of a place, below the destination's own name."""
    return os.fsencode(to).rstrip(b"/") + joined(list(place)) if place else os.fsencode(to)


def visits(
    tree: Tree, roots: Sequence[Root], walk: Walk, unreadable: Unreadable | None = None, *, privileged: bool = True
) -> Iterator[AnyVisit]:
    """Yields everything to be restored, folders before and after their content. Folders above a root that were not requested come
    first, from the top down. Raises OSError; `unreadable` as for walk_batched.
    """
    above = _above(roots)
    for path in above:
        with parent_of(tree, path) as (folder, name):
            yield Visit(read_entry(folder, name, path), folder, name, tuple(components(path)), left=False, privileged=privileged)
    for root in roots:
        folders = list[Names]()
        for walk_entry in walk(tree, root.path, unreadable):
            if isinstance(walk_entry, PlainFiles):
                yield PlainVisits(walk_entry, folders[-1])
                continue
            if isinstance(walk_entry, PlainFolders):
                yield FolderVisits(walk_entry, folders[-1], privileged)
                continue
            entry, folder, name, left = walk_entry
            if left:
                place = folders.pop()
            else:
                place = (*folders[-1], name) if folders else root.names
                if entry.kind == "folder":
                    folders.append(place)
                elif not tree.owns(entry.device):
                    report(unreadable, entry.path, OSError(errno.EXDEV, "another filesystem is mounted there"))
                    continue
            yield Visit(entry, folder, name, place, left, privileged)
    for path in reversed(above):
        with parent_of(tree, path) as (folder, name):
            yield Visit(read_entry(folder, name, path), folder, name, tuple(components(path)), left=True, privileged=privileged)


def _above(roots: Sequence[Root]) -> list[bytes]:
    above = {root.names[:depth] for root in roots for depth in range(1, len(root.names))}
    return [joined(list(names)) for names in sorted(above, key=lambda names: (len(names), names))]
