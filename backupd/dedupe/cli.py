"""`backupd dedupe`: equal files of backups share their data. The job's row in the catalogue has its progress, and then the saved
bytes.

Only hosts of one group may share data, because the used space of a host reveals which files others have.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta

import click

from backupd.cli.command_context import dry_run_option, opened, pace_option, pass_context, time_option
from backupd.cli.names import backups_argument
from backupd.dedupe.deduper import Deduper, Pacer, SharedBackup, SharingPlan
from backupd.files.backup_selector import named
from backupd.proof.after_crash import read_before_waiting
from backupd.repo.pool_context import PoolContext, writing
from backupd.repo.pool_files import hosts_of
from btrkeep.backup_states import COMPLETE
from btrkeep.catalogue import Catalogue
from btrkeep.cli import json_option, print_answer
from btrkeep.cli.arguments import ParsedType
from btrkeep.cli.output import print_wrapped
from btrkeep.config import HostConfig
from btrkeep.pool.allocation import Space, read_allocation
from btrkeep.pool.locks import Lock, take_lock
from btrkeep.pool.subvolume import commit
from btrkeep.process.proc import start_time
from btrkeep.process.progress import Cancellation, Status
from btrkeep.units import counted, format_size, format_time, parse_size, printable

_EVERY = 5.0  # seconds between two writes

Used = tuple[int, int]
"""Bytes of data and of metadata in use."""


class DedupeJob:
    """A run that has started. The caller has the lock `dedupe` of the pool."""

    def __init__(self, catalogue: Catalogue, now: datetime) -> None:
        self._catalogue, self._now, self._begun, self._written = catalogue, now, time.monotonic(), time.monotonic()
        self._counts = dict.fromkeys(("backups", "files", "shared_bytes", "read_bytes", "left_out"), 0)
        self._id = catalogue.start_dedupe(now, os.getpid(), start_time(os.getpid()))

    @property
    def _moment(self) -> datetime:
        return self._now + timedelta(seconds=time.monotonic() - self._begun)

    def add(self, backup: SharedBackup) -> None:
        """Adds the result of one backup."""
        totals = {
            "backups": 1,
            "files": backup.files,
            "shared_bytes": backup.shared,
            "read_bytes": backup.read,
            "left_out": bool(backup.left),
        }
        for name, number in totals.items():
            self._counts[name] += number

    def beat(self) -> None:
        """Records the progress from time to time; called often."""
        if time.monotonic() - self._written >= _EVERY:
            self._written = time.monotonic()
            self._catalogue.update_dedupe(self._id, updated=self._moment, **self._counts)

    def end(self, outcome: str, before: Used | None = None, after: Used | None = None) -> None:
        """Ends the job. `before`, `after`: the bytes that the pool used, if the job completed."""
        saved = {"data_saved": before[0] - after[0], "metadata_added": after[1] - before[1]} if before and after else {}
        moment = self._moment
        self._catalogue.update_dedupe(self._id, finished=moment, updated=moment, outcome=outcome, **self._counts, **saved)


@contextmanager
def recorded_job(catalogue: Catalogue, now: datetime) -> Iterator[DedupeJob]:
    """Yields the job, whose `end` the caller calls; an error ends it as failed."""
    job = DedupeJob(catalogue, now)
    try:
        yield job
    except BaseException:
        job.end("failed")
        raise


_ACROSS = ("across", "")


def domains(hosts: Iterable[str], configured: Mapping[str, HostConfig]) -> list[list[str]]:
    """Returns lists of hosts that may share: one for each group, one for all hosts with `share_across_groups`.

    A host without a group, or one that is no longer configured, shares only among its own backups.
    """
    by_domain: dict[tuple[str, str], list[str]] = {}
    for host in hosts:
        by_domain.setdefault(_domain(host, configured.get(host)), []).append(host)
    return list(by_domain.values())


def _domain(host: str, config: HostConfig | None) -> tuple[str, str]:
    if config and config.share_across_groups:
        return _ACROSS
    return ("group", config.group) if config and config.group else ("host", host)


@click.command("dedupe")
@backups_argument
@click.option(
    "--min-size",
    type=ParsedType("size", parse_size),
    metavar="SIZE",
    help="Only files of at least this size. Without it: 32 KiB for each backup of the host; less would cost more than it saves.",
)
@time_option
@pace_option
@dry_run_option("the files known to be equal, and how much would be read")
@json_option
@pass_context
def command(
    ctx: click.Context,
    which: tuple[str, ...],
    min_size: int | None,
    seconds: float | None,
    pace: float | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Make equal files of backups share their data, whatever their names: moved and copied files, and files of several hosts.

    Without arguments it compares all complete backups of all hosts, otherwise those of each HOST, or each HOST@BACKUP. Hosts share
    only within their group, unless share_across_groups is set for them. It uses the checksums that `backupd verify` recorded.
    Files that verify has not read yet are read if another file has the same size. The kernel compares all data before it shares
    it, so no content changes.

    It pauses while a backup, an expiry or a balance is running, and skips a backup that is being restored or sent. Ctrl-C, SIGTERM
    and --time end it; the next dedupe continues.

    Exit status 0: done, or ended by --time; 3: a verify or another dedupe is running; 4: the pool is full or read-only.
    """
    cancellation, status = Cancellation(), Status()
    with opened(ctx, writes=not dry_run) as context, cancellation.listening():
        pacer = Pacer(context.pool.locks, cancellation, seconds=seconds, pressure=pace, tell=status.say)
        chosen = [backup for backup in named(context.pool, which or hosts_of(context.pool)) if backup.state == COMPLETE]
        parts = [
            [backup for backup in chosen if backup.host in hosts] for hosts in domains(hosts_of(context.pool), context.config.hosts)
        ]
        moment = context.clock.now()
        settled = None if context.pool.rehearsal else moment - timedelta(seconds=context.config.verify.after_crash)

        def locked(name: str) -> Lock:
            return take_lock(context.pool.locks / name, "backupd dedupe", format_time(moment))

        def deduper(tell: Callable[[str], None]) -> Deduper:
            return Deduper(context.pool, moment, pacer, min_size, tell, lambda: locked("verify"), settled)

        if dry_run:
            _say_plan([deduper(lambda line: status.go_on(lambda: line)).plan(part) for part in parts if part], as_json=as_json)
            return cancellation.exit_status()
        read_before_waiting(context, lambda line: print_wrapped(line, err=True), cancellation)
        locked("verify").release()  # not while a verify reads
        with locked("dedupe"), writing(context.pool), recorded_job(context.catalogue, moment) as job:

            def tell(line: str) -> None:
                status.go_on(lambda: line)
                job.beat()

            before, done = _used(context), list[SharedBackup]()
            for backup in (backup for part in parts if part for backup in deduper(tell).share(part)):
                done.append(_printed(backup, as_json))
                job.add(backup)
            after = _used(context)
            job.end("stopped" if pacer.is_over else "complete", before, after)
    _say(done, before, after, is_whole=not pacer.is_over, as_json=as_json)
    return cancellation.exit_status()


