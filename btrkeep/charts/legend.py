"""The legend of a chart: names with their colours, above it."""

from collections.abc import Sequence

from btrkeep.charts.svg import Sheet


def legend(sheet: Sheet, entries: Sequence[tuple[str, str, str | None]]) -> int:
    """Draws names with their colours, and returns the pixels that they take. Each entry: the name, the colour, and the dash of a
    line ("" for a plain one) or None for an area.
    """
    x, row, font = 4.0, 0, sheet.look.font
    for name, colour, dash in entries:
        wide = sheet.look.width_of(name) + 34
        if x > 4 and x + wide > sheet.look.width:
            x, row = 4.0, row + 1
        y = row * (font + 10) + 4
        if dash is None:
            sheet.rect(x, y, 14, font, colour, 0.75)
        else:
            sheet.curve([(x, y + font / 2), (x + 14, y + font / 2)], colour, dash)
        sheet.text(x + 20, y + font - 1, name, colour="ink")
        x += wide
    return (row + 1) * (font + 10)
