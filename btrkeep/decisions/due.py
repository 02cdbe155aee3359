"""Decides when a host is due and whether its window is open, and when the dashboard may request its next backup. Pure: takes plain
data and an explicit `now`, returns a reason with every answer.

Whole-day periods start with the window, or without a window at midnight in the pool's zone. Other periods start when the last
complete backup started. All calculations with the calendar are here, in the pool's zone.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from btrkeep.config import HostConfig, Window
from btrkeep.units import format_duration, local_time

DAY = 86400.0
LATE = 1.5  # times `every`
_CHANCE = timedelta(hours=1)  # a window shorter than this is too short for a backup
RETRY, LONGEST_RETRY = 0.25, timedelta(hours=5)  # share of `every`: how long a scheduled run waits before it retries a failed host
FUTURE = timedelta(minutes=5)  # a time further ahead than this means a wrong clock


def latest(now: datetime) -> datetime:
    """Returns the limit after which a time counts as in the future: a clock was wrong, and the time is ignored."""
    return now + FUTURE


@dataclass(frozen=True, slots=True)
class Due:
    """Whether a host is due."""

    due: bool
    """True if it is due now."""
    when: datetime
    """Since when it is due, or when it will be due."""
    reason: str
    """Why, in words."""


def is_due(last_complete: datetime | None, every: float, window: Window | None, zone: ZoneInfo, now: datetime) -> Due:
    """A host is due if no complete backup started since the start of the present period. A backup with a time in the future does
    not count.
    """
    due, when = due_when(last_complete, every, window, zone, now)
    if last_complete is None:
        reason = "no complete backup yet"
    elif last_complete > latest(now):
        reason = f"the time of the newest backup is in the future ({local_time(last_complete)})"
    elif every % DAY:
        reason = f"last complete {_ago(now - last_complete)} ago, every {format_duration(every)}"
    elif due:
        reason = f"no complete backup since {local_time(when)}"
    else:
        reason = f"complete since {local_time(last_complete)}, next period begins {local_time(when)}"
    return Due(due, when, reason)


def due_when(
    last_complete: datetime | None, every: float, window: Window | None, zone: ZoneInfo, now: datetime
) -> tuple[bool, datetime]:
    """Returns the same as `is_due` without the reason, for thousands of hosts at once: whether the host is due, and since when, or
    when it will be.
    """
    if last_complete is None or last_complete > latest(now):
        return True, now
    begin = period_start(every, window, zone, now)
    if begin is None:
        following = last_complete + timedelta(seconds=every)
        return following <= now, following
    return (True, begin) if last_complete < begin else (False, period_after(begin, every, window, zone))


def _ago(span: timedelta) -> str:
    return format_duration(max(0.0, span.total_seconds()))


@lru_cache(64)  # thousands of hosts have few different settings, and the same `now`
def period_start(every: float, window: Window | None, zone: ZoneInfo, now: datetime) -> datetime | None:
    """Returns the start of the present whole-day period; None if `every` is not a whole number of days.

    Periods of several days are counted from 1970-01-01, so that they do not depend on the time of the call.
    """
    if every % DAY:
        return None
    day, step = _first_day(now, every, zone)
    while _begin(day, window, zone) > now:
        day -= step
    return _begin(day, window, zone)


@lru_cache(64)
def period_after(begin: datetime, every: float, window: Window | None, zone: ZoneInfo) -> datetime:
    """Returns the start of the whole-day period after the one that started at `begin`."""
    day, step = _first_day(begin, every, zone)
    while _begin(day, window, zone) > begin:
        day -= step
    return _begin(day + step, window, zone)


def _first_day(moment: datetime, every: float, zone: ZoneInfo) -> tuple[date, timedelta]:
    """Returns the first day of the period that contains the local day of `moment`, and the length of periods, as a start for the
    search: the window may open later on that day, or in a skipped hour and therefore on the next day.
    """
    days, ordinal = int(every // DAY), moment.astimezone(zone).toordinal()
    return date.fromordinal(ordinal - (ordinal - _EPOCH) % days), timedelta(days=days)


_EPOCH = date(1970, 1, 1).toordinal()


def _begin(day: date, window: Window | None, zone: ZoneInfo) -> datetime:
    """Returns the start of the window on that local day, in UTC.

    If a clock change repeats it, the first of the two; if one skips it, the time that an unchanged clock would show (02:30 is
    03:30).
    """
    return datetime.combine(day, window.start if window else time(0), zone).astimezone(UTC)


def window_end(window: Window, zone: ZoneInfo, now: datetime) -> datetime | None:
    """Returns when the open window closes, exclusive; None if it is closed."""
    today = now.astimezone(zone).date()
    for day in (today, today - timedelta(days=1)):
        begin = _begin(day, window, zone)
        last = day if window.end > window.start else day + timedelta(days=1)
        end = datetime.combine(last, window.end, zone).astimezone(UTC)
        if begin <= now < end:
            return end
    return None


def next_window(window: Window, zone: ZoneInfo, now: datetime) -> datetime:
    """Returns when the window opens next, strictly after `now`."""
    today = now.astimezone(zone).date()
    return next(begin for ahead in range(3) if (begin := _begin(today + timedelta(days=ahead), window, zone)) > now)


def late_from(last_complete: datetime, every: float, window: Window | None, zone: ZoneInfo, late: float | None = None) -> datetime:
    """Returns when a host with that newest complete backup becomes late: every caller that calls a host late uses this.

    `late`: the configured age. Without it: 1.5 times `every`, but not before the end of the first window in which it was due.
    """
    if late is not None:
        return last_complete + timedelta(seconds=late)
    usual = last_complete + timedelta(seconds=LATE * every)
    if window is None:
        return usual
    begin = period_start(every, window, zone, last_complete)
    due = last_complete + timedelta(seconds=every) if begin is None else period_after(begin, every, window, zone)
    return max(usual, _end_of_chance(window, zone, due))


def host_late_from(host: HostConfig, last_complete: datetime, zone: ZoneInfo) -> datetime | None:
    """Returns when that host becomes late, as in `late_from`; for an optional one, when its absence becomes too long.
    None: never.
    """
    if not host.optional:
        return late_from(last_complete, host.every, host.window, zone, host.late)
    return None if host.max_absence is None else last_complete + timedelta(seconds=host.max_absence)


def _end_of_chance(window: Window, zone: ZoneInfo, due: datetime) -> datetime:
    """Returns the end of the first window in which there is time for a backup that is due then."""
    end = window_end(window, zone, due)
    if end is not None and end - due >= _CHANCE:
        return end
    opens = next_window(window, zone, due)
    return window_end(window, zone, opens) or opens


def is_late(
    last_complete: datetime | None, every: float, window: Window | None, zone: ZoneInfo, now: datetime, late: float | None = None
) -> bool:
    """Returns True if the newest complete backup is older than `late_from` allows. A backup with a time in the future
    is ignored.
    """
    if last_complete is None or last_complete > latest(now):
        return True
    return now > late_from(last_complete, every, window, zone, late)


def retry_from(last_attempt: datetime, every: float) -> datetime:
    """Returns when a scheduled run tries a host again whose last attempt made no complete backup."""
    return last_attempt + min(timedelta(seconds=RETRY * every), LONGEST_RETRY)


def next_chance(last_complete: datetime | None, every: float, window: Window | None, zone: ZoneInfo, now: datetime) -> datetime:
    """Returns from when the host's next backup may start: it is due, and its window is open; `now` if that is so now."""
    due, when = due_when(last_complete, every, window, zone, now)
    moment = now if due else when
    return moment if window is None or window_end(window, zone, moment) else next_window(window, zone, moment)


