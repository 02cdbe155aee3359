"""The output and exit status of `backupd verify --against-source`."""

from contextlib import ExitStack
from typing import Any

from backupd.proof.against_source import SourceComparison, SourceFindings, SourceScope
from backupd.repo.pool_context import PoolContext, writing
from backupd.repo.pool_files import hosts_of
from backupd.repo.verification_files import comparison_fields
from backupd.rsync.command import rsync_version
from backupd.rsync.confined import confinement, require_harmless
from btrkeep.cli import print_answer, print_error
from btrkeep.cli.output import print_wrapped
from btrkeep.config import HostConfig
from btrkeep.errors import Exit, OperatorError, UsageError
from btrkeep.pool.locks import take_lock
from btrkeep.process.proc import become_reaper
from btrkeep.process.progress import Cancellation, Status
from btrkeep.units import counted, format_time, printable

_SHOWN = 100


def compare_hosts(context: PoolContext, which: tuple[str, ...], scope: SourceScope, *, dry_run: bool, as_json: bool) -> int:
    """Compares the hosts of these names, or all; returns the exit status. Raises UsageError."""
    hosts = _hosts(context, which)
    if dry_run:
        return _say_plan(hosts, as_json)
    cancellation, status = Cancellation(), Status()
    host_findings: list[SourceFindings] = []
    failed = 0
    rsync, limits = rsync_version(), confinement(context.config)
    become_reaper()
    with ExitStack() as held:
        since = format_time(context.clock.now())
        held.enter_context(take_lock(context.pool.locks / "source", "backupd verify --against-source", since))
        held.enter_context(cancellation.listening())
        held.enter_context(writing(context.pool))
        work = SourceComparison(
            context.pool,
            context.catalogue,
            context.config,
            scope,
            cancellation,
            lambda files: status.say(f"{counted(files, 'file')} compared"),
            confined=not limits.missing,
        )
        for host in hosts:
            if work.is_over:
                break
            now = context.clock.now()
            try:
                if host.address:
                    require_harmless(rsync, limits, context.config)
                done = work.compare(host, now)
            except OperatorError as error:
                print_error(error)
                failed += 1
                continue
            if done is None:
                break
            host_findings.append(done)
            if not as_json:
                _say(done)
        is_over = not work.is_over
    print_answer({"files": work.files, "is_whole": is_over, "hosts": list(map(_fields, host_findings))}, (), as_json=as_json)
    return cancellation.exit_status(
        Exit.ATTENTION if failed or any(source_findings.differing for source_findings in host_findings) else Exit.OK
    )


def _hosts(context: PoolContext, which: tuple[str, ...]) -> list[HostConfig]:
    configured = context.config.hosts
    for name in which:
        if "@" in name:
            raise UsageError("a host is compared with its newest complete backup", f"write {name.partition('@')[0]}")
        if name not in configured:
            raise UsageError(f"{printable(name)} is not configured", "`backupd host list` shows the hosts")
    in_pool = set(hosts_of(context.pool))
    return [configured[name] for name in which or sorted(in_pool & set(configured)) if which or configured[name].enabled]


def _say_plan(hosts: list[HostConfig], as_json: bool) -> int:
    return print_answer([{"host": host.name} for host in hosts], [printable(host.name) for host in hosts], as_json=as_json)


def _fields(findings: SourceFindings) -> dict[str, Any]:
    return {
        "host": findings.backup.host,
        "name": findings.backup.name,
        **comparison_fields(findings.comparison),
        "is_whole": findings.is_over,
        "passed_over": findings.passed_over,
        "differs": list(map(_text, findings.differing)),
    }


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _say(findings: SourceFindings) -> None:
    comparison = findings.comparison
    part = "" if findings.is_over else ", in part"
    print_wrapped(
        f"{printable(findings.backup.host)} {findings.backup.name}: "
        f"{counted(comparison.files, 'file')} compared with the host{part}: "
        f"{comparison.alike:,} equal, {comparison.changed:,} changed or deleted after the backup"
        + (f"; {comparison.differing:,} with different content, although size and time are equal:" if findings.differing else "")
    )
    if findings.passed_over:
        skipped = counted(findings.passed_over, "file")
        print_wrapped(f"{skipped} skipped, because comparing them takes more than half of --time: use a longer --time")
    for path in findings.differing[:_SHOWN]:
        print_wrapped(f"  {printable(_text(path))}")
    if (more := len(findings.differing) - _SHOWN) > 0:
        print_wrapped(f"  and {more:,} more")
    if findings.differing:
        print_wrapped(
            "these files are damaged in the backup, or changed on the host without a new size or time; the next run fetches them"
        )
