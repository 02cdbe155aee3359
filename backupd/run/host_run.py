"""One host's backup, from the lock to the row in the catalogue.

Each step is in its own module: lock (interrupted), `.working` (work_subvolume), rsync per source path (source_paths), judgement
(verdict), final or partial (finalisation), row (repo.catalogue_row). This module has their order, and the handling of their errors.
"""

import asyncio
import errno
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from datetime import datetime, timedelta
from typing import Any

from backupd.proof.damaged_files import recorded_damage
from backupd.repo.backup_json import PathOutcome, Record
from backupd.repo.catalogue_row import backup_row
from backupd.repo.final_backups import HostIsReplica, discard, require_not_replica
from backupd.repo.pool_files import names_of
from backupd.repo.seals import sealed_row
from backupd.repo.verification_files import forgotten_damages
from backupd.rsync.confined import require_harmless
from backupd.rsync.messages import reports_damage
from backupd.rsync.process import RunCancellation
from backupd.run import finalisation, hooks
from backupd.run import work_subvolume as working
from backupd.run.emptied import judged, with_emptied
from backupd.run.fetched_twice import standing_keys, with_fetched_twice
from backupd.run.finalisation import ShareWith, WorkSubvolume
from backupd.run.fresh_sums import SumLimits
from backupd.run.interrupted import take_host_lock
from backupd.run.other_file_systems import STOPPED, not_looked, with_left_out
from backupd.run.run_context import HostResult, RunContext, RunningTransfer
from backupd.run.source_paths import HostTransfer, Pause
from backupd.run.stream_paths import StreamTransfer, StreamWay, Transfer, new_transfer
from backupd.run.verdict import RunVerdict, decide_run
from backupd.run.work_subvolume import is_damaged
from btrkeep import __version__
from btrkeep.backup_states import PARTIAL, RUNNING, Cause, CauseCode, ConditionKey
from btrkeep.catalogue import Backup, Damage
from btrkeep.clock import elapsed
from btrkeep.config import HostConfig
from btrkeep.config.reading import backupd_command
from btrkeep.decisions.cause_words import cause_words
from btrkeep.decisions.lasting import follow
from btrkeep.errors import READ_ONLY_HINT, LockHeld, OperatorError, PoolUnusable, is_caused_by_damage, is_damage
from btrkeep.fs.openat import is_there
from btrkeep.pool.locks import Lock
from btrkeep.pool.marker import Pool
from btrkeep.pool.mounts import mount_options
from btrkeep.pool.subvolume import describe
from btrkeep.pool.syncfs import Syncfs, syncing
from btrkeep.process.proc import start_time
from btrkeep.process.progress import Cancelled
from btrkeep.units import format_time

log = logging.getLogger(__name__)

_LATE = Cause(CauseCode.DEADLINE)
_SUMS_SHARE = 0.02  # of the run's time


