"""All source paths of one host, through rsync: passes, attempts, and for which paths another attempt is useful."""

import asyncio
import errno
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from backupd.repo.backup_json import DATA, PathOutcome, PathResult, Record
from backupd.repo.hardlinks import split_hard_links
from backupd.repo.holes import WORTH_COUNTING, WORTH_PUNCHING, data_written, punch_written
from backupd.rsync.command import Pass, passes, rsync_command, shell_command
from backupd.rsync.confined import ConfinedTransfer, RemoteEnd, expected_words
from backupd.rsync.messages import Messages, Output
from backupd.rsync.probe import HostAccess, size_on_host
from backupd.rsync.process import RsyncEnd, RunCancellation, transfer
from backupd.rsync.shared_connection import NotConnected, SharedConnection
from backupd.run.arriving_zeros import ArrivingZeros
from backupd.run.dump_streams import DumpStreams
from backupd.run.finalisation import WorkSubvolume
from backupd.run.host_snapshots import HostSnapshots, SnapshotsRequired
from backupd.run.limits import HostQuota, LimitWatch
from backupd.run.run_context import RunContext, RunningTransfer
from backupd.run.unlisted import NOTHING, Contents, contents_of, files_below, stored_bytes
from backupd.run.verdict import (
    PathEvidence,
    SuspectLimits,
    conditions_in,
    count_that_exceeds_limit,
    has_shrunk,
    is_timeout,
    judge_path,
    shrank_by_size,
)
from backupd.run.work_subvolume import drop_other_paths
from btrkeep.backup_states import Cause, CauseCode, ConditionKey
from btrkeep.config import HostConfig
from btrkeep.decisions.cause_words import cause_words
from btrkeep.decisions.host_state import is_absent
from btrkeep.decisions.rsync_meaning import ExitKind, Meaning, meaning
from btrkeep.errors import OperatorError
from btrkeep.pool.locks import Lock
from btrkeep.pool.subvolume import commit, inodes_made
from btrkeep.process.proc import physical_memory
from btrkeep.process.progress import Cancellation
from btrkeep.units import bounded, format_size

log = logging.getLogger(__name__)

Pause = Callable[[float, bool], Awaitable[object]]
"""Waits that many seconds before the next attempt, or until the run is stopped. True: the host was silent, or not reached."""
_FLOWS = ("created", "deleted", "transferred", "transferred_bytes", "literal", "matched", "sent", "received")
_LONGEST_PAUSE = 300.0
_MANY_ZEROS = 1 << 30  # bytes: about ten seconds of transfer, worth a message
_POOL_ERRORS = {errno.EIO, errno.EUCLEAN, errno.EROFS, errno.ENOSPC}
OUTPUT_LIMIT = 64 << 20
"""Maximum bytes that a host may make rsync print in a run, in addition to those for each file."""
_FOR_EACH_FILE = 256
_LINE = 100  # bytes: reading them takes as long as the fixed cost of a line


