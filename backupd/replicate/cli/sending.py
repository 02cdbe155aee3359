"""`backupd replicate` in the other direction: sends this pool's backups to a server that cannot reach it, or writes them to a disk.

A [push] section names the server; with --seed-to the newest backup of each host goes to a disk that is carried to it.
"""

import errno
import sys
import time
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

from backupd.replicate.initial_copy import DESCRIPTION, STREAM, begin_initial_copy, end_host, has_host, write_parts
from backupd.replicate.outcome import ReplicationOptions
from backupd.replicate.push import Push, PushSummary, SentBackup
from backupd.replicate.remote_pool import RemotePool, RemotePoolMissing, connected, own_modules, push_command, unreached_hint
from backupd.replicate.sender import BackupSender
from backupd.replicate.wire import RemoteHost, RemoteRefused
from backupd.repo.common_backups import keep_initial_copy
from backupd.repo.pool_context import PoolContext
from backupd.repo.publish import publish_copies
from backupd.rsync.bandwidth import prepare
from btrkeep.backup_states import COMPLETE
from btrkeep.cli import print_answer, print_error
from btrkeep.cli.output import ProgressLine, WithoutRepeats, print_wait, print_wrapped
from btrkeep.config.config_model import PushSettings
from btrkeep.config.problems import nearest
from btrkeep.config.sources import name_fault
from btrkeep.decisions.copy_status import PUSH, HostBehind, ReplicaSession, note_session, read_session
from btrkeep.decisions.due import latest
from btrkeep.decisions.replication import Fetch, RemoteBackup
from btrkeep.errors import Exit, OperatorError, UsageError, last_remote_error
from btrkeep.pool.locks import take_lock
from btrkeep.process.programs import piped
from btrkeep.process.progress import Cancellation
from btrkeep.units import counted, format_duration, format_size, format_time, parse_backup_name, parse_size, printable


def push_to(context: PoolContext, push: PushSettings, wanted: ReplicationOptions) -> dict[str, Any]:
    """Sends once; the other server requests the backups that it wants. The window limits when it starts, not when it ends."""
    if wanted.hosts:
        raise UsageError(
            f"the other server chooses which hosts {push.name} receives",
            "leave out the hosts; `hosts` in [push] limits the hosts that the other server can see",
        )
    if wanted.dry_run:
        if not wanted.as_json:
            print_wrapped(f"{push.name}: {push.source} would choose the backups, and receive them")
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
            tell = (lambda _: None) if wanted.as_json else _say
            done = Push(sender, program, buckets, cancellation, tell, WithoutRepeats(print_wait), push.stall).run()
            program.end()
            lines = program.error_lines()
    if not cancellation:
        if not done.is_ended:
            why = printable(last_remote_error(lines))[:1000] or "the connection has ended"
            raise OperatorError(why) if done.is_asked else RemotePoolMissing(why, unreached_hint(lines))
        if done.error:  # it may mention a lock or a process of the other server
            done.error = f"message of the other server: {done.error}"
        done.failed = {host: f"message of the other server: {why}" for host, why in done.failed.items()}  # "here" means there
        publish_copies(context.pool, context.catalogue)
        before = read_session(context.catalogue, push.name, PUSH)
        note_session(
            context.catalogue, push.name, _session(before, began, context.clock.now(), done, time.monotonic() - begun), PUSH
        )
    return _report(push, done, cancellation, wanted.as_json)


def _session(before: ReplicaSession | None, began: datetime, now: datetime, done: PushSummary, seconds: float) -> ReplicaSession:
    """Returns the record of the session. Its age counts from its start, unless nothing could be sent."""
    behind = tuple(HostBehind(host, None, done.common.get(host), why) for host, why in sorted(done.failed.items()))
    moments = [moment for name in done.common.values() if (moment := parse_backup_name(name)) and moment <= latest(now)]
    at = began if not done.error else before.at if before else None
    counts = len(done.common), len(done.sent), done.bytes, round(seconds, 3)
    return ReplicaSession(now, at, done.error, "", *counts, max(moments, default=None), behind)


def _say(done: SentBackup) -> None:
    print_wrapped(f"{printable(done.host)}@{done.name}: {format_size(done.bytes)} sent in {format_duration(done.seconds)}")


def _report(push: PushSettings, done: PushSummary, cancellation: Cancellation, as_json: bool) -> dict[str, Any]:
    for host, why in done.failed.items():
        print_error(OperatorError(f"{push.name}: {printable(host)}: {why}"))
    if done.error:
        print_error(OperatorError(f"{push.name}: {done.error}", "check the log on that server (journalctl)"))
    if not as_json:
        print_wrapped(f"{push.name}: {counted(len(done.sent), 'backup')} sent, {format_size(done.bytes)}")
    status = int(Exit.ATTENTION if done.failed or done.error else Exit.OK)
    return {
        PUSH: push.name,
        "bytes": done.bytes,
        "sent": [
            {
                "host": sent_backup.host,
                "backup": sent_backup.name,
                "bytes": sent_backup.bytes,
                "duration": round(sent_backup.seconds, 3),
            }
            for sent_backup in done.sent
        ],
        "failed": [{"host": host, "error": why} for host, why in done.failed.items()],
        "error": done.error or None,
        "status": cancellation.exit_status(status),
    }


