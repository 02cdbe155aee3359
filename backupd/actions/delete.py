"""Deletes backups by name. They are checked under their host's lock, and the request is written to the host's notes.

This makes them expire, with the operator's reason: until their grace ends they can be restored, and kept again with `backupd
unexpire`; then `backupd expire` deletes them (expire/expiry_runner.py), at once if that was requested.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from backupd.actions.hold import DayMeaning, resolve_name
from backupd.expire.expiry_context import ExpiryContext
from backupd.expire.host_backups import HostOnPool, candidate_of, read_host_from_pool
from backupd.expire.mark import write_many
from backupd.expire.trust import judge_clock, read_clocks
from backupd.repo.actions_log import UserAction, record_action
from backupd.repo.backup_json import Record
from backupd.repo.final_backups import is_lost, newest_complete, point_latest, sealed_without_record
from backupd.repo.notes_json import ASKED, BY, HOLD, Notes
from backupd.repo.read_lock import lock_for_deletion
from backupd.repo.reconcile import follow_notes
from btrkeep.backup_states import COMPLETE, EXPIRED, FAILED
from btrkeep.decisions.due import latest
from btrkeep.decisions.retention import Candidate, DeletionRequest
from btrkeep.decisions.safety_limits import Forced
from btrkeep.errors import OperatorError, StateConflict
from btrkeep.units import format_time, parse_backup_name


@dataclass(frozen=True, slots=True)
class BackupToDelete:
    """A backup to be deleted."""

    name: str
    """The backup's name."""
    why: str
    """The reason, as the operator wrote it."""
    marked: datetime
    """When it was marked for deletion."""
    expires: datetime
    """When it may be deleted."""
    had_expired: bool
    """True if it had expired before this request."""
    is_unreadable: bool = False
    """True if some of it cannot be read, so that it stays on the disk."""


@dataclass(frozen=True, slots=True)
class DeletionChoice:
    """The backups of a host to be deleted."""

    host: str
    """The host's name."""
    backups: tuple[BackupToDelete, ...]
    """The backups to be deleted."""
    base: str | None
    """The complete backup that the next one will be based on; None if none is left."""
    moves: bool
    """True if this base differs from the present one."""
    notes: Notes
    """The host's notes."""


def require_sane_clock(context: ExpiryContext, asked: DeletionRequest) -> None:
    """Raises OperatorError if the clock is behind: a grace period that started years ago would end as soon as the clock is right.
    If it is ahead, `clock_waits` of the context is set; then no hold ends.
    """
    verdict, _ = judge_clock(context.catalogue, read_clocks(context.now), Forced(), rehearsal=context.pool.rehearsal)
    context.clock_waits = verdict.wait is not None
    if verdict.stop and not asked.at_once:
        raise OperatorError(
            "the clock went back, so the end of the grace cannot be determined now",
            "`backupd expire --dry-run` shows the difference; --now-without-grace deletes without a grace",
        )


def choose(context: ExpiryContext, host: str, wanted: Sequence[str], asked: DeletionRequest) -> DeletionChoice:
    """Resolves full names or `latest`. Changes nothing; call it under the host's lock.

    Raises UsageError for an unknown name, StateConflict for a backup that must stay, UnreadableRecord if it cannot be determined.
    """
    rows = {backup.name: backup.state for backup in context.catalogue.backups(host) if backup.name}
    seen = read_host_from_pool(context.pool, context.config, host, rows)
    if seen.facts.forgotten:
        raise StateConflict(
            f"{host} is forgotten: all its backups are due for deletion",
            f"`backupd expire {host} --skip-grace` deletes them at once",
        )
    candidates = {candidate.name: candidate for candidate in seen.facts.candidates}
    names = dict.fromkeys(_name(context, host, name, candidates, seen.unreadable) for name in wanted)
    candidates |= {name: _without_record(context, host, name, seen) for name in names if name in seen.unreadable}
    lost = {name for name in names if name in seen.unreadable and is_lost(context.pool.host(host) / name)}
    if lost and asked.at_once:
        raise StateConflict(
            f"{host} {min(lost)} cannot be deleted: the kernel would make the pool read-only, because its metadata cannot be read",
            f"`backupd delete {host}@{min(lost)}` without --now-without-grace abandons it: then no other pool fetches it",
        )
    for name in names:
        _require_deletable(context, host, candidates[name], asked)
    before, base = _base(candidates.values(), (), context.now), _base(candidates.values(), names, context.now)
    is_last = base is None or candidates[base].started > latest(context.now)
    if is_last and not asked.last and any(candidates[name].state == COMPLETE or name in seen.unreadable for name in names):
        raise StateConflict(f"no complete backup of {host} would be left", "--force deletes the last complete backup too")
    grace = timedelta(0) if asked.at_once else timedelta(seconds=seen.facts.policy.grace)
    backups = tuple(_to_delete(candidates[name], asked, grace, context.now, is_unreadable=name in lost) for name in names)
    return DeletionChoice(host, backups, base, base != before, _notes_with_marks(seen, backups, asked, context.now))


