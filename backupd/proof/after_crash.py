"""Reads, after a crash of this server, the backups that were written last before it, before another one is based on them.

The first command of each boot finds out which these are, and notes them in the pool. A backup stays noted until it was read, so a
kill loses none. A `.working` that was written last loses its mark, so the next run does not rely on its files.
"""

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from backupd.expire.clocks import clock_doubt
from backupd.files.backup_selector import Restorable, find
from backupd.files.tree import DataUnreadable
from backupd.proof.verify import Verifier
from backupd.proof.verify_pass import ReadCount, ReadScope
from backupd.repo.boot_json import BootRecord, read_boot, write_boot
from backupd.repo.context import PoolContext
from backupd.repo.reconcile import reconcile
from backupd.repo.synced import remove_mark
from btrkeep.catalogue import Catalogue
from btrkeep.clock import elapsed
from btrkeep.decisions.verification import BackupsInDoubt, Verification, WrittenBackup, in_doubt_words, note_in_doubt, written_last
from btrkeep.errors import LockHeld, OperatorError
from btrkeep.pool.locks import VERIFY_LOCK, take_lock
from btrkeep.pool.marker import WORKING, Pool
from btrkeep.pool.subvolume import last_written
from btrkeep.pool.syncfs import syncing
from btrkeep.process.cancellation import Cancellation
from btrkeep.procfs import boot_id
from btrkeep.units import counted, format_time, printable

_log = logging.getLogger(__name__)
_SAMPLES_OF = timedelta(days=2)  # before this boot


def has_backups_in_doubt(pool: Pool, hosts: Collection[str] | None = None) -> bool:
    """True if this boot was not examined yet, or a backup of these hosts (None: of any) is in doubt. A rehearsal has no boots."""
    if pool.rehearsal:
        return False
    known = read_boot(pool)
    return known is None or known.boot != boot_id() or any(hosts is None or host in hosts for host, _ in known.unread)


def boot_record(pool: Pool, catalogue: Catalogue, now: datetime, margin: float) -> BootRecord:
    """Returns the record of this boot: which backups, `.working` included, are in doubt. Changes nothing.

    `margin`: seconds. The catalogue is up to date with the pool. Raises OSError.
    """
    known, boot = read_boot(pool), boot_id()
    if known and known.boot == boot:
        return known
    found = _written_before(pool, catalogue, now, timedelta(seconds=margin), known) if not pool.rehearsal else frozenset()
    return BootRecord(boot, now, unread=found | (known.unread if known else frozenset()))


def record_boot(pool: Pool, catalogue: Catalogue, now: datetime, margin: float) -> BootRecord:
    """Writes the record of this boot to the pool. A `.working` in doubt loses its mark instead: its run compares it."""
    found = boot_record(pool, catalogue, now, margin)
    if found != read_boot(pool):
        working = {one for one in found.unread if one[1] == WORKING}
        for host, _ in working:
            _remove_synced_mark(pool, host)
        found = replace(found, unread=found.unread - working)
        write_boot(pool, found)
    _note_in_catalogue(catalogue, found)
    return found


def _written_before(
    pool: Pool, catalogue: Catalogue, now: datetime, margin: timedelta, known: BootRecord | None
) -> frozenset[tuple[str, str]]:
    moments = last_written(pool.path)
    backups = [
        WrittenBackup(state.host, state.name or WORKING, moments[state.subvolume_id])
        for state in catalogue.states()
        if state.subvolume_id in moments
    ]
    begun = now - timedelta(seconds=elapsed())
    samples = catalogue.samples(pool.filesystem, begun - _SAMPLES_OF)
    signs = [sample.taken for sample in samples] + ([known.seen] if known else [])
    return written_last(backups, signs, known.seen if known and known.stopped else None, margin, begun, now)


def _remove_synced_mark(pool: Pool, host: str) -> None:
    """Makes the next run compare all of it with the host, or begin anew."""
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
    """Returns a verifier that reads all that was written into backups in doubt, and once more what was read before this boot.

    After `seconds` no file is begun; None: no limit.
    """
    moment = context.clock.now()
    forgets = clock_doubt(context.catalogue, moment, rehearsal=context.pool.rehearsal) is None
    scope = ReadScope(seconds=seconds, forgets=forgets, crash=record.seen)
    return Verifier(context.pool, context.catalogue, moment, scope, cancellation, tell)


