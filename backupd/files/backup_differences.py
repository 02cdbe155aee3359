"""Lists the differences between two backups, below a path: names that were added, removed or changed.

Both trees are walked at the same time, and their paths merged in order: memory is used for the names of one folder on each level.
No folder can be skipped: its time does not depend on the folders below, and its generation on disk does not help either, because a
snapshot shares blocks of metadata between folders. But a single name takes little time: an inode that is unchanged is neither
opened nor compared further.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from difflib import unified_diff
from typing import Any

from backupd.files.attributes import attributes
from backupd.files.entry_words import entry_object, named_entry_object
from backupd.files.sameness import Pulse, equal_data, read, steady, untouched
from backupd.files.tree import Entry, Tree
from backupd.files.versions import changed_fields
from backupd.files.walking import WalkEntry, walk
from btrkeep.errors import OperatorError
from btrkeep.units import counted, format_size, printable

ADDED, REMOVED, CHANGED, KIND = "added", "removed", "changed", "kind"
TEXT_LIMIT = 256 * 1024
_LINES = 5_000  # of each file; more would take too long to compare


@dataclass(frozen=True, slots=True)
class PathDifference:
    """One path that differs."""

    path: bytes
    """The path on the host."""
    what: str
    """added, removed, changed, or kind: another file type, such as a folder instead of a file."""
    before: Entry | None
    """The name in the older backup; None if it was added."""
    after: Entry | None
    """The name in the newer backup; None if it was removed."""
    fields: tuple[str, ...] = ()
    """The changed fields: size, mtime, mode, owner, target, device, xattrs (with ACLs), content; or mount: something is mounted on
    the folder in one of the backups, so nothing below it was compared. The time of a folder is not compared, because it changes
    with each of its names.
    """


class NoText(OperatorError):
    """There is no difference by lines to show: a binary file, too large, or not a file."""


def compare(
    before: Tree,
    after: Tree,
    path: bytes,
    content: bool = False,
    progress: Callable[[bytes], None] = lambda _path: None,
    pulse: Pulse = steady,
    since: bytes | None = None,
    passed: Callable[[bytes], None] = lambda _path: None,
) -> Iterator[PathDifference]:
    """Yields the differences at `path` and below, each folder before its content, including everything below a folder that only one
    side has.

    Data counts as equal if size and time are, as in rsync. With `content` it is read, unless it is known to be equal or different.
    `progress` is called with each name that both sides have, before it is compared. Raises what `pulse` raises.

    `passed` is called with each completed path, with or without a difference. A later call with such a path as `since` continues
    after it, and does not enter folders that come completely before it. Raises OSError as Tree does: if neither side has the path,
    or it cannot be read.
    """
    first, second = _maybe(before, path), _maybe(after, path)
    if first is None and second is None:
        after.stat(path)  # raises the reason
    mounts = set[bytes]()  # a mount point in one backup is entered in neither
    begin = b"" if since is None else _order(since)

    def is_skipped(entry: Entry) -> bool:
        return entry.path in mounts or (
            _order(entry.path) < begin and not (since or b"").startswith(entry.path.rstrip(b"/") + b"/")
        )

    with ExitStack() as stack:
        walks = [
            stack.enter_context(closing(walk(tree, path, skip=is_skipped))) if entry else iter(())
            for tree, entry in ((before, first), (after, second))
        ]
        for old, new in _merged(*walks):
            place = (old or new).entry.path  # type: ignore[union-attr]  # one of them is
            if since is not None and _order(place) <= begin:
                if old and new and not (before.owns(old.entry.device) and after.owns(new.entry.device)):
                    mounts.add(place)
                pulse()
                continue
            if old and new:
                progress(old.entry.path)
                are_ours = before.owns(old.entry.device) and after.owns(new.entry.device)
                if old.entry.kind == new.entry.kind == "folder" and not are_ours:
                    mounts.add(old.entry.path)
                    fields = (*_fields(before, old, after, new, content, pulse), "mount")
                    yield PathDifference(old.entry.path, CHANGED, old.entry, new.entry, fields)
                    passed(place)
                    continue
            yield from _pair(before, old, after, new, content, pulse)
            passed(place)
            pulse()


def _maybe(tree: Tree, path: bytes) -> Entry | None:
    try:
        return tree.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _merged(left: Iterator[WalkEntry], right: Iterator[WalkEntry]) -> Iterator[tuple[WalkEntry | None, WalkEntry | None]]:
    """Yields each path of two walks once, in order, with None for the side that does not have it."""
    olds, news = _keyed(left), _keyed(right)
    old, new = next(olds, None), next(news, None)
    while old or new:
        if new is None or (old is not None and old[0] < new[0]):
            yield old[1] if old else None, None
            old = next(olds, None)
        elif old is None or new[0] < old[0]:
            yield None, new[1]
            new = next(news, None)
        else:
            yield old[1], new[1]
            old, new = next(olds, None), next(news, None)


def _keyed(entries: Iterator[WalkEntry]) -> Iterator[tuple[bytes, WalkEntry]]:
    """Yields each entry once, with a key that sorts paths in the order of a walk: the contents of a folder come right after it."""
    return ((_order(entry.entry.path), entry) for entry in entries if not entry.left)


def _order(path: bytes) -> bytes:
    return path.replace(b"/", b"\0")


def _pair(
    before: Tree, old: WalkEntry | None, after: Tree, new: WalkEntry | None, content: bool, pulse: Pulse
) -> Iterator[PathDifference]:
    if old is None or new is None:
        if entry := old or new:
            yield PathDifference(
                entry.entry.path, REMOVED if old else ADDED, old.entry if old else None, new.entry if new else None
            )
        return
    first, second = old.entry, new.entry
    if first.kind != second.kind:
        yield PathDifference(first.path, KIND, first, second, ("kind",))
    elif not untouched(first, second) and (fields := _fields(before, old, after, new, content, pulse)):
        yield PathDifference(first.path, CHANGED, first, second, fields)


def _fields(before: Tree, old: WalkEntry, after: Tree, new: WalkEntry, content: bool, pulse: Pulse) -> tuple[str, ...]:
    first, second = old.entry, new.entry
    fields = changed_fields(first, second)
    if first.kind == "folder":
        fields = tuple(name for name in fields if name != "mtime")
    if attributes(old.folder, old.name) != attributes(new.folder, new.name):
        fields = (*fields, "xattrs")
    if first.kind == "file":
        same = first.size == second.size and (not content or equal_data(after, second, before, first, pulse))
        fields = fields if same else (*fields, "content")
    return fields


def text_difference(before: Tree, after: Tree, path: bytes, limit: int = TEXT_LIMIT, pulse: Pulse = steady) -> list[str]:
    """Returns the lines of a unified diff of a text file, without line ends; none if both are equal. A side without the file counts
    as empty. Bytes that are not UTF-8 are lone surrogates; nothing is made safe to show.

    Raises NoText with the reason: not a plain file, more than `limit` bytes or 5,000 lines, or not text (it has a NUL). Raises
    OSError if neither side has the path, and what `pulse` raises: a comparison of hostile lines can take many seconds.
    """
    first, second = _maybe(before, path), _maybe(after, path)
    if first is None and second is None:
        after.stat(path)
    old = _lines(before, first, limit) if first else []
    new = _lines(after, second, limit) if second else []
    old = old if pulse is steady else list(map(_watched(pulse), old))  # watched iterators take twice the time
    return list(unified_diff(old, new, "before", "after", lineterm=""))


def _watched(pulse: Pulse) -> type[str]:
    """Returns a type of lines that call `pulse` at each lookup, the only progress that difflib reveals."""

    class Line(str):
        __slots__ = ()

        def __hash__(self) -> int:
            pulse()
            return super().__hash__()

    return Line


def _lines(tree: Tree, entry: Entry, limit: int) -> list[str]:
    shown = printable(entry.path)
    if entry.kind != "file":
        raise NoText(f"{shown} is a {entry.kind}: only files are compared line by line")
    if entry.size > limit:
        raise NoText(f"{shown} has {format_size(entry.size)}, more than the limit of {format_size(limit)} for comparing lines")
    data = read(tree, entry.path, limit + 1)
    if b"\0" in data:
        raise NoText(f"{shown} is binary", "restore both files with `backupd restore`, and compare them with a suitable program")
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    if len(lines) > _LINES:
        raise NoText(f"{shown} has {counted(len(lines), 'line')}, more than the limit of {_LINES:,} for comparing")
    return lines if lines[-1] else lines[:-1]


@dataclass(slots=True)
class DifferenceTotals:
    """Totals of the differences: numbers of names, and bytes of plain files."""

    added: int = 0
    """Number of added names."""
    removed: int = 0
    """Number of removed names."""
    changed: int = 0
    """Number of changed names."""
    added_bytes: int = 0
    """Bytes of added files."""
    removed_bytes: int = 0
    """Bytes of removed files."""
    changed_bytes: int = 0
    """Bytes of changed files, by their size in the newer backup."""

    def take(self, difference: PathDifference) -> None:
        """Counts one difference. A changed file type counts as changed."""
        before = difference.before.size if difference.before and difference.before.kind == "file" else 0
        after = difference.after.size if difference.after and difference.after.kind == "file" else 0
        if difference.what == ADDED:
            self.added, self.added_bytes = self.added + 1, self.added_bytes + after
        elif difference.what == REMOVED:
            self.removed, self.removed_bytes = self.removed + 1, self.removed_bytes + before
        else:
            self.changed += 1
            self.changed_bytes += after if set(difference.fields) & {"size", "mtime", "content", "kind"} else 0


def difference_object(difference: PathDifference) -> dict[str, Any]:
    """Returns one difference."""
    return {
        "path": os.fsdecode(difference.path),
        "what": difference.what,
        "fields": list(difference.fields),
        "before": entry_object(difference.before) if difference.before else None,
        "after": entry_object(difference.after) if difference.after else None,
    }


def difference_answer(difference: PathDifference) -> dict[str, Any]:
    """Returns one difference for an answer of the root service: its path is in it once, not in both entries."""
    sides = {
        side: named_entry_object(entry) if entry else None
        for side, entry in (("before", difference.before), ("after", difference.after))
    }
    return {"path": os.fsdecode(difference.path), "what": difference.what, "fields": list(difference.fields), **sides}
