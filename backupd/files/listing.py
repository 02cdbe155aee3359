"""What is in a folder of a backup: all of it, or a page of it for those that show a hundred names of a hundred thousand."""

import os
import stat
from dataclasses import dataclass

from backupd.files.tree import Entry, Tree, components, joined, look


@dataclass(frozen=True, slots=True)
class Page:
    """Some of a folder's entries, and how many there are in all."""

    entries: tuple[Entry, ...]
    total: int


def listing(tree: Tree, path: bytes) -> list[Entry]:
    """What is in the folder at `path`, folders first, then by name (the order of its bytes); what is no folder is all by itself.

    Raises as Tree does.
    """
    entry = tree.stat(path)
    if entry.kind != "folder":
        return [entry]
    return sorted(tree.list(path), key=lambda entry: (entry.kind != "folder", entry.path))


def page(tree: Tree, path: bytes, offset: int = 0, limit: int = 1000) -> Page:
    """`limit` of the entries that `listing` has, from number `offset` on. Of the others only the names are read."""
    entry = tree.stat(path)
    if entry.kind != "folder":
        return Page((entry,)[offset : offset + limit], 1)
    above = joined(components(path)).rstrip(b"/")
    with tree.folder(path) as fd:
        with os.scandir(fd) as found:
            names = sorted((not one.is_dir(follow_symlinks=False), os.fsencode(one.name)) for one in found)
        chosen = [look(fd, name, above + b"/" + name) for _, name in names[offset : offset + limit]]
    return Page(tuple(chosen), len(names))


def is_executable(entry: Entry) -> bool:
    """Whether it is a program as `ls` colours one."""
    return entry.kind == "file" and bool(entry.mode & (stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH))
