"""The rate at which the kernel's cleaner drops deleted subvolumes, and the time that it still needs. Pure.

A rate counts subvolumes that waited at one look and no longer at the next, by id: so it does not matter how many are added
meanwhile. One that is added and dropped between two looks is not counted. Only time in which something waited counts, including
that in which the cleaner slept.

The time left has an uncertainty: the time observed is divided into ten parts, and the deviation of their rates is the error of the
mean. Nobody can tell from that whether those that still wait are like those that were dropped.
"""

from bisect import bisect_left
from collections.abc import Set
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from statistics import stdev

WINDOW = 300.0  # seconds
_SHORTEST = 1.0  # seconds that must have been observed for a rate
_PARTS = 10
_FEWEST = 5  # subvolumes dropped, and parts of the time, before a time left is estimated
_MARGIN = 2.5  # standard errors on either side: 95 % by Student's t for five to ten parts, 2.8 to 2.3


@dataclass(frozen=True, slots=True)
class CleanerTotals:
    """Totals since the watch began. `at` is monotonic time, `busy` the seconds in which something waited, `gone` subvolumes."""

    at: float
    busy: float
    gone: int


@dataclass(frozen=True, slots=True)
class CleanerWatch:
    """What is kept of the looks so far.

    `since`: when the root that is being dropped was first observed; with `from_before` it was being dropped when the watch began,
    maybe for long.
    """

    steps: tuple[CleanerTotals, ...] = ()
    waiting: frozenset[int] = frozenset()
    dropping: int | None = None
    since: float | None = None
    from_before: bool = False


@dataclass(frozen=True, slots=True)
class Rate:
    """Subvolumes per minute, and the seconds with something to drop over which that was measured."""

    per_minute: float
    seconds: float


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """Seconds until all that wait now are gone. `at_most` is None when the rate is known too badly to tell."""

    seconds: float
    at_least: float
    at_most: float | None


def watched(watch: CleanerWatch, at: float, waiting: Set[int], dropping: int | None) -> CleanerWatch:
    """Returns the watch after one more look, at monotonic time `at`."""
    last = watch.steps[-1] if watch.steps else CleanerTotals(at, 0.0, 0)
    busy = last.busy + (at - last.at if watch.waiting else 0.0)
    step = CleanerTotals(at, busy, last.gone + len(watch.waiting - waiting))
    first = bisect_left(watch.steps, at - WINDOW, key=lambda each: each.at)
    same = dropping == watch.dropping
    return CleanerWatch(
        steps=(*watch.steps[first:], step),
        waiting=frozenset(waiting),
        dropping=dropping,
        since=watch.since if same else at if dropping is not None else None,
        from_before=watch.from_before if same else dropping is not None and not watch.steps,
    )


def rate(watch: CleanerWatch) -> Rate | None:
    """Returns the rate over the last minutes, None until enough was observed."""
    if not watch.steps:
        return None
    first, last = watch.steps[0], watch.steps[-1]
    seconds = last.busy - first.busy
    return Rate((last.gone - first.gone) / seconds * 60, seconds) if seconds >= _SHORTEST else None


def time_left(watch: CleanerWatch, share: float | None) -> TimeLeft | None:
    """Returns the time left, None until enough was observed. `share`: of the one being dropped that is done, if known."""
    if not watch.steps:
        return None
    if not watch.waiting:
        return TimeLeft(0.0, 0.0, 0.0)
    first, last = watch.steps[0], watch.steps[-1]
    seconds, gone = last.busy - first.busy, last.gone - first.gone
    parts = min(_PARTS, len(watch.steps) - 1)
    if seconds < _SHORTEST or gone < _FEWEST or parts < _FEWEST:
        return None
    each = seconds / parts
    totals = [_gone_at(watch.steps, first.busy + number * each) for number in range(parts + 1)]
    rates = [(after - before) / each for before, after in pairwise(totals)]
    margin = _MARGIN * max(stdev(rates) / sqrt(parts), 1 / seconds)  # a count is never known better than by one
    left, mean = len(watch.waiting) - (share or 0.0), gone / seconds
    return TimeLeft(left / mean, left / (mean + margin), left / (mean - margin) if mean > margin else None)


def _gone_at(steps: tuple[CleanerTotals, ...], busy: float) -> float:
    """Returns how many were dropped after so much busy time, interpolated between two looks."""
    after = bisect_left(steps, busy, key=lambda each: each.busy)
    if after == 0 or after == len(steps):
        return steps[min(after, len(steps) - 1)].gone
    before, behind = steps[after - 1], steps[after]
    return before.gone + (behind.gone - before.gone) * (busy - before.busy) / (behind.busy - before.busy)
