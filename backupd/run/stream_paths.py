"""All source paths of one host with `engine = "send"`: its snapshots, then one stream after the other.

A stream is applied to the folder of its path in `.working`, as a difference to the base, or completely after that folder was
emptied. One that breaks off leaves a folder that no other stream fits, so `.working` is then discarded (HostRun), and the run
begins again or ends. docs/decisions/0094-streams-of-hosts.rst has the reasons.
"""

import asyncio
import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from errno import EDQUOT
from pathlib import Path
from typing import Any

from backupd.repo.backup_json import DATA, PathOutcome, PathResult
from backupd.repo.leftovers import remove_tree
from backupd.repo.notes_json import read_notes
from backupd.repo.seals import is_original
from backupd.rsync.messages import Messages, Output
from backupd.rsync.process import RunCancellation
from backupd.rsync.shared_connection import NotConnected, SharedConnection
from backupd.rsync.snapshot_session import PROGRAM, NoSnapshots
from backupd.run.finalisation import WorkSubvolume
from backupd.run.limits import HostQuota, LimitWatch
from backupd.run.run_context import RunContext, RunningTransfer
from backupd.run.source_paths import HostTransfer, Pause
from backupd.run.verdict import PathEvidence, SuspectLimits, judge_path
from backupd.streams import stream_format
from backupd.streams.applying import AppliedStream, RemoteStream, StreamTarget, apply_stream, compression_of, writes_encoded
from backupd.streams.host_stream import (
    HostStream,
    StreamSession,
    begin_stream,
    begin_streams,
    in_stream,
    is_identity,
    keepers_of,
    set_attributes,
    stream_command,
)
from btrkeep.backup_states import Cause, CauseCode, ConditionKey, ConditionKind
from btrkeep.checkpoints import Checkpoint
from btrkeep.config import HostConfig
from btrkeep.consistency import SNAPSHOT, HostDump, PathConsistency
from btrkeep.decisions.cause_words import cause_words
from btrkeep.decisions.host_state import is_absent
from btrkeep.decisions.rsync_meaning import Meaning, meaning
from btrkeep.errors import OperatorError
from btrkeep.pool.allocation import Allocation, may_have_lost_data, read_allocation
from btrkeep.pool.locks import Lock
from btrkeep.pool.subvolume import describe
from btrkeep.units import bounded, counted

log = logging.getLogger(__name__)

_BROKE, _NOT_CONNECTED, _NOT_FOUND = 12, 255, 127
"""Exit statuses with the meaning that rsync's table gives them: the connection broke, was not made, the program is missing."""
_LONGEST_PAUSE = 300.0
_NAMED = 3


@dataclass(frozen=True, slots=True)
class StreamWay:
    """How streams are requested."""

    complete: bool = False
    """True if none may be a difference."""
    plain: bool = False
    """True if compressed data has to be sent uncompressed."""
    attempt: int = 1
    """The number of the attempt, up to `attempts` of the host: a connection that broke is made again."""


@dataclass(slots=True)
class StreamSources:
    """What HostRun reads of the host's own work: warnings, and dumps."""

    warnings: list[str]
    dumps: tuple[HostDump, ...] = ()

    @property
    def conditions(self) -> list[ConditionKey]:
        """Returns what failed on the host, so that it is an alarm if it lasts."""
        return [ConditionKey(ConditionKind.DUMP_FAILED, "", dump.name) for dump in self.dumps if dump.failed]


