"""A rehearsal as text and numbers: its plan, its progress, and which settings are better."""

import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click

from backupd.observe.chart import Axis, axis_for, bars, filled, labelled
from backupd.observe.cli.trend import chart_characters, width
from backupd.rehearse.cli.rehearsal_words import (
    ASKS,
    LIMITS,
    NAMES,
    RehearsalResult,
    about_hosts,
    caveats,
    comparison_cells,
    conclusion,
    extent_words,
    medians,
    remarks,
    settings_words,
)
from backupd.rehearse.pool import Place
from backupd.rehearse.rehearsal_nights import NightDone
from backupd.rehearse.rehearsal_types import RehearsalPlan, RehearsedRun, Variant
from backupd.rehearse.server_facts import ServerFacts
from backupd.rehearse.variants import QUESTIONS, VariantJudgement, best
from btrkeep.cli.listings import table
from btrkeep.cli.output import ProgressLine
from btrkeep.process.progress import Notice
from btrkeep.units import format_duration, format_size, printable

_NIGHT, _AGING, _FILE = 1.6, 0.5, 0.00025  # seconds of a night's programs, of a night of ageing, and of each file
_RATE = 120e6  # bytes written a second; all four were measured on two busy processors
_HEIGHT, _SCALE = 6, 9


class RehearsalMeter:
    """Receives the progress: one line of standard error on a terminal, otherwise one for each tenth."""

    def __init__(self) -> None:
        self._line, self._begun, self._tenth = ProgressLine(), time.monotonic(), 0

    def __call__(self, event: NightDone | Notice) -> None:
        """Shows the progress."""
        if isinstance(event, Notice):
            return
        share = event.done / event.of
        left = (time.monotonic() - self._begun) * (1 / share - 1)
        night = f"night {event.night}" if event.night > 0 else "ageing"
        text = f"{share:4.0%}  seed {event.seed}, {printable(event.variant)}, {night}, {format_duration(left)} left"
        self._line.go_on(lambda: text)
        if not self._line.is_shown and int(share * 10) > self._tenth:
            self._tenth = int(share * 10)
            click.echo(text.strip(), err=True)

    def end(self) -> None:
        """Removes the line."""
        self._line.clear()


def estimated_seconds(plan: RehearsalPlan) -> float:
    """Returns the estimated duration."""
    fleet = plan.fleet
    nights = plan.age + plan.days
    changes = sum(host.changed + host.created + host.deleted for host in fleet.hosts) * nights
    files = sum(host.files for host in fleet.hosts) + changes
    written = fleet.bytes + fleet.new_bytes * nights
    runs = len(plan.variants) * plan.seeds
    return runs * ((plan.days + 1) * _NIGHT + plan.age * _AGING + files * _FILE + written / _RATE)


def plan_lines(plan: RehearsalPlan, place: Place, facts: ServerFacts) -> Iterator[str]:
    """Describes the planned pools."""
    yield from wrapped(f"{extent_words(plan)}, would take about {format_duration(estimated_seconds(plan))}.")
    where = (
        f"the device {place.device}" if place.device else f"an image in {place.folder}, where {format_size(place.room)} are free"
    )
    yield from wrapped(f"Each pool would have {format_size(plan.size)}, on {printable(where)}; one at a time, deleted afterwards.")
    yield from wrapped(about_hosts(plan, facts))
    yield from _variant_table(plan.variants)
    yield from (line for text in caveats(plan, facts) for line in wrapped(f"note: {text}"))


def lines(result: RehearsalResult) -> list[str]:
    """Returns the report for a terminal."""
    return list(_lines(result))


def _lines(result: RehearsalResult) -> Iterator[str]:
    if result.question:
        yield from wrapped(ASKS[result.question])
    yield from wrapped(
        f"{extent_words(result.plan)}, took {format_duration(result.seconds)}. {about_hosts(result.plan, result.facts)}"
    )
    yield from _variant_table(result.plan.variants)
    for judgement in result.judgements:
        yield ""
        yield printable(f"{judgement.variant} against {judgement.against}")
        yield from _comparison_table(judgement, result.question)
    yield ""
    yield from (line for text in conclusion(result) for line in wrapped(text))
    yield from _charts(result)
    notes = [*(f"note: {text}" for text in remarks(result)), *LIMITS]
    yield ""
    yield from (line for text in notes for line in wrapped(text))


