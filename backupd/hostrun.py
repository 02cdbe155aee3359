"""One host's backup, from the lock to the catalogue row.

The steps, each in the module that does it: lock (leftovers), `.working` (working), rsync per source path (transfer), judgement
(verdict), final or partial (working), catalogue. This module is their order, and what happens when one fails.
"""

import asyncio
import logging
import os
import time
from dataclasses import replace
from datetime import timedelta

from backupd import hooks, record as records, working
from backupd.hardlinks import split
from backupd.holes import dig
from backupd.leftovers import take_host_lock
from backupd.record import Record
from backupd.rsync.command import passes, rsync_command
from backupd.rsync.meaning import Kind, meaning
from backupd.rsync.output import Output
from backupd.rows import backup_row
from backupd.site import HostResult, Running, Site
from backupd.transfer import Ended, Stopper, transfer
from backupd.verdict import Limits, Outcome, PathResult, Verdict, decide, judge
from btrkeep import __version__
from btrkeep.config import HostConfig
from btrkeep.errors import LockHeld, OperatorError, PoolUnusable
from btrkeep.pool import Lock, mount_options
from btrkeep.process import start_time
from btrkeep.units import format_time

log = logging.getLogger(__name__)

_FLOWS = ("created", "deleted", "transferred", "transferred_bytes", "literal", "matched", "sent", "received")


