"""A rehearsal in words and numbers: its plan, how far it is, and which settings are better."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click

from backupd.cli.trend_view import chart_characters, width
from backupd.rehearse.judge import FEWEST, MEASURES, MeasureComparison, VariantJudgement, Verdict, best
from backupd.rehearse.model import NightReading, RehearsalPlan, RehearsedRun, Variant, VariantSettings
from backupd.rehearse.nights import NightDone
from backupd.rehearse.pool import Place
from backupd.rehearse.server import ServerFacts
from backupd.rehearse.variants import QUESTIONS
from backupd.sampling.chart import Axis, axis_for, bars, filled, labelled
from btrkeep.cli import table
from btrkeep.cli.progress import ProgressLine
from btrkeep.process.progress import Notice
from btrkeep.units import counted, format_duration, format_share, format_size, printable

NAMES = {
    "unused": "data allocated, not used",
    "used": "used",
    "metadata": "metadata used",
    "score": "score of the free space",
    "fragments": "free fragments",
    "written": "written in all",
    "amplification": "written for each new byte",
    "expiry_written": "written by expiry",
    "balance_written": "written by balance",
    "night_seconds": "time of a night",
    "expiry_seconds": "time of expiry in all",
}
"""What each measure is called. Of all of them less is better."""
ASKS = {
    "holes": "Does nossd fill the holes in the free space that ssd leaves?",
    "expiry": "What does the mount option ssd save while backups are deleted?",
    "balance": "What does balance by score give against balance by usage?",
    "inplace": "Should changed files be written in place?",
    "compression": "What does compression save, and cost?",
    "nodesize": "Which size of metadata nodes is best?",
}
LIMITS = (
    (
        "A loop device or memory has no seeks, and this machine does other work: figures of time hold for the order of settings, "
        "not for this server's disks."
    ),
    "The pool is small: its block groups are few, and smaller than 1 GiB. Shares and orders carry over, absolute numbers do not.",
    (
        "How large files are is assumed (log-normal around the known mean), and so is where they change (16 KiB pieces at random "
        "places), and that half of the data compresses."
    ),
    "Data is stored once and on one device. Ownership, ACLs, hard links and quotas play no part, and the pace of expiry is off.",
)
_NIGHT, _AGING, _FILE = 1.6, 0.5, 0.00025  # seconds of a night's programs, of a night of ageing, and of each file
_RATE = 120e6  # bytes written a second; all four were measured on two busy processors
_HEIGHT, _SCALE, _CHANGE = 6, 9, 0.005


@dataclass(frozen=True, slots=True)
class RehearsalResult:
    """All that is told of a rehearsal. `seconds`: how long it took."""

    plan: RehearsalPlan
    facts: ServerFacts
    place: Place
    question: str | None
    runs: tuple[RehearsedRun, ...]
    judgements: tuple[VariantJudgement, ...]
    seconds: float


class RehearsalMeter:
    """A sink of progress: one line of standard error on a terminal, one for each tenth elsewhere."""

    def __init__(self) -> None:
        self._line, self._begun, self._tenth = ProgressLine(), time.monotonic(), 0

    def __call__(self, event: NightDone | Notice) -> None:
        """Shows how far it is."""
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
        """Takes the line away."""
        self._line.clear()


def estimated_seconds(plan: RehearsalPlan) -> float:
    """About how long it takes."""
    fleet = plan.fleet
    nights = plan.age + plan.days
    changes = sum(host.changed + host.created + host.deleted for host in fleet.hosts) * nights
    files = sum(host.files for host in fleet.hosts) + changes
    written = fleet.bytes + fleet.new_bytes * nights
    runs = len(plan.variants) * plan.seeds
    return runs * ((plan.days + 1) * _NIGHT + plan.age * _AGING + files * _FILE + written / _RATE)


def plan_lines(plan: RehearsalPlan, place: Place, facts: ServerFacts) -> Iterator[str]:
    """Describes what would be made."""
    yield from wrapped(f"{extent_words(plan)}, would take about {format_duration(estimated_seconds(plan))}.")
    where = (
        f"the device {place.device}" if place.device else f"an image in {place.folder}, where {format_size(place.room)} are free"
    )
    yield from wrapped(
        f"Each pool would have {format_size(plan.size)}, on {printable(where)}; one at a time, thrown away afterwards."
    )
    yield from wrapped(about_hosts(plan, facts))
    yield from _variant_table(plan.variants)
    yield from (line for text in doubts(plan, facts) for line in wrapped(f"note: {text}"))


def extent_words(plan: RehearsalPlan) -> str:
    """Describes the number of runs."""
    each = f"{counted(plan.days, 'night')} with {counted(plan.seeds, 'seed')}"
    after = f" after {counted(plan.age, 'night')} of ageing" if plan.age else ""
    return f"{counted(len(plan.variants), 'variant')}, each {each}{after}"


def about_hosts(plan: RehearsalPlan, facts: ServerFacts) -> str:
    """Describes the hosts in the pool, and their size."""
    fleet = plan.fleet
    files = sum(host.files for host in fleet.hosts)
    text = f"{counted(len(fleet.hosts), 'host')} with {counted(files, 'file')}, {format_size(round(fleet.bytes))}"
    new = f"{format_size(round(fleet.new_bytes))} new in a night"
    if plan.fraction >= 1:
        return f"It has {text}, {new}: all that the catalogue knows."
    whole = f"{counted(len(facts.fleet.hosts), 'host')} with {format_size(round(facts.fleet.bytes))}"
    return f"It has {text}, {new}: {_fraction(plan.fraction)} of {whole}."


def _fraction(share: float) -> str:
    return format_share(share) if share >= 0.001 else f"1/{round(1 / share):,}"


def doubts(plan: RehearsalPlan, facts: ServerFacts) -> Iterator[str]:
    """Describes assumptions in the place of what is not known."""
    yield from (printable(f"{why}: typical values stand in its place") for why in facts.unknown)
    if plan.fleet.assumed:
        some = ", ".join(plan.fleet.assumed[:5]) + (", ..." if len(plan.fleet.assumed) > 5 else "")
        yield printable(f"of {some} the catalogue has fewer than three complete backups: changes are as of other hosts, or typical")
    if plan.seeds < FEWEST:
        yield f"with fewer than {FEWEST} seeds no difference can be told from chance"


def lines(result: RehearsalResult) -> list[str]:
    """The report for a terminal."""
    return list(_lines(result))


def _lines(result: RehearsalResult) -> Iterator[str]:
    if result.question:
        yield from wrapped(ASKS[result.question])
    yield from wrapped(
        f"{extent_words(result.plan)}, took {format_duration(result.seconds)}. {about_hosts(result.plan, result.facts)}"
    )
    yield from _variant_table(result.plan.variants)
    for one in result.judgements:
        yield ""
        yield printable(f"{one.variant} against {one.against}")
        yield from _comparison_table(one, result.question)
    yield ""
    yield from (line for text in conclusion(result) for line in wrapped(text))
    yield from _charts(result)
    notes = [*(f"note: {text}" for text in remarks(result)), *LIMITS]
    yield ""
    yield from (line for text in notes for line in wrapped(text))


def remarks(result: RehearsalResult) -> Iterator[str]:
    """Returns caveats for whoever reads the result."""
    yield from doubts(result.plan, result.facts)
    for run in result.runs:
        if run.full is not None:
            yield printable(
                f"{run.variant}, seed {run.seed}: the pool had no room left in night {run.full}; it is compared with nothing"
            )
    if result.runs and not any(night.deleted for run in result.runs for night in run.nights):
        yield "no backup was old enough to be deleted: nothing is said of expiry; use more --days, or a shorter retention"
    if result.judgements:
        yield "a change is the median of pairs with the same seed; the amounts are medians by themselves, and may differ otherwise"
    if len(result.judgements) * len(MEASURES) > 1 and result.plan.seeds >= FEWEST:
        yield "of so many measures, one in fifteen may seem to differ by chance alone; more seeds make that rarer"


def _variant_table(variants: Sequence[Variant]) -> Iterator[str]:
    rows = [(printable(variant.name), printable(settings_words(variant.settings))) for variant in variants]
    yield ""
    yield table(rows, ("VARIANT", "SETTINGS"))


def settings_words(settings: VariantSettings) -> str:
    """Describes all settings of a variant."""
    balance = settings.balance
    found = [
        settings.allocator,
        "" if settings.expiry in ("none", settings.allocator) else f"{settings.expiry} during expiry",
        f"balance by {balance.policy} up to {format_share(balance.budget)}" if balance else "no balance",
        f"inplace {settings.inplace}" if settings.inplace else "",
        "" if settings.compression == "none" else f"compress={settings.compression}",
        f"{settings.nodesize >> 10} KiB nodes",
        f"metadata {settings.metadata}",
        *(f"{key} {format_duration(value) if key == 'grace' else value}" for key, value in settings.retention.items()),
    ]
    return ", ".join(filter(None, found))


def _comparison_table(one: VariantJudgement, question: str | None) -> Iterator[str]:
    if not one.comparisons:
        yield "  no pair of runs came to its end"
        return
    rows = [
        (
            ("* " if question and each.measure in QUESTIONS[question].measures else "  ") + NAMES[each.measure],
            *comparison_cells(each),
            str(each.verdict),
        )
        for each in one.comparisons
    ]
    names = ("  MEASURE", printable(one.against).upper()[:16], printable(one.variant).upper()[:16])
    headers = (*names, "CHANGE", "RANGE", "AGREE", "VERDICT")
    yield table(rows, headers, headers[1:6], ("RANGE", "AGREE"))


def comparison_cells(one: MeasureComparison) -> tuple[str, ...]:
    """Both values, the change, its range, and how many pairs agree."""
    pairs = one.lower + one.higher
    return (
        amount(one.measure, one.first),
        amount(one.measure, one.second),
        change(one.median),
        range_words(one.least, one.most),
        f"{max(one.lower, one.higher)} of {pairs}" if pairs else "-",
    )


def amount(measure: str, value: float) -> str:
    """A number of that measure in its unit."""
    match MEASURES[measure].unit:
        case "bytes":
            return format_size(round(value))
        case "s":
            return f"{value:.2f} s" if value < 100 else format_duration(value)
    return f"{value:.2f}" if measure == "amplification" else f"{value:,.0f}"


def change(share: float) -> str:
    """A difference as a share of the larger number, as a change of the first one: -25%, +40%, x 3.2."""
    if abs(share) < _CHANGE:
        return "same"
    if share >= 1:
        return "from 0"
    times = 1 / (1 - share) if share > 0 else 1 + share
    return f"{times - 1:+.0%}" if times < 2 else f"x {times:,.1f}"


def range_words(least: float, most: float) -> str:
    """A range of changes; one of a single value is that."""
    first, last = change(least), change(most)
    return first if first == last else f"{first} to {last}"


def conclusion(result: RehearsalResult) -> Iterator[str]:
    """Says which settings are better, and how sure that is."""
    for one in result.judgements:
        yield printable(_sentence(one, result.question))
    winners = best(result.judgements)
    if winners:
        against = result.judgements[0].against
        yield printable(f"Better for this server than {against}, by this rehearsal: {' or '.join(winners)}.")
    elif any(each.verdict is Verdict.TOO_FEW for one in result.judgements for each in one.comparisons):
        if result.plan.seeds < FEWEST:
            yield f"There are too few runs to say which is better: use --seeds {FEWEST} or more."
        else:
            yield "Too few runs came to their end to say which is better: use a larger --size, or more --seeds."
    elif any(one.named(Verdict.BETTER) for one in result.judgements):
        yield "No variant is better in something and worse in nothing: what matters more on this server decides."
    else:
        yield "Nothing speaks for a change."


def _sentence(one: VariantJudgement, question: str | None) -> str:
    if not one.comparisons:
        return f"{one.variant}: nothing can be compared."
    chosen = QUESTIONS[question].measures if question else tuple(NAMES)
    better, worse = one.named(Verdict.BETTER), one.named(Verdict.WORSE)
    asked = _better_and_worse(better, worse, lambda each: each.measure in chosen)
    besides = _better_and_worse(better, worse, lambda each: each.measure not in chosen)
    if asked:
        said = f"{one.variant} is {asked} than {one.against}" + (f"; besides, it is {besides}" if besides else "")
    else:
        few = one.comparisons[0].verdict is Verdict.TOO_FEW
        seen = "there are too few runs to tell it from" if few else "no difference is seen to"
        said = f"{one.variant}: {seen} {one.against}{' in what was asked' if question else ''}"
        said += f"; it is {besides} than that" if besides else ""
    if not asked and not besides:
        return f"{said}."
    sure = max(each.chance for each in (*better, *worse))
    return f"{said}. Chance alone would agree as much in {sure:.1%} of cases."


def _better_and_worse(
    better: Iterable[MeasureComparison], worse: Iterable[MeasureComparison], which: Callable[[MeasureComparison], bool]
) -> str:
    """Names what it is better and worse in, of which `which` returns True; "" if there is nothing."""
    found = {
        words: [f"{NAMES[one.measure]} ({change(one.median)})" for one in some if which(one)]
        for words, some in (("better", better), ("worse", worse))
    }
    return "; ".join(f"{words} in {', '.join(some)}" for words, some in found.items() if some)


def medians(runs: Sequence[RehearsedRun], variant: str, of: Callable[[NightReading], float]) -> list[float]:
    """Returns for each night the median over the seeds of a variant, as far as all seeds came."""
    from statistics import median

    some = [run.nights for run in runs if run.variant == variant and run.nights]
    return [median(of(night) for night in together) for together in zip(*some, strict=False)]


def _charts(result: RehearsalResult) -> Iterator[str]:
    room, drawn = max(width() - _SCALE - 2, 10), chart_characters()
    columns = {variant.name: _of_nights(result.runs, variant.name) for variant in result.plan.variants}
    known = {name: nights for name, nights in columns.items() if nights}
    if not known:
        return
    everything = [night for nights in known.values() for night in nights]
    axis = axis_for([used for used, _, _ in everything], [allocated for _, allocated, _ in everything])
    worst = max(score for _, _, score in everything) or 1
    for name, nights in known.items():
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
    """Lines as wide as the terminal, 100 columns at the most."""
    import textwrap

    return textwrap.wrap(text, min(width(), 100)) if sys.stdout.isatty() else [text]


def plan_as_json(plan: RehearsalPlan, place: Place, facts: ServerFacts) -> dict[str, Any]:
    """Describes what would be made."""
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


def result_as_json(result: RehearsalResult) -> dict[str, Any]:
    """Returns all that was measured and judged."""
    return {
        **plan_as_json(result.plan, result.place, result.facts),
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
            {"variant": one.variant, "against": one.against, "measures": [asdict(each) for each in one.comparisons]}
            for one in result.judgements
        ],
        "best": winners[0] if len(winners := best(result.judgements)) == 1 else None,
        "conclusion": list(conclusion(result)),
        "remarks": list(remarks(result)),
        "limits": list(LIMITS),
    }
