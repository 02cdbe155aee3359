"""Who is told of a run when nobody watches a terminal: one line per event, or JSON at the end."""

import time
from collections.abc import Sequence
from typing import Any

from backupd.run.context import HostResult, RunningTransfer
from btrkeep.cli.progress import say
from btrkeep.units import counted, format_duration, format_size, printable

COLOURS = {"complete": "green", "skipped": "cyan", "locked": "yellow", "partial": "yellow", "suspect": "yellow", "failed": "red"}


def result_line(result: HostResult) -> str:
    """One host's end in one line, without colour."""
    parts = [f"{result.host}: {result.outcome}"]
    if result.files is not None:
        sizes = f"{format_size(result.bytes)}, {format_size(result.new_bytes)} new"
        parts.append(f"{counted(result.files, 'file')}, {sizes}, {format_duration(result.seconds)}")
    if result.name:
        parts.append(result.name)
    if result.error:
        parts.append(printable(result.error))
    if result.warnings:
        parts.append(f"{counted(len(result.warnings), 'warning')}: {printable(result.warnings[0])}")
    return "; ".join(parts)


def summary_line(results: Sequence[HostResult], hosts: int, seconds: float, trouble: bool) -> str:
    """The whole run in one line; `hosts`: how many it was to back up, which are more than have a result when something ended it.

    `trouble`: an error is told besides, or that hosts wait for their windows, after which nobody believes that nothing was due.
    """
    if not hosts:
        return "no host was backed up" if trouble else "nothing was due"
    counts = {outcome: sum(result.outcome == outcome for result in results) for outcome in COLOURS}
    counts["not started"] = hosts - len(results)
    told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
    new = sum(result.new_bytes or 0 for result in results)
    return f"{told}; {format_size(new)} new in {format_duration(seconds)}"


def as_json_object(result: HostResult) -> dict[str, Any]:
    """One host's result for --json."""
    return {
        "host": result.host,
        "outcome": result.outcome,
        "name": result.name,
        "files": result.files,
        "bytes": result.bytes,
        "new_bytes": result.new_bytes,
        "seconds": round(result.seconds, 3),
        "attempts": result.attempts,
        "warnings": list(result.warnings),
        "error": result.error,
    }


class NightLines:
    """One line per event: for a pipe, a file or the journal."""

    def __init__(self) -> None:
        self.results: list[HostResult] = []
        self.hosts = 0
        self.begun = time.monotonic()

    def begin(self, hosts: Sequence[str]) -> None:
        """The run begins."""
        self.hosts = len(hosts)
        if hosts:
            say(f"backing up {counted(len(hosts), 'host')}")

    def started(self, running: RunningTransfer) -> None:
        """A host's transfer begins."""
        say(f"{running.host}: started")

    def finished(self, result: HostResult) -> None:
        """A host is done."""
        self.results.append(result)
        say(f"[{len(self.results)}/{self.hosts}] {result_line(result)}")

    def notice(self, text: str) -> None:
        """Something worth saying."""
        say(f"note: {printable(text)}")

    def end(self, *, trouble: bool = False) -> None:
        """The run is over."""
        say(summary_line(self.results, self.hosts, time.monotonic() - self.begun, trouble))


class NightJson:
    """Says nothing while it goes on; the results are printed as JSON at the end, notices on standard error."""

    def begin(self, hosts: Sequence[str]) -> None: ...
    def started(self, running: RunningTransfer) -> None: ...
    def finished(self, result: HostResult) -> None: ...
    def end(self, *, trouble: bool = False) -> None: ...

    def notice(self, text: str) -> None:
        """Something worth saying."""
        say(f"note: {printable(text)}", err=True)
