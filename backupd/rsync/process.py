"""One rsync, run to its end or stopped: by a signal, the window, the deadline, or because it makes no progress. rsync's own
--timeout does not work for a transfer from a host that hangs (keep-alives of this side count as activity), so progress is measured
from outside: rsync's output, the bytes that its processes read, and their CPU time.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from backupd.rsync.messages import Messages, Output
from btrkeep.backup_states import Cause, CauseCode
from btrkeep.checkpoints import Checkpoint
from btrkeep.decisions.cause_words import cause_words
from btrkeep.errors import OperatorError
from btrkeep.pool.locks import Lock
from btrkeep.process.group import PATIENCE, Group, GroupCancellation, UnkillableProcess
from btrkeep.process.proc import GroupMember, members

_ALIVE_BYTES = 1024  # fewer bytes than this since the last check are only keep-alives
_ALIVE_TICKS = 5
_MOST_PROCESSES = 32  # of a transfer; rsync needs two, its confinement three more

RunCancellation = GroupCancellation[Cause]
"""Stops a host's run, with a reason: ends the present transfer or hook, and prevents new ones."""


@dataclass(slots=True)
class RsyncEnd:
    """A finished rsync whose process group has ended."""

    exit_code: int
    """Its exit status; negative for a signal."""
    output: Output
    """Its standard output."""
    messages: Messages
    """Its error output."""
    seconds: float
    """How long it took."""
    stopped: Cause | None
    """Why it was stopped; None: it ended without being stopped."""


class TransferCell(Protocol):
    """What belongs to a transfer beside its program: the remote shell, and the cell if it is confined."""

    @property
    def is_confined(self) -> bool:
        """Returns True if the program is confined, so that its lock has to be read-only."""

    @property
    def inherited(self) -> tuple[int, ...]:
        """Returns the descriptors that the program inherits."""

    def started(self, group: Group) -> None:
        """Records the process group of the program."""

    def exit_code(self, code: int, lines: Iterable[str]) -> int:
        """Returns the program's exit status, from the status of the cell and its last messages."""


async def transfer(
    command: Sequence[str],
    lock: Lock,
    cancellation: RunCancellation,
    stall: float,
    on_output: Callable[[Output], None] = lambda _: None,
    on_said: Callable[[bytes], bool] = lambda _: True,
    cell: TransferCell | None = None,
    take: Callable[[bytes], None] | None = None,
) -> RsyncEnd:
    """Runs rsync under the host's lock, which its processes inherit. Raises ProgramFailed if it cannot be started.

    `on_said` gets all output, and returns whether to parse it. `cell`: what is started beside `command`, which it may confine.
    `take` gets the standard output of a program that is not rsync.

    Raises OperatorError if one of its processes cannot be ended: that process keeps the lock, and may still write.
    """
    started = time.monotonic()
    output, messages = Output(), Messages()
    watch = StallWatch(stall)

    def take_output(data: bytes) -> None:
        if heard(data):
            (take or output.feed)(data)
            messages.answered = output.protocol is not None
            on_output(output)

    def take_messages(data: bytes) -> None:
        if heard(data):
            messages.feed(data)

    def heard(data: bytes) -> bool:
        watch.moved()
        return on_said(data)

    if cell and cell.is_confined and not lock.sealed:
        raise OperatorError("rsync could not be confined: it would inherit a writable lock", "run the backup of the host again")
    if cancellation:
        return RsyncEnd(20, output, messages, 0.0, cancellation.reason)
    keep_open = [lock.fd, *(cell.inherited if cell else ())]
    wraps = cell is not None and cell.is_confined
    group = Group.start(command, on_stdout=take_output, on_stderr=take_messages, keep_open=keep_open, wraps=wraps)
    if cell:
        cell.started(group)
    cancellation.group = group
    watching = asyncio.create_task(watch.run(group))
    try:
        lock.note_group(group.pid)
        with Checkpoint("rsync ended"):
            exit_code = await group.wait()
    except UnkillableProcess as error:
        lock.leave()
        stopped = cancellation.reason or watch.verdict
        why = cause_words(stopped) if stopped else "rsync has ended, but some of its processes have not"
        raise OperatorError(f"{why}; {error.message}, and it keeps the lock of the host", error.hint) from error
    except (asyncio.CancelledError, OSError):  # a bug elsewhere or a failed pool ends the loop: no receiver may outlive it
        group.signal(signal.SIGKILL)
        raise
    finally:
        cancellation.group = None
        watching.cancel()
    messages.close(output.complaints)
    if cell:
        exit_code = cell.exit_code(exit_code, messages.last)
    return RsyncEnd(exit_code, output, messages, time.monotonic() - started, cancellation.reason or watch.verdict)


class StallWatch:
    """Ends a group that has made no progress for `stall` seconds, or has more processes than rsync starts; `verdict` is then the
    reason.
    """

    def __init__(self, stall: float) -> None:
        self.stall = stall
        self.verdict: Cause | None = None
        self._since = time.monotonic()
        self._seen: dict[int, tuple[int, int]] = {}

    def moved(self) -> None:
        """Records that rsync has made progress."""
        self._since = time.monotonic()

    async def run(self, group: Group) -> None:
        """Checks regularly until the group has ended."""
        pause = min(10.0, self.stall / 4)
        while group.running:
            await asyncio.sleep(pause)
            group_members = members(group.pid)
            self._note_progress(group_members)
            if len(group_members) > _MOST_PROCESSES:
                self.verdict = Cause(CauseCode.TOO_MANY_PROCESSES, facts={"processes": len(group_members)})
                group.signal(signal.SIGKILL)
                return
            if time.monotonic() - self._since > self.stall:
                self.verdict = Cause(CauseCode.STALLED, facts={"seconds": self.stall})
                group.signal(signal.SIGTERM)
                await asyncio.sleep(PATIENCE)
                group.signal(signal.SIGKILL)
                return

    def _note_progress(self, group_members: Sequence[GroupMember]) -> None:
        """Compares with the last progress; counts only rsync's processes, because ssh also reads keep-alives."""
        now = {member.pid: (member.read_bytes, member.cpu_ticks) for member in group_members if member.name == "rsync"}
        for pid, (read_bytes, ticks) in now.items():
            before = self._seen.get(pid, (0, 0))
            if read_bytes - before[0] > _ALIVE_BYTES or ticks - before[1] > _ALIVE_TICKS:
                self._since = time.monotonic()
                self._seen = now
                return
