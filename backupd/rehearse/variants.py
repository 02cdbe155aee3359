"""Settings side by side, as an operator types them (`NAME:KEY=VALUE,KEY=VALUE`), and which of two is better. Pure.

Other settings are as configured. Balance and compression have values with a colon in them, so a name ends at the first colon before
the first equals sign.

Two settings are compared in pairs with the same seed. A difference counts if the pairs agree in its direction so often that chance
alone would do so in less than one of fifteen cases (the sign test, two-sided, without ties: five of five, or seven of eight), and
if its median is at least one hundredth.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from math import comb
from statistics import fmean, median
from typing import Any

from backupd.rehearse.rehearsal_types import NightReading, RehearsedBalance, RehearsedRun, Variant, VariantSettings
from btrkeep.choices import ALLOCATORS, BALANCE_POLICIES, IN_PLACE
from btrkeep.config import Retention
from btrkeep.config.config_model import PERIOD_NAMES
from btrkeep.errors import UsageError, did_you_mean
from btrkeep.units import parse_duration, parse_share, parse_size

CONFIGURED = "configured"
"""The name of the present settings."""
_LEVELS = {"zstd": 15, "zlib": 9}
_NODESIZES = tuple(1 << power for power in range(12, 17))
_RETENTION = tuple(field.name for field in fields(Retention))
_LONGEST_NAME = 40


@dataclass(frozen=True, slots=True)
class _Key:
    """A setting that a variant may change."""

    parse: Callable[[str], Any]
    """Returns the value; raises ValueError."""
    values: str
    """The possible values, in words."""


def _one_of(*words: str) -> _Key:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    return _Key(parse, ", ".join(words))


def _balance(text: str) -> RehearsedBalance | None:
    """Parses "score:5%"; None for "none"."""
    if text == "none":
        return None
    policy, _, budget = text.partition(":")
    share = parse_share(budget or "5%")
    if policy not in BALANCE_POLICIES or not share:
        raise ValueError(text)
    return RehearsedBalance(policy, share)


def _compression(text: str) -> str:
    kind, colon, level = text.partition(":")
    if colon and not (level.isascii() and level.isdecimal() and 1 <= int(level) <= _LEVELS.get(kind, 0)):
        raise ValueError(text)
    if kind not in ("none", "lzo", *_LEVELS):
        raise ValueError(text)
    return text


def _nodesize(text: str) -> int:
    size = parse_size(text)
    if size not in _NODESIZES:
        raise ValueError(text)
    return size


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(text)
    return int(text)


KEYS: Mapping[str, _Key] = {
    "allocator": _one_of(*ALLOCATORS),
    "expiry": _one_of(*ALLOCATORS, "none"),
    "balance": _Key(
        _balance, "none, or benefit, score or usage with the share of the data that a night may move, such as score:5%"
    ),
    "inplace": _one_of(*IN_PLACE),
    "compression": _Key(_compression, "none, lzo, zlib:1 to zlib:9, zstd:1 to zstd:15"),
    "nodesize": _Key(_nodesize, "4KiB, 8KiB, 16KiB, 32KiB, 64KiB"),
    "metadata": _one_of("single", "dup"),
    **dict.fromkeys((*PERIOD_NAMES, "min_keep"), _Key(_count, "a number")),
    "grace": _Key(parse_duration, "a duration, such as 3d"),
}
"""Every key of a variant."""


def parse_variant(text: str, base: VariantSettings) -> Variant:
    """Returns the variant. Raises UsageError, which names the most similar key."""
    name, rest = _parted(text)
    changed: dict[str, Any] = {}
    retention = dict(base.retention)
    for pair in filter(None, rest.split(",")):
        word, equals, value = (part.strip() for part in pair.partition("="))
        key = KEYS.get(word)
        if key is None:
            hint = f"the keys are {', '.join(KEYS)}"
            raise UsageError(f"variant {text!r}: unknown key {word!r}", did_you_mean(word, KEYS, hint))
        if not equals:
            raise UsageError(f"variant {text!r}: {word} has no value", f"write {word}=VALUE: {key.values}")
        if word in changed:
            raise UsageError(f"variant {text!r}: {word} is given twice", "name each key once")
        try:
            changed[word] = key.parse(value)
        except ValueError:
            raise UsageError(f"variant {text!r}: {value!r} is not a value for {word}", f"{word} takes {key.values}") from None
    retention |= {word: value for word, value in changed.items() if word in _RETENTION}
    others = {word: value for word, value in changed.items() if word not in _RETENTION}
    return Variant(name, replace(base, retention=retention, **others), rest)


def _parted(text: str) -> tuple[str, str]:
    """Returns the name and the settings. Raises UsageError."""
    text = text.strip()
    if text == CONFIGURED:
        return text, ""
    before, equals, _ = text.partition("=")
    name, colon, _ = before.partition(":")
    rest = text[len(name) + 1 :] if colon else text
    name = (name if colon else text).strip()
    if not name or not name.isprintable() or (not equals and not colon):
        raise UsageError(f"{text!r} is not a variant", f"write NAME:KEY=VALUE,KEY=VALUE, or {CONFIGURED} for the current settings")
    return name[:_LONGEST_NAME], rest.strip()


@dataclass(frozen=True, slots=True)
class Question:
    """A common question: the variants that answer it, the first of which the others are compared with, and the measures
    that count.
    """

    variants: tuple[str, ...]
    measures: tuple[str, ...]


QUESTIONS: Mapping[str, Question] = {
    "holes": Question(("ssd:allocator=ssd,expiry=none", "nossd:allocator=nossd,expiry=none"), ("unused", "fragments", "score")),
    "expiry": Question(
        ("nossd:allocator=nossd,expiry=none", "toggled:allocator=nossd,expiry=ssd", "ssd:allocator=ssd,expiry=none"),
        ("expiry_seconds", "expiry_written"),
    ),
    "balance": Question(
        ("usage:balance=usage:5%", "score:balance=score:5%", "benefit:balance=benefit:5%", "none:balance=none"),
        ("score", "fragments", "unused", "balance_written"),
    ),
    "inplace": Question(
        ("always:inplace=always", "large:inplace=large", "never:inplace=never"), ("used", "fragments", "written", "night_seconds")
    ),
    "compression": Question(
        ("none:compression=none", "zstd1:compression=zstd:1", "zstd3:compression=zstd:3"), ("used", "written", "night_seconds")
    ),
    "nodesize": Question(
        ("16KiB:nodesize=16KiB", "4KiB:nodesize=4KiB", "64KiB:nodesize=64KiB"), ("metadata", "written", "expiry_seconds")
    ),
}
"""The questions by name, as in `--question NAME`."""


def variants_of(question: str | None, texts: tuple[str, ...], base: VariantSettings) -> tuple[Variant, ...]:
    """Returns the variants of the question and the given ones. A single one is compared with the present settings. Raises
    UsageError.
    """
    given = (*(QUESTIONS[question].variants if question else ()), *texts)
    variants = [parse_variant(text, base) for text in given]
    if len(variants) == 1 and variants[0].changed:
        variants.insert(0, Variant(CONFIGURED, base))
    names = [variant.name for variant in variants]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two variants are named {twice!r}", "give each a name: NAME:KEY=VALUE")
    if len(variants) < 2:
        raise UsageError("there is nothing to compare", "give --question NAME, or --variant NAME:KEY=VALUE, one or more times")
    return tuple(variants)


CERTAIN = 1 / 15
FEWEST = 5
"""With fewer pairs, even full agreement would not be sufficient."""
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
    """The last quarter: the final state of the pool."""
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
    """The verdict of the pairs on a measure."""

    BETTER = "better"
    WORSE = "worse"
    NO_DIFFERENCE = "no difference seen"
    TOO_FEW = "too few runs"


@dataclass(frozen=True, slots=True)
class MeasureComparison:
    """A variant compared with another in one measure. Differences are relative: -0.1 is a tenth less, which is better."""

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
    """The probability that the pairs agree as much by chance, 0 to 1."""
    verdict: Verdict
    """The conclusion."""


@dataclass(frozen=True, slots=True)
class VariantJudgement:
    """A variant compared with the first one."""

    variant: str
    """Its name."""
    against: str
    """The first one's name."""
    comparisons: tuple[MeasureComparison, ...]
    """One for each measure."""

    def named(self, verdict: Verdict) -> list[MeasureComparison]:
        """The measures with this verdict."""
        return [comparison for comparison in self.comparisons if comparison.verdict is verdict]


