"""A run as text: a line for each block group if the output is not a terminal, and the final report."""

import textwrap
from collections.abc import Iterator

from balancer.run_types import (
    INTENDED,
    BalanceEvent,
    BalanceOutcome,
    BalanceProgress,
    BalanceStarted,
    Cancelling,
    PlannedBlockGroup,
    Report,
    RunSettings,
    SpaceNumbers,
    StepDone,
)
from btrkeep.cli.listings import table
from btrkeep.cli.output import notices_on_stderr, say
from btrkeep.process.progress import Notice, Status, Waiting
from btrkeep.units import counted, format_duration, format_given, format_share, format_size, local_minute, printable

_PAPER = 80
_ROWS = (
    ("block groups of data", "block_groups", False),
    ("allocated for data", "allocated", True),
    ("used for data", "used", True),
    ("unallocated", "unallocated", True),
    ("fragments", "fragments", False),
    ("score", "score", False),
    ("largest free extent", "largest_free", True),
    ("in free extents of 16 MiB+", "free_in_large", True),
)
_RAW = {BalanceOutcome.GONE: "no longer existed before it was balanced", BalanceOutcome.CANCELLED: "cancelled"}


def stopping_line(event: Cancelling) -> str:
    """Returns the message that is printed at once if a run must stop."""
    return f"stopping: {printable(event.why)}; the kernel cancels the block group at {event.vaddr}"


def begin_line(numbers: SpaceNumbers, settings: RunSettings) -> str:
    """Returns the state before the run, and its limits."""
    groups = counted(numbers.block_groups, "data block group")
    limits = [
        f"at most {format_given(settings.budget)}" if settings.budget is not None else "",
        f"for {format_duration(settings.time)} at most" if settings.time is not None else "",
        f"until {local_minute(settings.until)}" if settings.until is not None else "",
    ]
    title = f"balancing by {settings.policy}: {groups}, score {numbers.score:,.0f}, {numbers.fragments:,} fragments"
    return ", ".join([title, *filter(None, limits)])


def step_line(done: StepDone, *, longest: int = 0) -> str:
    """Returns the result of a block group in one line, without colour. The most important part comes first, because the end may be
    truncated.
    """
    group = done.group
    head = f"{group.number}: block group {group.vaddr}"
    if done.outcome in (BalanceOutcome.NO_SPACE, BalanceOutcome.FAILED):
        words = "no free space for its data" if done.outcome is BalanceOutcome.NO_SPACE else "failed"
        return f"{head}: {words}{f' ({printable(done.error)})' if done.error else ''}; this run skips it"
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
    """Prints a line for each block group: to a pipe, a file or the journal. `quiet`: only problems."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet, self._waits = quiet, ""

    def __call__(self, event: BalanceEvent) -> None:
        """Prints nothing for the start of a block group: its line is printed at the end, when more is known."""
        match event:
            case BalanceStarted():
                self._say(begin_line(event.numbers, event.settings))
            case PlannedBlockGroup():
                self._waits = ""
            case StepDone(outcome=BalanceOutcome.NO_SPACE | BalanceOutcome.FAILED):
                say(step_line(event), err=self._quiet)
            case StepDone():
                self._say(step_line(event))
            case Waiting() if _reason(event.why) != self._waits:
                self._waits = _reason(event.why)
                self._say(f"waiting: {printable(event.why)}")
            case Cancelling():
                self._say(stopping_line(event))
            case Notice():
                say(f"note: {printable(event.text)}", err=self._quiet)
            case Report():
                if self._quiet and event.reason not in INTENDED:
                    say(end_line(event), err=True)
                for line in report_lines(event):
                    self._say(line)

    def _say(self, text: str) -> None:
        if not self._quiet:
            say(text)


def _reason(why: str) -> str:
    """Returns the reason without its numbers, so that a pressure that rises from 41.2 to 41.3 is the same reason."""
    return "".join(char for char in why if not char.isdigit())


def warnings_on_stderr(event: BalanceEvent) -> None:
    """Prints only warnings, for --json; the command prints the report."""
    if isinstance(event, Cancelling):
        say(stopping_line(event), err=True)
    notices_on_stderr(event)


class BalanceStatus:
    """The line in `systemctl status`: which block group is balanced, and the progress of the run."""

    def __init__(self) -> None:
        self._status = Status()
        self._budget: int | None = None
        self._group: PlannedBlockGroup | None = None

    def __call__(self, event: BalanceEvent) -> None:
        """Sends important events at once, and the progress from time to time."""
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


# --- the report


def report_lines(report: Report, width: int = _PAPER) -> list[str]:
    """Returns the whole text, in lines of up to `width` columns; the table takes about 60."""
    words = (*_sentences(report), end_line(report))
    return ["", *_table(report.before, report.after), "", *(line for word in words for line in textwrap.wrap(word, width))]


def _table(before: SpaceNumbers, after: SpaceNumbers) -> list[str]:
    rows = [[words, *_cells(getattr(before, name), getattr(after, name), is_size)] for words, name, is_size in _ROWS]
    headers = ["", "BEFORE", "AFTER", "CHANGE"]
    return table(rows, headers, right=headers[1:]).splitlines()


def _cells(before: float, after: float, is_size: bool) -> tuple[str, str, str]:
    change = after - before
    sign = "+" if change > 0 else "-" if change < 0 else ""
    return _number(before, is_size), _number(after, is_size), sign + _number(abs(change), is_size) if sign else ""


def _number(value: float, is_size: bool) -> str:
    return format_size(int(value)) if is_size else f"{value:,.0f}"


def amplification_words(amplification: float | None) -> str:
    """Returns "1.3 bytes written per byte moved"; "" if nothing was moved."""
    return f"{amplification:.3g} bytes written per byte moved" if amplification is not None else ""


def _sentences(report: Report) -> Iterator[str]:
    took = format_duration(report.seconds)
    if not report.steps:
        yield f"Nothing was moved, in {took}."
        return
    ratio = f": {amplification_words(report.amplification)}" if report.moved else ""
    moved = f"{format_size(report.moved)} moved out of {counted(report.balanced, 'block group')}"
    yield f"{moved} in {took}, {format_size(report.written)} were written to the devices{ratio}."
    for outcome, words in (
        (BalanceOutcome.NO_SPACE, "the kernel found no free space for its data"),
        (BalanceOutcome.FAILED, "failed"),
        (BalanceOutcome.CANCELLED, "cancelled"),
        (BalanceOutcome.GONE, "no longer existed before it was balanced"),
    ):
        for step in report.steps:
            if step.outcome is outcome:
                why = f" ({printable(step.error)})" if step.error and outcome is not BalanceOutcome.CANCELLED else ""
                yield f"Block group {step.group.vaddr}: {words}{why}."


def end_line(report: Report) -> str:
    """Returns why the run ended."""
    word = "The run ended" if report.reason in INTENDED else "The run stopped"
    return f"{word}: {printable(report.why).rstrip('.')}."