def read_in_doubt(
    record: BootRecord, work: Verifier, hosts: Collection[str] | None = None
) -> Iterator[tuple[Restorable, Verification] | OperatorError]:
    """Reads those in doubt, of these hosts (None: of all), until it is cancelled or its time is over; the error of one that cannot
    be opened. What was not read to its end stays in doubt.

    Whoever asks has the lock `verify`. Raises OSError.
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
        except DataUnreadable as error:  # it stays in doubt
            yield error
            continue
        except OperatorError as error:  # deleted meanwhile, or its record cannot be read
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
    """Before a host is renamed: what is in doubt of it stays so, whichever name a kill leaves it. `end_doubt_of` does the rest.

    The caller has the lock `verify`. Raises OSError, and OperatorError if it cannot be written down.
    """
    known = read_boot(pool)
    added = frozenset((new, name) for host, name in known.unread if host == old) if known else frozenset()
    if known and not added <= known.unread:
        write_boot(pool, replace(known, unread=known.unread | added))
        if (written := read_boot(pool)) is None or not added <= written.unread:
            raise OperatorError("what is in doubt since a crash cannot be written down", "make room in the pool")


def end_doubt_of(pool: Pool, catalogue: Catalogue, host: str) -> None:
    """Forgets what was in doubt under a name that no host has any more. The caller has the lock `verify`. Raises OSError."""
    if known := read_boot(pool):
        left = replace(known, unread=frozenset(one for one in known.unread if one[0] != host))
        if left != known:
            write_boot(pool, left)
        _note_in_catalogue(catalogue, left)


def note_stop(pool: Pool, now: datetime) -> None:
    """Notes that this server is shut down in order, when all that was written is on the disk. Raises OSError.

    A boot that was not checked yet stays so: what is in doubt is not known.
    """
    known = read_boot(pool)
    if known and known.boot == boot_id() and not pool.rehearsal:
        with syncing(pool.path) as disk:
            disk.sync()
        write_boot(pool, replace(known, seen=now, stopped=True))


def _note_in_catalogue(catalogue: Catalogue, record: BootRecord) -> None:
    with suppress(OperatorError):  # one that cannot be written says so where something has to be
        note_in_doubt(catalogue, BackupsInDoubt(record.seen, record.unread) if record.unread else None)


_PAUSE = 1.0  # seconds


def read_last_written(
    context: PoolContext,
    hosts: Collection[str] | None,
    notice: Callable[[str], None],
    cancellation: Cancellation,
    seconds: float | None = None,
) -> None:
    """Reads those of these hosts, None: of all, for so many seconds at most. If another process is reading, waits for its end. The
    catalogue is up to date with the pool.

    Errors are reported and do not fail a backup.
    """
    told, end = False, None if seconds is None else elapsed() + seconds
    while not cancellation and has_backups_in_doubt(context.pool, hosts) and (end is None or elapsed() < end):
        try:
            with take_lock(context.pool.locks / VERIFY_LOCK, "backupd run", format_time(context.clock.now())):
                _read(context, hosts, notice, cancellation, None if end is None else end - elapsed())
            return
        except LockHeld as error:
            if not told:
                notice(f"what was written last before a crash is being read: {error.message}")
            told = True
            cancellation.sleep(_PAUSE)
        except (OperatorError, OSError) as error:
            why = error.message if isinstance(error, OperatorError) else error
            notice(f"what was written last before a crash was not read: {why}")
            return


def read_before_waiting(context: PoolContext, notice: Callable[[str], None], cancellation: Cancellation) -> None:
    """Reads backups in doubt before the caller takes the lock `verify` and waits for a night, which would wait for that lock.

    Nothing gets in doubt until the next boot. Raises OperatorError if something still is.
    """
    if has_backups_in_doubt(context.pool):
        reconcile(context.pool, context.catalogue, format_time(context.clock.now()))
        read_last_written(context, None, notice, cancellation)
    if not cancellation and has_backups_in_doubt(context.pool):
        why = "what was written last before a crash of this server was not read"
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
        some = "these are" if hosts is None else "those of the hosts that are backed up now are"
        notice(f"{in_doubt_words(BackupsInDoubt(record.seen, record.unread))}: {some} read first")
    for one in read_in_doubt(record, in_doubt_verifier(context, record, cancellation, lambda _: None, seconds), hosts):
        if isinstance(one, OperatorError):
            notice(one.message)
        elif damages := one[1].damages:
            notice(f"{printable(one[0].host)} {one[0].name}: {counted(damages, 'file')} damaged, fetched again")
