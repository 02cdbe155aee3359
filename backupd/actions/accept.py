"""Accepts a suspect backup as complete, or the changes of an altered one. Callers hold the host's lock."""

from datetime import datetime

from backupd.actions.naming import DayMeaning, require_readable, resolve_name
from backupd.repo.actions_log import UserAction
from backupd.repo.final_backups import own_final, records_newest_first
from backupd.repo.notes_json import ACCEPTED, BY, effective_state, read_notes, write_with_action
from backupd.repo.reconcile import follow_notes
from backupd.repo.seals import seal_backup, with_change_accepted
from btrkeep.backup_states import ALTERED, SUSPECT
from btrkeep.catalogue import Catalogue
from btrkeep.errors import StateConflict
from btrkeep.pool.marker import Pool
from btrkeep.pool.subvolume import set_read_only
from btrkeep.units import format_time


def accept(pool: Pool, catalogue: Catalogue, host: str, name: str, why: str, now: datetime, *, by: str) -> str:
    """Records that the backup is right and returns its name; `latest` is the newest suspect or altered one. `by`: for whom.

    Of an altered one the changes are accepted, and nothing else: one that is suspect as well stays suspect. It is sealed as it is
    now. Raises UsageError for an unknown name, StateConflict for a backup that is neither.
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
    if name in waiting:  # else a run of this command was killed before the row
        if states[name] == ALTERED:
            path = pool.host(host) / name
            final = own_final(path, host)
            if final and not final[0].read_only:
                set_read_only(path)
            if not final:
                raise StateConflict(f"{host} {name} was deleted or moved a moment ago", f"`backupd list {host}`")
            seal_backup(path, name)
            notes = with_change_accepted(notes, name, now, by)
        else:
            notes = notes.with_note(name, ACCEPTED, {"at": format_time(now), "why": why, BY: by})
        write_with_action(pool, notes, UserAction(now, "accept", by, host, name, why))
    follow_notes(pool, catalogue, host, [name])
    return name


def state_after(pool: Pool, host: str, name: str) -> str:
    """Returns the backup's state now: complete, or suspect if its changes alone were accepted. Raises UnreadableRecord."""
    final = own_final(pool.host(host) / name, host)
    return effective_state(final[1], read_notes(pool.host(host))) if final else ""
