"""Decides how many read errors the devices have counted since the last check, and how many of them no log message explains. Pure.

The counters say that a read failed, but not of what. Only the kernel's log names it, and not always.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from btrkeep.decisions.facts import FactReader, FactWriter, parse_fact
from btrkeep.units import format_time, parse_time

_FACT = "device_errors"


@dataclass(frozen=True, slots=True)
class SeenErrors:
    """The last check. `counters`: read errors by device; `boot` and `message`: the last kernel message that was read, and its boot.
    `unnamed`: errors that no message explains, first seen at `since`.
    """

    counters: Mapping[int, int] = field(default_factory=dict)
    boot: str = ""
    message: int = 0
    unnamed: int = 0
    since: datetime | None = None


def grown(seen: SeenErrors, counters: Mapping[int, int]) -> int:
    """Returns how many errors were counted since. A counter that is lower than before has been reset."""
    before = seen.counters
    return sum(count - before.get(devid, 0) if count >= before.get(devid, 0) else count for devid, count in counters.items())


def seen_now(seen: SeenErrors, counters: Mapping[int, int], named: int, boot: str, message: int, now: datetime) -> SeenErrors:
    """The look of now, at which the log had `named` so many of them."""
    unnamed = max(0, grown(seen, counters) - named)
    since = seen.since or (now if unnamed else None)
    return SeenErrors(dict(counters), boot, message, seen.unnamed + unnamed, since)


def forget_unnamed(facts: FactWriter, seen: SeenErrors) -> None:
    """Clears the unexplained errors up to this check: everything has been read since, and all damage is known."""
    note_seen(facts, replace(seen, unnamed=0, since=None))


def note_seen(facts: FactWriter, seen: SeenErrors) -> None:
    """Keeps it for the next look."""
    fields = {
        "counters": {str(devid): count for devid, count in seen.counters.items()},
        "boot": seen.boot,
        "message": seen.message,
        "unnamed": seen.unnamed,
        "since": format_time(seen.since) if seen.since else None,
    }
    text = json.dumps(fields)
    if text != facts.get_fact(_FACT):
        facts.set_fact(_FACT, text)


def read_seen(facts: FactReader) -> SeenErrors:
    """Reads the last check; a zero state if there was none or the fact is invalid."""
    return parse_fact(facts.get_fact(_FACT), _parsed, SeenErrors())


def _parsed(given: Mapping[str, Any]) -> SeenErrors:
    counters = {int(devid): int(count) for devid, count in given["counters"].items()}
    since = parse_time(given["since"]) if given["since"] else None
    return SeenErrors(counters, str(given["boot"]), int(given["message"]), int(given["unnamed"]), since)
