"""Which backups a crash of this server may have left damaged: those that were written in the last minutes before it. Pure.

A disk that told of data it had only in its cache, or a controller whose battery was dead, loses what was written last. The
filesystem is whole afterwards, and so is every name; only the data cannot be read, or is not what was written.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from btrkeep.decisions.copies import FactReader, FactWriter
from btrkeep.decisions.due import latest
from btrkeep.units import counted, format_time, parse_time

_FACT = "in_doubt"


class WrittenBackup(NamedTuple):
    """A backup of a host, by its name, and when a file of it was last written in this pool."""

    host: str
    name: str
    written: datetime


class BackupsInDoubt(NamedTuple):
    """The backups that were written last before a crash, by host and name, that nobody has read since. `since`: when it was seen
    that there was one.
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
    """The backups of earlier boots, by host and name, that a crash at the end of the last one may have damaged.

    `begun`: when the present boot did; `signs`: moments at which this server was alive; `stopped`: when it was last shut down in
    order. When it crashed nobody knows; it was not before the last sign of life. So what was written more than `margin` before that
    had this long, at least, to come to the disk. After an orderly end only what was written later is in doubt: then there was
    another boot since.

    What was later than `begun` says nothing of the boot before. Where everything was, the clock is wrong, and it all counts; and so
    does in any case what was written in the future.
    """
    moments = [one.written for one in backups] + [*signs, *((stopped,) if stopped else ())]
    if not moments:
        return frozenset()
    known = [moment for moment in moments if moment <= begun]
    since = max(known or moments) - margin
    after = max(since, stopped) if stopped in (known or moments) and stopped else since
    return frozenset(
        (one.host, one.name)
        for one in backups
        if one.written > after and (not known or one.written <= begun or one.written > latest(now))
    )


def note_in_doubt(facts: FactWriter, found: BackupsInDoubt | None) -> None:
    """Keeps it for those who cannot look into the pool; None: there are none."""
    fields = {"since": format_time(found.since), "backups": sorted(found.backups)} if found else None
    text = json.dumps(fields) if fields else None
    if text != facts.get_fact(_FACT):
        facts.set_fact(_FACT, text)


def read_in_doubt(facts: FactReader) -> BackupsInDoubt | None:
    """The same; None where there are none, or it cannot be understood."""
    try:
        given = json.loads(facts.get_fact(_FACT) or "{}")
        return BackupsInDoubt(parse_time(given["since"]), frozenset((str(host), str(name)) for host, name in given["backups"]))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def in_doubt_words(found: BackupsInDoubt) -> str:
    """In one line."""
    return (
        f"{counted(len(found.backups), 'backup')} written last before a crash of this server, seen {format_time(found.since)}, not "
        "read since"
    )
