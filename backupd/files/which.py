"""Which backup somebody means: HOST is its newest complete one, HOST@NAME that one, HOST@2026-11-20 the newest of that day."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path

from backupd.notes import effective_state, read_notes
from backupd.reconcile import hosts_of, names_of
from backupd.record import COMPLETE, FINAL, Record
from backupd.working import ours
from btrkeep.errors import OperatorError, UsageError
from btrkeep.pool.marker import WORKING, Pool
from btrkeep.units import parse_backup_name

LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Restorable:
    """One backup that can be restored from: a final one, read-only and ours. `state` counts acceptance and expiry."""

    host: str
    name: str
    path: Path
    """Of its subvolume."""
    state: str
    """complete, suspect, failed or expired."""
    started: datetime
    record: Record


def parse_which(text: str) -> tuple[str, str]:
    """HOST and which of its backups: "web1@2026-11-20T220003Z" is (web1, that name), "web1" is (web1, "latest")."""
    host, _, which = text.partition("@")
    return host, which or LATEST


def restorable(pool: Pool, host: str) -> Iterator[Restorable]:
    """All of a host's backups that can be restored from, newest first. What cannot be read is passed over.

    Raises UsageError when the pool has no such host.
    """
    see_host(pool, host)
    notes = read_notes(pool.host(host))
    for name in sorted(names_of(pool, host) - {WORKING}, reverse=True):
        try:
            found = ours(pool.host(host) / name, host)
        except OperatorError:
            continue
        if found and found[0].read_only and found[1].state in FINAL:
            record = found[1]
            yield Restorable(host, name, pool.host(host) / name, effective_state(record, notes), record.started, record)


def find(pool: Pool, host: str, which: str = LATEST) -> Restorable:
    """The backup that is meant: "latest" (the newest complete one, without one the newest), a name, or the beginning of names, of
    which the newest complete one counts: a day, a month. Raises UsageError, which names the nearest.
    """
    found: list[Restorable] = []
    for one in restorable(pool, host):
        if which not in (LATEST, one.name) and not one.name.startswith(which):
            continue
        if one.state == COMPLETE or one.name == which:
            return one
        found.append(one)
    if found:
        return found[0]
    if which == LATEST:
        raise UsageError(f"{host} has no backup that can be restored from", f"`backupd list {host}` shows what there is")
    names = sorted(names_of(pool, host) - {WORKING})
    near = get_close_matches(which, names, 1, 0.3)
    raise UsageError(f"{host} has no backup {which}", f"the nearest is {near[0]}" if near else f"`backupd list {host}` shows them")


def see_host(pool: Pool, host: str) -> None:
    """Raises UsageError when the pool has no folder of such a host; the name may come from anywhere."""
    known = hosts_of(pool)
    if host not in known:
        near = get_close_matches(host, known, 1)
        raise UsageError(f"there is no host {host}", f"did you mean {near[0]}?" if near else "`backupd list` shows them")


def is_name(text: str) -> bool:
    """Whether a text is a backup's full name."""
    return parse_backup_name(text) is not None
