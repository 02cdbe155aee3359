"""Compares the inodes of two trees: finds the unchanged files, and the names that are hard links of each other.

In a history of hard links an unchanged file has the same inode in both trees, so only the folders are read. A file with another
inode but the same size and time may have other content, which rsync would not notice.
"""

import os
import stat
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from btrkeep.errors import OperatorError
from btrkeep.units import printable


@dataclass(slots=True)
class TreeLinks:
    """A tree compared with the one before it; all names are relative to it.

    `changed`: what is no folder and has another inode, and `doubted` the files of these that are as large and as old as before.
    `folders`: those that are new or have other attributes, and those in which a name came, went or changed. `gone`: names that are
    not there any more, or are of another kind. `groups`: names that are hard links of each other. `files`: how many regular files
    there are; `new_bytes`: the room on the disk of those that have another inode, each file once; `grown`: by how many bytes files
    and symlinks are more than before.

    `is_compared`: whether there was a tree before whose inodes could be compared; the four lists are empty without.
    """

    changed: list[bytes] = field(default_factory=list)
    doubted: list[bytes] = field(default_factory=list)
    folders: list[bytes] = field(default_factory=list)
    gone: list[bytes] = field(default_factory=list)
    groups: list[list[bytes]] = field(default_factory=list)
    files: int = 0
    new_bytes: int = 0
    grown: int = 0
    is_compared: bool = False


class _Name(NamedTuple):
    inode: int
    is_folder: bool


def look_at(tree: Path, before: Path | None, goes_on: Callable[[], bool]) -> TreeLinks:
    """Compares the trees; without `before`, or if that is on another filesystem, all is new. Raises OSError, and OperatorError if
    one contains a mount or a subvolume, because inode numbers are meaningless then.

    Memory: eight bytes for each name, and the names of changes and of hard links. `goes_on` is called in each folder; if it returns
    False, the findings so far are returned.
    """
    found, inodes = TreeLinks(), _Inodes()
    if before is not None and before.stat().st_dev != tree.stat().st_dev:
        before = None
    found.is_compared = before is not None
    was_none = {b""} if before is None else set[bytes]()  # folders that the tree before has not, or only as a symlink to somewhere
    for relative, folders, others in _walk(os.fsencode(tree), goes_on):
        is_new = relative in was_none
        was_none.discard(relative)
        above = os.fsencode(before or b"") + b"/" + relative
        old = {} if is_new else _names(above)
        was_none |= {relative + name + b"/" for name in folders if not (name in old and old[name].is_folder)}
        now = {entry.name: _Name(entry.inode(), False) for entry in others} | {name: _Name(0, True) for name in folders}
        gone = [name for name, was in old.items() if name not in now or now[name].is_folder != was.is_folder]
        changed = [entry for entry in others if old.get(entry.name) != now[entry.name]]
        for entry in changed:
            was = old.get(entry.name)
            _take(found, entry, relative, above if was and not was.is_folder else None)
        found.gone += [relative + name for name in gone]
        found.grown -= sum(_size_of(above + name) for name in gone)
        found.files += sum(1 for entry in others if entry.is_file(follow_symlinks=False))
        inodes.add([entry.inode() for entry in others])
        if is_new or gone or changed or old.keys() != now.keys() or not _is_same_folder(os.fsencode(tree) + b"/" + relative, above):
            found.folders.append(relative.rstrip(b"/") or b".")
        if before is None:
            found.changed.clear()
            found.folders.clear()
    if twice := inodes.twice():
        found.groups = _groups(tree, twice, goes_on)
        found.new_bytes -= _counted_again(tree, found)
    return found


def _counted_again(tree: Path, found: TreeLinks) -> int:
    """Bytes that were counted for more than one name of a file, or for a further name of a file of the tree before."""
    changed, total = set(found.changed), 0
    for names in found.groups:
        mine = [name for name in names if name in changed] if found.is_compared else names
        again = len(mine) - (len(mine) == len(names))
        if again:
            status = os.lstat(os.fsencode(tree) + b"/" + names[0])
            total += again * status.st_blocks * 512 if stat.S_ISREG(status.st_mode) else 0
    return total


