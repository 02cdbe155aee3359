"""A folder or a file of a backup, from `backupd serve`. Contains no HTML and no request: pages and API show the same data.

Paths and names of a host are text in which a byte that is not valid UTF-8 is a surrogate (PEP 383), as in the JSON of the root
service: `text_of` and `bytes_of` convert between this text and the host's bytes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from btrkeep.backup_states import EXPIRED, FINISHED
from btrkeep.catalogue.model_backup import Backup
from btrkeep.consistency import consistency_of, consistency_words, do_overlap
from btrkeep.decisions.due import latest
from btrkeep.units import parse_backup_name, parse_time, printable
from web.mapping import from_json

RESTORABLE = (*FINISHED, EXPIRED)
SORTS = ("name", "kind", "size", "mode", "owner", "time")
PAGE = 500
"""Names on one page of a folder."""
RESULTS, SEARCH_SECONDS = 200, 10
"""Maximum results and seconds of a search."""
_SMALLEST_PAGE, _PAGE_BYTES, _LONGEST_NAME = 20, 4 << 20, 255
_ENCODED = 6
"""Bytes of a page for each byte of a path, which is percent-encoded in a link and in a form's field."""
_VERBS_WORDS = {"time": "mtime"}


class Asks(Protocol):
    """A client of the root service: btrkeep's own, or that of a test."""

    def ask(self, verb: str, **arguments: Any) -> Any:
        """Returns the verb's answer as JSON values. Raises RequestRefused or Absent."""


@dataclass(frozen=True, slots=True)
class Which:
    """A backup that can be restored from."""

    name: str
    """Its name."""
    state: str
    """Its state."""
    started: datetime
    """When its run started."""


@dataclass(frozen=True, slots=True)
class NamedFile:
    """One entry of a backup, of any file type, where its path is known from elsewhere. Sizes are bytes; owner and group are the
    host's numeric ids.
    """

    name: str
    """The last part of its path."""
    kind: str
    """The type of file."""
    size: int
    """Bytes."""
    allocated: int
    """Bytes on the disk."""
    mode: str
    """Octal: "0644"."""
    uid: int
    """The owner on the host."""
    gid: int
    """The group on the host."""
    mtime: datetime | None
    """When it was last modified; null: `mtime_ns` is in a year that no calendar has."""
    mtime_ns: int
    """The time of the last change in nanoseconds."""
    inode: int
    """The inode number."""
    links: int
    """Number of its names."""
    target: str | None
    """Where a symlink points, which is never followed; null for others."""


@dataclass(frozen=True, slots=True)
class File(NamedFile):
    """A NamedFile with its path."""

    path: str
    """On the host."""


@dataclass(frozen=True, slots=True)
class ListedFile(File):
    """A File in a list of its folder."""

    only: str = ""
    """For a folder that has only a folder, which may again: the path of the last one, relative to it. "" for others."""

    @property
    def opened(self) -> str:
        """Returns the path that a click opens."""
        return f"{self.path}/{self.only}" if self.only else self.path

    @property
    def shown_name(self) -> str:
        """Returns the name, with the folders below it that are shown in the same row."""
        return f"{self.name}/{self.only}" if self.only else self.name


@dataclass(frozen=True, slots=True)
class FolderPage:
    """The entry at a path of a backup and, if it is a folder, one page of its entries."""

    host: str
    """The host's name."""
    backup: Which
    """The backup."""
    entry: File
    """The entry at the path."""
    entries: tuple[NamedFile, ...]
    """Names in the folder. A page may have fewer than `limit`, because its bytes are limited as well."""
    total: int
    """Number of names in the folder, on all pages."""
    offset: int
    """Number of names before this page."""
    limit: int
    """The most names of a page."""
    sort: str
    """The order, with a minus for descending."""
    next: int | None
    """The offset of the next page; null: this is the last."""
    deletions_skipped: datetime | None
    """Since when deletions have been skipped in this backup or those that it grew from; null: they were not."""
    consistency: tuple[str, ...] = ()
    """How the source paths at this path, or above or below it, were read, one line each; empty: `snapshots` was off."""


@dataclass(frozen=True, slots=True)
class Listing(FolderPage):
    """The same, and its entries have their paths."""

    entries: tuple[ListedFile, ...]


@dataclass(frozen=True, slots=True)
class SearchPage:
    """The names below a folder of a backup that match a text."""

    host: str
    """The host's name."""
    backup: Which
    """The backup."""
    folder: str
    """The path of the folder."""
    find: str
    """The text."""
    entries: tuple[File, ...]
    """The matches."""
    scanned: int
    """Number of names that were compared."""
    unreadable: int
    """Number of names and folders that could not be read."""
    stopped: str
    """Why it ended before the last name: `time` or `results`; empty: it did not."""


def text_of(path: bytes) -> str:
    """Returns bytes of a host as text that can be converted back."""
    return path.decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes:
    """Returns the bytes from which `text_of` made the text."""
    return text.encode("utf-8", "surrogateescape")


def browse(
    asks: Asks,
    host: str,
    backup: str,
    path: bytes,
    offset: int = 0,
    limit: int = PAGE,
    sort: str = "name",
    **more: str | bool,
) -> Listing:
    """Lists `path`. Raises the exceptions of the root service. `more`: its arguments find, typed and collapse.

    A folder with very many names is always sorted by name, whatever order was requested: `sort` of the answer is the actual order.
    """
    word, descending = sort.removeprefix("-"), sort.startswith("-")
    order = {"sort": _VERBS_WORDS.get(word, word), "descending": descending} if sort != "name" else {}
    answer = asks.ask("browse", host=host, backup=backup, path=text_of(path), offset=offset, limit=limit, **order, **more)
    as_asked = all(answer[name] == value for name, value in order.items())
    return Listing(
        host=host,
        backup=from_json(Which, answer["backup"]),
        entry=file_of(answer["entry"]),
        entries=tuple(_entry_in(answer["path"], entry) for entry in answer["entries"]),
        total=answer["total"],
        next=answer.get("next"),
        offset=offset,
        limit=limit,
        sort=sort if as_asked else "name",
        deletions_skipped=min(
            (parse_time(condition["since"]) for condition in answer["backup"].get("deletions_skipped", ())), default=None
        ),
        consistency=tuple(
            consistency_words(entry["path"], consistency)
            for entry in answer["backup"].get("consistency", ())
            if do_overlap(entry["path"], text_of(path)) and (consistency := consistency_of(entry))
        ),
    )


