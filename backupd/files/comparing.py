"""What differs between two backups, below a path: names that came, went or changed.

Both trees are gone through at once, folder by folder, each folder's names merged in order: memory is for the names of one folder on
each level. Nothing can be left out: a folder's time says nothing of the folders below, and neither does its generation on disk, for
a snapshot shares blocks of metadata between folders. What is cheap is the single name: an inode that nobody touched in between is
neither opened nor compared any further.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from difflib import unified_diff

from backupd.files.attributes import attributes
from backupd.files.history import changed_fields
from backupd.files.sameness import Pulse, equal_data, read, steady, untouched
from backupd.files.tree import Descent, Entry, Tree, names_in
from backupd.files.walking import parent_of
from btrkeep.errors import OperatorError
from btrkeep.units import counted, format_size, printable

ADDED, REMOVED, CHANGED, KIND = "added", "removed", "changed", "kind"
TEXT_LIMIT = 256 * 1024
_LINES = 5_000  # of each, for the time that a comparison may take


@dataclass(frozen=True, slots=True)
class PathDifference:
    """One path that differs. `what`: added, removed, changed, or kind: it is something else now, a folder instead of a file.

    `fields`, of a changed one: size, mtime, mode, owner, target, device, xattrs (ACLs are among them), content. The time of a
    folder is not compared: it changes with every name in it.
    """

    path: bytes
    what: str
    before: Entry | None
    after: Entry | None
    fields: tuple[str, ...] = ()


class NoText(OperatorError):
    """There is no difference to be shown line by line: a binary file, too large, or no file."""


def compare(
    before: Tree,
    after: Tree,
    path: bytes,
    content: bool = False,
    progress: Callable[[bytes], None] = lambda _path: None,
    pulse: Pulse = steady,
) -> Iterator[PathDifference]:
    """What differs at `path` and below, each folder before what is in it. What is below one that is only on one side comes too.

    Data count as the same when size and time are, as for rsync. With `content` they are read, unless that is not needed to know.
    `progress` is told of each name that both sides have, before it is compared. Raises what `pulse` raises.
    Raises OSError as Tree does: when the path is on neither side, or cannot be read.
    """
    first, second = _maybe(before, path), _maybe(after, path)
    if first is None and second is None:
        after.stat(path)  # says why
    with ExitStack() as stack:
        at = [stack.enter_context(parent_of(tree, path)) if entry else None for tree, entry in ((before, first), (after, second))]
        yield from _pair(_Side(before, first, at[0]), _Side(after, second, at[1]), content, pulse)
        stack.pop_all().close()
        if first and second and first.kind == second.kind == "folder":
            left, right = stack.enter_context(Descent(before, path)), stack.enter_context(Descent(after, path))
            yield from _Merge(before, after, left, right, content, progress, pulse).run()
        else:
            yield from _all_below(before, first, REMOVED, pulse)
            yield from _all_below(after, second, ADDED, pulse)


def _maybe(tree: Tree, path: bytes) -> Entry | None:
    try:
        return tree.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


@dataclass(frozen=True, slots=True)
class _Merge:
    """Two folders that are on both sides, and all below. Not recursive: a host may nest deeper than Python calls."""

    before: Tree
    after: Tree
    left: Descent
    right: Descent
    content: bool
    progress: Callable[[bytes], None]
    pulse: Pulse

    def run(self) -> Iterator[PathDifference]:
        levels = [_merged(names_in(self.left.fd), names_in(self.right.fd))]
        while levels:
            pair = next(levels[-1], None)
            if pair is None:
                levels.pop()
                self.left.leave()
                self.right.leave()
                continue
            name, is_left, is_right = pair
            self.pulse()
            first = self.left.look(name) if is_left else None
            second = self.right.look(name) if is_right else None
            if first and second:
                self.progress(first.path)
            sides = _Side(self.before, first, (self.left.fd, name)), _Side(self.after, second, (self.right.fd, name))
            yield from _pair(*sides, self.content, self.pulse)
            if first and second and first.kind == second.kind == "folder":
                if self.before.owns(first.device) and self.after.owns(second.device):
                    self.left.enter(name)
                    self.right.enter(name)
                    levels.append(_merged(names_in(self.left.fd), names_in(self.right.fd)))
            else:
                yield from _all_below(self.before, first, REMOVED, self.pulse)
                yield from _all_below(self.after, second, ADDED, self.pulse)


def _merged(left: Iterator[bytes], right: Iterator[bytes]) -> Iterator[tuple[bytes, bool, bool]]:
    """Each name of two ordered lists once, in order, with the lists that have it."""
    one, two = next(left, None), next(right, None)
    while one is not None or two is not None:
        if two is None or (one is not None and one < two):
            yield one or b"", True, False
            one = next(left, None)
        elif one is None or two < one:
            yield two, False, True
            two = next(right, None)
        else:
            yield one, True, True
            one, two = next(left, None), next(right, None)


def _all_below(tree: Tree, entry: Entry | None, what: str, pulse: Pulse) -> Iterator[PathDifference]:
    """All that is in a folder that only one side has, without the folder."""
    if entry is None or entry.kind != "folder":
        return
    below = tree.walk(entry.path)
    next(below)
    for one in below:
        pulse()
        yield PathDifference(one.path, what, one if what == REMOVED else None, one if what == ADDED else None)


@dataclass(frozen=True, slots=True)
class _Side:
    """One name on one side: its entry, None when it is not there, and the open folder and the name in it that it is at."""

    tree: Tree
    entry: Entry | None
    at: tuple[int, bytes] | None


def _pair(before: _Side, after: _Side, content: bool, pulse: Pulse) -> Iterator[PathDifference]:
    first, second = before.entry, after.entry
    if first is None or second is None:
        if entry := first or second:
            yield PathDifference(entry.path, REMOVED if first else ADDED, first, second)
    elif first.kind != second.kind:
        yield PathDifference(first.path, KIND, first, second, ("kind",))
    elif not untouched(first, second) and (fields := _fields(before, first, after, second, content, pulse)):
        yield PathDifference(first.path, CHANGED, first, second, fields)


def _fields(before: _Side, first: Entry, after: _Side, second: Entry, content: bool, pulse: Pulse) -> tuple[str, ...]:
    found = changed_fields(first, second)
    if first.kind == "folder":
        found = tuple(name for name in found if name != "mtime")
    if _xattrs(before) != _xattrs(after):
        found = (*found, "xattrs")
    if first.kind == "file":
        same = first.size == second.size and (not content or equal_data(after.tree, second, before.tree, first, pulse))
        found = found if same else (*found, "content")
    return found


def _xattrs(side: _Side) -> dict[str, bytes]:
    return attributes(*side.at) if side.at else {}


def text_difference(before: Tree, after: Tree, path: bytes, limit: int = TEXT_LIMIT) -> list[str]:
    """The lines of a unified difference of a text file, without line ends; none when both are the same. A side without it is empty.

    Bytes that are no UTF-8 are lone surrogates; nothing is made safe to show. Raises NoText, which says why there is none: no plain
    file, more than `limit` bytes or 5,000 lines, or no text (it has a NUL). Raises OSError when the path is on neither side.
    """
    first, second = _maybe(before, path), _maybe(after, path)
    if first is None and second is None:
        after.stat(path)
    old = _lines(before, first, limit) if first else []
    new = _lines(after, second, limit) if second else []
    return list(unified_diff(old, new, "before", "after", lineterm=""))


def _lines(tree: Tree, entry: Entry, limit: int) -> list[str]:
    shown = printable(entry.path)
    if entry.kind != "file":
        raise NoText(f"{shown} is a {entry.kind}: only files are compared line by line")
    if entry.size > limit:
        raise NoText(f"{shown} has {format_size(entry.size)}, more than the {format_size(limit)} that are compared line by line")
    data = read(tree, entry.path, limit + 1)
    if b"\0" in data:
        raise NoText(f"{shown} is binary", "get both files out with `backupd restore`, and compare them with a program for them")
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    if len(lines) > _LINES:
        raise NoText(f"{shown} has {counted(len(lines), 'line')}, more than the {_LINES:,} that are compared")
    return lines if lines[-1] else lines[:-1]


@dataclass(slots=True)
class DifferenceTotals:
    """How much differs: names, and bytes of plain files. `changed_bytes` are what the changed ones have now."""

    added: int = 0
    removed: int = 0
    changed: int = 0
    added_bytes: int = 0
    removed_bytes: int = 0
    changed_bytes: int = 0

    def take(self, one: PathDifference) -> None:
        """Counts one more. What became another kind is counted as changed."""
        before = one.before.size if one.before and one.before.kind == "file" else 0
        after = one.after.size if one.after and one.after.kind == "file" else 0
        if one.what == ADDED:
            self.added, self.added_bytes = self.added + 1, self.added_bytes + after
        elif one.what == REMOVED:
            self.removed, self.removed_bytes = self.removed + 1, self.removed_bytes + before
        else:
            self.changed += 1
            self.changed_bytes += after if set(one.fields) & {"size", "mtime", "content", "kind"} else 0
