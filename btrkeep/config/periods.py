"""The periods of a retention policy, shortest first: the one place that declares them.

Derived from it are the keys of [retention], what decisions/retention keeps, its words, and the letters of the calendars.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date


@dataclass(frozen=True, slots=True)
class RetentionPeriod:
    """A period. `name` is the key of the configuration, the code of the reason in JSON, and the word in messages.

    `number` numbers the period that a local day lies in, later ones larger; `days` is its usual length. `letter`, `colour` (one of
    xterm's 256) and `style` (a class of the style sheet) draw it on calendars. `example` and `meaning` document the key.
    """

    name: str
    number: Callable[[date], int]
    days: int
    letter: str
    colour: int
    style: str
    example: str
    meaning: str


def _week(day: date) -> int:
    year, week, _ = day.isocalendar()
    return year * 100 + week


PERIODS = (
    RetentionPeriod("daily", lambda day: day.toordinal(), 1, "d", 28, "good", "14",
        "For how many days, the newest ones that have a complete backup, the first one of the day is kept."),
    RetentionPeriod("weekly", _week, 7, "W", 31, "busy", "13", "The same for ISO weeks, which begin on Monday."),
    RetentionPeriod("monthly", lambda day: day.year * 100 + day.month, 30, "M", 133, "odd", "12", "The same for months."),
    RetentionPeriod("yearly", lambda day: day.year, 365, "Y", 166, "odd", "3", "The same for years."),
)  # fmt: skip
PERIOD_NAMES = tuple(period.name for period in PERIODS)
