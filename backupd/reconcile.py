"""The pool and the catalogue brought together: where they differ, the pool wins."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from backupd.folders import hosts_of, names_of
from backupd.notes import effective_state, read_notes
from backupd.record import FINAL, PARTIAL
from backupd.rows import backup_row
from backupd.working import ours, recover
from btrkeep.catalogue import Backup, Catalogue, Run
from btrkeep.errors import LockHeld, OperatorError, PoolUnusable
from btrkeep.pool.locks import take_lock
from btrkeep.pool.marker import WORKING, Pool
from btrkeep.pool.subvolume import describe
from btrkeep.process.proc import start_time

RECONCILING = "reconciling"


def row_of(pool: Pool, host: str, name: str) -> Backup | None:
    """The row of what lies at that name, None when it is not ours. Raises UnreadableRecord."""
    path: Path = pool.host(host) / name
    found = ours(path, host)
    if not found:
        return None
    subvolume, record = found
    if name == WORKING:
        return backup_row(pool, replace(record, name=None, state=PARTIAL), PARTIAL, subvolume.id)  # whatever its record says
    if record.state not in FINAL or not subvolume.read_only:
        return None
    notes = read_notes(pool.host(host))
    return backup_row(pool, record, effective_state(record, notes), subvolume.id, notes)


def all_rows(pool: Pool, trouble: list[str]) -> Iterator[Backup]:
    """Every backup of the pool, for a rebuild. What cannot be read is told in `trouble` and passed over."""
    for host in hosts_of(pool):
        for name in sorted(names_of(pool, host)):
            try:
                row = row_of(pool, host, name)
            except OperatorError as error:
                trouble.append(f"{host}/{name}: {error.message}")
                continue
            if row:
                yield row
            else:
                trouble.append(f"{host}/{name}: not a backup of ours (its backup.json does not name it), left alone")


def reconcile(pool: Pool, catalogue: Catalogue, since: str) -> str:
    """Mends what a kill or a hand in the pool left different, cheaply: by names. What was done, in words, or nothing.

    A host that is locked is left to whoever works on it. One whose folder holds something that is in the way is named in the
    answer and costs the others nothing.
    """
    dead = [run for run in catalogue.unfinished_runs() if start_time(run.pid) != run.pid_started]
    killed = {run.host for run in dead}
    done = {"runs that were killed": len(dead), "backups added": 0, "rows without a backup dropped": 0}
    trouble = []
    known: dict[str, set[str]] = {}
    for host, name in catalogue.names():
        known.setdefault(host, set()).add(name or WORKING)
    for host in sorted({*hosts_of(pool), *known}):
        try:
            if host in killed or _differs(pool, host, known.get(host, set())):
                with take_lock(pool.locks / f"host-{host}", RECONCILING, since):
                    added, dropped = _mend(pool, catalogue, host, known.get(host, set()))
                done["backups added"] += added
                done["rows without a backup dropped"] += dropped
        except PoolUnusable:
            raise
        except LockHeld:
            continue
        except (OperatorError, OSError) as error:
            trouble.append(f"{host} is left as it is: {error}")
    for run in dead:
        _end_dead_run(catalogue, run)
    return ", ".join([*(f"{count} {words}" for words, count in done.items() if count), *trouble])


def _differs(pool: Pool, host: str, known: set[str]) -> bool:
    there = names_of(pool, host)
    return there != known or (WORKING in there and _is_finished(pool, host))


def _is_finished(pool: Pool, host: str) -> bool:
    subvolume = describe(pool.working(host))
    return subvolume is not None and subvolume.read_only


def _mend(pool: Pool, catalogue: Catalogue, host: str, known: set[str]) -> tuple[int, int]:
    """How many rows were added and dropped. That of a `.working` is written anew: nobody works on it any more."""
    recover(pool, host)
    there = names_of(pool, host)
    for name in known - there:
        catalogue.drop_backup(host, None if name == WORKING else name)
    if WORKING in known & there:
        _add(pool, catalogue, host, WORKING)
    return sum(_add(pool, catalogue, host, name) for name in there - known), len(known - there)


def _add(pool: Pool, catalogue: Catalogue, host: str, name: str) -> bool:
    try:
        row = row_of(pool, host, name)
    except OperatorError:
        return False
    if row:
        catalogue.put_backup(row)
    return row is not None


def _end_dead_run(catalogue: Catalogue, run: Run) -> None:
    """A run whose process is gone was killed. Its row says so, or, when its backup was final by then, what became of that."""
    made = next((one for one in catalogue.backups(run.host) if one.name and one.started == run.started), None)
    outcome = made.state if made and made.state in FINAL else "failed"
    error = made.error if made else "the run was killed before it came to its end"
    finished = (made and made.finished) or run.started
    catalogue.finish_run(run.id, finished=finished, outcome=outcome, backup=made.name if made else None, error=error)
