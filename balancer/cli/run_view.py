"""What a run looks like where nobody watches a terminal: a line for each block group, or one JSON object at the end."""

from balancer.cli.report import end_line, report_lines
from balancer.run_types import (
    INTENDED,
    BalanceOutcome,
    BalanceProgress,
    PlannedBlockGroup,
    Report,
    RunSettings,
    SpaceNumbers,
    StepDone,
)
from btrkeep.cli.progress import say
from btrkeep.units import counted, format_duration, format_given, format_size, printable

_RAW = {BalanceOutcome.GONE: "was gone before its turn came", BalanceOutcome.CANCELLED: "cancelled"}


def stopping_line(why: str, vaddr: int | None) -> str:
    """What is said at once when a run has to end. `vaddr`: of the block group under way."""
    at = f"; the kernel gives up the block group at {vaddr}" if vaddr is not None else ""
    return f"stopping: {printable(why)}{at}"


def begin_line(numbers: SpaceNumbers, settings: RunSettings) -> str:
    """What is there, and what limits the run."""
    groups = counted(numbers.block_groups, "data block group")
    limits = [
        f"at most {format_given(settings.budget)}" if settings.budget is not None else "",
        f"for {format_duration(settings.time)} at most" if settings.time is not None else "",
        f"until {settings.until:%Y-%m-%d %H:%M %Z}" if settings.until is not None else "",
    ]
    what = f"balancing by {settings.policy}: {groups}, score {numbers.score:,.0f}, {numbers.fragments:,} fragments"
    return ", ".join([what, *filter(None, limits)])


def step_line(done: StepDone, *, longest: int = 0) -> str:
    """What became of a block group, in one line, without colour. The most important comes first: it may be cut off at the end."""
    group = done.group
    head = f"{group.number}: block group {group.vaddr}"
    if done.outcome in (BalanceOutcome.NO_SPACE, BalanceOutcome.FAILED):
        words = "no room for what is in it" if done.outcome is BalanceOutcome.NO_SPACE else "failed"
        return f"{head}: {words}{f' ({printable(done.error)})' if done.error else ''}; it is set aside"
    if done.outcome is not BalanceOutcome.DONE and not done.moved:
        return f"{head}: {_RAW[done.outcome]}"
    parts = [
        f"score {done.score + done.gained:,.0f} -> {done.score:,.0f}",
        f"{format_size(done.moved)} moved",
        f"{format_size(done.written)} written{_times(done)}",
        format_duration(done.seconds),
        f"{format_size(done.unallocated)} unallocated",
    ]
    if done.outcome is BalanceOutcome.CANCELLED:
        parts.insert(0, _RAW[done.outcome])
    line = f"{head}: {', '.join(parts)}"
    if longest and len(line) > longest:
        head = f"{group.number}: {group.vaddr}"
    while longest and len(line := f"{head}: {', '.join(parts)}") > longest and len(parts) > 1:
        parts.pop()
    return line


def _times(done: StepDone) -> str:
    return f" ({done.written / done.moved:.1f}x)" if done.moved else ""


class BalanceLines:
    """A line for each block group: for a pipe, a file or the journal. `quiet`: only what is wrong, and nothing of a good run."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet, self._waits = quiet, ""
        self._vaddr: int | None = None

    def _say(self, text: str) -> None:
        if not self._quiet:
            say(text)

    def begins(self, numbers: SpaceNumbers, settings: RunSettings) -> None:
        """The run begins."""
        self._say(begin_line(numbers, settings))

    def step_begins(self, group: PlannedBlockGroup) -> None:
        """Says nothing: one line is enough, and at the end there is more to say."""
        self._waits, self._vaddr = "", group.vaddr

    def progress(self, progress: BalanceProgress) -> None: ...

    def step_ends(self, done: StepDone) -> None:
        """A block group is done."""
        if done.outcome in (BalanceOutcome.NO_SPACE, BalanceOutcome.FAILED):
            say(step_line(done), err=self._quiet)
        else:
            self._say(step_line(done))

    def waits(self, why: str) -> None:
        """Said once for each reason, though it may be told again and again."""
        if _reason(why) != self._waits:
            self._waits = _reason(why)
            self._say(f"waiting: {printable(why)}")

    def stopping(self, why: str) -> None:
        """The block group under way is being cancelled."""
        self._say(stopping_line(why, self._vaddr))

    def warns(self, text: str) -> None:
        """Something the operator should know."""
        say(f"note: {printable(text)}", err=self._quiet)

    def ends(self, report: Report) -> None:
        """It is over."""
        if self._quiet and report.ending not in INTENDED:
            say(end_line(report), err=True)
        for line in report_lines(report):
            self._say(line)


def _reason(why: str) -> str:
    """Without its numbers: a pressure that goes from 41.2 to 41.3 is the same reason."""
    return "".join(char for char in why if not char.isdigit())


class BalanceJson:
    """Says nothing but warnings, on standard error, while it goes on; the command prints the report."""

    def __init__(self) -> None:
        self._vaddr: int | None = None

    def step_begins(self, group: PlannedBlockGroup) -> None:
        """Says nothing."""
        self._vaddr = group.vaddr

    def begins(self, numbers: SpaceNumbers, settings: RunSettings) -> None: ...
    def progress(self, progress: BalanceProgress) -> None: ...
    def step_ends(self, done: StepDone) -> None: ...
    def waits(self, why: str) -> None: ...
    def ends(self, report: Report) -> None: ...

    def stopping(self, why: str) -> None:
        """The block group under way is being cancelled."""
        say(stopping_line(why, self._vaddr), err=True)

    def warns(self, text: str) -> None:
        """Something the operator should know."""
        say(f"note: {printable(text)}", err=True)
