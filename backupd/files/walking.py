"""Walks the files of a backup: yields each with its open folder, and each folder once more after its content."""

import os
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import NamedTuple

from backupd.files.tree import Descent, Entry, Tree, components, joined, look, names_in

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
    """A name, and what a look found: sizes in bytes, `mtime` in nanoseconds. Of plain types: it goes to other processes."""

    name: bytes
    size: int
    allocated: int
    mode: int
    uid: int
    gid: int
    mtime: int


class PlainFiles(NamedTuple):
    """Plain files of one folder: each has one name, no setuid or setgid bit, no holes, and SMALL bytes at the most, and is in the
    backup, not mounted on it.

    `folder`: an open descriptor of it until the next one is asked for; `above`: its path, without a slash at its end.
    """

    above: bytes
    folder: int
    files: list[PlainFile]


SMALL = 1 << 20
"""Bytes of a file that is read at once."""
_MANY, _MUCH = 64, 4 << 20  # files of one group at the most, and the bytes from which on no further one is added


def entries(tree: Tree, path: bytes, skip: Skip = lambda _: False) -> Iterator[Entry]:
    """The entry at `path` and all below it, each once, a folder before what is in it; as `walk` otherwise."""
    return (found.entry for found in walk(tree, path, skip=skip) if not found.left)


def walk(
    tree: Tree, path: bytes, unreadable: Unreadable | None = None, skip: Skip = lambda _: False
) -> Generator[WalkEntry, None, None]:
    """The entry at `path` and all below it, a folder before what is in it and once more after that; names in the order of bytes.

    Yields but does not enter what is mounted in the backup, and what `skip` says yes to. Memory: some thousand names of a folder on
    each level, whatever the depth. Raises OSError. With `unreadable`, calls that instead: a folder that cannot be read counts as
    empty then, and a name that cannot be looked at as missing.
    """
    for found in _walk(tree, path, unreadable, skip, grouped=False):
        assert isinstance(found, WalkEntry)
        yield found


def walk_grouped(tree: Tree, path: bytes, unreadable: Unreadable | None = None) -> Generator[WalkEntry | PlainFiles, None, None]:
    """As `walk`, but plain files that follow each other in a folder come together."""
    return _walk(tree, path, unreadable, lambda _: False, grouped=True)


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
            _report(unreadable, first.path, error)
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
                _report(unreadable, down.path.rstrip(b"/") + b"/" + name, error)
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
            _report(unreadable, down.path.rstrip(b"/") + b"/" + name, error)
            continue
        file = _plain_file(name, found) if found.st_dev == device else None  # else a file is mounted there
        if file is None:
            return files, name
        files.append(file)
        size += file.size
        if len(files) == _MANY or size >= _MUCH:
            break
    return files, None


def _plain_file(name: bytes, found: os.stat_result) -> PlainFile | None:
    mode, size, allocated = found.st_mode, found.st_size, found.st_blocks * 512
    if not stat.S_ISREG(mode) or found.st_nlink != 1 or mode & _SETS or size > SMALL or allocated < size:
        return None
    return PlainFile(name, size, allocated, stat.S_IMODE(mode), found.st_uid, found.st_gid, found.st_mtime_ns)


def _enter(down: Descent, name: bytes, unreadable: Unreadable | None) -> Iterator[bytes] | None:
    """The names in the folder of that name, which is where the walk is then; None, and it stays where it was."""
    path, entered = down.path.rstrip(b"/") + b"/" + name, False
    try:
        down.enter(name)
        entered = True
        return names_in(down.fd)
    except OSError as error:
        if entered:
            down.leave()
        _report(unreadable, path, error)
        return None


def _report(unreadable: Unreadable | None, path: bytes, error: OSError) -> None:
    if unreadable is None:
        raise error
    unreadable(path, error)


@contextmanager
def parent_of(tree: Tree, path: bytes) -> Iterator[tuple[int, bytes]]:
    """A descriptor of the folder that holds `path`, and its name in it; the root is b"." of itself."""
    names = components(path)
    with tree.folder(joined(names[:-1])) as above:
        yield above, names[-1] if names else HERE
