"""Why a run ends, or does not begin: a table of rules, each a function of plain facts. Pure."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from balancer.run_types import BUSY, SWAP, BalanceOutcome, Ending, RunSettings, StepDone
from btrkeep.units import counted, format_duration, format_given, format_share, format_size

_MOST_WITHOUT_SPACE = 5
_MOST_WITHOUT_GAIN = 3
_MOST_FAILED = 2
_MOST_BUSY = 3


@dataclass(frozen=True, slots=True)
class StopFacts:
    """How things stand. `now`: aware; `elapsed`: seconds since the run began; `moved`, `unallocated`, `total`: bytes.

    `exclusive`: what has the filesystem for itself, "none" or as the kernel calls it; `exclusive_by`: who does that, if that is
    known. `backups`: who makes or expires backups, None when nobody does. `pressure`: a share, None when it is not known.
    `signal`: the number of the one that came.
    """

    now: datetime
    elapsed: float
    moved: int
    unallocated: int
    total: int
    exclusive: str = "none"
    exclusive_by: str = ""
    backups: str | None = None
    pressure: float | None = None
    signal: int | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Why no block group may be begun, or the one under way has to be given up. `passes`: waiting may help."""

    ending: Ending
    why: str
    passes: bool = False


Rule = Callable[[RunSettings, StopFacts], Stop | None]


def signal_came(_settings: RunSettings, facts: StopFacts) -> Stop | None:
    """By SIGTERM, SIGINT or SIGHUP."""
    if facts.signal is None:
        return None
    return Stop(Ending.SIGNAL, f"{signal.Signals(facts.signal).name} came")


def floor_reached(settings: RunSettings, facts: StopFacts) -> Stop | None:
    """A balance needs room that no block group has: without any it fails, and then everything else does too."""
    least = settings.min_unallocated.of(facts.total)
    if facts.unallocated >= least:
        return None
    return Stop(Ending.UNALLOCATED, f"{format_size(facts.unallocated)} are unallocated, and {format_given(least)} have to be left")


def others_work(settings: RunSettings, facts: StopFacts) -> Stop | None:
    """One exclusive operation at a time: the kernel would refuse ours."""
    if facts.exclusive == "none":
        return None
    why = f"the filesystem is busy: {facts.exclusive}{facts.exclusive_by and f' ({facts.exclusive_by})'}"
    # A paused one goes on when somebody wants it to, which may be never.
    return Stop(Ending.EXCLUSIVE, why, settings.wait_for_others and facts.exclusive != "balance paused")


def backups_work(settings: RunSettings, facts: StopFacts) -> Stop | None:
    """Backups come first."""
    if not (settings.yield_to_backups and facts.backups):
        return None
    return Stop(Ending.BACKUPS, f"backups come first: {facts.backups}", settings.wait_for_others)


def time_is_over(settings: RunSettings, facts: StopFacts) -> Stop | None:
    """After so many seconds."""
    if settings.time is None or facts.elapsed < settings.time:
        return None
    return Stop(Ending.TIME, f"the {format_duration(settings.time)} are over")


def window_is_over(settings: RunSettings, facts: StopFacts) -> Stop | None:
    """At that moment."""
    if settings.until is None or facts.now < settings.until:
        return None
    return Stop(Ending.WINDOW, f"the window ended at {settings.until:%H:%M %Z}")


def budget_is_spent(settings: RunSettings, facts: StopFacts) -> Stop | None:
    """After so many bytes."""
    if settings.budget is None or facts.moved < settings.budget:
        return None
    return Stop(Ending.BUDGET, f"{format_size(facts.moved)} moved, which is the budget")


def disks_are_busy(settings: RunSettings, facts: StopFacts) -> Stop | None:
    """Others wait for the disks already."""
    if settings.max_pressure is None or facts.pressure is None or facts.pressure <= settings.max_pressure:
        return None
    why = f"something waits for the disks {format_share(facts.pressure)} of the time, above {format_share(settings.max_pressure)}"
    return Stop(Ending.PRESSURE, why, passes=True)


BEFORE: tuple[Rule, ...] = (
    signal_came,
    floor_reached,
    others_work,
    backups_work,
    time_is_over,
    window_is_over,
    budget_is_spent,
    disks_are_busy,
)
"""What must not hold when a block group is begun. The first that does is the reason."""
DURING: tuple[Rule, ...] = (signal_came, backups_work, time_is_over, window_is_over)
"""What cancels the block group under way."""


def stop(rules: Sequence[Rule], settings: RunSettings, facts: StopFacts) -> Stop | None:
    """The first of these rules that ends the run, or makes it wait."""
    return next((found for rule in rules if (found := rule(settings, facts))), None)


def too_long(settings: RunSettings, facts: StopFacts, seconds: float) -> Stop | None:
    """Whether a block group that should take so many seconds would not be done in time."""
    left, ending = min(_time_left(settings, facts), default=(None, Ending.TIME))
    if left is None or seconds <= left:
        return None
    return Stop(ending, f"the next block group should take {format_duration(seconds)}, and {format_duration(left)} are left")


def _time_left(settings: RunSettings, facts: StopFacts) -> list[tuple[float, Ending]]:
    left = []
    if settings.time is not None:
        left.append((settings.time - facts.elapsed, Ending.TIME))
    if settings.until is not None:
        left.append(((settings.until - facts.now).total_seconds(), Ending.WINDOW))
    return left


def after(steps: Sequence[StepDone]) -> Stop | None:
    """Whether what became of the last block groups says that there is no use in going on."""
    if not steps:
        return None
    last = steps[-1]
    without_space = _in_a_row(steps, lambda step: step.outcome is BalanceOutcome.NO_SPACE)
    is_tight = last.unallocated < 2 * last.group.length
    if without_space >= (2 if is_tight else _MOST_WITHOUT_SPACE):
        why = f"the kernel found no room for {without_space} block groups in a row; {format_size(last.unallocated)} are unallocated"
        return Stop(Ending.NO_SPACE, why)
    failed = _in_a_row(steps, lambda step: step.outcome is BalanceOutcome.FAILED and step.error != SWAP)
    if failed >= _MOST_FAILED:
        return Stop(Ending.FAILED, f"{counted(failed, 'block group')} in a row failed, the last one with: {last.error}")
    busy = _in_a_row(steps, lambda step: step.error == BUSY)
    if busy >= _MOST_BUSY:  # on kernels that do not tell what has the filesystem
        return Stop(Ending.EXCLUSIVE, f"the filesystem is busy: {BUSY}, {busy} times in a row")
    useless = _in_a_row(steps, lambda step: step.outcome is BalanceOutcome.DONE and step.gained <= 0)
    if useless >= _MOST_WITHOUT_GAIN:
        return Stop(Ending.DONE, f"the last {useless} block groups gained nothing")
    return None


def _in_a_row(steps: Sequence[StepDone], is_such: Callable[[StepDone], bool]) -> int:
    number = 0
    for step in reversed(steps):
        if not is_such(step):
            break
        number += 1
    return number
