"""The words for why a backup or a run is not complete: the one place where a cause becomes text. Pure.

If many hosts have the same reason, it is printed in one line.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from btrkeep.backup_states import Cause, CauseCode
from btrkeep.decisions.rsync_meaning import exit_words
from btrkeep.units import counted, format_duration, format_share, format_size, names_in_words, printable


def cause_words(cause: Cause) -> str:
    """Formats a cause, such as "/srv: no progress for 5m": the source path, if it concerns one, and the problem."""
    words = _WORDS[cause.code]
    text = words if isinstance(words, str) else words(cause.facts)
    return f"{cause.path}: {text}" if cause.path else text


def error_words(text: str | None, cause: Cause | None) -> str | None:
    """Returns the error of a backup or a run in words. Without a cause it is the `text` that was stored with it."""
    return cause_words(cause) if cause else text


def _unreadable(facts: Mapping[str, Any]) -> str:
    missed, files = facts["missed"] + facts["below"], facts["files"] + facts["below"]  # `below` is not in rsync's list
    share, limit = format_share(missed / max(1, files)), format_share(facts["limit"])
    least = "at least " if facts["below"] else ""
    return f"{least}{missed} of {files} files could not be read or kept ({share}, the limit is {limit})"


def _shrunk(noun: str, show: Callable[[int], str]) -> Callable[[Mapping[str, Any]], str]:
    def words(facts: Mapping[str, Any]) -> str:
        before, after = facts["before"], facts["after"]
        lost, limit = format_share((before - after) / max(1, before)), format_share(facts["limit"])
        return f"{noun} went from {show(before)} to {show(after)}: {lost} less, the limit is {limit}"

    return words


def _with_line(words: str, facts: Mapping[str, Any]) -> str:
    return f"{words}: {line}" if (line := facts["line"]) else words


def _emptied(end: str) -> Callable[[Mapping[str, Any]], str]:
    def words(facts: Mapping[str, Any]) -> str:
        others = facts["others"]
        where = f"{facts['folder']} and {counted(others, 'more folder')} are" if others else f"{facts['folder']} is"
        before = f"at least {facts['files']:,} files and folders ({format_size(facts['bytes'])})"
        return f"{where} empty, but the previous backup has {before} there, {end}"

    return words


_ANEW = "until it allows more, the next run starts from the beginning"
_A_LIMIT = f"raise it, or `exclude` some files; {_ANEW}"

_WORDS: Mapping[CauseCode, str | Callable[[Mapping[str, Any]], str]] = {
    CauseCode.POOL: "{text}".format_map,
    CauseCode.SERVER_FAULT: "this server could not write: {line}".format_map,
    CauseCode.STOPPED: "stopped",
    CauseCode.RSYNC_UNFINISHED: lambda facts: _with_line(exit_words(facts["exit_cause"], facts["exit_code"]), facts),
    CauseCode.RSYNC_FAILED: lambda facts: _with_line(
        f"{exit_words(facts['exit_cause'], facts['exit_code'])} (rsync's exit status {facts['exit_code']})", facts
    ),
    CauseCode.NO_STATISTICS: "rsync ended without its statistics (exit status {exit_code})".format_map,
    CauseCode.SOURCE_MISSING: "the source is missing or cannot be entered: {line}".format_map,
    CauseCode.NOTHING_READ: "nothing could be read: {line}".format_map,
    CauseCode.NOT_LISTED: "{paths} paths could not be read: files below them were not checked, and cannot be counted".format_map,
    CauseCode.UNREADABLE: _unreadable,
    CauseCode.DELETIONS_LIMITED: "deletions stopped at a limit, so deleted files are still in the backup",
    CauseCode.NO_FILE_LEFT: "none of {before} files is left (a filesystem may not be mounted)".format_map,
    CauseCode.FEWER_FILES: _shrunk("files", str),
    CauseCode.FEWER_BYTES: _shrunk("bytes", format_size),
    CauseCode.NOT_MOUNTED: _emptied("and nothing was deleted there (a filesystem may not be mounted)"),
    CauseCode.EMPTIED_UNDATED: _emptied(
        "and the time of that backup is in the future: it is not certain that they were deleted (if they were: "
        "`backupd accept HOST latest`)"
    ),
    CauseCode.EMPTIED_SETTINGS: _emptied("and nothing was deleted there: `exclude` was changed, or a filesystem is not mounted"),
    CauseCode.NOT_COMPARED: (
        "empty folders could not be compared with the previous backup ({why}), so a missing mount would not be noticed; "
        "the next run compares again, and `backupd accept HOST latest` makes this backup complete"
    ).format_map,
    CauseCode.NOT_NAMED: "rsync reports that some files were not transferred, but not which",
    CauseCode.NO_SNAPSHOTS: "the host made no snapshots: {line}".format_map,
    CauseCode.NOT_FROM_SNAPSHOT: "not read from a snapshot: {line}".format_map,
    CauseCode.DUMP_FAILED: lambda facts: _with_line(f"the host could not make the dump {facts['name']}", facts),
    CauseCode.STREAM_FAILED: "the host's stream could not be applied: {line}".format_map,
    CauseCode.DEADLINE: "the deadline has passed",
    CauseCode.WINDOW_CLOSED: "the window {window} has closed".format_map,
    CauseCode.STALLED: lambda facts: f"no progress for {format_duration(facts['seconds'])}",
    CauseCode.TOO_MANY_PROCESSES: "its rsync started {processes} processes".format_map,
    CauseCode.SIGNAL: "stopped by {name}".format_map,
    CauseCode.ENDLESS_OUTPUT: lambda facts: (
        f"the host's output does not end: after {format_size(facts['bytes'])} it was no longer read"
    ),
    CauseCode.MAX_FILES: lambda facts: (
        f"{facts['found']:,} files and folders are new, more than `max_files` allows ({facts['limit']:,}): {_A_LIMIT}"
    ),
    CauseCode.MAX_NEW_BYTES: lambda facts: (
        f"{format_size(facts['found'])} are new, more than `max_new_bytes` allows ({format_size(facts['limit'])}): {_A_LIMIT}"
    ),
    CauseCode.MAX_MEMORY: lambda facts: (
        f"its rsync took {format_size(facts['found'])} of memory, more than `max_memory` allows ({format_size(facts['limit'])})"
    ),
    CauseCode.QUOTA: lambda facts: (
        f"its quota is used up: {format_size(facts['found'])} of its data are in use, of {format_size(facts['limit'])} that "
        f"`quota` allows; raise it, `exclude` some of it, or delete old backups; {_ANEW}"
    ),
    CauseCode.KILLED: "the run was killed before it ended",
    CauseCode.INTERNAL_ERROR: "internal error",
}


_SHORT: Mapping[CauseCode, str] = {
    CauseCode.SERVER_FAULT: "this server could not write",
    CauseCode.NO_STATISTICS: "rsync ended without its statistics",
    CauseCode.SOURCE_MISSING: "the source is missing or cannot be entered",
    CauseCode.NOTHING_READ: "nothing could be read",
    CauseCode.NOT_LISTED: "paths could not be read",
    CauseCode.UNREADABLE: "too many files could not be read or kept",
    CauseCode.NO_FILE_LEFT: "no file is left",
    CauseCode.FEWER_FILES: "far fewer files than before",
    CauseCode.FEWER_BYTES: "far fewer bytes than before",
    CauseCode.NOT_MOUNTED: "a folder is empty (is a filesystem not mounted?)",
    CauseCode.EMPTIED_UNDATED: "a folder is empty (is a filesystem not mounted?)",
    CauseCode.EMPTIED_SETTINGS: "a folder is empty (is a filesystem not mounted?)",
    CauseCode.NOT_COMPARED: "empty folders could not be compared with the previous backup",
    CauseCode.NO_SNAPSHOTS: "the host made no snapshots",
    CauseCode.NOT_FROM_SNAPSHOT: "not read from a snapshot",
    CauseCode.DUMP_FAILED: "the host could not make a dump",
    CauseCode.STREAM_FAILED: "the host's stream could not be applied",
    CauseCode.WINDOW_CLOSED: "the window has closed",
    CauseCode.STALLED: "no progress for too long",
    CauseCode.TOO_MANY_PROCESSES: "its rsync started too many processes",
    CauseCode.SIGNAL: "stopped by a signal",
    CauseCode.ENDLESS_OUTPUT: "the host's output does not end",
    CauseCode.MAX_FILES: "more new files than `max_files` allows",
    CauseCode.MAX_NEW_BYTES: "more new data than `max_new_bytes` allows",
    CauseCode.MAX_MEMORY: "its rsync took more memory than `max_memory` allows",
    CauseCode.QUOTA: "its quota is used up",
}
_LONGEST_SHORT = 100


def short_cause(text: str | None, cause: Cause | None, host: str) -> str:
    """Returns the error of a backup or a run without what differs from host to host: the words under which hosts are grouped.
    Without a cause that is the start of the `text`; "" without an error.
    """
    if cause is None or cause.code is CauseCode.POOL:
        words = printable(without_host((error_words(text, cause) or "").strip().partition("\n")[0], host))
        return words if len(words) <= _LONGEST_SHORT else f"{words[:_LONGEST_SHORT]}..."
    if cause.code in (CauseCode.RSYNC_UNFINISHED, CauseCode.RSYNC_FAILED):
        return printable(exit_words(cause.facts["exit_cause"], cause.facts["exit_code"]))
    return _SHORT.get(cause.code) or str(_WORDS[cause.code])  # words that depend on facts are in _SHORT


def altered_words(backups: Sequence[tuple[str, str]]) -> str:
    """Returns the number of these, with the name of the first ones: "2 backups were changed after they were final: web1@NAME,
    web2@NAME".
    """
    were = "was changed after it was" if len(backups) == 1 else "were changed after they were"
    names = names_in_words([f"{printable(host)}@{name}" for host, name in backups], 3)
    return f"{counted(len(backups), 'backup')} {were} final: {names}"


def altered_hint(backups: Sequence[tuple[str, str]], command: str) -> str:
    """Returns what to do about the first of them. `command`: the command line of `backupd` for this pool."""
    host, name = backups[0]
    place = f"{host}@{name}"
    return (
        f"`{command} verify {place}` names the files; `{command} accept {place}` if the changes are right, "
        f"`{command} delete {place}` if not; `{command} replicate NAME --damaged` fetches a copy of another pool again"
    )


MANY_ALIKE = 4
"""From this number on, hosts with the same error become one line."""
_PLACE = re.compile(r"(?<!\S)\S+:\d+: ")  # only at the start of a word: a host's output may be long
"""FILE:LINE of a mistake in the configuration, which differs if each host has its own file."""
T = TypeVar("T")


def without_host(text: str, host: str) -> str:
    """Returns an error without the name of its host, and without the file and line of a mistake in the configuration."""
    text = _PLACE.sub("", text)
    return re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-]|\.\w)", "*", text) if host in text else text


def grouped_alike(items: Iterable[T], key: Callable[[T], Hashable | None]) -> list[list[T]]:
    """Returns the items in groups: many items with the same key become one group, at the position of the first; every other item is
    a group of its own.

    An item whose key is None is alone.
    """
    groups: dict[tuple[bool, Hashable], list[T]] = {}
    for number, item in enumerate(items):
        value = key(item)
        groups.setdefault((False, number) if value is None else (True, value), []).append(item)
    return [part for group in groups.values() for part in ([group] if len(group) >= MANY_ALIKE else [[item] for item in group])]
