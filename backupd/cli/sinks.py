"""Chooses the sinks of a run and of an expiry: a terminal, a pipe or a service. With --json the result is printed at the end.

A night's displays are imported only for a night, because they need everything that a transfer needs.
"""

from typing import TYPE_CHECKING

from btrkeep.cli.progress import has_live_terminal, notices_on_stderr
from btrkeep.process.progress import ProgressSink, ProgressSinks
from btrkeep.process.service import is_service

if TYPE_CHECKING:
    from backupd.expire.report import ExpiryEvent
    from backupd.run.context import NightEvent


def night_sinks(*, as_json: bool) -> "ProgressSinks[NightEvent]":
    """Returns the sinks of a run."""
    from backupd.cli.night_view import NightLines, NightStatus

    shown: ProgressSink[NightEvent] = notices_on_stderr if as_json else NightLines()
    if not as_json and has_live_terminal():
        from backupd.cli.night_live import NightDisplay

        shown = NightDisplay()
    return ProgressSinks(NightStatus(), shown) if is_service() else ProgressSinks(shown)


def expiry_sinks(*, as_json: bool) -> "ProgressSinks[ExpiryEvent]":
    """Returns the sinks of an expiry."""
    from backupd.cli.expiry_view import ExpiryStatus, expiry_lines

    shown: ProgressSink[ExpiryEvent] = notices_on_stderr if as_json else expiry_lines
    if not as_json and has_live_terminal():
        from backupd.cli.expiry_live import ExpiryDisplay

        shown = ExpiryDisplay()
    return ProgressSinks(ExpiryStatus(), shown) if is_service() else ProgressSinks(shown)
