"""The snapshots of a host during its run, with `snapshots` in the configuration: one session for all transfers and attempts, which
ends with them; and which source paths were therefore read from snapshots.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from backupd.repo.backup_json import PathOutcome, PathResult
from backupd.rsync.process import RsyncEnd, RunCancellation
from backupd.rsync.shared_connection import NotConnected, SharedConnection
from backupd.rsync.snapshot_session import (
    PROGRAM,
    NoSnapshots,
    SnapshotSession,
    begin_session,
    end_session,
    in_session,
)
from btrkeep.backup_states import Cause, CauseCode, ConditionKey, ConditionKind
from btrkeep.checkpoints import Checkpoint
from btrkeep.config import HostConfig, SshSettings
from btrkeep.config.self_exclusion import below
from btrkeep.consistency import LIVE, HostDump, PathConsistency, consistency_words
from btrkeep.decisions.cause_words import cause_words
from btrkeep.errors import OperatorError
from btrkeep.process.progress import Cancellation

log = logging.getLogger(__name__)

_END_SECONDS = 60.0  # for the end of a session: deleting a snapshot takes seconds
_NO_TRANSFER = PathConsistency(LIVE, reason="no session of snapshots")


class SnapshotsRequired(Exception):
    """The host made no snapshots, and the configuration requires them."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause_words(cause))
        self.cause = cause


