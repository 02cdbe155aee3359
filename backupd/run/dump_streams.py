"""Dumps that a host sends as streams: written into the backup after its last rsync, without a file on the host.

Each file arrives without a name and gets it only when the host's command has succeeded, so a stream that breaks off leaves nothing.
docs/decisions/0093-dumps-as-streams.rst has the reasons.
"""

import asyncio
import logging
import os
import shlex
import stat
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from errno import EDQUOT, EINVAL
from pathlib import Path

from backupd.repo.backup_json import DATA, PathOutcome, PathResult
from backupd.rsync.bandwidth import relay_command
from backupd.rsync.command import host_command
from backupd.rsync.process import RunCancellation, transfer
from backupd.rsync.shared_connection import NotConnected, SharedConnection
from backupd.rsync.snapshot_session import PROGRAM
from backupd.run import dump_writer
from backupd.run.finalisation import WorkSubvolume
from backupd.run.host_snapshots import HostSnapshots
from backupd.run.limits import HostQuota, LimitWatch
from backupd.run.run_context import RunContext
from backupd.streams.applying import LAST_WORDS, RemoteStream
from btrkeep.backup_states import Cause, CauseCode
from btrkeep.checkpoints import Checkpoint
from btrkeep.config import HostConfig
from btrkeep.config.self_exclusion import below
from btrkeep.consistency import limited_text
from btrkeep.decisions.cause_words import cause_words
from btrkeep.descriptors import ClosingFd
from btrkeep.fs.openat import FILE, FOLDER, open_folder, open_inner
from btrkeep.fs.reflink import clone
from btrkeep.pool.locks import Lock
from btrkeep.process.group import Group
from btrkeep.units import bounded

log = logging.getLogger(__name__)

_NOT_CONNECTED = 255


class DumpFile:
    """A file of a backup without a name until `place`. It has the data of the base's file at first, shared with it."""

    def __init__(self, data: Path, path: str, base: Path | None) -> None:
        """Deletes the file that has that path. No symlink is followed: the host chose all names. Raises OSError."""
        *folders, self._name = os.fsencode(path).strip(b"/").split(b"/")
        with ClosingFd(os.open(data, FOLDER)) as root:
            self._folder = _made_folder(root, folders)
        try:
            with suppress(FileNotFoundError):
                os.unlink(self._name, dir_fd=self._folder)
            self.fd = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=self._folder)
        except OSError:
            os.close(self._folder)
            raise
        if base:
            with suppress(OSError):  # then all of it is written
                _share(base, folders, self._name, self.fd)

    @Checkpoint("dump placed")
    def place(self) -> None:
        """Gives the file its name. Raises OSError."""
        os.link(f"/proc/self/fd/{self.fd}", self._name, dst_dir_fd=self._folder, follow_symlinks=True)

    def close(self) -> None:
        """Closes the file, which disappears if it has no name."""
        os.close(self.fd)
        os.close(self._folder)


def _made_folder(root: int, names: Iterable[bytes]) -> int:
    """Returns a descriptor of a folder below `root`, and makes it if it is missing. Raises OSError."""
    folder = os.dup(root)
    for name in names:
        try:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=folder)
            inner = open_inner(folder, name)
        finally:
            os.close(folder)
        folder = inner
    return folder


def _share(base: Path, folders: Sequence[bytes], name: bytes, copy: int) -> None:
    with ClosingFd(os.open(base, FOLDER)) as root, ClosingFd(open_folder(root, folders)) as folder:
        source = os.open(name, os.O_RDONLY | FILE, dir_fd=folder)
    with ClosingFd(source):
        if not stat.S_ISREG(os.fstat(source).st_mode):
            raise OSError(EINVAL, "not a regular file")
        clone(source, copy)


class _Writer:
    """The process that writes a stream into a file: a TransferCell."""

    is_confined = False

    def __init__(self, remote: RemoteStream, file: DumpFile) -> None:
        self._remote = remote
        self.inherited = (remote.reading, file.fd)

    @property
    def command(self) -> tuple[str, ...]:
        """Returns its command."""
        python = sys.executable or "/usr/bin/python3"
        return (python, "-I", "-S", str(Path(dump_writer.__file__).absolute()), *map(str, self.inherited))

    def started(self, _: Group) -> None:
        """Leaves the pipe to the writer: ssh ends when it does."""
        self._remote.close()

    def exit_code(self, code: int, _lines: Iterable[str]) -> int:
        """Returns its exit status."""
        return code


@dataclass(frozen=True, slots=True)
class DumpEnd:
    """How one file of a dump ended."""

    received: int = 0
    """Bytes of the stream."""
    written: int = 0
    """Bytes that differed from the base's file."""
    status: int = 0
    """The exit status of the request, 0 if the file is in the backup."""
    error: str = ""
    """Why it is not."""
    stopped: Cause | None = None
    """Why the run has to end; None: it continues."""
    stalled: bool = False
    """Whether the host sent nothing for `stall`: its other dumps may succeed."""
    outcome: PathOutcome = PathOutcome.UNFINISHED
    """Of the source path, if it was stopped."""


