"""Balances one block group: in a thread, because the ioctl blocks, with a cancellation that also blocks, progress, and a result."""

import errno
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from balancer.run_types import (
    BalanceEvent,
    BalanceOutcome,
    BalanceProgress,
    Cancelling,
    PlannedBlockGroup,
    RelocationObstacle,
    StopReason,
)
from balancer.stop_rules import Stop
from btrkeep.pool.activity import written_bytes
from btrkeep.pool.balance_ioctl import balance_block_group, balance_now, cancel_balance
from btrkeep.process.progress import ProgressSink
from btrkeep.process.threads import running_threads
from btrkeep.treescan.block_groups import looked_up

_AGAIN = 0.02
_TICK = 0.1
_TELL = 0.5
_OUTCOMES = {
    errno.ENOSPC: BalanceOutcome.NO_SPACE,
    errno.ECANCELED: BalanceOutcome.CANCELLED,
    errno.EINPROGRESS: BalanceOutcome.CANCELLED,
}
_THIS_ONE_ONLY = frozenset({errno.ENOSPC, errno.ETXTBSY, errno.EIO, errno.ECANCELED, errno.EINPROGRESS})
_WORDS = {
    errno.ENOSPC: "the kernel found no free space for its data",
    errno.ETXTBSY: "it contains an active swap file",
    errno.EIO: "a read or write of its data failed: `btrfs scrub` and dmesg show where",
    errno.ECANCELED: "cancelled",
    errno.EINPROGRESS: "another exclusive operation started first",
    errno.EROFS: "the filesystem has become read-only: dmesg shows why",
}
_OBSTACLES = {errno.ETXTBSY: RelocationObstacle.SWAP, errno.EINPROGRESS: RelocationObstacle.BUSY}


class Relocation:
    """The balance of one block group, as a context. When the context is left, the balance has ended or was cancelled.

    Only the main thread gets signals. An exception in the context cancels the balance. Both threads are started before the ioctl:
    without the second thread, a balance could not be cancelled. Raises NoThread.
    """

    def __init__(self, fd: int, vaddr: int, flags: int) -> None:
        self._vaddr, self._flags = vaddr, flags
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # inherited by threads: they get no signals
        try:
            self._threads = running_threads(2, "balance")
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._fd = os.dup(fd)  # the threads have their own, in case ours is closed
        self._cancelling: Future[None] | None = None

    def __enter__(self) -> Self:
        self._balance = self._threads.submit(lambda: balance_block_group(self._fd, self._vaddr, self._flags))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind:
            self.cancel()
        self._threads.shutdown(wait=True)
        os.close(self._fd)

    def ended(self, seconds: float) -> bool:
        """Waits for its end, up to a maximum time; returns whether it has ended."""
        return bool(wait([self._balance], seconds).done)

    def cancel(self) -> None:
        """Starts to cancel the balance; `ended` shows when it has ended. A second call has no effect."""
        if self._cancelling is None:
            self._cancelling = self._threads.submit(self._cancel)

    def _cancel(self) -> None:
        """Cancels again and again, because the ioctl may not have started yet: only the balance of this block group, no other."""
        while not self._balance.done():
            cancel_balance(self._fd, self._vaddr)
            time.sleep(_AGAIN)

    @property
    def relocated(self) -> int:
        """Returns the number of relocated block groups, 1 or 0; valid once the balance has ended."""
        return 0 if self._balance.exception() else self._balance.result()

    def error(self) -> OSError | None:
        """Returns the error of the ioctl, None if it succeeded; valid once the balance has ended. Raises an error that is a bug."""
        error = self._balance.exception()
        if error is None or isinstance(error, OSError):
            return error
        raise error

    def clear(self) -> bool:
        """Cancels the balance if another program has paused it; returns whether it was paused."""
        balance = balance_now(self._fd)
        return bool(balance and balance.paused and cancel_balance(self._fd, self._vaddr))


@dataclass(frozen=True, slots=True)
class Attempt:
    """The result of a relocation."""

    outcome: BalanceOutcome
    """How it ended."""
    left: int
    """Bytes of the block group that are still used."""
    seconds: float
    """How long it took."""
    error: str | None
    """The kernel's error, in words; None: none."""
    stop: Stop | None
    """Why the run must end; None: it continues."""
    obstacle: RelocationObstacle | None = None
    """The same as in StepDone."""


@dataclass(frozen=True, slots=True)
class RunSoFar:
    """State of the run before this block group."""

    moved: int
    """Bytes moved so far."""
    written: int
    """Bytes written so far."""
    counter: int
    """The value of `written_bytes` when the block group started."""


def used_now(fd: int, vaddr: int, length: int) -> int | None:
    """Returns the used bytes of the block group, None if it no longer exists. Raises OSError."""
    block_groups = looked_up(fd, np.array([vaddr], np.uint64), np.array([length], np.uint64))
    return int(block_groups.used[0]) if len(block_groups.used) else None


def attempt(
    fd: int,
    folder: Path,
    group: PlannedBlockGroup,
    before: RunSoFar,
    obstacle: Callable[[], Stop | None],
    tell: ProgressSink[BalanceEvent],
) -> Attempt:
    """Relocates the block group and waits for the end. Calls `obstacle` ten times a second; a Stop cancels. Raises OSError."""
    begun, last_told, stop = time.monotonic(), 0.0, None
    with Relocation(fd, group.vaddr, group.type) as relocation:
        while not relocation.ended(_TICK):
            if stop is None and (stop := obstacle()):
                relocation.cancel()
                tell(Cancelling(stop.why, group.vaddr))
            if time.monotonic() - last_told >= _TELL:
                last_told = time.monotonic()
                tell(_progress(fd, folder, group, before, last_told - begun))
        error = relocation.error()
        was_paused = relocation.clear()
    seconds = time.monotonic() - begun
    if stop is None and error and error.errno == errno.ECANCELED:
        stop = _from_outside(was_paused)
    return _judged(used_now(fd, group.vaddr, group.length), relocation.relocated, error, stop, seconds)


def _progress(fd: int, folder: Path, group: PlannedBlockGroup, before: RunSoFar, seconds: float) -> BalanceProgress:
    left, written = used_now(fd, group.vaddr, group.length) or 0, written_bytes(folder) - before.counter
    return BalanceProgress(left, written, seconds, before.moved + max(0, group.used - left), before.written + written)


def _from_outside(was_paused: bool) -> Stop:
    if was_paused:
        return Stop(
            StopReason.SIGNAL,
            "the balance was paused by another program; it was cancelled, because a paused balance prevents all others",
        )
    return Stop(StopReason.SIGNAL, "the balance was cancelled (`btrfs balance cancel`)")


def _judged(left: int | None, relocated: int, error: OSError | None, stop: Stop | None, seconds: float) -> Attempt:
    """Returns the result. A block group that no longer exists after an error was relocated, for example if the cancellation came
    too late.
    """
    if left is None:
        return Attempt(BalanceOutcome.DONE if relocated or error else BalanceOutcome.GONE, 0, seconds, None, stop)
    if error is None:  # success, but nothing was moved: no known kernel does that, but retrying would never end
        return Attempt(BalanceOutcome.FAILED, left, seconds, "the kernel did not move it", stop)
    words = _WORDS.get(error.errno or 0, error.strerror or str(error))
    if error.errno not in _THIS_ONE_ONLY:
        stop = stop or Stop(StopReason.FAILED, f"the last block group failed: {words}")
    return Attempt(
        _OUTCOMES.get(error.errno or 0, BalanceOutcome.FAILED), left, seconds, words, stop, _OBSTACLES.get(error.errno or 0)
    )
