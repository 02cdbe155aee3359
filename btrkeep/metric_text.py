"""Samples of metrics, and the one writer of Prometheus' text format.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format. No sample has a time of its own: node_exporter
refuses a textfile with any, and Prometheus takes the time at which it reads.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from btrkeep.metric_table import METRICS, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_INFINITE = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}


class MetricSample(NamedTuple):
    """One value. `suffix`: what a part of a histogram has behind the metric's name."""

    labels: Sequence[tuple[str, str]]
    value: float
    suffix: str = ""


class MetricSamples:
    """Samples by metric, in the order of `metrics`. With a `pool` all of them have it as a label. The text has labels by name."""

    def __init__(self, pool: str | None, metrics: Sequence[Metric] = METRICS) -> None:
        self._common = () if pool is None else (("pool", pool),)
        self._samples: dict[Metric, list[MetricSample]] = {metric: [] for metric in metrics}

    def add(self, metric: Metric, value: float | None, *labels: str) -> None:
        """Adds one sample; None is unknown and adds none."""
        if value is not None:
            self._samples[metric].append(MetricSample(self._pairs(metric, labels), float(value)))

    def add_histogram(self, metric: Metric, bounds: Sequence[float], counts: Sequence[int], total: float, *labels: str) -> None:
        """Adds a histogram. `counts`: values up to each bound that are above the one before, then those above all bounds."""
        pairs, reached = self._pairs(metric, labels), 0
        for bound, count in zip([*bounds, float("inf")], counts, strict=True):
            reached += count
            self._samples[metric].append(MetricSample((*pairs, ("le", _number(bound))), float(reached), "_bucket"))
        self._samples[metric] += [MetricSample(pairs, float(reached), "_count"), MetricSample(pairs, total, "_sum")]

    def families(self) -> Iterator[tuple[Metric, Sequence[MetricSample]]]:
        """Yields each metric that has samples, with these."""
        return ((metric, samples) for metric, samples in self._samples.items() if samples)

    def text(self) -> bytes:
        """Returns all samples as Prometheus reads them. A character that UTF-8 cannot have becomes a question mark."""
        return "".join(line for metric, samples in self.families() for line in _lines(metric, samples)).encode("utf-8", "replace")

    def _pairs(self, metric: Metric, labels: Sequence[str]) -> Sequence[tuple[str, str]]:
        return (*self._common, *zip(metric.labels, labels, strict=True))


def _lines(metric: Metric, samples: Sequence[MetricSample]) -> Iterator[str]:
    meaning = metric.meaning.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {metric.name} {meaning}\n# TYPE {metric.name} {metric.kind}\n"
    for sample in samples:
        pairs = ",".join([f'{name}="{_escaped(label)}"' for name, label in sorted(sample.labels)])
        yield (
            f"{metric.name}{sample.suffix}{{{pairs}}} {_number(sample.value)}\n"
            if pairs
            else (f"{metric.name}{sample.suffix} {_number(sample.value)}\n")
        )


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    text = repr(value)
    return _INFINITE.get(text, text)
