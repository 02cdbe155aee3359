"""Through the files of a backup, each with the open folder that it is in, and each folder once more when all in it was given."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from backupd.files.tree import Descent, Entry, Tree, components, joined, look, names_in

HERE = b"."
"""The name of the root of a backup, in itself."""


@dataclass(frozen=True, slots=True)
class Found:
    """An entry with an open descriptor of the folder that it is in, until the next one is asked for; `name` is its name there.

    With `left` all below this folder was given already: each folder comes twice.
    """

    entry: Entry
    folder: int
    name: bytes
    left: bool = False


def walk(tree: Tree, path: bytes) -> Iterator[Found]:
    """The entry at `path` and all below it, a folder before what is in it and once more after that; names in the order of bytes.

    What is mounted in the backup is given, but not entered. Memory: the names of one folder at a time on each level, whatever the
    depth. Raises OSError.
    """
    with parent_of(tree, path) as (above, name):
        first = look(above, name, joined(components(path)))
        yield Found(first, above, name)
        if first.kind == "folder":
            yield from _below(tree, first)
            yield Found(first, above, name, left=True)


def _below(tree: Tree, first: Entry) -> Iterator[Found]:
    with Descent(tree, first.path) as down:
        levels, entered = [iter(names_in(down.fd))], list[Entry]()
        while levels:
            name = next(levels[-1], None)
            if name is not None:
                yield Found(entry := down.look(name), down.fd, name)
                if entry.kind == "folder" and entry.device == tree.device:
                    down.enter(name)
                    levels.append(iter(names_in(down.fd)))
                    entered.append(entry)
                continue
            levels.pop()
            down.leave()
            if entered:
                yield Found(entered[-1], down.fd, entered.pop().name, left=True)


@contextmanager
def parent_of(tree: Tree, path: bytes) -> Iterator[tuple[int, bytes]]:
    """A descriptor of the folder that holds `path`, and its name in it; the root is b"." of itself."""
    names = components(path)
    with tree.folder(joined(names[:-1])) as above:
        yield above, names[-1] if names else HERE