class DumpStreams:
    """The streams of one run, with what the transfers of its host use."""

    def __init__(
        self,
        context: RunContext,
        host: HostConfig,
        prepared: WorkSubvolume,
        lock: Lock,
        cancellation: RunCancellation,
        snapshots: HostSnapshots,
        connection: SharedConnection,
        quota: HostQuota,
        limits: LimitWatch,
    ) -> None:
        self.context, self.host, self.prepared, self.lock = context, host, prepared, lock
        self.cancellation, self.snapshots, self.connection = cancellation, snapshots, connection
        self.quota, self.limits = quota, limits

    async def fetch(self, results: Mapping[str, PathResult]) -> dict[str, PathResult]:
        """Fetches all streams if all source paths have arrived; returns their results. Raises OSError."""
        results = dict(results)
        if any(result.outcome.rank > PathOutcome.SUSPECT.rank for result in results.values()):
            return results
        for name, files in self.snapshots.streams.items():
            begun, size, failed = time.monotonic(), 0, DumpEnd()
            for file in files:
                end = await self._file(name, file)
                size += end.received
                failed = failed if failed.status else end
                holder = max((path for path in results if below(file, path)), key=len)
                results[holder] = _with_stream(results[holder], end)
                if end.stopped:
                    return results
                if end.stalled:
                    break
            self.snapshots.note_stream(name, size, time.monotonic() - begun, failed.status, failed.error)
        return results

    async def _file(self, name: str, path: str) -> DumpEnd:
        base, data = self.prepared.base, self.prepared.path / DATA
        of_base = self.context.pool.host(self.host.name) / base.name / DATA if base and base.name else None
        try:
            file = await asyncio.to_thread(DumpFile, data, path, of_base)
        except (IsADirectoryError, NotADirectoryError) as error:  # the host has a folder or a symlink there
            why = f"it is or is below something else on the host ({error.strerror}): {path}"
            return DumpEnd(status=1, error=limited_text(why))
        try:
            end = await self._written(name, path, file)
            if not end.status and not end.stopped:
                await asyncio.to_thread(file.place)
            return end
        finally:
            file.close()

    async def _written(self, name: str, path: str, file: DumpFile) -> DumpEnd:
        try:
            control = await self.connection.socket(self.cancellation)
        except NotConnected as error:
            return _lost(name, error.printed)
        line = shlex.join((PROGRAM, "dump", name, path))
        command = host_command(self.host, self.context.config.ssh, control, (line,))
        remote = RemoteStream(relay_command(self.context.buckets(self.host), command))
        printed = bytearray()
        try:
            writer = _Writer(remote, file)
            async with self.quota.held():
                ended = await transfer(
                    writer.command, self.lock, self.cancellation, self.host.stall, cell=writer, take=printed.extend
                )
        except BaseException:
            await remote.end()
            raise
        status = await remote.end(0.0 if ended.stopped else LAST_WORDS)
        received, written = map(int, (bytes(printed).splitlines() or [b"0 0"])[-1].split())
        end = DumpEnd(received, written, status)
        stall = ended.stopped if ended.stopped and ended.stopped.code is CauseCode.STALLED else None
        if cause := (None if stall else ended.stopped) or await self.limits.at_end():
            return replace(end, status=status or 1, error=cause_words(cause), stopped=replace(cause, path=path))
        if stall:  # a user of the host can lock a table, or stop a process, for ever
            return replace(end, status=status or 1, error=cause_words(stall), stalled=True)
        if ended.exit_code:
            return self._not_written(end, path, next(reversed(ended.messages.last), "the writer of the dump was killed"))
        if status == _NOT_CONNECTED:
            return replace(_lost(name, bytes(remote.errors) + (await self.connection.after(status) or b"")), received=received)
        lines = remote.errors.decode("utf-8", "replace").split("\n")
        lines = [line for line in lines if line.strip()]
        why = limited_text(lines[-1].removeprefix(f"{PROGRAM}: ")) if lines else f"exit status {status}"
        return replace(end, error=why) if status else end

    def _not_written(self, end: DumpEnd, path: str, line: str) -> DumpEnd:
        """Returns the end of a stream that this server could not write."""
        if self.host.quota is not None and os.strerror(EDQUOT) in line:
            cause = self.quota.used_up()
            self.cancellation.cancel_for(cause)
            return replace(end, status=1, error=line, stopped=cause)
        cause = Cause(CauseCode.SERVER_FAULT, path, {"line": line})
        return replace(end, status=1, error=line, stopped=cause, outcome=PathOutcome.FAULT)


def _lost(name: str, printed: bytes) -> DumpEnd:
    lines = printed.decode("utf-8", "replace").splitlines()
    error = f"the connection was lost{f': {limited_text(lines[-1])}' if lines else ''}"
    cause = Cause(CauseCode.DUMP_FAILED, facts={"name": name, "line": error})
    return DumpEnd(status=_NOT_CONNECTED, error=error, stopped=cause)


def _with_stream(result: PathResult, end: DumpEnd) -> PathResult:
    """Returns the result of a source path after a stream below it."""
    more = {"literal": end.written, "received": end.received}
    numbers = {**result.numbers, **{key: bounded(result.numbers.get(key, 0) + count) for key, count in more.items()}}
    if end.stopped:
        return replace(result, numbers=numbers, outcome=end.outcome, reason=cause_words(end.stopped), cause=end.stopped)
    return replace(result, numbers=numbers)
