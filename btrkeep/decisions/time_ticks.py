"""Which moments an axis of time names, and how. Pure."""

from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

_YEARS, _MONTHS = timedelta(days=900), timedelta(days=80)
_MOST = 7


def date_ticks(first: datetime, last: datetime) -> list[tuple[datetime, str]]:
    """The first of each year, of each month or some days, whichever are few enough; in the zone of `first`."""
    length = last - first
    days = [first.date() + timedelta(days=number) for number in range(1, (last.date() - first.date()).days + 1)]
    if length > _YEARS:
        return _named([day for day in days if (day.month, day.day) == (1, 1)], "%Y", first)
    if length > _MONTHS:
        return _named([day for day in days if day.day == 1 and (length < 2 * _MONTHS * 2.5 or day.month % 3 == 1)], "%b %Y", first)
    return _named(days[:: len(days) // _MOST + 1], "%-d %b", first)


def _named(days: list[date], pattern: str, first: datetime) -> list[tuple[datetime, str]]:
    return [(datetime(day.year, day.month, day.day, tzinfo=first.tzinfo), day.strftime(pattern)) for day in days]


def hour_ticks(start: datetime, end: datetime, zone: ZoneInfo) -> list[tuple[datetime, str]]:
    """Every third hour of the zone's clock, also on days on which it changes."""
    first = start.replace(minute=0, second=0, microsecond=0)
    hours = [first + timedelta(hours=number) for number in range(int((end - first) / timedelta(hours=1)) + 1)]
    local = [(hour, hour.astimezone(zone)) for hour in hours if hour >= start]
    return [(hour, f"{shown:%H:%M}") for hour, shown in local if shown.hour % 3 == 0]
