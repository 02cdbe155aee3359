"""The versions of a path over all backups of a host, and its differences between two backups, from `backupd serve`."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from web.files.data import Asks, NamedFile, named_file_of, shown_line, text_of
from web.mapping import from_json


@dataclass(frozen=True, slots=True)
class VersionRow:
    """One distinct version of a path."""

    entry: NamedFile
    """The entry in the newest backup that has it."""
    first: str
    """The oldest backup that has it."""
    last: str
    """The newest backup that has it."""
    first_seen: datetime
    """When `first` began."""
    last_seen: datetime
    """When `last` began."""
    backups: int
    """Number of backups that have it."""
    names: tuple[str, ...]
    """All backups that have it, oldest first."""
    states: tuple[str, ...]
    """The states of these backups, each once."""
    best: str
    """The backup to restore it from."""
    changed: tuple[str, ...]
    """In what it differs from the previous version; empty for the first."""
    certain: bool
    """Whether the data of all these backups is known to be the same."""
    vanished: datetime | None
    """When the path was missing right after this version; null: another version followed, or it still exists."""
    same_content_as: str | None
    """The `first` of the previous version, if the data is known to be the same; otherwise null."""
    before: str | None
    """The best backup of the previous version, to compare with; null for the first."""


@dataclass(frozen=True, slots=True)
class AbsenceRow:
    """A period in which the path was missing."""

    first: str
    """The first backup without it."""
    last: str
    """The last backup without it."""
    since: datetime
    """When `first` began."""
    until: datetime | None
    """When `came_back` began; null: it did not come back."""
    backups: int
    """Number of backups without it."""
    came_back: str | None
    """The backup that has it again; null: none does."""
    doubtful: bool
    """Whether it is missing only in suspect or failed backups."""


@dataclass(frozen=True, slots=True)
class PathInBackupRow:
    """The path in one backup."""

    name: str
    """The backup's name."""
    started: datetime
    """When it started."""
    state: str
    """The backup's state."""
    found: str
    """What the backup has at this path, as a word."""
    version: int | None
    """The number of the version; null: it is missing."""


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """All versions of a path."""

    host: str
    """The host's name."""
    path: str
    """On the host."""
    by_content: bool
    """Whether files were read where their metadata did not decide."""
    versions: tuple[VersionRow, ...]
    """Oldest first."""
    gone: tuple[AbsenceRow, ...]
    """The periods in which it was missing, oldest first."""
    backups: tuple[PathInBackupRow, ...]
    """Its state in each backup, oldest first."""
    of: int
    """Number of backups in all."""
    next: str | None
    """The backup from which to continue, because the time limit was reached; null: all backups are here."""

    def rows(self) -> list[VersionRow | AbsenceRow]:
        """Returns versions and the periods between them, the newest first."""
        return sorted([*self.versions, *self.gone], key=lambda row: row.first, reverse=True)


@dataclass(frozen=True, slots=True)
class NeighbouringBackups:
    """The nearest backups in which a path is different."""

    before: str | None
    """The newest backup before the path changed; None: none."""
    after: str | None
    """The first backup after its next change; None: none."""


def history(asks: Asks, host: str, path: bytes, by_content: bool = False, since: str | None = None) -> HistoryPage:
    """Asks the root service for the versions, from the backup `since` on. Raises its exceptions."""
    answer = asks.ask("versions", host=host, path=text_of(path), content=by_content, **({"since": since} if since else {}))
    versions = answer["versions"]
    before = [None, *(version["best"] for version in versions)]
    return HistoryPage(
        host=host,
        path=answer["path"],
        by_content=answer["by_content"],
        versions=tuple(
            from_json(VersionRow, version, entry=named_file_of(version["entry"]), before=earlier)
            for version, earlier in zip(versions, before, strict=False)
        ),
        gone=tuple(from_json(AbsenceRow, absence) for absence in answer["gone"]),
        backups=tuple(from_json(PathInBackupRow, backup) for backup in answer["backups"]),
        of=answer.get("of", len(answer["backups"])),
        next=answer.get("next"),
    )


def neighbouring_backups(past: HistoryPage, name: str) -> NeighbouringBackups:
    """Returns the backups in which a path changed, nearest to one of them. Skips backups without information about it."""
    sightings = [
        (backup.name, backup.version) for backup in past.backups if backup.version is not None or backup.found == "missing"
    ]
    before = after = None
    for (earlier, old), (later, new) in pairwise(sightings):
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
    """A path that differs."""

    path: str
    """On the host."""
    what: str
    """added, removed, changed, or kind: another type of file."""
    before: NamedFile | None
    """The entry in the older backup; null: it was added."""
    after: NamedFile | None
    """The entry in the newer backup; null: it was removed."""
    fields: tuple[str, ...]
    """The fields in which a changed path differs."""


@dataclass(frozen=True, slots=True)
class DiffLine:
    """One line of the differences of a text."""

    what: str
    """added, removed, place (the position in the file) or same."""
    text: str
    """The line, safe to display."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The differences between two backups."""

    host: str
    """The host's name."""
    path: str
    """The compared path."""
    before: str
    """The older backup."""
    after: str
    """The newer backup."""
    differences: tuple[DifferenceRow, ...]
    """At most `limit` of them."""
    more: bool
    """Whether there are or may be others."""
    over: bool
    """Whether that is because the time limit was reached."""
    limit: int
    """The most differences of an answer."""
    counts: Mapping[str, int]
    """Number of the included differences by kind."""
    next: str | None
    """The path to continue after, as `since`; null: nothing more, or nothing was compared in the time."""
    text: tuple[DiffLine, ...] | None
    """The differing lines of a text file; null: it is not a text file."""
    note: str | None
    """Why a file has no `text`; null: it has."""


def compare_at(asks: Asks, host: str, path: bytes, before: str, after: str, limit: int, since: bytes | None = None) -> Compared:
    """Asks the root service to compare, and to continue after the path `since`. Raises its exceptions."""
    more = {} if since is None else {"since": text_of(since)}
    answer = asks.ask("compare", host=host, path=text_of(path), before=before, after=after, limit=limit, **more)
    difference_rows = tuple(_difference(difference) for difference in answer["differences"])
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


def _difference(fields: Mapping[str, Any]) -> DifferenceRow:
    before, after = fields["before"], fields["after"]
    files = {"before": named_file_of(before) if before else None, "after": named_file_of(after) if after else None}
    return from_json(DifferenceRow, fields, **files)


def line_of(line: str) -> DiffLine:
    """Returns a line of a unified difference; the two lines that name the files are left out."""
    kind = _FOUND.get(line[:1], "same")
    return DiffLine(kind, shown_line(line if kind == "place" else line[1:]))
