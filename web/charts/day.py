"""A day of the disks: bytes written or read, five minutes a bar, with the jobs that ran above."""

from collections.abc import Sequence
from itertools import groupby
from zoneinfo import ZoneInfo

from btrkeep.decisions.day_phases import kinds_of, unknown_spans
from btrkeep.units import format_size
from web.charts.frame import Frame, frame, hours, size_scale
from web.charts.svg import FONT, ChartStyle, Sheet
from web.data.day import DayView

NAMES = ("written", "read")
JOBS = {"backup": "sky", "expire": "orange", "balance": "green", "scrub": "purple"}
_LANE = 18
_HEIGHT = 190


def day_chart(name: str, day: DayView, look: ChartStyle) -> bytes:
    """Draws the bytes written, with the jobs above; or the bytes read."""
    kinds = kinds_of(day.phases) if name == NAMES[0] else []
    above = len(kinds) * _LANE + (6 if kinds else 0)
    beside = max((look.width_of(kind) for kind in kinds), default=0)
    sheet = Sheet(look, _HEIGHT + above)
    most = max((getattr(slot, name) or 0 for slot in day.slots), default=0)
    inside = frame(sheet, day.start, day.end, size_scale(most, "/s"), above=above, beside=beside)
    _phases(sheet, inside, day)
    _unknown(sheet, inside, day)
    _stairs(sheet, inside, day, name)
    _lanes(sheet, inside, day, kinds)
    hours(sheet, inside, ZoneInfo(day.zone))
    return sheet.document(words(name, day))


def words(name: str, day: DayView) -> str:
    """Returns a description of the chart for screen readers."""
    rates = [(rate, slot) for slot in day.slots if (rate := getattr(slot, name)) is not None]
    if not rates:
        return "there are no samples of this day"
    most, slot = max(rates, key=lambda pair: pair[0])
    whole = getattr(day.sums[0], name)
    when = slot.start.astimezone(ZoneInfo(day.zone))
    ran = ", ".join(kinds_of(day.phases)) or "no job"
    return f"{format_size(whole)} {name} in all, at most {format_size(round(most))} a second at {when:%H:%M}; {ran} ran"


def _stairs(sheet: Sheet, inside: Frame, day: DayView, name: str) -> None:
    """Draws one shape for each period with samples."""
    for is_known, some in groupby(day.slots, lambda slot: slot.known > 0):
        if is_known:
            corners = [(moment, inside.y(getattr(slot, name))) for slot in some for moment in (slot.start, slot.end)]
            points = [(inside.x(moment), y) for moment, y in corners]
            sheet.area(
                [(points[0][0], inside.bottom), *points, (points[-1][0], inside.bottom)], "red" if name == "written" else "blue"
            )


def _phases(sheet: Sheet, inside: Frame, day: DayView) -> None:
    for phase in day.phases:
        x = inside.x(phase.start)
        sheet.rect(x, inside.top, inside.x(phase.end) - x, inside.bottom - inside.top, JOBS.get(phase.kind, "faint"), 0.14)


def _unknown(sheet: Sheet, inside: Frame, day: DayView) -> None:
    """Marks the periods without samples, so that they do not look idle."""
    for begin, end in unknown_spans(day.slots):
        left, right, middle = inside.x(begin), inside.x(end), (inside.top + inside.bottom) / 2
        sheet.rect(left, inside.top, right - left, inside.bottom - inside.top, "faint", 0.18)
        if right - left > sheet.look.width_of("no samples"):
            sheet.text((left + right) / 2, middle, "no samples", anchor="middle", colour="ink")


def _lanes(sheet: Sheet, inside: Frame, day: DayView, kinds: Sequence[str]) -> None:
    for lane, kind in enumerate(kinds):
        y = 4 + lane * _LANE
        sheet.text(inside.left - 6, y + FONT - 1, kind, anchor="end", colour="ink")
        for phase in day.phases:
            if phase.kind == kind:
                x = inside.x(phase.start)
                sheet.rect(x, y, max(inside.x(phase.end) - x, 1.5), _LANE - 6, JOBS.get(kind, "faint"))
