"""The live display of a run on a terminal."""

import asyncio
import time
from collections.abc import Sequence

from rich.console import Console, Group, JustifyMethod
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from backupd.cli.observers import COLOURS, result_line, summary_line
from backupd.site import HostResult, Running
from btrkeep.units import counted, format_duration, format_size, printable

_PAUSE = 0.25
# Of fixed width, so that nothing jumps when a number grows; a path gives way when the terminal is narrow.
_COLUMNS: tuple[tuple[str, JustifyMethod, int | None], ...] = (
    ("host", "left", None),
    ("path", "left", None),
    ("files", "right", 13),
    ("bytes", "right", 8),
    ("rate", "right", 10),
    ("share", "right", 10),
)
_LONGEST_HOST = 20


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
        hosts = max((len(printable(host)) for host in self.running), default=0)
        for name, justify, width in _COLUMNS:
            least = min(hosts, _LONGEST_HOST) if name == "host" else width
            table.add_column(justify=justify, no_wrap=True, overflow="ellipsis", min_width=least)
        for running in self.running.values():
            share = running.share
            table.add_row(
                Text(printable(running.host), style="bold"),
                Text(printable(running.path)),
                Text(f"{running.files:,} file{'s' if running.files != 1 else ''}"),
                Text(format_size(running.bytes)),
                Text(f"{format_size(round(running.rate))}/s"),
                Text(f"{share:.0%}" if share is not None else "first copy"),
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
