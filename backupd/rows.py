"""From a backup's record to its row in the catalogue."""

from backupd import record as records
from backupd.record import Record
from btrkeep.catalogue import Backup
from btrkeep.pool import Pool

_COLUMNS = {"host", "name", "state", "started", "finished", "duration", "base", "error", "warnings", "uuid", "format", "totals"}


def backup_row(pool: Pool, record: Record, state: str, subvolume_id: int | None = None) -> Backup:
    """The row; `state` is the one that counts (an accepted suspect backup is complete). Paths are relative to the pool."""
    path = (pool.host(record.host) / record.name if record.name else pool.working(record.host)).relative_to(pool.path)
    final = record.state in records.FINAL
    return Backup(
        host=record.host,
        name=record.name if final else None,
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
        detail={} if state == records.RUNNING else {key: value for key, value in record.to_fields().items() if key not in _COLUMNS},
    )
