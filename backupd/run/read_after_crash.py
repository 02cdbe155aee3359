"""Reads what was written shortly before a crash of this server, before a backup is based on it."""

from collections.abc import Callable, Collection

from backupd.actions.after_crash import has_backups_in_doubt, in_doubt_verifier, read_in_doubt, record_boot
from backupd.repo.context import PoolContext
from backupd.repo.reconcile import reconcile
from btrkeep.clock import elapsed
from btrkeep.decisions.crash import BackupsInDoubt, in_doubt_words
from btrkeep.errors import LockHeld, OperatorError
from btrkeep.pool.locks import VERIFY_LOCK, take_lock
from btrkeep.process.cancellation import Cancellation
from btrkeep.units import counted, format_time, printable

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
        raise OperatorError(why, "`backupd verify --after-crash` says why")


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
