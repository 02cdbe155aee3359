"""The data of the pictures of a trend and of a day, and of the text of a day."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from btrkeep.decisions.day_phases import Phase, PhaseSum, Slot
from btrkeep.decisions.trend import Point


@dataclass(frozen=True, slots=True)
class DayData:
    """A day, or any other period."""

    name: str
    """The pool's name, safe to display."""
    start: datetime
    """Its begin."""
    end: datetime
    """Its end."""
    zone: ZoneInfo
    """The time zone in which it is shown."""
    slots: Sequence[Slot]
    """Its pieces."""
    phases: Sequence[Phase]
    """The times in which jobs ran."""
    sums: Sequence[PhaseSum]
    """Totals by kind of job."""


@dataclass(frozen=True, slots=True)
class TrendData:
    """The points from `since` to `until`, oldest first, to be shown in `zone`. `name` is the pool's, safe to show."""

    name: str
    since: datetime
    until: datetime
    zone: ZoneInfo
    points: Sequence[Point]