A_DAY = timedelta(days=1)
FAILED_DISTANCE = 60.0
"""Seconds after which a failed backup may be requested again, even if `run_distance` is longer."""


@dataclass(frozen=True, slots=True)
class RequestedRun:
    """An earlier backup that a user requested."""

    started: datetime
    """When it started."""
    has_failed: bool = False
    """True if it received no data."""


@dataclass(frozen=True, slots=True)
class RequestDelay:
    """`until`: when the next backup may be requested. `previous`: the backup that makes it wait, None: there were
    `a_day`.
    """

    until: datetime
    previous: RequestedRun | None = None


def next_request(runs: Iterable[RequestedRun], now: datetime, distance: float, a_day: int) -> RequestDelay | None:
    """Returns from when a backup may be requested; None: now.

    `runs`: the host's earlier backups started by users. Those in the future are ignored, because a clock was wrong. `distance`:
    minimum seconds between two, a minute at most after a failed one; `a_day`: the maximum within 24 hours.
    """
    past = sorted((run for run in runs if run.started <= now), key=lambda run: run.started)
    recent = [run for run in past if run.started > now - A_DAY]
    delays = [RequestDelay(run.started + timedelta(seconds=_least_distance(run, distance)), run) for run in past]
    if len(recent) >= a_day:
        delays.append(RequestDelay(recent[-a_day].started + A_DAY))
    latest = max(delays, key=lambda delay: delay.until, default=None)
    return latest if latest and latest.until > now else None


def _least_distance(run: RequestedRun, distance: float) -> float:
    return min(distance, FAILED_DISTANCE) if run.has_failed else distance