def _take(found: TreeLinks, entry: "os.DirEntry[bytes]", relative: bytes, before: bytes | None) -> None:
    """`before`: the folder of the tree before, where it has that name too."""
    now, path = entry.stat(follow_symlinks=False), relative + entry.name
    found.changed.append(path)
    then = os.lstat(before + entry.name) if before is not None else None
    found.grown += _size(now) - (_size(then) if then else 0)
    if stat.S_ISREG(now.st_mode):
        found.new_bytes += now.st_blocks * 512
        if then and _is_alike(now, then):
            found.doubted.append(path)


class _Inodes:
    """Inode numbers, eight bytes each."""

    def __init__(self) -> None:
        self._all = array("Q")

    def add(self, some: list[int]) -> None:
        self._all.extend(some)

    def twice(self) -> set[int]:
        """Returns the numbers that were added more than once. Sorts them in place: there may be ten million."""
        import numpy as np  # it takes a tenth of a second, which other commands need not wait for

        found = np.frombuffer(self._all, np.uint64)
        found.sort()
        return set(found[1:][found[1:] == found[:-1]].tolist())


def _groups(tree: Path, twice: set[int], goes_on: Callable[[], bool]) -> list[list[bytes]]:
    names = dict[int, list[bytes]]()
    for relative, _, others in _walk(os.fsencode(tree), goes_on):
        for entry in others:
            if entry.inode() in twice:
                names.setdefault(entry.inode(), []).append(relative + entry.name)
    return [some for some in names.values() if len(some) > 1]


def _walk(tree: bytes, goes_on: Callable[[], bool]) -> Iterator[tuple[bytes, list[bytes], list["os.DirEntry[bytes]"]]]:
    """Yields each folder, the tree itself first: its path in the tree with a slash behind it, its folders, and the rest."""
    waiting, device = [b""], Path(os.fsdecode(tree)).stat().st_dev
    while waiting and goes_on():
        relative = waiting.pop()
        folders, others = list[bytes](), list["os.DirEntry[bytes]"]()
        with os.scandir(tree + b"/" + relative) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    others.append(entry)
                elif entry.stat(follow_symlinks=False).st_dev == device:
                    folders.append(entry.name)
                else:
                    name = printable(relative + entry.name)
                    raise OperatorError(f"{name} in it is another filesystem or subvolume", "import that as a tree of its own")
        waiting += [relative + name + b"/" for name in folders]
        yield relative, folders, others


def _names(folder: bytes) -> dict[bytes, _Name]:
    """Returns the names in a folder. Ignores the inodes of folders: no program links those."""
    with os.scandir(folder) as entries:
        return {one.name: _Name(0, True) if one.is_dir(follow_symlinks=False) else _Name(one.inode(), False) for one in entries}


def _is_same_folder(one: bytes, other: bytes) -> bool:
    """Returns True if owner, mode, time and extended attributes (ACLs among them) are unchanged."""
    return _attributes(one) == _attributes(other)


def _attributes(folder: bytes) -> tuple[object, ...]:
    found, names = os.lstat(folder + b"."), list[str]()
    with suppress(OSError):  # a filesystem without them
        names = sorted(os.listxattr(folder))
    return found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns, [(name, os.getxattr(folder, name)) for name in names]


def _size(found: os.stat_result) -> int:
    """Returns the size as rsync counts it: of files and of symlinks."""
    return found.st_size if stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode) else 0


def _size_of(path: bytes) -> int:
    """Returns the size of everything below, or of the entry itself."""
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        return _size(found)
    return sum(_size(entry.stat(follow_symlinks=False)) for _, _, others in _walk(path, lambda: True) for entry in others)


def _is_alike(now: os.stat_result, then: os.stat_result) -> bool:
    """Returns True if rsync would consider the file unchanged."""
    return stat.S_ISREG(then.st_mode) and (then.st_size, then.st_mtime_ns) == (now.st_size, now.st_mtime_ns)
