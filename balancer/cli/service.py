"""Tells systemd in one line which block group is balanced, and how far the run is."""

from balancer.cli.run_view import end_line
from balancer.run_types import BalanceEvent, BalanceProgress, BalanceStarted, Cancelling, PlannedBlockGroup, Report
from btrkeep.process.progress import Waiting
from btrkeep.process.service import Status
from btrkeep.units import format_given, format_share, format_size


class BalanceStatus:
    """For `systemctl status`, beside the sink that writes lines."""

    def __init__(self) -> None:
        self._status = Status()
        self._budget: int | None = None
        self._group: PlannedBlockGroup | None = None

    def __call__(self, event: BalanceEvent) -> None:
        """Sends what matters at once, and how far it is now and then."""
        match event:
            case BalanceStarted():
                self._budget = event.settings.budget
                self._status.say(f"score {event.numbers.score:,.0f}, {format_size(event.numbers.unallocated)} unallocated")
            case PlannedBlockGroup():
                self._group = event
                self._status.say(self._line(event, None))
            case BalanceProgress() if self._group is not None:
                group = self._group
                self._status.go_on(lambda: self._line(group, event))
            case Waiting():
                self._status.say(f"waiting: {event.why}")
            case Cancelling():
                self._status.say(f"stopping: {event.why}")
            case Report():
                self._status.say(end_line(event))

    def _line(self, group: PlannedBlockGroup, progress: BalanceProgress | None) -> str:
        line = f"block group {group.number} at {group.vaddr}: {format_size(group.used)}"
        if progress is None:
            return line
        share = (group.used - progress.left) / group.used if group.used else 1.0
        of_budget = f" of {format_given(self._budget)}" if self._budget is not None else ""
        total = f"{format_size(progress.total_moved)}{of_budget} moved"
        return f"{line}, {format_share(max(0.0, share))} done; {total}, {format_size(progress.total_written)} written"
