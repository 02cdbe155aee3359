"""Decides which backups a crash of this server may have damaged: those written in the last minutes before it. Pure.

A disk that acknowledged data it had only in its cache, or a controller with a dead battery, loses what was written last. Afterwards
the filesystem and all names are intact, but the data cannot be read, or is wrong.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from btrkeep.decisions.due import latest
from btrkeep.decisions.facts import FactReader, FactWriter, parse_fact
from btrkeep.units import counted, format_time, local_time, parse_time

_FACT = "in_doubt"


class WrittenBackup(NamedTuple):
    """A backup of a host, by its name, and when a file of it was last written in this pool."""

    host: str
    name: str
    written: datetime


class BackupsInDoubt(NamedTuple):
    """The backups, by host and name, that were written last before a crash and have not been read since. `since`: when the crash
    was noticed.
    """

    since: datetime
    backups: frozenset[tuple[str, str]]


def written_last(
    backups: Sequence[WrittenBackup],
    signs: Iterable[datetime],
    stopped: datetime | None,
    margin: timedelta,
    begun: datetime,
    now: datetime,
) -> frozenset[tuple[str, str]]:
    """Returns the backups of earlier boots, by host and name, that a crash at the end of the last boot may have damaged.

    `begun`: start of the present boot; `signs`: moments at which this server was alive; `stopped`: its last orderly shutdown. The
    time of a crash is unknown, but it was not before the last sign of life. So data written more than `margin` before that sign had
    at least this long to reach the disk. After an orderly shutdown only later writes are in doubt: there was another boot since.

    Signs later than `begun` say nothing about the boot before. If all are later, the clock is wrong and all of them count. Backups
    stamped in the future are always in doubt.
    """
    moments = [backup.written for backup in backups] + [*signs, *((stopped,) if stopped else ())]
    if not moments:
        return frozenset()
    known = [moment for moment in moments if moment <= begun]
    since = max(known or moments) - margin
    after = max(since, stopped) if stopped in (known or moments) and stopped else since
    return frozenset(
        (backup.host, backup.name)
        for backup in backups
        if backup.written > after and (not known or backup.written <= begun or backup.written > latest(now))
    )


def note_in_doubt(facts: FactWriter, found: BackupsInDoubt | None) -> None:
    """Keeps it for those who cannot look into the pool; None: there are none."""
    fields = {"since": format_time(found.since), "backups": sorted(found.backups)} if found else None
    text = json.dumps(fields) if fields else None
    if text != facts.get_fact(_FACT):
        facts.set_fact(_FACT, text)


def read_in_doubt(facts: FactReader) -> BackupsInDoubt | None:
    """Reads it; None if there is none, or it is invalid."""
    return parse_fact(facts.get_fact(_FACT), _parsed, None)


def _parsed(given: Mapping[str, Any]) -> BackupsInDoubt:
    return BackupsInDoubt(parse_time(given["since"]), frozenset((str(host), str(name)) for host, name in given["backups"]))


def in_doubt_words(found: BackupsInDoubt) -> str:
    """In one line."""
    return (
        f"{counted(len(found.backups), 'backup')} written last before a crash of this server, seen {local_time(found.since)}, not "
        "read since"
    )
