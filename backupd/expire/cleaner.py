"""What looks at the kernel's cleaner tell: how fast it drops deleted subvolumes, and how long it will take. Pure.

A rate counts subvolumes that were seen waiting and are not any more, by id: so it does not matter how many new ones come meanwhile.
One that comes and goes between two looks is not counted. Only time in which something waited counts; that the cleaner slept in it
is part of the truth.

The time left has an uncertainty: the time seen is cut into ten parts, and how much the rate differs between them says how well
their mean is known. What nobody can know from that is whether those that wait are like those that went.
"""

from bisect import bisect_left
from collections.abc import Set
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from statistics import stdev

WINDOW = 300.0  # seconds
_SHORTEST = 1.0  # seconds that must have been seen for a rate
_PARTS = 10
_FEWEST = 5  # subvolumes gone, and parts of the time, before a time left is told
_MARGIN = 2.5  # standard errors on either side: 95 % by Student's t for five to ten parts, 2.8 to 2.3


@dataclass(frozen=True, slots=True)
class CleanerTotals:
    """Totals since the watch began. `at` is monotonic time, `busy` the seconds in which something waited, `gone` subvolumes."""

    at: float
    busy: float
    gone: int


@dataclass(frozen=True, slots=True)
class CleanerWatch:
    """All that is remembered of the looks so far.

    `since`: when the root that is being dropped was first seen being dropped; with `from_before` it may have been long before, as
    it was already when the watch began.
    """

    steps: tuple[CleanerTotals, ...] = ()
    waiting: frozenset[int] = frozenset()
    dropping: int | None = None
    since: float | None = None
    from_before: bool = False


@dataclass(frozen=True, slots=True)
class Rate:
    """Subvolumes a minute, and over how many seconds with something to do that was seen."""

    per_minute: float
    seconds: float


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """Seconds until all that wait now are gone. `at_most` is None when the rate is known too badly to tell."""

    seconds: float
    at_least: float
    at_most: float | None


def watched(watch: CleanerWatch, at: float, waiting: Set[int], dropping: int | None) -> CleanerWatch:
    """The watch after one more look, at monotonic time `at`."""
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
    """The rate over the last minutes; None until enough was seen."""
    if not watch.steps:
        return None
    first, last = watch.steps[0], watch.steps[-1]
    seconds = last.busy - first.busy
    return Rate((last.gone - first.gone) / seconds * 60, seconds) if seconds >= _SHORTEST else None


def time_left(watch: CleanerWatch, share: float | None) -> TimeLeft | None:
    """How long those that wait will take, None until enough was seen. `share`: what is done of the one being dropped, if known."""
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
    """How many were gone after so much busy time, as if they went evenly between two looks."""
    after = bisect_left(steps, busy, key=lambda each: each.busy)
    if after == 0 or after == len(steps):
        return steps[min(after, len(steps) - 1)].gone
    before, behind = steps[after - 1], steps[after]
    return before.gone + (behind.gone - before.gone) * (busy - before.busy) / (behind.busy - before.busy)
