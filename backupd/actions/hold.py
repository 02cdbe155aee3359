"""Manual changes of the backups that are kept: sets and ends holds, keeps expired backups again, accepts suspect or altered ones.

Everything is stored in the host's notes.json, which is on disk before the catalogue's row changes; if a command is killed between
the two, running it again completes both. Callers hold the host's lock.

For a command that changes a backup, NAME is `latest`, a full name or the time in it, or a day, as for the commands that read
backups. A command that may lead to a deletion accepts a day only if it has one backup, and one that deletes accepts no day. A
shorter start of a name may be a mistake, so it is not accepted.
"""

import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from enum import Enum
from typing import Any

from backupd.repo.actions_log import UserAction
from backupd.repo.backup_json import Record
from backupd.repo.final_backups import LATEST, is_meant, name_meant, point_latest, read_final_if_ours, records_newest_first
from backupd.repo.notes_json import ACCEPTED, BY, HOLD, Notes, effective_state, hold_of, read_notes, write_with_action
from backupd.repo.reconcile import follow_notes, noted_row
from backupd.repo.seals import seal_backup, with_change_accepted
from btrkeep.backup_states import ALTERED, COMPLETE, DELETING, EXPIRED, FAILED, SUSPECT
from btrkeep.catalogue import Catalogue
from btrkeep.decisions.retention import Hold
from btrkeep.errors import StateConflict, UsageError, did_you_mean
from btrkeep.pool.marker import Pool
from btrkeep.pool.subvolume import set_read_only
from btrkeep.units import format_time, names_in_words

_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_SHOWN = 10


class DayMeaning(Enum):
    """The meaning of a day as a name: its newest backup that fits, its only backup, or nothing."""

    NEWEST = 1
    ONLY = 2
    NONE = 3


def resolve_name(
    host: str,
    name: str,
    names: Sequence[str],
    fits: Callable[[str], bool],
    kind: str,
    *,
    day: DayMeaning,
    others: Sequence[str] = (),
    zone: tzinfo = UTC,
) -> str:
    """Returns the full name.

    `names`: of the host's backups, the newest first. `fits`: True for a backup that the command can change, which `kind` describes:
    `latest` is the newest of those. `others`: names that the command recognises but must not change. `zone`: of days. Raises
    UsageError, which lists the names of a day that is refused.
    """
    if name == LATEST:
        newest = next((name for name in names if fits(name)), None)
        if newest is None:
            raise UsageError(f"{host} has no {kind} backup", f"`backupd list {host}` lists its backups")
        return newest
    name = name_meant(name)
    if name in names or name in others:
        return name
    matching = [candidate for candidate in (*names, *others) if _DAY.fullmatch(name) and is_meant(candidate, name, zone)]
    listed = names_in_words(matching, _SHOWN)
    if matching and day is DayMeaning.NONE:
        raise UsageError(f"{host} has no backup {name}", f"give the full name of a backup of that day: {listed}")
    if len(matching) > 1 and day is DayMeaning.ONLY:
        raise UsageError(f"{host} has {len(matching)} backups of {name}: {listed}", "give the full name of one of these backups")
    if not matching:
        raise no_backup(host, name, names)
    return next((full_name for full_name in matching if fits(full_name)), matching[0])


def require_readable(host: str, name: str, unread: Container[str]) -> None:
    """Raises StateConflict if the disk cannot read the backup, because then nothing proves which backup it is."""
    if name in unread:
        raise StateConflict(
            f"{host} {name} cannot be read: read error", f"`backupd damaged {host}` lists the damage; the backup is kept unchanged"
        )


def no_backup(host: str, name: str, names: Sequence[str]) -> UsageError:
    """Returns the error for a name that no backup of the host has."""
    return UsageError(f"{host} has no backup {name}", did_you_mean(name, names, f"`backupd list {host}` lists its backups"))


