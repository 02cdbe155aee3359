"""The live display of a run on a terminal."""

import asyncio
import time

from rich.console import Group
from rich.table import Table
from rich.text import Text

from backupd.run.cli.night_view import COLOURS, NightTally, RepeatedErrors, result_line
from backupd.run.run_context import HostResult, NightEnded, NightEvent, NightStarted, RunningTransfer
from btrkeep.cli.live import LiveDisplay
from btrkeep.cli.output import with_calls
from btrkeep.process.progress import Notice
from btrkeep.units import counted, format_duration, format_size, printable

_PAUSE = 0.25
_LONGEST_HOST = 20
_PATH = 1
# Minimum column widths, so that columns do not move when numbers grow: host, path, files, bytes, rate, share.
_LEAST = (0, 0, 12, 8, 10, 4)
_FIRST = "first copy"


class NightDisplay(LiveDisplay):
    """Shows one line per running transfer and a bar for all; finished hosts scroll up above them."""

    def __init__(self) -> None:
        super().__init__()
        self.tally, self._repeated = NightTally(), RepeatedErrors()
        self._task: asyncio.Task[None] | None = None

    def __call__(self, event: NightEvent) -> None:
        """Prints finished hosts. The display is redrawn regularly."""
        self.tally.take(event)
        match event:
            case NightStarted() if event.hosts:
                self.open()
                self._task = asyncio.create_task(self._refresh())
            case HostResult() if not self._repeated.is_repeated(event):
                self.line(result_line(event), COLOURS.get(event.outcome, ""))
            case Notice():
                self.line(printable(event.text), "cyan")
            case NightEnded():
                if self._task:
                    self._task.cancel()
                self.close()
                for line in self._repeated.lines():
                    self.line(with_calls(line))
                self.line(self.tally.summary(event), "bold")

    async def _refresh(self) -> None:
        while True:
            self.draw()
            await asyncio.sleep(_PAUSE)

    def picture(self) -> Group:
        """Shows the running transfers and the progress of the run."""
        rows = [_cells(running) for running in self.tally.running.values()]
        widths = [max(least, *(len(row[column]) for row in rows)) if rows else 0 for column, least in enumerate(_LEAST)]
        widths[0] = min(widths[0], _LONGEST_HOST)
        room = self.console.width - sum(widths[:1] + widths[2:]) - 2 * (len(widths) - 1)
        table = Table.grid(padding=(0, 2), pad_edge=False)
        for column, width in enumerate(widths):
            least = min(width, max(0, room)) if column == _PATH else width
            table.add_column(justify="left" if column <= _PATH else "right", no_wrap=True, overflow="ellipsis", min_width=least)
        for host, path, *numbers in rows:
            table.add_row(Text(host, style="bold"), Text(_tail(path, room)), *map(Text, numbers))
        return Group(table, self._overall())

    def _overall(self) -> Table:
        tally = self.tally
        done = len(tally.results) + sum(running.share or 0.0 for running in self.tally.running.values())
        line = Table.grid(padding=(0, 2))
        line.add_row(
            self.bar(done, max(1, tally.hosts), widest=40, beside=50, style="cyan", finished="green"),
            Text(f"{len(tally.results)} of {counted(tally.hosts, 'host')}"),
            Text(self._time_left(done)),
        )
        return line

    def _time_left(self, done: float) -> str:
        spent = time.monotonic() - self.tally.begun
        if done < 0.05 or spent < 5:
            return "time left unknown"
        minutes = spent / done * (self.tally.hosts - done) / 60  # minutes only: a rough estimate
        return "about a minute left" if minutes < 1.5 else f"about {format_duration(round(minutes) * 60)} left"


def _cells(running: RunningTransfer) -> tuple[str, ...]:
    share = running.share
    return (
        printable(running.host),
        printable(running.path),
        counted(running.files, "name"),
        format_size(running.bytes),
        f"{format_size(round(running.rate))}/s",
        f"{share:.0%}" if share is not None else _FIRST,
    )


def _tail(path: str, room: int) -> str:
    """Returns the end of a path, which is more useful than its start; "" if the terminal has no space."""
    return path if len(path) <= room else f"…{path[len(path) - room + 1 :]}" if room >= 8 else ""
