"""A dashboard for Grafana, as data. Its expressions name metrics only through the table."""

import json
from dataclasses import dataclass, field
from typing import Any

from btrkeep import metric_table as m

_POOL = 'pool=~"$pool"'
_UNWELL = 'state!="ok"'
_WIDTH = 24  # columns of Grafana's grid
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_GREEN_TO_RED = {"ok": "green", "late": "yellow", "suspect": "orange", "failing": "red", "never": "dark-red"}


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: `queries` are (expression, legend). `unit` is one of Grafana's. `width` and `height` are cells of its grid."""

    title: str
    kind: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    width: int = 12
    height: int = 8
    stacked: bool = False
    steps: tuple[tuple[str, float | None], ...] = (("green", None),)
    description: str = ""
    columns: dict[str, str] = field(default_factory=dict)


def _of(metric: m.Metric, *labels: str) -> str:
    return f"{metric}{{{', '.join((_POOL, *labels))}}}"


_ALLOCATED, _USED, _SIZE = _of(m.DEVICES_ALLOCATED), _of(m.DEVICES_USED), _of(m.DEVICES_SIZE)
PANELS = (
    Panel("Hosts", "stat", ((f"sum({_of(m.HOSTS)})", "hosts"),), width=3, height=4),
    Panel(
        "Not well",
        "stat",
        ((f"sum({_of(m.HOSTS, _UNWELL)})", "not ok"),),
        width=3,
        height=4,
        steps=(("green", None), ("orange", 1), ("red", 10)),
    ),
    Panel(
        "Oldest backup",
        "stat",
        ((f"max(time() - {_of(m.HOST_SUCCESS)})", "age"),),
        "s",
        3,
        4,
        steps=(("green", None), ("orange", 129600), ("red", 259200)),
    ),
    Panel("Transfers running", "stat", ((f"sum({_of(m.RUNNING)})", "running"), (f"sum({_of(m.DUE)})", "due")), width=4, height=4),
    Panel(
        "Room used",
        "gauge",
        ((f"1 - sum by (pool) ({_of(m.POOL_AVAILABLE)}) / on (pool) {_of(m.POOL_SIZE)}", "{{pool}}"),),
        "percentunit",
        4,
        4,
        steps=(("green", None), ("orange", 0.8), ("red", 0.9)),
    ),
    Panel(
        "Device errors",
        "stat",
        ((f"sum({_of(m.DEVICE_ERRORS)})", "errors"),),
        width=3,
        height=4,
        steps=(("green", None), ("red", 1)),
    ),
    Panel("Orphans", "stat", ((f"sum({_of(m.ORPHANS)})", "waiting"),), width=4, height=4),
    Panel("Hosts by state", "timeseries", ((f"sum by (state) ({_of(m.HOSTS)})", "{{state}}"),), stacked=True),
    Panel(
        "Allocated and used",
        "timeseries",
        ((f"sum({_ALLOCATED})", "allocated"), (f"sum({_USED})", "used"), (f"sum({_SIZE})", "size")),
        "bytes",
        description="What lies between the two is free space within block groups: when it grows, free space is fragmented.",
    ),
    Panel(
        "Hosts that are not well",
        "table",
        ((f"{_of(m.HOST_STATE, _UNWELL)} == 1", ""),),
        height=9,
        columns={"host": "Host", "state": "State", "pool": "Pool"},
    ),
    Panel(
        "The longest without a complete backup",
        "table",
        ((f"topk(20, time() - {_of(m.HOST_SUCCESS)})", ""),),
        "s",
        height=9,
        columns={"host": "Host", "pool": "Pool", "Value": "Age"},
    ),
    Panel(
        "Longest backups",
        "bargauge",
        ((f"topk(15, {_of(m.HOST_DURATION)})", "{{host}}"),),
        "s",
        height=9,
    ),
    Panel("Most new data", "bargauge", ((f"topk(15, {_of(m.HOST_NEW)})", "{{host}}"),), "bytes", height=9),
    Panel("Score of free space", "timeseries", ((_of(m.SCORE), "score {{pool}}"), (_of(m.BAD), "bad block groups {{pool}}"))),
    Panel(
        "Balance: moved and written in a day",
        "timeseries",
        (
            (f"increase({_of(m.BALANCE_MOVED)}[1d])", "moved {{pool}}"),
            (f"increase({_of(m.BALANCE_WRITTEN)}[1d])", "written {{pool}}"),
        ),
        "bytes",
    ),
    Panel("Balance: written for each byte moved", "timeseries", ((_of(m.BALANCE_AMPLIFICATION), "{{pool}}"),)),
    Panel(
        "Orphans, and backups deleted in an hour",
        "timeseries",
        ((_of(m.ORPHANS), "orphans {{pool}}"), (f"increase({_of(m.EXPIRY_DELETED)}[1h])", "deleted {{pool}}")),
    ),
    Panel("Backups in the pool", "timeseries", ((f"sum by (state) ({_of(m.BACKUPS)})", "{{state}}"),), stacked=True),
    Panel("Metadata", "timeseries", ((_of(m.SPACE_USED, 'type="metadata"'), "used {{pool}}"),), "bytes"),
)


