"""Which pictures of a pool are kept: all of two weeks, then one a day for a year, then one a week. Pure.

A picture and the recorded state beside it have the same name but the ending, and stay or go together.
"""

import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta

ALL = timedelta(days=14)
DAILY = timedelta(days=366)
_NAME = re.compile(r"(?P<of>.+)_at_(?P<at>\d{1,11})\.(?:png|heatmap)")


def taken(name: str) -> tuple[str, datetime] | None:
    """Parses an automatic file name (made by `picture.output_name`): returns its series and time; None for any other file."""
    match = _NAME.fullmatch(name)
    return (match["of"], datetime.fromtimestamp(int(match["at"]), UTC)) if match else None


def superfluous(names: Iterable[str], now: datetime) -> list[str]:
    """Returns the files to delete. The last one of each day or week stays; files without an automatic name are never deleted."""
    found = sorted(((at, of, name) for name in names if (said := taken(name)) for of, at in [said]), reverse=True)
    kept: dict[tuple[str, date | tuple[int, int]], datetime] = {}
    goes = []
    for at, of, name in found:
        slot = _slot(at, now)
        if slot is not None and kept.setdefault((of, slot), at) != at:
            goes.append(name)
    return sorted(goes)


def _slot(at: datetime, now: datetime) -> date | tuple[int, int] | None:
    """The day or the week of which one is kept; None: all are."""
    age = now - at
    if age <= ALL:
        return None
    if age <= DAILY:
        return at.date()
    year, week, _ = at.isocalendar()
    return year, week
