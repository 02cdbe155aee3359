"""A day of the disks: bytes written or read, one bar for five minutes, with the jobs above."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Protocol
from zoneinfo import ZoneInfo

from markupsafe import Markup

from btrkeep.charts.frame import AxisScale, Frame, frame, size_scale, times
from btrkeep.charts.svg import IN_PAGE, MARGIN, ChartStyle, Panel, Readings, Sheet
from btrkeep.decisions.day_phases import Phase, PhaseSum, Slot, kinds_of, unknown_spans
from btrkeep.units import format_size

NAMES = ("written", "read")
JOBS = {"backup": "sky", "expire": "orange", "balance": "green", "scrub": "purple"}
_HEIGHT = 190
_NARROWEST, _NARROWEST_LINK = 1.5, 6.0
"""The width of a very short job in pixels; a link has to be hit."""
Address = Callable[[Phase], str]
"""Returns the address of the page of a job."""


class DayOfDisks(Protocol):
    """What the disks read and wrote from `start` to `end`, and which jobs ran."""

    @property
    def start(self) -> datetime: ...
    @property
    def end(self) -> datetime: ...
    @property
    def slots(self) -> Sequence[Slot]: ...
    @property
    def phases(self) -> Sequence[Phase]: ...
    @property
    def sums(self) -> Sequence[PhaseSum]: ...


def day_chart(name: str, day: DayOfDisks, zone: ZoneInfo, address: Address | None = None) -> Markup:
    """Draws the bytes written, with the jobs above, or the bytes read, as a part of a page. Jobs are links to `address`."""
    return _draw(name, day, zone, IN_PAGE, address=address).markup(words(name, day, zone))


def day_panels(day: DayOfDisks, zone: ZoneInfo, style: ChartStyle, headings: Mapping[str, str]) -> list[Panel]:
    """Returns both charts, one above the other, with their headings."""
    beside = max(style.width_of(kind) for kind in ("", *kinds_of(day.phases)))
    beside = max(beside, *(_scale(name, day).width(style) for name in headings))
    return [Panel(heading, _draw(name, day, zone, style, beside + MARGIN)) for name, heading in headings.items()]


def _scale(name: str, day: DayOfDisks) -> AxisScale:
    return size_scale(max((getattr(slot, name) or 0 for slot in day.slots), default=0), "/s")


def _draw(
    name: str, day: DayOfDisks, zone: ZoneInfo, style: ChartStyle, beside: float = 0, address: Address | None = None
) -> Sheet:
    kinds = kinds_of(day.phases) if name == NAMES[0] else []
    above = len(kinds) * (style.font + 6) + (6 if kinds else 0)
    beside = max(beside, *(style.width_of(kind) for kind in ("", *kinds)))
    sheet = Sheet(style, _HEIGHT + above)
    inside = frame(sheet, day.start, day.end, _scale(name, day), above=above, beside=beside)
    _phases(sheet, inside, day)
    _unknown(sheet, inside, day)
    _stairs(sheet, inside, day, name)
    _lanes(sheet, inside, day, kinds, zone, address)
    times(sheet, inside, zone)
    sheet.readings = Readings(
        (inside.left, inside.top, inside.right, inside.bottom), (name,), _rows(name, day, zone, inside), (day.start, day.end)
    )
    return sheet


def _rows(name: str, day: DayOfDisks, zone: ZoneInfo, inside: Frame) -> list[tuple[float, tuple[str, str]]]:
    rates = [(inside.x(slot.start + (slot.end - slot.start) / 2), slot, getattr(slot, name)) for slot in day.slots]
    return [
        (x, (f"{slot.start.astimezone(zone):%Y-%m-%d %H:%M}", "no samples" if rate is None else f"{format_size(round(rate))}/s"))
        for x, slot, rate in rates
    ]


def words(name: str, day: DayOfDisks, zone: ZoneInfo) -> str:
    """Returns a description of the chart for screen readers."""
    rates = [(rate, slot) for slot in day.slots if (rate := getattr(slot, name)) is not None]
    if not rates:
        return "there are no samples of this day"
    most, slot = max(rates, key=lambda pair: pair[0])
    whole = getattr(day.sums[0], name)
    when = slot.start.astimezone(zone)
    ran = ", ".join(kinds_of(day.phases)) or "no job"
    return f"{format_size(whole)} {name} in all, at most {format_size(round(most))} a second at {when:%H:%M}; {ran} ran"


def _stairs(sheet: Sheet, inside: Frame, day: DayOfDisks, name: str) -> None:
    """Draws one shape for each period with samples."""
    for is_known, slots in groupby(day.slots, lambda slot: slot.known > 0):
        if is_known:
            corners = [(moment, inside.y(getattr(slot, name))) for slot in slots for moment in (slot.start, slot.end)]
            points = [(inside.x(moment), y) for moment, y in corners]
            sheet.area(
                [(points[0][0], inside.bottom), *points, (points[-1][0], inside.bottom)], "red" if name == "written" else "blue"
            )


def _phases(sheet: Sheet, inside: Frame, day: DayOfDisks) -> None:
    for phase in day.phases:
        x = inside.x(phase.start)
        sheet.rect(x, inside.top, inside.x(phase.end) - x, inside.bottom - inside.top, JOBS.get(phase.kind, "faint"), 0.14)


def _unknown(sheet: Sheet, inside: Frame, day: DayOfDisks) -> None:
    """Marks the periods without samples, so that the disks do not look idle."""
    for begin, end in unknown_spans(day.slots):
        left, right, middle = inside.x(begin), inside.x(end), (inside.top + inside.bottom) / 2
        sheet.rect(left, inside.top, right - left, inside.bottom - inside.top, "faint", 0.18)
        if right - left > sheet.style.width_of("no samples"):
            sheet.text((left + right) / 2, middle, "no samples", anchor="middle", colour="ink")


def _lanes(sheet: Sheet, inside: Frame, day: DayOfDisks, kinds: Sequence[str], zone: ZoneInfo, address: Address | None) -> None:
    font = sheet.style.font
    for lane, kind in enumerate(kinds):
        y, colour = 4 + lane * (font + 6), JOBS.get(kind, "faint")
        sheet.text(inside.left - 6, y + font - 1, kind, anchor="end", colour="ink")
        for phase in day.phases:
            if phase.kind != kind:
                continue
            x = inside.x(phase.start)
            wide = inside.x(phase.end) - x
            if address:
                begin, end = (f"{moment.astimezone(zone):%H:%M}" for moment in (phase.start, phase.end))
                box = (x, y, max(wide, _NARROWEST_LINK), font)
                sheet.link(box, colour, address(phase), f"{kind}, {begin} to {end}")
            else:
                sheet.rect(x, y, max(wide, _NARROWEST), font, colour)