class StreamTransfer:
    """The streams of one run. Afterwards `results` has them by path in the configured order.

    `again`: the way in which the run should begin again, with a new `.working`; None: it should not.
    """

    def __init__(
        self,
        context: RunContext,
        host: HostConfig,
        prepared: WorkSubvolume,
        lock: Lock,
        cancellation: RunCancellation,
        running: RunningTransfer,
        pause: Pause,
        way: StreamWay,
    ) -> None:
        self.context, self.host, self.prepared, self.lock = context, host, prepared, lock
        self.cancellation, self.running, self.pause, self.way = cancellation, running, pause, way
        self.quota = HostQuota(context.pool, host)
        self.limits = LimitWatch(host, prepared.path, cancellation)
        self.confined = context.confines(host)
        self.connection = SharedConnection(host, context.config.ssh, wanted=len(host.paths) > 1 or host.calls)
        self._remote: RemoteStream | None = None  # of a single path, whose stream follows the answer
        self.snapshots = StreamSources([])
        self.results: dict[str, PathResult] = {}
        self.seconds = {"stream": 0.0}
        self.attempts = 0
        self.protocol: int | None = None
        self.writing = False  # whether an applier may still be running
        self.again: StreamWay | None = None
        self.has_complete = False
        """True if a stream was complete: its data may equal that of the base."""
        self._allocation: Allocation | None = None  # before the first write
        self._means: Meaning | None = None
        self._last_messages: dict[str, tuple[str, ...]] = {}
        self._output = Output()

    # --- what HostRun reads -------------------------------------------------------------------------------------------------
    has_holes = False
    anything_arrived = False  # for the next run: a part of a stream cannot be continued
    conditions: tuple[ConditionKey, ...] = ()

    @property
    def share_with(self) -> str | None:
        """Returns the host whose newest backup may have the same data: this one itself after a complete stream."""
        return self.host.name if self.has_complete and self.prepared.base else self.host.share_with

    @property
    def unreachable(self) -> bool:
        """Returns True if the host was not reached."""
        return self._means is not None and self._means.unreachable

    @property
    def absent(self) -> bool:
        """Returns True if the host was not reached because it is offline."""
        base = self.prepared.base
        has_resolved = base is not None and base.imported is None and base.address in (None, self.host.address)
        return self._means is not None and self._means.unreachable and is_absent(self._means.cause, has_resolved=has_resolved)

    def run_fields(self) -> dict[str, Any]:
        """Returns the fields of the run's row."""
        worst = max(self.results.values(), key=lambda result: result.outcome.rank, default=None)

        def total(name: str) -> int:
            return bounded(sum(result.numbers.get(name, 0) for result in self.results.values()))

        return {
            "attempts": self.attempts,
            "exit_code": worst.exit_code if worst else None,
            "meaning": (worst.exit_cause or None) if worst else None,
            "last_lines": self._last_messages.get(worst.path, ()) if worst else (),
            "literal_bytes": total("literal"),
            "matched_bytes": total("matched"),
            "received_bytes": total("received"),
            "protocol": None,
        }

    # --- the work -----------------------------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Applies the streams of all paths. Leaves `connection` open; the caller closes it."""
        self.running.expected_files = None  # only changes are counted
        session, begun = None, time.monotonic()
        self._allocation = await asyncio.to_thread(read_allocation, self.context.pool.path)
        if not await asyncio.to_thread(writes_encoded, self.prepared.path):
            self.way = replace(self.way, plain=True)
        if self.way.attempt > 1:
            await self._pause_before(self.way.attempt)
        for attempt in range(self.way.attempt, self.host.attempts + 1):
            self.attempts = attempt
            session = await self._begin()
            if session or not self.unreachable or self.cancellation.reason or attempt == self.host.attempts or self._is_optional:
                break
            await self._pause_before(attempt + 1)
        if session is None:
            return
        try:
            await self._apply(session, begun)
        finally:
            if self._remote:
                await self._remote.end()

    async def _pause_before(self, attempt: int) -> None:
        await self.pause(min(_LONGEST_PAUSE, self.context.retry_pause * 3 ** (attempt - 2)), True)

    async def _apply(self, session: StreamSession, begun: float) -> None:
        self.snapshots.dumps = session.dumps
        self.seconds["snapshots"] = round(time.monotonic() - begun, 3)  # with the login, and the dumps
        for path in self.host.paths:
            result = self.results[path] = await self._path(session.streams[path])
            self.running.finish_path()
            if result.stream:
                await asyncio.to_thread(set_attributes, self.prepared.path / DATA, session.streams[path].above)
            if result.outcome.rank > PathOutcome.SUSPECT.rank:
                break
        for path in self.host.paths:
            self.results.setdefault(path, PathResult(path, PathOutcome.UNFINISHED, result.reason, cause=result.cause))
        self.results = {path: self._with_dumps(self.results[path], session) for path in self.host.paths}

    def has_lost_data(self) -> bool:
        """Returns True if the disks may not have stored data of this run, when everything is synced. Raises OSError.

        The kernel reports failed writes of plain data to the sync, and does not report those of compressed data at all.
        """
        return self._allocation is not None and may_have_lost_data(self._allocation, read_allocation(self.context.pool.path))

    @property
    def _is_optional(self) -> bool:
        return self.host.optional and self.absent

    async def _begin(self) -> StreamSession | None:
        """Requests the snapshots. Without them, `results` has the reason."""
        have = [] if self.way.complete else [stream for path in self.host.paths if (stream := self._parent_of(path))]
        try:
            session = await self._request(have)
        except NotConnected as error:
            messages = Messages()
            messages.feed(error.printed)
            messages.close()
            self._means = meaning(_NOT_CONNECTED, messages.last)
            self.results = {path: self._judged(path, _NOT_CONNECTED, messages, {}, 0.0) for path in self.host.paths}
        except NoSnapshots as error:
            line = f"{error.message}; {error.hint}" if error.hint else error.message
            stopped = self.cancellation.reason
            cause = stopped or Cause(CauseCode.NO_SNAPSHOTS, facts={"line": line})
            outcome = PathOutcome.UNFINISHED if stopped else PathOutcome.BROKEN
            self.results = {path: PathResult(path, outcome, cause_words(cause), cause=cause) for path in self.host.paths}
        else:
            self._means = None
            with Checkpoint("host's snapshots for streams made"):
                return session
        return None

    async def _request(self, have: Sequence[str]) -> StreamSession:
        """Requests the snapshots, and the stream of a single path. Raises NotConnected, NoSnapshots."""
        host, ssh = self.host, self.context.config.ssh
        former = [name for name in read_notes(self.context.pool.host(host.name)).was if name not in self.context.config.hosts]
        keepers = keepers_of(self.context.pool, host.name, former)
        seconds = host.deadline / 2  # a host that hangs here is then reported as such
        if len(host.paths) > 1:
            control = await self.connection.socket(self.cancellation)
            return await begin_streams(host, ssh, control, keepers, have, self.cancellation, seconds)
        buckets = self.context.buckets(host)
        session, self._remote = await begin_stream(
            host, ssh, buckets, keepers, have, self.cancellation, seconds, plain=self.way.plain
        )
        return session

    def _parent_of(self, path: str) -> str | None:
        """Returns the identity of the snapshot that the base has at a path, unchanged; accepted changes are changes."""
        base = self.prepared.base
        if base is None or base.repaired is not None or self.prepared.dropped:
            return None
        if not base.name or not self._is_base_original(base.name):
            return None
        before = base.path(path)
        return before.stream if before and before.stream and is_identity(before.stream) else None

    def _is_base_original(self, name: str) -> bool:
        folder = self.context.pool.host(self.host.name)
        try:
            subvolume = describe(folder / name)
            return subvolume is not None and is_original(folder / name, subvolume, read_notes(folder), name)
        except (OSError, OperatorError):
            return False

    async def _path(self, stream: HostStream) -> PathResult:
        path, begun = stream.path, time.monotonic()
        parent = stream.parent if stream.parent is not None and stream.parent == self._parent_of(path) else None
        stream = replace(stream, parent=parent)
        target = await self._target(stream)
        self.running.path = path
        try:
            remote, self._remote = self._remote or await self._send(stream), None
        except NotConnected as error:
            messages = Messages()
            messages.feed(error.printed)
            messages.close()
            self._means = meaning(_NOT_CONNECTED, messages.last)
            return self._judged(path, _NOT_CONNECTED, messages, {}, error.seconds)
        async with self.quota.held():
            self.writing = True
            done = await apply_stream(
                remote, target, self.lock, self.cancellation, self.host.stall, confined=self.confined, on_progress=self._progress
            )
        self.writing = False
        if (cause := await self.limits.at_end()) and not done.ended.stopped:
            done.ended = replace(done.ended, stopped=cause)
        seconds = time.monotonic() - begun
        self.seconds["stream"] = round(self.seconds["stream"] + seconds, 3)
        self._last_messages[path] = tuple(done.ended.messages.last)
        return self._result(stream, done, seconds)

    async def _send(self, stream: HostStream) -> RemoteStream:
        """Requests the stream of one of several paths. Raises NotConnected."""
        control = await self.connection.socket(self.cancellation)
        buckets = self.context.buckets(self.host)
        return RemoteStream(stream_command(self.host, self.context.config.ssh, control, buckets, stream, plain=self.way.plain))

    async def _target(self, stream: HostStream) -> StreamTarget:
        """Prepares the folder: it stays as the base has it for a difference, and is emptied for a complete stream."""
        path, base = stream.path, self.prepared.base
        folder = self.prepared.path / DATA / path.strip("/")
        old = None
        if stream.parent is None:
            self.has_complete = True
            await asyncio.to_thread(_empty, folder)
        else:
            assert base is not None
            assert base.name is not None
            old = self.context.pool.host(self.host.name) / base.name / DATA / path.strip("/")
        made = [sum(result.numbers.get(name, 0) for result in self.results.values()) for name in ("created", "literal")]
        files, size = (
            None if limit is None else max(0, limit - used)
            for limit, used in zip((self.host.max_files, self.host.max_new_bytes), made, strict=True)
        )
        compression = compression_of(self.context.pool.host(self.host.name))
        return StreamTarget(folder, old, in_stream(stream.parent) if stream.parent else None, files, size, compression)

    def _progress(self, _received: int, literal: int, names: int) -> None:
        progress = self._output.progress
        progress.bytes, progress.checked = bounded(literal), bounded(names)
        self.running.take(self._output)

    # --- its result ---------------------------------------------------------------------------------------------------------
    def _result(self, stream: HostStream, done: AppliedStream, seconds: float) -> PathResult:
        path, ended = stream.path, done.ended
        numbers = self._numbers(stream, done)
        if ended.stopped:
            cause = replace(ended.stopped, path=path)
            return PathResult(path, PathOutcome.UNFINISHED, cause_words(cause), ended.exit_code, numbers=numbers, cause=cause)
        if not ended.exit_code and not done.ssh_status and done.own == in_stream(stream.identity):
            result = self._judged(path, 0, Messages(), numbers, seconds)
            taken = PathConsistency(SNAPSHOT, ("btrfs",), stream.taken)
            warnings = (*result.warnings, *_warnings(stream, done))
            return replace(
                result, stream=stream.identity, consistency=taken, warnings=warnings, not_kept=done.not_kept, samples=done.samples
            )
        if done.ssh_status and ended.exit_code in (0, stream_format.CUT):
            return self._of_host(path, done, numbers, seconds)
        return self._of_applier(stream, done, numbers)

    def _numbers(self, stream: HostStream, done: AppliedStream) -> dict[str, int]:
        """Returns the statistics, with totals in place of the differences."""
        if not done.numbers:
            return {"received": bounded(done.received)} if done.received else {}
        before: Mapping[str, int] = {"files": stream.path.strip("/").count("/") + 1}  # rsync counts the folders above, too
        if stream.parent and self.prepared.base and (result := self.prepared.base.path(stream.path)):
            before = result.numbers
        totals = {name: bounded(before.get(name, 0) + done.numbers[name]) for name in ("files", "regular", "bytes")}
        counts = {name: bounded(number) for name, number in done.numbers.items()}
        return {**counts, **totals, "received": bounded(done.received), "sent": 0}

    def _judged(self, path: str, exit_code: int, messages: Messages, numbers: Mapping[str, int], seconds: float) -> PathResult:
        """Returns the result by the rules for rsync: what connections mean, and `shrink_limit`."""
        before = self.prepared.base.path(path) if self.prepared.base else None
        limits = SuspectLimits(self.host.shrink_limit, self.host.unreadable_limit)
        evidence = PathEvidence(path, exit_code, messages, numbers, before.numbers if before else None, limits, seconds)
        return judge_path(evidence)

    def _of_host(self, path: str, done: AppliedStream, numbers: Mapping[str, int], seconds: float) -> PathResult:
        """Returns the result of a stream that the host or the connection ended."""
        messages, status = Messages(), done.ssh_status
        messages.feed(done.ssh_errors)
        messages.close()
        self._last_messages[path] = tuple(messages.last)
        own = [line.removeprefix(f"{PROGRAM}: ") for line in messages.last if line.startswith(f"{PROGRAM}: ")]
        if status == _NOT_CONNECTED:
            if done.received or len(self.host.paths) == 1:  # the answer came over the same connection
                return self._broken(path, messages, numbers, seconds)
            self._means = meaning(_NOT_CONNECTED, messages.last)
            return self._broken(path, messages, numbers, seconds, _NOT_CONNECTED)
        line = own[-1] if own else f"{PROGRAM} is not installed on the host" if status == _NOT_FOUND else f"exit status {status}"
        return self._failed(path, status, numbers, line)

    def _of_applier(self, stream: HostStream, done: AppliedStream, numbers: Mapping[str, int]) -> PathResult:
        """Returns the result of a stream that this server could not apply."""
        path, code = stream.path, done.ended.exit_code
        line = next(reversed(done.ended.messages.last), f"the applier ended with status {code}")
        if code == stream_format.DOES_NOT_FIT and stream.parent and not self.way.complete:
            self._begin_again(path, replace(self.way, complete=True), line)
        elif code == stream_format.NOT_ENCODED and not self.way.plain:
            self._begin_again(path, replace(self.way, plain=True), line)
        elif code == stream_format.OVER_LIMIT:
            cause = replace(self._over_limit(line), path=path)
            self.cancellation.cancel_for(cause)
            return PathResult(path, PathOutcome.UNFINISHED, cause_words(cause), code, numbers=numbers, cause=cause)
        elif code == stream_format.CUT:
            return self._broken(path, done.ended.messages, numbers, 0.0)
        elif code == stream_format.SERVER_FAULT or code < 0:
            cause = Cause(CauseCode.SERVER_FAULT, path, {"line": line})
            if self.host.quota is not None and os.strerror(EDQUOT) in line:
                cause = self.quota.used_up()
                self.cancellation.cancel_for(cause)
                return PathResult(path, PathOutcome.UNFINISHED, cause_words(cause), code, numbers=numbers, cause=cause)
            return PathResult(path, PathOutcome.FAULT, cause_words(cause), code, numbers=numbers, cause=cause)
        return self._failed(path, code, numbers, line)

    def _failed(self, path: str, code: int, numbers: Mapping[str, int], line: str) -> PathResult:
        cause = Cause(CauseCode.STREAM_FAILED, path, {"line": line})
        return PathResult(path, PathOutcome.BROKEN, cause_words(cause), code, numbers=numbers, cause=cause)

    def _broken(self, path: str, messages: Messages, numbers: Mapping[str, int], seconds: float, code: int = _BROKE) -> PathResult:
        """Returns the result of a stream whose connection broke. The next attempt of this run begins again."""
        if self.way.attempt < self.host.attempts and not self.host.calls:
            self.again = replace(self.way, attempt=self.way.attempt + 1)
        return self._judged(path, code, messages, numbers, seconds)

    def _begin_again(self, path: str, way: StreamWay, line: str) -> None:
        log.warning("%s: %s: the stream could not be applied (%s); requesting another one", self.host.name, path, line)
        self.again = way

    def _over_limit(self, line: str) -> Cause:
        """Returns the cause from the applier's message, `files NUMBER` or `bytes NUMBER` beyond what was left of the limit."""
        kind, _, number = line.partition(" ")
        code, limit = (
            (CauseCode.MAX_FILES, self.host.max_files) if kind == "files" else (CauseCode.MAX_NEW_BYTES, self.host.max_new_bytes)
        )
        new = int(number) if number.isdecimal() else 0
        return Cause(code, facts={"found": max(new, (limit or 0) + 1), "limit": limit or 0})

    def _with_dumps(self, result: PathResult, session: StreamSession) -> PathResult:
        for dump in session.dumps:
            if dump.failed and result.outcome is PathOutcome.COMPLETE:
                line = dump.error or ("" if dump.status is None else f"exit status {dump.status}")
                cause = Cause(CauseCode.DUMP_FAILED, facts={"name": dump.name, "line": line})
                if dump.required:
                    return replace(result, outcome=PathOutcome.SUSPECT, reason=cause_words(cause), cause=cause)
                if cause_words(cause) not in self.snapshots.warnings:
                    self.snapshots.warnings.append(cause_words(cause))
        return result


