"""Accepts a suspect backup as complete. Callers hold the host's lock."""

from datetime import datetime

from backupd.actions.naming import DayMeaning, resolve_name
from backupd.repo.actions_log import UserAction
from backupd.repo.final_backups import records_newest_first
from backupd.repo.notes_json import ACCEPTED, BY, effective_state, read_notes, write_with_action
from backupd.repo.reconcile import follow_notes
from btrkeep.backup_states import SUSPECT
from btrkeep.catalogue import Catalogue
from btrkeep.errors import StateConflict
from btrkeep.pool.marker import Pool
from btrkeep.units import format_time


def accept(pool: Pool, catalogue: Catalogue, host: str, name: str, why: str, now: datetime, *, by: str) -> str:
    """Records that the backup is right and returns its name; `latest` is the newest suspect one. `by`: for whom.

    Raises UsageError for an unknown name, StateConflict for a backup that is not suspect.
    """
    notes = read_notes(pool.host(host))
    found = {str(record.name): record for record in records_newest_first(pool, host, now)}
    suspect = [name for name, record in found.items() if effective_state(record, notes) == SUSPECT]
    name = resolve_name(host, name, list(found), lambda one: one in suspect, SUSPECT, day=DayMeaning.ONLY)
    if name not in suspect and not notes.accepted(name):
        raise StateConflict(
            f"{host} {name} is {effective_state(found[name], notes)}, not suspect", "only a suspect backup can be accepted"
        )
    if name in suspect:  # else a run of this command was killed before the row
        notes = notes.with_note(name, ACCEPTED, {"at": format_time(now), "why": why, BY: by})
        write_with_action(pool, notes, UserAction(now, "accept", by, host, name, why))
    follow_notes(pool, catalogue, host, [name])
    return name
