"""`backupd verify`: reads the files of backups from the disk, and compares them with their recorded checksums.

The progress is a line that changes on a terminal, and the line of `systemctl status`.
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Self

import click

from backupd.cli.command_context import opened, pace_option, pass_context, time_option
from backupd.cli.names import backups_argument
from backupd.expire.trust import clock_doubt
from backupd.files.backup_selector import Restorable, named
from backupd.files.tree import DataUnreadable
from backupd.proof.after_crash import boot_record, in_doubt_verifier, note_stop, read_in_doubt, record_boot
from backupd.proof.against_source import SourceScope
from backupd.proof.cli.against_source import compare_hosts
from backupd.proof.read_errors import OwnReads
from backupd.proof.verify import Verifier, unreadable_backups
from backupd.proof.verify_pass import ReadCount, ReadScope
from backupd.repo.notes_json import read_notes
from backupd.repo.pool_context import PoolContext, writing
from backupd.repo.pool_files import has_backups_in_doubt, hosts_of
from backupd.repo.reconcile import check_seals, reconcile
from backupd.repo.seals import SealState, altered_paths, check_seal, read_seals
from backupd.repo.verification_files import read_verified, verification_fields, verified_row
from btrkeep.backup_states import ALTERED
from btrkeep.catalogue import Catalogue, CatalogueBusy
from btrkeep.cli import json_option, print_answer, print_error
from btrkeep.cli.arguments import ParsedType
from btrkeep.cli.output import ProgressLine, print_wrapped
from btrkeep.decisions.due import latest
from btrkeep.decisions.repeated import AttemptOutcome, Step, noted_attempt
from btrkeep.decisions.verification import (
    BackupsInDoubt,
    RunningVerification,
    Verification,
    VerificationState,
    in_doubt_words,
    is_empty,
    note_verifying,
    verified,
)
from btrkeep.errors import Exit, OperatorError, UsageError
from btrkeep.pool.locks import VERIFY_LOCK, take_lock
from btrkeep.pool.subvolume import commit, describe
from btrkeep.process.proc import start_time
from btrkeep.process.progress import Cancellation, Status
from btrkeep.units import counted, format_size, format_time, local_time, parse_share, printable


class VerifyProgress:
    """Shows the counts of a pass, and the backup that is being read."""

    def __init__(self, record: Callable[[Callable[[], str]], None], *, is_shown: bool) -> None:
        """Shows nothing on a terminal unless `is_shown`. `record`: stores the progress for the dashboard."""
        self._record = record
        self._status, self._line, self._begun = Status(), ProgressLine(is_shown=is_shown), time.monotonic()
        self._head, self._before = "", ReadCount()
        self._files: int | None = None

    def begin(self, count: ReadCount, backup: Restorable, number: int, of: int) -> None:
        """Starts `backup`, number `number` of `of`; `count`: the files read before."""
        self._head, self._files = f"[{number}/{of}] {printable(backup.host)} {backup.name}", backup.record.files
        self._before = replace(count)

    def begin_in_doubt(self) -> None:
        """Starts the backups that were written before a crash."""
        self._head, self._files = "written before a crash", None

    def __call__(self, count: ReadCount) -> None:
        """Shows the counts, at most a few times a second."""
        self._line.go_on(lambda: self._text(count))
        self._status.go_on(lambda: self._text(count))
        self._record(lambda: self._text(count))

    def clear(self) -> None:
        """Removes the line, before any other output."""
        self._line.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def _text(self, count: ReadCount) -> str:
        done, spent = count.bytes + count.under_way, max(0.001, time.monotonic() - self._begun)
        names = count.names - self._before.names
        files = f"{names:,} of {max(names, self._files):,} files" if self._files else f"{names:,} files"
        damaged = f", {count.damaged:,} damaged" if count.damaged else ""
        return f"{self._head}: {files}{damaged}; {format_size(done)} read, {format_size(round(done / spent))}/s"


_EVERY = 10.0  # seconds


class VerificationRecord:
    """Records for the dashboard that a verification runs, and its progress. If the catalogue is busy, that is recorded later."""

    def __init__(self, catalogue: Catalogue, now: datetime) -> None:
        self._catalogue, self._begun, self._last = catalogue, time.monotonic(), float("-inf")
        self._state = RunningVerification(os.getpid(), start_time(os.getpid()), now, now)

    def __call__(self, words: Callable[[], str]) -> None:
        """Records the progress, at most every few seconds."""
        if time.monotonic() - self._last >= _EVERY:
            self._last = time.monotonic()
            updated = self._state.began + timedelta(seconds=self._last - self._begun)
            self._put(replace(self._state, updated=updated, words=words()))

    def __enter__(self) -> Self:
        self(str)
        return self

    def __exit__(self, *_: object) -> None:
        self._put(None)

    def _put(self, state: RunningVerification | None) -> None:
        with suppress(CatalogueBusy):
            note_verifying(self._catalogue, state)


_MOST_PATHS = 20  # changed paths of a backup


def _sample(text: str) -> int | float:
    """Parses a number of files, or a share."""
    if text == "all":
        return 1.0
    return int(text) if re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII) else parse_share(text)


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """The options of the command."""

    sample: int | float
    """A number of files, or a share."""
    seconds: float | None
    """No file is started after this many seconds; None: no limit."""
    pace: float | None
    """The share of the time in which processes may wait for I/O; None: no limit."""
    against_source: bool
    """True to compare with the hosts."""
    after_crash: bool
    """True to read only backups in doubt after a crash."""
    clean_stop: bool
    """True to record that this server is shut down properly."""
    dry_run: bool
    """True to read nothing."""
    as_json: bool
    """True for JSON."""


@click.command("verify")
@backups_argument
@click.option(
    "--sample",
    type=ParsedType("sample", _sample),
    default="all",
    show_default=True,
    metavar="N|P%|all",
    help="About how many files to read, or which share of each backup; chosen at random.",
)
@time_option
@pace_option
@click.option(
    "--against-source",
    is_flag=True,
    help="Compare the newest complete backup of each HOST with the host by content; a share continues where the last run stopped.",
)
@click.option("--after-crash", is_flag=True, help="Only backups written shortly before a crash of this server and not read since.")
@click.option("--clean-stop", is_flag=True, help="Read nothing; record that this server is shut down properly.")
@click.option("--dry-run", is_flag=True, help="Show what would be read, in this order; read nothing.")
@json_option
@pass_context
def command(ctx: click.Context, which: tuple[str, ...], **options: Any) -> int:
    """Read the files of backups from the disk, and compare them with their recorded checksums.

    Without arguments it reads all backups of all hosts, otherwise those of each HOST, or each HOST@BACKUP. Backups that were not
    verified for the longest time come first. A file that several backups share is read once. The first time a file is read, its
    checksum is recorded; later, it is compared with that. A file whose blocks do not match the checksums of btrfs is unreadable,
    even the first time.

    Ctrl-C, SIGTERM and --time stop it. The next `backupd verify` continues from there.

    After a crash of this server, the files that were written in the last minutes before it come first. With --after-crash, only
    these are read; nothing is read if there was no crash, or if all of them have been read since.

    With --against-source, rsync compares checksums with the host. If a file has the same size and time but different content, it is
    damaged in the backup, or was changed on the host and given its old time. The next run fetches it again.

    Exit status 0: nothing is damaged or altered; 1: a file or backup is damaged or altered, or a backup could not be read, or
    not be compared with its seal; 3: another verify is running.
    """
    given = VerifyOptions(**options)
    with opened(ctx, writes=not given.dry_run) as context:
        context.config.require_section("verify")
        if given.against_source:
            if given.pace is not None:
                raise UsageError(
                    "--pace and --against-source exclude each other",
                    "leave --pace out; `bandwidth` in [backup] limits the transfer",
                )
            return compare_hosts(
                context, which, SourceScope(given.sample, given.seconds), dry_run=given.dry_run, as_json=given.as_json
            )
        moment = context.clock.now()
        if given.clean_stop:
            with writing(context.pool):
                note_stop(context.pool, moment)
            return int(Exit.OK)
        if given.after_crash and which:
            raise UsageError("--after-crash takes no HOST", "`backupd verify HOST` reads all of its backups")
        if given.after_crash and given.dry_run:
            return _print_in_doubt(context, given.as_json)
        chosen = (
            [] if given.after_crash else sorted(_chosen(context, which), key=lambda pair: (_last(pair[1], moment), pair[0].name))
        )
        if given.dry_run:
            return _print_plan(chosen, given.as_json)
        record = VerificationRecord(context.catalogue, moment)
        run = _VerifyRun(context, VerifyProgress(record, is_shown=not given.as_json), given)
        with (
            take_lock(context.pool.locks / VERIFY_LOCK, "backupd verify", format_time(moment)),
            writing(context.pool),
            run.cancellation.listening(),
            run.progress,
            record,
            noted_attempt(context.catalogue, Step.VERIFY, moment) as attempt,
        ):
            own = OwnReads(context, moment)
            if has_backups_in_doubt(context.pool):
                with own.counting(run.met):
                    run.read_in_doubt()
            commit(context.pool.path)  # a manual change that is still in memory is not in a transaction yet
            if (changed := check_seals(context.pool, context.catalogue, format_time(moment))) and not given.as_json:
                print_wrapped(str(changed))
            _update_catalogue(context, chosen)
            run.print_altered([backup for backup, _ in chosen])
            run.read([backup for backup, _ in chosen], moment, own)
            if not given.after_crash:
                run.print_unreadable([argument for argument in which if "@" not in argument] if which else hosts_of(context.pool))
            own.forget()
            came_forward = not chosen or any(verify_pass.count.files for verify_pass in run.passes)
            attempt.end(AttemptOutcome.DONE if came_forward else AttemptOutcome.UNFINISHED, "no file was read")
    return run.report()


@dataclass(slots=True)
class _VerifyRun:
    """A run over several backups, and its results."""

    context: PoolContext
    progress: VerifyProgress
    given: VerifyOptions
    cancellation: Cancellation = field(default_factory=Cancellation)
    passes: list[Verifier] = field(default_factory=list)
    read_backups: list[dict[str, Any]] = field(default_factory=list)
    """The lines printed for each backup."""
    altered: list[dict[str, Any]] = field(default_factory=list)
    """Backups that were changed after they were final, with the paths."""
    unreadable: int = 0
    """Backups of which no file could be read."""
    not_compared: list[dict[str, Any]] = field(default_factory=list)
    """Backups that could not be compared with their seals, with the reason: they may be altered."""

    def met(self) -> int:
        """Returns the number of files and backups that could not be read, or had another content."""
        return self.unreadable + sum(verify_pass.count.damaged for verify_pass in self.passes)

    def read_in_doubt(self) -> None:
        """Reads the data that a crash may have damaged, before everything else and without limits."""
        context = self.context
        corrected = reconcile(context.pool, context.catalogue, format_time(context.clock.now()))
        if corrected and not self.given.as_json:
            print_wrapped(corrected.sentence)
        record = record_boot(context.pool, context.catalogue, context.clock.now(), context.config.verify.after_crash)
        if record.unread and not self.given.as_json:
            print_wrapped(in_doubt_words(BackupsInDoubt(record.seen, record.unread)))
        self.progress.begin_in_doubt()
        self.passes.append(in_doubt_verifier(context, record, self.cancellation, self.progress))
        for result in read_in_doubt(record, self.passes[0]):
            self.progress.clear()
            if isinstance(result, OperatorError):
                print_error(result)
                self.unreadable += isinstance(result, DataUnreadable)
            else:
                self._add(*result)

    def read(self, backups: Sequence[Restorable], moment: datetime, own: OwnReads) -> None:
        """Reads the backups, or as many of their files as `sample` allows, until the time is over."""
        sample = self.given.sample
        files = sum(backup.record.files or 0 for backup in backups)
        share = sample if isinstance(sample, float) else min(1.0, sample / max(1, files))
        doubt_of_clock = clock_doubt(self.context.catalogue, moment, rehearsal=self.context.pool.rehearsal)
        scope = ReadScope(share, self.given.seconds, self.given.pace, forgets=doubt_of_clock is None)
        work = Verifier(self.context.pool, self.context.catalogue, moment, scope, self.cancellation, self.progress)
        self.passes.append(work)
        for number, backup in enumerate(backups, 1):
            if work.is_over:
                return
            self.progress.begin(work.count, backup, number, len(backups))
            with own.counting(self.met):
                try:
                    done = work.verify(backup)
                except OperatorError as error:  # it is being deleted, was deleted, or has no readable file
                    self.progress.clear()
                    print_error(error)
                    self.unreadable += isinstance(error, DataUnreadable)
                    continue
            self.progress.clear()
            self._add(backup, done)

    def print_altered(self, backups: Sequence[Restorable]) -> None:
        """Prints the changes in backups that were changed after they were final, and which could not be compared with their seals.

        A running backup of the host keeps `check_seals` from checking, so this compares once more, and needs no lock.
        """
        notes_of, seals_of = cache(read_notes), cache(read_seals)
        for backup in backups:
            folder, problem, paths = self.context.pool.host(backup.host), "", list[bytes]()
            is_altered = notes_of(folder).is_altered(backup.name)
            try:
                if (subvolume := describe(backup.path)) is None:  # just deleted: reading it reports that
                    continue
                state = check_seal(backup.path, subvolume, seals_of(folder), backup.name).state
                is_altered = is_altered or state is SealState.ALTERED
                paths = altered_paths(backup.path, subvolume) if is_altered else []
                problem = "it has no seal yet; the next run seals it" if state is SealState.NEW else ""
            except OSError as error:
                problem = f"{error.strerror}; check the kernel's messages (dmesg), then run `backupd verify` again"
            if is_altered:
                self._print_changes(backup, [os.fsdecode(path) or "." for path in paths], problem)
            elif problem:
                self.not_compared.append({"host": backup.host, "name": backup.name, "why": problem})
                message = f"{printable(backup.host)}@{backup.name} could not be compared with its seal, so it may be altered"
                print_error(OperatorError(message, problem))

    def _print_changes(self, backup: Restorable, names: list[str], problem: str) -> None:
        self.altered.append({"host": backup.host, "name": backup.name, "paths": names})
        if self.given.as_json:
            return
        paths = f"{counted(len(names), 'changed path')}{' or more' if problem else ''}"
        print_wrapped(f"{printable(backup.host)}@{backup.name} was altered after it was final: {paths}")
        for name in names[:_MOST_PATHS]:
            print_wrapped(f"  {printable(name)}")
        if len(names) > _MOST_PATHS:
            print_wrapped(f"  and {len(names) - _MOST_PATHS:,} more; --json lists all")
        if problem:
            print_wrapped(f"  the list may be incomplete: {problem}")

    def print_unreadable(self, hosts: Sequence[str]) -> None:
        """Prints the backups that cannot be read at all, not even their records."""
        for host, name in unreadable_backups(self.context.pool, hosts):
            self.passes[-1].note_unreadable(host, name)
            self.unreadable += 1
            print_error(
                OperatorError(
                    f"no file of {printable(host)}@{name} can be read", "check the kernel's messages (dmesg) and `backupd scrub`"
                )
            )

    def _add(self, backup: Restorable, done: Verification) -> None:
        is_altered = any((row["host"], row["name"]) == (backup.host, backup.name) for row in self.altered)
        self.read_backups.append(_fields(backup, done, is_altered=is_altered))
        if not self.given.as_json:
            _print_backup(backup, done)

    def report(self) -> int:
        """Prints the totals. Returns the exit status."""
        files, size = (sum(getattr(verify_pass.count, name) for verify_pass in self.passes) for name in ("files", "bytes"))
        is_over = self.passes[-1].is_over
        answer = {
            "files": files,
            "bytes": size,
            "is_whole": not is_over,
            "altered": self.altered,
            "not_compared": self.not_compared,
            "backups": self.read_backups,
        }
        text = f"{counted(files, 'file')} read, {format_size(size)}" + ("; the next verify continues" if is_over else "")
        print_answer(answer, [text], as_json=self.given.as_json)
        is_bad = self.unreadable or self.altered or self.not_compared or any(row["damages"] for row in self.read_backups)
        return self.cancellation.exit_status(Exit.ATTENTION if is_bad else Exit.OK)


def _print_in_doubt(context: PoolContext, as_json: bool) -> int:
    record = boot_record(context.pool, context.catalogue, context.clock.now(), context.config.verify.after_crash)
    backups = [{"host": host, "name": name} for host, name in sorted(record.unread)]
    text = (f"{printable(backup['host'])} {backup['name']}: written just before a crash, and not read since" for backup in backups)
    return print_answer(backups, text, as_json=as_json)


def _chosen(context: PoolContext, which: tuple[str, ...]) -> list[tuple[Restorable, Verification | None]]:
    """Returns the selected backups, with their recorded results. Raises UsageError."""
    restorables = named(context.pool, which or hosts_of(context.pool))
    verifications = {host: read_verified(context.pool.host(host)) for host in {backup.host for backup in restorables}}
    return [(backup, verifications[backup.host].get(backup.name)) for backup in restorables]


def _update_catalogue(context: PoolContext, chosen: list[tuple[Restorable, Verification | None]]) -> None:
    """Updates the catalogue from earlier results, because a killed `verify` may not have written the rows."""
    rows = [verified_row(backup.host, backup.name, verification) for backup, verification in chosen if verification]
    recorded = {host: context.catalogue.verifications(host) for host in {row.host for row in rows}}
    if news := [row for row in rows if recorded[row.host].get(row.name) != row]:
        context.catalogue.put_verifications(news)


def _last(verification: Verification | None, now: datetime) -> float:
    """Returns when it was last read; a time in the future, from a clock that was ahead, counts as never."""
    return verification.at.timestamp() if verification and verification.at <= latest(now) else 0.0


def _fields(backup: Restorable, verification: Verification | None, *, is_altered: bool = False) -> dict[str, Any]:
    if verification is None:
        return {"host": backup.host, "name": backup.name, "state": str(VerificationState.NEVER)}
    empty = is_empty(ALTERED if is_altered else backup.record.state, backup.record.files)
    state = verified(verification, None, verification.damages, verification.at, empty=empty).state  # by this pass alone
    return {"host": backup.host, "name": backup.name, "state": str(state), **verification_fields(verification)}


def _print_plan(chosen: list[tuple[Restorable, Verification | None]], as_json: bool) -> int:
    def text() -> Iterator[str]:
        for backup, verification in chosen:
            last = f"last read {local_time(verification.at)}" if verification else "never read"
            yield f"{printable(backup.host)} {backup.name}: {last}"

    return print_answer([_fields(*pair) for pair in chosen], text(), as_json=as_json)


def _print_backup(backup: Restorable, verification: Verification) -> None:
    whole = "" if verification.is_over else ", in part"
    name, read = f"{printable(backup.host)} {backup.name}", counted(verification.read, "file")
    head = f"{name}: {read} read, {verification.compared:,} compared{whole}"
    if not verification.damages:
        print_wrapped(head)
        return
    print_wrapped(f"{head}; {counted(verification.damages, 'file')} damaged:")
    for path in verification.damaged:
        print_wrapped(f"  {printable(path)}")
    if more := verification.damages - len(verification.damaged):
        print_wrapped(f"  and {more:,} more")