class HostSnapshots:
    """The session of one run. Without `snapshots` it does nothing. `warnings`: lines for the backup; `host`: the host as rsync has
    to reach it now; `inner`, `streams`: as in SnapshotSession.
    """

    def __init__(self, host: HostConfig, ssh: SshSettings, connection: SharedConnection, cancellation: RunCancellation) -> None:
        self.host = host
        self.warnings: list[str] = []
        self.inner: Mapping[str, int | None] | None = None
        self.streams: Mapping[str, tuple[str, ...]] = {}
        self._configured, self._ssh, self._connection, self._cancellation = host, ssh, connection, cancellation
        self._session: SnapshotSession | None = None
        self._newest: SnapshotSession | None = None  # to be ended, whether the host has lost it or not
        self._refused = ""
        self._dumps: dict[str, HostDump] = {}
        self._read: dict[str, PathConsistency] = {}
        self._lost: list[str] = []  # source paths whose snapshot became full
        self._is_wanted = host.snapshots != "off"

    @property
    def dumps(self) -> tuple[HostDump, ...]:
        """Returns the dumps that the host made. A dump that failed in one of several sessions counts as failed."""
        return tuple(self._dumps.values())

    def note_stream(self, name: str, size: int, seconds: float, status: int, error: str) -> None:
        """Records how the stream of a dump ended."""
        self._dumps[name] = replace(self._dumps[name], bytes=size, seconds=round(seconds, 3), status=status, error=error)

    async def begin(self, control: Path | None) -> None:
        """Begins a session unless there is one. `control`: the socket of the shared connection.

        Raises NotConnected if ssh could not connect, and SnapshotsRequired.
        """
        if not self._is_wanted or self._session or self._cancellation:
            return
        if not self._refused:
            try:
                seconds = self._configured.deadline / 2  # a host that does not answer is then still read live
                session = await begin_session(self._configured, self._ssh, control, self._cancellation, seconds)
            except NoSnapshots as error:
                if self._cancellation:  # it ended the request
                    return
                self._refused = f"{error.message}; {error.hint}" if error.hint else error.message
                log.warning("%s: no snapshots: %s", self._configured.name, self._refused)
                if self._configured.snapshots != "required":
                    self.warnings.append(f"the host made no snapshots, so its files were read live: {self._refused}")
            else:
                self._begun(session)
                return
        if self._configured.snapshots == "required":
            raise SnapshotsRequired(Cause(CauseCode.NO_SNAPSHOTS, facts={"line": self._refused}))

    @Checkpoint("session of snapshots begun")
    def _begun(self, session: SnapshotSession) -> None:
        self._newest, self.inner, self.streams = session, session.inner, session.streams
        self._session, self.host = session, in_session(self._configured, session.name, session.own)
        for dump in session.dumps:
            before = self._dumps.get(dump.name)
            self._dumps[dump.name] = before if before and before.failed else dump

    def note_transfer(self, path: str, ended: RsyncEnd) -> None:
        """Records how a source path was read by an rsync that has ended, and whether the host has lost the session."""
        if not self._is_wanted:
            return
        session = self._session
        self._read[path] = session.paths[path] if session else replace(_NO_TRANSFER, reason=self._refused or _NO_TRANSFER.reason)
        if session and ended.exit_code and any(line.startswith(f"{PROGRAM}: ") for line in ended.messages.last):
            self._session, self.host = None, self._configured

    async def end(self) -> None:
        """Ends the session, however the run ended. A failure is only a warning: the host deletes its snapshots later."""
        session, self._newest, self._session, self.host = self._newest, None, None, self._configured
        if not session:
            return
        ending = RunCancellation()  # not that of the run, which may be cancelled
        try:
            async with asyncio.timeout(_END_SECONDS):
                control = await self._connection.socket(Cancellation())
                full = await end_session(self._configured, self._ssh, control, session.name, ending, _END_SECONDS)
        except (OperatorError, NotConnected, TimeoutError) as error:
            why = error.message if isinstance(error, OperatorError) else "it could not be reached"
            log.warning("%s: session %s was not ended: %s", self._configured.name, session.name, why)
            self.warnings.append(
                f"the host did not delete the snapshots of this run ({why}): {PROGRAM} deletes them in its next run"
            )
            return
        read = session.without(full)
        for path, before in list(self._read.items()):
            if before is session.paths[path] and read[path] is not before:
                self._read[path] = read[path]
                self._lost.append(path)
                if self._configured.snapshots != "required":  # then it is the reason why the backup is suspect
                    self.warnings.append(consistency_words(path, read[path]))

    @property
    def conditions(self) -> list[ConditionKey]:
        """Returns what failed on the host, so that it is an alarm if it lasts. A path that may be read live is not a failure."""
        keys = [ConditionKey(ConditionKind.DUMP_FAILED, "", dump.name) for dump in self._dumps.values() if dump.failed]
        if self._refused:
            return [*keys, ConditionKey(ConditionKind.NO_SNAPSHOT, "")]
        is_required = self._configured.snapshots == "required"
        live = [path for path, read in self._read.items() if read.is_live and (is_required or path in self._lost)]
        return keys + [ConditionKey(ConditionKind.NO_SNAPSHOT, path) for path in live]

    def judged(self, results: Sequence[PathResult]) -> list[PathResult]:
        """Returns the results of a run whose session has ended, with how each path was read; suspect if a required snapshot or dump
        is missing.
        """
        judged_results = [self._judged(replace(result, consistency=self._read.get(result.path))) for result in results]
        for dump in self._dumps.values():
            judged_results = self._with_dump(judged_results, dump)
        return judged_results

    def _judged(self, result: PathResult) -> PathResult:
        consistency = result.consistency
        if consistency is None or not consistency.is_live or self._configured.snapshots != "required":
            return result
        return _suspect(result, Cause(CauseCode.NOT_FROM_SNAPSHOT, result.path, {"line": consistency.reason}))

    def _with_dump(self, results: list[PathResult], dump: HostDump) -> list[PathResult]:
        if not dump.failed:
            return results
        line = dump.error or ("" if dump.status is None else f"exit status {dump.status}")
        cause = Cause(CauseCode.DUMP_FAILED, facts={"name": dump.name, "line": line})
        if not dump.required:
            self.warnings.append(cause_words(cause))
            return results
        holders = [result.path for result in results if below(dump.path, result.path)]
        return [_suspect(result, cause) if result.path in holders or not holders else result for result in results]


def _suspect(result: PathResult, cause: Cause) -> PathResult:
    """Returns a complete result as suspect; a worse one has its own cause."""
    if result.outcome is not PathOutcome.COMPLETE:
        return result
    return replace(result, outcome=PathOutcome.SUSPECT, reason=cause_words(cause), cause=cause)
