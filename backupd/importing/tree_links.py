"""What the inodes of a tree tell: which names are hard links of each other, and which files are the very ones of the tree before.

In a history of hard links a file that did not change has the same inode in both trees. One that has another inode but the same size
and time may have another content, which rsync would not see.
"""

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

_PIECE = 1 << 16  # inodes that are kept before they become an array


@dataclass(slots=True)
class TreeLinks:
    """`doubted`: files, relative to the tree, that are as large and as old as before, and have another inode. `groups`: names that
    are hard links of each other. `files` and `new_bytes`: how many there are, and the size of those with a new inode.
    """

    doubted: list[bytes] = field(default_factory=list)
    groups: list[list[bytes]] = field(default_factory=list)
    files: int = 0
    new_bytes: int = 0


def look_at(tree: Path, before: Path | None, goes_on: Callable[[], bool]) -> TreeLinks:
    """Reads the folders of the tree and of the one before it, and stats only files that are new. Raises OSError.

    Memory: eight bytes for each file, and the names of hard links. `goes_on` is asked in each folder; when it says no, what was
    found so far comes back.
    """
    found, pieces, some = TreeLinks(), list[np.ndarray](), list[int]()
    same_device = before is not None and before.stat().st_dev == tree.stat().st_dev
    for folder, relative in _walk(os.fsencode(tree), b"", goes_on):
        old = _inodes(os.fsencode(before) + b"/" + relative) if before is not None else {}
        for entry in folder:
            is_file = entry.is_file(follow_symlinks=False)
            found.files += is_file
            some.append(entry.inode())
            if len(some) >= _PIECE:
                pieces.append(np.array(some, np.uint64))
                some.clear()
            if not is_file or (same_device and old.get(entry.name) == entry.inode()):
                continue
            path, now = relative + entry.name, entry.stat(follow_symlinks=False)
            found.new_bytes += now.st_blocks * 512
            if entry.name in old and before is not None and _is_alike(now, os.fsencode(before) + b"/" + path):
                found.doubted.append(path)
    pieces.append(np.array(some, np.uint64))
    inodes = np.sort(np.concatenate(pieces))
    twice = set(np.unique(inodes[1:][inodes[1:] == inodes[:-1]]).tolist())
    del inodes, pieces
    if twice:
        found.groups = _groups(tree, twice, goes_on)
    return found


def _groups(tree: Path, twice: set[int], goes_on: Callable[[], bool]) -> list[list[bytes]]:
    names = dict[int, list[bytes]]()
    for folder, relative in _walk(os.fsencode(tree), b"", goes_on):
        for entry in folder:
            if entry.inode() in twice:
                names.setdefault(entry.inode(), []).append(relative + entry.name)
    return [some for some in names.values() if len(some) > 1]


def _walk(tree: bytes, relative: bytes, goes_on: Callable[[], bool]) -> Iterator[tuple[list["os.DirEntry[bytes]"], bytes]]:
    """Yields what is no folder in each folder, and the folder's path relative to the tree with a slash behind it."""
    waiting = [relative]
    while waiting and goes_on():
        relative = waiting.pop()
        files = list["os.DirEntry[bytes]"]()
        with os.scandir(tree + b"/" + relative) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(relative + entry.name + b"/")
                else:
                    files.append(entry)
        yield files, relative


def _inodes(folder: bytes) -> dict[bytes, int]:
    """Of the names there; none when it is no folder."""
    try:
        if not stat.S_ISDIR(os.lstat(folder.rstrip(b"/")).st_mode):
            return {}
        with os.scandir(folder) as entries:
            return {entry.name: entry.inode() for entry in entries}
    except (FileNotFoundError, NotADirectoryError):
        return {}


def _is_alike(now: os.stat_result, old: bytes) -> bool:
    """Whether rsync would take the file for the one that was there."""
    then = os.lstat(old)
    return stat.S_ISREG(then.st_mode) and (then.st_size, then.st_mtime_ns) == (now.st_size, now.st_mtime_ns)
