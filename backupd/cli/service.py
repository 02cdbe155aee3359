"""Watchers of runs and expiries that pass everything on to another one, and tell systemd in one line how far it is."""

import time
from collections.abc import Sequence

from backupd.cli.expiry_view import progress_line
from backupd.cli.observers import summary_line
from backupd.expire.report import ExpiryObserver, ExpiryProgress, Summary, names_in_words
from backupd.run.context import HostResult, NightObserver, RunningTransfer
from btrkeep.decisions.expiry_plan import Plan
from btrkeep.process.service import Status
from btrkeep.units import counted, format_duration


class NotifyingObserver:
    """Of a run: how many hosts are done, who is under way, what became of them."""

    def __init__(self, shown: NightObserver) -> None:
        self._shown, self._status = shown, Status()
        self._hosts, self._begun = 0, time.monotonic()
        self._running: dict[str, None] = {}
        self._results: list[HostResult] = []

    def begin(self, hosts: Sequence[str]) -> None:
        """The run begins."""
        self._hosts = len(hosts)
        self._status.say(f"backing up {counted(len(hosts), 'host')}" if hosts else "nothing is due")
        self._shown.begin(hosts)

    def started(self, running: RunningTransfer) -> None:
        """A host's transfer begins."""
        self._running[running.host] = None
        self._status.say(self._line())
        self._shown.started(running)

    def finished(self, result: HostResult) -> None:
        """A host is done."""
        self._running.pop(result.host, None)
        self._results.append(result)
        self._status.say(self._line())
        self._shown.finished(result)

    def notice(self, text: str) -> None:
        """Something worth saying, but no state."""
        self._shown.notice(text)

    def end(self, *, trouble: bool = False) -> None:
        """The run is over."""
        self._status.say(summary_line(self._results, self._hosts, time.monotonic() - self._begun, trouble))
        self._shown.end(trouble=trouble)

    def _line(self) -> str:
        wrong = sum(not result.good for result in self._results)
        parts = [f"{len(self._results)} of {counted(self._hosts, 'host')} done"]
        if wrong:
            parts.append(f"{wrong} not complete")
        if self._running:
            parts.append(f"under way: {names_in_words(list(self._running))}")
        return ", ".join(parts)


class NotifyingWatcher:
    """Of an expiry: how many are deleted, how many wait for the cleaner, why it pauses."""

    def __init__(self, shown: ExpiryObserver) -> None:
        self._shown, self._status = shown, Status()

    def begin(self, plan: Plan) -> None:
        """The plan is made."""
        self._status.say(f"{counted(plan.count('delete'), 'backup')} to delete, {plan.count('mark'):,} to mark as expired")
        self._shown.begin(plan)

    def progress(self, now: ExpiryProgress) -> None:
        """How far it is."""
        self._status.go_on(lambda: progress_line(now))
        self._shown.progress(now)

    def batch(self, now: ExpiryProgress) -> None:
        """A batch is deleted."""
        self._shown.batch(now)

    def notice(self, text: str) -> None:
        """Something worth saying, but no state."""
        self._shown.notice(text)

    def end(self, summary: Summary) -> None:
        """It is over."""
        self._status.say(f"{summary.outcome}: {summary.deleted:,} deleted in {format_duration(summary.seconds)}")
        self._shown.end(summary)
