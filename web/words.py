"""Moments in words: how long ago, and the time in the pool's zone; and browsers by their names. Pure."""

import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from btrkeep.decisions.due import latest
from btrkeep.units import local_time

_BROWSERS = (
    ("Edg/", "Edge"),
    ("Firefox/", "Firefox"),
    ("Chrome/", "Chrome"),
    ("Safari/", "Safari"),
)  # each also says what follows it
_SYSTEMS = (
    ("Android", "Android"),
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Windows", "Windows"),
    ("Mac OS", "macOS"),
    ("Linux", "Linux"),
)
_UNITS = ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute"))
_TRUNCATED = 2.0  # seconds: `now` has none behind the point
_FEW = 1.5  # less than so many of a unit are told in the next smaller one


def relative(moment: datetime, now: datetime) -> str:
    """Returns "3 hours ago", "in 2 days", "just now"."""
    seconds = (now - moment).total_seconds()
    for size, noun in _UNITS:
        if abs(seconds) >= size * (_FEW if noun != "minute" else 1):
            number = int(abs(seconds) / size)
            words = f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
            return f"{words} ago" if seconds > 0 else f"in {words}"
    return "just now" if seconds > -_TRUNCATED else "in a moment"


def ago(moment: datetime, now: datetime) -> str:
    """Returns how long ago a moment was. A moment in the future means that the clock was or is wrong."""
    if moment > latest(now):
        return f"{relative(moment, now).removeprefix('in ')} ahead of the clock"
    return relative(min(moment, now), now)


def day(moment: datetime, zone: ZoneInfo, now: datetime | None = None) -> str:
    """Returns "Fri 20 Nov", or "20 Nov 2025" if the year is not that of `now`."""
    local = moment.astimezone(zone)
    is_same_year = now is not None and now.astimezone(zone).year == local.year
    return f"{local:%a} {local.day} {local:%b}" if is_same_year else f"{local.day} {local:%b} {local.year}"


def absolute(moment: datetime, zone: ZoneInfo, now: datetime | None = None, clock: str = "%H:%M") -> str:
    """Returns "Fri 20 Nov 22:00", the day as `day` has it; with the zone if the hour occurs twice that day.

    `clock` is the format of the time of the day, for strftime.
    """
    local = moment.astimezone(zone)
    twice = f" {local:%Z}" if comes_twice(moment, zone) else ""
    return f"{day(moment, zone, now)} {local:{clock}}{twice}"


def exact(moment: datetime, zone: ZoneInfo) -> str:
    """Returns "2026-11-20 23:00:03 CET, 22:00:03 UTC": all details."""
    local = moment.astimezone(zone)
    offset = f"{local:%z}"
    here = f"{local:%Y-%m-%d %H:%M:%S} {local:%Z}"
    if local.utcoffset() == UTC.utcoffset(None):
        return here
    words = f" (UTC{offset[:3]}:{offset[3:]})"
    return f"{here}{words}, {local_time(moment)}"


def browser(agent: str) -> str:
    """Returns "Firefox 128 on Linux" from a User-Agent; an unusual one is returned itself, shortened."""
    name = next((found for word, found in _BROWSERS if word in agent), "")
    system = next((found for word, found in _SYSTEMS if word in agent), "")
    version = re.search(rf"(?:{name}|{'Version' if name == 'Safari' else 'Edg'})/(\d+)", agent) if name else None
    if not name:
        return agent[:40] or "unknown"
    return f"{name}{f' {version[1]}' if version else ''}{f' on {system}' if system else ''}"


def comes_twice(moment: datetime, zone: ZoneInfo) -> bool:
    """Returns True if clocks in the zone show this time a second time, because they are put back."""
    wall = moment.astimezone(zone).replace(tzinfo=None)
    return wall.replace(tzinfo=zone, fold=0).utcoffset() != wall.replace(tzinfo=zone, fold=1).utcoffset()
