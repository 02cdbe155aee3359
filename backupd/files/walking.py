"""Walks the files of a backup: yields each with its open folder, and each folder once more after its content.

A grouped walk yields the plain files of a folder together, and on request its symlinks: most of a backup, and quicker than singly.
Batches of names are for threads that look at them.
"""

import errno
import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, NamedTuple

from backupd.files.spool import IN_MEMORY, ordered
from backupd.files.tree import Descent, Entry, Tree, components, entry_of, joined, look, names_in
from btrkeep.fs.openat import FOLDER

Unreadable = Callable[[bytes, OSError], None]
"""Gets the path of what cannot be read, and why."""
Skip = Callable[[Entry], bool]
"""Returns whether a folder is not entered."""
_SETS = stat.S_ISUID | stat.S_ISGID
HERE = b"."
"""The name of the root of a backup, in itself."""


class WalkEntry(NamedTuple):
    """An entry with an open descriptor of the folder that it is in, until the next one is asked for; `name` is its name there.

    With `left` all below this folder was given already: each folder comes twice.
    """

    entry: Entry
    folder: int
    name: bytes
    left: bool = False


class PlainFile(NamedTuple):
    """A plain file or symlink as the walk found it: sizes in bytes, 0 for a symlink, `mtime` in nanoseconds.

    `links` names have the inode number `inode` in the backup. Of plain types: it goes to other processes.
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
    is_symlink: bool = False


class PlainFiles(NamedTuple):
    """Plain files of one folder, which are in the backup, not mounted on it: each has no setuid or setgid bit, no holes, and SMALL
    bytes at the most. `with_links` symlinks are among them, and files with several names.

    `folder`: an open descriptor of it until the next one is asked for; `above`: its path, without a slash at its end. `number`: the
    same in each walk through one record, and of no other group or folder there; -1 if there is none.
    """

    above: bytes
    folder: int
    files: list[PlainFile]
    number: int = -1


class PlainFolder(NamedTuple):
    """A folder with at most WHOLE names and MUCH bytes in it, which are plain files and symlinks with one name each.

    `mtime` in nanoseconds. Of plain types: it goes to other processes.
    """

    name: bytes
    mode: int
    uid: int
    gid: int
    mtime: int
    files: list[PlainFile]


class PlainFolders(NamedTuple):
    """Such folders in one folder, few enough for a message to another process (128 KiB). The rest as of PlainFiles."""

    above: bytes
    folder: int
    folders: list[PlainFolder]
    number: int = -1


Walked = WalkEntry | PlainFiles | PlainFolders
WHOLE = 256
"""Names in a folder that is restored as a whole: so many are lost at the most if the restore is killed."""
SMALL = 1 << 20
"""Bytes of a file that is read at once."""
_MANY = 64  # files of one group at the most
MUCH = 4 << 20
"""Bytes: a group that has reached this size gets no further file."""
_FOLDERS = 64  # of one group at the most
_MESSAGE, _OF_NAME = 40 << 10, 80  # a group of folders whose names take so many bytes, each so many more, gets no further one
_BATCH = 64  # names: enough that handing them over costs nothing, few enough that all threads end at the same time
_BATCH_FOLDERS = 8  # open descriptors of one batch


def packed(folder: PlainFolder) -> tuple[Any, ...]:
    """Returns a plain folder as marshal can hold it."""
    return (*folder[:-1], list(map(tuple, folder.files)))


def unpacked(fields: tuple[Any, ...]) -> PlainFolder:
    """Returns the folder that was packed."""
    return PlainFolder._make((*fields[:-1], list(map(PlainFile._make, fields[-1]))))


def entries(tree: Tree, path: bytes, skip: Skip = lambda _: False) -> Iterator[Entry]:
    """The entry at `path` and all below it, each once, a folder before what is in it; as `walk` otherwise."""
    return (found.entry for found in walk(tree, path, skip=skip) if not found.left)


def walk(
    tree: Tree, path: bytes, unreadable: Unreadable | None = None, skip: Skip = lambda _: False
) -> Generator[WalkEntry, None, None]:
    """The entry at `path` and all below it, a folder before what is in it and once more after that; names in the order of bytes.

    Yields but does not enter what is mounted in the backup, and what `skip` says yes to. Memory: some thousand names of a folder on
    each level, whatever the depth. Raises OSError. With `unreadable`, calls that instead: a folder that cannot be read counts as
    empty then, and a name that cannot be read as missing.
    """
    for found in _walk(tree, path, unreadable, skip, grouped=False):
        assert isinstance(found, WalkEntry)
        yield found


def walk_grouped(tree: Tree, path: bytes, unreadable: Unreadable | None = None) -> Generator[WalkEntry | PlainFiles, None, None]:
    """As `walk`, but plain files with one name that follow each other in a folder come together."""
    return _walk(tree, path, unreadable, lambda _: False, grouped=True)


def walk_batched(tree: Tree, path: bytes, unreadable: Unreadable | None = None) -> Generator[Walked, None, None]:
    """As `walk`, but plain files, symlinks and files with several names come together, before whatever else is among the same 64
    names; and so do folders with few of them and nothing else in them.

    A folder that is mounted in the backup counts as unreadable.
    """
    with parent_of(tree, path) as (above, name):
        first = look(above, name, joined(components(path)))
        yield WalkEntry(first, above, name)
        if first.kind == "folder":
            yield from _batches_below(tree, first, unreadable)
            yield WalkEntry(first, above, name, left=True)


def _walk(
    tree: Tree, path: bytes, unreadable: Unreadable | None, skip: Skip, *, grouped: bool
) -> Generator[WalkEntry | PlainFiles, None, None]:
    with parent_of(tree, path) as (above, name):
        first = look(above, name, joined(components(path)))
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
                entry = down.look(name)
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
    """Returns plain files from `first` on, and the first name that is something else; None if the group ends before that."""
    files, size, folder = list[PlainFile](), 0, down.fd
    device = os.fstat(folder).st_dev
    for name in chain((first,), following):
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            report(unreadable, down.path_of(name), error)
            continue
        file = _plain_file(name, found, device, with_links=False)
        if file is None:
            return files, name
        files.append(file)
        size += file.size
        if len(files) == _MANY or size >= MUCH:
            break
    return files, None


_Others = list[tuple[bytes, os.stat_result]]


@dataclass(slots=True)
class _Level:
    """A folder that a batched walk is in, or that it is to enter: open as `fd`.

    `names`: those that were not looked at yet. Of the others `files` are plain ones, and `others` the rest, the next one last.
    """

    entry: Entry
    name: bytes
    fd: int
    names: Iterator[bytes]
    files: list[PlainFile] = field(default_factory=list)
    others: _Others = field(default_factory=_Others)


def _looked(
    fd: int, path: bytes, device: int, names: Iterable[bytes], unreadable: Unreadable | None
) -> tuple[list[PlainFile], _Others]:
    """Looks at names in an open folder on that device. Returns the plain files, and the others, the next one last."""
    files, others = list[PlainFile](), _Others()
    for name in names:
        try:
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except OSError as error:
            report(unreadable, path.rstrip(b"/") + b"/" + name, error)
            continue
        if file := _plain_file(name, status, device, with_links=True):
            files.append(file)
        else:
            others.append((name, status))
    others.reverse()
    return files, others


def _batches_below(tree: Tree, first: Entry, unreadable: Unreadable | None) -> Iterator[Walked]:
    with ExitStack() as stack:
        try:
            down = stack.enter_context(Descent(tree, first.path))
            levels = [_Level(first, b"", down.fd, names_in(down.fd))]
        except OSError as error:
            report(unreadable, first.path, error)
            return
        while levels:
            level, above, fd = levels[-1], down.path.rstrip(b"/"), down.fd
            if level.files:
                files, level.files = level.files, []
                yield from (PlainFiles(above, fd, some) for some in _parted(files))
            elif level.others:
                plain, other = _plain_folders(tree, down, level, unreadable)
                if isinstance(other, _Level):
                    down.enter_open(other.fd, other.name)
                if plain:
                    yield PlainFolders(above, fd, plain)
                if isinstance(other, _Level):
                    yield WalkEntry(other.entry, fd, other.name)
                    levels.append(other)
                elif other:
                    yield WalkEntry(other, fd, other.name)
                    if other.kind == "folder":
                        yield WalkEntry(other, fd, other.name, left=True)
            elif names := list(islice(level.names, _MANY)):
                level.files, level.others = _looked(fd, above, os.fstat(fd).st_dev, names, unreadable)
            else:
                levels.pop()
                down.leave()
                if levels:
                    yield WalkEntry(level.entry, down.fd, level.name, left=True)


def _parted(files: list[PlainFile]) -> Iterator[list[PlainFile]]:
    """Yields the files in groups: one that has reached MUCH bytes gets no further file, nor one that has _MANY."""
    group, size = list[PlainFile](), 0
    for file in files:
        group.append(file)
        size += file.size
        if size >= MUCH or len(group) == _MANY:
            yield group
            group, size = [], 0
    if group:
        yield group


def _plain_folders(
    tree: Tree, down: Descent, level: _Level, unreadable: Unreadable | None
) -> tuple[list[PlainFolder], _Level | Entry | None]:
    """Takes plain folders from the rest of a level until they are many. Returns them, and what came behind them that is none: a
    folder to enter, which is open; or an entry that is not entered; None if there was nothing.
    """
    plain, names, length, size = list[PlainFolder](), 0, 0, 0
    while level.others and len(plain) < _FOLDERS and names < WHOLE and length < _MESSAGE and size < MUCH:
        name, status = level.others.pop()
        inner = _whole_folder(tree, down, name, status, unreadable) if stat.S_ISDIR(status.st_mode) else None
        if not isinstance(inner, PlainFolder):
            return plain, inner or entry_of(down.path_of(name), status, None)  # symlinks are in groups
        plain.append(inner)
        length += len(name) + _OF_NAME
        if inner.files:
            names += len(inner.files)
            length += sum(len(file.name) + _OF_NAME for file in inner.files)
            size += sum(file.size for file in inner.files)
    return plain, None


def _whole_folder(
    tree: Tree, down: Descent, name: bytes, status: os.stat_result, unreadable: Unreadable | None
) -> PlainFolder | _Level | None:
    """Looks into a folder as long as it may be a plain one. Returns it open if it is none; None if it is not to be entered."""
    path, fd, stays_open = down.path_of(name), -1, False
    try:
        if not tree.owns(status.st_dev):
            raise OSError(errno.EXDEV, "something else is mounted there")
        fd = os.open(name, FOLDER, dir_fd=down.fd)
        if not tree.owns(os.fstat(fd).st_dev):
            raise OSError(errno.EXDEV, "something else is mounted there")
        names, files, others, has_all = names_in(fd), list[PlainFile](), _Others(), False
        while not others and len(files) <= WHOLE and not has_all:
            if some := list(islice(names, _MANY)):
                more, others = _looked(fd, path, status.st_dev, some, unreadable)
                files += more
            else:
                has_all = True
        if has_all and all(file.links == 1 for file in files) and sum(file.size for file in files) <= MUCH:
            return PlainFolder(name, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_mtime_ns, files)
        stays_open = True
        return _Level(entry_of(path, status, None), name, fd, names, files, others)
    except OSError as error:
        report(unreadable, path, error)
        return None
    finally:
        if fd >= 0 and not stays_open:
            os.close(fd)


def _plain_file(name: bytes, status: os.stat_result, device: int, *, with_links: bool) -> PlainFile | None:
    """Returns what belongs to a group; `device` is that of its folder: on another one it is mounted there."""
    mode, size, allocated, links = status.st_mode, status.st_size, status.st_blocks * 512, status.st_nlink
    is_symlink = False
    if stat.S_ISREG(mode):
        if mode & _SETS or size > SMALL or allocated < size or status.st_dev != device or (links != 1 and not with_links):
            return None
    elif with_links and stat.S_ISLNK(mode):
        is_symlink, size, allocated = True, 0, 0
    else:
        return None
    owner = status.st_uid, status.st_gid
    return PlainFile(name, size, allocated, stat.S_IMODE(mode), *owner, status.st_mtime_ns, status.st_ino, links, is_symlink)


def _enter(down: Descent, name: bytes, unreadable: Unreadable | None) -> Iterator[bytes] | None:
    """The names in the folder of that name, which is where the walk is then; None, and it stays where it was."""
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
    """Calls `unreadable`; raises the error without one."""
    if unreadable is None:
        raise error
    unreadable(path, error)


@contextmanager
def parent_of(tree: Tree, path: bytes) -> Iterator[tuple[int, bytes]]:
    """A descriptor of the folder that holds `path`, and its name in it; the root is b"." of itself."""
    names = components(path)
    with tree.folder(joined(names[:-1])) as above:
        yield above, names[-1] if names else HERE


class FolderNames(NamedTuple):
    """Names in one folder. Who gets it closes the descriptor `folder`. `above` is the folder's path, b"" for the root."""

    folder: int
    above: bytes
    names: list[bytes]


def name_batches(tree: Tree, unreadable: Unreadable) -> Generator[list[FolderNames], None, None]:
    """Yields every name in the backup that is no folder, once; not in the order of names, but as the folders have them.

    A name of which the folder says that it is no folder may be anything but one: a file, a symlink, a device. Only folders are
    opened. Does not enter what is mounted in the backup. A folder that cannot be read is given to `unreadable`, which may raise.
    Memory: some thousand names of folders on each level.
    """
    batch, names = list[FolderNames](), 0
    try:
        for some in _names_by_folder(tree, unreadable):
            batch.append(some)
            names += len(some.names)
            if names >= _BATCH or len(batch) >= _BATCH_FOLDERS:
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
            elif _is_entered(tree, down, name, unreadable):
                levels.append((yield from _names_here(down, unreadable)))


def _is_entered(tree: Tree, down: Descent, name: bytes, unreadable: Unreadable) -> bool:
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
                    if len(names) == _BATCH:
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
