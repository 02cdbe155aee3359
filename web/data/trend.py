"""Allocated and used space over the months, and when the pool is full: as in `backupd trend` and `backupd forecast`. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from btrkeep.catalogue import Catalogue, Sample, SampleMark
from btrkeep.decisions.forecast import FullForecast, TooLittleHistory, bounded, forecast
from btrkeep.decisions.trend import points, step_for
from web.same_names import of_row

SPANS = {1: "a day", 7: "a week", 30: "a month", 90: "three months", 180: "half a year", 365: "a year", 3650: "all"}
"""The numbers of days to choose from, and their names."""
USUAL = 180
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class TrendPoint:
    """One moment; sizes are bytes of the devices: data stored twice counts twice."""

    taken: datetime
    size: int
    allocated: int
    used: int
    unallocated: int
    unused: int
    """Allocated and not used: the space that balance returns."""
    metadata_share: float
    orphans: int | None
    most_orphans: int | None
    """The most since the point before: the last sample misses subvolumes that wait for the cleaner for a few minutes only."""
    score: float | None


@dataclass(frozen=True, slots=True)
class Outlook:
    """When something is full. Bytes a day; moments are None if that is beyond ten years. `why_not`: too little history."""

    what: str
    now: int | None
    per_day: float | None
    usual: datetime | None
    earliest: datetime | None
    latest: datetime | None
    why_not: str | None


@dataclass(frozen=True, slots=True)
class Trend:
    """`points`: at most 400, oldest first; none: there are no samples of that time."""

    since: datetime
    until: datetime
    days: int
    points: tuple[TrendPoint, ...]


def trend(catalogue: Catalogue, filesystem: str, now: datetime, days: int) -> Trend:
    """Returns the trend of so many days up to now."""
    since = now - timedelta(days=days)
    step = step_for(timedelta(days=days))
    marks = catalogue.sample_marks(filesystem, since, now + timedelta(seconds=1))
    chosen = catalogue.samples_by_id(_last_of_each(marks, since, step))
    return Trend(since, now, days, _points(chosen, marks, since, step))


def shortest_span(trend_of: Callable[[int], Trend]) -> int:
    """Returns the shortest of SPANS that holds all of the history, at most USUAL. `trend_of` gives the trend of so many days."""
    days = USUAL
    for shorter in sorted((span for span in SPANS if span < USUAL), reverse=True):
        found = trend_of(days)
        step = step_for(timedelta(days=days))  # a point is the last sample within its step
        if not found.points or found.until - found.points[0].taken + step > timedelta(days=shorter):
            break
        days = shorter
    return days


def _last_of_each(marks: Sequence[SampleMark], since: datetime, step: timedelta) -> list[int]:
    """Ids of the last samples within each step: those that `points` takes out of all of them."""
    return list({int((mark.taken - since) / step): mark.id for mark in marks}.values())


def _points(samples: Sequence[Sample], marks: Sequence[SampleMark], since: datetime, step: timedelta) -> tuple[TrendPoint, ...]:
    most = _most_orphans(marks, since, step)
    return tuple(
        of_row(
            TrendPoint,
            one,
            metadata_share=round(one.metadata_share, 4),
            most_orphans=most.get(int((one.taken - since) / step)),
        )
        for one in points(samples, since, step)
    )


def _most_orphans(marks: Sequence[SampleMark], since: datetime, step: timedelta) -> dict[int, int]:
    found: dict[int, int] = {}
    for mark in marks:
        if mark.orphans is not None:
            at = int((mark.taken - since) / step)
            found[at] = max(found.get(at, 0), mark.orphans)
    return found


def outlooks(catalogue: Catalogue, filesystem: str, now: datetime) -> tuple[Outlook, Outlook]:
    """Returns when the unallocated space runs out, and when all space is used; extrapolated from the usual days of history."""
    since = now - timedelta(days=USUAL)
    marks = catalogue.sample_marks(filesystem, since, now + timedelta(seconds=1))
    found = points(catalogue.samples_by_id(_last_of_each(marks, since, _DAY)), since, _DAY)
    size, moments = (found[-1].size if found else 0), [point.taken for point in found]
    allocated, used = (forecast(moments, [getattr(point, what) for point in found], size) for what in ("allocated", "used"))
    if isinstance(allocated, FullForecast) and isinstance(used, FullForecast):
        allocated = bounded(allocated, used)
    return _outlook("allocated", allocated), _outlook("used", used)


def _outlook(what: str, found: FullForecast | TooLittleHistory) -> Outlook:
    if isinstance(found, TooLittleHistory):
        return Outlook(what, None, None, None, None, None, str(found))
    return Outlook(what, found.now, found.growth.usual, found.usual, found.earliest, found.latest, None)
