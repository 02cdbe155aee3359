"""Accepts a suspect backup as complete. Callers hold the host's lock."""

from datetime import datetime

from backupd.repo.final_backups import LATEST, records_newest_first
from backupd.repo.notes_json import effective_state, read_notes, write_notes
from backupd.repo.reconcile import follow_notes
from btrkeep.backup_states import SUSPECT
from btrkeep.catalogue import Catalogue
from btrkeep.errors import StateConflict, UsageError
from btrkeep.pool.marker import Pool
from btrkeep.units import format_time


def accept(pool: Pool, catalogue: Catalogue, host: str, name: str, why: str, now: datetime) -> str:
    """Records that the backup is right and returns its name; `latest` is the newest suspect one.

    Raises UsageError for an unknown name, StateConflict for a backup that is not suspect.
    """
    folder = pool.host(host)
    notes = read_notes(folder)
    found = {record.name: record for record in records_newest_first(pool, host, now)}
    suspect = [record.name for record in found.values() if effective_state(record, notes) == SUSPECT]
    if name == LATEST and suspect:
        name = str(suspect[0])
    if name not in found:
        raise UsageError(f"{host} has no backup {name}", f"`backupd list {host}` shows them")
    if name not in suspect and not notes.accepted(name):
        raise StateConflict(
            f"{host} {name} is {effective_state(found[name], notes)}, not suspect", "only a suspect backup can be accepted"
        )
    if name in suspect:  # else a run of this command was killed before the row
        write_notes(folder, notes.with_note(name, "accepted", {"at": format_time(now), "why": why}))
    follow_notes(pool, catalogue, host, [name])
    return name
