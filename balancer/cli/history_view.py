"""The history of free space as text, one line with a bar per sample, and the balances; and both as JSON."""

import textwrap
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from balancer.balance_history import HistoryLine, sums, thinned_history
from balancer.cli.score_view import bar, has_blocks
from balancer.score import BAD
from btrkeep.cli.listings import table
from btrkeep.cli.output import text_width
from btrkeep.units import (
    counted,
    format_duration,
    format_share,
    format_size,
    format_time,
    local_day,
    local_minute,
    printable,
    seconds_between,
)

if TYPE_CHECKING:
    from btrkeep.catalogue import Balance, BalanceStep, FreeSpaceScore

LINES = 30
"""A month of nights unchanged; of half a year, every sixth day."""
_LEAST_BAR, _MOST_BAR = 10, 40
_TREND = 0.05
"""Relative difference from the score above from which a score has a colour."""
_COLUMNS = ("TAKEN", "ALLOCATED", "USED", "FRAGS", "BAD", "MOVED", "SCORE")
_FIRST_TO_GO = ("MOVED", "BAD", "ALLOCATED", "USED", "FRAGS")


def lines(filesystem: str, scorings: "Sequence[FreeSpaceScore]", balances: "Sequence[Balance]") -> list[str]:
    """Returns the whole text. `scorings`: samples, oldest first, at least one."""
    history_lines = thinned_history(scorings, balances, LINES)
    shown_words = "" if len(history_lines) == len(scorings) else f", {len(history_lines)} of them shown"
    head = f"{filesystem}: {counted(len(scorings), 'score')} of its free space{shown_words}"
    return [
        *textwrap.wrap(head, text_width()),
        "",
        _table(history_lines),
        "",
        *textwrap.wrap(f"{_change(scorings[0], scorings[-1])} {_balanced(balances)}", min(text_width(), 100)),
    ]


def _table(history: Sequence[HistoryLine]) -> str:
    rows, room = _rows(history), text_width()
    widths = {name: max(len(click.unstyle(text)) for text in (name, *(row[name] for row in rows))) for name in _COLUMNS}
    kept = [name for name in _COLUMNS if name != "MOVED" or any(line.moved for line in history)]
    for name in _FIRST_TO_GO:
        if _total(widths, kept) + _LEAST_BAR > room and name in kept:
            kept.remove(name)
    width, highest = min(max(room - _total(widths, kept), 1), _MOST_BAR), max(line.scoring.score for line in history)
    blocks = has_blocks()
    bars = [bar(line.scoring.score / highest if highest else 0, width, blocks=blocks) for line in history]
    cells = [[*(row[name] for name in kept), drawn] for row, drawn in zip(rows, bars, strict=True)]
    return table(cells, [*kept, ""], right=kept[1:])


def _total(widths: dict[str, int], kept: Sequence[str]) -> int:
    """Returns the width of the table without its bars, in characters."""
    return sum(widths[name] + 2 for name in kept)


def _rows(history: Sequence[HistoryLine]) -> list[dict[str, str]]:
    when = _words_for([line.scoring.taken for line in history])
    above = [None, *(line.scoring.score for line in history)]
    return [
        {
            "TAKEN": when(line.scoring.taken),
            "ALLOCATED": format_size(line.scoring.length),
            "USED": format_size(line.scoring.used),
            "FRAGS": f"{line.scoring.fragments:,}",
            "BAD": f"{line.scoring.bad:,}",
            "MOVED": format_size(line.moved) if line.moved else "",
            "SCORE": _score_words(line.scoring.score, before),
        }
        for line, before in zip(history, above, strict=False)
    ]


def _words_for(moments: Sequence[datetime]) -> Callable[[datetime], str]:
    """Returns dates, or times if two of the lines are of the same day."""
    days = {local_day(moment) for moment in moments}
    return local_day if len(days) == len(moments) else local_minute


def _score_words(score: float, before: float | None) -> str:
    """Returns the score in green if it is better than in the line above, in red if it is worse."""
    words = f"{score:,.0f}"
    if before is None or abs(score - before) <= _TREND * before:
        return words
    return click.style(words, fg="green" if score < before else "red")


def _change(first: "FreeSpaceScore", last: "FreeSpaceScore") -> str:
    if first is last:
        return f"{last.bad:,} of {counted(last.block_groups, 'block group')} score above {BAD:.0f}."
    share = f" ({_signed(last.score / first.score - 1)})" if first.score else ""
    return (
        f"From {local_day(first.taken)} to {local_day(last.taken)} the score went "
        f"from {first.score:,.0f} to {last.score:,.0f}{share}, "
        f"fragments from {first.fragments:,} to {last.fragments:,}, "
        f"block groups that score above {BAD:.0f} from {first.bad:,} to {last.bad:,}."
    )


