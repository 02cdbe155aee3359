"""Walks the files of a backup: yields each with its open folder, and each folder again after its content.

A grouped walk yields the plain files of a folder together, and on request its symlinks: these are most of a backup, and it is
faster. Batches of names are for threads that read them.
"""

import os
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import NamedTuple

from backupd.files.spool import IN_MEMORY, ordered
from backupd.files.tree import Descent, Entry, Tree, components, joined, names_in, read_entry

Unreadable = Callable[[bytes, OSError], None]
"""Takes the path of an unreadable entry, and the reason."""
Skip = Callable[[Entry], bool]
"""Returns True if a folder is not to be entered."""
_SETS = stat.S_ISUID | stat.S_ISGID
HERE = b"."
"""The name of the root of a backup, in itself."""


class WalkEntry(NamedTuple):
    """An entry with an open descriptor of the folder that contains it, until the next one is requested; `name` is its name there.

    With `left` everything below this folder was already yielded: each folder comes twice.
    """

    entry: Entry
    folder: int
    name: bytes
    left: bool = False


class PlainFile(NamedTuple):
    """A plain file or symlink when the walk read it: size in bytes, 0 for a symlink, `mtime` in nanoseconds.

    `links`: number of names of the inode `inode` in the backup. `target`: of a symlink, b"" if it is longer than LONG; None for a
    file. Consists of plain types, because it is sent to other processes.
    """

    name: bytes
    size: int
    allocated: int
    mode: int
    uid: int
    gid: int
    mtime: int
    inode: int = 0
    links: int = 1
    target: bytes | None = None

    @property
    def is_symlink(self) -> bool:
        return self.target is not None


class PlainFiles(NamedTuple):
    """Plain files of one folder, which are in the backup, not in a mount: each has no setuid or setgid bit, no holes, and at most
    SMALL bytes. In a batched walk, symlinks and files with several names are included.

    `folder`: an open descriptor of it until the next one is requested; `above`: its path, without a slash at its end. `number`: the
    same in each walk through one record, and different from those of all other groups and folders there; -1 if there is none.
    """

    above: bytes
    folder: int
    files: list[PlainFile]
    number: int = -1


LONG = 200
"""Maximum bytes of the target of a symlink; a longer one is read again when it is needed."""
SMALL = 1 << 20
"""Maximum bytes of a file that is read at once."""
MANY = 64
"""Maximum names of one group: enough that passing them on takes little time, few enough that all threads end together."""
MUCH = 4 << 20
"""Bytes: a group of this size gets no further file."""
_OPEN = 8  # at most in a batch of names


def entries(tree: Tree, path: bytes, skip: Skip = lambda _: False) -> Iterator[Entry]:
    """Yields the entry at `path` and everything below it, each once, a folder before its content; otherwise like `walk`."""
    return (entry.entry for entry in walk(tree, path, skip=skip) if not entry.left)


def walk(
    tree: Tree, path: bytes, unreadable: Unreadable | None = None, skip: Skip = lambda _: False
) -> Generator[WalkEntry, None, None]:
    """Yields the entry at `path` and everything below it, a folder before its content and again after it; names in the order of
    bytes.

    Yields but does not enter mounts in the backup, and folders for which `skip` returns True. Memory: some thousand names of a
    folder on each level, whatever the depth. Raises OSError. With `unreadable`, calls that instead: then an unreadable folder
    counts as empty, and an unreadable name as missing.
    """
    for walk_entry in _walk(tree, path, unreadable, skip, grouped=False):
        assert isinstance(walk_entry, WalkEntry)
        yield walk_entry


def walk_grouped(tree: Tree, path: bytes, unreadable: Unreadable | None = None) -> Generator[WalkEntry | PlainFiles, None, None]:
    """Like `walk`, but plain files with one name that follow each other in a folder are yielded together."""
    return _walk(tree, path, unreadable, lambda _: False, grouped=True)


def _walk(
    tree: Tree, path: bytes, unreadable: Unreadable | None, skip: Skip, *, grouped: bool
) -> Generator[WalkEntry | PlainFiles, None, None]:
    with parent_of(tree, path) as (above, name):
        first = read_entry(above, name, joined(components(path)))
        yield WalkEntry(first, above, name)
        if first.kind == "folder":
            if not skip(first):
                yield from _below(tree, first, unreadable, skip, grouped)
            yield WalkEntry(first, above, name, left=True)


def _below(tree: Tree, first: Entry, unreadable: Unreadable | None, skip: Skip, grouped: bool) -> Iterator[WalkEntry | PlainFiles]:
    with ExitStack() as stack:
        try:
            down = stack.enter_context(Descent(tree, first.path))
            levels, entered = [names_in(down.fd)], list[Entry]()
        except OSError as error:
            report(unreadable, first.path, error)
            return
        while levels:
            name = next(levels[-1], None)
            if name is None:
                levels.pop()
                down.leave()
                if entered:
                    yield WalkEntry(entered[-1], down.fd, entered.pop().name, left=True)
                continue
            if grouped:
                plain, name = _plain_files(down, name, levels[-1], unreadable)
                if plain:
                    yield PlainFiles(down.path.rstrip(b"/"), down.fd, plain)
                if name is None:
                    continue
            try:
                entry = down.read_entry(name)
            except OSError as error:
                report(unreadable, down.path_of(name), error)
                continue
            yield WalkEntry(entry, down.fd, name)
            if entry.kind != "folder":
                continue
            names = _enter(down, name, unreadable) if tree.owns(entry.device) and not skip(entry) else None
            if names is None:
                yield WalkEntry(entry, down.fd, name, left=True)
            else:
                levels.append(names)
                entered.append(entry)


