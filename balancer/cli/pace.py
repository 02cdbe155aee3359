"""The share of a run that is done, and the time left. Pure: moments are arguments, in seconds of one clock."""

from datetime import UTC, datetime

from balancer.run_types import BalanceProgress, PlannedBlockGroup, RunSettings, StepDone
from btrkeep.units import counted, format_duration, format_given, format_size

_LEAST = 5.0
"""Seconds of balancing before a rate of this run says more than nothing."""
_NEARLY = 0.95


class RunPace:
    """Follows a run: its progress is that of the limit that is nearest.

    A budget limits bytes, time and window limit seconds; without any of them, the number of block groups worth balancing counts.
    """

    def __init__(self, settings: RunSettings, now: float, today: datetime | None = None) -> None:
        self._settings, self._begun = settings, now
        ends = [settings.time] if settings.time is not None else []
        if settings.until is not None:
            ends.append((settings.until - (today or datetime.now(UTC))).total_seconds())
        self._seconds = max(0.0, min(ends)) if ends else None
        self._group: PlannedBlockGroup | None = None
        self._busy = 0.0
        self._done = self._worth = 0
        self.moved = self.written = 0

    def step_begins(self, group: PlannedBlockGroup) -> None:
        """This block group is under way."""
        self._group, self._worth = group, group.worth

    def step_ends(self, done: StepDone) -> None:
        """Records the end of a step."""
        self._busy += done.seconds
        self.moved, self.written = self.moved + done.moved, self.written + done.written
        self._done += 1
        self._worth, self._group = max(0, self._worth - 1), None

    def step_share(self, progress: BalanceProgress | None) -> tuple[float, str]:
        """Returns the finished share of the current block group, from 0 to 1, and its description.

        The kernel shows nothing while it copies, so the bar follows the estimated time then, up to nearly the end.
        """
        if self._group is None:
            return 0.0, ""
        used, seconds = self._group.used, progress.seconds if progress else 0.0
        moved = max(0, used - progress.left) if progress else 0
        by_time = min(_NEARLY, seconds / self._group.estimate.seconds) if self._group.estimate.seconds > 0 else 0.0
        words = f"{format_size(moved)} of {format_size(used)}" if moved else f"copying {format_size(used)}"
        return max(by_time, moved / used if used else 1.0), words

    def step_left(self, progress: BalanceProgress | None) -> float | None:
        """Returns the seconds left for the block group under way, by its estimate; None if it takes longer than that."""
        if self._group is None:
            return None
        left = self._group.estimate.seconds - (progress.seconds if progress else 0.0)
        return left if left > 0 else None

    def share(self, moved: int, now: float) -> tuple[float, str]:
        """Returns the share of the run that is done, from 0 to 1, and that in words. `moved`: bytes so far."""
        shares = []
        if budget := self._settings.budget:
            shares.append((moved / budget, f"{format_size(moved)} of {format_given(budget)}"))
        if self._seconds:
            spent = now - self._begun
            shares.append((spent / self._seconds, f"{format_duration(spent)} of {format_duration(self._seconds)}"))
        if not shares:
            of = self._done + self._worth
            shares.append((self._done / of if of else 0.0, f"{self._done:,} of {counted(of, 'block group')}"))
        share, words = max(shares)
        return min(1.0, share), words

    def left(self, moved: int, now: float) -> float | None:
        """Returns the seconds until the run ends, None if nothing is known yet."""
        known = []
        spent = now - self._begun
        if self._seconds is not None:
            known.append(max(0.0, self._seconds - spent))
        if spent >= _LEAST and moved and self._settings.budget is not None:
            known.append(max(0, self._settings.budget - moved) * spent / moved)
        if self._done and self._busy >= _LEAST:
            known.append(self._worth * self._busy / self._done)
        return min(known, default=None)