def _signed(share: float) -> str:
    return ("+" if share >= 0 else "-") + format_share(abs(share))


def _balanced(balances: "Sequence[Balance]") -> str:
    if not balances:
        return "Nothing was balanced with btrfs-balancer in that time."
    total = sums(balances)
    did = f"moved {format_size(total.moved)}, wrote {format_size(total.written)} and removed a score of {total.gained:,.0f}"
    return f"{counted(total.count, 'balance run')} {did} (--balances shows them)."


def balance_lines(
    filesystem: str, balances: "Sequence[Balance]", since: datetime, is_running: "Callable[[Balance], bool]"
) -> list[str]:
    """Returns the balances as text. `balances`: oldest first."""
    if not balances:
        return textwrap.wrap(f"Nothing was balanced with btrfs-balancer on {filesystem} since {local_day(since)}.", text_width())
    last = balances[-LINES:]
    total = sums(balances)
    earlier = [f"{len(balances) - len(last)} earlier runs: --json shows them"] if len(last) < len(balances) else []
    headers = ["STARTED", "GROUPS", "MOVED", "WRITTEN", "GAINED", "TOOK", "WHY IT ENDED"]
    rows = [_balance_row(balance, is_running) for balance in last]
    if len(last) > 1:
        moved, written, gained = format_size(total.moved), format_size(total.written), f"{total.gained:,.0f}"
        rows.append(["all", f"{sum(balance.block_groups for balance in balances):,}", moved, written, gained, "", ""])
    return [
        *textwrap.wrap(f"{filesystem}: {counted(len(balances), 'balance run')} since {local_day(since)}", text_width()),
        *earlier,
        "",
        table(rows, headers, right=headers[1:6], spare=["TOOK"]),
    ]


def _balance_row(balance: "Balance", is_running: "Callable[[Balance], bool]") -> list[str]:
    why = balance.why or balance.outcome or ("runs now" if is_running(balance) else "killed")
    return [
        local_minute(balance.started),
        f"{balance.block_groups:,}",
        format_size(balance.moved),
        format_size(balance.written),
        f"{balance.gained:,.0f}",
        format_duration(seconds_between(balance.started, balance.finished)),
        printable(why),
    ]


# --- JSON

_SCORING_KEYS = ("block_groups", "length", "used", "unallocated", "fragments", "score", "bad", "largest_free", "free_in_large")
_BALANCE = ("outcome", "why", "policy", "budget", "block_groups", "moved", "written", "gained", "failed")
_STEP = ("number", "vaddr", "length", "used", "extents", "refs", "fragments", "score")
_TOOK = ("seconds", "moved", "written", "estimate_written", "estimate_seconds", "gained", "outcome", "error")


def document(
    filesystem: str,
    since: datetime,
    scorings: "Sequence[FreeSpaceScore]",
    balances: "Sequence[tuple[Balance, bool, Sequence[BalanceStep]]]",
) -> dict[str, Any]:
    """Returns everything as JSON, oldest first. A balance has its steps, and whether it is running now."""
    return {
        "filesystem": filesystem,
        "since": format_time(since),
        "scores": [scoring_as_json(scoring) for scoring in scorings],
        "balances": [balance_as_json(*balance) for balance in balances],
    }


def scoring_as_json(scoring: "FreeSpaceScore") -> dict[str, Any]:
    """Returns one score of the free space."""
    histogram = [{"at_least": least, "extents": extents, "bytes": size} for least, extents, size in scoring.histogram]
    return {"taken": format_time(scoring.taken), **{name: getattr(scoring, name) for name in _SCORING_KEYS}, "histogram": histogram}


def balance_as_json(balance: "Balance", is_running: bool, steps: "Sequence[BalanceStep]") -> dict[str, Any]:
    """Returns one run with its steps."""
    return {
        "id": balance.id,
        "mountpoint": printable(balance.mountpoint),
        "started": format_time(balance.started),
        "finished": format_time(balance.finished) if balance.finished else None,
        "running": is_running,
        **{name: getattr(balance, name) for name in _BALANCE},
        "before": dict(balance.before),
        "after": dict(balance.after),
        "steps": [step_as_json(step) for step in steps],
    }


def step_as_json(step: "BalanceStep") -> dict[str, Any]:
    """Returns one block group of a run."""
    before, took = ({name: getattr(step, name) for name in names} for names in (_STEP, _TOOK))
    return {**before, "started": format_time(step.started), **took}
