"""A run without a terminal: one line per event, JSON at the end, and the status line of `systemctl status`."""

import time
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from backupd.run.run_context import HostResult, NightEnded, NightEvent, NightStarted, RunningTransfer
from btrkeep.cli.output import say
from btrkeep.decisions.cause_words import MANY_ALIKE, without_host
from btrkeep.process.progress import Notice, Status
from btrkeep.units import counted, format_duration, format_size, names_in_words, printable

COLOURS = {"complete": "green", "skipped": "cyan", "locked": "yellow", "partial": "yellow", "suspect": "yellow", "failed": "red"}
_JSON = (*(field.name for field in fields(HostResult) if field.name != "error"), "error")


def result_line(result: HostResult) -> str:
    """Returns the result of one host in one line, without colour."""
    parts = [f"{result.host}: {result.outcome}"]
    if result.files is not None:
        sizes = f"{format_size(result.bytes)}, {format_size(result.new_bytes)} new"
        if result.shared_bytes:
            sizes += f", {format_size(result.shared_bytes)} shared"
        parts.append(f"{counted(result.files, 'file')}, {sizes}, {format_duration(result.seconds)}")
    if result.name:
        parts.append(result.name)
    if result.error:
        parts.append(printable(result.error))
    if result.warnings:
        parts.append(f"{counted(len(result.warnings), 'warning')}: {printable(result.warnings[0])}")
    return "; ".join(parts)


def summary_line(results: Sequence[HostResult], hosts: int, seconds: float, problem: bool) -> str:
    """Returns the whole run in one line. `hosts`: how many were to be backed up, more than there are results if it ended early.
    `problem`: another error is reported, or hosts wait for their windows, so that "nothing was due" would be wrong.
    """
    if not hosts:
        return "no host was backed up" if problem else "nothing was due"
    counts = {outcome: sum(result.outcome == outcome for result in results) for outcome in COLOURS}
    counts["not started"] = hosts - len(results)
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
    new = sum(result.new_bytes or 0 for result in results)
    return f"{outcomes}; {format_size(new)} new in {format_duration(seconds)}"


def result_fields(result: HostResult) -> dict[str, Any]:
    """Returns one host's result for --json."""
    fields = {name: getattr(result, name) for name in _JSON}
    return fields | {"seconds": round(result.seconds, 3), "warnings": result.warnings}


class RepeatedErrors:
    """Leaves out hosts with the same error as several others; one line at the end has them all."""

    def __init__(self) -> None:
        self._hosts: dict[tuple[str, str], list[str]] = {}
        self._errors: dict[tuple[str, str], str] = {}

    def is_repeated(self, result: HostResult) -> bool:
        """Takes one more result. Returns True if many hosts before it have ended in the same way."""
        if not result.error:
            return False
        key = result.outcome, without_host(result.error, result.host)
        self._errors.setdefault(key, result.error)
        hosts = self._hosts.setdefault(key, [])
        hosts.append(printable(result.host))
        return len(hosts) >= MANY_ALIKE

    def lines(self) -> list[str]:
        """Returns one line for each error that many hosts have."""
        return [
            f"{counted(len(hosts), 'host')}: {key[0]}; {printable(self._errors[key])} ({names_in_words(hosts)}); "
            "`backupd status` shows their state"
            for key, hosts in self._hosts.items()
            if len(hosts) >= MANY_ALIKE
        ]


class NightTally:
    """The state of a run according to its events so far."""

    def __init__(self) -> None:
        self.hosts = 0
        self.results: list[HostResult] = []
        self.running: dict[str, RunningTransfer] = {}
        self.begun = time.monotonic()

    def take(self, event: NightEvent) -> None:
        """Takes one more event."""
        match event:
            case NightStarted():
                self.hosts, self.begun = len(event.hosts), time.monotonic()
            case RunningTransfer():
                self.running[event.host] = event
            case HostResult():
                self.running.pop(event.host, None)
                self.results.append(event)

    def summary(self, ended: NightEnded) -> str:
        """Returns the whole run in one line."""
        return summary_line(self.results, self.hosts, time.monotonic() - self.begun, ended.problem)


class NightLines:
    """Prints one line per event: to a pipe, a file or the journal."""

    def __init__(self) -> None:
        self._tally, self._repeated = NightTally(), RepeatedErrors()
        self._is_repeating = False

    def __call__(self, event: NightEvent) -> None:
        """Prints the event. While many hosts fail with the same error, starts are not printed."""
        tally = self._tally
        tally.take(event)
        match event:
            case NightStarted() if event.hosts:
                say(f"backing up {counted(tally.hosts, 'host')}")
            case RunningTransfer() if not self._is_repeating:
                say(f"{event.host}: started")
            case HostResult() if not self._is_repeat(event):
                say(f"[{len(tally.results)}/{tally.hosts}] {result_line(event)}")
            case Notice():
                say(f"note: {printable(event.text)}")
            case NightEnded():
                for line in self._repeated.lines():
                    say(line)
                say(tally.summary(event))

    def _is_repeat(self, result: HostResult) -> bool:
        self._is_repeating = self._repeated.is_repeated(result)
        return self._is_repeating


class NightStatus:
    """Sends systemd one line: how many hosts are finished, which ones are running, and their results."""

    def __init__(self) -> None:
        self._tally, self._status = NightTally(), Status()

    def __call__(self, event: NightEvent) -> None:
        """Sends the line after each event, except for notices, which do not change the state."""
        self._tally.take(event)
        match event:
            case NightStarted():
                self._status.say(f"backing up {counted(len(event.hosts), 'host')}" if event.hosts else "nothing is due")
            case RunningTransfer() | HostResult():
                self._status.say(self._line())
            case NightEnded():
                self._status.say(self._tally.summary(event))

    def _line(self) -> str:
        tally = self._tally
        wrong = sum(not result.good for result in tally.results)
        parts = [f"{len(tally.results)} of {counted(tally.hosts, 'host')} done"]
        if wrong:
            parts.append(f"{wrong} not complete")
        if tally.running:
            parts.append(f"running: {names_in_words(list(tally.running))}")
        return ", ".join(parts)
