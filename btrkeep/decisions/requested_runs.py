"""Decides when users of the dashboard may request the next backup of a host. Pure."""

from collections.abc import Iterable
from datetime import datetime, timedelta

DAY = timedelta(days=1)


def next_request(starts: Iterable[datetime], now: datetime, distance: float, a_day: int) -> datetime | None:
    """Returns the time from which a backup may be requested; None: now.

    `starts`: of the host's earlier backups by hand. Those in the future are ignored, because a clock was wrong. `distance`: the
    least number of seconds between two; `a_day`: the most within 24 hours.
    """
    past = sorted(start for start in starts if start <= now)
    recent = [start for start in past if start > now - DAY]
    allowed = [past[-1] + timedelta(seconds=distance)] if past else []
    if len(recent) >= a_day:
        allowed.append(recent[-a_day] + DAY)
    latest = max(allowed, default=now)
    return latest if latest > now else None
