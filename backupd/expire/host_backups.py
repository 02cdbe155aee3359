"""Reads the backups of hosts: for the plan from the catalogue and the names in the pool, and before acting from the backups
themselves.

If the two differ, the pool is right. A host whose notes cannot be read is skipped, because they may hold all its backups.
"""

import os
import stat
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from backupd.repo.backup_json import Record, UnreadableRecord
from backupd.repo.catalogue_row import NO_NOTES
from backupd.repo.common_backups import common_backups
from backupd.repo.final_backups import FinalBackup, read_final_if_ours, read_if_ours, sealed_without_record
from backupd.repo.notes_json import ASKED, BY, HOLD, Notes, accepted_state, hold_of, read_notes
from backupd.repo.pool_files import hosts_of
from backupd.repo.seals import Seals, SealState, check_seal, read_seals
from btrkeep.backup_states import ALTERED, COMPLETE, EXPIRED, FINISHED, SUSPECT
from btrkeep.catalogue import BackupState, Catalogue
from btrkeep.config import Config, Retention
from btrkeep.decisions.expiry_plan import HostBackups, UnreadableHost
from btrkeep.decisions.retention import Candidate, DeletionRequest
from btrkeep.errors import DAMAGED, is_caused_by_damage, is_damage
from btrkeep.fs.openat import is_there
from btrkeep.pool.marker import WORKING, Pool
from btrkeep.pool.subvolume import Subvolume, describe
from btrkeep.units import parse_backup_name, parse_time


def policy_of(config: Config, host: str, notes: Notes) -> Retention:
    """Returns the host's policy; if it is not configured, one without rules, which keeps everything, with the pool's grace.

    A host that is fetched from another pool has the policy of the replica.
    """
    configured = config.replicas.get(str(notes.replica.get("name"))) if notes.replica else config.hosts.get(host)
    return configured.retention if configured else Retention(grace=config.retention.grace)


def read_hosts(pool: Pool, catalogue: Catalogue, config: Config, hosts: Container[str] | None = None) -> Iterator[HostBackups]:
    """Yields every host of the pool, or these, by name. If the row of a backup is sufficient, only the backup's name is read."""
    common = common_backups(pool, with_initial_copies=True)
    rows: dict[str, dict[str, BackupState]] = {}
    for row in catalogue.states():
        rows.setdefault(row.host, {})[row.name or WORKING] = row
    for host in hosts_of(pool):
        if hosts is not None and host not in hosts:
            continue
        yield _facts(pool, config, host, rows.get(host, {}), common.get(host, {}))


def is_fetched(config: Config, notes: Notes) -> bool:
    """Returns whether a configured replica fetches the host from another pool."""
    return notes.replica is not None and notes.replica.get("name") in config.replicas


def _facts(
    pool: Pool, config: Config, host: str, rows: Mapping[str, BackupState], common: Mapping[str, tuple[str, ...]]
) -> HostBackups:
    folder = pool.host(host)
    policy, configured = policy_of(config, host, NO_NOTES), host in config.every_host
    if host in config.excluded:
        problem = UnreadableHost(f"its configuration is wrong: {config.excluded[host].fault}")
        return HostBackups(host, (), policy, configured=configured, problem=problem)
    try:
        notes = read_notes(folder)
        policy, configured = policy_of(config, host, notes), configured or is_fetched(config, notes)
        base = _base_in_use(rows)
        unread = list[str]()
        candidates = [
            candidate
            for name in _names(folder, rows)
            if (candidate := _from_row(rows.get(name), notes, base) or _from_pool(folder, name, notes, base, unread))
        ]
        candidates = _with_common(candidates, common)
    except UnreadableRecord as error:
        return HostBackups(host, (), policy, configured=configured, problem=UnreadableHost(error.message))
    except OSError as error:
        problem = UnreadableHost(f"{folder} cannot be read: {error.strerror}")
        return HostBackups(host, (), policy, configured=configured, problem=problem)
    states = {name: row.state for name, row in rows.items()}
    stale = bool(notes.backups) and bool(gone_names(folder, notes))
    return HostBackups(host, candidates, policy, states, forgotten_at(notes), configured, stale=stale, unread=tuple(sorted(unread)))


def _names(folder: Path, rows: Mapping[str, object]) -> list[str]:
    """Returns the names that may be backups. Those with a row are not parsed, which saves a tenth of the time of a large plan."""
    names = (entry.name for entry in os.scandir(folder))
    return [name for name in names if name != WORKING and (name in rows or parse_backup_name(name))]


def forgotten_at(notes: Notes) -> datetime | None:
    """Returns when the host was forgotten, None if it was not. Raises UnreadableRecord if the note has no time."""
    try:
        return parse_time(notes.forgotten["at"]) if notes.forgotten else None
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableRecord(f"notes.json: the time of forgetting is invalid: {error!r}", "correct the file") from None


def _base_in_use(rows: Mapping[str, BackupState]) -> str | None:
    working = rows.get(WORKING)
    return working.base if working else None


def _from_row(row: BackupState | None, notes: Notes, base: str | None) -> Candidate | None:
    """Returns the candidate according to its row; None if there is no row, or if it lacks the state of the backup."""
    if row is None or row.name is None:
        return None
    state = row.outcome or row.state
    if state not in FINISHED:
        return None
    if not notes.backups:  # most hosts have none, and there are many
        return Candidate(row.name, row.started, state, None, None, row.name == base)
    if notes.is_altered(row.name):
        state = ALTERED
    elif state == SUSPECT and notes.accepted(row.name):
        state = COMPLETE
    name = row.name
    return Candidate(name, row.started, state, notes.expired_at(name), hold_of(notes, name), name == base, asked_of(notes, name))


