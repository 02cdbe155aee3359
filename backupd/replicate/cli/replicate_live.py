"""The live display of a replication on a terminal."""

import time

from rich.console import Group
from rich.text import Text

from backupd.replicate.cli.replicate_lines import fetched_line, plan_line
from backupd.replicate.outcome import FetchedBackup, HostFailed, ReplicationEvent, ReplicationPlan, ReplicationProgress
from btrkeep.cli.live import LiveDisplay
from btrkeep.cli.output import WithoutRepeats
from btrkeep.process.progress import Notice, Waiting
from btrkeep.units import format_duration, format_size, names_in_words, printable


class ReplicationDisplay(LiveDisplay):
    """Shows a bar of the backups with the time left, one of the announced bytes, and the hosts that are being fetched."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = time.monotonic()
        self._now: ReplicationProgress | None = None
        self._why = ""
        self._waits = WithoutRepeats(lambda text: self.line(text, "yellow"))

    def __call__(self, event: ReplicationEvent) -> None:
        """Redraws the display below the printed lines."""
        match event:
            case ReplicationPlan():
                if event.count:
                    self.line(plan_line(event))
                    self.open()
            case FetchedBackup():
                self._why = ""
                self.line(fetched_line(event))
            case ReplicationProgress():
                self._now = event
                self.draw()
            case Notice():
                self.line(printable(event.text), "cyan")
            case Waiting():
                self._why = printable(event.why)
                self._waits(f"waits: {self._why}")
                self.draw()
            case HostFailed():
                self.line(f"{event.host}: {printable(event.error)}", "red")

    def picture(self) -> Group:
        """Returns an empty picture before the first reading."""
        now = self._now
        if now is None:
            return Group()
        seconds = max(0.001, time.monotonic() - self._begun)
        left = f"about {format_duration(seconds / now.done * (now.planned - now.done))} left" if now.done else "time left unknown"
        announced = f" of {format_size(now.announced)} announced" if now.announced > now.bytes else ""
        size = format_size(now.bytes) + announced
        table = self.bars(
            ("backups", now.done, now.planned, "green", f"{now.done:,} of {now.planned:,}", left),
            ("bytes", now.bytes, now.announced, "cyan", size, f"{format_size(round(now.bytes / seconds))}/s"),
        )
        at = f"fetching {names_in_words(now.hosts)}" if now.hosts else ""
        return Group(table, Text(f"waits: {self._why}" if self._why else at, style="yellow" if self._why else ""))
