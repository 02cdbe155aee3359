"""The differences at a path between two backups, from `backupd serve`."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from web.data.files import Asks, NamedFile, named_file_of, text_of
from web.data.files_text import shown_line
from web.same_names import of_answer

LIMIT = 500
"""Differences on one page, unless more are requested."""
_FOUND = {"+": "added", "-": "removed", "@": "place"}


@dataclass(frozen=True, slots=True)
class DifferenceRow:
    """One path that differs. `what`: added, removed, changed, kind; `fields`: the fields in which a changed path differs."""

    path: str
    what: str
    before: NamedFile | None
    after: NamedFile | None
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DiffLine:
    """One line of a text difference, safe to show. `what`: added, removed, place (position in the file), same."""

    what: str
    text: str


@dataclass(frozen=True, slots=True)
class Compared:
    """The differences. `counts` cover the differences that are included; `more`: there are or may be others, with `over` because
    the time limit was reached, and `next` is the path to continue after, as `since`; null: nothing was compared in that time.
    `text`: None if it is not text.
    """

    host: str
    path: str
    before: str
    after: str
    differences: tuple[DifferenceRow, ...]
    more: bool
    over: bool
    limit: int
    counts: Mapping[str, int]
    next: str | None
    text: tuple[DiffLine, ...] | None
    note: str | None
    """The reason why a file has none."""


def compare_at(asks: Asks, host: str, path: bytes, before: str, after: str, limit: int, since: bytes | None = None) -> Compared:
    """Asks the agent to compare, and to continue after the path `since`. Raises the agent's exceptions."""
    more = {} if since is None else {"since": text_of(since)}
    answer = asks.ask("compare", host=host, path=text_of(path), before=before, after=after, limit=limit, **more)
    found = tuple(_difference(one) for one in answer["differences"])
    return Compared(
        host=host,
        path=text_of(path),
        before=answer["before"]["name"],
        after=answer["after"]["name"],
        differences=found,
        more=answer["more"],
        over=answer.get("over", False),
        limit=limit,
        counts=Counter(one.what for one in found),
        next=answer.get("next"),
        note=answer["note"],
        text=None if answer["text"] is None else tuple(line_of(line) for line in answer["text"][2:]),
    )


def _difference(told: Mapping[str, Any]) -> DifferenceRow:
    before, after = told["before"], told["after"]
    files = {"before": named_file_of(before) if before else None, "after": named_file_of(after) if after else None}
    return of_answer(DifferenceRow, told, **files)


def line_of(line: str) -> DiffLine:
    """Returns a line of a unified difference; the two lines that name the files are left out."""
    what = _FOUND.get(line[:1], "same")
    return DiffLine(what, shown_line(line if what == "place" else line[1:]))