UNEXPIRED_FOR = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class HoldResult:
    """The new state of a backup."""

    name: str
    """The backup's name."""
    state: str
    """Its state now."""
    hold: Hold
    """The hold that was set, or that has ended."""
    unexpired: bool = False
    """True if it had expired before."""
    is_unreadable: bool = False
    """True if its folder cannot be read, so that only its notes were changed."""


def hold(pool: Pool, catalogue: Catalogue, host: str, name: str, new: Hold, now: datetime, *, by: str) -> HoldResult:
    """Holds a backup; replaces its present hold and removes its expiry mark. `latest` is the newest complete backup.

    `by`: the user. Raises UsageError for an unknown name, StateConflict if it is being deleted or its host is forgotten.
    """
    work = _HostNotes(pool, catalogue, host, now, by)
    chosen = work.choose(name, lambda record: effective_state(record, work.notes) == COMPLETE, "complete", day=DayMeaning.NEWEST)
    return _set(work, chosen, new, "hold")


def _set(work: "_HostNotes", name: str, new: Hold, action: str) -> HoldResult:
    _require_lasting(work, name)
    expired = work.is_expired(name)
    until = format_time(new.until) if new.until else None
    note = {"at": format_time(work.now), "until": until, "why": new.why, BY: work.by}
    state = work.write(work.notes.without(name, EXPIRED).with_note(name, HOLD, note), name, action, new.why)
    return HoldResult(name, state, new, expired, is_unreadable=name in work.unread)


def _require_lasting(work: "_HostNotes", name: str) -> None:
    if work.notes.forgotten:
        raise StateConflict(
            f"{work.host} is forgotten: all its backups are due for deletion", f"`backupd forget {work.host} --undo` undoes that"
        )
    if work.row(name) == DELETING:
        raise StateConflict(f"{work.host} {name} is being deleted", "its remaining files can no longer be kept")


def release(pool: Pool, catalogue: Catalogue, host: str, name: str, now: datetime, *, by: str) -> HoldResult:
    """Ends a backup's hold. `latest` is the newest held backup. Raises UsageError, or StateConflict when it is not held."""
    work = _HostNotes(pool, catalogue, host, now, by)
    chosen = work.choose(name, lambda record: hold_of(work.notes, str(record.name)) is not None, "held", day=DayMeaning.ONLY)
    ended = hold_of(work.notes, chosen)
    if ended is None and not work.row_held(chosen):
        raise StateConflict(f"{host} {chosen} is not held", f"`backupd list {host}` shows the held backups")
    state = work.write(work.notes.without(chosen, HOLD), chosen, "release", ended.why if ended else "")
    return HoldResult(chosen, state, ended or Hold(), is_unreadable=chosen in work.unread)


def unexpire(pool: Pool, catalogue: Catalogue, host: str, name: str, why: str, now: datetime, *, by: str) -> HoldResult:
    """Removes the expiry mark of a backup and holds it for 30 days. `latest` is the newest expired backup.

    Raises UsageError, or StateConflict if it has not expired or is being deleted already.
    """
    work = _HostNotes(pool, catalogue, host, now, by)
    chosen = work.choose(
        name, lambda record: work.notes.note(str(record.name), EXPIRED) is not None, EXPIRED, day=DayMeaning.NEWEST
    )
    _require_lasting(work, chosen)
    if not work.is_expired(chosen):
        raise StateConflict(f"{host} {chosen} has not expired", f"`backupd hold {host} {chosen}` keeps it from expiring")
    return _set(work, chosen, Hold(now + UNEXPIRED_FOR, why), "unexpire")


