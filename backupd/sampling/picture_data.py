"""The data of the picture and the text of a day."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from btrkeep.decisions.day_phases import Phase, PhaseSum, Slot


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
