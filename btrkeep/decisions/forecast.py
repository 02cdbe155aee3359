"""Forecasts when the pool will be full, with a range. Pure.

The growth per day is the median of the slopes between all pairs of days, the estimator of Theil (1950) and Sen (1968), which
tolerates up to a quarter of outliers. The estimator's own confidence interval assumes independent days and is far too narrow: a
pool grows by its weeks, its hosts and its retention. So the history is divided into six stretches, and the range is given by the
slowest and the fastest of them. In simulated histories whose growth changes randomly each month, the pool was full within this
range nine times out of ten; if each month's growth resembles the one before, two times out of three: half a year of history cannot
tell more (tests/backupd/test_sampling_forecast.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from statistics import median

LEAST_DAYS = 14
"""Of history, and of the shortest stretch: two weeks have all their weekdays twice."""
FARTHEST = 3650.0
"""Days; beyond ten years no date is told."""
_DAY = 86400.0
_APART = 6.5
"""Days between the two of a pair, at least: what differs by weekdays is no growth."""
_STRETCHES = 6


@dataclass(frozen=True, slots=True)
class Growth:
    """Growth in bytes per day: overall, in the slowest and in the fastest stretch."""

    usual: float
    slow: float
    fast: float


@dataclass(frozen=True, slots=True)
class FullForecast:
    """When `now` reaches `size` at the present growth. None: not within ten years, or never.

    `earliest` assumes the fastest growth, `latest` the slowest.
    """

    now: int
    size: int
    growth: Growth
    usual: datetime | None
    earliest: datetime | None
    latest: datetime | None
    with_used: bool = False
    """Of allocated: `usual` is when used is full, for what is used is allocated."""


@dataclass(frozen=True, slots=True)
class TooLittleHistory:
    """Why there is no forecast: so many days of history, or so few of them with a sample."""

    days: float
    count: int

    def __str__(self) -> str:
        if self.count < LEAST_DAYS <= self.days:
            return f"there are samples of {self.count} days only; {LEAST_DAYS} are needed"
        return f"the samples go back {self.days:.0f} days; {LEAST_DAYS} are needed"


def forecast(moments: Sequence[datetime], values: Sequence[int], size: int) -> FullForecast | TooLittleHistory:
    """Forecasts from one value per day, oldest first, when it reaches `size`."""
    days = [(moment - moments[0]).total_seconds() / _DAY for moment in moments]
    # Fourteen nights in a row reach over thirteen days, and a little more or less.
    if not days or days[-1] < LEAST_DAYS - 1.5 or len(days) < LEAST_DAYS:
        return TooLittleHistory(days[-1] if days else 0.0, len(days))
    found = growth(days, values)
    last, now = moments[-1], values[-1]
    usual, earliest, latest = (reached(last, now, size, pace) for pace in (found.usual, found.fast, found.slow))
    return FullForecast(now, size, found, usual, earliest, latest)


def bounded(allocated: FullForecast, used: FullForecast) -> FullForecast:
    """Allocated is full when used is, at the latest: balance may have made it shrink, but it cannot go on so for ever."""
    pairs = (allocated.usual, used.usual), (allocated.earliest, used.earliest), (allocated.latest, used.latest)
    usual, earliest, latest = (min((moment for moment in pair if moment), default=None) for pair in pairs)
    return replace(allocated, usual=usual, earliest=earliest, latest=latest, with_used=usual != allocated.usual)


def growth(days: Sequence[float], values: Sequence[int]) -> Growth:
    """Returns the growth per day."""
    usual = slope(days, values)
    paces = [usual, *_paces(days, values)]
    return Growth(usual, min(paces), max(paces))


def _paces(days: Sequence[float], values: Sequence[int]) -> list[float]:
    """The slope of stretches of a sixth of the history, or of LEAST_DAYS; each begins a quarter of it after the one before."""
    length = max((days[-1] - days[0]) / _STRETCHES, LEAST_DAYS - 1.5)
    begin, found = days[0], []
    while begin + length <= days[-1] + 1e-6:
        inside = [at for at, day in enumerate(days) if begin <= day <= begin + length + 1e-6]
        if len(inside) >= LEAST_DAYS / 2 and days[inside[-1]] - days[inside[0]] > _APART:
            found.append(slope([days[at] for at in inside], [values[at] for at in inside]))
        begin += length / 4
    return found


def slope(days: Sequence[float], values: Sequence[int]) -> float:
    """The median of the slopes of all pairs that are a week apart or more."""
    pairs = (
        (values[later] - values[early]) / (days[later] - days[early])
        for early in range(len(days))
        for later in range(early + 1, len(days))
        if days[later] - days[early] >= _APART
    )
    return float(median(pairs))


def reached(last: datetime, now: int, size: int, pace: float) -> datetime | None:
    """Returns when a value that was `now` at `last` reaches `size`."""
    if now >= size:
        return last
    if pace <= 0 or (size - now) / pace > FARTHEST:
        return None
    return last + timedelta(days=(size - now) / pace)
