"""The strip of days: each backup of a host as one letter for its day, a row for each month, the oldest first. Pure.

    2026-10  .............dddWdddd.ddWddddddM
    2026-11  dddddddWdddd?dddddWx

Plain ASCII, so that it can be read on every terminal; 40 columns, and some words beside it where there is room.
"""

import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import groupby

from btrkeep.backup_states import COMPLETE
from btrkeep.config.config_model import PERIODS
from btrkeep.decisions.retention import RetentionCode

NONE = "."
NARROWEST = 40  # columns of a complete month
_BESIDE = 65  # columns with "31 kept, 100 to delete" beside it
_INDENT = " " * len("2026-11  ")
_FEW = 2  # if at least so many consecutive months have no backup, a sentence replaces their rows


@dataclass(frozen=True, slots=True)
class StripLetter:
    """A letter of the strip and its meaning."""

    letter: str
    """What is printed for the day."""
    name: str
    """The word of the API."""
    colour: int
    """One of xterm's 256, of medium brightness, readable on white and on black."""
    words: str
    """The meaning, for the legend."""
    style: str
    """The class in the style sheet."""


HELD = StripLetter("H", "held", 63, "held", "held")
KEPT = StripLetter("k", "kept", 244, "kept for another reason", "kept")
SUSPECT = StripLetter("?", "suspect", 166, "suspect or failed", "suspect")
GOES = StripLetter("x", "goes", 160, "to be deleted", "goes")
_RULES: Mapping[str, StripLetter] = {
    RetentionCode.HELD: HELD,
    **{
        period.name: StripLetter(period.letter, period.name, period.colour, period.name, period.style)
        for period in reversed(PERIODS)
    },
}
KINDS = (*_RULES.values(), KEPT, SUSPECT, GOES)  # for a day with several backups, the first of these is shown


@dataclass(frozen=True, slots=True)
class StripBackup:
    """One backup of the strip."""

    day: date
    """The day on which it started, in the pool's zone."""
    kind: StripLetter
    """Its letter."""


def kind_of(keep: bool, rules: Collection[str], state: str) -> StripLetter:
    """Returns the letter of a backup: of the rules that keep it, the one that keeps it longest; for an incomplete one only a hold
    counts.
    """
    if not keep:
        return GOES
    if state != COMPLETE:
        return HELD if RetentionCode.HELD in rules else SUSPECT
    return min((_RULES.get(rule, KEPT) for rule in rules), key=KINDS.index, default=KEPT)


Paint = Callable[[str, int], str]


def plain(text: str, _colour: int) -> str:
    """Returns the text without colours."""
    return text


def strip(backups: Sequence[StripBackup], today: date, width: int, paint: Paint = plain) -> list[str]:
    """Returns the lines: a ruler of days, the months, the legend. `today` is in the pool's zone; later backups are not shown.

    Returns nothing if there is no backup, or if the width is less than that of a month.
    """
    shown = [backup for backup in backups if backup.day <= today]
    if not shown or width < NARROWEST:
        return []
    days: dict[date, StripLetter] = {}
    for strip_backup in shown:
        days[strip_backup.day] = min(strip_backup.kind, days.get(strip_backup.day, strip_backup.kind), key=KINDS.index)
    beside = _counts(shown) if width >= _BESIDE else {}
    return [_ruler(), *_rows(days, today, beside, paint), *_legend(days, width, paint)]


def _counts(shown: Sequence[StripBackup]) -> dict[date, str]:
    words = {}
    for month, group in groupby(
        sorted(shown, key=lambda strip_backup: strip_backup.day), key=lambda strip_backup: strip_backup.day.replace(day=1)
    ):
        going = [strip_backup.kind is GOES for strip_backup in group]
        goes = f", {sum(going)} to delete" if any(going) else ""
        words[month] = f"{len(going) - sum(going)} kept{goes}"
    return words


def _ruler() -> str:
    text = [" "] * 31
    for day in (1, 5, 10, 15, 20, 25, 30):
        text[day - 1 : day - 1 + len(str(day))] = str(day)
    return _INDENT + "".join(text)


def _rows(days: Mapping[date, StripLetter], today: date, beside: Mapping[date, str], paint: Paint) -> Iterator[str]:
    first = min(days)
    used = {day.replace(day=1) for day in days}
    for is_used, group in groupby(_months(first, today), key=lambda month: month in used):
        months = list(group)
        if not is_used and len(months) >= _FEW:
            yield f"{_INDENT}({len(months)} months without a backup)"
            continue
        for month in months:
            cells = "".join(_cell(day, days, first, today, paint) for day in _days(month))
            room = " " * (31 - len(_days(month)) + 2)
            yield (f"{month.year:04}-{month.month:02}  {cells}" + (room + beside[month] if month in beside else "")).rstrip()


def _months(first: date, last: date) -> Iterator[date]:
    month = first.replace(day=1)
    while month <= last:
        yield month
        month = (month + timedelta(days=31)).replace(day=1)


def _days(month: date) -> list[date]:
    from calendar import monthrange  # only needed here

    return [month.replace(day=day) for day in range(1, monthrange(month.year, month.month)[1] + 1)]


def _cell(day: date, days: Mapping[date, StripLetter], first: date, today: date, paint: Paint) -> str:
    if kind := days.get(day):
        return paint(kind.letter, kind.colour)
    return NONE if first <= day <= today else " "


def _legend(days: Mapping[date, StripLetter], width: int, paint: Paint) -> list[str]:
    """Returns the legend of the letters that occur. Spaces inside an entry are replaced until the lines are wrapped, so that
    entries are not split.
    """
    used = [kind for kind in KINDS if kind in days.values()]
    items = [f"{kind.letter} {kind.words}".replace(" ", "\0") for kind in used] + [f"{NONE}\0none"]
    lines = textwrap.wrap("  ".join(items), width - len(_INDENT), break_long_words=False)
    by_letter = {kind.letter: kind for kind in used}
    return [_INDENT + "  ".join(_painted(item, by_letter, paint) for item in line.split()) for line in lines]


def _painted(item: str, by_letter: Mapping[str, StripLetter], paint: Paint) -> str:
    letter, _, words = item.partition("\0")
    kind = by_letter.get(letter)
    return f"{paint(letter, kind.colour) if kind else letter} {words.replace(chr(0), ' ')}"