def as_json() -> str:
    """The dashboard, to be imported into Grafana; it asks for the data source, and the pool can be chosen."""
    panels, row, column, tallest = [], 0, 0, 0
    for number, panel in enumerate(PANELS, 1):
        if column + panel.width > _WIDTH:
            row, column, tallest = row + tallest, 0, 0
        panels.append(_panel(panel, number, {"x": column, "y": row, "w": panel.width, "h": panel.height}))
        column, tallest = column + panel.width, max(tallest, panel.height)
    return json.dumps({**_FRAME, "panels": panels}, indent=2) + "\n"


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    table = panel.kind == "table"
    made: dict[str, Any] = {
        "id": number,
        "title": panel.title,
        "description": panel.description,
        "type": panel.kind,
        "datasource": _SOURCE,
        "gridPos": place,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": expression,
                "legendFormat": legend,
                "instant": panel.kind != "timeseries",
                "range": panel.kind == "timeseries",
                "format": "table" if table else "time_series",
            }
            for index, (expression, legend) in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _OPTIONS.get(panel.kind, {}),
    }
    if table:
        made["transformations"] = [_only(panel.columns)]
    elif "state" in panel.title:
        made["fieldConfig"]["overrides"] = [_coloured(state, colour) for state, colour in _GREEN_TO_RED.items()]
    return made


def _defaults(panel: Panel) -> dict[str, Any]:
    steps = [{"color": colour, "value": value} for colour, value in panel.steps]
    made: dict[str, Any] = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.unit == "percentunit":
        made |= {"min": 0, "max": 1}
    if panel.kind == "timeseries":
        fill = 60 if panel.stacked else 0
        made["custom"] = {"fillOpacity": fill, "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"}}
    return made


def _only(columns: dict[str, str]) -> dict[str, Any]:
    """Grafana's own columns of a table hide what matters: time, every label."""
    order = {name: index for index, name in enumerate(columns)}
    return {
        "id": "organize",
        "options": {"includeByName": dict.fromkeys(columns, True), "indexByName": order, "renameByName": columns},
    }


def _coloured(name: str, colour: str) -> dict[str, Any]:
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}],
    }


_LAST = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: dict[str, dict[str, Any]] = {
    "stat": {"reduceOptions": _LAST, "colorMode": "value", "graphMode": "none"},
    "gauge": {"reduceOptions": _LAST},
    "bargauge": {"reduceOptions": _LAST, "orientation": "horizontal", "displayMode": "basic"},
    "timeseries": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
}
_FRAME: dict[str, Any] = {
    "title": "btrkeep",
    "uid": "btrkeep",
    "description": "Backups, room, expiry and balance of btrkeep's pools. Made by `python -m backupd.metrics docs`.",
    "tags": ["backup", "btrfs"],
    "schemaVersion": 36,
    "version": 1,
    "editable": True,
    "timezone": "",
    "refresh": "5m",
    "time": {"from": "now-14d", "to": "now"},
    "templating": {
        "list": [
            {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
            {
                "name": "pool",
                "label": "Pool",
                "type": "query",
                "datasource": _SOURCE,
                "query": f"label_values({m.INFO}, pool)",
                "definition": f"label_values({m.INFO}, pool)",
                "includeAll": True,
                "multi": True,
                "refresh": 2,
                "sort": 1,
            },
        ]
    },
}
