"""A [push] section of `backupd replicate`: this pool's backups sent to a server that cannot reach it."""

import time
from contextlib import ExitStack
from datetime import datetime
from typing import Any

from backupd.replicate.connecting import own_modules, push_command
from backupd.replicate.far_pool import FarPoolMissing, unreached_hint
from backupd.replicate.push import Push, PushSummary, SentBackup
from backupd.replicate.sender import BackupSender
from backupd.repo.context import PoolContext
from backupd.repo.publish import tell_copies
from backupd.rsync.bandwidth import prepare
from btrkeep.cli import complain
from btrkeep.cli.progress import SaidOnce, prose, say_wait
from btrkeep.config.model import PushSettings
from btrkeep.decisions.copies import PUSH, HostBehind, ReplicaSession, note_session, read_session
from btrkeep.decisions.due import latest
from btrkeep.errors import Exit, OperatorError, UsageError
from btrkeep.pool.locks import take_lock
from btrkeep.process.cancellation import Cancellation
from btrkeep.process.error_report import last_remote_error
from btrkeep.process.piped import piped
from btrkeep.units import counted, format_duration, format_size, format_time, parse_backup_name, printable


def push_to(context: PoolContext, push: PushSettings, hosts: tuple[str, ...], *, dry_run: bool, as_json: bool) -> dict[str, Any]:
    """Sends once; the other side requests what it wants. The window limits when it begins, not when it ends."""
    if hosts:
        raise UsageError(
            f"what {push.name} gets that server chooses", "leave the hosts out; `hosts` in [push] limits what it is shown"
        )
    if dry_run:
        if not as_json:
            prose(f"{push.name}: {push.source} would be asked what it wants, and get it")
        return {PUSH: push.name, "sent": [], "failed": [], "status": int(Exit.OK)}
    since, began, cancellation = format_time(context.clock.now()), context.clock.now(), Cancellation()
    with ExitStack() as held:
        held.enter_context(take_lock(context.pool.locks / f"push-{push.name}", "backupd replicate", since))
        held.enter_context(cancellation.listening())
        buckets = [
            prepare(context.pool.bandwidth, name, rate)
            for name, rate in (("pool", context.config.backup.bandwidth), (f"push-{push.name}", push.bandwidth))
            if rate
        ]
        begun = time.monotonic()
        with piped(push_command(context.config, push), own_modules()) as program:
            sender = BackupSender(context.pool, context.catalogue, program.input, push.name, push.hosts)
            tell = (lambda _: None) if as_json else _say
            done = Push(sender, program, buckets, cancellation, tell, SaidOnce(say_wait), push.stall).run()
            program.end()
            lines = program.said()
    if not cancellation:
        if not done.is_ended:
            why = printable(last_remote_error(lines))[:1000] or "the connection has ended"
            raise OperatorError(why) if done.is_asked else FarPoolMissing(why, unreached_hint(lines))
        if done.error:  # it may name a lock or a process: not of this machine
            done.error = f"the other server says: {done.error}"
        done.failed = {host: f"the other server says: {why}" for host, why in done.failed.items()}  # "here" is there
        tell_copies(context.pool, context.catalogue)
        before = read_session(context.catalogue, push.name, PUSH)
        note_session(
            context.catalogue, push.name, _session(before, began, context.clock.now(), done, time.monotonic() - begun), PUSH
        )
    return _report(push, done, cancellation, as_json)


def _session(before: ReplicaSession | None, began: datetime, now: datetime, done: PushSummary, seconds: float) -> ReplicaSession:
    """Returns the record of the session. Its age is that of its begin, unless nothing could be sent."""
    behind = tuple(HostBehind(host, None, done.common.get(host), why) for host, why in sorted(done.failed.items()))
    moments = [one for name in done.common.values() if (one := parse_backup_name(name)) and one <= latest(now)]
    at = began if not done.error else before.at if before else None
    counts = len(done.common), len(done.sent), done.bytes, round(seconds, 3)
    return ReplicaSession(now, at, done.error, "", *counts, max(moments, default=None), behind)


def _say(done: SentBackup) -> None:
    prose(f"{printable(done.host)}@{done.name}: {format_size(done.bytes)} sent in {format_duration(done.seconds)}")


def _report(push: PushSettings, done: PushSummary, cancellation: Cancellation, as_json: bool) -> dict[str, Any]:
    for host, why in done.failed.items():
        complain(OperatorError(f"{push.name}: {printable(host)}: {why}"))
    if done.error:
        complain(OperatorError(f"{push.name}: {done.error}", "look there"))
    if not as_json:
        prose(f"{push.name}: {counted(len(done.sent), 'backup')} sent, {format_size(done.bytes)}")
    status = int(Exit.ATTENTION if done.failed or done.error else Exit.OK)
    return {
        PUSH: push.name,
        "bytes": done.bytes,
        "sent": [
            {"host": one.host, "backup": one.name, "bytes": one.bytes, "duration": round(one.seconds, 3)} for one in done.sent
        ],
        "failed": [{"host": host, "error": why} for host, why in done.failed.items()],
        "error": done.error or None,
        "status": cancellation.exit_status(status),
    }
