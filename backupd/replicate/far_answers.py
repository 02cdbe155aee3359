"""What the other pool answers: hosts, backups, sizes, times. Nothing of it is believed before it has been looked at here."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from sys import intern
from typing import Any

from backupd.replicate.wire import ConnectionBroken
from btrkeep.config.sources import name_fault
from btrkeep.decisions.replication import FarBackup
from btrkeep.units import parse_backup_name, parse_time

_MOST_BACKUPS = 100_000
_KEPT_NOTES = 64 << 10
_LARGEST_SIZE = 1 << 63


@dataclass(frozen=True, slots=True)
class FarHost:
    """A host as the other pool lists it. `was`: names that it had; `held`: why and until when a backup is held, by name.

    `copy_of`: the id of the pool that it is fetched from there; None for one that is backed up there.
    """

    name: str
    was: tuple[str, ...]
    backups: tuple[FarBackup, ...]
    held: dict[str, tuple[str | None, str]]
    copy_of: str | None = None


@dataclass(frozen=True, slots=True)
class Announced:
    """What the other pool says of a stream before it comes. `notes`: what it notes of the backup; `bytes`: how long the stream may
    become; `total`: of all files of the backup. None: unknown.
    """

    notes: dict[str, dict[str, Any]]
    bytes: int | None
    stream: int
    total: int | None = None


def size_in(said: Mapping[str, Any], name: str) -> int | None:
    """Returns a number of bytes that the other side gave; None if it gave none that is possible."""
    size = said.get(name)
    return size if type(size) is int and 0 <= size < _LARGEST_SIZE else None


def time_in(said: Mapping[str, Any]) -> datetime | None:
    """Returns the time of the other side's clock."""
    try:
        return parse_time(str(said.get("now")))
    except ValueError:
        return None


def host_in(said: dict[str, Any]) -> FarHost:
    """Returns the host of which the other side tells. Raises ConnectionBroken for what names no host and no backups."""
    name, was, backups = said.get("host"), said.get("was"), said.get("backups")
    if not isinstance(name, str) or name_fault(name) or not isinstance(was, list) or not isinstance(backups, list):
        raise ConnectionBroken("the other side lists what is no host")
    if len(backups) > _MOST_BACKUPS or not all(isinstance(old, str) for old in was):
        raise ConnectionBroken(f"the other side lists what is no host: {name}")
    found, held = [], {}
    for one in backups:
        if not _is_backup(one):
            raise ConnectionBroken(f"the other side lists what is no backup of {name}")
        found.append(FarBackup(one[0], one[1], intern(one[2])))
        if len(one) > 3:
            held[one[0]] = (one[3][0], one[3][1])
    copy_of = said.get("copy_of")
    return FarHost(name, tuple(was), tuple(found), held, copy_of if isinstance(copy_of, str) else None)


def words_of(host: FarHost) -> Iterator[str]:
    """Yields what the other side has said of the host in its own words, of any length."""
    yield from host.was
    yield host.copy_of or ""
    for until, why in host.held.values():
        yield until or ""
        yield why


def _is_backup(one: Any) -> bool:
    if not isinstance(one, list) or len(one) not in (3, 4) or not all(isinstance(text, str) for text in one[:3]):
        return False
    if parse_backup_name(one[0]) is None or len(one[1]) != 36 or not one[1].isascii() or one[2] not in ("complete", "suspect"):
        return False
    hold = one[3] if len(one) == 4 else [None, ""]
    return isinstance(hold, list) and len(hold) == 2 and isinstance(hold[1], str) and isinstance(hold[0], str | None)


def announced_in(said: dict[str, Any], version: int) -> Announced:
    """Returns what the other side says of a stream, of that version at most. Raises ConnectionBroken."""
    notes = said.get("notes")
    if not isinstance(notes, dict) or len(json.dumps(notes)) > _KEPT_NOTES:
        raise ConnectionBroken("the other side says of a backup what cannot be noted")
    kept = {key: dict(note) for key, note in notes.items() if isinstance(note, dict)}
    stream = said.get("stream")
    stream = stream if type(stream) is int and 0 < stream <= version else 1
    return Announced(kept, size_in(said, "bytes"), stream, size_in(said, "total"))
