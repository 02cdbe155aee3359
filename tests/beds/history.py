"""Backups of many nights without runs: subvolumes and records in the form of a pool, made with btrfs-progs and json alone."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.beds.nights import Nights
from tests.beds.work import work

NAME = "%Y-%m-%dT%H%M%SZ"
TIME = "%Y-%m-%dT%H:%M:%SZ"


def every(days: float, count: int, last: datetime) -> list[datetime]:
    """Returns that many times, the oldest first; the last one is `last`."""
    return [last - timedelta(days=days * number) for number in reversed(range(count))]


def moment(text: str) -> datetime:
    """Parses a time such as 2026-11-20 22:00, in UTC."""
    return datetime.strptime(text, "%Y-%m-%d %H:%M").replace(tzinfo=UTC)


def name_of(started: datetime) -> str:
    return started.strftime(NAME)


def make_history(
    nights: Nights, host: str, starts: Iterable[datetime], states: Mapping[int, str] | None = None, rebuild: bool = True
) -> list[str]:
    """Makes final backups with these start times, with only their records, and a catalogue that lists them; returns their names.

    `states`: those that are not complete, by their number. A real run before is not needed. Without `rebuild` the catalogue does
    not know them yet.
    """
    moments = list(starts)
    make_histories(nights, [host], moments, states, rebuild)
    return [name_of(started) for started in moments]


def make_histories(
    nights: Nights,
    hosts: Iterable[str],
    moments: Sequence[datetime],
    states: Mapping[int, str] | None = None,
    rebuild: bool = True,
) -> None:
    """Does the same for many hosts at once, which all have backups with the same start times."""
    folders = [nights.pool / "hosts" / host for host in hosts]
    for folder in folders:
        folder.mkdir(mode=0o700, exist_ok=True)
    paths = [folder / name_of(started) for folder in folders for started in moments]
    _each(paths, 'btrfs -q subvolume create "$path"')
    uuids = _uuids(nights.pool)
    for number, path in enumerate(paths):
        (path / "data").mkdir()
        host, started = path.parent.name, moments[number % len(moments)]
        state = (states or {}).get(number % len(moments), "complete")
        (path / "backup.json").write_text(json.dumps(_record(host, path.name, uuids[f"hosts/{host}/{path.name}"], started, state)))
    _each(paths, 'btrfs property set -ts "$path" ro true')
    if rebuild:
        nights.backupd("rebuild")


def _each(paths: Iterable[Path], command: str) -> None:
    """Runs one shell for all of them, because the program accepts one subvolume at a time."""
    work("sh", "-ec", f"while read -r path; do {command} >/dev/null; done", input="".join(f"{path}\n" for path in paths))


def _uuids(pool: Path) -> dict[str, str]:
    lines = work("btrfs", "subvolume", "list", "-u", pool).stdout.splitlines()
    rows = (line.split(" uuid ", 1)[1].split(" path ", 1) for line in lines)
    return {"hosts/" + path.partition("hosts/")[2]: uuid for uuid, path in rows if "hosts/" in path}


def _record(host: str, name: str, uuid: str, started: datetime, state: str) -> dict[str, Any]:
    times = {"started": started.strftime(TIME), "finished": (started + timedelta(minutes=5)).strftime(TIME)}
    return {"format": 1, "host": host, "uuid": uuid, "state": state, "name": name, "duration": 300.0, "paths": [], **times}


def write_down(nights: Nights, host: str, **notes: Any) -> None:
    """Writes notes.json of a host in the documented form."""
    path = nights.pool / "hosts" / host / "notes.json"
    path.write_text(json.dumps({"format": 1, "backups": {}, **notes}))


def notes_of(nights: Nights, host: str) -> dict[str, Any]:
    """Returns the content of notes.json."""
    return dict(json.loads((nights.pool / "hosts" / host / "notes.json").read_text("utf-8")))
