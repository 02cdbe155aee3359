"""Compares the inodes of two trees: finds the unchanged files, and the names that are hard links of each other.

In a history of hard links an unchanged file has the same inode in both trees, so only folders are read. Of the previous tree only
changed folders are read, because a digest of each folder was kept when that tree was read itself. A file with another inode but the
same size and time may have other content, which rsync would not notice.
"""

import errno
import os
import stat
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from backupd.run.importing.tree_walk import (
    COPY_IT,
    FEW,
    IS_FOLDER,
    Attributes,
    FolderDigests,
    UnprovenTree,
    WalkedFolder,
    attributes_of,
    digest_of,
    filesystem_of,
    inodes_by_name,
    walk_again,
    walk_tree,
)
from btrkeep.descriptors import ClosingFd
from btrkeep.fs.openat import FOLDER, open_folder
from btrkeep.units import printable


@dataclass(slots=True)
class TreeLinks:
    """A tree compared with the previous tree. All names are relative to the tree."""

    changed: dict[bytes, int] = field(default_factory=dict)
    """Names other than folders whose inode has changed, with the new inode."""
    alike: list[bytes] = field(default_factory=list)
    """The files among `changed` whose size and time have not changed."""
    folders: dict[bytes, Attributes] = field(default_factory=dict)
    """The attributes of new folders, of folders whose attributes changed, and of folders in which a name was added, removed or
    changed. The tree itself is b""; each folder comes after the folder above it.
    """
    gone: list[bytes] = field(default_factory=list)
    """Names that no longer exist, or have another type."""
    groups: list[list[bytes]] = field(default_factory=list)
    """Names that are hard links of each other; the first has the same inode in the previous tree."""
    files: int = 0
    """Number of regular files."""
    new_bytes: int = 0
    """Allocated bytes of the files with another inode, each file once."""
    grown: int = 0
    """Bytes by which files and symlinks have grown."""
    digests: FolderDigests = field(default_factory=FolderDigests)
    """Of all folders, for the next tree."""
    is_compared: bool = False
    """True if the inodes were compared with a previous tree; otherwise `changed`, `alike`, `folders` and `gone` are empty."""

    @property
    def further(self) -> set[bytes]:
        """Returns all names of hard links except the first name of each group: they are linked to the first name, not copied."""
        return {name for names in self.groups for name in names[1:]}


def scan_links(tree: Path, before: Path | None, goes_on: Callable[[], bool], digests: FolderDigests | None = None) -> TreeLinks:
    """Compares the trees; without `before`, or if that is on another filesystem, everything is new. `digests`: those of the
    previous tree, from the time when it was read; without them, it is read again completely. Raises OSError, and UnprovenTree like
    `walk_tree`.

    Memory: eight bytes for each name, 16 for each folder, and the names of changes and of hard links. `goes_on` is called in each
    folder; if it returns False, the results so far are returned.
    """
    if before is not None and before.stat().st_dev != tree.stat().st_dev:
        before = None
    tree_links, inodes, were = TreeLinks(is_compared=before is not None), _Inodes(), digests if before is not None else None
    roots = [os.open(path, FOLDER & ~os.O_NOFOLLOW) for path in (tree, before) if path is not None]  # /proc/N/fd/N is a symlink
    try:
        comparison = _Comparison(tree_links, roots[1] if len(roots) > 1 else None)
        for folder in walk_tree(roots[0], goes_on):
            inodes.add(folder.inodes)
            tree_links.files += folder.files
            digest = digest_of(folder)
            tree_links.digests.add(digest)
            if were is None or not were.has(digest):
                comparison.take(folder)
        tree_links.digests.sort()
        if twice := inodes.twice():
            tree_links.groups = _groups(roots[0], twice, tree_links, goes_on)
            tree_links.new_bytes -= _counted_again(roots[0], tree_links)
    finally:
        for fd in roots:
            os.close(fd)
    return tree_links


class _Comparison:
    """Compares the folders of a tree with those of the previous tree, open as `before`."""

    def __init__(self, tree_links: TreeLinks, before: int | None) -> None:
        self._tree_links, self._before = tree_links, before
        self._was_none = {b""} if before is None else set[bytes]()
        """Folders that the previous tree does not have, or only as a symlink."""

    def take(self, folder: WalkedFolder) -> None:
        """Compares one folder, after the one above it."""
        tree_links, begin = self._tree_links, folder.path + b"/" if folder.path else b""
        above = None
        if folder.path in self._was_none or self._before is None:
            self._was_none.discard(folder.path)
        else:
            above = open_folder(self._before, folder.path.split(b"/") if folder.path else ())
        try:
            old = inodes_by_name(above) if above is not None else {}
            self._was_none |= {begin + name for name in folder.folders if old.get(name) != IS_FOLDER}
            names = folder.names
            now = dict(zip(names, folder.inodes, strict=True)) | dict.fromkeys(folder.folders, IS_FOLDER)
            gone = _gone(old, now)
            tree_links.grown -= sum(_size_of(above, name) for name in gone if above is not None)
            changed = [pair for pair in zip(names, folder.others, strict=True) if old.get(pair[0]) != now[pair[0]]]
            for name, entry in changed:
                has = above is not None and old.get(name, IS_FOLDER) != IS_FOLDER
                self._changed(entry, begin + name, os.stat(name, dir_fd=above, follow_symlinks=False) if has else None)
            if self._before is None:
                return
            tree_links.gone += [begin + name for name in gone]
            has_others = gone or changed or old.keys() != now.keys()
            attributes = attributes_of(folder.fd, folder.status)
            if above is None or has_others or attributes != attributes_of(above, os.fstat(above)):
                tree_links.folders[folder.path] = attributes
        finally:
            if above is not None:
                os.close(above)

    def _changed(self, entry: "os.DirEntry[str]", path: bytes, then: os.stat_result | None) -> None:
        tree_links, now = self._tree_links, entry.stat(follow_symlinks=False)
        tree_links.grown += _size(now) - (_size(then) if then else 0)
        is_file = stat.S_ISREG(now.st_mode)
        tree_links.new_bytes += now.st_blocks * 512 if is_file else 0
        if self._before is not None:
            tree_links.changed[path] = entry.inode()
            if is_file and then and _is_alike(now, then):
                tree_links.alike.append(path)


