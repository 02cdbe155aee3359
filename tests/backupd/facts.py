"""A host's facts as the catalogue would give them, and a backup in a pool that does not exist, for decisions without a pool."""

from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from backupd.repo.backup_json import Record
from backupd.repo.final_backups import FinalBackup
from btrkeep.catalogue import HostFacts
from btrkeep.pool.subvolume import Subvolume

NOW = datetime(2026, 11, 20, 23, 10, tzinfo=UTC)
NOON = datetime(2026, 3, 20, 12, tzinfo=UTC)
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


def final(name: str, ancestors: Mapping[str, int] | None = None, **subvolume: Any) -> FinalBackup:
    """A backup of web1; `subvolume`: what differs from an ordinary read-only subvolume."""
    kernel = Subvolume(
        **{
            "id": 300,
            "uuid": f"uuid of {name}",
            "parent_uuid": None,
            "read_only": True,
            "generation": 50,
            "created": 40,
            **subvolume,
        }
    )
    return FinalBackup(
        Path("/pool/hosts/web1") / name, kernel, Record("web1", "u", "complete", NOON, name, ancestors=ancestors or {})
    )
