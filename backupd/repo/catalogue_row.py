"""Makes a row of the catalogue from a backup's record."""

from dataclasses import fields, replace
from typing import Any

from backupd.repo.backup_json import Record
from backupd.repo.notes_json import HOLD, Notes, accepted_state, hold_of
from btrkeep.backup_states import ALTERED, EXPIRED, FINAL, GOING, RUNNING, SUSPECT
from btrkeep.catalogue import Backup, StateFromNotes
from btrkeep.decisions.retention import Hold
from btrkeep.pool.marker import Pool
from btrkeep.units import LARGEST_NUMBER

_COLUMNS = tuple(field.name for field in fields(Backup) if hasattr(Record, field.name))
_NO_DETAIL = {*_COLUMNS, "format", "totals"}
NO_NOTES = Notes()


def backup_row(pool: Pool, record: Record, state: str, subvolume_id: int | None = None, notes: Notes = NO_NOTES) -> Backup:
    """Returns the row; `state` is the effective one (an accepted suspect backup is complete), `notes` are the host's.

    Paths are relative to the pool.
    """
    path = (pool.host(record.host) / record.name if record.name else pool.working(record.host)).relative_to(pool.path)
    name = record.name if record.state in FINAL else None
    hold = hold_of(notes, name) if name else None
    values: dict[str, Any] = {key: _column(getattr(record, key)) for key in _COLUMNS}
    values |= {"name": name, "path": str(path), "state": state}
    return Backup(
        **values,
        subvolume_id=subvolume_id,
        outcome=accepted_state(record, notes) if name else None,
        held_until=hold.until if hold else None,
        held_why=hold.why if hold else None,
        expired=notes.expired_at(name) if name else None,
        detail={} if state == RUNNING else {key: value for key, value in record.to_fields().items() if key not in _NO_DETAIL},
    )


def _column(value: Any) -> Any:
    """Returns the value as an integer within the limits of a column of the catalogue."""
    return min(value, LARGEST_NUMBER) if isinstance(value, int) else value


def row_by_notes(row: Backup, notes: Notes) -> Backup:
    """Returns the row according to the host's present notes, for a backup whose record cannot be read."""
    assert row.name is not None
    hold, state = hold_of(notes, row.name), EXPIRED if notes.note(row.name, EXPIRED) else row.outcome or row.state
    row = replace(row, state=state, expired=notes.expired_at(row.name))
    return replace(row, held_until=hold.until if hold else None, held_why=hold.why if hold else None)


def agrees(row: StateFromNotes | None, notes: Notes, name: str) -> bool:
    """Returns True if the row of a backup agrees with the host's notes; None: the row shows a backup that is not held, marked,
    being deleted or suspect.

    Marks are compared to the second, the precision of the notes.
    """
    expired = notes.expired_at(name)
    if row is None:
        return expired is None and notes.note(name, HOLD) is None and not notes.is_altered(name)
    marked = row.expired.replace(microsecond=0) if row.expired else None
    is_going = row.state in GOING
    is_open = row.outcome == SUSPECT and notes.accepted(name)  # the row does not have the acceptance yet
    held = None if row.held_why is None else Hold(row.held_until, row.held_why)
    if (row.outcome == ALTERED) != notes.is_altered(name):
        return False
    same = (marked, held) == (expired, hold_of(notes, name))
    return same and is_going == (expired is not None) and not is_open and (is_going or row.outcome in (None, row.state))
