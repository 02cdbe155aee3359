"""A host's backups with files in them, each a snapshot of the one before, made with btrfs-progs and json alone.

Their content is made by a function that changes the folder `data`, without a run of btrkeep and without rsync.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tests.beds.hidden_changes import hide_changes
from tests.beds.history import TIME, name_of
from tests.beds.nights import Nights
from tests.beds.work import work

Change = Callable[[int, Path], None]


def make_lineage(
    nights: Nights,
    host: str,
    starts: Iterable[datetime],
    change: Change,
    states: Mapping[int, str] | None = None,
    records: Mapping[int, Mapping[str, Any]] | None = None,
    anew: Iterable[int] = (),
) -> list[str]:
    """Makes the backups; returns their names. `change(number, data)` changes the content of the previous backup into that of this
    one.

    `states`: of backups that are not complete; `records`: more keys of their backup.json; `anew`: backups that start empty.
    """
    folder = nights.pool / "hosts" / host
    folder.mkdir(mode=0o700, exist_ok=True)
    names: list[str] = []
    fresh = set(anew)
    for number, started in enumerate(starts):
        path = folder / name_of(started)
        if names and number not in fresh:
            work("btrfs", "-q", "subvolume", "snapshot", folder / names[-1], path)
        else:
            work("btrfs", "-q", "subvolume", "create", path)
            (path / "data").mkdir()
        change(number, path / "data")
        fields = {"state": (states or {}).get(number, "complete"), **((records or {}).get(number) or {})}
        (path / "backup.json").write_text(json.dumps(_record(host, path, started) | fields))
        work("btrfs", "property", "set", "-ts", path, "ro", "true")
        names.append(path.name)
    return names


def _record(host: str, path: Path, started: datetime) -> dict[str, Any]:
    lines = work("btrfs", "subvolume", "show", path).stdout.splitlines()
    (uuid,) = (line.partition(":")[2].strip() for line in lines if line.strip().startswith("UUID:"))
    times = {"started": started.strftime(TIME), "finished": (started + timedelta(minutes=5)).strftime(TIME)}
    return {"format": 1, "host": host, "uuid": uuid, "name": path.name, "duration": 300.0, "paths": [], **times}


def writable(path: Path) -> None:
    """Makes a backup writable, which no user should do, so that a test can change it; `read_only` ends that."""
    work("btrfs", "property", "set", "-f", "-ts", path, "ro", "false")


def read_only(path: Path) -> None:
    work("btrfs", "property", "set", "-ts", path, "ro", "true")
    hide_changes(path.parent)
