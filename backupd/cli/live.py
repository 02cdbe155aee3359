"""The live display of a run on a terminal."""

import asyncio
import time
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from backupd.cli.observers import COLOURS, result_line, summary_line
from backupd.run.context import HostResult, RunningTransfer
from btrkeep.cli.progress import terminal
from btrkeep.units import counted, format_duration, format_size, printable

_PAUSE = 0.25
_LONGEST_HOST = 20
_PATH = 1
# How wide the columns are at least, so that nothing jumps when a number grows: host, path, files, bytes, rate, share.
_LEAST = (0, 0, 12, 8, 10, 4)
_FIRST = "first copy"


class NightDisplay:
    """One line per running transfer and a bar for all; what has ended scrolls away above."""

    def __init__(self) -> None:
        self.console = Console(file=terminal(), highlight=False)
        self.results: list[HostResult] = []
        self.running: dict[str, RunningTransfer] = {}
        self.hosts = 0
        self.begun = time.monotonic()
        self._live: Live | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self, hosts: Sequence[str]) -> None:
        """The run begins."""
        self.hosts = len(hosts)
        self.begun = time.monotonic()
        if hosts:
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()
            self._task = asyncio.create_task(self._refresh())

    async def _refresh(self) -> None:
        while self._live:
            self._live.update(self._picture(), refresh=True)
            await asyncio.sleep(_PAUSE)

    def started(self, running: RunningTransfer) -> None:
        """A host's transfer begins."""
        self.running[running.host] = running

    def finished(self, result: HostResult) -> None:
        """A host is done."""
        self.running.pop(result.host, None)
        self.results.append(result)
        self.console.print(Text(result_line(result), style=COLOURS.get(result.outcome, "")))

    def notice(self, text: str) -> None:
        """Something worth saying."""
        self.console.print(Text(printable(text), style="cyan"))

    def end(self, *, trouble: bool = False) -> None:
        """The run is over."""
        if self._task:
            self._task.cancel()
        if self._live:
            self._live.stop()
            self._live = None
        self.console.print(Text(summary_line(self.results, self.hosts, time.monotonic() - self.begun, trouble), style="bold"))

    def _picture(self) -> Group:
        rows = [_cells(running) for running in self.running.values()]
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
        done = len(self.results) + sum(running.share or 0.0 for running in self.running.values())
        line = Table.grid(padding=(0, 2))
        line.add_row(
            ProgressBar(
                total=max(1, self.hosts),
                completed=done,
                width=max(10, min(40, self.console.width - 50)),
                complete_style="cyan",
                finished_style="green",
            ),
            Text(f"{len(self.results)} of {counted(self.hosts, 'host')}"),
            Text(self._time_left(done)),
        )
        return line

    def _time_left(self, done: float) -> str:
        spent = time.monotonic() - self.begun
        if done < 0.05 or spent < 5:
            return "time left unknown"
        minutes = spent / done * (self.hosts - done) / 60  # names seen say little of bytes to come: no seconds
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
    """The end of a path says more than its beginning; on a terminal without room for it, nothing."""
    return path if len(path) <= room else f"…{path[len(path) - room + 1 :]}" if room >= 8 else ""
