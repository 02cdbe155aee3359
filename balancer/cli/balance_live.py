"""The live display of a run of balances on a terminal: the finished share, and the time left."""

import math
import time
from datetime import UTC, datetime

import click
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from balancer.cli.run_view import begin_line, report_lines, step_line, stopping_line
from balancer.cli.score_view import has_blocks
from balancer.explain import ASCII, HALVES, rows
from balancer.run_types import (
    INTENDED,
    BalanceEvent,
    BalanceOutcome,
    BalanceProgress,
    BalanceStarted,
    Cancelling,
    PlannedBlockGroup,
    Report,
    RunSettings,
    StepDone,
)
from balancer.score import BAD
from btrkeep.cli.live import LiveDisplay
from btrkeep.process.progress import Notice, Waiting
from btrkeep.units import counted, format_duration, format_given, format_size, printable

_LEAST = 5.0
"""Minimum seconds of balancing for an estimate from this run's own rate."""
_NEARLY = 0.95


class RunPace:
    """Follows a run: its progress is that of the limit that will be reached first.

    A budget limits bytes, time and window limit seconds; without any of them, the number of block groups worth balancing counts.
    """

    def __init__(self, settings: RunSettings, now: float, today: datetime | None = None) -> None:
        self._settings, self._begun = settings, now
        ends = [settings.time] if settings.time is not None else []
        if settings.until is not None:
            ends.append((settings.until - (today or datetime.now(UTC))).total_seconds())
        self._seconds = max(0.0, min(ends)) if ends else None
        self._group: PlannedBlockGroup | None = None
        self._busy = 0.0
        self._done = self._worth = 0
        self.moved = self.written = 0

    def step_begins(self, group: PlannedBlockGroup) -> None:
        """Records that this block group has started."""
        self._group, self._worth = group, group.candidates

    def step_ends(self, done: StepDone) -> None:
        """Records the end of a step."""
        self._busy += done.seconds
        self.moved, self.written = self.moved + done.moved, self.written + done.written
        self._done += 1
        self._worth, self._group = max(0, self._worth - 1), None

    def step_share(self, progress: BalanceProgress | None) -> tuple[float, str]:
        """Returns the finished share of the current block group, from 0 to 1, and its description.

        The kernel shows no progress while it copies, so the bar then follows the estimated time, nearly to its end.
        """
        if self._group is None:
            return 0.0, ""
        used, seconds = self._group.used, progress.seconds if progress else 0.0
        moved = max(0, used - progress.left) if progress else 0
        by_time = min(_NEARLY, seconds / self._group.estimate.seconds) if self._group.estimate.seconds > 0 else 0.0
        words = f"{format_size(moved)} of {format_size(used)}" if moved else f"copying {format_size(used)}"
        return max(by_time, moved / used if used else 1.0), words

    def step_left(self, progress: BalanceProgress | None) -> float | None:
        """Returns the seconds left for the present block group, by its estimate; None if it takes longer than that."""
        if self._group is None:
            return None
        left = self._group.estimate.seconds - (progress.seconds if progress else 0.0)
        return left if left > 0 else None

    def share(self, moved: int, now: float) -> tuple[float, str]:
        """Returns the finished share of the run, from 0 to 1, and the same in words. `moved`: bytes so far."""
        shares = []
        if budget := self._settings.budget:
            shares.append((moved / budget, f"{format_size(moved)} of {format_given(budget)}"))
        if self._seconds:
            spent = now - self._begun
            shares.append((spent / self._seconds, f"{format_duration(spent)} of {format_duration(self._seconds)}"))
        if not shares:
            of = self._done + self._worth
            shares.append((self._done / of if of else 0.0, f"{self._done:,} of {counted(of, 'block group')}"))
        share, words = max(shares)
        return min(1.0, share), words

    def left(self, moved: int, now: float) -> float | None:
        """Returns the seconds until the run ends, None if still unknown."""
        limits = []
        spent = now - self._begun
        if self._seconds is not None:
            limits.append(max(0.0, self._seconds - spent))
        if spent >= _LEAST and moved and self._settings.budget is not None:
            limits.append(max(0, self._settings.budget - moved) * spent / moved)
        if self._done and self._busy >= _LEAST:
            limits.append(self._worth * self._busy / self._done)
        return min(limits, default=None)


_WIDE, _SLIM = 64, 32
_WIDEST_BAR, _BESIDE = 30, 46
_PAPER = 100
_COLOURS = {
    BalanceOutcome.NO_SPACE: "yellow",
    BalanceOutcome.FAILED: "red",
    BalanceOutcome.CANCELLED: "yellow",
    BalanceOutcome.GONE: "cyan",
}


