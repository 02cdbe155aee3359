"""The names of a backup, some of one folder at a time, for threads that look at them: only folders are opened here.

A name of which the folder says that it is no folder may be anything but one: a file, a symlink, a device.
"""

import os
from collections.abc import Generator, Iterator
from typing import NamedTuple

from backupd.files.spool import IN_MEMORY, ordered
from backupd.files.tree import Descent, Tree
from backupd.files.walking import Unreadable

_NAMES = 64  # one batch: enough that handing it over costs nothing, few enough that all threads end at the same time
_FOLDERS = 8  # open descriptors of one batch


class FolderNames(NamedTuple):
    """Names in one folder. Who gets it closes the descriptor `folder`. `above` is the folder's path, b"" for the root."""

    folder: int
    above: bytes
    names: list[bytes]


def name_batches(tree: Tree, unreadable: Unreadable) -> Generator[list[FolderNames], None, None]:
    """Yields every name in the backup that is no folder, once; not in the order of names, but as the folders have them.

    Does not enter what is mounted in the backup. A folder that cannot be read is given to `unreadable`, which may raise.
    Memory: some thousand names of folders on each level.
    """
    batch, names = list[FolderNames](), 0
    try:
        for some in _names_by_folder(tree, unreadable):
            batch.append(some)
            names += len(some.names)
            if names >= _NAMES or len(batch) >= _FOLDERS:
                full, batch, names = batch, [], 0
                yield full
        if batch:
            full, batch = batch, []
            yield full
    finally:
        for some in batch:
            os.close(some.folder)


def _names_by_folder(tree: Tree, unreadable: Unreadable) -> Iterator[FolderNames]:
    with Descent(tree, b"/") as down:
        levels = [(yield from _names_here(down, unreadable))]
        while levels:
            name = next(levels[-1], None)
            if name is None:
                levels.pop()
                down.leave()
            elif _enter(tree, down, name, unreadable):
                levels.append((yield from _names_here(down, unreadable)))


def _enter(tree: Tree, down: Descent, name: bytes, unreadable: Unreadable) -> bool:
    """Returns True if the walk is in the folder of that name now; else it stayed where it was."""
    try:
        down.enter(name)
    except OSError as error:
        unreadable(down.path.rstrip(b"/") + b"/" + name, error)
        return False
    if tree.owns(os.fstat(down.fd).st_dev):
        return True
    down.leave()
    return False


def _names_here(down: Descent, unreadable: Unreadable) -> Generator[FolderNames, None, Iterator[bytes]]:
    """Yields the names that are no folders, also those before an error; returns those of the folders."""
    folders, names, above = list[bytes](), list[bytes](), down.path.rstrip(b"/")
    try:
        with os.scandir(down.fd) as found:
            for one in found:
                if not one.is_dir(follow_symlinks=False):
                    names.append(os.fsencode(one.name))
                    if len(names) == _NAMES:
                        yield FolderNames(os.dup(down.fd), above, names)
                        names = []
                elif len(folders) <= IN_MEMORY:
                    folders.append(os.fsencode(one.name))
        folders_here = iter(folders) if len(folders) <= IN_MEMORY else _folders_in(down.fd)
    except OSError as error:
        unreadable(down.path, error)
        folders_here = iter(folders)
    if names:
        yield FolderNames(os.dup(down.fd), above, names)
    return folders_here


def _folders_in(folder: int) -> Iterator[bytes]:
    """The names of very many folders, of which not all lie in memory."""
    with os.scandir(folder) as found:
        return ordered(os.fsencode(one.name) for one in found if one.is_dir(follow_symlinks=False))[1]
