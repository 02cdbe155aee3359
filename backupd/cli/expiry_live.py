"""The live display of an expiry on a terminal."""

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from backupd.cli.expiry_view import plan_notices, summary_lines
from backupd.expire.report import ExpiryProgress, Summary
from btrkeep.cli.progress import terminal
from btrkeep.decisions.expiry_plan import Plan
from btrkeep.units import counted, format_duration, printable

_WIDEST_BAR = 40


class LiveWatcher:
    """A bar of deletions and one of the cleaner's queue; what is worth saying scrolls away above."""

    def __init__(self) -> None:
        self.console = Console(file=terminal(), highlight=False)
        self._live: Live | None = None

    def begin(self, plan: Plan) -> None:
        """The plan is made."""
        for text in plan_notices(plan):
            self.notice(text)
        if plan.count("delete") and not plan.stop:
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()

    def progress(self, now: ExpiryProgress) -> None:
        """Draws it anew."""
        if self._live:
            self._live.update(self._picture(now), refresh=True)

    def batch(self, now: ExpiryProgress) -> None: ...

    def notice(self, text: str) -> None:
        """Something worth saying."""
        self.console.print(Text(printable(text), style="cyan"))

    def end(self, summary: Summary) -> None:
        """It is over."""
        if self._live:
            self._live.stop()
            self._live = None
        for number, line in enumerate(summary_lines(summary)):
            self.console.print(Text(printable(line), style="" if number else "bold"))

    def _picture(self, now: ExpiryProgress) -> Group:
        rate = f"{now.rate:.3g}/s" if now.rate else ""
        left = "time left unknown" if now.left is None else f"about {format_duration(now.left)} left"
        table = Table.grid(padding=(0, 2), pad_edge=False)
        done = f"{now.deleted:,} of {counted(now.planned, 'backup')}"
        table.add_row(Text("deleted"), self._bar(now.deleted, now.planned, "green"), Text(done), Text(left))
        waiting = f"{now.waiting:,} of at most {now.most:,} waiting"
        table.add_row(Text("cleaner"), self._bar(now.waiting, now.most, "cyan"), Text(waiting), Text(rate))
        return Group(table, Text(f"paused: {now.paused}" if now.paused else "", style="yellow"))

    def _bar(self, done: int, of: int, style: str) -> ProgressBar:
        width = max(10, min(_WIDEST_BAR, self.console.width - 60))
        return ProgressBar(total=max(1, of), completed=done, width=width, complete_style=style, finished_style=style)
