"""Samples of the pool: its numbers at one time, one point per hour or day, ticks of an axis, and when it will be full. Pure.

The growth per day is the median of the slopes between all pairs of days, the estimator of Theil (1950) and Sen (1968), which
tolerates up to a quarter of outliers. The estimator's own confidence interval assumes independent days and is far too narrow: the
growth of a pool depends on weeks, hosts and retention. So the history is divided into six overlapping parts, and the range is given
by the slowest and the fastest of them. In simulated histories whose growth changes randomly each month, the pool was full within
this range nine times out of ten; if each month's growth is similar to that of the month before, two times out of three: half a year
of history does not allow more (tests/backupd/test_sampling_forecast.py).
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta, tzinfo

from btrkeep.catalogue.model_pool import Sample, read_space_name
from btrkeep.pool.space_by_profile import DEVICE_ERRORS


@dataclass(frozen=True, slots=True)
class PoolNumbers:
    """The state of the pool's filesystem at a moment. Sizes are bytes of the devices: data stored twice counts twice."""

    taken: datetime
    """When it was measured."""
    size: int
    """Size of all devices."""
    allocated: int
    """Bytes in block groups."""
    used: int
    """Bytes with data or metadata."""
    spaces: Mapping[str, tuple[int, int]]
    """Allocated and used bytes by type ("data"), in bytes of files."""
    errors: Mapping[int, Mapping[str, int]]
    """The counters of each device since they were reset, by device number and the names in DEVICE_ERRORS."""
    orphans: int | None
    """Number of deleted subvolumes that wait for the cleaner; None: not permitted to count them."""


def numbers_of_sample(sample: Sample) -> PoolNumbers:
    """Returns the numbers of a sample."""
    errors = {int(devid): errors_by_name(values[2:]) for devid, values in sample.devices.items()}
    spaces = ((read_space_name(name).type, values[0], values[1]) for name, values in sample.spaces.items())
    return PoolNumbers(sample.taken, sample.size, sample.allocated, sample.used, summed_spaces(spaces), errors, sample.orphans)


def errors_by_name(errors: Sequence[int]) -> dict[str, int]:
    """Returns the counters by name; empty for a device that has none, such as a missing one."""
    return dict(zip(DEVICE_ERRORS, errors, strict=True)) if errors else {}


def summed_spaces(spaces: Iterable[tuple[str, int, int]]) -> dict[str, tuple[int, int]]:
    """Returns the sums by type, over all profiles: while a filesystem is converted it has two."""
    sums: dict[str, tuple[int, int]] = {}
    for kind, allocated, used in spaces:
        before = sums.get(kind, (0, 0))
        sums[kind] = (before[0] + allocated, before[1] + used)
    return sums


_STEPS = tuple(timedelta(minutes=minutes) for minutes in (5, 60, 360, 1440, 7 * 1440))
MOST_POINTS = 400


@dataclass(frozen=True, slots=True)
class Point:
    """The state of a filesystem at a moment. Sizes are bytes of the devices: data stored twice counts twice."""

    taken: datetime
    """When it was measured."""
    size: int
    """Size of all devices."""
    allocated: int
    """Bytes in block groups."""
    used: int
    """Bytes with data or metadata."""
    metadata_share: float
    """The part of `used` that is metadata, 0 to 1."""
    orphans: int | None
    """Number of deleted subvolumes that wait for the cleaner; None: unknown."""
    score: float | None
    """The score of the free space; None: it was not scored."""

    @property
    def unallocated(self) -> int:
        """Returns the bytes that belong to no chunk."""
        return max(self.size - self.allocated, 0)

    @property
    def unused(self) -> int:
        """Returns the bytes that are allocated and unused, which a balance can free."""
        return max(self.allocated - self.used, 0)


def step_for(length: timedelta) -> timedelta:
    """Returns the distance of points for a span of that length: five minutes, an hour, six, a day or a week, so that there are at
    most 400 points.
    """
    return next((step for step in _STEPS if length / step <= MOST_POINTS), _STEPS[-1])


def points(samples: Sequence[Sample], start: datetime, step: timedelta) -> list[Point]:
    """Returns the last sample of each step from `start` on; samples are given oldest first. Steps without a sample have no
    point.
    """
    last = {int((sample.taken - start) / step): sample for sample in samples if sample.taken >= start}
    return [point_of(sample) for sample in last.values()]


def point_of(sample: Sample) -> Point:
    """Converts a sample to a point."""
    return Point(sample.taken, sample.size, sample.allocated, sample.used, metadata_share(sample), sample.orphans, sample.score)


