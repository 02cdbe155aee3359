"""The words for why a backup or a run is not complete: the one place where a cause becomes text. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from btrkeep.causes import Cause, CauseCode
from btrkeep.decisions.rsync_meaning import exit_words
from btrkeep.units import counted, format_duration, format_share, format_size


def cause_words(cause: Cause) -> str:
    """Formats a cause, such as "/srv: no progress for 5m": the source path, if it concerns one, and the problem."""
    words = _WORDS[cause.code]
    text = words if isinstance(words, str) else words(cause.facts)
    return f"{cause.path}: {text}" if cause.path else text


def error_words(text: str | None, cause: Cause | None) -> str | None:
    """The error of a backup or a run in words. Without a cause it is the `text` that was stored with it."""
    return cause_words(cause) if cause else text


def _unreadable(facts: Mapping[str, Any]) -> str:
    missed, files = facts["missed"] + facts["below"], facts["files"] + facts["below"]  # what is below is not in rsync's list
    share, limit = format_share(missed / max(1, files)), format_share(facts["limit"])
    least = "at least " if facts["below"] else ""
    return f"{least}{missed} of {files} files could not be read or kept ({share}, the limit is {limit})"


def _shrunk(what: str, show: Callable[[int], str]) -> Callable[[Mapping[str, Any]], str]:
    def words(facts: Mapping[str, Any]) -> str:
        before, after = facts["before"], facts["after"]
        lost, limit = format_share((before - after) / max(1, before)), format_share(facts["limit"])
        return f"{what} went from {show(before)} to {show(after)}: {lost} less, the limit is {limit}"

    return words


def _with_line(words: str, facts: Mapping[str, Any]) -> str:
    return f"{words}: {line}" if (line := facts["line"]) else words


def _emptied(end: str) -> Callable[[Mapping[str, Any]], str]:
    def words(facts: Mapping[str, Any]) -> str:
        others = facts["others"]
        where = f"{facts['folder']} and {counted(others, 'more folder')} are" if others else f"{facts['folder']} is"
        before = f"at least {facts['files']:,} files and folders ({format_size(facts['bytes'])})"
        return f"{where} empty, where the previous backup has {before}, {end}"

    return words


_ANEW = "the next run begins anew while it does not allow more"
_A_LIMIT = f"raise that, or `exclude` some of it; {_ANEW}"

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
    CauseCode.NOT_LISTED: "files below {paths} paths that could not be read were not looked at, and cannot be counted".format_map,
    CauseCode.UNREADABLE: _unreadable,
    CauseCode.DELETIONS_LIMITED: "deletions stopped at a limit, so files that are gone are still there",
    CauseCode.NO_FILE_LEFT: "no file is left of {before} (is something not mounted?)".format_map,
    CauseCode.FEWER_FILES: _shrunk("files", str),
    CauseCode.FEWER_BYTES: _shrunk("bytes", format_size),
    CauseCode.NOT_MOUNTED: _emptied("and nothing was deleted there (is something not mounted?)"),
    CauseCode.EMPTIED_UNDATED: _emptied(
        "and that backup is stamped in the future: it is not certain that they were deleted (if they were: "
        "`backupd accept HOST latest`)"
    ),
    CauseCode.EMPTIED_SETTINGS: _emptied("and nothing was deleted there: by a new `exclude`, or is something not mounted?"),
    CauseCode.NOT_COMPARED: (
        "folders that are empty now could not be compared with the previous backup ({why}), so a filesystem that is not mounted "
        "would not be seen: the next run compares again, and `backupd accept HOST latest` makes this one complete"
    ).format_map,
    CauseCode.NOT_NAMED: "rsync says that some files were not transferred, but not which",
    CauseCode.DEADLINE: "the deadline has passed",
    CauseCode.WINDOW_CLOSED: "the window {window} has closed".format_map,
    CauseCode.STALLED: lambda facts: f"no progress for {format_duration(facts['seconds'])}",
    CauseCode.TOO_MANY_PROCESSES: "its rsync started {processes} processes".format_map,
    CauseCode.SIGNAL: "stopped by {name}".format_map,
    CauseCode.ENDLESS_OUTPUT: lambda facts: (
        f"the host prints without end: more than {format_size(facts['bytes'])}, which is not read any further"
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
        f"its quota is used up: {format_size(facts['found'])} that it wrote are alive, of {format_size(facts['limit'])} that "
        "`quota` allows; "
        f"raise that, `exclude` some of it, or delete old backups; {_ANEW}"
    ),
    CauseCode.KILLED: "the run was killed before it came to its end",
    CauseCode.INTERNAL_ERROR: "internal error",
}