class HostTransfer:
    """The transfers of one run. Afterwards `results` has them by path in the configured order, and the bytes written."""

    def __init__(
        self,
        context: RunContext,
        host: HostConfig,
        prepared: WorkSubvolume,
        lock: Lock,
        cancellation: RunCancellation,
        running: RunningTransfer,
        pause: Pause,
    ) -> None:
        self.context, self.host, self.prepared, self.lock = context, host, prepared, lock
        self.cancellation, self.running, self.pause = cancellation, running, pause
        self.quota = HostQuota(context.pool, host)
        self.results: dict[str, PathResult] = {}
        self.seconds = {"rsync": 0.0}
        self.attempts = 0
        self.protocol: int | None = None
        self.sparse = prepared.base is None
        self.confined = context.confines(host)
        transfers = len(host.paths) * len(passes(host.inplace, based=not self.sparse))
        self.zeros = ArrivingZeros(prepared.path, cancellation, sparse=self.sparse)
        self.limits = LimitWatch(host, prepared.path, cancellation, None if self.sparse else self.zeros.stop_to_recount)
        asks_more = host.one_file_system or host.snapshots != "off" or host.calls  # a call is one connection
        self.connection = SharedConnection(host, context.config.ssh, wanted=transfers > 1 or asks_more)
        self.snapshots = HostSnapshots(host, context.config.ssh, self.connection, cancellation)
        self._last: RsyncEnd | None = None
        self._output_bytes = 0
        self._output_limit = OUTPUT_LIMIT
        self.writing = False  # whether processes of an rsync may still be running
        self._last_messages: dict[str, tuple[str, ...]] = {}
        self._conditions: dict[str, list[ConditionKey]] = {}

    async def run(self) -> None:
        """Transfers all paths, and repeats those whose connection failed, up to `attempts` times with growing pauses.

        Leaves `connection` open for further questions to the host: the caller closes it.
        """
        try:
            await self._run_attempts()
        finally:
            await self.snapshots.end()
        if self.snapshots.streams:
            self.results = await self._streams().fetch(self.results)
        self.results = {result.path: result for result in self.snapshots.judged([self.results[path] for path in self.host.paths])}

    def _streams(self) -> DumpStreams:
        return DumpStreams(
            self.context,
            self.host,
            self.prepared,
            self.lock,
            self.cancellation,
            self.snapshots,
            self.connection,
            self.quota,
            self.limits,
        )

    async def with_holes(self, record: Record) -> Record:
        """Makes holes of zeros, and returns the record with their number. Raises OSError."""
        # The host reports the sum. A false one only costs a commit, or space for that host's own zeros.
        path, literal = self.prepared.path, record.total("literal") or 0
        written = not self.prepared.fresh or literal >= WORTH_PUNCHING
        with_holes = self.sparse and literal >= WORTH_COUNTING
        try:
            if written and not self.sparse:
                begun = time.monotonic()
                await asyncio.to_thread(self.zeros.finish)
                punched = await asyncio.to_thread(punch_written, path, self.cancellation)
                with_holes = self.has_holes or punched.bytes > 0
                self.seconds["holes"] = round(time.monotonic() - begun, 3)
            if with_holes and (data := await asyncio.to_thread(data_written, path)) < literal:
                record = replace(record, written=data, warnings=(*record.warnings, *_zeros_words(literal - data)))
        except OSError as error:
            if error.errno in _POOL_ERRORS:  # raised by the commit, or by reading the subvolume itself
                raise
            log.warning("%s: %s", path, error)
            warning = f"could not make or count the holes of sparse files: {error.strerror or error}"
            record = replace(record, warnings=(*record.warnings, warning))
        return record

    async def _run_attempts(self) -> None:
        pending: Sequence[str] = self.host.paths
        for attempt in range(1, self.host.attempts + 1):
            self.attempts = attempt
            pending = await self._attempt(pending)
            if not pending or attempt == self.host.attempts or not self._worth_another():
                break
            silent = self.unreachable or any(is_timeout(self.results[path].cause) for path in pending)
            await self.pause(min(_LONGEST_PAUSE, self.context.retry_pause * 3 ** (attempt - 1)), silent)

    async def _attempt(self, paths: Sequence[str]) -> list[str]:
        """Tries all `paths` once and returns the unfinished ones. An error of one path does not affect the others."""
        for number, path in enumerate(paths):
            try:
                result = self.results[path] = await self._path(path)
            except SnapshotsRequired as refused:
                broken = PathResult(path, PathOutcome.BROKEN, cause_words(refused.cause), cause=refused.cause)
                self.results |= {rest: replace(broken, path=rest) for rest in paths[number:]}
                break
            if result.outcome is PathOutcome.FAULT or self.cancellation.reason or self.unreachable:
                for rest in paths[number + 1 :]:
                    self.results.setdefault(rest, PathResult(rest, PathOutcome.UNFINISHED, result.reason, cause=result.cause))
                break
        return [path for path in paths if self.results[path].outcome is PathOutcome.UNFINISHED]

    async def _path(self, path: str) -> PathResult:
        """Runs all passes of one source path, or stops at the first that does not finish.

        The last pass checks everything, so its result is complete.
        """
        earlier = self.results.get(path)
        numbers = {key: count for key, count in earlier.numbers.items() if key in _FLOWS} if earlier else {}
        begun, linked = time.monotonic(), earlier is not None
        for one_pass in passes(self.host.inplace, based=not self.sparse):
            if linked:  # an earlier rsync has made hard links here, and the host may have split one since
                await asyncio.to_thread(_split_again, self.prepared, path, self.cancellation)
            ended = await self._rsync(path, one_pass)
            while self.zeros.stopped and ended.exit_code and not ended.stopped:
                _add(numbers, ended.output)
                await asyncio.to_thread(_split_again, self.prepared, path, self.cancellation)
                ended = await self._rsync(path, one_pass)
            linked = True
            _add(numbers, ended.output)
            result = await self._judge(path, ended, numbers, time.monotonic() - begun)
            if result.outcome.rank > PathOutcome.SUSPECT.rank:
                break
        self._last_messages[path] = tuple(ended.messages.last)
        self._conditions[path] = conditions_in(path, ended.exit_code, ended.messages)
        self.running.finish_path()
        return result

    async def _rsync(self, path: str, one_pass: Pass) -> RsyncEnd:
        if self._last:
            await asyncio.to_thread(drop_other_paths, self.prepared.path / DATA, self.host.paths)
        data = str(self.prepared.path / DATA)
        self.running.path = path
        self.zeros.begin()
        try:
            control = await self.connection.socket(self.cancellation)
            await self.snapshots.begin(control)
        except NotConnected as error:
            return self._not_connected(error)
        with ExitStack() as held:
            command, cell = self._command(path, data, one_pass, control, held)
            async with self.quota.held():
                self.writing = True
                watching = asyncio.create_task(self.zeros.watch(self._received, partial(self._size, control)))
                try:
                    ended = self._last = await transfer(
                        command, self.lock, self.cancellation, self.host.stall, self.running.take, self._on_output, cell
                    )
                finally:
                    await _end(watching)
        self.writing = False
        if self.zeros.stopped and ended.exit_code:  # otherwise it had ended before, and the length on the host may be newer
            await self.zeros.make_holes(partial(self._size, control))
        elif printed := await self.connection.after(20 if ended.stopped else ended.exit_code):
            ended.messages.feed(printed)
            ended.messages.close()
        if (cause := self.quota.exceeded(ended.messages)) and not ended.stopped:
            self.cancellation.cancel_for(cause)
            ended = self._last = replace(ended, stopped=cause)
        if (cause := await self.limits.at_end()) and not ended.stopped:
            ended = self._last = replace(ended, stopped=cause)
        self.snapshots.note_transfer(path, ended)
        self.protocol = ended.output.protocol or self.protocol
        self.seconds["rsync"] = round(self.seconds["rsync"] + ended.seconds, 3)
        return ended

    def _received(self) -> int:
        """Returns the bytes of files that the running rsync has processed."""
        return self.running.output.progress.bytes if self.running.output else 0

    async def _size(self, control: Path | None, file: str) -> int | None:
        access = HostAccess(self.confined, control, self.context.buckets(self.host))
        return await size_on_host(self.context.config, self.snapshots.host, file, access)

    def _not_connected(self, error: NotConnected) -> RsyncEnd:
        """Returns the result of an rsync whose ssh would get the same error."""
        messages = Messages()
        messages.feed(error.printed)
        messages.close()
        ended = self._last = RsyncEnd(255, Output(), messages, error.seconds, self.cancellation.reason)
        return ended

    def _command(
        self, path: str, data: str, one_pass: Pass, control: Path | None, held: ExitStack
    ) -> tuple[tuple[str, ...], ConfinedTransfer | None]:
        """Returns the command, and its cell if it talks to a host and confinement works on this machine."""
        host, ssh, buckets = self.snapshots.host, self.context.config.ssh, self.context.buckets(self.host)
        if not self.confined:
            return rsync_command(host, ssh, path, data, one_pass, buckets, control=control), None
        memory = host.max_memory.bytes_of(physical_memory())
        remote = RemoteEnd(shell_command(host, ssh, buckets, control), expected_words(host), memory)
        cell = held.enter_context(ConfinedTransfer(remote))
        return cell.command(rsync_command(host, ssh, path, data, one_pass, shell=cell.remote.words), data), cell

    def _on_output(self, data: bytes) -> bool:
        """Returns True if the output is to be parsed. Stops a host whose output is too long, because a sender can make rsync print
        anything. rsync prints about 80 bytes for each file that it writes, and a line for each unreadable file. So much more output
        is allowed for each file that the backup can have, a number known from the filesystem.
        """
        self._output_bytes += len(data) + _LINE * data.count(b"\n")
        if self._output_bytes > self._output_limit:
            with suppress(OSError):  # for example on a full pool
                self._output_limit = OUTPUT_LIMIT + _FOR_EACH_FILE * self.attempts * inodes_made(self.prepared.path)
        enough = self._output_bytes > self._output_limit
        if enough:
            self.cancellation.cancel_for(Cause(CauseCode.ENDLESS_OUTPUT, facts={"bytes": self._output_limit}))
        return not enough

    async def _judge(self, path: str, ended: RsyncEnd, numbers: Mapping[str, int], seconds: float) -> PathResult:
        based_on = self.prepared.base.path(path) if self.prepared.base else None
        limits = SuspectLimits(self.host.shrink_limit, self.host.unreadable_limit)
        complete, before = numbers if ended.output.numbers else {}, based_on.numbers if based_on else None
        below = 0
        if unlisted := ended.messages.unlisted:
            enough = count_that_exceeds_limit(ended.messages, complete, limits)
            below, unknown = await asyncio.to_thread(files_below, self.prepared.path, path, unlisted, enough, self.cancellation)
            ended.messages.unlisted_beyond += unknown
            if unknown and not ended.stopped:
                ended = replace(ended, stopped=self.cancellation.reason)  # if it was stopped by that
        evidence = PathEvidence(path, ended.exit_code, ended.messages, complete, before, limits, seconds, below)
        result, less = judge_path(evidence), NOTHING
        if before and has_shrunk(result) and (less := await asyncio.to_thread(self._excluded_since, path)) != NOTHING:
            left = {**before, "files": before.get("files", 0) - less.files, "bytes": before.get("bytes", 0) - less.bytes}
            evidence = replace(evidence, base=left)
            result = judge_path(evidence)
        if shrank_by_size(result, before) and (stored := await asyncio.to_thread(self._stored, path)):
            result = judge_path(replace(evidence, stored=(stored[0] - less.stored, stored[1])))
        if ended.stopped:
            # ssh ends with rsync, and may have set the exit status 255
            cause, means = replace(ended.stopped, path=path), meaning(20)
            result = replace(result, outcome=PathOutcome.UNFINISHED, reason=cause_words(cause), cause=cause)
            result = replace(result, meaning=means.words, exit_cause=means.cause)
        return replace(result, numbers=dict(numbers))

    def _excluded_since(self, path: str) -> Contents:
        """Returns what the base has in folders of a source path that were excluded after it was made, by their names: these files
        are not lost. Empty if the base has files there that are not in its numbers: older files that were not read, or not deleted.
        """
        base = self.prepared.base
        before = base.path(path) if base else None
        if base is None or base.name is None or before is None or before.unreadable or before.deletions_skipped:
            return NOTHING
        new = [pattern for pattern in self.host.exclude if pattern not in base.settings.get("exclude", ())]
        try:
            return contents_of(self.context.pool.host(self.host.name) / base.name, path, new, self.cancellation)
        except OSError as error:  # the file counts as lost
            log.warning("%s: %s: excluded files could not be counted: %s", self.host.name, path, error.strerror or error)
            return NOTHING

    def _stored(self, path: str) -> tuple[int, int] | None:
        """Returns the bytes on the disk of a source path in the base and in `.working`; None if they cannot be counted."""
        base = self.prepared.base
        if base is None or base.name is None:
            return None
        try:
            before = stored_bytes(self.context.pool.host(self.host.name) / base.name, path, self.cancellation)
            after = stored_bytes(self.prepared.path, path, self.cancellation)
        except OSError as error:  # rsync's sizes are used, and the backup is suspect
            log.warning("%s: %s: bytes could not be counted: %s", self.host.name, path, error.strerror or error)
            return None
        return None if before is None or after is None else (before, after)

    @property
    def _means(self) -> Meaning | None:
        return meaning(self._last.exit_code, self._last.messages.last) if self._last else None

    @property
    def unreachable(self) -> bool:
        """Returns True if the last rsync did not reach the host."""
        return self._means is not None and self._means.unreachable

    @property
    def absent(self) -> bool:
        """Returns True if the last rsync did not reach the host because the host is offline."""
        base = self.prepared.base
        has_resolved = base is not None and base.imported is None and base.address in (None, self.host.address)
        return self._means is not None and self._means.unreachable and is_absent(self._means.cause, has_resolved=has_resolved)

    @property
    def conditions(self) -> list[ConditionKey]:
        """Returns what could not be fetched or deleted, by the last rsync of each path."""
        return [key for keys in self._conditions.values() for key in keys]

    @property
    def has_holes(self) -> bool:
        """Returns True if zeros that had arrived became holes during the run."""
        return self.zeros.has_holes or self.limits.has_holes

    @property
    def anything_arrived(self) -> bool:
        """Returns True if `.working`, which was new, may contain data of this run."""
        if any(result.numbers.get("received", 0) > 0 for result in self.results.values()):
            return True
        return self.protocol is not None and (not self.sparse or any((self.prepared.path / DATA).iterdir()))

    def _worth_another(self) -> bool:
        if self.cancellation.reason or any(result.outcome is PathOutcome.FAULT for result in self.results.values()):
            return False
        return self._means is not None and self._means.kind is not ExitKind.HOST and not (self.host.optional and self.absent)

    def run_fields(self) -> dict[str, Any]:
        """Returns the fields of the run's row about rsync: the worst path's exit status, the sums of all."""
        results = list(self.results.values())
        worst = max(results, key=lambda result: result.outcome.rank, default=None)
        return {
            "attempts": self.attempts,
            "exit_code": worst.exit_code if worst else None,
            "meaning": (worst.exit_cause or None) if worst else None,
            "last_lines": self._last_messages.get(worst.path, ()) if worst else (),
            "literal_bytes": bounded(sum(result.numbers.get("literal", 0) for result in results)),
            "matched_bytes": bounded(sum(result.numbers.get("matched", 0) for result in results)),
            "received_bytes": bounded(sum(result.numbers.get("received", 0) for result in results)),
            "protocol": self.protocol,
        }


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        try:
            await task
        except (OSError, OperatorError) as error:  # the transfer does not depend on it
            log.warning("%s", error)


def _split_again(prepared: WorkSubvolume, path: str, cancelled: Cancellation) -> None:
    commit(prepared.path)  # the tree search sees committed inodes only
    split_hard_links(prepared.path, under=path, cancelled=cancelled)


def _add(numbers: dict[str, int], output: Output) -> None:
    """Adds the numbers of one rsync: amounts are added over passes and attempts; everything else is from the last complete list. A
    killed rsync reported only its progress.
    """
    counts = output.numbers or {"literal": output.progress.bytes, "received": output.progress.bytes}
    for key, count in counts.items():
        numbers[key] = bounded(numbers.get(key, 0) + count) if key in _FLOWS else count


def _zeros_words(zeros: int) -> list[str]:
    """Returns a warning if many zeros were transferred: rsync sends the holes of a new sparse file as zeros
    (docs/decisions/0064).
    """
    if zeros < _MANY_ZEROS:
        return []
    return [f"{format_size(zeros)} of zeros were transferred: use `exclude` for unneeded sparse files, such as /var/log/lastlog"]
