"""A display that is redrawn in place below lines that scroll up; shared by the live displays of all programs."""

from functools import cached_property
from typing import TYPE_CHECKING

from btrkeep.cli.output import terminal

if TYPE_CHECKING:  # rich takes 50 ms, and only a terminal needs it
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table

_WIDEST_BAR, _BESIDE = 40, 60


class LiveDisplay:
    """A live display. A subclass becomes a progress sink by drawing `picture` and printing finished items above it."""

    def __init__(self) -> None:
        self._live: Live | None = None

    @cached_property
    def console(self) -> "Console":
        """Returns the terminal."""
        from rich.console import Console

        return Console(file=terminal(), highlight=False)

    def picture(self) -> "RenderableType":
        """Returns the part that remains below the finished lines."""
        raise NotImplementedError

    def open(self) -> None:
        """Shows the picture from now on."""
        from rich.live import Live

        self._live = Live(console=self.console, auto_refresh=False, transient=True, get_renderable=self.picture)
        self._live.start()

    def draw(self) -> None:
        """Redraws the picture, if it is shown."""
        if self._live:
            self._live.refresh()

    def close(self) -> None:
        """Removes the picture, whatever ended the work."""
        if self._live:
            self._live.stop()
            self._live = None

    def line(self, text: str, style: str = "") -> None:
        """Prints a line above the picture."""
        from rich.text import Text

        self.console.print(Text(text, style=style))

    def bars(self, *rows: tuple[str, float, float, str, str, str]) -> "Table":
        """A bar in each row: its label, how much is done, of how much, its colour, and two texts beside it."""
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2), pad_edge=False)
        for label, done, of, style, words, more in rows:
            drawn = self.bar(done, max(1, of), widest=_WIDEST_BAR, beside=_BESIDE, style=style)
            table.add_row(Text(label), drawn, Text(words), Text(more))
        return table

    def bar(self, done: float, of: float, *, widest: int, beside: int, style: str, finished: str = "") -> "ProgressBar":
        """A bar of up to `widest` columns on a terminal where `beside` of them must be left free."""
        from rich.progress_bar import ProgressBar

        width = max(6, min(widest, self.console.width - beside))
        return ProgressBar(total=of, completed=done, width=width, complete_style=style, finished_style=finished or style)
