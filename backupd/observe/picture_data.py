"""The data of the pictures of a trend and of a day, and of the text of a day."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from btrkeep.decisions.day_phases import Phase, PhaseSum, Slot
from btrkeep.decisions.trend import Point


@dataclass(frozen=True, slots=True)
class DayData:
    """A day, or any stretch of time from `start` to `end`, to be shown in `zone`. `name` is the pool's, safe to show."""

    name: str
    start: datetime
    end: datetime
    zone: ZoneInfo
    slots: Sequence[Slot]
    phases: Sequence[Phase]
    sums: Sequence[PhaseSum]


@dataclass(frozen=True, slots=True)
class TrendData:
    """The points from `since` to `until`, oldest first, to be shown in `zone`. `name` is the pool's, safe to show."""

    name: str
    since: datetime
    until: datetime
    zone: ZoneInfo
    points: Sequence[Point]
