"""What a run came to, as text: the filesystem before and after, what moved, what that cost, and why it ended. Pure."""

import textwrap
from collections.abc import Iterator

from balancer.run_types import INTENDED, BalanceOutcome, Report, SpaceNumbers
from btrkeep.cli import table
from btrkeep.units import counted, format_duration, format_size, printable

_PAPER = 80
_ROWS = (
    ("block groups of data", "block_groups", False),
    ("allocated to them", "allocated", True),
    ("used of it", "used", True),
    ("unallocated", "unallocated", True),
    ("fragments", "fragments", False),
    ("score", "score", False),
    ("largest free extent", "largest_free", True),
    ("free in 16 MiB and more", "free_in_large", True),
)


def report_lines(report: Report, width: int = _PAPER) -> list[str]:
    """The whole text, in lines of up to `width` columns; the table takes some 60."""
    words = (*_sentences(report), end_line(report))
    return ["", *_table(report.before, report.after), "", *(line for one in words for line in textwrap.wrap(one, width))]


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
    """ "1.3 bytes written per byte moved", and nothing where nothing moved."""
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
        (BalanceOutcome.NO_SPACE, "the kernel found no room for what was in it"),
        (BalanceOutcome.FAILED, "failed"),
        (BalanceOutcome.CANCELLED, "cancelled on the way"),
        (BalanceOutcome.GONE, "was gone before its turn came"),
    ):
        for step in report.steps:
            if step.outcome is outcome:
                why = f" ({printable(step.error)})" if step.error and outcome is not BalanceOutcome.CANCELLED else ""
                yield f"Block group {step.group.vaddr}: {words}{why}."


def end_line(report: Report) -> str:
    """Why it ended."""
    word = "It ended" if report.ending in INTENDED else "It stopped"
    return f"{word}: {printable(report.why).rstrip('.')}."
