"""Lists a folder of a backup: completely, or a page of it, for callers that show a hundred names of a hundred thousand."""

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, takewhile
from typing import Any

from backupd.files.spool import ordered
from backupd.files.tree import KINDS, Entry, Tree, components, joined, read_entry

MOST_SORTED = 100_000
"""The largest folder that is sorted by anything but name, because that needs a stat of each name."""
_KEYS: Mapping[str, Callable[[os.stat_result], Any]] = {
    "kind": lambda status: KINDS[stat.S_IFMT(status.st_mode)],
    "size": lambda status: status.st_size,
    "mode": lambda status: stat.S_IMODE(status.st_mode),
    "owner": lambda status: (status.st_uid, status.st_gid),
    "mtime": lambda status: status.st_mtime_ns,
}
SORTS = ("name", *_KEYS)


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a folder's entries."""

    entries: tuple[Entry, ...]
    """The entries of this page."""
    total: int
    """Number of entries of the folder."""
    sort: str = "name"
    """The key by which they are sorted."""
    descending: bool = False
    """True if the highest comes first."""


def listing(tree: Tree, path: bytes) -> list[Entry]:
    """Lists the folder at `path`, folders first, then by name in byte order; anything else is listed as itself.

    Raises as Tree does.
    """
    entry = tree.stat(path)
    if entry.kind != "folder":
        return [entry]
    return sorted(tree.list(path), key=lambda entry: (entry.kind != "folder", entry.path))


def page(
    tree: Tree,
    path: bytes,
    offset: int = 0,
    limit: int = 1000,
    sort: str = "name",
    descending: bool = False,
    fits: Callable[[Entry], bool] = lambda _entry: True,
    matches: Callable[[bytes], bool] | None = None,
) -> Page:
    """Returns `limit` entries of `listing` from number `offset` on; fewer if `fits` returns False for one. Of the other entries
    only the names are read. With `matches`, the folder has only the names for which that returns True.

    `sort`: one of SORTS, another order than that of `listing`; for `name` with `descending` too, folders are mixed with other
    entries. The page has its sort order: a folder of more than MOST_SORTED names is always sorted by name.
    """
    entry = tree.stat(path)
    if entry.kind != "folder":
        return Page((entry,)[offset : offset + limit], 1, sort, descending)
    above = joined(components(path)).rstrip(b"/")
    with tree.folder(path) as fd:
        with os.scandir(fd) as dir_entries:
            places = map(_place, dir_entries)
            total, names = ordered(place for place in places if matches(place[1:])) if matches else ordered(places)
        if total > MOST_SORTED:
            sort, descending = "name", False
        plain: Iterator[bytes] = (name[1:] for name in names)
        if sort != "name" or descending:
            plain = iter(sorted(plain, key=partial(_key, sort, fd), reverse=descending))
        chosen = (read_entry(fd, name, above + b"/" + name) for name in islice(plain, offset, offset + limit))
        return Page(tuple(takewhile(fits, chosen)), total, sort, descending)


_DEEPEST, _LONGEST = 16, 0.2
"""Folders in each other, and seconds for all folders of a page."""


def only_folders(tree: Tree, folders: Sequence[bytes]) -> Iterator[bytes]:
    """Yields for each folder the path below it of the deepest folder that is reached through folders with a single name each:
    b"b/c" if it has only b, and b has only c; b"" if it has several names, or none, or a file.
    """
    end = time.monotonic() + _LONGEST
    for path in folders:
        names = list[bytes]()
        while len(names) < _DEEPEST and time.monotonic() < end and (name := _only_folder(tree, b"/".join((path, *names)))):
            names.append(name)
        yield b"/".join(names)


def _only_folder(tree: Tree, path: bytes) -> bytes | None:
    try:
        with tree.folder(path) as fd, os.scandir(fd) as dir_entries:
            first, second = next(dir_entries, None), next(dir_entries, None)
            if first is None or second is not None or not first.is_dir(follow_symlinks=False):
                return None
            name = os.fsencode(first.name)
        with tree.folder(path + b"/" + name):  # not a mount
            return name
    except OSError:
        return None


def _place(dir_entry: os.DirEntry[str]) -> bytes:
    """Returns a key that sorts folders first, then by name."""
    return (b"0" if dir_entry.is_dir(follow_symlinks=False) else b"1") + os.fsencode(dir_entry.name)


def _key(sort: str, folder: int, name: bytes) -> Any:
    if sort == "name":
        return name
    return _KEYS[sort](os.stat(name, dir_fd=folder, follow_symlinks=False))


def is_executable(entry: Entry) -> bool:
    """Returns True if it is a program, as `ls` colours them."""
    return entry.kind == "file" and bool(entry.mode & (stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH))
