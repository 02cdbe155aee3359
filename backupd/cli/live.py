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
from btrkeep.units import format_duration, format_size, printable

_PAUSE = 0.25


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
        table = Table.grid(padding=(0, 2))
        for justify in ("left", "left", "right", "right", "right", "right"):
            table.add_column(justify=justify, no_wrap=True, overflow="ellipsis")
        for running in self.running.values():
            share = running.share
            table.add_row(
                Text(printable(running.host), style="bold"),
                Text(printable(running.path)),
                Text(f"{running.files:,} files"),
                Text(format_size(running.bytes)),
                Text(f"{format_size(round(running.rate))}/s"),
                Text(f"{share:.0%}" if share is not None else "first copy"),
            )
        return Group(table, self._overall())

    def _overall(self) -> Table:
        done = len(self.results) + sum(running.share or 0.0 for running in self.running.values())
        line = Table.grid(padding=(0, 2))
        line.add_row(
            ProgressBar(total=max(1, self.hosts), completed=done, width=max(10, min(40, self.console.width - 50))),
            Text(f"{len(self.results)} of {self.hosts} hosts"),
            Text(self._time_left(done)),
        )
        return line

    def _time_left(self, done: float) -> str:
        spent = time.monotonic() - self.begun
        if done < 0.05 or spent < 2:
            return "time left unknown"
        return f"about {format_duration(max(1.0, spent / done * (self.hosts - done)))} left"
