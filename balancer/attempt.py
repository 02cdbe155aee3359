"""One block group is balanced: the thread that does it, what is told meanwhile, what may cancel it, and what it came to."""

import errno
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from balancer.relocation import Relocation
from balancer.run_types import BUSY, SWAP, BalanceEvent, BalanceOutcome, BalanceProgress, Cancelling, Ending, PlannedBlockGroup
from balancer.stop_rules import Stop
from btrkeep.pool.written import written_bytes
from btrkeep.process.progress import ProgressSink
from btrkeep.treescan.block_groups import looked_up

_TICK = 0.1
_TELL = 0.5
_OUTCOMES = {
    errno.ENOSPC: BalanceOutcome.NO_SPACE,
    errno.ECANCELED: BalanceOutcome.CANCELLED,
    errno.EINPROGRESS: BalanceOutcome.CANCELLED,
}
_THIS_ONE_ONLY = frozenset({errno.ENOSPC, errno.ETXTBSY, errno.EIO, errno.ECANCELED, errno.EINPROGRESS})
_WORDS = {
    errno.ENOSPC: "the kernel found no room for its data",
    errno.ETXTBSY: SWAP,
    errno.EIO: "something in it cannot be read or written: `btrfs scrub` and dmesg say what",
    errno.ECANCELED: "cancelled",
    errno.EINPROGRESS: BUSY,
    errno.EROFS: "the filesystem has become read-only: dmesg says why",
}


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of it. `left`: bytes that are used of it now; `error`: in words. `stop`: why nothing may follow, None: go on."""

    outcome: BalanceOutcome
    left: int
    seconds: float
    error: str | None
    stop: Stop | None


@dataclass(frozen=True, slots=True)
class Before:
    """Of the run, before this block group: bytes moved and written; and `counter`: what `written_bytes` said."""

    moved: int
    written: int
    counter: int


def used_now(fd: int, vaddr: int, length: int) -> int | None:
    """Bytes used of the block group, None when there is none any more. Raises OSError."""
    found = looked_up(fd, np.array([vaddr], np.uint64), np.array([length], np.uint64))
    return int(found.used[0]) if len(found.used) else None


def attempt(
    fd: int,
    folder: Path,
    group: PlannedBlockGroup,
    before: Before,
    hindrance: Callable[[], Stop | None],
    tell: ProgressSink[BalanceEvent],
) -> Attempt:
    """Relocates it, and waits for the end. `hindrance` is asked ten times a second; what it says first cancels. Raises OSError."""
    begun, told, stop = time.monotonic(), 0.0, None
    with Relocation(fd, group.vaddr, group.type) as relocation:
        while not relocation.ended(_TICK):
            if stop is None and (stop := hindrance()):
                relocation.cancel()
                tell(Cancelling(stop.why, group.vaddr))
            if time.monotonic() - told >= _TELL:
                told = time.monotonic()
                tell(_progress(fd, folder, group, before, told - begun))
        error = relocation.error()
        was_paused = relocation.clear()
    seconds = time.monotonic() - begun
    if stop is None and error and error.errno == errno.ECANCELED:
        stop = _from_outside(was_paused)
    return _judged(used_now(fd, group.vaddr, group.length), relocation.relocated, error, stop, seconds)


def _progress(fd: int, folder: Path, group: PlannedBlockGroup, before: Before, seconds: float) -> BalanceProgress:
    left, written = used_now(fd, group.vaddr, group.length) or 0, written_bytes(folder) - before.counter
    return BalanceProgress(left, written, seconds, before.moved + max(0, group.used - left), before.written + written)


def _from_outside(was_paused: bool) -> Stop:
    if was_paused:
        return Stop(Ending.SIGNAL, "somebody paused the balance; it was cancelled, for a paused one keeps all others out")
    return Stop(Ending.SIGNAL, "somebody cancelled the balance (`btrfs balance cancel`)")


def _judged(left: int | None, relocated: int, error: OSError | None, stop: Stop | None, seconds: float) -> Attempt:
    """What it came to. One that is gone after an error was relocated: the cancellation came too late, say."""
    if left is None:
        return Attempt(BalanceOutcome.DONE if relocated or error else BalanceOutcome.GONE, 0, seconds, None, stop)
    if error is None:  # no kernel is known to do that, but to try it again and again would have no end
        return Attempt(BalanceOutcome.FAILED, left, seconds, "the kernel left it where it is", stop)
    words = _WORDS.get(error.errno or 0, error.strerror or str(error))
    if error.errno not in _THIS_ONE_ONLY:
        stop = stop or Stop(Ending.FAILED, f"the last block group failed: {words}")
    return Attempt(_OUTCOMES.get(error.errno or 0, BalanceOutcome.FAILED), left, seconds, words, stop)
