"""The texts of a rehearsal, for the terminal and for the page: names, numbers, the conclusion and its limits."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from backupd.rehearse.pool import Place
from backupd.rehearse.rehearsal_types import NightReading, RehearsalPlan, RehearsedRun, VariantSettings
from backupd.rehearse.server_facts import ServerFacts
from backupd.rehearse.variants import FEWEST, MEASURES, QUESTIONS, MeasureComparison, VariantJudgement, Verdict, best
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
"""The name of each measure. Less is better in all of them."""
ASKS = {
    "holes": "Does nossd fill the holes in the free space that ssd leaves?",
    "expiry": "What does the mount option ssd save while backups are deleted?",
    "balance": "What does balance by score gain over balance by usage?",
    "inplace": "Should changed files be written in place?",
    "compression": "What does compression save, and cost?",
    "nodesize": "Which size of metadata nodes is best?",
}
LIMITS = (
    (
        "A loop device or memory has no seeks, and this machine does other work: times show which settings are faster, not the "
        "times on this server's disks."
    ),
    (
        "The pool is small, with few block groups, each below 1 GiB. Percentages, and which variant has less, apply to the real "
        "pool too; absolute numbers do not."
    ),
    (
        "Assumed are the sizes of files (log-normal around the known mean), the places of changes (random pieces of 16 KiB), and "
        "that half of the data compresses."
    ),
    ("Data is stored once and on one device. Ownership, ACLs, hard links and quotas are not simulated; the pace of expiry is off."),
)


_CHANGE = 0.005  # share of a measure; smaller changes count as equal


@dataclass(frozen=True, slots=True)
class RehearsalResult:
    """The result of a rehearsal."""

    plan: RehearsalPlan
    """The plan of the rehearsal."""
    facts: ServerFacts
    """The server that it imitates."""
    place: Place
    """Where its pools were."""
    question: str | None
    """The key in QUESTIONS of the question; None: none."""
    runs: tuple[RehearsedRun, ...]
    """All runs."""
    judgements: tuple[VariantJudgement, ...]
    """Each variant compared with the first."""
    seconds: float
    """How long it took."""


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
        return f"The pool has {text}, {new}: all hosts in the catalogue."
    whole = f"{counted(len(facts.fleet.hosts), 'host')} with {format_size(round(facts.fleet.bytes))}"
    return f"The pool has {text}, {new}: {_fraction(plan.fraction)} of {whole}."


def _fraction(share: float) -> str:
    return format_share(share) if share >= 0.001 else f"1/{round(1 / share):,}"


def remarks(result: RehearsalResult) -> Iterator[str]:
    """Yields caveats for the reader of the result."""
    yield from caveats(result.plan, result.facts)
    for run in result.runs:
        if run.full is not None:
            yield printable(f"{run.variant}, seed {run.seed}: the pool was full in night {run.full}; this run is not compared")
    if result.runs and not any(night.deleted for run in result.runs for night in run.nights):
        yield "no backup was old enough to be deleted, so expiry was not tested; use more --days, or a shorter retention"
    if result.judgements:
        yield "a change is the median over pairs of runs with the same seed, so it may not match the medians of the two amounts"
    if len(result.judgements) * len(MEASURES) > 1 and result.plan.seeds >= FEWEST:
        yield "with this many measures, one in fifteen may seem to differ by chance; more seeds reduce that"


def settings_words(settings: VariantSettings) -> str:
    """Describes all settings of a variant."""
    balance = settings.balance
    parts = [
        settings.allocator,
        "" if settings.expiry in ("none", settings.allocator) else f"{settings.expiry} during expiry",
        f"balance by {balance.policy} up to {format_share(balance.budget)}" if balance else "no balance",
        f"inplace {settings.inplace}" if settings.inplace else "",
        "" if settings.compression == "none" else f"compress={settings.compression}",
        f"{settings.nodesize >> 10} KiB nodes",
        f"metadata {settings.metadata}",
        *(f"{key} {format_duration(value) if key == 'grace' else value}" for key, value in settings.retention.items()),
    ]
    return ", ".join(filter(None, parts))


def comparison_cells(comparison: MeasureComparison) -> tuple[str, ...]:
    """Formats both values, the change, its range, and how many pairs agree."""
    pairs = comparison.lower + comparison.higher
    return (
        amount(comparison.measure, comparison.first),
        amount(comparison.measure, comparison.second),
        change(comparison.median),
        range_words(comparison.least, comparison.most),
        f"{max(comparison.lower, comparison.higher)} of {pairs}" if pairs else "-",
    )


def amount(measure: str, value: float) -> str:
    """Formats a number of that measure in its unit."""
    match MEASURES[measure].unit:
        case "bytes":
            return format_size(round(value))
        case "s":
            return f"{value:.2f} s" if value < 100 else format_duration(value)
    return f"{value:.2f}" if measure == "amplification" else f"{value:,.0f}"


def change(share: float) -> str:
    """Formats a difference as a share of the larger number, as a change of the first one: -25%, +40%, x 3.2."""
    if abs(share) < _CHANGE:
        return "same"
    if share >= 1:
        return "from 0"
    times = 1 / (1 - share) if share > 0 else 1 + share
    return f"{times - 1:+.0%}" if times < 2 else f"x {times:,.1f}"


def range_words(least: float, most: float) -> str:
    """Formats a range of changes; if both ends are equal, as one value."""
    first, last = change(least), change(most)
    return first if first == last else f"{first} to {last}"


def conclusion(result: RehearsalResult) -> Iterator[str]:
    """Formats which settings are better, and how certain that is."""
    for judgement in result.judgements:
        yield printable(_sentence(judgement, result.question))
    winners = best(result.judgements)
    if winners:
        against = result.judgements[0].against
        yield printable(f"Better for this server than {against}, by this rehearsal: {' or '.join(winners)}.")
    elif any(each.verdict is Verdict.TOO_FEW for judgement in result.judgements for each in judgement.comparisons):
        if result.plan.seeds < FEWEST:
            yield f"There are too few runs to decide which is better: use --seeds {FEWEST} or more."
        else:
            yield "Too few runs completed to decide which is better: use a larger --size, or more --seeds."
    elif any(judgement.named(Verdict.BETTER) for judgement in result.judgements):
        yield "No variant is better without being worse in another measure: choose by what matters more on this server."
    else:
        yield "No variant is better: there is no reason to change a setting."


def _sentence(judgement: VariantJudgement, question: str | None) -> str:
    if not judgement.comparisons:
        return f"{judgement.variant}: nothing can be compared."
    chosen = QUESTIONS[question].measures if question else tuple(NAMES)
    better, worse = judgement.named(Verdict.BETTER), judgement.named(Verdict.WORSE)
    asked = _better_and_worse(better, worse, lambda each: each.measure in chosen)
    besides = _better_and_worse(better, worse, lambda each: each.measure not in chosen)
    if asked:
        sentence = f"{judgement.variant} is {asked} than {judgement.against}" + (f"; besides, it is {besides}" if besides else "")
    else:
        few = judgement.comparisons[0].verdict is Verdict.TOO_FEW
        seen = "has too few runs to distinguish it from" if few else "shows no difference from"
        sentence = f"{judgement.variant}: {seen} {judgement.against}{' in the measures of the question' if question else ''}"
        sentence += f"; it is {besides} than that" if besides else ""
    if not asked and not besides:
        return f"{sentence}."
    sure = max(each.chance for each in (*better, *worse))
    return f"{sentence}. By chance alone, the same agreement occurs in {sure:.1%} of cases."


def _better_and_worse(
    better: Iterable[MeasureComparison], worse: Iterable[MeasureComparison], which: Callable[[MeasureComparison], bool]
) -> str:
    """Formats the measures in which it is better and worse, of those for which `which` returns True; "" for none."""
    measures = {
        words: [
            f"{NAMES[measure_comparison.measure]} ({change(measure_comparison.median)})"
            for measure_comparison in measure_comparisons
            if which(measure_comparison)
        ]
        for words, measure_comparisons in (("better", better), ("worse", worse))
    }
    return "; ".join(f"{words} in {', '.join(names)}" for words, names in measures.items() if names)


def medians(runs: Sequence[RehearsedRun], variant: str, of: Callable[[NightReading], float]) -> list[float]:
    """Returns for each night the median over the seeds of a variant, up to the last night that all seeds reached."""
    night_lists = [run.nights for run in runs if run.variant == variant and run.nights]
    return [median(of(night) for night in together) for together in zip(*night_lists, strict=False)]


def caveats(plan: RehearsalPlan, facts: ServerFacts) -> Iterator[str]:
    """Describes the assumptions that replace unknown facts."""
    yield from (printable(f"{why}: typical values are used instead") for why in facts.unknown)
    if plan.fleet.assumed:
        hosts = ", ".join(plan.fleet.assumed[:5]) + (", ..." if len(plan.fleet.assumed) > 5 else "")
        yield printable(
            f"the catalogue has fewer than three complete backups of {hosts}: typical changes are used, as on the other hosts"
        )
    if plan.seeds < FEWEST:
        yield f"with fewer than {FEWEST} seeds no difference can be distinguished from chance"
