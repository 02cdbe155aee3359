"""What the inodes of a tree tell: what is the very file of the tree before, and which names are hard links of each other.

In a history of hard links what did not change has the same inode in both trees, so only the folders are read. A file with another
inode but the same size and time may have another content, which rsync would not see.
"""

import os
import stat
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


@dataclass(slots=True)
class TreeLinks:
    """A tree compared with the one before it; all names are relative to it.

    `changed`: what is no folder and has another inode, and `doubted` the files of these that are as large and as old as before.
    `folders`: those that are new or have other attributes, and those in which a name came, went or changed. `gone`: names that are
    not there any more, or are of another kind. `groups`: names that are hard links of each other. `files`: how many regular files
    there are; `new_bytes`: what those of them take on the disk that have another inode; `grown`: by how many bytes files and
    symlinks are more than before.

    The four lists are empty without a tree before.
    """

    changed: list[bytes] = field(default_factory=list)
    doubted: list[bytes] = field(default_factory=list)
    folders: list[bytes] = field(default_factory=list)
    gone: list[bytes] = field(default_factory=list)
    groups: list[list[bytes]] = field(default_factory=list)
    files: int = 0
    new_bytes: int = 0
    grown: int = 0


class _Name(NamedTuple):
    inode: int
    is_folder: bool


def look_at(tree: Path, before: Path | None, goes_on: Callable[[], bool]) -> TreeLinks:
    """Compares them; without `before`, or if that is on another filesystem, all is new. Raises OSError.

    Memory: eight bytes for each name, and the names of what changed and of hard links. `goes_on` is asked in each folder; when it
    says no, what was found so far comes back.
    """
    found, inodes = TreeLinks(), _Inodes()
    if before is not None and before.stat().st_dev != tree.stat().st_dev:
        before = None
    for relative, folders, others in _walk(os.fsencode(tree), goes_on):
        old = _names(os.fsencode(before) + b"/" + relative) if before is not None else {}
        now = {entry.name: _Name(entry.inode(), False) for entry in others} | {name: _Name(0, True) for name in folders}
        gone = [relative + name for name, was in old.items() if name not in now or now[name].is_folder != was.is_folder]
        found.gone += gone
        changed = [entry for entry in others if old.get(entry.name) != now[entry.name]]
        found.grown -= sum(_size_of(os.fsencode(before or b"") + b"/" + name) for name in gone)
        for entry in changed:
            was = old.get(entry.name)
            above = os.fsencode(before) + b"/" + relative if before is not None and was and not was.is_folder else None
            _take(found, entry, relative, above)
        if before is None:
            found.changed.clear()
        found.files += sum(1 for entry in others if entry.is_file(follow_symlinks=False))
        inodes.add([entry.inode() for entry in others])
        is_new = any(name not in old or not old[name].is_folder for name in folders)
        if before is not None and (gone or changed or is_new or not _is_same_folder(tree, before, relative)):
            found.folders.append(relative.rstrip(b"/") or b".")
    if twice := inodes.twice():
        found.groups = _groups(tree, twice, goes_on)
    return found


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
        """Those that came more than once. Sorts them in place: there may be ten million."""
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
    waiting = [b""]
    while waiting and goes_on():
        relative = waiting.pop()
        folders, others = list[bytes](), list["os.DirEntry[bytes]"]()
        with os.scandir(tree + b"/" + relative) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                else:
                    others.append(entry)
        waiting += [relative + name + b"/" for name in folders]
        yield relative, folders, others


def _names(folder: bytes) -> dict[bytes, _Name]:
    """What is there; nothing when it is no folder. The inode of a folder says nothing: no program links those."""
    try:
        if not stat.S_ISDIR(os.lstat(folder.rstrip(b"/")).st_mode):
            return {}
        with os.scandir(folder) as entries:
            return {one.name: _Name(0, True) if one.is_dir(follow_symlinks=False) else _Name(one.inode(), False) for one in entries}
    except (FileNotFoundError, NotADirectoryError):
        return {}


def _is_same_folder(tree: Path, before: Path, relative: bytes) -> bool:
    """Whether it has the owner, mode, time and extended attributes that it had; ACLs are among these."""
    one, other = os.fsencode(tree) + b"/" + relative, os.fsencode(before) + b"/" + relative
    try:
        return _attributes(one) == _attributes(other)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _attributes(folder: bytes) -> tuple[object, ...]:
    found, names = os.lstat(folder + b"."), list[str]()
    with suppress(OSError):  # a filesystem without them
        names = sorted(os.listxattr(folder))
    return found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns, [(name, os.getxattr(folder, name)) for name in names]


def _size(found: os.stat_result) -> int:
    """As rsync counts it: of files and of symlinks."""
    return found.st_size if stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode) else 0


def _size_of(path: bytes) -> int:
    """Of all below, or of what it is itself."""
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        return _size(found)
    return sum(_size(entry.stat(follow_symlinks=False)) for _, _, others in _walk(path, lambda: True) for entry in others)


def _is_alike(now: os.stat_result, then: os.stat_result) -> bool:
    """Whether rsync would take the file for the one that was there."""
    return stat.S_ISREG(then.st_mode) and (then.st_size, then.st_mtime_ns) == (now.st_size, now.st_mtime_ns)
