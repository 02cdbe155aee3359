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
    """Returns the figures of I/O in megabytes, from bytes by the names of /proc/PID/io."""
    return {words: counters[name] / 1e6 for name, words in COUNTERS.items()}


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """Returns the slope of log value over log size, by least squares; None for a single size, or if a value is 0."""
    if len(sizes) < 2 or min(values) <= 0:
        return None
    return linear_regression([log(size) for size in sizes], [log(value) for value in values]).slope


def summary(figures_by_part: Mapping[str, Mapping[int, Sequence[Figures]]]) -> dict[str, dict[str, dict[str, float]]]:
    """By part and figure: the spread at each number of hosts, and the exponents of the medians. Leaves out figures that are all 0.

    `figures_by_part` has the measurements by part and number of hosts, the smallest number first.
    """
    summaries: dict[str, dict[str, dict[str, float]]] = {}
    for part, by_size in figures_by_part.items():
        for measure in (SECONDS, CPU, MEMORY, *COUNTERS.values()):
            values = {hosts: [figures[measure] for figures in series] for hosts, series in by_size.items()}
            if any(any(series) for series in values.values()):
                summaries[f"{part}: {measure}"] = _growth(values)
    return summaries


def _growth(values: Mapping[int, Sequence[float]]) -> dict[str, dict[str, float]]:
    spreads = {f"{hosts} hosts": spread(series) for hosts, series in values.items()}
    sizes, medians = list(values), [median(series) for series in values.values()]
    slopes = {"exponent, all sizes": exponent(sizes, medians)}
    if len(sizes) > 2:
        slopes["exponent, the two largest"] = exponent(sizes[-2:], medians[-2:])
    return spreads | {words: {**spread([slope]), "limit": LIMIT} for words, slope in slopes.items() if slope is not None}
