"""Observers of a balancing: nobody, and several as one."""

from collections.abc import Iterable

from balancer.run_types import BalanceObserver, BalanceProgress, PlannedBlockGroup, Report, RunSettings, SpaceNumbers, StepDone


class ObserverGroup:
    """Tells each of several observers, in their order; none of them: nobody."""

    def __init__(self, observers: Iterable[BalanceObserver] = ()) -> None:
        self._observers = tuple(observers)

    def begins(self, numbers: SpaceNumbers, settings: RunSettings) -> None:
        """See Observer, as for all of these."""
        for one in self._observers:
            one.begins(numbers, settings)

    def step_begins(self, group: PlannedBlockGroup) -> None:
        for one in self._observers:
            one.step_begins(group)

    def progress(self, progress: BalanceProgress) -> None:
        for one in self._observers:
            one.progress(progress)

    def step_ends(self, done: StepDone) -> None:
        for one in self._observers:
            one.step_ends(done)

    def waits(self, why: str) -> None:
        for one in self._observers:
            one.waits(why)

    def stopping(self, why: str) -> None:
        for one in self._observers:
            one.stopping(why)

    def warns(self, text: str) -> None:
        for one in self._observers:
            one.warns(text)

    def ends(self, report: Report) -> None:
        for one in self._observers:
            one.ends(report)