def _plain_files(
    down: Descent, first: bytes, following: Iterator[bytes], unreadable: Unreadable | None
) -> tuple[list[PlainFile], bytes | None]:
    """Returns plain files from `first` on, and the first other name; None if the group ends before that."""
    files, size, folder = list[PlainFile](), 0, down.fd
    device = os.fstat(folder).st_dev
    for name in chain((first,), following):
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            report(unreadable, down.path_of(name), error)
            continue
        file = plain_file(name, status, device)
        if file is None or file.links != 1:
            return files, name
        files.append(file)
        size += file.size
        if len(files) == MANY or size >= MUCH:
            break
    return files, None


def plain_file(name: bytes, status: os.stat_result, device: int) -> PlainFile | None:
    """Returns the data of a plain file for a group; `device` is that of its folder: a file on another one is a mount."""
    mode, size, allocated = status.st_mode, status.st_size, status.st_blocks * 512
    if not stat.S_ISREG(mode) or mode & _SETS or size > SMALL or allocated < size or status.st_dev != device:
        return None
    owner = status.st_uid, status.st_gid
    return PlainFile(name, size, allocated, stat.S_IMODE(mode), *owner, status.st_mtime_ns, status.st_ino, status.st_nlink)


def symlink(name: bytes, status: os.stat_result, folder: int) -> PlainFile:
    """Returns the data of a symlink of an open folder for a group. Raises OSError."""
    target = os.readlink(name, dir_fd=folder)
    owner, links = (status.st_uid, status.st_gid), status.st_nlink
    mode, kept = stat.S_IMODE(status.st_mode), target if len(target) <= LONG else b""
    return PlainFile(name, 0, 0, mode, *owner, status.st_mtime_ns, status.st_ino, links, kept)


def _enter(down: Descent, name: bytes, unreadable: Unreadable | None) -> Iterator[bytes] | None:
    """Enters the folder of that name and returns its names. Returns None, without entering it, if it cannot be read."""
    entered = False
    try:
        down.enter(name)
        entered = True
        return names_in(down.fd)
    except OSError as error:
        if entered:
            down.leave()
        report(unreadable, down.path_of(name), error)
        return None


def report(unreadable: Unreadable | None, path: bytes, error: OSError) -> None:
    """Calls `unreadable`; without it raises the error."""
    if unreadable is None:
        raise error
    unreadable(path, error)


@contextmanager
def parent_of(tree: Tree, path: bytes) -> Iterator[tuple[int, bytes]]:
    """Returns a descriptor of the folder that contains `path`, and its name in it; for the root the name is b"."."""
    names = components(path)
    with tree.folder(joined(names[:-1])) as above:
        yield above, names[-1] if names else HERE


class FolderNames(NamedTuple):
    """Names in one folder. The receiver closes the descriptor `folder`. `above` is the folder's path, b"" for the root."""

    folder: int
    above: bytes
    names: list[bytes]


def name_batches(tree: Tree, unreadable: Unreadable) -> Generator[list[FolderNames], None, None]:
    """Yields every name in the backup that is not a folder, once; in the order of the folders, not of names.

    Such a name may be a file, a symlink, a device or anything else. Only folders are opened.
    Does not enter mounts in the backup. An unreadable folder is passed to `unreadable`, which may raise. Memory: some thousand
    names of folders on each level.
    """
    batch, names = list[FolderNames](), 0
    try:
        for folder_names in _names_by_folder(tree, unreadable):
            batch.append(folder_names)
            names += len(folder_names.names)
            if names >= MANY or len(batch) >= _OPEN:
                full, batch, names = batch, [], 0
                yield full
        if batch:
            full, batch = batch, []
            yield full
    finally:
        for folder_names in batch:
            os.close(folder_names.folder)


def _names_by_folder(tree: Tree, unreadable: Unreadable) -> Iterator[FolderNames]:
    with Descent(tree, b"/") as down:
        levels = [(yield from _names_here(down, unreadable))]
        while levels:
            name = next(levels[-1], None)
            if name is None:
                levels.pop()
                down.leave()
            elif _is_entered(tree, down, name, unreadable):
                levels.append((yield from _names_here(down, unreadable)))


def _is_entered(tree: Tree, down: Descent, name: bytes, unreadable: Unreadable) -> bool:
    """Returns True if the walk has entered the folder of that name; otherwise its position is unchanged."""
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
    """Yields the names that are not folders, also those before an error; returns the names of the folders."""
    folders, names, above = list[bytes](), list[bytes](), down.path.rstrip(b"/")
    try:
        with os.scandir(down.fd) as dir_entries:
            for dir_entry in dir_entries:
                if not dir_entry.is_dir(follow_symlinks=False):
                    names.append(os.fsencode(dir_entry.name))
                    if len(names) == MANY:
                        yield FolderNames(os.dup(down.fd), above, names)
                        names = []
                elif len(folders) <= IN_MEMORY:
                    folders.append(os.fsencode(dir_entry.name))
        folders_here = iter(folders) if len(folders) <= IN_MEMORY else _folders_in(down.fd)
    except OSError as error:
        unreadable(down.path, error)
        folders_here = iter(folders)
    if names:
        yield FolderNames(os.dup(down.fd), above, names)
    return folders_here


def _folders_in(folder: int) -> Iterator[bytes]:
    """Yields the names of folders; there may be very many, which are not all in memory."""
    with os.scandir(folder) as dir_entries:
        return ordered(os.fsencode(dir_entry.name) for dir_entry in dir_entries if dir_entry.is_dir(follow_symlinks=False))[1]
