"""`backupd forecast`: estimates when the pool will be full."""

import textwrap
from datetime import datetime, timedelta
from typing import Any

import click

from backupd.cli.command_context import opened, pass_context
from backupd.observe.cli.trend import width
from btrkeep.cli import json_option, print_answer
from btrkeep.decisions.trend import FullForecast, TooLittleHistory, forecasts, points
from btrkeep.units import format_size, local_day

_DAY = timedelta(days=1)


@click.command("forecast")
@click.option("--days", type=click.IntRange(15, 36500), default=180, show_default=True, metavar="N", help="Days of history to use.")
@json_option
@pass_context
def command(ctx: click.Context, days: int, as_json: bool) -> int:
    """Estimate when the pool will be full at its present growth: when nothing is left to allocate, and when everything is used.

    If everything is allocated first, balancing helps (`btrfs-balancer run`). If everything is used first, only more devices or
    fewer backups help.

    The range comes from the slowest and the fastest sixth of the history. At least two weeks of samples are needed. The estimate
    does not include planned changes, such as new hosts.
    """
    with opened(ctx) as context:
        until = context.clock.now()
        samples = context.catalogue.samples(context.pool.filesystem, until - timedelta(days=days), until + timedelta(seconds=1))
    daily = points(samples, until - timedelta(days=days), _DAY)
    size = daily[-1].size if daily else 0
    moments = [point.taken for point in daily]
    answers = dict(zip(("allocated", "used"), forecasts(daily), strict=True))
    first, last = (moments[0], moments[-1]) if moments else (None, None)
    head = {"since": first, "until": last, "size": size if daily else None}
    fields = head | {name: _fields(answer) for name, answer in answers.items()}
    return print_answer(fields, lambda: click.echo("\n".join(lines(answers, moments, size))), as_json=as_json)


def _fields(answer: FullForecast | TooLittleHistory) -> dict[str, Any]:
    if isinstance(answer, TooLittleHistory):
        unknown = ("now", "per_day", "per_day_slow", "per_day_fast", "full", "full_earliest", "full_latest")
        return {**dict.fromkeys(unknown), "why_not": str(answer)}
    pace = answer.growth
    return {
        "now": answer.now,
        "per_day": round(pace.usual),
        "per_day_slow": round(pace.slow),
        "per_day_fast": round(pace.fast),
        "full": answer.usual,
        "full_earliest": answer.earliest,
        "full_latest": answer.latest,
        "why_not": None,
    }


def lines(answers: dict[str, FullForecast | TooLittleHistory], moments: list[datetime], size: int) -> list[str]:
    """The whole text."""
    forecasts = {name: answer for name, answer in answers.items() if isinstance(answer, FullForecast)}
    if not forecasts:
        return textwrap.wrap(f"Too little history for a forecast: {answers['used']}.", min(width(), 100))
    text = [f"{format_size(size)} of devices; by the samples from {local_day(moments[0])} to {local_day(moments[-1])}", ""]
    for name, answer in forecasts.items():
        head = f"{name:<10} {format_size(answer.now):>9}  "
        text += textwrap.wrap(head + words(answer), width(), subsequent_indent=" " * len(head))
    return [*text, "", *textwrap.wrap("In brackets: the same for the slowest and the fastest growth so far.", width())]


def words(answer: FullForecast) -> str:
    """Formats when it will be full."""
    pace = answer.growth
    grew = f"{_a_day(pace.usual)} ({_a_day(pace.slow)} to {_a_day(pace.fast)}) a day: "
    if answer.now >= answer.size:
        return grew + "full now"
    if answer.usual is None:
        whole = "never full at this growth" if pace.usual <= 0 else "not full within ten years"
        return grew + whole + (f"; {local_day(answer.earliest)} at the earliest" if answer.earliest else "")
    latest = local_day(answer.latest) if answer.latest else "never" if pace.slow <= 0 else "more than ten years"
    earliest = local_day(answer.earliest or answer.usual)
    return (
        f"{grew}full {'together with used, ' if answer.with_used else ''}around {local_day(answer.usual)} ({earliest} to {latest})"
    )


def _a_day(pace: float) -> str:
    return ("+" if pace >= 0 else "-") + format_size(abs(round(pace)))
