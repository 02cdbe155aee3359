"""After a crash of this server, reads the backups that were written just before it, before another one is based on them.

The first command of each boot determines these backups, and records them in the pool. A backup stays recorded until it was read, so
a kill loses none. A `.working` that was written last loses its mark, so the next run does not rely on its files.
"""

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from backupd.expire.trust import clock_doubt
from backupd.files.backup_selector import Restorable, find
from backupd.files.tree import DataUnreadable
from backupd.proof.verify import Verifier
from backupd.proof.verify_pass import ReadCount, ReadScope
from backupd.repo.pool_context import PoolContext
from backupd.repo.pool_files import BootRecord, has_backups_in_doubt, read_boot, write_boot
from backupd.repo.reconcile import reconcile
from backupd.repo.synced import remove_mark
from btrkeep.catalogue import Catalogue
from btrkeep.clock import elapsed
from btrkeep.decisions.verification import BackupsInDoubt, Verification, WrittenBackup, in_doubt_words, note_in_doubt, written_last
from btrkeep.errors import LockHeld, OperatorError, UsageError
from btrkeep.pool.locks import VERIFY_LOCK, take_lock
from btrkeep.pool.marker import WORKING, Pool
from btrkeep.pool.subvolume import last_written
from btrkeep.pool.syncfs import syncing
from btrkeep.process.progress import Cancellation
from btrkeep.procfs import boot_id
from btrkeep.units import counted, format_time, printable

_log = logging.getLogger(__name__)
_SAMPLES_OF = timedelta(days=2)  # of samples before this boot


def boot_record(pool: Pool, catalogue: Catalogue, now: datetime, margin: float) -> BootRecord:
    """Returns the record of this boot: the backups in doubt, including `.working`. Changes nothing.

    `margin`: seconds. The catalogue is up to date with the pool. Raises OSError.
    """
    before, boot = read_boot(pool), boot_id()
    if before and before.boot == boot:
        return before
    in_doubt = _written_before(pool, catalogue, now, timedelta(seconds=margin), before) if not pool.rehearsal else frozenset()
    return BootRecord(boot, now, unread=in_doubt | (before.unread if before else frozenset()))


def record_boot(pool: Pool, catalogue: Catalogue, now: datetime, margin: float) -> BootRecord:
    """Writes the record of this boot to the pool. A `.working` in doubt loses its mark instead, so that its next run
    compares it.
    """
    new_record = boot_record(pool, catalogue, now, margin)
    if new_record != read_boot(pool):
        working = {backup for backup in new_record.unread if backup[1] == WORKING}
        for host, _ in working:
            _remove_synced_mark(pool, host)
        new_record = replace(new_record, unread=new_record.unread - working)
        write_boot(pool, new_record)
    _note_in_catalogue(catalogue, new_record)
    return new_record


def _written_before(
    pool: Pool, catalogue: Catalogue, now: datetime, margin: timedelta, before: BootRecord | None
) -> frozenset[tuple[str, str]]:
    moments = last_written(pool.path)
    backups = [
        WrittenBackup(state.host, state.name or WORKING, moments[state.subvolume_id])
        for state in catalogue.states()
        if state.subvolume_id in moments
    ]
    begun = now - timedelta(seconds=elapsed())
    samples = catalogue.samples(pool.filesystem, begun - _SAMPLES_OF)
    signs = [sample.taken for sample in samples] + ([before.seen] if before else [])
    return written_last(backups, signs, before.seen if before and before.stopped else None, margin, begun, now)


def _remove_synced_mark(pool: Pool, host: str) -> None:
    """Makes the next run compare `.working` completely with the host, or start it from the beginning."""
    try:
        remove_mark(pool.working(host))
    except OSError as error:
        _log.warning("%s: %s", pool.working(host), error.strerror)


def in_doubt_verifier(
    context: PoolContext,
    record: BootRecord,
    cancellation: Cancellation,
    tell: Callable[[ReadCount], None],
    seconds: float | None = None,
) -> Verifier:
    """Returns a verifier that reads all data written into backups in doubt, and reads files again that were read before this boot.

    After `seconds` no file is started; None: no limit.
    """
    moment = context.clock.now()
    forgets = clock_doubt(context.catalogue, moment, rehearsal=context.pool.rehearsal) is None
    scope = ReadScope(seconds=seconds, forgets=forgets, crash=record.seen)
    return Verifier(context.pool, context.catalogue, moment, scope, cancellation, tell)


def read_in_doubt(
    record: BootRecord, work: Verifier, hosts: Collection[str] | None = None
) -> Iterator[tuple[Restorable, Verification] | OperatorError]:
    """Reads the backups in doubt, of these hosts (None: of all), until it is cancelled or its time is over. Yields the error of a
    backup that cannot be opened.

    A backup that was not read to its end stays in doubt. The caller holds the lock `verify`. Raises OSError.
    """
    pool, catalogue = work.pool, work.catalogue
    for host, name in sorted(record.unread):
        if hosts is not None and host not in hosts:
            continue
        if _has_ended(work):
            return
        result: tuple[Restorable, Verification] | OperatorError
        try:
            backup = find(pool, host, name)
            result = backup, work.verify(backup)
        except DataUnreadable as error:  # it stays suspect
            yield error
            continue
        except UsageError as error:  # just deleted, or its record cannot be read
            is_there = (pool.host(host) / name).exists()
            result = DataUnreadable(error.message, error.hint) if is_there else error
        except OperatorError as error:  # it is being deleted
            result = error
        if _has_ended(work):
            return
        record = replace(record, unread=record.unread - {(host, name)})
        write_boot(pool, record)
        _note_in_catalogue(catalogue, record)
        yield result


