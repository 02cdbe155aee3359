"""The live display of an expiry on a terminal."""

from rich.console import Group
from rich.text import Text

from backupd.expire.cli.expiry_view import plan_notices, summary_lines
from backupd.expire.report import PAUSES, ExpiryEvent, ExpiryProgress, Summary
from btrkeep.cli.live import LiveDisplay
from btrkeep.decisions.expiry_plan import Plan
from btrkeep.process.progress import Notice
from btrkeep.units import counted, format_duration, printable


class ExpiryDisplay(LiveDisplay):
    """Shows a bar of the deletions and one of the cleaner's queue; messages scroll above them."""

    def __init__(self) -> None:
        super().__init__()
        self._now: ExpiryProgress | None = None

    def __call__(self, event: ExpiryEvent) -> None:
        """Redraws the display below the printed lines."""
        match event:
            case Plan():
                for text in plan_notices(event):
                    self.line(printable(text), "cyan")
                if event.count("delete") and not event.stop:
                    self.open()
            case ExpiryProgress():
                self._now = event
                self.draw()
            case Notice():
                self.line(printable(event.text), "cyan")
            case Summary():
                self.close()
                for number, line in enumerate(summary_lines(event)):
                    self.line(printable(line), "" if number else "bold")

    def picture(self) -> Group:
        """Returns nothing until the progress is known."""
        now = self._now
        if now is None:
            return Group()
        rate = f"{now.rate:.3g}/s" if now.rate else ""
        left = "time left unknown" if now.left is None else f"about {format_duration(now.left)} left"
        table = self.bars(
            ("deleted", now.deleted, now.planned, "green", f"{now.deleted:,} of {counted(now.planned, 'backup')}", left),
            ("cleaner", now.waiting, now.most, "cyan", f"{now.waiting:,} of at most {now.most:,} waiting", rate),
        )
        return Group(table, Text(f"paused: {PAUSES[now.paused]}" if now.paused else "", style="yellow"))
