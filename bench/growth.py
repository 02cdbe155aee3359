"""What bench.grows makes of its figures: exponents, and a table for bench.common.report. Pure."""

from collections.abc import Mapping, Sequence
from math import log
from statistics import linear_regression, median

from bench.common import spread

LIMIT = 1.1
"""Agreed: no exponent is higher."""
SECONDS, CPU, MEMORY = "seconds", "seconds of CPU time", "MB of memory"
COUNTERS = {
    "rchar": "MB read, caches included",
    "wchar": "MB written, caches included",
    "read_bytes": "MB read from disks",
    "write_bytes": "MB written to disks",
}
"""What the names in /proc/PID/io mean, in 1,000,000 bytes."""
Figures = Mapping[str, float]
"""One measurement: a number for SECONDS, CPU, MEMORY and each of the COUNTERS' meanings."""


def megabytes(counters: Mapping[str, int]) -> Figures:
    """The figures of I/O, from bytes by the names of /proc/PID/io."""
    return {words: counters[name] / 1e6 for name, words in COUNTERS.items()}


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """Returns the slope of log value over log size, by least squares; None for a single size, or if a value is 0."""
    if len(sizes) < 2 or min(values) <= 0:
        return None
    return linear_regression([log(size) for size in sizes], [log(value) for value in values]).slope


def summary(found: Mapping[str, Mapping[int, Sequence[Figures]]]) -> dict[str, dict[str, dict[str, float]]]:
    """By part and figure: the spread at each number of hosts, and the exponents of the medians. Leaves out figures that are all 0.

    `found` has the measurements by part and number of hosts, the smallest number first.
    """
    told: dict[str, dict[str, dict[str, float]]] = {}
    for part, by_size in found.items():
        for what in (SECONDS, CPU, MEMORY, *COUNTERS.values()):
            values = {hosts: [figures[what] for figures in some] for hosts, some in by_size.items()}
            if any(any(some) for some in values.values()):
                told[f"{part}: {what}"] = _growth(values)
    return told


def _growth(values: Mapping[int, Sequence[float]]) -> dict[str, dict[str, float]]:
    told = {f"{hosts} hosts": spread(some) for hosts, some in values.items()}
    sizes, medians = list(values), [median(some) for some in values.values()]
    slopes = {"exponent, all sizes": exponent(sizes, medians)}
    if len(sizes) > 2:
        slopes["exponent, the two largest"] = exponent(sizes[-2:], medians[-2:])
    return told | {words: {**spread([slope]), "limit": LIMIT} for words, slope in slopes.items() if slope is not None}
