"""A host's backups on a calendar: a month in a row, the newest first, with the letters of `backupd retention explain`. Pure."""

from calendar import monthrange
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from btrkeep.decisions.calendar_strip import KINDS, NONE, StripLetter


@dataclass(frozen=True, slots=True)
class Mark:
    """One backup on the calendar: the local day on which it began, how long it is kept, and its name."""

    day: date
    kind: StripLetter
    name: str


@dataclass(frozen=True, slots=True)
class Cell:
    """One day. `letter` and `words` describe the backup that is kept longest; `names`: its backups, oldest first, () without any.

    `kind` is one word for the stylesheet; all are empty for a day that is not between the oldest backup and today.
    """

    day: str
    letter: str = ""
    kind: str = ""
    words: str = ""
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Month:
    """A row. `skipped`: so many months without a backup instead of one month; then there are no cells."""

    month: str
    cells: tuple[Cell, ...] = ()
    skipped: int = 0
    backups: int = 0


@dataclass(frozen=True, slots=True)
class Calendar:
    """The calendar. `legend`: letter, word for the stylesheet and meaning of each mark on it."""

    months: tuple[Month, ...]
    legend: tuple[tuple[str, str, str], ...]

    @property
    def newest(self) -> int:
        """Returns today's day of the month; 0 without any month. The columns up to it are the most relevant."""
        return max((int(cell.day[-2:]) for month in self.months[:1] for cell in month.cells if cell.letter), default=0)


def calendar(marks: Sequence[Mark], today: date) -> Calendar:
    """Returns every day from the oldest backup to `today`, all in the pool's zone. Backups with a later timestamp are left out."""
    shown = sorted((mark for mark in marks if mark.day <= today), key=lambda mark: (mark.day, mark.name))
    if not shown:
        return Calendar((), ())
    days: dict[date, list[Mark]] = {}
    for mark in shown:
        days.setdefault(mark.day, []).append(mark)
    kinds = {mark.kind for mark in shown}
    legend = [(kind.letter, kind.style, kind.words) for kind in KINDS if kind in kinds]
    return Calendar(tuple(_months(days, today)), (*legend, (NONE, "none", "none")))


def _months(days: Mapping[date, Sequence[Mark]], today: date) -> Iterator[Month]:
    first, used, skipped = min(days), {day.replace(day=1) for day in days}, 0
    month = today.replace(day=1)
    while month >= first.replace(day=1):
        if month in used or month == today.replace(day=1):
            yield from _gap(month, skipped)
            skipped = 0
            yield _month(month, days, first, today)
        else:
            skipped += 1
        month = (month - timedelta(days=1)).replace(day=1)


def _gap(before: date, skipped: int) -> Iterator[Month]:
    """Yields the months between `before` and a later one that is on the calendar."""
    if not skipped:
        return
    last = (before + timedelta(days=31)).replace(day=1)
    yield Month(last.strftime("%Y-%m"), skipped=skipped)


def _month(month: date, days: Mapping[date, Sequence[Mark]], first: date, today: date) -> Month:
    cells = [
        _cell(month.replace(day=number), days, first, today) for number in range(1, monthrange(month.year, month.month)[1] + 1)
    ]
    return Month(month.strftime("%Y-%m"), tuple(cells), backups=sum(len(cell.names) for cell in cells))


def _cell(day: date, days: Mapping[date, Sequence[Mark]], first: date, today: date) -> Cell:
    text = day.isoformat()
    marks = days.get(day, ())
    if not marks:
        return Cell(text, NONE, "none", "none") if first <= day <= today else Cell(text)
    best = min((mark.kind for mark in marks), key=KINDS.index)
    return Cell(text, best.letter, best.style, best.words, tuple(mark.name for mark in marks))
