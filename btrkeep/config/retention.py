"""A retention policy: its periods, each declared once.

Derived from these are the keys of [retention], what decisions/retention keeps, its words, and the letters of the calendars.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from datetime import date
from typing import Any

from btrkeep.config import value_types as kinds
from btrkeep.config.config_key import RETENTION, ConfigKey, entry


@dataclass(frozen=True, slots=True)
class RetentionPeriod:
    """A period. `name` is the key of the configuration, the code of the reason in JSON, and the word in messages.

    `number` numbers the period that a local day lies in, later ones larger; `days` is its usual length. `letter`, `colour` (one of
    xterm's 256) and `style` (a class of the style sheet) draw it on calendars.
    """

    name: str
    number: Callable[[date], int]
    days: int
    letter: str
    colour: int
    style: str


def _week(day: date) -> int:
    year, week, _ = day.isocalendar()
    return year * 100 + week


def _period(number: Callable[[date], int], days: int, letter: str, colour: int, style: str, example: str, meaning: str) -> Any:
    declared = ConfigKey((RETENTION,), kinds.NUMBER, 0, example, meaning)
    return field(default=declared.value, metadata={**declared.metadata, "period": (number, days, letter, colour, style)})


# fmt: off
@dataclass(frozen=True, slots=True)
class Retention:
    """How many periods of each length keep a backup. The newest `min_keep` complete backups always stay. `grace` is seconds.

    A period is one field; the shortest comes first.
    """

    daily: int = _period(lambda day: day.toordinal(), 1, "d", 28, "good", "14",
        "For how many days, the newest ones with a complete backup, the first backup of the day is kept.")
    weekly: int = _period(_week, 7, "W", 31, "busy", "13", "The same for ISO weeks, which begin on Monday.")
    monthly: int = _period(lambda day: day.year * 100 + day.month, 30, "M", 133, "odd", "12", "The same for months.")
    yearly: int = _period(lambda day: day.year, 365, "Y", 166, "odd", "3", "The same for years.")
    min_keep: int = entry((RETENTION,), kinds.COUNT, 3, "5",
        "How many of the newest complete backups of a host are kept, whatever the rules.")
    grace: float = entry((RETENTION,), kinds.DURATION, "1d", '"3d"',
        "How long an expired backup can still be restored, or taken back with ``backupd unexpire``, before it is deleted.")

    @property
    def missing(self) -> bool:
        """Returns True if there is no rule at all, so that everything is kept."""
        return not any(getattr(self, name) for name in PERIOD_NAMES)
# fmt: on


PERIODS = tuple(RetentionPeriod(key.name, *key.metadata["period"]) for key in fields(Retention) if "period" in key.metadata)
PERIOD_NAMES = tuple(period.name for period in PERIODS)
