"""From a backup's record to its row in the catalogue."""

from backupd import record as records
from backupd.notes import HOLD, Notes, accepted_state
from backupd.record import Record
from btrkeep.catalogue import Backup
from btrkeep.pool.marker import Pool
from btrkeep.units import format_time

_COLUMNS = {"host", "name", "state", "started", "finished", "duration", "base", "error", "warnings", "uuid", "format", "totals"}
NO_NOTES = Notes()


def backup_row(pool: Pool, record: Record, state: str, subvolume_id: int | None = None, notes: Notes = NO_NOTES) -> Backup:
    """The row; `state` is the one that counts (an accepted suspect backup is complete), `notes` are the host's.

    Paths are relative to the pool.
    """
    path = (pool.host(record.host) / record.name if record.name else pool.working(record.host)).relative_to(pool.path)
    name = record.name if record.state in records.FINAL else None
    return Backup(
        host=record.host,
        name=name,
        path=str(path),
        state=state,
        started=record.started,
        finished=record.finished,
        duration=record.duration,
        files=record.total("files"),
        bytes=record.total("bytes"),
        new_bytes=record.total("literal"),
        error=record.error,
        warnings=record.warnings,
        base=record.base,
        subvolume_id=subvolume_id,
        uuid=record.uuid,
        outcome=accepted_state(record, notes) if name else None,
        held=hold_words(notes, name) if name else None,
        expired=notes.expired_at(name) if name else None,
        detail={} if state == records.RUNNING else {key: value for key, value in record.to_fields().items() if key not in _COLUMNS},
    )


def hold_words(notes: Notes, name: str) -> str | None:
    """The hold of a backup, ended or not, as people say it: "held until 2027-01-01T00:00:00Z: the audit". None without one."""
    note = notes.note(name, HOLD)
    if note is None:
        return None
    until = notes.held_until(name)
    words = f"held until {format_time(until)}" if until else "held"
    return f"{words}: {note['why']}" if note.get("why") else words
