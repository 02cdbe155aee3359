"""Decides when users of the dashboard may request the next backup of a host. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

DAY = timedelta(days=1)
FAILED_DISTANCE = 60.0
"""Seconds after which a backup that failed may be requested again, however long `run_distance` is."""


@dataclass(frozen=True, slots=True)
class RequestedRun:
    """An earlier backup by hand. `has_failed`: it brought nothing."""

    started: datetime
    has_failed: bool = False


@dataclass(frozen=True, slots=True)
class RequestDelay:
    """`until`: from when the next backup may be requested. `previous`: the backup that it waits for, None: there were `a_day`."""

    until: datetime
    previous: RequestedRun | None = None


def next_request(runs: Iterable[RequestedRun], now: datetime, distance: float, a_day: int) -> RequestDelay | None:
    """Returns from when a backup may be requested; None: now.

    `runs`: the host's earlier backups by hand. Those in the future are ignored, because a clock was wrong. `distance`: the least
    number of seconds between two, a minute at most after one that failed; `a_day`: the most within 24 hours.
    """
    past = sorted((run for run in runs if run.started <= now), key=lambda run: run.started)
    recent = [run for run in past if run.started > now - DAY]
    delays = [RequestDelay(run.started + timedelta(seconds=_distance_after(run, distance)), run) for run in past]
    if len(recent) >= a_day:
        delays.append(RequestDelay(recent[-a_day].started + DAY))
    latest = max(delays, key=lambda delay: delay.until, default=None)
    return latest if latest and latest.until > now else None


def _distance_after(run: RequestedRun, distance: float) -> float:
    return min(distance, FAILED_DISTANCE) if run.has_failed else distance
