"""Decides how many read errors the devices have counted since the last check, and how many of them no log message explains. Pure.

The counters say that a read failed, but not of what. Only the kernel's log names it, and not always.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from btrkeep.decisions.facts import FactReader, FactWriter, parse_fact
from btrkeep.units import parse_time

_FACT = "device_errors"
_MOST = 100  # checks whose unexplained errors are kept apart


@dataclass(frozen=True, slots=True)
class SeenErrors:
    """The last check. `counters`: read errors by device; `boot` and `message`: the last kernel message that was read, and its boot.
    `unexplained`: errors that no message explains, by the check that found them, in order.
    """

    counters: Mapping[int, int] = field(default_factory=dict)
    boot: str = ""
    message: int = 0
    unexplained: tuple[tuple[datetime, int], ...] = ()

    @property
    def unnamed(self) -> int:
        """Returns how many errors no message explains."""
        return sum(count for _, count in self.unexplained)

    @property
    def since(self) -> datetime | None:
        """Returns when the first of them was found."""
        return self.unexplained[0][0] if self.unexplained else None


def grown(seen: SeenErrors, counters: Mapping[int, int]) -> int:
    """Returns how many errors were counted since. A counter that is lower than before has been reset."""
    before = seen.counters
    return sum(count - before.get(devid, 0) if count >= before.get(devid, 0) else count for devid, count in counters.items())


def seen_now(seen: SeenErrors, counters: Mapping[int, int], named: int, boot: str, message: int, now: datetime) -> SeenErrors:
    """The look of now, at which the log had `named` so many of them."""
    found, unnamed = seen.unexplained, max(0, grown(seen, counters) - named)
    if unnamed:
        found = (*found, (now, unnamed))
    if len(found) > _MOST:  # the later moment: what is not known to be older is not forgotten
        found = ((found[1][0], found[0][1] + found[1][1]), *found[2:])
    return SeenErrors(dict(counters), boot, message, found)


def forget_unnamed(facts: FactWriter, seen: SeenErrors, until: datetime | None, own: int) -> None:
    """Clears the unexplained errors found up to that moment, at which a scrub began that has named all errors it found.

    What was counted later another reader may have met, in a place that was read already: that stays, but for as many as the scrub's
    `own` reads added. None: nobody knows when it was.
    """
    later = tuple(one for one in seen.unexplained if until is None or one[0] > until)
    note_seen(facts, replace(seen, unexplained=_without_own(later, own)))


def forget_own(facts: FactWriter, seen: SeenErrors, since: datetime, own: int) -> None:
    """Clears as many of the unexplained errors found after that moment as somebody's own reads added, who has named the files.

    What was counted before stays: it may lie where only a scrub looks, in metadata or an unfinished backup.
    """
    before, later = ([one for one in seen.unexplained if (one[0] > since) == is_later] for is_later in (False, True))
    note_seen(facts, replace(seen, unexplained=(*before, *_without_own(tuple(later), own))))


def _without_own(later: tuple[tuple[datetime, int], ...], own: int) -> tuple[tuple[datetime, int], ...]:
    if not (own and later):
        return later
    rest = sum(count for _, count in later) - own
    return ((later[-1][0], rest),) if rest > 0 else ()


def note_seen(facts: FactWriter, seen: SeenErrors) -> None:
    """Keeps it for the next look."""
    fields = {
        "counters": {str(devid): count for devid, count in seen.counters.items()},
        "boot": seen.boot,
        "message": seen.message,
        "unexplained": [(moment.isoformat(), count) for moment, count in seen.unexplained],
    }
    text = json.dumps(fields)
    if text != facts.get_fact(_FACT):
        facts.set_fact(_FACT, text)


def read_seen(facts: FactReader) -> SeenErrors:
    """Reads the last check; a zero state if there was none or the fact is invalid."""
    return parse_fact(facts.get_fact(_FACT), _parsed, SeenErrors())


def _parsed(given: Mapping[str, Any]) -> SeenErrors:
    counters = {int(devid): int(count) for devid, count in given["counters"].items()}
    unexplained = tuple((parse_time(moment), int(count)) for moment, count in given["unexplained"])
    return SeenErrors(counters, str(given["boot"]), int(given["message"]), unexplained)
