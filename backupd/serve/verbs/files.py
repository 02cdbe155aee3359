"""Reads, compares and streams the content of backups. No link leads out of a backup; see backupd.files."""

import errno
import itertools
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from backupd.files.backup_selector import NEWEST, NoHost, Restorable, find, restorable
from backupd.files.entry_words import backup_object, entry_object, history_answer, named_entry_object
from backupd.files.sameness import TimeBudgetUsedUp
from backupd.files.suggestions import entry_at, missing, path_in
from backupd.files.tree import Entry, Tree
from backupd.serve.service_context import Call
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import UsageError
from btrkeep.serving.protocol import RequestRefused
from btrkeep.serving.server import ClientGone
from btrkeep.serving.viewer import LIST_BYTES, AnswerSize, encoded_bytes
from btrkeep.units import format_size

if TYPE_CHECKING:
    from backupd.files.backup_differences import PathDifference
    from backupd.files.versions import PathHistory

_PIECE = 1 << 20
_CHECK_EVERY = 0.25
_FILTER_SECONDS = 10.0
"""Maximum seconds of comparing the names of a folder: hosts choose their number and form, users the text."""
_TEXT_BYTES = 1 << 20
"""Bytes of an answer that are reserved for the lines of a text."""
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EXDEV)


class _Pulse:
    """Called regularly during long work: ends it if the caller has left or the time limit is over."""

    def __init__(self, call: Call, seconds: float | None = None) -> None:
        self._call = call
        self._checked_at = time.monotonic()
        self._end = self._checked_at + (call["seconds"] if seconds is None else seconds)

    def __call__(self) -> None:
        """Raises ClientGone and TimeBudgetUsedUp."""
        now = time.monotonic()
        if now >= self._end:
            raise TimeBudgetUsedUp
        if now - self._checked_at > _CHECK_EVERY:
            self._checked_at = now
            if self._call.gone():
                raise ClientGone


@contextmanager
def reading() -> Iterator[None]:
    """Converts errors about names and paths to refusals."""
    try:
        yield
    except TimeBudgetUsedUp:
        raise RequestRefused(
            f"comparing the names of the folder takes longer than the limit of {_FILTER_SECONDS:.0f} s",
            "open the folder without a text, or give its whole name",
            "refused",
            is_public=True,
        ) from None
    except UsageError as error:  # no such host, backup or path
        raise RequestRefused(error.message, error.hint, "missing", is_public=not isinstance(error, NoHost)) from None
    except OSError as error:
        if error.errno in _MISSING:
            raise RequestRefused(
                "there is no such path in this backup", "symlinks in the path are not followed", "missing", is_public=True
            ) from None
        raise


@contextmanager
def opened(call: Call, *which: str) -> Iterator[list[tuple[Restorable, Tree]]]:
    """Backups of the call's host and their files. Raises RequestRefused."""
    with reading(), ExitStack() as stack:
        pool = call.service.pool()
        restorables = [find(pool, call["host"], name) for name in which]
        yield [(backup, stack.enter_context(Tree(backup.path))) for backup in restorables]


def _entry(call: Call, backup: Restorable, tree: Tree) -> Entry:
    return entry_at(tree, call["path"], f"{backup.host}@{backup.name}")


