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
from backupd.site import HostResult, Running
from btrkeep.units import counted, format_duration, format_size, printable

_PAUSE = 0.25
_LONGEST_HOST = 20
_NUMBERS = (12, 8, 10)  # files, bytes, rate: of fixed width, so that nothing jumps when one grows
_FIRST = "first copy"


class LiveObserver:
    """One line per running transfer and a bar for all; what has ended scrolls away above."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self.results: list[HostResult] = []
        self.running: dict[str, Running] = {}
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

    def started(self, running: Running) -> None:
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

    def end(self) -> None:
        """The run is over."""
        if self._task:
            self._task.cancel()
        if self._live:
            self._live.stop()
            self._live = None
        self.console.print(Text(summary_line(self.results, time.monotonic() - self.begun), style="bold"))

    def _picture(self) -> Group:
        running = list(self.running.values())
        shares = [f"{seen:.0%}" if (seen := each.share) is not None else _FIRST for each in running]
        hosts = min(_LONGEST_HOST, max((len(printable(each.host)) for each in running), default=0))
        widths = (hosts, *_NUMBERS, len(_FIRST) if _FIRST in shares else 4)
        room = self.console.width - sum(widths) - 2 * len(widths)
        table = Table.grid(padding=(0, 2))
        for width in (widths[0], None, *widths[1:]):
            table.add_column(
                justify="left" if width in (hosts, None) else "right", no_wrap=True, overflow="ellipsis", min_width=width
            )
        for each, share in zip(running, shares, strict=True):
            table.add_row(
                Text(printable(each.host), style="bold"),
                Text(_tail(printable(each.path), room)),
                Text(counted(each.files, "file")),
                Text(format_size(each.bytes)),
                Text(f"{format_size(round(each.rate))}/s"),
                Text(share),
            )
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


def _tail(path: str, room: int) -> str:
    """The end of a path says more than its beginning; on a terminal without room for it, nothing."""
    return path if len(path) <= room else f"…{path[len(path) - room + 1 :]}" if room >= 8 else ""