def search(asks: Asks, host: str, backup: str, path: bytes, find: str, limit: int = RESULTS) -> SearchPage:
    """Searches below `path`, for some seconds. Raises the exceptions of the root service."""
    answer = asks.ask("search", host=host, backup=backup, path=text_of(path), find=find, limit=limit, seconds=SEARCH_SECONDS)
    return SearchPage(
        host=host,
        backup=from_json(Which, answer["backup"]),
        folder=answer["path"],
        find=find,
        entries=tuple(file_of(entry) for entry in answer["entries"]),
        scanned=answer["scanned"],
        unreadable=answer["unreadable"],
        stopped=answer["stopped"],
    )


def file_of(fields: Mapping[str, Any]) -> File:
    """Parses an entry in the answer of the root service."""
    return from_json(File, fields, mtime=_moment(fields["mtime"]))


def named_file_of(fields: Mapping[str, Any]) -> NamedFile:
    """Parses an entry in the answer of the root service, without its path."""
    return from_json(NamedFile, fields, mtime=_moment(fields["mtime"]))


def _entry_in(folder: str, fields: Mapping[str, Any]) -> ListedFile:
    path = f"{folder.rstrip('/')}/{fields['name']}"
    return from_json(ListedFile, fields, path=path, mtime=_moment(fields["mtime"]), only=fields.get("only", ""))


def page_size(path: bytes) -> int:
    """Returns how many entries of a folder a page of the dashboard has: fewer with a long path, which each link contains."""
    return max(_SMALLEST_PAGE, min(PAGE, _PAGE_BYTES // (_ENCODED * (len(path) + _LONGEST_NAME))))


def _moment(text: str | None) -> datetime | None:
    try:
        return parse_time(text) if text else None
    except ValueError:
        return None


def choices(backups: Iterable[Backup], now: datetime) -> tuple[Which, ...]:
    """Returns the backups of a host that can be restored from, as in the catalogue: the newest first, and after them those with a
    time in the future.
    """
    backup_choices = [
        Which(backup.name, backup.state, backup.started) for backup in backups if backup.name and backup.state in RESTORABLE
    ]
    return tuple(sorted(backup_choices, key=lambda which: (which.started <= latest(now), which.started), reverse=True))


def one_before(backups: Sequence[Which], name: str) -> str:
    """Returns the backup before this one, which may be "latest"; the latest itself if there is none before it.

    `backups`: from `choices`.
    """
    names = [which.name for which in backups]
    latest = next((which.name for which in backups if which.state == "complete"), names[0] if names else name)
    wanted = latest if name == "latest" else name
    older = names[names.index(wanted) + 1 :] if wanted in names else []
    return older[0] if older else name


def nearest(backups: Sequence[Which], name: str) -> Which | None:
    """Returns the backup nearest in time to one that does not exist any longer, given by name or by day; the first of `backups` if
    neither can be parsed, None without backups.
    """
    moment = parse_backup_name(name) or _day(name)
    if moment is None or not backups:
        return backups[0] if backups else None
    return min(backups, key=lambda which: abs((which.started - moment).total_seconds()))


def _day(text: str) -> datetime | None:
    try:
        return parse_time(f"{text[:10]}T12:00:00Z")
    except ValueError:
        return None


def ancestors(path: bytes) -> list[bytes]:
    """Returns the folders above a path, the root first, without the path itself."""
    names = [name for name in path.split(b"/") if name]
    return [b"/" + b"/".join(names[:count]) for count in range(len(names))]


TEXT_LIMIT = 64 << 10
"""The maximum number of bytes shown."""
_LINES = 2000
_TAB = 8
_BINARY = frozenset(range(32)) - {9, 10, 12, 13, 27}


@dataclass(frozen=True, slots=True)
class Beginning:
    """The first lines of a text file."""

    lines: tuple[str, ...]
    """Its lines, each safe to display."""
    more: bool
    """Whether the file continues."""


def beginning(pieces: Iterable[bytes], size: int, limit: int = TEXT_LIMIT) -> Beginning | None:
    """Returns the first lines of a file of `size` bytes; None if it contains bytes that are not in any text."""
    held = bytearray()
    for piece in pieces:
        held += piece
        if len(held) >= limit:
            break
    data = bytes(held[:limit])
    if not _BINARY.isdisjoint(data):
        return None
    lines = _whole(data, size).split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    return Beginning(tuple(shown_line(line) for line in lines[:_LINES]), size > len(data) or len(lines) > _LINES)


def _whole(data: bytes, size: int) -> bytes:
    """Removes a character that the limit truncated."""
    if len(data) == size:
        return data
    for back in range(1, 5):
        lead = data[-back:][:1]
        if lead and lead[0] >= 0xC0:
            return data[:-back]
    return data


def shown_line(line: bytes | str) -> str:
    """Returns one line with tabs as spaces, and all other unprintable characters as escapes."""
    text = line.decode("utf-8", "surrogateescape") if isinstance(line, bytes) else line
    return printable(text.removesuffix("\r").expandtabs(_TAB))
