"""At the end of a night, compares a rolling share of the files of each complete host with the host.

It does not affect a host's result: errors are reported, and the next night continues.
"""

import time
from collections.abc import Sequence
from functools import partial

from backupd.repo.compared import HostComparisons, read_compared
from backupd.rsync.confined import require_harmless
from backupd.run.against_source import SourceComparison, SourceScope
from backupd.run.context import HostResult, RunContext
from btrkeep.backup_states import COMPLETE
from btrkeep.catalogue import Catalogue
from btrkeep.config import HostConfig
from btrkeep.config.values import FileSample
from btrkeep.decisions.due import window_end
from btrkeep.errors import OperatorError
from btrkeep.pool.locks import take_lock
from btrkeep.process.cancellation import Cancellation
from btrkeep.units import counted, format_time

LONGEST = 1800.0
"""Seconds, for all hosts together: the night's lock is held meanwhile."""


def compare_share(context: RunContext, catalogue: Catalogue, results: Sequence[HostResult], cancellation: Cancellation) -> None:
    """Compares the next slice of each host that became complete, those first that were not compared for the longest time."""
    sample = context.config.verify.against_source
    complete = [context.config.hosts[one.host] for one in results if one.outcome == COMPLETE and one.host in context.config.hosts]
    if sample is None or not complete:
        return
    hosts = sorted(filter(partial(_is_open, context), complete), key=lambda one: _last(read_compared(context.pool.host(one.name))))
    end = time.monotonic() + LONGEST
    try:
        with take_lock(context.pool.locks / "source", "backupd run", format_time(context.clock.now())):
            for number, host in enumerate(hosts):
                if cancellation or (left := end - time.monotonic()) <= 0:
                    break
                scope = SourceScope(_number(sample), left / (len(hosts) - number))  # none takes the others' time
                _compare(context, catalogue, host, scope, cancellation)
    except OperatorError as error:
        context.sinks.notice(f"nothing was compared with the hosts: {error.message}")


def _number(sample: FileSample) -> int | float:
    if sample.number is not None:
        return sample.number
    return 1.0 if sample.share is None else sample.share


def _compare(context: RunContext, catalogue: Catalogue, host: HostConfig, scope: SourceScope, cancellation: Cancellation) -> None:
    confined = not context.confinement.missing
    work = SourceComparison(context.pool, catalogue, context.config, scope, cancellation, lambda _: None, confined=confined)
    try:
        if host.address:
            require_harmless(context.rsync, context.confinement, context.config)
        found = work.compare(host, context.clock.now())
    except (OperatorError, OSError) as error:
        why = error.message if isinstance(error, OperatorError) else error
        context.sinks.notice(f"{host.name} was not compared with its backup: {why}")
        return
    if found and found.differing:
        context.sinks.notice(
            f"{host.name}: {counted(len(found.differing), 'file')} with another content than in the backup, though size and time "
            "are the same; the next run fetches them again (`backupd damaged`)"
        )


def _last(known: HostComparisons) -> float:
    return max((one.at.timestamp() for one in known.backups.values()), default=0.0)


def _is_open(context: RunContext, host: HostConfig) -> bool:
    return host.window is None or window_end(host.window, context.config.pool.zone, context.clock.now()) is not None