def metadata_share(sample: Sample) -> float:
    """Returns the share of the used bytes of the devices that metadata uses. Mixed block groups are data here."""
    used = [(read_space_name(name).type, bytes_used * factor) for name, (_, bytes_used, factor) in sample.spaces.items()]
    whole = sum(value for _, value in used)
    return sum(value for type_, value in used if type_ == "metadata") / whole if whole else 0.0


def data_factor(sample: Sample) -> float:
    """Returns how many raw bytes a byte of data takes: 2 with raid1. Uses the profile of most of the data."""
    profiles = [
        (used, factor / 1000)
        for name, (_, used, factor) in sample.spaces.items()
        if read_space_name(name).type in ("data", "mixed")
    ]
    return max(profiles, default=(0, 1.0))[1]


_YEARS, _MONTHS, _HOURS = timedelta(days=900), timedelta(days=80), timedelta(hours=60)
_MOST, _MOST_HOURS = 7, 9
_MINUTES = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720)


def time_ticks(first: datetime, last: datetime) -> list[tuple[datetime, str]]:
    """Returns the first day of each year, of each month, some days, or some hours or minutes, depending on how long it is; in the
    zone of `first`.
    """
    length = last - first
    if length <= _HOURS:
        return hour_ticks(first, last, first.tzinfo or UTC)
    days = [first.date() + timedelta(days=number) for number in range(1, (last.date() - first.date()).days + 1)]
    if length > _YEARS:
        return _named([day for day in days if (day.month, day.day) == (1, 1)], "%Y", first)
    if length > _MONTHS:
        return _named([day for day in days if day.day == 1 and (length < 2 * _MONTHS * 2.5 or day.month % 3 == 1)], "%b %Y", first)
    return _named(days[:: len(days) // _MOST + 1], "%-d %b", first)


def _named(days: list[date], pattern: str, first: datetime) -> list[tuple[datetime, str]]:
    return [(datetime(day.year, day.month, day.day, tzinfo=first.tzinfo), day.strftime(pattern)) for day in days]


def hour_ticks(start: datetime, end: datetime, zone: tzinfo) -> list[tuple[datetime, str]]:
    """Returns some hours or minutes of the zone's clock, every third hour of a day, also on days on which it changes. In more than
    a day the date is named at midnight.
    """
    length = end - start
    step = next((minutes for minutes in _MINUTES if length / timedelta(minutes=minutes) <= _MOST_HOURS), _MINUTES[-1])
    between = timedelta(minutes=1 if step < 15 else 15)  # zones differ from UTC by quarters of an hour
    first = start.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    moments = (first + number * between for number in range(int((end - first) / between) + 1))
    local = [(moment, moment.astimezone(zone)) for moment in moments if moment >= start]
    is_long = length > timedelta(hours=26)
    return [
        (moment, f"{shown.day} {shown:%b}" if is_long and not shown.hour and not shown.minute else f"{shown:%H:%M}")
        for moment, shown in local
        if (shown.hour * 60 + shown.minute) % step == 0
    ]


LEAST_DAYS = 14
"""Minimum days of history, and of the shortest part: two weeks contain each weekday twice."""
FARTHEST = 3650.0
"""Days; a date more than ten years away is not reported."""
_DAY = 86400.0
_APART = 6.5
"""Minimum days between the two of a pair: differences between weekdays are not growth."""
_STRETCHES = 6


@dataclass(frozen=True, slots=True)
class Growth:
    """Growth in bytes per day."""

    usual: float
    """Over the whole time."""
    slow: float
    """Growth in the slowest part of the history."""
    fast: float
    """Growth in the fastest part of the history."""


@dataclass(frozen=True, slots=True)
class FullForecast:
    """When the pool is full at its present growth. A date is None if it is more than ten years away, or never."""

    now: int
    """Bytes now."""
    size: int
    """The bytes at which it is full."""
    growth: Growth
    """The measured growth."""
    usual: datetime | None
    """When it is full with the usual growth."""
    earliest: datetime | None
    """When it is full with the fastest growth."""
    latest: datetime | None
    """When it is full with the slowest growth."""
    with_used: bool = False
    """For allocated bytes: True if `usual` is the date at which the used bytes are full, because they have to be allocated."""


@dataclass(frozen=True, slots=True)
class TooLittleHistory:
    """Why there is no forecast."""

    days: float
    """The length of the history in days."""
    count: int
    """How many of these days have a sample."""

    def __str__(self) -> str:
        if self.count < LEAST_DAYS <= self.days:
            return f"there are samples of {self.count} days only; {LEAST_DAYS} are needed"
        return f"the samples go back {self.days:.0f} days; {LEAST_DAYS} are needed"


def forecast(moments: Sequence[datetime], values: Sequence[int], size: int) -> FullForecast | TooLittleHistory:
    """Forecasts from one value per day, oldest first, when it reaches `size`."""
    days = [(moment - moments[0]).total_seconds() / _DAY for moment in moments]
    # Fourteen consecutive nights span thirteen days, more or less.
    if not days or days[-1] < LEAST_DAYS - 1.5 or len(days) < LEAST_DAYS:
        return TooLittleHistory(days[-1] if days else 0.0, len(days))
    fitted = growth(days, values)
    last, now = moments[-1], values[-1]
    usual, earliest, latest = (reached(last, now, size, pace) for pace in (fitted.usual, fitted.fast, fitted.slow))
    return FullForecast(now, size, fitted, usual, earliest, latest)


def forecasts(daily: Sequence[Point]) -> tuple[FullForecast | TooLittleHistory, FullForecast | TooLittleHistory]:
    """Forecasts from one point per day when nothing is left to allocate, and when everything is used."""
    size, moments = (daily[-1].size if daily else 0), [point.taken for point in daily]
    allocated, used = (forecast(moments, [getattr(point, field) for point in daily], size) for field in ("allocated", "used"))
    if isinstance(allocated, FullForecast) and isinstance(used, FullForecast):
        allocated = bounded(allocated, used)
    return allocated, used


def bounded(allocated: FullForecast, used: FullForecast) -> FullForecast:
    """Allocated space is full at the latest when used space is: a balance may have made it smaller, but cannot do so for ever."""
    pairs = (allocated.usual, used.usual), (allocated.earliest, used.earliest), (allocated.latest, used.latest)
    usual, earliest, latest = (min((moment for moment in pair if moment), default=None) for pair in pairs)
    return replace(allocated, usual=usual, earliest=earliest, latest=latest, with_used=usual != allocated.usual)


def growth(days: Sequence[float], values: Sequence[int]) -> Growth:
    """Returns the growth per day."""
    usual = slope(days, values)
    paces = [usual, *_paces(days, values)]
    return Growth(usual, min(paces), max(paces))


def _paces(days: Sequence[float], values: Sequence[int]) -> list[float]:
    """Returns the slopes of parts of a sixth of the history, or of LEAST_DAYS; each starts a quarter of its length after the one
    before.
    """
    length = max((days[-1] - days[0]) / _STRETCHES, LEAST_DAYS - 1.5)
    begin, paces = days[0], []
    while begin + length <= days[-1] + 1e-6:
        inside = [at for at, day in enumerate(days) if begin <= day <= begin + length + 1e-6]
        if len(inside) >= LEAST_DAYS / 2 and days[inside[-1]] - days[inside[0]] > _APART:
            paces.append(slope([days[at] for at in inside], [values[at] for at in inside]))
        begin += length / 4
    return paces


def slope(days: Sequence[float], values: Sequence[int]) -> float:
    """Returns the median of the slopes of all pairs that are a week apart or more."""
    pairs = (
        (values[later] - values[early]) / (days[later] - days[early])
        for early in range(len(days))
        for later in range(early + 1, len(days))
        if days[later] - days[early] >= _APART
    )
    from statistics import median  # takes as long to import as this whole module

    return float(median(pairs))


def reached(last: datetime, now: int, size: int, pace: float) -> datetime | None:
    """Returns when a value that was `now` at `last` reaches `size`."""
    if now >= size:
        return last
    if pace <= 0 or (size - now) / pace > FARTHEST:
        return None
    return last + timedelta(days=(size - now) / pace)


def range_ahead(forecast: FullForecast, last: datetime, now: int, moments: Iterable[datetime]) -> list[tuple[float, float, float]]:
    """Returns the usual, the lowest and the highest value at each time, of a value that is `now` at `last`: between zero and the
    size.
    """
    pace, size = forecast.growth, float(forecast.size)
    days = [(moment - last).total_seconds() / _DAY for moment in moments]

    def after(day: float, per_day: float) -> float:
        return min(max(now + per_day * day, 0.0), size)

    return [(after(day, pace.usual), after(day, pace.slow), after(day, pace.fast)) for day in days]


YEAR = timedelta(days=365)
_SAME_DAY = timedelta(days=1, hours=2)
"""Samples of a year ago are merged into days; a little more, because a day may have 25 hours."""


def year_before(samples: Sequence[Sample], moments: Iterable[datetime]) -> list[int | None]:
    """Returns the used bytes a year before each of these times: those of the last of these samples until then, if it is at most
    a day older; None otherwise. Both are given oldest first.
    """
    taken = [sample.taken for sample in samples]
    places = [(bisect_right(taken, moment - YEAR) - 1, moment - YEAR) for moment in moments]
    return [samples[at].used if at >= 0 and then - taken[at] <= _SAME_DAY else None for at, then in places]
