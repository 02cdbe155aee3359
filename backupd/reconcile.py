"""The pool and the catalogue brought together: where they differ, the pool wins."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from backupd import record as records
from backupd.record import FINAL, PARTIAL, effective_state
from backupd.rows import backup_row
from backupd.working import ours, recover
from btrkeep.catalogue import Backup, Catalogue
from btrkeep.errors import LockHeld, OperatorError
from btrkeep.pool import WORKING, Pool, describe, take_lock
from btrkeep.process import start_time
from btrkeep.units import parse_backup_name


def hosts_of(pool: Pool) -> list[str]:
    """The hosts that have a folder in the pool."""
    return sorted(entry.name for entry in os.scandir(pool.hosts) if entry.is_dir(follow_symlinks=False))


def names_of(pool: Pool, host: str) -> set[str]:
    """The names in a host's folder that may be backups, `.working` among them."""
    try:
        return {entry.name for entry in os.scandir(pool.host(host)) if entry.name == WORKING or parse_backup_name(entry.name)}
    except FileNotFoundError:
        return set()


def row_of(pool: Pool, host: str, name: str) -> Backup | None:
    """The row of what lies at that name, None when it is not ours. Raises UnreadableRecord."""
    path: Path = pool.host(host) / name
    found = ours(path, host)
    if not found:
        return None
    subvolume, record = found
    if name == WORKING:
        return backup_row(pool, record, PARTIAL, subvolume.id)
    if record.state not in FINAL or not subvolume.read_only:
        return None
    return backup_row(pool, record, effective_state(record, records.read_notes(pool.host(host))), subvolume.id)


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

    A host that is locked is left to whoever works on it.
    """
    done = {"runs that were killed": _end_dead_runs(catalogue), "backups added": 0, "rows without a backup dropped": 0}
    known: dict[str, set[str]] = {}
    for host, name in catalogue.names():
        known.setdefault(host, set()).add(name or WORKING)
    for host in sorted({*hosts_of(pool), *known}):
        if _differs(pool, host, known.get(host, set())):
            with suppress(LockHeld), take_lock(pool.locks / f"host-{host}", "reconciling", since):
                added, dropped = _mend(pool, catalogue, host, known.get(host, set()))
                done["backups added"] += added
                done["rows without a backup dropped"] += dropped
    return ", ".join(f"{count} {words}" for words, count in done.items() if count)


def _differs(pool: Pool, host: str, known: set[str]) -> bool:
    there = names_of(pool, host)
    return there != known or (WORKING in there and _is_finished(pool, host))


def _is_finished(pool: Pool, host: str) -> bool:
    subvolume = describe(pool.working(host))
    return subvolume is not None and subvolume.read_only


def _mend(pool: Pool, catalogue: Catalogue, host: str, known: set[str]) -> tuple[int, int]:
    recover(pool, host)
    there = names_of(pool, host)
    for name in known - there:
        catalogue.drop_backup(host, None if name == WORKING else name)
    return sum(_add(pool, catalogue, host, name) for name in there - known), len(known - there)


def _add(pool: Pool, catalogue: Catalogue, host: str, name: str) -> bool:
    try:
        row = row_of(pool, host, name)
    except OperatorError:
        return False
    if row:
        catalogue.put_backup(row)
    return row is not None


def _end_dead_runs(catalogue: Catalogue) -> int:
    """Runs whose process is gone were killed: their row says so, so that the host is not shown as running for ever."""
    dead = [run for run in catalogue.unfinished_runs() if start_time(run.pid) != run.pid_started]
    for run in dead:
        catalogue.finish_run(run.id, finished=run.started, outcome="failed", error="the run was killed before it came to its end")
        for progress in catalogue.progress():
            if progress.run_id == run.id:
                catalogue.drop_progress(progress.host)
    return len(dead)