def _from_pool(folder: Path, name: str, notes: Notes, base: str | None, unread: list[str]) -> Candidate | None:
    """Returns the candidate according to its own record; None if btrkeep did not make it, it is not final, or cannot be read. Adds
    the name to `unread` if the disk cannot read the backup.
    """
    try:
        if final_backup := read_final_if_ours(folder / name, folder.name):
            return candidate_of(final_backup[1], notes, base)
    except (UnreadableRecord, OSError) as error:
        if not isinstance(error, UnreadableRecord) and not is_damage(error):
            raise
        if is_caused_by_damage(error):
            if backup := _to_be_deleted(folder / name, notes):
                return candidate_of(backup.record, notes, base)
            unread.append(name)
    return None


def _to_be_deleted(path: Path, notes: Notes) -> FinalBackup | None:
    """Returns a backup made by btrkeep that an administrator asked to delete and whose record cannot be read; otherwise None."""
    return sealed_without_record(path, path.parent.name) if asked_of(notes, path.name) else None


def candidate_of(record: Record, notes: Notes, base: str | None) -> Candidate:
    """Returns the facts about a final backup that retention needs. `base`: of the host's unfinished backup."""
    name = record.name
    assert name is not None
    state = accepted_state(record, notes)
    expired, hold = notes.expired_at(name), hold_of(notes, name)
    return Candidate(name, record.started, state, expired, hold, name == base, asked_of(notes, name))


def asked_of(notes: Notes, name: str) -> DeletionRequest | None:
    """Returns the request of `backupd delete`, None for all other backups."""
    note = notes.note(name, EXPIRED) or {}
    asked = note.get(ASKED)
    if not isinstance(asked, Mapping):
        return None
    last, at_once = asked.get("last") is True, asked.get("at_once") is True
    return DeletionRequest(str(note.get("why") or ""), last, at_once, str(note.get(BY) or ""))


@dataclass(frozen=True, slots=True)
class HostOnPool:
    """A host in the pool, read under its lock."""

    facts: HostBackups
    """The facts on which its plan depends."""
    notes: Notes
    """Its notes."""
    backups: Mapping[str, FinalBackup] = field(default_factory=dict)
    """All its final backups that btrkeep made, by name."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """The reason why a backup cannot be read, by name."""
    base: str | None = None
    """The base of its unfinished backup; None if there is none."""


def _with_common(candidates: Sequence[Candidate], common: Mapping[str, tuple[str, ...]]) -> list[Candidate]:
    """Returns the candidates, each with the replicas with which it is common."""
    return [
        replace(candidate, common=", ".join(common[candidate.name])) if candidate.name in common else candidate
        for candidate in candidates
    ]


def read_host_from_pool(pool: Pool, config: Config, host: str, rows: Mapping[str, str]) -> HostOnPool:
    """Reads the host only from the pool: notes, names, and every backup's own record. Call it under the host's lock.

    Raises UnreadableRecord if its notes cannot be read, OSError if the folder no longer exists.
    """
    folder = pool.host(host)
    if not stat.S_ISDIR(folder.lstat().st_mode):
        raise NotADirectoryError(20, "it is no longer a folder", str(folder))
    notes = read_notes(folder)
    base = _base_of_working(folder, host)
    candidates, backups, unreadable, seals = [], {}, {}, read_seals(folder)
    for name in _names(folder, {}):
        try:
            final = read_final_if_ours(folder / name, host)
        except UnreadableRecord as error:
            backup = _to_be_deleted(folder / name, notes) if is_caused_by_damage(error) else None
            if backup is None:
                unreadable[name] = error.message
                continue
            final = backup.subvolume, backup.record
        except OSError as error:
            if error.errno not in DAMAGED:
                raise
            unreadable[name] = f"it cannot be read from the disk ({error.strerror})"
            continue
        if final:
            backups[name] = FinalBackup(folder / name, *final)
            candidates.append(_with_seal(candidate_of(final[1], notes, base), backups[name], seals))
    candidates = _with_common(candidates, common_backups(pool, with_initial_copies=True).get(host, {}))
    facts = HostBackups(host, candidates, policy_of(config, host, notes), rows, forgotten_at(notes))
    return HostOnPool(facts, notes, backups, unreadable, base)


def _with_seal(candidate: Candidate, backup: FinalBackup, seals: Seals) -> Candidate:
    """Returns the candidate as altered if it was changed, or if that cannot be determined: other backups may be deleted because of
    it.
    """
    try:
        is_altered = check_seal(backup.path, backup.subvolume, seals, candidate.name).state is SealState.ALTERED
    except OSError as error:
        if not is_damage(error):
            raise
        is_altered = True
    return replace(candidate, state=ALTERED) if is_altered else candidate


def _base_of_working(folder: Path, host: str) -> str | None:
    with suppress(UnreadableRecord):  # the next run discards it
        working = read_if_ours(folder / WORKING, host)
        return working[1].base if working else None
    return None


def is_still(path: Path, subvolume: Subvolume) -> bool:
    """Returns whether `path` is still exactly that subvolume, and read-only."""
    current = describe(path)
    return (
        current is not None
        and current.read_only == subvolume.read_only
        and (current.id, current.uuid) == (subvolume.id, subvolume.uuid)
    )


def gone_names(folder: Path, notes: Notes) -> list[str]:
    """Returns the backups that are expired in the notes but no longer exist: an expiry deleted them, and only the note is left. A
    missing held backup was moved away by an operator, who may bring it back.
    """
    return [name for name, note in notes.backups.items() if EXPIRED in note and HOLD not in note and not is_there(folder / name)]
