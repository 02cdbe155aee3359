"""The three documents that are made of the table: where they are, and what stands in them."""

from pathlib import Path

from backupd.metrics import dashboard, rules
from btrkeep.config.reference import wrapped
from btrkeep.metric_table import METRICS, Metric

BEGIN, END = ".. metrics begin here\n", ".. metrics end here\n"


def documents(docs: Path) -> dict[Path, str]:
    """Path and text of each below the folder `docs`. Of monitoring.rst the part between the marks is made, the rest is as it is.

    Raises OSError, and ValueError when a mark is missing.
    """
    page = docs / "monitoring.rst"
    return {
        docs / "monitoring" / "alerts.yml": rules.as_yaml(),
        docs / "monitoring" / "grafana.json": dashboard.as_json(),
        page: refreshed(page.read_text(encoding="utf-8")),
    }


def refreshed(text: str) -> str:
    """The page with its list of metrics made anew. Raises ValueError when a mark is missing."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{''.join(map(_entry, METRICS))}\n{END}{after}"


def _entry(metric: Metric) -> str:
    labels = f" Labels: {', '.join(f'``{label}``' for label in metric.labels)}." if metric.labels else ""
    kind = " A counter." if metric.kind == "counter" else ""
    return f"``{metric.name}``\n{wrapped(f'{metric.meaning}{kind}{labels}')}\n"