class HostRun:
    """The backup of one host, once. `stopper` may be used from outside at any time."""

    def __init__(self, site: Site, host: HostConfig) -> None:
        self.site = site
        self.host = host
        self.stopper = Stopper()
        self.started = site.clock.now()
        self.begun = time.monotonic()
        self.results: dict[str, PathResult] = {}
        self.written: list[tuple[bytes, int]] = []
        self.seconds: dict[str, float] = {}
        self.attempts = 0
        self.run_id = 0
        self.last: Ended | None = None
        self.protocol: int | None = None

    async def run(self) -> HostResult:
        """The whole of it. Raises PoolUnusable when no other host can be helped either; everything else becomes a result."""
        try:
            with await take_host_lock(self.site.pool.locks / f"host-{self.host.name}", f"backup of {self.host.name}", format_time(self.started)) as lock:
                return await self._locked(lock)
        except LockHeld as error:
            return HostResult(self.host.name, "locked", error.message)

    async def _locked(self, lock: Lock) -> HostResult:
        pid = os.getpid()
        self.run_id = self.site.catalogue.start_run(self.host.name, self.started, pid, start_time(pid), self.site.night)
        running = self.site.running[self.host.name] = Running(self.host.name, self.run_id, pid=pid)
        self.site.observer.started(running)
        deadline = asyncio.get_running_loop().call_later(self.host.deadline, self.stopper.stop, "the deadline has passed")
        try:
            result = await self._with_hooks(lock, running)
        except PoolUnusable as error:
            self._finish_run("failed", error.message)
            raise
        except OperatorError as error:
            result = self._failed(error.message)
        except OSError as error:
            result = self._failed(f"this server: {error}")
            self._see_that_the_pool_works()
        finally:
            deadline.cancel()
            del self.site.running[self.host.name]
        return result

    async def _with_hooks(self, lock: Lock, running: Running) -> HostResult:
        """`before` may skip or fail the host; `after` runs whenever `before` went through, and its failure is said."""
        trouble = await hooks.run("before", self.host, self.site.pool, self.stopper, state="")
        if trouble and trouble.skip:
            self._finish_run("skipped", trouble.message)
            return HostResult(self.host.name, "skipped", trouble.message)
        if trouble:
            return self._failed(trouble.message)
        result = self._failed("the run broke off")
        try:
            result = await self._backup(lock, running)
        finally:
            trouble = await hooks.run("after", self.host, self.site.pool, Stopper(), state=result.outcome)
        if trouble:
            error = f"{result.error}; {trouble.message}" if result.error else trouble.message
            self.site.catalogue.update_run(self.run_id, error=error)
            return replace(result, outcome="failed" if result.good else result.outcome, error=error)
        return result

    async def _backup(self, lock: Lock, running: Running) -> HostResult:
        site, host = self.site, self.host
        if recovered := await asyncio.to_thread(working.recover, site.pool, host.name):
            site.catalogue.drop_backup(host.name, None)
            site.catalogue.put_backup(backup_row(site.pool, recovered, recovered.state))
        prepared = await self._timed("prepare", working.prepare, site.pool, host, self.started)
        running.expected_files = prepared.base.total("files") if prepared.base else None
        first = working.first_record(prepared, host, self.started)
        site.catalogue.put_backup(backup_row(site.pool, first, records.RUNNING))
        await self._transfer_all(lock, prepared, running)
        verdict = self._verdict()
        record = self._record(first, verdict)
        if verdict.state is None:
            return await self._leave_unfinished(prepared, record, verdict)
        if prepared.base or not prepared.fresh:
            await self._timed("holes", dig, prepared.path, self._names())
        final_path, final = await self._timed("finalise", working.finalise, site.pool, prepared, record)
        site.catalogue.finish_backup(backup_row(site.pool, final, final.state), self.run_id, **self._run_fields(verdict.error))
        return self._result(verdict.outcome, final)

    async def _timed(self, name, function, *arguments):  # type: ignore[no-untyped-def]
        begun = time.monotonic()
        try:
            return await asyncio.to_thread(function, *arguments)
        finally:
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - begun, 3)

    async def _transfer_all(self, lock: Lock, prepared: working.Prepared, running: Running) -> None:
        """All source paths, and again those whose connection broke, up to `attempts` times with growing pauses."""
        pending = list(self.host.paths)
        for attempt in range(1, self.host.attempts + 1):
            self.attempts = attempt
            pending = await self._attempt(lock, prepared, running, pending)
            if not pending or not self._worth_another() or attempt == self.host.attempts:
                return
            await self.stopper.sleep(min(300.0, self.site.retry_pause * 3 ** (attempt - 1)))
            if self.stopper.reason:
                return

    async def _attempt(self, lock: Lock, prepared: working.Prepared, running: Running, paths: list[str]) -> list[str]:
        """One go over `paths`; those that are still unfinished."""
        for number, path in enumerate(paths):
            base = prepared.base.path(path) if prepared.base else None
            result = await self._path(lock, prepared, running, path, base.numbers if base else None)
            self.results[path] = result
            if result.outcome is Outcome.FAULT or self.stopper.reason or self._unreachable(result):
                for rest in paths[number + 1 :]:
                    self.results.setdefault(rest, PathResult(rest, Outcome.UNFINISHED, result.reason))
                break
        return [path for path in paths if self.results[path].outcome is Outcome.UNFINISHED]

    def _unreachable(self, result: PathResult) -> bool:
        return result.outcome is Outcome.UNFINISHED and self.last is not None and _means(self.last).unreachable

    def _worth_another(self) -> bool:
        if self.stopper.reason or self.last is None or any(result.outcome is Outcome.FAULT for result in self.results.values()):
            return False
        means = _means(self.last)
        return means.kind is not Kind.HOST and not (self.host.optional and means.unreachable)

    async def _path(self, lock: Lock, prepared: working.Prepared, running: Running, path: str, base: dict[str, int] | None) -> PathResult:
        """One source path through all its passes."""
        earlier = self.results.get(path)
        again = earlier is not None
        numbers: dict[str, int] = {key: count for key, count in earlier.numbers.items() if key in _FLOWS} if earlier else {}
        begun = time.monotonic()
        result = None
        for one_pass in passes(self.host.inplace, based=prepared.base is not None):
            if again:  # an rsync has made hard links here already, and the host may have broken one since
                await self._timed("hard links", _split_again, prepared, path)
            again = True
            ended = await self._rsync(lock, prepared, running, path, one_pass)
            _add_numbers(numbers, ended.output)
            messages = ended.messages
            complete = ended.output.numbers and numbers or {}
            result = judge(path, ended.exit_code, messages, complete, base, Limits(self.host.shrink_limit, self.host.unreadable_limit), time.monotonic() - begun)
            if ended.stopped:
                result = replace(result, outcome=Outcome.UNFINISHED, reason=f"{path}: {ended.stopped}")
            if result.outcome is not Outcome.COMPLETE:
                break
        running.finish_path()
        assert result is not None
        return replace(result, numbers=numbers)

    async def _rsync(self, lock: Lock, prepared: working.Prepared, running: Running, path: str, one_pass) -> Ended:  # type: ignore[no-untyped-def]
        buckets = self.site.buckets(self.host)
        command = rsync_command(self.host, self.site.config.ssh, path, str(prepared.path / records.DATA), one_pass, buckets)
        running.path = path

        def on_output(output: Output) -> None:
            running.output = output

        ended = await transfer(command, lock, self.stopper, self.host.stall, on_output)
        self.last = ended
        self.written += ended.output.written
        self.protocol = ended.output.protocol or self.protocol
        self.seconds["rsync"] = round(self.seconds.get("rsync", 0.0) + ended.seconds, 3)
        return ended

    def _names(self) -> list[bytes]:
        return [name for name, length in self.written if length >= 1 << 16]

    def _verdict(self) -> Verdict:
        return decide(list(self.results.values()))

    def _record(self, first: Record, verdict: Verdict) -> Record:
        results = tuple(self.results.values())
        spent = time.monotonic() - self.begun
        return replace(
            first,
            state=verdict.state or records.PARTIAL,
            finished=self.started + timedelta(seconds=spent),
            duration=round(spent, 3),
            attempts=self.attempts,
            paths=results,
            warnings=tuple(warning for result in results for warning in result.warnings),
            error=verdict.error,
            rsync_version=self.site.rsync.version,
            protocol=self.protocol or self.site.rsync.protocol,
            seconds=self.seconds,
            version=__version__,
        )

    async def _leave_unfinished(self, prepared: working.Prepared, record: Record, verdict: Verdict) -> HostResult:
        """What arrived stays for the next run; a `.working` in which nothing arrived goes again."""
        absent = self.host.optional and self.last is not None and _means(self.last).unreachable
        if prepared.fresh and not self._anything_arrived(record):
            await asyncio.to_thread(working.discard, prepared.path, prepared.uuid)
            self.site.catalogue.drop_backup(self.host.name, None)
            outcome = "skipped" if absent else "failed" if not self.stopper.reason else verdict.outcome
        else:
            outcome = "skipped" if absent else verdict.outcome
            await asyncio.to_thread(records.write, prepared.path, record)
            self.site.catalogue.put_backup(backup_row(self.site.pool, record, records.PARTIAL))
        self._finish_run(outcome, verdict.error)
        if any(result.outcome is Outcome.FAULT for result in record.paths):
            self._see_that_the_pool_works()
        return self._result(outcome, record)

    def _anything_arrived(self, record: Record) -> bool:
        return bool(self.written) or any(result.numbers.get("received", 0) > 0 or result.numbers.get("literal", 0) > 0 for result in record.paths)

    def _see_that_the_pool_works(self) -> None:
        """A host's words cannot end the night; the pool's own state can. Raises PoolUnusable."""
        if "ro" in mount_options(self.site.pool.path):
            raise PoolUnusable(f"{self.site.pool.path} has become read-only", "look at the kernel's messages (dmesg) before anything else")

    def _failed(self, error: str) -> HostResult:
        self._finish_run("failed", error)
        return HostResult(self.host.name, "failed", error, seconds=time.monotonic() - self.begun, attempts=self.attempts)

    def _finish_run(self, outcome: str, error: str | None) -> None:
        finished = self.started + timedelta(seconds=time.monotonic() - self.begun)
        self.site.catalogue.finish_run(self.run_id, finished=finished, outcome=outcome, **self._run_fields(error))

    def _run_fields(self, error: str | None):  # type: ignore[no-untyped-def]
        results = list(self.results.values())
        worst = max(results, key=lambda result: result.outcome.rank, default=None)
        totals = {key: sum(result.numbers.get(key, 0) for result in results) for key in ("literal", "matched", "received")}
        return {
            "attempts": self.attempts,
            "exit_code": worst.exit_code if worst else None,
            "meaning": worst.meaning if worst else None,
            "error": error,
            "last_lines": tuple(self.last.messages.last) if self.last else (),
            "literal_bytes": totals["literal"],
            "matched_bytes": totals["matched"],
            "received_bytes": totals["received"],
            "rsync_version": self.site.rsync.version,
            "protocol": self.protocol,
        }

    def _result(self, outcome: str, record: Record) -> HostResult:
        return HostResult(
            self.host.name,
            outcome,
            record.error,
            record.name,
            record.total("files"),
            record.total("bytes"),
            record.total("literal"),
            time.monotonic() - self.begun,
            self.attempts,
            record.warnings,
        )


def _split_again(prepared: working.Prepared, path: str) -> None:
    working.commit(prepared.path)
    split(prepared.path, under=path)


def _means(ended: Ended):  # type: ignore[no-untyped-def]
    return meaning(ended.exit_code, ended.messages.last)


def _add_numbers(numbers: dict[str, int], output: Output) -> None:
    """Flows add up over passes and attempts; the rest is as the last complete list had it. A killed rsync told only its progress."""
    found = output.numbers or {"literal": output.progress.bytes, "received": output.progress.bytes}
    for key, count in found.items():
        numbers[key] = numbers.get(key, 0) + count if key in _FLOWS else max(numbers.get(key, 0), count)
