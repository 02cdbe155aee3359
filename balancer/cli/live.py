"""The live display of a balancing on a terminal."""

import math
import time
from dataclasses import dataclass

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from balancer.blockmap import ASCII, HALVES, rows
from balancer.cli.bars import has_blocks
from balancer.cli.pace import RunPace
from balancer.cli.report import report_lines
from balancer.cli.run_view import begin_line, step_line, stopping_line
from balancer.run_types import (
    INTENDED,
    BalanceOutcome,
    BalanceProgress,
    PlannedBlockGroup,
    Report,
    RunSettings,
    SpaceNumbers,
    StepDone,
)
from balancer.score import BAD
from btrkeep.cli.progress import terminal
from btrkeep.units import counted, format_duration, format_size, printable

_WIDE, _SLIM = 64, 32
_WIDEST_BAR, _BESIDE = 30, 46
_PAPER = 100
_COLOURS = {
    BalanceOutcome.NO_SPACE: "yellow",
    BalanceOutcome.FAILED: "red",
    BalanceOutcome.CANCELLED: "yellow",
    BalanceOutcome.GONE: "cyan",
}


@dataclass(slots=True)
class _Now:
    """What the picture shows."""

    group: PlannedBlockGroup | None = None
    progress: BalanceProgress | None = None
    waits: str = ""
    stopping: str = ""
    score: float = 0.0


class BalanceDisplay:
    """The block group under way with its map, bars for it and for the budget; what is done scrolls away above."""

    def __init__(self) -> None:
        self.console = Console(file=terminal(), highlight=False)
        self._blocks = has_blocks()
        self._live: Live | None = None
        self._now = _Now()
        self._before = 0.0
        self._pace: RunPace | None = None

    def begins(self, numbers: SpaceNumbers, settings: RunSettings) -> None:
        """The run begins."""
        self._before = self._now.score = numbers.score
        self._pace = RunPace(settings, time.monotonic())
        self.console.print(Text(begin_line(numbers, settings)))
        self._live = Live(console=self.console, auto_refresh=False, transient=True, get_renderable=self.picture)
        self._live.start()

    def step_begins(self, group: PlannedBlockGroup) -> None:
        """This block group is next."""
        self._now.group, self._now.progress, self._now.waits = group, None, ""
        if self._pace:
            self._pace.step_begins(group)
        self._draw()

    def progress(self, progress: BalanceProgress) -> None:
        """Draws it anew."""
        self._now.progress = progress
        self._draw()

    def step_ends(self, done: StepDone) -> None:
        """A block group is done: its line scrolls away, the picture waits for the next one."""
        self._now.group = self._now.progress = None
        self._now.score = done.score
        if self._pace:
            self._pace.step_ends(done)
        self.console.print(Text(step_line(done, longest=self.console.width), style=_COLOURS.get(done.outcome, "")))
        self._draw()

    def waits(self, why: str) -> None:
        """Nothing is done for the moment."""
        self._now.waits = why
        self._draw()

    def stopping(self, why: str) -> None:
        """The block group under way is being cancelled."""
        self._now.stopping = why
        self._draw()

    def warns(self, text: str) -> None:
        """Something the operator should know."""
        self.console.print(Text(f"note: {printable(text)}", style="cyan"))

    def ends(self, report: Report) -> None:
        """It is over."""
        self.close()
        *lines, last = report_lines(report, min(self.console.width, _PAPER))
        for line in lines:
            self.console.print(Text(line))
        self.console.print(Text(last, style="" if report.ending in INTENDED else "yellow"))

    def close(self) -> None:
        """Takes the picture away, whatever ended the run."""
        if self._live:
            self._live.stop()
            self._live = None

    def _draw(self) -> None:
        if self._live:
            self._live.refresh()

    def picture(self) -> Group:
        """What stands below all that has scrolled away."""
        now = self._now
        parts: list[RenderableType] = [""]
        if now.group:
            parts += [_head(now.group), *_map(now.group, self.console, blocks=self._blocks)]
        parts.append(self._bars())
        if self._pace:
            parts.append(Text(self._so_far(self._pace), style="dim"))
        if now.stopping:
            parts.append(Text(stopping_line(now.stopping, now.group.vaddr if now.group else None), style="yellow"))
        elif not now.group and not now.waits:
            parts.append(Text("reading the free space", style="dim"))
        elif now.waits:
            parts.append(Text(f"waiting: {printable(now.waits)}", style="yellow"))
        return Group(*parts)

    def _so_far(self, pace: RunPace) -> str:
        """Bytes moved and written, and the score that there was and is. The end may be cut off: what is new comes first."""
        progress = self._now.progress
        moved = progress.total_moved if progress else pace.moved
        written = progress.total_written if progress else pace.written
        ratio = f" ({written / moved:.1f}x)" if moved else ""
        score = f"score {self._before:,.0f} -> {self._now.score:,.0f}"
        return f"{format_size(moved)} moved, {format_size(written)} written{ratio}, {score}"

    def _bars(self) -> Table:
        """The block group, the budget if there is one, and what all came to so far."""
        grid = Table.grid(padding=(0, 2), pad_edge=False)
        now, pace = self._now, self._pace
        if now.group and pace:
            share, words = pace.step_share(now.progress)
            grid.add_row("moving", self._bar(share, "green"), words, _about(pace.step_left(now.progress)))
        if pace:
            moved = now.progress.total_moved if now.progress else pace.moved
            share, words = pace.share(moved, time.monotonic())
            if share is not None:
                grid.add_row("in all", self._bar(share, "cyan"), words, _about(pace.left(moved, time.monotonic())))
        return grid

    def _bar(self, share: float, style: str) -> ProgressBar:
        width = max(6, min(_WIDEST_BAR, self.console.width - _BESIDE))
        return ProgressBar(total=1.0, completed=share, width=width, complete_style=style, finished_style=style)


def _about(seconds: float | None) -> str:
    return f"about {format_duration(seconds) if seconds >= 10 else f'{math.ceil(seconds)}s'} left" if seconds is not None else ""


def _head(group: PlannedBlockGroup) -> Text:
    score = Text(f"score {group.score:,.1f}", style="red" if group.score > BAD else "")
    text = Text.assemble((f"{group.number}: block group {group.vaddr}", "bold"), "  ", score)
    text.append(f"  {format_size(group.used)} used of {format_size(group.length)} in {counted(group.cost.extents, 'extent')}")
    return text


def _map(group: PlannedBlockGroup, console: Console, *, blocks: bool) -> list[Text]:
    """The map, two or four lines of text. With colours its brightness says how much of each spot is used."""
    if group.shares is None:
        return []
    width = _WIDE if console.width >= _WIDE + 2 else _SLIM
    coloured = blocks and console.color_system is not None
    paint = (lambda character, upper, lower: click.style(character, fg=upper, bg=lower)) if coloured else None
    text = rows(group.shares, width, paint, HALVES if blocks else ASCII)
    edge = "▏▕" if blocks else "||"
    return [Text.assemble(edge[0], Text.from_ansi(line), edge[1]) for line in text]
