"""Tells systemd in one line which block group is balanced, and how far the run is."""

from balancer.cli.report import end_line
from balancer.run_types import BalanceProgress, PlannedBlockGroup, Report, RunSettings, SpaceNumbers, StepDone
from btrkeep.process.service import Status
from btrkeep.units import format_given, format_share, format_size


class StatusObserver:
    """For `systemctl status`, beside the observer that writes lines."""

    def __init__(self) -> None:
        self._status = Status()
        self._budget: int | None = None
        self._group: PlannedBlockGroup | None = None

    def begins(self, numbers: SpaceNumbers, settings: RunSettings) -> None:
        """The run begins."""
        self._budget = settings.budget
        self._status.say(f"score {numbers.score:,.0f}, {format_size(numbers.unallocated)} unallocated")

    def step_begins(self, group: PlannedBlockGroup) -> None:
        """A block group is chosen."""
        self._group = group
        self._status.say(self._line(group, None))

    def progress(self, progress: BalanceProgress) -> None:
        """How far it is."""
        group = self._group
        if group is not None:
            self._status.go_on(lambda: self._line(group, progress))

    def _line(self, group: PlannedBlockGroup, progress: BalanceProgress | None) -> str:
        line = f"block group {group.number} at {group.vaddr}: {format_size(group.used)}"
        if progress is None:
            return line
        share = (group.used - progress.left) / group.used if group.used else 1.0
        of_budget = f" of {format_given(self._budget)}" if self._budget is not None else ""
        total = f"{format_size(progress.total_moved)}{of_budget} moved"
        return f"{line}, {format_share(max(0.0, share))} done; {total}, {format_size(progress.total_written)} written"

    def step_ends(self, done: StepDone) -> None: ...

    def waits(self, why: str) -> None:
        """Why nothing is done."""
        self._status.say(f"waiting: {why}")

    def stopping(self, why: str) -> None:
        """The block group under way is being cancelled."""
        self._status.say(f"stopping: {why}")

    def warns(self, text: str) -> None: ...

    def ends(self, report: Report) -> None:
        """It is over."""
        self._status.say(end_line(report))
