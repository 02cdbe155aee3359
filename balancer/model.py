"""What balancing a block group will take: bytes of metadata and seconds, from what others took before. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from balancer.score import Array
from balancer.survey import Cost


@dataclass(frozen=True, slots=True)
class Estimate:
    """`moved`: bytes of data. `metadata`: bytes written to the devices beyond these. `seconds`."""

    moved: int
    metadata: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Measured:
    """What one balanced block group had and took. `moved`: bytes of data; `written`: bytes that the devices wrote, data too."""

    moved: int
    extents: int
    references: int
    written: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Rates:
    """What is taken by each block group, byte that moves, extent and reference. None is below zero."""

    group: float
    byte: float
    extent: float
    reference: float

    def of(self, cost: Cost) -> float:
        """For one block group."""
        return self.group + self.byte * cost.moves + self.extent * cost.extents + self.reference * cost.references


@dataclass(frozen=True, slots=True)
class Model:
    """`metadata`: rates in bytes written beyond the data. `seconds`: rates in seconds."""

    metadata: Rates
    seconds: Rates

    def estimate(self, cost: Cost) -> Estimate:
        """For one block group."""
        return Estimate(cost.moves, round(self.metadata.of(cost)), self.seconds.of(cost))


DEFAULT = Model(metadata=Rates(4e6, 0.002, 200.0, 400.0), seconds=Rates(0.2, 1e-9, 1e-5, 1e-5))
"""Measured; the seconds are those of a fast device."""


_TYPICAL = (
    Cost(extents=20, references=60, moves=800 << 20, largest=64 << 20),
    Cost(extents=700, references=3000, moves=400 << 20, largest=4 << 20),
    Cost(extents=15_000, references=70_000, moves=600 << 20, largest=1 << 20),
)
"""Block groups such as a backup server has: large files, middling ones, small ones."""
_TURNS = 20
_OUTLIER = 1.5  # what lies this many times further off than the median does weighs less, the more so the further off


def fit(steps: Sequence[Measured]) -> Model:
    """Learns from what block groups of this filesystem took, in any order.

    As if the three of _TYPICAL had taken what DEFAULT says, so with no steps it is DEFAULT, and the more there are the less it counts.
    Errors are relative: a block group that takes seconds weighs as much as one that takes minutes. Of one that took far more than
    the others say (somebody else wrote meanwhile) little is believed.
    """
    if not steps:
        return DEFAULT
    costs = [*_TYPICAL, *(Cost(step.extents, step.references, step.moved, 0) for step in steps)]
    assumed = [DEFAULT.estimate(cost) for cost in _TYPICAL]
    metadata = [one.metadata for one in assumed] + [max(0, step.written - step.moved) for step in steps]
    seconds = [one.seconds for one in assumed] + [step.seconds for step in steps]
    features = np.array([(1, cost.moves, cost.extents, cost.references) for cost in costs], float)
    return Model(_fitted(features, np.array(metadata, float), 1 << 20), _fitted(features, np.array(seconds), 0.1))


def _fitted(features: Array, took: Array, least: float) -> Rates:
    """Rates for which `features` f64[n, 4] come nearest to `took` f64[n]; what took less than `least` counts as if it took that."""
    scale = 1 / np.maximum(took, least)
    weights = np.ones(len(took))
    rates = np.zeros(features.shape[1])
    for _ in range(_TURNS):
        root = np.sqrt(weights) * scale
        rates = non_negative(features * root[:, None], took * root)
        off = np.abs(features @ rates - took) * scale
        limit = max(1e-9, _OUTLIER * float(np.median(off)))
        weights = limit / np.maximum(off, limit)
    return Rates(*rates.tolist())


def non_negative(features: Array, took: Array) -> Array:
    """f64[k], none below zero: the least squares solution of `features` f64[n, k] times it being `took` f64[n].

    There are few features, so it looks at each choice of those that are not zero: one of them is the best.
    """
    unit = np.maximum(np.linalg.norm(features, axis=0), 1e-300)
    best, least = np.zeros(features.shape[1]), float(took @ took)
    for count in range(1, features.shape[1] + 1):
        for some in map(list, combinations(range(features.shape[1]), count)):
            found = np.linalg.lstsq(features[:, some] / unit[some], took, rcond=None)[0]
            error = took - features[:, some] / unit[some] @ found
            if (found >= 0).all() and (squares := float(error @ error)) < least * (1 - 1e-12):
                best, least = np.zeros(features.shape[1]), squares
                best[some] = found / unit[some]
    return best
