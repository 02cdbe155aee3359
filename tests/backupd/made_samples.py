"""Invented samples for tests."""

from datetime import UTC, datetime, timedelta
from typing import Any

from btrkeep.catalogue import Sample

START = datetime(2026, 6, 1, tzinfo=UTC)
GIB, TIB = 1 << 30, 1 << 40
FILESYSTEM = "99bee88d-b5e5-478b-86f3-6f67e12ca5a1"


def sample(taken: datetime, **more: Any) -> Sample:
    """Returns a sample of a pool of 40 TiB; values that are not given are 0 or unknown."""
    fields: dict[str, Any] = {
        "filesystem": FILESYSTEM,
        "taken": taken,
        "span": "raw",
        "size": 40 * TIB,
        "allocated": 30 * TIB,
        "used": 20 * TIB,
        "spaces": {"data single": (29 * TIB, 19 * TIB, 1000), "metadata dup": (TIB // 2, TIB // 2, 2000)},
        "devices": {"1": (40 * TIB, 30 * TIB, 0, 0, 0, 0, 0)},
        "orphans": 0,
        "score": None,
        "scored": None,
        "options": "rw,noatime,nossd,space_cache=v2,subvolid=5,subvol=/",
        "activity": "",
        "seconds": 0.0,
        "read": 0,
        "written": 0,
        "peak_read": 0.0,
        "peak_written": 0.0,
        "pressure": {},
    }
    return Sample(**{**fields, **more})


def every_five_minutes(count: int, start: datetime = START, **more: Any) -> list[Sample]:
    """Returns that many samples, each with the activity of the five minutes before it."""
    flows = {"seconds": 300.0, "read": 300 << 20, "written": 600 << 20, "peak_read": 1e6, "peak_written": 2e6}
    return [sample(start + timedelta(minutes=5 * (number + 1)), **{**flows, **more}) for number in range(count)]
