"""Functions for templates in addition to the macros: times in words, the units of the command line, safe names,
addresses of paths.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any
from zoneinfo import ZoneInfo

from flask import Flask, current_app, has_app_context, request
from markupsafe import Markup

from btrkeep.config import page
from btrkeep.config.published import CLOCK, LOST
from btrkeep.decisions.alarm_advice import command_for
from btrkeep.decisions.due import latest
from btrkeep.errors import OperatorError
from btrkeep.units import counted, format_duration, format_given, format_share, format_size, format_time, local_time, printable
from web.csv_tables import tables_of
from web.request_values import is_csv, path_query
from web.source import is_copy_old, logged_in_viewer, source

_BROWSERS = (
    ("Edg/", "Edge"),
    ("Firefox/", "Firefox"),
    ("Chrome/", "Chrome"),
    ("Safari/", "Safari"),
)  # each also defines what may follow it
_SYSTEMS = (
    ("Android", "Android"),
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Windows", "Windows"),
    ("Mac OS", "macOS"),
    ("Linux", "Linux"),
)
_UNITS = ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute"))
_TRUNCATED = 2.0  # seconds: `now` has no fraction
_FEW = 1.5  # smaller numbers of a unit are shown in the next smaller unit


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
    """Returns how long ago a time was. A time in the future means that the clock is or was wrong."""
    if moment > latest(now):
        return f"{relative(moment, now).removeprefix('in ')} ahead of the clock"
    return relative(min(moment, now), now)


def day(moment: datetime, zone: ZoneInfo, now: datetime | None = None) -> str:
    """Returns "Fri 20 Nov", or "20 Nov 2025" if the year is not that of `now`."""
    local = moment.astimezone(zone)
    is_same_year = now is not None and now.astimezone(zone).year == local.year
    return f"{local:%a} {local.day} {local:%b}" if is_same_year else f"{local.day} {local:%b} {local.year}"


def night_dates(begin: datetime, zone: ZoneInfo, now: datetime) -> str:
    """Returns both dates of a night: "27 to 28 November", "30 November to 1 December", with the year if it is not that of `now`."""
    first = begin.astimezone(zone).date()
    last, current = first + timedelta(days=1), now.astimezone(zone).year
    month = f" {first:%B}" if first.month != last.month else ""
    year = "" if last.year == current else f" {last.year}"
    return f"{first.day}{month} to {last.day} {last:%B}{year}"


def absolute(moment: datetime, zone: ZoneInfo, now: datetime | None = None, clock: str = "%H:%M") -> str:
    """Returns "Fri 20 Nov 22:00", with the day as in `day`; with the zone if the hour occurs twice on that day.

    `clock`: the format of the time of day, for strftime.
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
    """Returns "Firefox 128 on Linux" from a User-Agent; an unusual User-Agent is returned unchanged, but shortened."""
    name = next((browser_name for word, browser_name in _BROWSERS if word in agent), "")
    system = next((system_name for word, system_name in _SYSTEMS if word in agent), "")
    version = re.search(rf"(?:{name}|{'Version' if name == 'Safari' else 'Edg'})/(\d+)", agent) if name else None
    if not name:
        return agent[:40] or "unknown"
    return f"{name}{f' {version[1]}' if version else ''}{f' on {system}' if system else ''}"


def comes_twice(moment: datetime, zone: ZoneInfo) -> bool:
    """Returns True if clocks in the zone show this time a second time, because they are set back."""
    wall = moment.astimezone(zone).replace(tzinfo=None)
    return wall.replace(tzinfo=zone, fold=0).utcoffset() != wall.replace(tzinfo=zone, fold=1).utcoffset()


def register(app: Flask) -> None:
    """Registers filters, tests and globals of all templates."""
    app.jinja_env.filters.update(
        size=_for_programs(format_size),
        given=_for_programs(format_given),
        duration=_for_programs(format_duration),
        share=_for_programs(format_share),
        counted=counted,
        truncate=_uncut(app.jinja_env.filters["truncate"]),
        rfc3339=format_time,
        shown=printable,
        with_commands=with_commands,
        number=_for_programs(number),
        when=when,
        coming=coming,
        night_dates=lambda begin: night_dates(begin, source().config.zone, source().now),
        browser=browser,
    )
    app.jinja_env.globals.update(
        path_query=path_query, zone_words=zone_words, document=page, trust_warnings=trust_warnings, copied=copied
    )
    app.jinja_env.globals.update(backupd=backupd, pool_option=pool_option, present=lambda: _clock()[1], csv_links=csv_links)
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True


def _for_programs(write: Callable[[Any], str]) -> Callable[[Any], str]:
    """Returns the filter, which gives plain numbers while a table is downloaded: bytes, seconds, shares."""
    return lambda value: write(value) if not is_csv() else "" if value is None else str(value)


def _uncut(cut: Callable[..., str]) -> Callable[..., str]:
    """Returns the filter `truncate`, which cuts nothing off while a table is downloaded."""

    @wraps(cut)
    def filtered(environment: object, text: str, *more: Any, **named: Any) -> str:
        return text if is_csv() else cut(environment, text, *more, **named)

    return filtered


