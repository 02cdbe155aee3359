"""Reduces old samples: after two weeks to one an hour, after a year to one a day. Pure.

Ten years are some 4,000 raw samples, 8,400 hours and 3,300 days. What is a state (allocated, devices, options) is that of the last
of them; what is a flow is added up; what is a peak stays the peak.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from zoneinfo import ZoneInfo

from btrkeep.catalogue import Sample
from btrkeep.catalogue.model_sample import join_activities, split_activities

RAW_FOR = timedelta(days=14)
HOURS_FOR = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class ThinningStep:
    """`span` becomes `into` when it is older than `after`; `start` gives the beginning of the hour or day that a moment is in."""

    span: str
    into: str
    after: timedelta
    start: Callable[[datetime, ZoneInfo], datetime]
    length: timedelta


def _hour(moment: datetime, _zone: ZoneInfo) -> datetime:
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def day_of(moment: datetime, zone: ZoneInfo) -> datetime:
    """Returns the start, in UTC, of the day in the zone that contains the moment."""
    return moment.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0).astimezone(UTC)


STEPS = (
    ThinningStep("raw", "hour", RAW_FOR, _hour, timedelta(hours=1)),
    ThinningStep("hour", "day", HOURS_FOR, day_of, timedelta(days=1)),
)


def window(step: ThinningStep, oldest: datetime, now: datetime, zone: ZoneInfo, at_most: int) -> tuple[datetime, datetime] | None:
    """Returns from when until when to make `into` of `span`: whole hours or days, about `at_most` of them; None: nothing is due."""
    start, last = step.start(oldest, zone), step.start(now - step.after, zone)
    if start >= last:
        return None
    return start, min(last, step.start(start + at_most * step.length + step.length / 2, zone))


def merged(samples: Sequence[Sample], step: ThinningStep, zone: ZoneInfo) -> list[Sample]:
    """Merges samples of one span, oldest first, into one for each hour or day that has any."""
    return [_one(list(some), step.into) for _, some in groupby(samples, lambda one: step.start(one.taken, zone))]


def _one(some: list[Sample], span: str) -> Sample:
    waiting = [one.orphans for one in some if one.orphans is not None]
    known = [one for one in some if one.seconds]
    return replace(
        some[-1],
        span=span,
        orphans=max(waiting, default=None),
        activity=join_activities(sorted({word for one in some for word in split_activities(one.activity)})),
        seconds=sum(one.seconds for one in known),
        read=sum(one.read for one in known),
        written=sum(one.written for one in known),
        peak_read=max((one.peak_read for one in known), default=0.0),
        peak_written=max((one.peak_written for one in known), default=0.0),
        pressure=_added(one.pressure for one in known),
        counters={},
        id=0,
    )


def _added(some: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in some:
        for kind, seconds in one.items():
            found[kind] = round(found.get(kind, 0.0) + seconds, 3)
    return found
