"""One block group being relocated, in a thread, for the ioctl blocks; and its cancellation, which blocks too."""

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Self, TypeVar

from btrkeep.pool.balance import balance_block_group, balance_now, cancel_balance

_AGAIN = 0.02

_Result = TypeVar("_Result")


class Relocation:
    """Begins with the context, and is over when that is left, cancelled if it must be: nothing stays behind in the kernel.

    Signals go to the main thread only. An exception that leaves the context cancels.
    """

    def __init__(self, fd: int, vaddr: int, flags: int) -> None:
        self._vaddr, self._flags = vaddr, flags
        self._fd = os.dup(fd)  # the threads' own: whatever becomes of ours
        self._threads = ThreadPoolExecutor(2, "balance")
        self._cancelling: Future[None] | None = None

    def __enter__(self) -> Self:
        self._balance = self._submit(lambda: balance_block_group(self._fd, self._vaddr, self._flags))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind:
            self.cancel()
        self._threads.shutdown(wait=True)
        os.close(self._fd)

    def _submit(self, work: Callable[[], _Result]) -> Future[_Result]:
        """In a thread that no signal is delivered to, as it inherits what is blocked here."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            return self._threads.submit(work)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def ended(self, seconds: float) -> bool:
        """Whether it has ended, after waiting for that at most so long."""
        return bool(wait([self._balance], seconds).done)

    def cancel(self) -> None:
        """Has it cancelled; `ended` says when that is done. Not more than once: again is nothing."""
        if self._cancelling is None:
            self._cancelling = self._submit(self._cancel)

    def _cancel(self) -> None:
        """Again and again: the ioctl may not have begun yet. Only the balance of this block group, not one that keeps ours out."""
        while not self._balance.done():
            cancel_balance(self._fd, self._vaddr)
            time.sleep(_AGAIN)

    @property
    def relocated(self) -> int:
        """How many block groups were, 1 or 0, once it has ended."""
        return 0 if self._balance.exception() else self._balance.result()

    def error(self) -> OSError | None:
        """What the ioctl said, once it has ended; None when all went well. A bug of ours is raised."""
        error = self._balance.exception()
        if error is None or isinstance(error, OSError):
            return error
        raise error

    def clear(self) -> bool:
        """Cancels what is left of it when somebody else has paused it; whether there was anything."""
        found = balance_now(self._fd)
        return bool(found and found.paused and cancel_balance(self._fd, self._vaddr))
