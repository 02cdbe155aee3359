"""Search for names in a backup: below a folder, limited in time and in results."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from backupd.files.entry_words import shown
from backupd.files.sameness import Pulse, TimeBudgetUsedUp, steady
from backupd.files.tree import Entry, Tree, read_entry
from backupd.files.walking import PlainFiles, walk_grouped

NameFilter = Callable[[bytes], bool]
"""Returns True for a name that matches."""


@dataclass(slots=True)
class SearchResult:
    """The matches of a search."""

    entries: list[Entry] = field(default_factory=list)
    """The matches, in the order of the walk."""
    scanned: int = 0
    """Number of names that were compared."""
    unreadable: int = 0
    """Number of names and folders that could not be read."""
    stopped: str = ""
    """Why it ended before the last name: "time" or "results"; "": it did not."""


def name_filter(text: str, pulse: Pulse = steady) -> NameFilter:
    """Returns a filter for names that contain the text, in upper or lower case. With `*` or `?` the whole name must match.

    Names are compared as they are shown, so that bytes that are not UTF-8 can be typed: caf\\xe9.txt. No pattern has a repetition,
    because users choose the text and hosts the names: together they could keep a regular expression busy for ever. A name may
    still take a millisecond, so `pulse` is called for each.
    """
    wanted = text.casefold()

    def folded(name: bytes) -> str:
        pulse()
        return shown(name).casefold()

    if "*" not in wanted and "?" not in wanted:
        return lambda name: wanted in folded(name)
    parts = wanted.split("*")
    patterns = [re.compile(re.escape(part).replace(r"\?", "."), re.DOTALL) for part in parts]
    return lambda name: _matches(patterns, len(parts[-1]), folded(name))


def _matches(parts: list[re.Pattern[str]], last: int, name: str) -> bool:
    """Returns True if the name consists of the parts in this order, with anything between them. `last`: length of the last part."""
    if len(parts) == 1:
        return parts[0].fullmatch(name) is not None
    if not (first := parts[0].match(name)):
        return False
    at = first.end()
    for part in parts[1:-1]:
        if not (match := part.search(name, at)):
            return False
        at = match.end()
    return at <= len(name) - last and parts[-1].fullmatch(name, len(name) - last) is not None


def search(tree: Tree, path: bytes, matches: NameFilter, take: Callable[[Entry], bool], pulse: Callable[[], None]) -> SearchResult:
    """Finds names below the folder at `path`. Ends when `take` returns False for a match, or when `pulse` raises TimeBudgetUsedUp.

    Raises the OSError of Tree for the path itself.
    """
    result = SearchResult()

    def unreadable(_path: bytes, _error: OSError) -> None:
        result.unreadable += 1

    def compare(name: bytes, read: Callable[[], Entry]) -> None:
        pulse()
        result.scanned += 1
        if not matches(name):
            return
        try:
            entry = read()
        except OSError:
            result.unreadable += 1
            return
        if not take(entry):
            raise _Full
        result.entries.append(entry)

    try:
        for number, visit in enumerate(walk_grouped(tree, path, unreadable)):
            if isinstance(visit, PlainFiles):
                for file in visit.files:
                    compare(file.name, partial(read_entry, visit.folder, file.name, visit.above + b"/" + file.name))
            elif number and not visit.left:  # the first one is the folder itself
                compare(visit.name, partial(_same, visit.entry))
    except TimeBudgetUsedUp:
        result.stopped = "time"
    except _Full:
        result.stopped = "results"
    return result


def _same(entry: Entry) -> Entry:
    return entry


class _Full(Exception):
    """The list of results is full."""