_LEAST = 1 << 16  # bytes


def parse_part_size(text: str) -> int:
    """Parses the length of a part, in bytes. Raises ValueError."""
    size = parse_size(text)
    if size < _LEAST:
        raise ValueError(f"a part needs at least {format_size(_LEAST)}")
    return size


def write_initial_copy(context: PoolContext, folder: Path, name: str | None, part_size: int, wanted: ReplicationOptions) -> int:
    """Writes the initial copy. `name`: this server's name for the copy. Returns the exit status: 1 if a host could not be sent."""
    if name is None or name_fault(name):
        raise UsageError(
            "give this server's name for the copy",
            "run `backupd replicate --seed-to FOLDER NAME`; NAME is that of `send-only --replica NAME`",
        )
    if folder.resolve().is_relative_to(context.pool.path):
        raise UsageError(f"{folder} is in the pool", "name a folder on the disk to carry")
    results, status = list[dict[str, Any]](), int(Exit.OK)
    command = (sys.executable, "-m", "backupd", "--config", str(context.config.file), "send-only")
    with take_lock(context.pool.locks / "seed", "backupd replicate", format_time(context.clock.now())), connected(command) as far:
        listed = {host.name: host for host in far.hosts() if host.backups}
        if unknown := next((host for host in wanted.hosts if host not in listed), None):
            raise UsageError(f"there is no backup of {printable(unknown)} to send{nearest(unknown, listed)}")
        if not wanted.dry_run:
            _begin(folder, far.id)
        for host in (listed[host_name] for host_name in (wanted.hosts or listed)):
            newest = _newest(host)
            is_there = has_host(folder / host.name, newest.uuid)
            if not wanted.dry_run:
                keep_initial_copy(context.pool, name, host.name, newest.name)
            fields: dict[str, Any] = {"host": host.name, "backup": newest.name, "bytes": 0, "parts": 0, "already": is_there}
            try:
                if is_there or wanted.dry_run:
                    _print_line(
                        f"{host.name}@{newest.name}: {'is on the disk already' if is_there else 'would be written'}", wanted.as_json
                    )
                else:
                    fields |= _write(far, folder / host.name, host, newest, part_size, wanted.as_json)
            except RemoteRefused as error:
                fields["error"], status = error.message, int(Exit.ATTENTION)
                print_error(OperatorError(f"{host.name}: {error.message}"))
            except OSError as error:
                hint = "run the same command again, if needed on a larger disk: it continues after the complete parts"
                raise OperatorError(f"{error.filename or folder}: {error.strerror}", hint) from None
            results.append(fields)
    size = sum(fields["bytes"] for fields in results)
    text = f"{folder}: {counted(len(results), 'host')}, {format_size(size)} written, not encrypted"
    print_answer(results, [] if wanted.dry_run else [text], as_json=wanted.as_json)
    return status


def _begin(folder: Path, pool: str) -> None:
    try:
        begin_initial_copy(folder, pool)
    except OSError as error:
        raise OperatorError(f"{error.filename or folder}: {error.strerror}", "check that the disk is mounted") from None


def _newest(host: RemoteHost) -> RemoteBackup:
    """Returns the newest complete backup; without one, the newest."""
    return max(host.backups, key=lambda backup: (backup.state == COMPLETE, backup.name))


def _write(far: RemotePool, folder: Path, host: RemoteHost, newest: RemoteBackup, part_size: int, as_json: bool) -> dict[str, Any]:
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink():
        raise OSError(errno.ELOOP, "it is a symbolic link", str(folder))
    (folder / DESCRIPTION).unlink(missing_ok=True)  # of an older backup, whose parts are overwritten
    announced, pieces = far.fetch(host.name, Fetch(newest, None), STREAM)
    with ProgressLine(is_shown=not as_json) as line:
        parts = write_parts(folder, pieces, part_size, lambda size: line.go_on(lambda: f"{host.name}: {format_size(size)}"))
    hold = [list(host.held[newest.name])] if newest.name in host.held else []
    copy_of = {"copy_of": host.copy_of} if host.copy_of else {}
    listed = {"was": list(host.was), "backups": [[newest.name, newest.uuid, newest.state, *hold]], **copy_of}
    fields = {"notes": announced.notes, "bytes": announced.bytes, "stream": announced.stream}
    end_host(folder, listed, fields, parts)
    size = sum(part.length for part in parts)
    _print_line(f"{host.name}@{newest.name}: {format_size(size)} in {counted(len(parts), 'part')}", as_json)
    return {"bytes": size, "parts": len(parts)}


def _print_line(text: str, as_json: bool) -> None:
    if not as_json:
        print_wrapped(text)