class HostRun:
    """The backup of one host, once. `cancellation` may be used from outside at any time."""

    def __init__(self, context: RunContext, host: HostConfig) -> None:
        self.context = context
        self.host = host
        self.cancellation = RunCancellation()
        self.stopped_for: str | None = None  # for the record (Record.stopped_for)
        self.pause: Pause = lambda seconds, _: self.cancellation.wait(seconds)
        self.after_hook_cancellation = RunCancellation()  # a first signal lets that hook finish
        self.begin()
        self.seconds: dict[str, float] = {}
        self.run_id = 0
        self.transfer: Transfer | None = None
        self.standing: list[ConditionKey] = []
        self.row: Backup | None = None  # the catalogue's row of `.working` during this run
        self.ended = False
        self._deadline: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Starts to count its time now: it may have waited since it was made."""
        self.started = self.context.clock.now().replace(microsecond=0)  # names and backup.json have whole seconds
        self.begun = elapsed()

    def _ends_within(self, seconds: float) -> None:
        self._deadline = asyncio.get_running_loop().call_later(seconds, self.cancellation.cancel_for, _LATE)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Stops counting towards its deadline while it waits for others."""
        assert self._deadline is not None
        left = self._deadline.when() - asyncio.get_running_loop().time()
        self._deadline.cancel()
        try:
            yield
        finally:
            self._ends_within(left)

    def kill(self) -> None:
        """Stops everything that runs for this host now."""
        self.cancellation.kill()
        self.after_hook_cancellation.kill()

    async def run(self) -> HostResult:
        """Runs the whole backup. Raises PoolUnusable if no other host can be backed up either; every other error
        becomes a result.
        """
        path, purpose = self.context.pool.host_lock(self.host.name), f"backup of {self.host.name}"
        try:
            with await take_host_lock(path, purpose, format_time(self.started), sealed=self.context.confines(self.host)) as lock:
                return await self._run_locked(lock)
        except LockHeld as error:
            return HostResult(self.host.name, "locked", error.message)

    async def _run_locked(self, lock: Lock) -> HostResult:
        """Records the run and its result in the catalogue, whatever happens. Raises PoolUnusable."""
        pid = os.getpid()
        self.run_id = self.context.catalogue.start_run(self.host.name, self.started, pid, start_time(pid), self.context.night)
        running = self.context.running[self.host.name] = RunningTransfer(self.host.name, self.run_id, pid=pid)
        self.context.sinks(running)
        self._ends_within(self.host.deadline)
        try:
            if self.host.address:
                require_harmless(self.context.rsync, self.context.confinement, self.context.config)
            return await self._with_hooks(lock, running)
        except HostIsReplica as error:
            if not self.context.night:  # an operator requested it
                return self._failed(error.message)
            self._finish_run("skipped", error.message)
            return HostResult(self.host.name, "skipped", error.message)
        except PoolUnusable as error:
            self._failed(error.message)
            raise
        except OperatorError as error:
            result = self._failed(f"{error.message}; {error.hint}" if is_damage(error.__cause__) else error.message)
            if is_damage(error.__cause__):
                self._require_working_pool()
            return result
        except OSError as error:
            result = self._failed(f"error on this server: {error}")
            self._require_working_pool()
            return result
        finally:
            if self._deadline:
                self._deadline.cancel()
            self.context.running.pop(self.host.name, None)
            if not self.ended:  # a bug, which the caller writes to the log
                self._failed(Cause(CauseCode.INTERNAL_ERROR))

    async def _with_hooks(self, lock: Lock, running: RunningTransfer) -> HostResult:
        """Runs the hooks: `before` may skip or fail the host; `after` runs whenever `before` succeeded, and its failure is
        reported.
        """
        require_not_replica(self.context.pool, self.host.name)
        problem = await hooks.run(
            "before", self.host, self.context.pool, self.cancellation, state="", config_file=self.context.config.file
        )
        if problem and problem.skip:
            self._finish_run("skipped", problem.message)
            return HostResult(self.host.name, "skipped", problem.message)
        if problem:
            return self._failed(problem.message)
        state = "failed"
        try:
            result = await self._backup(lock, running)
            state = result.outcome
        finally:
            self.context.running.pop(self.host.name, None)  # its run has ended, so its progress must no longer be written
            late = asyncio.get_running_loop().call_later(self.host.deadline, self.after_hook_cancellation.cancel_for, _LATE)
            problem = await hooks.run(
                "after",
                self.host,
                self.context.pool,
                self.after_hook_cancellation,
                state=state,
                config_file=self.context.config.file,
            )
            late.cancel()
        if problem:
            error = f"{result.error}; {problem.message}" if result.error else problem.message
            outcome = "failed" if result.good else result.outcome
            self.context.catalogue.update_run(self.run_id, error=error, cause=None, outcome=outcome)
            return replace(result, outcome=outcome, error=error)
        return result

    async def _backup(self, lock: Lock, running: RunningTransfer) -> HostResult:
        """Makes the backup, unless the run was stopped before."""
        if not self.cancellation.reason:
            with syncing(self.context.pool.path) as disk, suppress(Cancelled):  # syncs everything written
                return await self._fetch_and_finish(lock, running, disk)  # inside this block
        cause = self.cancellation.reason
        error = cause_words(cause) if cause else None
        self._finish_run("partial", error, cause)
        return HostResult(self.host.name, "partial", error)

    async def _fetch_and_finish(
        self, lock: Lock, running: RunningTransfer, disk: Syncfs, *, checked: bool = False, way: StreamWay | None = None
    ) -> HostResult:
        """Takes the steps from the work subvolume to the final name, or to a `.working` that the next run continues.

        `checked`: as in WorkRequest; True for a second attempt, after the first one met damaged metadata of the base.
        `way`: how streams are requested in a second attempt of `engine = "send"`.
        """
        prepared, first = await self._prepare(running, disk, checked)
        again, another = False, None
        words = (self.context, self.host, prepared, lock, self.cancellation, running, self.pause)
        transfer = self.transfer = new_transfer(*words, way)
        try:
            verdict = await self._fetch(prepared, transfer)
            record = self._record(first, transfer, verdict)
            another = transfer.again if isinstance(transfer, StreamTransfer) and not self.cancellation.reason else None
            if verdict.state is not None and not another:
                return await self._finalise(prepared, record, transfer, disk)
            again = not another and not checked and await self._grew_from_damage(prepared, transfer)
        except finalisation.DataLost:
            raise
        except Exception as error:
            if not transfer.writing:  # a process that could not be killed may still write, so the state of the files is unknown
                left = replace(first, error=str(error))
                await asyncio.to_thread(finalisation.leave_after_error, prepared, left, disk)
                again = not checked and is_caused_by_damage(error) and await self._has_damaged_base(prepared)
            if not again:
                raise
            log.warning("%s: the base of the new backup cannot be read (%s); searching for another base", self.host.name, error)
        if another:  # the next stream needs a `.working` without a part of this one
            await asyncio.to_thread(discard, prepared.path, prepared.uuid)
            return await self._fetch_and_finish(lock, running, disk, checked=checked, way=another)
        if again:
            return await self._fetch_and_finish(lock, running, disk, checked=True, way=way)
        return await self._leave_unfinished(prepared, record, verdict, transfer, disk)

    async def _fetch(self, prepared: WorkSubvolume, transfer: Transfer) -> RunVerdict:
        """Does all that needs the host, and ends the connection to it."""
        try:
            await transfer.run()
            self.seconds |= transfer.seconds
            verdict = decide_run(list(transfer.results.values()))
            if isinstance(transfer, StreamTransfer) and transfer.again:
                return verdict
            if verdict.state is not None and self.host.one_file_system and isinstance(transfer, HostTransfer):
                await self._note_left_out(prepared, transfer)
        finally:
            await transfer.connection.close()
        if verdict.state is not None:
            begun, results = time.monotonic(), list(transfer.results.values())
            command = backupd_command(self.context.config.name, self.context.config.file)
            twice = await asyncio.to_thread(
                with_fetched_twice, self.context.pool, self.host, prepared, results, self.cancellation, command
            )
            transfer.results = {result.path: result for result in twice.results}
            self.standing = await asyncio.to_thread(standing_keys, prepared.path, prepared.base, twice, self.host)
            if (seconds := time.monotonic() - begun) >= 1:
                self.seconds["fetched_twice"] = round(seconds, 3)
        return verdict

    async def _note_left_out(self, prepared: WorkSubvolume, transfer: HostTransfer) -> None:
        """Adds warnings about what `one_file_system` has left out. A stopped run no longer connects to the host."""
        results = list(transfer.results.values())
        begun = time.monotonic()
        if self.cancellation.reason:
            results = [not_looked(result, STOPPED) for result in results]
        else:
            results = await with_left_out(
                self.context,
                self.host,
                prepared,
                results,
                transfer.protocol,
                self.cancellation,
                transfer.connection,
                transfer.snapshots.inner,
            )
        transfer.results = {result.path: result for result in results}
        self.seconds["mounts"] = round(time.monotonic() - begun, 3)

    async def _grew_from_damage(self, prepared: WorkSubvolume, transfer: Transfer) -> bool:
        """Returns True if the disk cannot read some metadata of `.working` that rsync needed: from its base, or from an earlier
        run.
        """
        causes = [result.cause for result in transfer.results.values() if result.outcome is PathOutcome.FAULT]
        if self.cancellation.reason or not any(cause and reports_damage(cause.facts.get("line", "")) for cause in causes):
            return False
        return await self._has_damaged_base(prepared)

    async def _has_damaged_base(self, prepared: WorkSubvolume) -> bool:
        """Returns True if the disk cannot read some metadata of `.working`, so that a run without its base may succeed."""
        if self.cancellation.reason:
            return False
        return (prepared.base is not None or not prepared.fresh) and await asyncio.to_thread(is_damaged, prepared.path)

    async def _prepare(self, running: RunningTransfer, disk: Syncfs, checked: bool) -> tuple[WorkSubvolume, Record]:
        """Prepares the work subvolume, and records it in the catalogue as running. Also returns its first record."""
        context, begun, damages = self.context, time.monotonic(), self.context.catalogue.damages(self.host.name)
        forgotten = await asyncio.to_thread(_forgotten, context.pool, self.host.name, damages)
        if forgotten:  # the catalogue is old, or cannot be read
            context.catalogue.put_damages(forgotten)
        recovered, prepared = await asyncio.to_thread(
            working.recover_and_prepare,
            working.WorkRequest(
                context.pool, self.host, self.started, disk, self.cancellation, (*damages, *forgotten), checked=checked
            ),
        )
        self.seconds["prepare"] = round(time.monotonic() - begun, 3)
        if recovered:
            context.catalogue.drop_backup(self.host.name, None)
            subvolume = describe(context.pool.host(self.host.name) / str(recovered.name))  # without its id no seal is compared
            context.catalogue.put_backup(backup_row(context.pool, recovered, recovered.state, subvolume.id if subvolume else None))
        running.expected_files = prepared.base.total("files") if prepared.base else None
        first = working.first_record(prepared, self.host, self.started)
        self.row = backup_row(context.pool, first, RUNNING, prepared.id)
        context.catalogue.put_backup(self.row)
        return prepared, first

    async def _finalise(self, prepared: WorkSubvolume, record: Record, transfer: Transfer, disk: Syncfs) -> HostResult:
        """Makes holes, then the final backup, then its row."""
        context = self.context
        if isinstance(transfer, HostTransfer):  # a stream brings holes as they are
            record = await transfer.with_holes(record)
            self.seconds |= transfer.seconds
        share_with = transfer.share_with if isinstance(transfer, StreamTransfer) else self.host.share_with
        _, final = await asyncio.to_thread(
            finalisation.finalise,
            context.pool,
            prepared,
            record,
            disk,
            SumLimits(self.context.config.verify.new_files, _SUMS_SHARE * (elapsed() - self.begun)),
            ShareWith(share_with, self.cancellation) if share_with else None,
            split=isinstance(transfer, HostTransfer),
            judge=self._judge(prepared, transfer),
        )
        final = replace(final, duration=round(elapsed() - self.begun, 3))  # the file was written before the duration was known
        row = sealed_row(context.pool.host(self.host.name), backup_row(context.pool, final, final.state, prepared.id))
        fields = {
            **self._run_fields(final.error, final.cause),
            "finished": self._moment(),
            "literal_bytes": final.new_bytes or 0,
            "shared_bytes": final.shared_bytes,
        }
        context.catalogue.finish_backup(row, self.run_id, **fields)
        self.ended = True
        return self._result(final.state, final)

    def _judge(self, prepared: WorkSubvolume, transfer: Transfer) -> Callable[[Record], Record] | None:
        """Returns the checks of a backup that is on the disk. They raise DataLost."""
        emptied = self._emptied_judge(prepared)
        if isinstance(transfer, HostTransfer):
            return emptied

        def judge(record: Record) -> Record:
            if transfer.has_lost_data():
                with suppress(OSError):  # no run continues it
                    discard(prepared.path, prepared.uuid)
                raise finalisation.DataLost(finalisation.LOST.format(os.strerror(errno.EIO)))
            return emptied(record) if emptied else record

        return judge

    def _emptied_judge(self, prepared: WorkSubvolume) -> Callable[[Record], Record] | None:
        """Returns the check for filesystems that were not mounted; None for a backup without a base.

        The number of deletions is not used, because rsync before 3.1 on the host does not report it.
        """
        base = prepared.base
        if base is None or base.name is None:
            return None
        path, limit = self.context.pool.host(self.host.name) / base.name, self.host.unreadable_limit

        def judge(record: Record) -> Record:
            return with_emptied(judged(record, prepared.path, base, path, limit, self.cancellation), prepared.path, base)

        return judge

    def _record(self, first: Record, transfer: Transfer, verdict: RunVerdict) -> Record:
        results, base = tuple(transfer.results.values()), transfer.prepared.base
        spent, conditions = elapsed() - self.begun, [*transfer.conditions, *transfer.snapshots.conditions, *self.standing]
        return replace(
            first,
            state=verdict.state or PARTIAL,
            finished=self.started + timedelta(seconds=int(spent)),
            duration=round(spent, 3),
            attempts=transfer.attempts,
            paths=results,
            warnings=(
                *_unread_words(first),
                *transfer.snapshots.warnings,
                *(line for result in results for line in result.warnings),
            ),
            error=verdict.error,
            cause=verdict.cause,
            rsync_version=self.context.rsync.version,
            protocol=transfer.protocol or self.context.rsync.protocol,
            confined=transfer.confined if self.host.address else None,
            dumps=transfer.snapshots.dumps,
            seconds=self.seconds,
            version=__version__,
            stopped_for=None if verdict.state else self.stopped_for,
            lasting=follow(base.lasting if base else (), conditions, first.started) if verdict.state else (),
        )

    async def _leave_unfinished(
        self, prepared: WorkSubvolume, record: Record, verdict: RunVerdict, transfer: Transfer, disk: Syncfs
    ) -> HostResult:
        """Keeps what arrived for the next run; deletes a `.working` in which nothing arrived."""
        nothing, lost = prepared.fresh and not transfer.anything_arrived, False
        try:
            if nothing:
                await asyncio.to_thread(discard, prepared.path, prepared.uuid)
            else:
                await asyncio.to_thread(finalisation.keep_partial, prepared, record, disk)
        except finalisation.DataLost as error:
            verdict = replace(verdict, outcome="failed", error=f"{verdict.error}; {error}", cause=None)
            record = replace(record, error=verdict.error, cause=None)
            nothing, lost = not is_there(prepared.path), True
        except OSError as error:  # the same error again; a writable `.working` is always partial, regardless of its record
            log.warning("%s: %s", prepared.path, error.strerror)
            nothing = False
        if nothing:
            self.context.catalogue.drop_backup(self.host.name, None)
        else:
            self.context.catalogue.put_backup(backup_row(self.context.pool, record, PARTIAL, prepared.id))
        if self.host.optional and transfer.absent and not lost:
            outcome = "skipped"
        else:
            outcome = "failed" if nothing and not self.cancellation.reason else verdict.outcome
        self._finish_run(outcome, verdict.error, verdict.cause)
        self.row = None
        if lost or any(result.outcome is PathOutcome.FAULT for result in record.paths):
            self._require_working_pool()
        return self._result(outcome, record)

    def _require_working_pool(self) -> None:
        """Raises PoolUnusable if the pool itself does not work; messages of a host cannot end the night."""
        path, hint = self.context.pool.path, "check the kernel's messages (dmesg) first"
        try:
            options = mount_options(path)
        except OSError as error:
            raise PoolUnusable(f"{path}: {error.strerror}", hint) from error
        if "ro" in options:
            raise PoolUnusable(f"{path} has become read-only", READ_ONLY_HINT)

    def _failed(self, why: str | Cause) -> HostResult:
        """Returns the result of a failed host. `why`: the cause, or the text of a hook, the kernel or another module."""
        cause = why if isinstance(why, Cause) else None
        error = cause_words(why) if isinstance(why, Cause) else why
        self._finish_run("failed", error, cause)
        if self.row and is_there(self.context.pool.working(self.host.name)):  # it stays, but is no longer in use
            self.context.catalogue.put_backup(replace(self.row, state=PARTIAL))
        elif self.row:
            self.context.catalogue.drop_backup(self.host.name, None)
        return HostResult(self.host.name, "failed", error, seconds=elapsed() - self.begun)

    def skip(self, cause: Cause) -> None:
        """Records that it was not started, and why."""
        pid = os.getpid()
        self.run_id = self.context.catalogue.start_run(self.host.name, self.started, pid, start_time(pid), self.context.night)
        self._finish_run("skipped", cause_words(cause), cause)

    def _finish_run(self, outcome: str, error: str | None, cause: Cause | None = None) -> None:
        fields = {**self._run_fields(error, cause), "finished": self._moment(), "outcome": outcome}
        self.context.catalogue.finish_run(self.run_id, **fields)
        self.ended = True

    def _moment(self) -> datetime:
        """Returns the present time, by the clock with which this run started."""
        return self.started + timedelta(seconds=elapsed() - self.begun)

    def _run_fields(self, error: str | None, cause: Cause | None) -> dict[str, Any]:
        """Returns the fields of the run's row; those of rsync only if it was started. A run by streams has no version of rsync."""
        of_rsync = self.transfer.run_fields() if self.transfer else {}
        version = None if self.host.engine == "send" else self.context.rsync.version
        return {**of_rsync, "error": error, "cause": cause, "rsync_version": version}

    def _result(self, outcome: str, record: Record) -> HostResult:
        values: dict[str, Any] = {
            field.name: getattr(record, field.name) for field in fields(HostResult) if hasattr(record, field.name)
        }
        values |= {"outcome": outcome, "seconds": elapsed() - self.begun}
        return HostResult(**values)


def _unread_words(record: Record) -> list[str]:
    if not record.unread_bases:
        return []
    names, instead = ", ".join(record.unread_bases), f"is based on {record.base}" if record.base else "was transferred completely"
    return [f"could not read {names} from the disk, so this backup {instead} (`backupd damaged` lists the damage)"]


def _forgotten(pool: Pool, host: str, damages: Sequence[Damage]) -> list[Damage]:
    return forgotten_damages(pool, host, names_of(pool, host), damages, recorded_damage)
