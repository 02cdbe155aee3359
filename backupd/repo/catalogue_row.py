"""From a backup's record to its row in the catalogue."""

from backupd.repo import backup_json as records
from backupd.repo.backup_json import Record
from backupd.repo.notes_json import HOLD, Notes, accepted_state
from btrkeep.backup_states import DELETING, EXPIRED, FINAL, RUNNING, SUSPECT
from btrkeep.catalogue import Backup, NotedState
from btrkeep.pool.marker import Pool
from btrkeep.units import format_time

_COLUMNS = {"host", "name", "state", "started", "finished", "duration", "base", "error", "warnings", "uuid", "format", "totals"}
NO_NOTES = Notes()


def backup_row(pool: Pool, record: Record, state: str, subvolume_id: int | None = None, notes: Notes = NO_NOTES) -> Backup:
    """The row; `state` is the one that counts (an accepted suspect backup is complete), `notes` are the host's.

    Paths are relative to the pool.
    """
    path = (pool.host(record.host) / record.name if record.name else pool.working(record.host)).relative_to(pool.path)
    name = record.name if record.state in FINAL else None
    return Backup(
        host=record.host,
        name=name,
        path=str(path),
        state=state,
        started=record.started,
        finished=record.finished,
        duration=record.duration,
        files=_column(record.files),
        bytes=_column(record.total("bytes")),
        new_bytes=_column(record.new_bytes),
        error=record.error,
        warnings=record.warnings,
        base=record.base,
        subvolume_id=subvolume_id,
        uuid=record.uuid,
        outcome=accepted_state(record, notes) if name else None,
        held=hold_words(notes, name) if name else None,
        expired=notes.expired_at(name) if name else None,
        detail={} if state == RUNNING else {key: value for key, value in record.to_fields().items() if key not in _COLUMNS},
    )


def _column(number: int | None) -> int | None:
    """The number, as far as a column of the catalogue takes it."""
    return None if number is None else min(number, records.LARGEST_NUMBER)


def agrees(row: NotedState | None, notes: Notes, name: str) -> bool:
    """Whether the row of a backup says what the host's notes say; None: nothing is held, marked, going or suspect by the row.

    A mark is compared to the second, which is what the notes have of it.
    """
    expired = notes.expired_at(name)
    if row is None:
        return expired is None and notes.note(name, HOLD) is None
    marked = row.expired.replace(microsecond=0) if row.expired else None
    is_going = row.state in (EXPIRED, DELETING)
    is_open = row.outcome == SUSPECT and notes.accepted(name)  # the acceptance has not come here yet
    same = (marked, row.held) == (expired, hold_words(notes, name))
    return same and is_going == (expired is not None) and not is_open and (is_going or row.outcome in (None, row.state))


def hold_words(notes: Notes, name: str) -> str | None:
    """The hold of a backup, ended or not, as people say it: "held until 2027-01-01T00:00:00Z: the audit". None without one."""
    note = notes.note(name, HOLD)
    if note is None:
        return None
    until = notes.held_until(name)
    words = f"held until {format_time(until)}" if until else "held"
    return f"{words}: {note['why']}" if note.get("why") else words