def browse(call: Call) -> dict[str, Any]:
    """Returns an entry, and for a folder a page of its contents."""
    from backupd.files.listing import Page, only_folders, page
    from backupd.files.name_search import name_filter

    order, size, pulse = (call["sort"], call["descending"]), AnswerSize(), _Pulse(call, _FILTER_SECONDS)
    matches = name_filter(call["find"], pulse) if call["find"] else None

    def fits(entry: Entry) -> bool:
        return size.take(named_entry_object(entry))

    with opened(call, call["backup"]) as [(backup, tree)]:
        path = path_in(tree, call["path"], pulse) if call["typed"] else call["path"]
        entry = entry_at(tree, path, f"{backup.host}@{backup.name}")
        is_folder = entry.kind == "folder"
        inside = page(tree, path, call["offset"], call["limit"], *order, fits, matches) if is_folder else Page((), 0, *order)
        folders = [entry.path for entry in inside.entries if entry.kind == "folder"] if call["collapse"] else []
        only = dict(zip(folders, only_folders(tree, folders), strict=True))
    end = call["offset"] + len(inside.entries)
    return {
        "backup": backup_object(backup),
        "path": os.fsdecode(entry.path),
        "entry": entry_object(entry),
        "entries": [{**named_entry_object(entry), **_only_object(only.get(entry.path))} for entry in inside.entries],
        "total": inside.total,
        "next": end if inside.entries and end < inside.total else None,
        "sort": inside.sort,
        "descending": inside.descending,
    }


def _only_object(below: bytes | None) -> dict[str, str]:
    return {"only": os.fsdecode(below)} if below else {}


def search(call: Call) -> dict[str, Any]:
    """Returns the names below a folder that match, until the limit of results or of time."""
    from backupd.files.name_search import name_filter
    from backupd.files.name_search import search as search_names

    size, count = AnswerSize(), itertools.count(1)

    def take(entry: Entry) -> bool:
        return next(count) <= call["limit"] and size.take(entry_object(entry))

    with opened(call, call["backup"]) as [(backup, tree)]:
        _entry(call, backup, tree)
        result = search_names(tree, call["path"], name_filter(call["find"]), take, _Pulse(call))
    return {
        "backup": backup_object(backup),
        "path": os.fsdecode(call["path"]),
        "entries": [entry_object(entry) for entry in result.entries],
        "scanned": result.scanned,
        "unreadable": result.unreadable,
        "stopped": result.stopped,
    }