class _HostNotes:
    """The host to change: its notes, its backups, its rows."""

    def __init__(self, pool: Pool, catalogue: Catalogue, host: str, now: datetime, by: str) -> None:
        self.pool, self.catalogue, self.host, self.now, self.by = pool, catalogue, host, now, by
        self.notes = read_notes(pool.host(host))
        self.rows = {row.name: row for row in catalogue.backups(host)}
        self.unread = list[str]()

    def choose(self, name: str, fits: Callable[[Record], bool], kind: str, *, day: DayMeaning) -> str:
        """Returns the name of the backup. An unreadable backup has notes too, but must be named in full."""
        records = {str(record.name): record for record in records_newest_first(self.pool, self.host, self.now, self.unread)}
        zone, names = self.pool.zone, list(records)
        return resolve_name(self.host, name, names, lambda own: fits(records[own]), kind, day=day, others=self.unread, zone=zone)

    def row(self, name: str) -> str | None:
        """The state in the catalogue."""
        return self.rows[name].state if name in self.rows else None

    def row_held(self, name: str) -> bool:
        return name in self.rows and self.rows[name].held_why is not None

    def is_expired(self, name: str) -> bool:
        """Checks both the notes and the catalogue, because an earlier command may have been killed between writing them."""
        return self.notes.note(name, EXPIRED) is not None or self.row(name) == EXPIRED

    def write(self, notes: Notes, name: str, action: str, why: str) -> str:
        """Writes the notes, then the row. Returns the backup's state."""
        write_with_action(self.pool, notes, UserAction(self.now, action, self.by, self.host, name, why))
        row = noted_row(self.pool, self.catalogue, self.host, name, notes)
        if row:
            self.catalogue.put_backup(row)
        point_latest(self.pool, self.host)
        return row.state if row else FAILED  # the record cannot be read, and the catalogue was lost


def holds(notes: Notes, now: datetime) -> Iterator[tuple[str, Hold]]:
    """The backups that are held now, with their holds, oldest first."""
    for name in sorted(notes.backups):
        found_hold = hold_of(notes, name)
        if found_hold and found_hold.is_in_force(now):
            yield name, found_hold


def hold_fields(hold: Hold | None) -> Mapping[str, Any] | None:
    """Returns a hold as JSON."""
    return {"until": format_time(hold.until) if hold.until else None, "why": hold.why} if hold else None


def accept(pool: Pool, catalogue: Catalogue, host: str, name: str, why: str, now: datetime, *, by: str) -> str:
    """Records that the backup is right and returns its name; `latest` is the newest suspect or altered backup. `by`: the user.

    Of an altered backup only the changes are accepted: if it is suspect too, it stays suspect. Its present state is sealed. Raises
    UsageError for an unknown name, StateConflict for a backup that is neither suspect nor altered.
    """
    notes = read_notes(pool.host(host))
    unread = list[str]()
    records = {str(record.name): record for record in records_newest_first(pool, host, now, unread)}
    states = {own: effective_state(record, notes) for own, record in records.items()}
    waiting = [own for own, state in states.items() if state in (SUSPECT, ALTERED)]
    kind, day = "suspect or altered", DayMeaning.ONLY
    name = resolve_name(host, name, list(records), waiting.__contains__, kind, day=day, others=unread, zone=pool.zone)
    require_readable(host, name, unread)
    if name not in waiting and not notes.accepted(name) and notes.is_original(name):
        raise StateConflict(f"{host} {name} is {states[name]}, not suspect", "only a suspect or altered backup can be accepted")
    if name in waiting:  # if not, an earlier `accept` was killed before it wrote the row
        if states[name] == ALTERED:
            path = pool.host(host) / name
            final = read_final_if_ours(path, host)
            if final and not final[0].read_only:
                set_read_only(path)
            if not final:
                raise StateConflict(f"{host} {name} was deleted or moved a moment ago", f"`backupd list {host}` lists its backups")
            seal_backup(path, name)
            notes = with_change_accepted(notes, name, now, by)
        else:
            notes = notes.with_note(name, ACCEPTED, {"at": format_time(now), "why": why, BY: by})
        write_with_action(pool, notes, UserAction(now, "accept", by, host, name, why))
    follow_notes(pool, catalogue, host, [name])
    return name


def state_after(pool: Pool, host: str, name: str) -> str:
    """Returns the backup's new state: complete, or suspect if only its changes were accepted. Raises UnreadableRecord."""
    final = read_final_if_ours(pool.host(host) / name, host)
    return effective_state(final[1], read_notes(pool.host(host))) if final else ""
