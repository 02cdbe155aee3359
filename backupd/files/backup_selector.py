"""Selects the backup that an argument names: HOST is its newest complete backup, HOST@NAME the backup of that name, HOST@2026-11-20
the newest complete backup of that day. HOST@latest is the newest complete backup too, but never an incomplete one, like the symlink
`latest` in its folder. A day is a day of the pool's zone.
"""

import fnmatch
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from backupd.repo.backup_json import Record, UnreadableRecord
from backupd.repo.final_backups import LATEST, is_meant, name_meant, read_final_if_ours
from backupd.repo.notes_json import Notes, effective_state, read_notes
from backupd.repo.pool_files import hosts_of, is_pattern, names_of
from btrkeep.backup_states import COMPLETE
from btrkeep.decisions.due import latest
from btrkeep.errors import OperatorError, UsageError, did_you_mean, quoted
from btrkeep.pool.marker import WORKING, Pool
from btrkeep.units import local_time

NEWEST = ""
"""The newest complete backup; if there is none, the newest of all."""


@dataclass(frozen=True, slots=True)
class Restorable:
    """A backup that can be restored: made by btrkeep, final and read-only. `state` takes acceptance and expiry into account."""

    host: str
    """The host's name."""
    name: str
    """The backup's name."""
    path: Path
    """The path of its subvolume."""
    state: str
    """complete, suspect, failed or expired."""
    started: datetime
    """When its run started."""
    record: Record
    """Its backup.json."""


def parse_which(text: str) -> tuple[str, str]:
    """HOST and the selected backup: "web1@2026-11-20T220003Z" is (web1, that name), "web1" is (web1, NEWEST)."""
    host, _, which = text.partition("@")
    return host, which


def restorable(pool: Pool, host: str, beginning: str = "") -> Iterator[Restorable]:
    """Yields all backups of a host that can be restored from and whose names have this prefix, newest first. Skips unreadable ones.

    Raises UsageError if the pool does not have the host.
    """
    require_host(pool, host)
    notes = _notes(pool, host)
    for name in sorted(names_of(pool, host) - {WORKING}, reverse=True):
        if not is_meant(name, beginning, pool.zone):
            continue
        try:
            final_backup = read_final_if_ours(pool.host(host) / name, host)
        except (OperatorError, OSError):  # the record is damaged, or the backup was just deleted
            continue
        if final_backup:
            record = final_backup[1]
            yield Restorable(host, name, pool.host(host) / name, effective_state(record, notes), record.started, record)


def named(pool: Pool, which: Iterable[str]) -> list[Restorable]:
    """Returns the named backups, each once: all of each HOST, newest first, and each HOST@BACKUP. Raises UsageError.

    HOST may be a pattern, such as web*.
    """
    chosen: dict[tuple[str, str], Restorable] = {}
    for host, name in expand_which(pool, which):
        for backup in [find(pool, host, name)] if name else restorable(pool, host):
            chosen[backup.host, backup.name] = backup
    return list(chosen.values())


def expand_which(pool: Pool, which: Iterable[str]) -> list[tuple[str, str]]:
    """Parses each HOST[@BACKUP], where HOST may be a pattern of the pool's hosts. For commands that delete nothing.

    Raises UsageError for a pattern that matches no host.
    """
    pairs: list[tuple[str, str]] = []
    for text in which:
        pattern, name = parse_which(text)
        hosts = fnmatch.filter(hosts_of(pool), pattern) if is_pattern(pattern) else [pattern]
        if not hosts:
            raise UsageError(f"no host matches {pattern}", "`backupd list` shows the hosts")
        pairs += [(host, name) for host in hosts]
    return pairs


def _notes(pool: Pool, host: str) -> Notes:
    """Returns empty notes if they are damaged: files must stay readable, and this leads to no deletion."""
    try:
        return read_notes(pool.host(host))
    except UnreadableRecord:
        return Notes()


def find(pool: Pool, host: str, which: str = NEWEST, at: datetime | None = None) -> Restorable:
    """Returns the selected backup: NEWEST, LATEST (the newest complete one), a name or its time, or the beginning of a name, such
    as a day or a month, for the newest complete backup that matches.

    With `at` only backups that had started by then count. A backup with a time in the future comes after every other complete one.
    (A rehearsal's clock is `at`, or it has none.) Raises UsageError, which names the nearest.
    """
    which = name_meant(which)
    beginning = "" if which == LATEST else which  # all names start like NEWEST
    backups = (backup for backup in restorable(pool, host, beginning) if at is None or backup.started <= at)
    end = at or (None if pool.rehearsal else latest(datetime.now(UTC)))
    if backup := _best(backups, which, end):
        return backup
    names = sorted(names_of(pool, host) - {WORKING})
    if not names:
        raise UsageError(f"{host} has no backup that can be restored from", f"`backupd list {host}` shows its backups")
    if which == LATEST:
        raise UsageError(f"{host} has no complete backup", f"`backupd list {host}` shows its backups; name one of them")
    if at:
        raise UsageError(f"{host} has no backup that started before {local_time(at)}", f"the oldest is {names[0]}")
    if which == NEWEST or which in names:
        description = "that can be restored from" if which == NEWEST else f"{which} that can be restored from"
        raise UsageError(f"{host} has no backup {description}", f"`backupd check` and `backupd list {host}` may show why")
    from difflib import get_close_matches  # rarely needed

    near = get_close_matches(which, names, 1, 0.3)
    raise UsageError(f"{host} has no backup {which}", f"the nearest is {near[0]}" if near else f"`backupd list {host}` shows them")


def _best(backups: Iterable[Restorable], which: str, end: datetime | None) -> Restorable | None:
    """Returns the named backup; otherwise the first complete one, with a start after `end` only if there is no other; otherwise the
    first of all, except for LATEST.
    """
    ahead = other = None
    for backup in backups:
        is_ahead = end is not None and backup.started > end
        if backup.name == which or (backup.state == COMPLETE and not is_ahead):
            return backup
        if backup.state == COMPLETE:
            ahead = ahead or backup
        elif not is_ahead or other is None:
            other = backup if other is None or (end is not None and other.started > end) else other
    return ahead or (None if which == LATEST else other)


class NoHost(UsageError):
    """The pool does not have the host; the hint may name another."""


def require_host(pool: Pool, host: str) -> None:
    """Raises NoHost if the pool has no folder of the host; the name may come from anywhere."""
    if _has_folder(pool, host):
        return
    raise NoHost(f"there is no host {quoted(host)}", did_you_mean(host, hosts_of(pool), "`backupd list` shows them"))


def _has_folder(pool: Pool, host: str) -> bool:
    """Checks only this folder, because there may be thousands beside it."""
    if host in ("", ".", "..") or "/" in host or "\0" in host:
        return False
    try:
        return stat.S_ISDIR(os.lstat(pool.host(host)).st_mode)
    except OSError:
        return False