def versions(call: Call) -> dict[str, Any]:
    """Returns the result of `backupd versions --json` for as many backups as time allowed."""
    from backupd.files.versions import versions as history_of

    with reading():
        every = sorted(restorable(call.service.pool(), call["host"]), key=lambda backup: backup.name)
        wanted = [backup for backup in every if not call["since"] or backup.name >= call["since"]]
        whole = len(wanted)
        history = history_of(wanted, call["path"], call["content"], pulse=_Pulse(call))
        # A symlink may have a different target of 4,000 bytes in each backup. Two backups always fit.
        while len(history.backups) > 2 and (size := encoded_bytes(history_answer(call["host"], history))) > LIST_BYTES:
            wanted = wanted[: max(2, len(history.backups) * LIST_BYTES * 9 // 10 // size)]
            history = history_of(wanted, call["path"], call["content"], pulse=_Pulse(call))  # the first call's time may be up
        history = replace(history, stopped=history.stopped or len(wanted) < whole)
    if not history.versions and not history.stopped and not call["since"]:
        with opened(call, NEWEST) as [(backup, tree)]:
            raise missing(tree, call["path"], backup.host)
    return {**history_answer(call["host"], history), "of": len(every), "next": _next(call, history)}


def _next(call: Call, history: "PathHistory") -> str | None:
    """Returns the backup from which to continue after the time limit: the last one read, so that nothing is missed between two
    answers. Raises RequestRefused if there would be no progress.
    """
    if not history.stopped:
        return None
    if len(history.backups) < (2 if call["since"] else 1):
        raise RequestRefused(
            f"reading the path in one backup takes longer than the limit of {call['seconds']} s",
            "choose a narrower path, or run on the server: backupd versions --content",
            "refused",
            is_public=True,
        )
    return history.backups[-1].name


def compare(call: Call) -> dict[str, Any]:
    """Returns a limited number of differences below a path; for a text file also its lines."""
    from backupd.files.backup_differences import compare as differences_of

    with opened(call, call["before"], call["after"]) as [(old, before), (new, after)]:
        pulse = _Pulse(call)
        last = deque[bytes](maxlen=1)
        words = (before, after, call["path"], call["content"])
        shown, more, over = _first_differences(call, differences_of(*words, pulse=pulse, since=call["since"], passed=last.append))
        hidden = call.service.config().serve.no_downloads
        lines, note = (
            (None, "contents are not shown: downloads are switched off") if hidden else _text(before, after, call["path"], pulse)
        )
    return {
        "before": backup_object(old),
        "after": backup_object(new),
        "differences": shown,
        "more": more,
        "over": over,
        "next": os.fsdecode(last[0]) if more and last else None,
        "text": lines,
        "note": note,
    }


def _first_differences(call: Call, differences: "Iterator[PathDifference]") -> tuple[list[dict[str, Any]], bool, bool]:
    """Returns at most `limit` differences, whether there are or may be more, and whether the time limit is the reason."""
    from backupd.files.backup_differences import difference_answer

    shown, size = list[dict[str, Any]](), AnswerSize(LIST_BYTES - _TEXT_BYTES)
    try:
        for path_difference in differences:
            difference = difference_answer(path_difference)
            if len(shown) == call["limit"] or not size.take(difference):
                return shown, True, False
            shown.append(difference)
    except TimeBudgetUsedUp:
        return shown, True, True
    return shown, False, False


def _text(before: Tree, after: Tree, path: bytes, pulse: _Pulse) -> tuple[list[str] | None, str | None]:
    """Returns the differing lines of a text file, or the reason if they cannot be shown; neither if it is not a file."""
    from backupd.files.backup_differences import NoText, text_difference

    if "file" not in (_kind(before, path), _kind(after, path)):
        return None, None
    try:
        lines = text_difference(before, after, path, pulse=pulse)
        if encoded_bytes(lines) > _TEXT_BYTES:
            return None, f"the differing lines have more than {format_size(_TEXT_BYTES)}; on the server: backupd compare"
        return lines, None
    except NoText as error:
        return None, error.message
    except TimeBudgetUsedUp:
        return None, "comparing the lines takes longer than the limit of a request"


def _kind(tree: Tree, path: bytes) -> str | None:
    try:
        return tree.stat(path).kind
    except (FileNotFoundError, NotADirectoryError):
        return None


def download(call: Call) -> None:
    """Streams a file unchanged, or a file or folder as an archive; with `paths` these as an archive that has the name of `path`."""
    with opened(call, call["backup"]) as [(backup, tree)]:
        entry = _entry(call, backup, tree)
        for path in call["paths"] or ():
            entry_at(tree, path, f"{backup.host}@{backup.name}")
        if call["as"] == "file":
            if call["paths"]:
                raise RequestRefused("several paths need an archive", "download them as tar or zip", "usage", is_public=True)
            _file(call, tree, entry)
        else:
            _archive(call, tree, entry, backup)


def _file(call: Call, tree: Tree, entry: Entry) -> None:
    if entry.kind != "file":
        raise RequestRefused(
            f"this is a {entry.kind}, not a plain file", "download a folder as tar or zip", "usage", is_public=True
        )
    with ClosingFd(tree.open_file(entry.path)) as fd:
        size = os.fstat(fd).st_size
        out = call.stream(entry.name, "application/octet-stream", size)
        while piece := os.read(fd, _PIECE):
            out.write(piece)
    if out.tell() != size:
        raise RequestRefused(f"the file ended after {out.tell()} of {size} bytes")


def _archive(call: Call, tree: Tree, entry: Entry, backup: Restorable) -> None:
    from backupd.files.archive import write_archive

    stem = os.fsencode(backup.host) if entry.path == b"/" else entry.name
    kind = call["as"]
    out = call.stream(stem + b"." + kind.encode(), {"tar": "application/x-tar", "zip": "application/zip"}[kind], None)
    try:
        write_archive(tree, call["paths"] or [entry.path], kind, out)
    except OSError:
        out.flush()  # the end mark by which programs detect a truncated tar
        raise
