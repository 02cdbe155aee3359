"""A host's facts as the catalogue would give them, for the decisions that are functions of them alone."""

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta

from btrkeep.catalogue import HostFacts

NOW = datetime(2026, 11, 20, 23, 10, tzinfo=UTC)
NOTHING = HostFacts(**{each.name: () if each.name in ("newest_warnings", "lasting") else None for each in fields(HostFacts)})  # type: ignore[arg-type]


def ago(hours: float) -> datetime:
    return NOW - timedelta(hours=hours)


def facts(
    complete: float | None = None, run: float | None = None, outcome: str | None = None, error: str | None = None, **others: object
) -> HostFacts:
    """Facts with the newest complete backup and the last run that many hours ago."""
    answer = {
        "last_complete": None if complete is None else ago(complete),
        "newest_state": "complete" if complete is not None else None,
        "last_run": round(ago(run).timestamp()) if run is not None else None,
        "last_run_started": ago(run) if run is not None else None,
        "last_run_outcome": outcome,
        "last_run_error": error,
        **others,
    }
    return replace(NOTHING, **answer)  # type: ignore[arg-type]
