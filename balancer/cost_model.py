"""Estimates what balancing a block group takes, in bytes of metadata and seconds, from the costs of earlier ones. Pure."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import combinations

import numpy as np

from balancer.score import Array
from balancer.survey import Cost


@dataclass(frozen=True, slots=True)
class Estimate:
    """What balancing a block group will cost."""

    moved: int
    """Bytes of data."""
    metadata: int
    """Bytes written to the devices in addition."""
    seconds: float
    """Duration."""


@dataclass(frozen=True, slots=True)
class MeasuredBalance:
    """The measured cost of one balanced block group."""

    moved: int
    """Bytes of data."""
    extents: int
    """Number of its extents."""
    references: int
    """Number of references to its extents."""
    written: int
    """Bytes that the devices wrote, including data."""
    seconds: float
    """How long it took."""


FEW, SOME = 1_000, 10_000


@dataclass(frozen=True, slots=True)
class Rates:
    """The cost of each item of a block group; the sum is its estimate. No rate is negative.

    A reference is an item in a leaf of a subvolume's tree, and each leaf is written once, even if several of its items change.
    The first references are each in a leaf of their own; later ones share leaves. So the first ones cost most.
    """

    group: float = 0.0
    """For the block group itself."""
    byte: float = 0.0
    """For each moved byte."""
    extent: float = 0.0
    """For each moved extent."""
    reference: float = 0.0
    some: float = 0.0
    """In addition, for each of the first SOME references."""
    few: float = 0.0
    """In addition, for each of the first FEW references."""

    def of(self, cost: Cost) -> float:
        """Returns the estimate for one block group."""
        return float(sum(rate * number for rate, number in zip(astuple(self), _features(cost), strict=True)))


def _features(cost: Cost) -> tuple[int, ...]:
    """Returns the quantity that each of the rates multiplies."""
    references = (min(cost.references, limit) for limit in (SOME, FEW))
    return (1, cost.moves, cost.extents, cost.references, *references)


@dataclass(frozen=True, slots=True)
class Model:
    """`metadata`: rates in bytes written beyond the data. `seconds`: rates in seconds."""

    metadata: Rates
    seconds: Rates

    def estimate(self, cost: Cost) -> Estimate:
        """Returns the estimate for one block group."""
        return Estimate(cost.moves, round(self.metadata.of(cost)), self.seconds.of(cost))


DEFAULT = Model(
    metadata=Rates(group=5.5e6, byte=0.006, reference=1600.0, some=7700.0, few=40_000.0),
    seconds=Rates(group=0.02, byte=1.1e-9, reference=2.7e-5, some=6e-5, few=1e-4),
)
"""Measured (docs/decisions/0011) with metadata stored twice, as is usual; the seconds are those of a fast device."""

_TYPICAL = (
    Cost(extents=20, references=60, moves=800 << 20, largest=64 << 20),
    Cost(extents=700, references=3000, moves=400 << 20, largest=4 << 20),
    Cost(extents=15_000, references=70_000, moves=600 << 20, largest=1 << 20),
)
"""Typical block groups of a backup server: with large files, medium ones, small ones."""
_TURNS = 8
_EXACT = 0.01
_OUTLIER = 3.0  # multiples of the median deviation above which a value has less weight


def fit(steps: Sequence[MeasuredBalance]) -> Model:
    """Learns from the costs of block groups of this filesystem, in any order. Starts with the _TYPICAL block groups at the cost of
    DEFAULT: without steps the result is DEFAULT, whose weight decreases with each step.

    Errors are relative: a block group that takes seconds counts as much as one that takes minutes. Outliers that took far more than
    the others (because another program wrote) get little weight. A step that wrote less than its data was measured wrongly, because
    the data was written later, and does not count for bytes.
    """
    written = [(_cost(step), float(step.written - step.moved)) for step in steps if step.written > step.moved]
    seconds = [(_cost(step), step.seconds) for step in steps if step.seconds > 0]
    assumed = [DEFAULT.estimate(cost) for cost in _TYPICAL]
    return Model(
        _learned(written, DEFAULT.metadata, [float(estimate.metadata) for estimate in assumed], 1 << 20),
        _learned(seconds, DEFAULT.seconds, [estimate.seconds for estimate in assumed], 0.1),
    )


def _cost(step: MeasuredBalance) -> Cost:
    return Cost(step.extents, step.references, step.moved, 0)


def _learned(measured: Sequence[tuple[Cost, float]], default: Rates, assumed: Sequence[float], least: float) -> Rates:
    if not measured:
        return default
    features = np.array([_features(cost) for cost in (*_TYPICAL, *(cost for cost, _ in measured))], float)
    took = np.array([*assumed, *(took for _, took in measured)])
    trust = np.ones(len(took))
    trust[: len(assumed)] = len(assumed) / len(took)
    return _fitted(features, took, trust, least)


def _fitted(features: Array, took: Array, trust: Array, least: float) -> Rates:
    """Returns the rates for which `features` f64[n, k] approximate `took` f64[n] best, weighted by `trust` f64[n].

    Errors are relative to what it took, but at least to `least`.
    """
    scale = 1 / np.maximum(took, least)
    weights = trust
    rates = np.zeros(features.shape[1])
    for _ in range(_TURNS):
        root = np.sqrt(weights) * scale
        rates = non_negative(features * root[:, None], took * root)
        off = np.abs(features @ rates - took) * scale
        limit = max(_EXACT, _OUTLIER * float(np.median(off)))
        weights = trust * limit / np.maximum(off, limit)
    return Rates(*rates.tolist())


def non_negative(features: Array, took: Array) -> Array:
    """f64[k], none below zero: the least squares solution of `features` f64[n, k] times it being `took` f64[n].

    There are few features, so each subset of non-zero ones is tried: one of them is the best.
    """
    unit = np.maximum(np.linalg.norm(features, axis=0), 1e-300)
    best, least = np.zeros(features.shape[1]), float(took @ took)
    for count in range(1, features.shape[1] + 1):
        for columns in map(list, combinations(range(features.shape[1]), count)):
            rates = np.linalg.lstsq(features[:, columns] / unit[columns], took, rcond=None)[0]
            error = took - features[:, columns] / unit[columns] @ rates
            if (rates >= 0).all() and (squares := float(error @ error)) < least * (1 - 1e-12):
                best, least = np.zeros(features.shape[1]), squares
                best[columns] = rates / unit[columns]
    return best