def _name(context: ExpiryContext, host: str, name: str, candidates: Mapping[str, object], unreadable: Mapping[str, str]) -> str:
    newest = newest_complete(context.pool, host)
    names = sorted(candidates, reverse=True)
    zone, others = context.pool.zone, sorted(unreadable)
    return resolve_name(
        host, name, names, lambda each_name: each_name == newest, COMPLETE, day=DayMeaning.NONE, others=others, zone=zone
    )


def _without_record(context: ExpiryContext, host: str, name: str, seen: HostOnPool) -> Candidate:
    """Returns a backup that cannot be read, in part or completely; its location and its seal prove that btrkeep made it.

    Raises StateConflict if nothing proves that.
    """
    path = context.pool.host(host) / name
    if backup := sealed_without_record(path, host):
        return candidate_of(backup.record, seen.notes, seen.base)
    if is_lost(path):  # only a note is written, because the subvolume cannot be deleted
        record = Record(host, "", FAILED, parse_backup_name(name) or context.now, name)
        return candidate_of(record, seen.notes, seen.base)
    raise StateConflict(
        f"{host} {name} is not deleted: {seen.unreadable[name]}", "btrkeep only deletes backups whose backup.json it can read"
    )


def _require_deletable(context: ExpiryContext, host: str, candidate: Candidate, asked: DeletionRequest) -> None:
    if candidate.hold and (context.clock_waits or candidate.hold.is_in_force(context.now)):
        raise StateConflict(f"{host} {candidate.name} is held", f"`backupd release {host} {candidate.name}` ends the hold")
    if candidate.in_use:
        raise StateConflict(
            f"{host} {candidate.name} is the base of an unfinished backup of the host",
            f"the next run continues that backup; `backupd discard {host}` deletes it",
        )
    if asked.at_once:
        with lock_for_deletion(context.pool.host(host) / candidate.name) as has_no_reader:
            if not has_no_reader:
                raise StateConflict(
                    f"{host} {candidate.name} is being restored from",
                    "wait until the restore ends, or leave --now-without-grace out",
                )


def _base(backups: Iterable[Candidate], without: Container[str], now: datetime) -> str | None:
    """Returns the newest complete backup without these; one with a time in the future only if there is no other."""
    complete = [backup for backup in backups if backup.state == COMPLETE and not backup.expired and backup.name not in without]
    return (
        max(complete, key=lambda candidate: (candidate.started <= latest(now), candidate.started, candidate.name)).name
        if complete
        else None
    )


def _to_delete(
    candidate: Candidate, asked: DeletionRequest, grace: timedelta, now: datetime, *, is_unreadable: bool
) -> BackupToDelete:
    """Keeps the mark of a backup that had expired before, and its reason unless there is a new one."""
    before = candidate.marked(now)
    marked = before or now
    why = asked.why or (candidate.asked.why if candidate.asked else "")
    return BackupToDelete(candidate.name, why, marked, marked + grace, before is not None, is_unreadable)


def _notes_with_marks(seen: HostOnPool, backups: Iterable[BackupToDelete], asked: DeletionRequest, now: datetime) -> Notes:
    notes = seen.notes
    for backup in backups:
        note = {
            "at": format_time(backup.marked),
            "why": backup.why,
            ASKED: {"last": asked.last, "at_once": asked.at_once},
            BY: asked.by,
        }
        notes = notes.without(backup.name, HOLD).with_note(backup.name, EXPIRED, note)
        notes = notes.with_action(_action(seen.facts.host, backup, asked, now))
    return notes


def _action(host: str, backup: BackupToDelete, asked: DeletionRequest, now: datetime) -> UserAction:
    return UserAction(now, "delete --now-without-grace" if asked.at_once else "delete", asked.by, host, backup.name, backup.why)


def mark(context: ExpiryContext, chosen: Sequence[DeletionChoice], asked: DeletionRequest) -> None:
    """Records the deletion for all hosts, which are locked: first in the notes, synced to disk, then in the rows. Raises OSError,
    PoolUnusable.
    """
    write_many(context.pool.path, {context.pool.host(deletion_choice.host): deletion_choice.notes for deletion_choice in chosen})
    for deletion_choice in chosen:
        for backup in deletion_choice.backups:
            if why := record_action(context.pool, _action(deletion_choice.host, backup, asked, context.now)):
                context.sinks.notice(f"the action could not be recorded in the pool: {why}")
        _write_rows(context, deletion_choice)
        point_latest(context.pool, deletion_choice.host)


def _write_rows(context: ExpiryContext, choice: DeletionChoice) -> None:
    names = [backup.name for backup in choice.backups]
    context.rows.write(lambda catalogue: follow_notes(context.pool, catalogue, choice.host, names))
