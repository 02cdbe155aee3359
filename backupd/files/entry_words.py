"""Formats a backup, an entry of one and the history of a path: as JSON for commands and the root service, and as text. Pure."""

import os
import re
import stat
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from backupd.files.backup_selector import Restorable
from backupd.files.tree import KINDS, Entry
from backupd.repo.backup_json import Record
from btrkeep.units import format_time, local_time, printable

if TYPE_CHECKING:
    from backupd.files.versions import Absence, PathHistory, Version

_LETTERS = {kind: stat.filemode(mode)[0] for mode, kind in KINDS.items()}
_SECOND = 10**9
_LIKE_AN_ESCAPE = re.compile(rb"\\(?=x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|[nrt\\])")


def entry_object(entry: Entry) -> dict[str, Any]:
    """Returns one entry for programs. Bytes of names that are not UTF-8 are lone surrogates, which JSON writes as \\udcXX.

    `mtime` is null if it is outside the calendar; `mtime_ns` always has it. `target` is a symlink's target, `device` the numbers of
    a device node; null for all others.
    """
    return {"name": os.fsdecode(entry.name), "path": os.fsdecode(entry.path), **_details(entry)}


def named_entry_object(entry: Entry) -> dict[str, Any]:
    """Returns one entry without its path, for a list whose entries share it, because a host decides how long the path is."""
    return {"name": os.fsdecode(entry.name), **_details(entry)}


def _details(entry: Entry) -> dict[str, Any]:
    return {
        "kind": entry.kind,
        "size": entry.size,
        "allocated": entry.allocated,
        "mode": f"{entry.mode:04o}",
        "uid": entry.uid,
        "gid": entry.gid,
        "mtime": format_time(moment) if (moment := moment_of(entry.mtime)) else None,
        "mtime_ns": entry.mtime,
        "inode": entry.inode,
        "links": entry.links,
        "target": os.fsdecode(entry.target) if entry.target is not None else None,
        "device": device_words(entry),
    }


def moment_of(nanoseconds: int) -> datetime | None:
    """Returns the time in whole seconds; None if it is outside the calendar, because a host's clock may show anything."""
    try:
        return datetime.fromtimestamp(nanoseconds // _SECOND, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def device_words(entry: Entry) -> str | None:
    """MAJOR:MINOR of a device node."""
    if not entry.kind.endswith("device"):
        return None
    return f"{os.major(entry.rdev)}:{os.minor(entry.rdev)}"


def mode_words(entry: Entry) -> str:
    """Formats the mode as `ls -l` does: -rw-r--r--, drwxrwxrwt."""
    return _LETTERS[entry.kind] + stat.filemode(entry.mode)[1:]


def time_words(nanoseconds: int) -> str:
    """Formats the time to the second."""
    moment = moment_of(nanoseconds)
    return local_time(moment) if moment else f"{nanoseconds // _SECOND} s"


def shown(path: bytes) -> str:
    """Returns a name or path that is safe to show: it stays in its line and contains no control codes.

    A backslash in the name is doubled if it could be read as one of our escapes. The commands accept the result as a path.
    """
    if b"\\" in path:
        path = _LIKE_AN_ESCAPE.sub(rb"\\\\", path)
    return printable(path)


def backup_object(backup: Restorable) -> dict[str, Any]:
    """Formats the name of a backup."""
    skipped = skipped_deletions_object(backup.record)
    named = {"name": backup.name, "state": backup.state, "started": format_time(backup.started)}
    remarks = left_out_object(backup.record) | consistency_object(backup.record)
    return named | ({"deletions_skipped": skipped} if skipped else {}) | remarks


def skipped_deletions_object(record: Record) -> list[dict[str, str]]:
    """Returns the source paths of a backup that may still contain files deleted on the host, and since when."""
    return [
        {"path": skipped_deletion.key.path, "since": format_time(skipped_deletion.since)}
        for skipped_deletion in record.skipped_deletions
    ]


def left_out_object(record: Record) -> dict[str, Any]:
    """Returns the folders whose content `one_file_system` excluded, and since when; {} if there are none."""
    left_out = [{"path": condition.key.name, "since": format_time(condition.since)} for condition in record.left_out]
    return {"left_out": left_out} if left_out else {}


def consistency_object(record: Record) -> dict[str, Any]:
    """Returns how the source paths were read, and the dumps of the host; {} if `snapshots` was off."""
    paths = [{"path": result.path, **result.consistency.as_json()} for result in record.paths if result.consistency]
    dumps = [dump.as_json() for dump in record.dumps]
    return ({"consistency": paths} if paths else {}) | ({"dumps": dumps} if dumps else {})


def history_object(host: str, history: "PathHistory") -> dict[str, Any]:
    """The history of a path."""
    return {
        "host": host,
        "path": os.fsdecode(history.path),
        "by_content": history.by_content,
        "versions": [{**_version_object(version), "entry": entry_object(version.entry)} for version in history.versions],
        "gone": [_absence_object(period) for period in history.gone],
        "backups": [
            {
                "name": backup.name,
                "started": format_time(backup.started),
                "state": backup.state,
                "found": backup.found,
                "version": backup.version,
            }
            for backup in history.backups
        ],
    }


def history_answer(host: str, history: "PathHistory") -> dict[str, Any]:
    """The history for an answer of the root service: the path is in it once, not in each version."""
    versions = [{**_version_object(version), "entry": named_entry_object(version.entry)} for version in history.versions]
    return {**history_object(host, replace(history, versions=())), "versions": versions}


def _version_object(version: "Version") -> dict[str, Any]:
    return {
        "first": version.first,
        "last": version.last,
        "first_seen": format_time(version.first_seen),
        "last_seen": format_time(version.last_seen),
        "backups": version.backups,
        "names": list(version.names),
        "states": list(version.states),
        "best": version.best,
        "changed": list(version.changed),
        "certain": version.certain,
        "vanished": format_time(version.vanished) if version.vanished else None,
        "same_content_as": version.same_content_as,
        "sha256": version.sha256,
    }


def _absence_object(period: "Absence") -> dict[str, Any]:
    return {
        "first": period.first,
        "last": period.last,
        "since": format_time(period.since),
        "until": format_time(period.until) if period.until else None,
        "backups": period.backups,
        "came_back": period.came_back,
        "doubtful": period.doubtful,
    }