def _counted_again(tree: int, tree_links: TreeLinks) -> int:
    """Returns the bytes that were counted for several names of one file, or for a further name of a file of the previous tree."""
    total = 0
    for names in tree_links.groups:
        mine = [name for name in names if name in tree_links.changed] if tree_links.is_compared else names
        again = len(mine) - (len(mine) == len(names))
        if again:
            status = os.stat(names[0], dir_fd=tree, follow_symlinks=False)
            total += again * status.st_blocks * 512 if stat.S_ISREG(status.st_mode) else 0
    return total


class _Inodes:
    """Inode numbers, eight bytes each."""

    def __init__(self) -> None:
        self._all = array("Q")

    def add(self, inodes: "array[int]") -> None:
        self._all.extend(inodes)

    def twice(self) -> set[int]:
        """Returns the numbers that were added more than once. Sorts them in place, because there may be ten million."""
        if len(self._all) <= FEW:
            return {inode for inode, other in pairwise(sorted(self._all)) if inode == other}
        import numpy as np  # it takes a tenth of a second

        inodes = np.frombuffer(self._all, np.uint64)
        inodes.sort()
        return set(inodes[1:][inodes[1:] == inodes[:-1]].tolist())


def superfluous(tree: int, copy: int, seen: FolderDigests, goes_on: Callable[[], bool]) -> list[bytes]:
    """Returns the names in an open copy that do not exist in the open tree, or have another type there (TreeLinks.gone). Raises the
    same as `walk_again`.
    """
    names = list[bytes]()
    for folder in walk_again(tree, seen, goes_on):
        try:
            fd = open_folder(copy, folder.path.split(b"/") if folder.path else ())
        except (FileNotFoundError, NotADirectoryError):  # the entry that replaced it was found in the parent folder
            continue
        with ClosingFd(fd):
            now = dict.fromkeys(folder.names, 0) | dict.fromkeys(folder.folders, IS_FOLDER)
            begin = folder.path + b"/" if folder.path else b""
            names += [begin + name for name in _gone(inodes_by_name(fd), now)]
    return names


def _gone(old: Mapping[bytes, int], now: Mapping[bytes, int]) -> list[bytes]:
    """Returns the names that no longer exist, or are a folder in only one of the two trees."""
    return [name for name, was in old.items() if name not in now or (now[name] == IS_FOLDER) != (was == IS_FOLDER)]


def _groups(tree: int, twice: set[int], tree_links: TreeLinks, goes_on: Callable[[], bool]) -> list[list[bytes]]:
    names = dict[int, list[bytes]]()
    for folder in walk_again(tree, tree_links.digests, goes_on):
        begin = folder.path + b"/" if folder.path else b""
        if twice.isdisjoint(folder.inodes):
            continue
        for name, inode in zip(folder.names, folder.inodes, strict=True):
            if inode in twice:
                names.setdefault(inode, []).append(begin + name)
    groups = [sorted(group, key=tree_links.changed.__contains__) for group in names.values() if len(group) > 1]
    for group in groups:
        _require_links(tree, group)
    return groups


def _require_links(tree: int, names: list[bytes]) -> None:
    """Raises UnprovenTree if a file with these names in the open tree has a lower link count: then they are several files with one
    inode number.
    """
    if os.stat(names[0], dir_fd=tree, follow_symlinks=False).st_nlink >= len(names):
        return
    stat_results = [os.stat(name, dir_fd=tree, follow_symlinks=False) for name in names]
    if len({status.st_ino for status in stat_results}) > 1 or any(status.st_nlink >= len(names) for status in stat_results):
        raise OSError(
            errno.EAGAIN, "it was changed during the import: another program may be changing the history", os.fsdecode(names[0])
        )
    first, other = printable(names[0]), printable(names[1])
    message = (
        f"{first} and {other} in it have the same inode number, but are not hard links: {filesystem_of(tree)} uses the number twice"
    )
    raise UnprovenTree(message, COPY_IT[0].upper() + COPY_IT[1:])


def _size(status: os.stat_result) -> int:
    """Returns the size as rsync counts it: of files and of symlinks."""
    return status.st_size if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode) else 0


def _size_of(above: int, name: bytes) -> int:
    """Returns the size of everything below a name in an open folder, or of the entry itself."""
    status = os.stat(name, dir_fd=above, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode):
        return _size(status)
    with ClosingFd(os.open(name, FOLDER, dir_fd=above)) as fd:
        return sum(_size(other.stat(follow_symlinks=False)) for folder in walk_tree(fd, lambda: True) for other in folder.others)


def _is_alike(now: os.stat_result, then: os.stat_result) -> bool:
    """Returns True if rsync would consider the file unchanged."""
    return stat.S_ISREG(then.st_mode) and (then.st_size, then.st_mtime_ns) == (now.st_size, now.st_mtime_ns)
