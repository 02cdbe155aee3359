"""Why a run ends, or does not start, by plain facts. Pure."""

import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from balancer.choose import FOR_SPACE
from balancer.run_types import BalanceOutcome, RelocationObstacle, RunSettings, StepDone, StopReason
from btrkeep.units import counted, format_duration, format_given, format_share, format_size, local_minute

_MOST_WITHOUT_SPACE = 5
_MOST_WITHOUT_GAIN = 3
_MOST_FAILED = 2
_MOST_BUSY = 3
_NO_SCORE = "nothing"
_NOTHING = dict.fromkeys(FOR_SPACE, "no unallocated space")


@dataclass(frozen=True, slots=True)
class StopFacts:
    """The facts that decide whether a run waits, continues or stops."""

    now: datetime
    """With time zone."""
    elapsed: float
    """Seconds since the run started."""
    moved: int
    """Bytes."""
    unallocated: int
    """Bytes."""
    total: int
    """The size of the filesystem, bytes."""
    exclusive: str = "none"
    """The exclusive operation in progress: "none" or the kernel's name."""
    exclusive_by: str = ""
    """The process of the exclusive operation, if known."""
    backups: str | None = None
    """Who makes or expires backups; None: nobody."""
    pressure: float | None = None
    """A share, 0 to 1; None: unknown."""
    signal: int | None = None
    """The number of a received signal; None: none."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Why no block group may be started, or the current one must be cancelled."""

    reason: StopReason
    """The kind of reason."""
    why: str
    """The reason in words."""
    passes: bool = False
    """True if waiting may help."""


BEFORE = frozenset(StopReason) - {StopReason.DONE, StopReason.NO_GAIN, StopReason.NO_SPACE, StopReason.FAILED}
"""Reasons not to start a block group."""
DURING = frozenset({StopReason.SIGNAL, StopReason.BACKUPS, StopReason.TIME, StopReason.WINDOW})
"""Reasons to cancel the present block group."""


def first_stop(reasons: Collection[StopReason], settings: RunSettings, facts: StopFacts) -> Stop | None:
    """Returns the first of these reasons that ends the run or makes it wait."""
    return next((candidate for candidate in _reasons(settings, facts) if candidate.reason in reasons), None)


def _reasons(settings: RunSettings, facts: StopFacts) -> Iterator[Stop]:
    """Yields all reasons, the most important first."""
    if facts.signal is not None:
        yield Stop(StopReason.SIGNAL, f"received {signal.Signals(facts.signal).name}")
    # A balance needs unallocated space: without any it fails, and then everything else fails too.
    if facts.unallocated < (least := settings.min_unallocated.of(facts.total)):
        why = f"{format_size(facts.unallocated)} are unallocated, less than the limit of {format_given(least)}"
        yield Stop(StopReason.UNALLOCATED, why)
    if facts.exclusive != "none":  # the kernel would refuse ours; a paused balance may never be continued
        why = f"the filesystem is busy: {facts.exclusive}{facts.exclusive_by and f' ({facts.exclusive_by})'}"
        yield Stop(StopReason.EXCLUSIVE, why, settings.wait_for_others and facts.exclusive != "balance paused")
    if settings.yield_to_backups and facts.backups:
        yield Stop(StopReason.BACKUPS, f"backups come first: {facts.backups}", settings.wait_for_others)
    if settings.time is not None and facts.elapsed >= settings.time:
        yield Stop(StopReason.TIME, f"the time limit of {format_duration(settings.time)} is reached")
    if settings.until is not None and facts.now >= settings.until:
        yield Stop(StopReason.WINDOW, f"the window ended at {local_minute(settings.until)}")
    if settings.budget is not None and facts.moved >= settings.budget:
        yield Stop(StopReason.BUDGET, f"{format_size(facts.moved)} moved: the budget is used")
    if settings.max_pressure is not None and facts.pressure is not None and facts.pressure > settings.max_pressure:
        share, most = format_share(facts.pressure), format_share(settings.max_pressure)
        yield Stop(
            StopReason.PRESSURE, f"programs wait for the disks {share} of the time, more than the limit of {most}", passes=True
        )


def too_long(settings: RunSettings, facts: StopFacts, seconds: float) -> Stop | None:
    """Returns the limit that a block group of that duration would exceed, None if it would end in time."""
    left, reason = min(_time_left(settings, facts), default=(None, StopReason.TIME))
    if left is None or seconds <= left:
        return None
    return Stop(reason, f"the next block group needs about {format_duration(seconds)}, and only {format_duration(left)} are left")


def _time_left(settings: RunSettings, facts: StopFacts) -> list[tuple[float, StopReason]]:
    left = []
    if settings.time is not None:
        left.append((settings.time - facts.elapsed, StopReason.TIME))
    if settings.until is not None:
        left.append(((settings.until - facts.now).total_seconds(), StopReason.WINDOW))
    return left


def stop_after_steps(steps: Sequence[StepDone], policy: str) -> Stop | None:
    """Returns why the results of the last block groups make it useless to continue. The policy defines the gain."""
    if not steps:
        return None
    last = steps[-1]
    without_space = _in_a_row(steps, lambda step: step.outcome is BalanceOutcome.NO_SPACE)
    is_tight = last.unallocated < 2 * last.group.length
    if without_space >= (2 if is_tight else _MOST_WITHOUT_SPACE):
        why = (
            f"the kernel found no free space for {without_space} block groups in a row; {format_size(last.unallocated)} are "
            "unallocated"
        )
        return Stop(StopReason.NO_SPACE, why)
    failed = _in_a_row(steps, lambda step: step.is_failure)
    if failed >= _MOST_FAILED:
        return Stop(StopReason.FAILED, f"{counted(failed, 'block group')} in a row failed, the last one with: {last.error}")
    busy = _in_a_row(steps, lambda step: step.obstacle is RelocationObstacle.BUSY)
    if busy >= _MOST_BUSY:  # on kernels that do not report the exclusive operation
        return Stop(StopReason.EXCLUSIVE, f"the filesystem is busy: {last.error}, {busy} times in a row")
    useless = _since_last_gain(steps, policy)
    if useless >= _MOST_WITHOUT_GAIN:
        return Stop(StopReason.NO_GAIN, f"the last {useless} block groups gained {_NOTHING.get(policy, _NO_SCORE)}")
    return None


def _since_last_gain(steps: Sequence[StepDone], policy: str) -> int:
    """Returns how many block groups were balanced since the total gain of the run was highest.

    A single step proves nothing: block groups of two lengths in turn gain and lose the same space again and again.
    """
    total, best, since = 0.0, 0.0, 0
    for step in steps:
        if step.outcome is BalanceOutcome.DONE:
            total += step.freed if policy in FOR_SPACE else step.gained
            since += 1
        if total > best:
            best, since = total, 0
    return since


def _in_a_row(steps: Sequence[StepDone], is_such: Callable[[StepDone], bool]) -> int:
    number = 0
    for step in reversed(steps):
        if not is_such(step):
            break
        number += 1
    return number