def _variant_table(variants: Sequence[Variant]) -> Iterator[str]:
    rows = [(printable(variant.name), printable(settings_words(variant.settings))) for variant in variants]
    yield ""
    yield table(rows, ("VARIANT", "SETTINGS"))


def _comparison_table(judgement: VariantJudgement, question: str | None) -> Iterator[str]:
    if not judgement.comparisons:
        yield "  no pair of runs completed"
        return
    rows = [
        (
            ("* " if question and each.measure in QUESTIONS[question].measures else "  ") + NAMES[each.measure],
            *comparison_cells(each),
            str(each.verdict),
        )
        for each in judgement.comparisons
    ]
    names = ("  MEASURE", printable(judgement.against).upper()[:16], printable(judgement.variant).upper()[:16])
    headers = (*names, "CHANGE", "RANGE", "AGREE", "VERDICT")
    yield table(rows, headers, headers[1:6], ("RANGE", "AGREE"))


def _charts(result: RehearsalResult) -> Iterator[str]:
    room, drawn = max(width() - _SCALE - 2, 10), chart_characters()
    columns = {variant.name: _of_nights(result.runs, variant.name) for variant in result.plan.variants}
    nights_by_variant = {name: nights for name, nights in columns.items() if nights}
    if not nights_by_variant:
        return
    everything = [night for nights in nights_by_variant.values() for night in nights]
    axis = axis_for([used for used, _, _ in everything], [allocated for _, allocated, _ in everything])
    worst = max(score for _, _, score in everything) or 1
    for name, nights in nights_by_variant.items():
        columns_used = min(room, max(len(nights) * (min(room, 60) // len(nights)), 1) if len(nights) <= room else room)
        spread = [nights[int(column * len(nights) / columns_used)] for column in range(columns_used)]
        yield ""
        yield printable(f"{name}: {drawn.used} used, {drawn.unused} allocated, not used; below, the score of the free space")
        chart = filled([(used, allocated) for used, allocated, _ in spread], axis, _HEIGHT, drawn)
        yield from labelled(chart, axis, _HEIGHT, _SCALE)
        scores = bars([score for _, _, score in spread], worst, 2, drawn)
        yield from labelled(scores, Axis(0, worst), 2, _SCALE, lambda value: f"{value:,}")


def _of_nights(runs: Sequence[RehearsedRun], name: str) -> list[tuple[int, int, float]]:
    parts = (medians(runs, name, of) for of in (lambda n: n.used, lambda n: n.allocated, lambda n: n.score))
    return [(round(used), round(allocated), score) for used, allocated, score in zip(*parts, strict=True)]


def wrapped(text: str) -> list[str]:
    """Returns lines as wide as the terminal, at most 100 columns."""
    return textwrap.wrap(text, min(width(), 100)) if sys.stdout.isatty() else [text]


def plan_fields(plan: RehearsalPlan, place: Place, facts: ServerFacts) -> dict[str, Any]:
    """Describes the planned pools."""
    return {
        "days": plan.days,
        "age": plan.age,
        "seeds": plan.seeds,
        "size": plan.size,
        "fraction": plan.fraction,
        "place": str(place.device or place.folder),
        "estimated_seconds": round(estimated_seconds(plan), 1),
        "variants": [{"name": variant.name, **asdict(variant.settings)} for variant in plan.variants],
        "hosts": [asdict(host) | {"bytes": round(host.bytes), "new_bytes": round(host.new_bytes)} for host in plan.fleet.hosts],
        "assumed": list(plan.fleet.assumed),
        "unknown": list(facts.unknown),
    }


def result_fields(result: RehearsalResult) -> dict[str, Any]:
    """Returns all measurements and judgements."""
    return {
        **plan_fields(result.plan, result.place, result.facts),
        "question": result.question,
        "seconds": round(result.seconds, 1),
        "runs": [
            {
                "variant": run.variant,
                "seed": run.seed,
                "full": run.full,
                "nights": [asdict(night) | {"written": night.written} for night in run.nights],
            }
            for run in result.runs
        ],
        "judgements": [
            {
                "variant": judgement.variant,
                "against": judgement.against,
                "measures": [asdict(each) for each in judgement.comparisons],
            }
            for judgement in result.judgements
        ],
        "best": winners[0] if len(winners := best(result.judgements)) == 1 else None,
        "conclusion": list(conclusion(result)),
        "remarks": list(remarks(result)),
        "limits": list(LIMITS),
    }
