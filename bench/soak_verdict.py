"""The verdict of bench.soak about its figures: whether one creeps over the nights. Pure.

Nights are not independent of each other: a backup stays for weeks, a balance is felt for days. So the uncertainty of a slope is
that of a moving block bootstrap, which draws whole weeks of residuals.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.soak_site import HORIZON

Floats = NDArray[np.float64]
STEADY, CREEPS, UNSURE = "steady", "creeps", "unsure"
BLOCK = 7
"""Nights that are drawn together."""
PER = 100
"""A growth is measured over this many nights."""
_FEWEST = 2 * BLOCK
_DRAWN = 500
_OUTSIDE = 0.025


@dataclass(frozen=True, slots=True)
class Trend:
    """`growth`: over PER nights, as a share of the median; `low` and `high`: its 95 % interval. `limit`: the allowed growth."""

    growth: float
    low: float
    high: float
    limit: float

    @property
    def verdict(self) -> str:
        """STEADY: even `high` is within the limit. CREEPS: even `low` is above it. UNSURE: neither."""
        if self.high <= self.limit:
            return STEADY
        return CREEPS if self.low > self.limit else UNSURE


def trend(readings: Sequence[float | None], limit: float, seed: int = 1) -> Trend | None:
    """Returns the trend of a figure over successive nights; None for a night: unknown. Returns None if there are too few."""
    measured_nights = [(night, value) for night, value in enumerate(readings) if value is not None]
    middle = median(value for _, value in measured_nights) if measured_nights else 0.0
    if len(measured_nights) < _FEWEST or not middle:
        return None
    nights, values = (np.array(column, dtype=float) for column in zip(*measured_nights, strict=True))
    (slope,) = _slopes(nights, values[None, :])
    fitted = slope * nights + np.median(values - slope * nights)
    draw = random.Random(seed)
    drawn = np.array([_blocks(len(nights), draw) for _ in range(_DRAWN)])
    low, high = np.quantile(_slopes(nights, fitted + (values - fitted)[drawn]), (_OUTSIDE, 1 - _OUTSIDE))
    share = PER / middle
    return Trend(float(slope) * share, float(low) * share, float(high) * share, limit)


def _slopes(nights: Floats, many: Floats) -> Floats:
    """Returns the slope of each row, by Theil and Sen: the median of the slopes of all pairs, which single unusual nights do not
    change.
    """
    first, second = np.triu_indices(len(nights), 1)
    return np.asarray(np.median((many[:, second] - many[:, first]) / (nights[second] - nights[first]), axis=1))


def _blocks(count: int, draw: random.Random) -> list[int]:
    """Returns `count` numbers below `count`, in runs of BLOCK."""
    chosen_nights: list[int] = []
    while len(chosen_nights) < count:
        start = draw.randrange(count - BLOCK + 1)
        chosen_nights += range(start, start + BLOCK)
    return chosen_nights[:count]


LIMITS = {"memory": 0.1, "cpu": 0.2, "score": 0.5, "fragments": 0.5, "allocated": 0.2, "used": 0.1, "backups": 0.1}
"""How much a figure may grow in PER nights, once each night deletes as much as it makes."""
HISTORY = 400
"""Bytes that the catalogue may grow by for each host and night: what a run was is never deleted."""
_POOL = ("score", "fragments", "allocated", "backups")


def judged(nights: Sequence[Mapping[str, Any]], commands: Sequence[str], hosts: int) -> dict[str, dict[str, Any]]:
    """Returns the trends of all figures over the nights after HORIZON. A command counts only in nights in which it completed."""
    late = [night for night in nights if night["night"] > HORIZON]
    trends: dict[str, Trend | None] = {}
    for name in commands:
        for key in ("memory", "cpu"):
            trends[f"{name}: {key}"] = trend([_of(night, name, key) for night in late], LIMITS[key])
    for key in _POOL:
        trends[key] = trend([night.get(key) for night in late], LIMITS[key])
    used = [night["used"] / night["held"] if "held" in night else None for night in late]
    trends["used for each byte that the kept backups hold"] = trend(used, LIMITS["used"])
    sizes = [night["catalogue"] for night in late if "catalogue" in night]
    allowed = HISTORY * hosts * PER / median(sizes) if sizes else 0.0
    trends["catalogue"] = trend([night.get("catalogue") for night in late], allowed)
    return {name: {**asdict(trend), "verdict": trend.verdict} for name, trend in trends.items() if trend}


def bounds(nights: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the minimum unallocated share of the pool, and the highest score, in each half of the nights."""
    scored_nights = [night for night in nights if "score" in night]
    halves = {"first half": scored_nights[: len(scored_nights) // 2], "second half": scored_nights[len(scored_nights) // 2 :]}
    medians: dict[str, float] = {}
    for name, half in halves.items():
        if half:
            medians[f"least unallocated, {name}"] = min(1 - night["allocated"] / night["size"] for night in half)
            medians[f"highest score, {name}"] = max(night["score"] for night in half)
    return medians


def _of(night: Mapping[str, Any], command: str, key: str) -> float | None:
    done = night["commands"].get(command)
    return done[key] if done and done["status"] == 0 else None