def _used(context: PoolContext) -> tuple[int, int]:
    """Bytes of data and of metadata in use after a commit, as the sizes of files."""
    commit(context.pool.path)
    spaces = read_allocation(context.pool.path).spaces
    return _used_bytes(spaces, ("data", "mixed")), _used_bytes(spaces, ("metadata",))


def _used_bytes(spaces: Sequence[Space], types: tuple[str, ...]) -> int:
    return sum(space.used for space in spaces if space.type in types)


def _printed(backup: SharedBackup, as_json: bool) -> SharedBackup:
    if not as_json and backup.files:
        words = f"{counted(backup.files, 'file')} share {format_size(backup.shared)}" + (
            f"; the rest is skipped: {backup.left}" if backup.left else ""
        )
        print_wrapped(f"{printable(backup.backup.host)} {backup.backup.name}: {words}")
    return backup


def _say(done: Sequence[SharedBackup], before: tuple[int, int], after: tuple[int, int], *, is_whole: bool, as_json: bool) -> None:
    total = sum(backup.shared for backup in done)
    sums = {"shared_bytes": total, "read_bytes": sum(backup.read for backup in done), "is_whole": is_whole}
    used = {"data_before": before[0], "data_after": after[0], "metadata_before": before[1], "metadata_after": after[1]}
    data, metadata = _difference(before[0] - after[0], "less", "more"), _difference(after[1] - before[1], "more", "less")
    text = [
        *_left_lines(backup.left for backup in done if backup.left and not backup.files),
        f"{format_size(total)} of data are now shared" + ("" if is_whole else "; the next dedupe continues"),
        f"the pool uses {data} for data, and {metadata} for metadata, including the effects of other jobs",
    ]
    print_answer(sums | used | {"backups": [_fields(backup) for backup in done]}, text, as_json=as_json)


def _difference(size: int, above: str, below: str) -> str:
    return f"{format_size(abs(size))} {above if size >= 0 else below}"


def _fields(backup: SharedBackup) -> dict[str, str | int | None]:
    numbers = {"files": backup.files, "shared_bytes": backup.shared, "read_bytes": backup.read}
    return {"host": backup.backup.host, "name": backup.backup.name, **numbers, "left": backup.left or None}


def _say_plan(plans: Sequence[SharingPlan], *, as_json: bool) -> None:
    files, equal, unread = (sum(getattr(plan, name) for plan in plans) for name in ("files", "equal", "unread"))
    left = [{"host": backup.host, "name": backup.name, "left": why} for plan in plans for backup, why in plan.left]
    text = [
        f"{counted(files, 'file')} ({format_size(equal)}) equal another file, by their checksums; some may already share data",
        f"{format_size(unread)} would be read to find more",
        *_left_lines(why for plan in plans for _, why in plan.left),
    ]
    print_answer({"files": files, "equal_bytes": equal, "unread_bytes": unread, "left": left}, text, as_json=as_json)


def _left_lines(reasons: Iterable[str]) -> list[str]:
    return [f"{counted(number, 'backup')} skipped: {why}" for why, number in Counter(reasons).items()]