def number(value: float) -> str:
    """Formats 12,345; a fraction with one digit."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def with_commands(text: str) -> Markup:
    """Returns a hint as HTML: text between backquotes becomes a command that names the pool. Safe to show."""
    pool = pool_name()
    parts = printable(text).split("`")
    html = (
        Markup("<code>{}</code>").format(command_for(part, pool, call())) if number % 2 else part
        for number, part in enumerate(parts)
    )
    return Markup("").join(html)


def pool_name() -> str:
    """Returns the name of the pool's configuration; "main" outside of an application."""
    name: str = current_app.extensions["btrkeep"].pool if has_app_context() else "main"
    return name


def backupd() -> str:
    """Returns the command line of `backupd` for the pool, for the commands in templates."""
    return command_for("backupd ", pool_name(), call()).strip()


def pool_option() -> str:
    """Returns the option that names the pool for btrfs-balancer and btrfs-heatmap, for the commands in templates."""
    return call().removeprefix("backupd ") or f"--pool {pool_name()}"


def call() -> str:
    """Returns the command line of `backupd` for the pool if its name is not enough. A viewer who is limited to hosts must not see
    file names.
    """
    viewer = logged_in_viewer() if has_app_context() else None
    if viewer is None or viewer.limited:
        return ""
    try:
        return source().config.call
    except OperatorError:  # the page itself reports it
        return ""


def when(moment: datetime | None, style: str = "both") -> str | Markup:
    """Returns a past time as <time>, with all details in its title.

    `style`: "both" is absolute and relative, each also alone; "since" is relative without "ago", "seconds" absolute with seconds,
    "day" without the time of day, "clock" the hour and minute.
    """
    return _as_time(moment, style, ago)


def coming(moment: datetime | None, style: str = "both") -> str | Markup:
    """Like `when`, for a time that may be in the future: when something is due."""
    return _as_time(moment, style, relative)


def _as_time(moment: datetime | None, style: str, to_words: Callable[[datetime, datetime], str]) -> str | Markup:
    if moment is None:
        return "-"
    zone, now = _clock()
    words, date, clock = to_words(moment, now), absolute(moment, zone, now), f"{moment.astimezone(zone):%H:%M}"
    exactly = absolute(moment, zone, now, "%H:%M:%S")
    texts = {
        "both": f"{date}, {words}",
        "relative": words,
        "since": words.removesuffix(" ago"),
        "absolute": date,
        "seconds": exactly,
        "clock": clock,
    }
    text = (texts | {"day": day(moment, zone, now)})[style]
    title = f"{exact(moment, zone)}, {words}"
    # Words of `relative` grow in an open page (app.js).
    grows = Markup(' data-ago="{}"').format(words) if style in ("both", "relative") and words == relative(moment, now) else ""
    return Markup('<time datetime="{}" title="{}"{}>{}</time>').format(format_time(moment), title, grows, text)


def _clock() -> tuple[ZoneInfo, datetime]:
    """Returns the pool's zone, and the time. While the catalogue cannot be read: UTC, and the real time."""
    try:
        return source().config.zone, source().now
    except OperatorError:
        return ZoneInfo("UTC"), datetime.now(UTC)


def csv_links(html: str) -> list[tuple[str, str]]:
    """Returns the name of each table of the page, and the address that downloads it."""
    if request.method != "GET":
        return []
    query = request.query_string.decode("latin-1")  # unparsed: paths in it may not be UTF-8
    names = enumerate(tables_of(html), 1)
    return [(name, f"?{query}&csv={place}" if query else f"?csv={place}") for place, name in names]


def zone_words() -> str:
    """ "Europe/Berlin (CET, UTC+01:00)": at this time of the year."""
    zone, now = _clock()
    local = now.astimezone(zone)
    offset = f"{local:%z}"
    return "UTC" if zone.key == "UTC" else f"{zone.key} ({local:%Z}, UTC{offset[:3]}:{offset[3:]})"


def copied() -> datetime | None:
    """Returns when the copy of the catalogue that the page shows was made; None if unknown."""
    try:
        return source().copied
    except OperatorError:  # the page itself reports it
        return None


def trust_warnings() -> list[tuple[str, str]]:
    """Returns the reasons why the pages may be wrong, each with the command that solves the problem."""
    try:
        catalogue = source().catalogue
        lost, clock = catalogue.get_fact(LOST), catalogue.get_fact(CLOCK)
    except OperatorError:  # the page itself reports it
        return []
    text, pool = "The catalogue was lost: it lists none of the backups in the pool. On the server:", source().config.name
    warnings = [(text, command_for("backupd rebuild", pool, call()))] if lost else []
    if is_copy_old(source(), datetime.now(UTC)):
        old = "These pages are out of date: no command has updated the dashboard's copy of the catalogue. On the server:"
        warnings.append((old, command_for("backupd check", pool, call())))
    return [*warnings, (f"The clock may be wrong: {clock}.", "timedatectl")] if clock else warnings