def _has_ended(work: Verifier) -> bool:
    return work.is_over


def doubt_under_both_names(pool: Pool, old: str, new: str) -> None:
    """Before a host is renamed: its backups in doubt stay so under both names, whichever one remains after a kill. `end_doubt_of`
    removes the other.

    The caller holds the lock `verify`. Raises OSError, and OperatorError if it cannot be recorded.
    """
    before = read_boot(pool)
    added = frozenset((new, name) for host, name in before.unread if host == old) if before else frozenset()
    if before and not added <= before.unread:
        write_boot(pool, replace(before, unread=before.unread | added))
        if (written := read_boot(pool)) is None or not added <= written.unread:
            raise OperatorError("could not record which data is in doubt after a crash", "free some space in the pool")


def end_doubt_of(pool: Pool, catalogue: Catalogue, host: str) -> None:
    """Forgets backups in doubt under a name that no host has any longer. The caller holds the lock `verify`. Raises OSError."""
    if before := read_boot(pool):
        left = replace(before, unread=frozenset(backup for backup in before.unread if backup[0] != host))
        if left != before:
            write_boot(pool, left)
        _note_in_catalogue(catalogue, left)


def note_stop(pool: Pool, now: datetime) -> None:
    """Records that this server is shut down properly, when all data is on the disk. Raises OSError.

    A boot that was not checked yet stays unchecked: its backups in doubt are unknown.
    """
    before = read_boot(pool)
    if before and before.boot == boot_id() and not pool.rehearsal:
        with syncing(pool.path) as disk:
            disk.sync()
        write_boot(pool, replace(before, seen=now, stopped=True))


def _note_in_catalogue(catalogue: Catalogue, record: BootRecord) -> None:
    with suppress(OperatorError):  # a catalogue that cannot be written is reported when a write is needed
        note_in_doubt(catalogue, BackupsInDoubt(record.seen, record.unread) if record.unread else None)


_PAUSE = 1.0  # seconds


def read_last_written(
    context: PoolContext,
    hosts: Collection[str] | None,
    notice: Callable[[str], None],
    cancellation: Cancellation,
    seconds: float | None = None,
) -> None:
    """Reads the backups of these hosts, None: of all, for at most this many seconds. If another process is reading, waits for its
    end. The catalogue is up to date with the pool.

    Errors are reported and do not fail a backup.
    """
    is_announced, end = False, None if seconds is None else elapsed() + seconds
    while not cancellation and has_backups_in_doubt(context.pool, hosts) and (end is None or elapsed() < end):
        try:
            with take_lock(context.pool.locks / VERIFY_LOCK, "backupd run", format_time(context.clock.now())):
                _read(context, hosts, notice, cancellation, None if end is None else end - elapsed())
            return
        except LockHeld as error:
            if not is_announced:
                notice(f"the data written just before a crash is being read: {error.message}")
            is_announced = True
            cancellation.sleep(_PAUSE)
        except (OperatorError, OSError) as error:
            why = error.message if isinstance(error, OperatorError) else error
            notice(f"the data written just before a crash was not read: {why}")
            return


def read_before_waiting(context: PoolContext, notice: Callable[[str], None], cancellation: Cancellation) -> None:
    """Reads backups in doubt before the caller takes the lock `verify` and waits for a night, which would wait for that lock.

    No further backup gets in doubt until the next boot. Raises OperatorError if a backup still is in doubt.
    """
    if has_backups_in_doubt(context.pool):
        reconcile(context.pool, context.catalogue, format_time(context.clock.now()))
        read_last_written(context, None, notice, cancellation)
    if not cancellation and has_backups_in_doubt(context.pool):
        why = "the data written just before a crash of this server was not read"
        raise OperatorError(why, "`backupd verify --after-crash` shows why")


def _read(
    context: PoolContext,
    hosts: Collection[str] | None,
    notice: Callable[[str], None],
    cancellation: Cancellation,
    seconds: float | None,
) -> None:
    record = record_boot(context.pool, context.catalogue, context.clock.now(), context.config.verify.after_crash)
    if record.unread:
        scope_words = "these are" if hosts is None else "those of the hosts in this run are"
        notice(f"{in_doubt_words(BackupsInDoubt(record.seen, record.unread))}: {scope_words} read first")
    for result in read_in_doubt(record, in_doubt_verifier(context, record, cancellation, lambda _: None, seconds), hosts):
        if isinstance(result, OperatorError):
            notice(result.message)
        elif damages := result[1].damages:
            notice(f"{printable(result[0].host)} {result[0].name}: {counted(damages, 'damaged file')}, to be fetched again")