def sign_test(lower: int, higher: int) -> float:
    """Returns the probability that a fair coin is as one-sided, to either side."""
    count = lower + higher
    tail = sum(comb(count, number) for number in range(max(lower, higher), count + 1))
    return min(2.0 * tail / float(2**count), 1.0)


def compare(measure: str, pairs: Sequence[tuple[float, float]]) -> MeasureComparison:
    """Compares one or more pairs: the number with the first settings, and with the second."""
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
    """Returns the difference as a share of the larger one, so it is never infinite."""
    largest = max(abs(first), abs(second))
    return (second - first) / largest if largest else 0.0


def _verdict(count: int, middle: float, chance: float) -> Verdict:
    if count < FEWEST:
        return Verdict.TOO_FEW
    if chance > CERTAIN or abs(middle) < RELEVANT:
        return Verdict.NO_DIFFERENCE
    return Verdict.BETTER if middle < 0 else Verdict.WORSE


def judged(runs: Sequence[RehearsedRun], variants: Sequence[str]) -> tuple[VariantJudgement, ...]:
    """Compares each variant with the first, using the seeds that both have."""
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
    """Returns the variants that are better than the first in at least one measure and worse in none. Of several, those that are
    better in the most measures: they were not compared with each other.
    """
    clear = {
        judgement.variant: len(judgement.named(Verdict.BETTER)) for judgement in judgements if not judgement.named(Verdict.WORSE)
    }
    most = max(clear.values(), default=0)
    return tuple(name for name, number in clear.items() if number == most > 0)