class BalanceDisplay(LiveDisplay):
    """Shows the current block group with its map, and bars for it and for the budget; finished ones scroll up above them."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks = has_blocks()
        self._group: PlannedBlockGroup | None = None
        self._progress: BalanceProgress | None = None
        self._waits = ""
        self._cancelling: Cancelling | None = None
        self._before = self._score = 0.0
        self._pace: RunPace | None = None

    def __call__(self, event: BalanceEvent) -> None:
        """Redraws the display below the finished lines."""
        match event:
            case BalanceStarted():
                self._before = self._score = event.numbers.score
                self._pace = RunPace(event.settings, time.monotonic())
                self.line(begin_line(event.numbers, event.settings))
                self.open()
            case PlannedBlockGroup():
                self._group, self._progress, self._waits = event, None, ""
                if self._pace:
                    self._pace.step_begins(event)
            case BalanceProgress():
                self._progress = event
            case StepDone():
                self._group, self._progress, self._score = None, None, event.score
                if self._pace:
                    self._pace.step_ends(event)
                self.line(step_line(event, longest=self.console.width), _COLOURS.get(event.outcome, ""))
            case Waiting():
                self._waits = event.why
            case Cancelling():
                self._cancelling = event
            case Notice():
                self.line(f"note: {printable(event.text)}", "cyan")
            case Report():
                self.close()
                *lines, last = report_lines(event, min(self.console.width, _PAPER))
                for line in lines:
                    self.line(line)
                self.line(last, "" if event.reason in INTENDED else "yellow")
        self.draw()

    def picture(self) -> Group:
        """Returns the part that remains below the finished lines."""
        parts: list[RenderableType] = [""]
        if self._group:
            parts += [_head(self._group), *_map(self._group, self.console, blocks=self._blocks)]
        parts.append(self._bars())
        if self._pace:
            parts.append(Text(self._so_far(self._pace), style="dim"))
        if self._cancelling:
            parts.append(Text(stopping_line(self._cancelling), style="yellow"))
        elif not self._group and not self._waits:
            parts.append(Text("reading the free space", style="dim"))
        elif self._waits:
            parts.append(Text(f"waiting: {printable(self._waits)}", style="yellow"))
        return Group(*parts)

    def _so_far(self, pace: RunPace) -> str:
        """Formats bytes moved and written, and the score before and now. The end may be truncated, so the newest numbers come
        first.
        """
        progress = self._progress
        moved = progress.total_moved if progress else pace.moved
        written = progress.total_written if progress else pace.written
        ratio = f" ({written / moved:.1f}x)" if moved else ""
        score = f"score {self._before:,.0f} -> {self._score:,.0f}"
        return f"{format_size(moved)} moved, {format_size(written)} written{ratio}, {score}"

    def _bars(self) -> Table:
        """The block group, the budget if there is one, and the totals so far."""
        grid = Table.grid(padding=(0, 2), pad_edge=False)
        pace, progress = self._pace, self._progress
        if self._group and pace:
            share, words = pace.step_share(progress)
            grid.add_row("moving", self._bar(share, "green"), words, _about(pace.step_left(progress)))
        if pace:
            moved = progress.total_moved if progress else pace.moved
            share, words = pace.share(moved, time.monotonic())
            grid.add_row("in all", self._bar(share, "cyan"), words, _about(pace.left(moved, time.monotonic())))
        return grid

    def _bar(self, share: float, style: str) -> ProgressBar:
        return self.bar(share, 1.0, widest=_WIDEST_BAR, beside=_BESIDE, style=style)


def _about(seconds: float | None) -> str:
    return f"about {format_duration(seconds) if seconds >= 10 else f'{math.ceil(seconds)}s'} left" if seconds is not None else ""


def _head(group: PlannedBlockGroup) -> Text:
    score = Text(f"score {group.score:,.1f}", style="red" if group.score > BAD else "")
    text = Text.assemble((f"{group.number}: block group {group.vaddr}", "bold"), "  ", score)
    text.append(f"  {format_size(group.used)} used of {format_size(group.length)} in {counted(group.cost.extents, 'extent')}")
    return text


def _map(group: PlannedBlockGroup, console: Console, *, blocks: bool) -> list[Text]:
    """Returns the map, two or four lines of text. With colours, brightness shows how much of each cell is used."""
    if group.shares is None:
        return []
    width = _WIDE if console.width >= _WIDE + 2 else _SLIM
    coloured = blocks and console.color_system is not None
    paint = (lambda character, upper, lower: click.style(character, fg=upper, bg=lower)) if coloured else None
    text = rows(group.shares, width, paint, HALVES if blocks else ASCII)
    edge = "▏▕" if blocks else "||"
    return [Text.assemble(edge[0], Text.from_ansi(line), edge[1]) for line in text]
