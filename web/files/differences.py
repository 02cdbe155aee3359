"""The versions of a path over all backups of a host, and its differences between two backups, from `backupd serve`."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from web.files.data import Asks, NamedFile, named_file_of, shown_line, text_of
from web.same_names import of_answer


@dataclass(frozen=True, slots=True)
class VersionRow:
    """One distinct version. `first`, `last` and `best` are names of backups; `best` is the one to restore it from."""

    entry: NamedFile
    first: str
    last: str
    first_seen: datetime
    last_seen: datetime
    backups: int
    names: tuple[str, ...]
    states: tuple[str, ...]
    best: str
    changed: tuple[str, ...]
    certain: bool
    vanished: datetime | None
    same_content_as: str | None
    before: str | None
    """The best backup of the version before it, to compare with; None for the first."""


@dataclass(frozen=True, slots=True)
class AbsenceRow:
    """A period without the path after it existed. `doubtful`: only suspect or failed backups indicate the absence."""

    first: str
    last: str
    since: datetime
    until: datetime | None
    backups: int
    came_back: str | None
    doubtful: bool


@dataclass(frozen=True, slots=True)
class PathInBackupRow:
    """The result for one backup: `found` is a word, `version` the number of the version."""

    name: str
    started: datetime
    state: str
    found: str
    version: int | None


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """Versions, spans without it, and each backup, all oldest first. `of`: how many backups there are in all; `next`: from which
    one on to ask again, when there was not the time to look at all of them; None: there was.
    """

    host: str
    path: str
    by_content: bool
    versions: tuple[VersionRow, ...]
    gone: tuple[AbsenceRow, ...]
    backups: tuple[PathInBackupRow, ...]
    of: int
    next: str | None

    def told(self) -> list[VersionRow | AbsenceRow]:
        """Versions and the spans between, as they came to be, the newest first."""
        return sorted([*self.versions, *self.gone], key=lambda one: one.first, reverse=True)


@dataclass(frozen=True, slots=True)
class NeighbouringBackups:
    """Names of backups: the newest before one in which a path was otherwise, the first after it in which it is otherwise again."""

    before: str | None
    after: str | None


def history(asks: Asks, host: str, path: bytes, by_content: bool = False, since: str | None = None) -> HistoryPage:
    """Asks the agent for the versions, from the backup `since` on. Raises the agent's exceptions."""
    answer = asks.ask("versions", host=host, path=text_of(path), content=by_content, **({"since": since} if since else {}))
    versions = answer["versions"]
    before = [None, *(version["best"] for version in versions)]
    return HistoryPage(
        host=host,
        path=answer["path"],
        by_content=answer["by_content"],
        versions=tuple(
            of_answer(VersionRow, one, entry=named_file_of(one["entry"]), before=earlier)
            for one, earlier in zip(versions, before, strict=False)
        ),
        gone=tuple(of_answer(AbsenceRow, one) for one in answer["gone"]),
        backups=tuple(of_answer(PathInBackupRow, one) for one in answer["backups"]),
        of=answer.get("of", len(answer["backups"])),
        next=answer.get("next"),
    )


def neighbouring_backups(past: HistoryPage, name: str) -> NeighbouringBackups:
    """Returns the backups in which a path changed, nearest to one of them. Skips backups without information about it."""
    said = [(backup.name, backup.version) for backup in past.backups if backup.version is not None or backup.found == "missing"]
    before = after = None
    for (earlier, old), (later, new) in pairwise(said):
        if old != new and later <= name:
            before = earlier
        elif old != new and after is None:
            after = later
    return NeighbouringBackups(before, after)


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
    difference_rows = tuple(_difference(one) for one in answer["differences"])
    return Compared(
        host=host,
        path=text_of(path),
        before=answer["before"]["name"],
        after=answer["after"]["name"],
        differences=difference_rows,
        more=answer["more"],
        over=answer.get("over", False),
        limit=limit,
        counts=Counter(difference_row.what for difference_row in difference_rows),
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