def _warnings(stream: HostStream, done: AppliedStream) -> list[str]:
    warnings = []
    if stream.left_out_count:
        names = ", ".join(stream.left_out[:_NAMED])
        more = ", ..." if stream.left_out_count > _NAMED else ""
        subvolumes = counted(stream.left_out_count, "nested subvolume")
        warnings.append(f"{stream.path}: the stream leaves out {subvolumes}: {names}{more}")
    if stream.not_kept:
        snapshots = counted(stream.not_kept, "snapshot")
        allows = "raise history in [snapshots] of /etc/btrkeep-source.conf on the host"
        warnings.append(f"{stream.path}: the host keeps {snapshots} fewer than keep_on_host asks for: {allows}")
    if done.not_kept:
        attributes = counted(done.not_kept, "attribute")
        warnings.append(f"{stream.path}: {attributes} could not be stored as on the host (such as {'; '.join(done.samples)})")
    return warnings


def _empty(folder: Path) -> None:
    """Makes a folder empty, or makes it. Raises OSError."""
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    elif folder.is_dir():
        remove_tree(folder)
    folder.mkdir(parents=True)
    for inherited in ("system.posix_acl_default", "system.posix_acl_access"):  # of a folder above that rsync has made
        with suppress(OSError):
            os.removexattr(folder, inherited)


Transfer = HostTransfer | StreamTransfer
"""All that is fetched from a host in a run, by rsync or by streams."""


def new_transfer(
    context: RunContext,
    host: HostConfig,
    prepared: WorkSubvolume,
    lock: Lock,
    cancellation: RunCancellation,
    running: RunningTransfer,
    pause: Pause,
    way: StreamWay | None,
) -> Transfer:
    """Returns the transfer of a host's engine. `way`: how streams are requested."""
    if host.engine == "send":
        return StreamTransfer(context, host, prepared, lock, cancellation, running, pause, way or StreamWay())
    return HostTransfer(context, host, prepared, lock, cancellation, running, pause)
