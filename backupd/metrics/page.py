"""The part of docs/monitoring.rst that lists every metric, made from the table of metrics.

`python -m backupd.metrics docs/monitoring.rst` writes it anew; a test says when that is due.
"""

from btrkeep.config.reference import wrapped
from btrkeep.metric_table import METRICS, Metric

BEGIN, END = ".. metrics begin here\n", ".. metrics end here\n"


def refreshed(text: str) -> str:
    """`text` of the page with the metrics between the two marks made anew. Raises ValueError when a mark is missing."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{''.join(map(_entry, METRICS))}\n{END}{after}"


def _entry(metric: Metric) -> str:
    labels = f" Labels: {', '.join(f'``{label}``' for label in metric.labels)}." if metric.labels else ""
    kind = " A counter." if metric.kind == "counter" else ""
    return f"``{metric.name}``\n{wrapped(f'{metric.meaning}{kind}{labels}')}\n"
