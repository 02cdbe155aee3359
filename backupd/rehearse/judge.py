"""Judges which of two settings is better, by pairs: the same seed with the one and with the other. Pure.

A difference counts when so many pairs agree in its direction that chance alone would do so in less than one of fifteen cases (the
sign test, two-sided, ties left out: five of five, or seven of eight), and when it is at least one hundredth on median.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import comb
from statistics import fmean, median

from backupd.rehearse.model import NightReading, RehearsedRun

CERTAIN = 1 / 15
FEWEST = 5
"""With fewer pairs not even all of them that agree would be enough."""
RELEVANT = 0.01


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a run; less is better."""

    name: str
    """Its name."""
    unit: str
    """Its unit."""
    of: Callable[[Sequence[NightReading]], float]
    """Computes it from the nights."""


def _late(nights: Sequence[NightReading]) -> Sequence[NightReading]:
    """The last quarter: how the pool is left."""
    return nights[-max(len(nights) // 4, 1) :]


def _written_each(nights: Sequence[NightReading]) -> float:
    new = sum(night.new for night in nights)
    return float(sum(night.written for night in nights) / new) if new else 0.0


MEASURES: Mapping[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure("unused", "bytes", lambda nights: fmean(night.data_allocated - night.data_used for night in _late(nights))),
        Measure("used", "bytes", lambda nights: fmean(night.used for night in _late(nights))),
        Measure("metadata", "bytes", lambda nights: fmean(night.metadata_used for night in _late(nights))),
        Measure("score", "", lambda nights: fmean(night.score for night in _late(nights))),
        Measure("fragments", "", lambda nights: fmean(night.fragments for night in _late(nights))),
        Measure("written", "bytes", lambda nights: float(sum(night.written for night in nights))),
        Measure("amplification", "", _written_each),
        Measure("expiry_written", "bytes", lambda nights: float(sum(night.expiry_written for night in nights))),
        Measure("balance_written", "bytes", lambda nights: float(sum(night.balance_written for night in nights))),
        Measure("night_seconds", "s", lambda nights: median(night.night_seconds for night in nights)),
        Measure("expiry_seconds", "s", lambda nights: float(sum(night.expiry_seconds for night in nights))),
    )
}


class Verdict(StrEnum):
    """What the pairs say of a measure."""

    BETTER = "better"
    WORSE = "worse"
    NO_DIFFERENCE = "no difference seen"
    TOO_FEW = "too few runs"


@dataclass(frozen=True, slots=True)
class MeasureComparison:
    """A variant against another in one measure. Differences are relative: -0.1 is a tenth less, which is better."""

    measure: str
    """The measure's name."""
    first: float
    """The value of the other variant."""
    second: float
    """The value of this variant."""
    median: float
    """The median difference of the pairs."""
    least: float
    """The lower end of its range."""
    most: float
    """The upper end of its range."""
    lower: int
    """Number of pairs in which this variant has less."""
    higher: int
    """Number of pairs in which it has more."""
    chance: float
    """How often chance alone would make the pairs agree as much, 0 to 1."""
    verdict: Verdict
    """What follows from that."""


@dataclass(frozen=True, slots=True)
class VariantJudgement:
    """A variant against the first one."""

    variant: str
    """Its name."""
    against: str
    """The first one's name."""
    comparisons: tuple[MeasureComparison, ...]
    """One for each measure."""

    def named(self, verdict: Verdict) -> list[MeasureComparison]:
        """The measures of which that is said."""
        return [comparison for comparison in self.comparisons if comparison.verdict is verdict]


def sign_test(lower: int, higher: int) -> float:
    """Returns the share of cases in which a fair coin is as one-sided, to either side."""
    count = lower + higher
    tail = sum(comb(count, number) for number in range(max(lower, higher), count + 1))
    return min(2.0 * tail / float(2**count), 1.0)


def compare(measure: str, pairs: Sequence[tuple[float, float]]) -> MeasureComparison:
    """One or more pairs: the number with the first settings, and with the second."""
    differences = [_relative(first, second) for first, second in pairs]
    lower, higher = sum(difference < 0 for difference in differences), sum(difference > 0 for difference in differences)
    middle, chance = median(differences), sign_test(lower, higher)
    return MeasureComparison(
        measure=measure,
        first=median(first for first, _ in pairs),
        second=median(second for _, second in pairs),
        median=middle,
        least=min(differences),
        most=max(differences),
        lower=lower,
        higher=higher,
        chance=chance,
        verdict=_verdict(len(pairs), middle, chance),
    )


def _relative(first: float, second: float) -> float:
    """The difference as a share of the larger one, so it is never infinite."""
    largest = max(abs(first), abs(second))
    return (second - first) / largest if largest else 0.0


def _verdict(count: int, middle: float, chance: float) -> Verdict:
    if count < FEWEST:
        return Verdict.TOO_FEW
    if chance > CERTAIN or abs(middle) < RELEVANT:
        return Verdict.NO_DIFFERENCE
    return Verdict.BETTER if middle < 0 else Verdict.WORSE


def judged(runs: Sequence[RehearsedRun], variants: Sequence[str]) -> tuple[VariantJudgement, ...]:
    """Compares each variant with the first, by the seeds that both have."""
    by_variant = {
        name: {run.seed: run.nights for run in runs if run.variant == name and run.full is None and run.nights} for name in variants
    }
    first, *others = variants
    variant_judgements = []
    for other in others:
        seeds = sorted(by_variant[first].keys() & by_variant[other].keys())
        pairs = [(by_variant[first][seed], by_variant[other][seed]) for seed in seeds]
        comparisons = (
            (compare(measure.name, [(measure.of(a), measure.of(b)) for a, b in pairs]) for measure in MEASURES.values())
            if pairs
            else ()
        )
        variant_judgements.append(VariantJudgement(other, first, tuple(comparisons)))
    return tuple(variant_judgements)


def best(judgements: Sequence[VariantJudgement]) -> tuple[str, ...]:
    """Returns the variant that is better than the first in some measure and worse in none; of several that in most of them, or all
    that are so in as many: they were not compared with each other.
    """
    clear = {
        judgement.variant: len(judgement.named(Verdict.BETTER)) for judgement in judgements if not judgement.named(Verdict.WORSE)
    }
    most = max(clear.values(), default=0)
    return tuple(name for name, number in clear.items() if number == most > 0)
