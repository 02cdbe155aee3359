"""The clocks that an expiry is held against: the wall's, and the boot clock, kept in the catalogue from run to run."""

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from btrkeep.catalogue import Catalogue
from btrkeep.decisions.safety_limits import (
    ClockAhead,
    ClockBehind,
    ClockFact,
    ClockPast,
    ClockVerdict,
    Forced,
    after,
    clock_verdict,
)
from btrkeep.procfs import boot_id
from btrkeep.units import format_time, parse_time

FACT = "expiry_clock"
_ANOTHER_BOOT = ""


def read_clocks(now: datetime) -> ClockFact:
    """The moment `now` and what the boot clock says (suspend included)."""
    return ClockFact(now, time.clock_gettime(time.CLOCK_BOOTTIME), boot_id())


def past_clocks(catalogue: Catalogue) -> ClockPast:
    """What earlier expiries saw, nothing of what is kept of it and cannot be understood.

    A catalogue that was lost knows of none: then the end of the newest run stands for them, else a clock that leapt would be
    believed just when nothing else says that it did.
    """
    past = _kept_clocks(catalogue)
    if past.trusted is None and (seen := catalogue.newest_finish()):
        return replace(past, trusted=ClockFact(seen, 0.0, _ANOTHER_BOOT))
    return past


def _kept_clocks(catalogue: Catalogue) -> ClockPast:
    text = catalogue.get_fact(FACT)
    try:
        fields = json.loads(text) if text else {}
        return ClockPast(_fact(fields if "wall" in fields else {}), _fact(fields.get("doubted") or {}))
    except (ValueError, KeyError, TypeError, AttributeError):
        return ClockPast()


def _fact(fields: Mapping[str, Any]) -> ClockFact | None:
    return ClockFact(parse_time(fields["wall"]), float(fields["boottime"]), str(fields["boot_id"])) if fields else None


def keep_clocks(catalogue: Catalogue, past: ClockPast) -> None:
    """For the next expiry."""
    fields = _fields(past.trusted) | ({"doubted": _fields(past.doubted)} if past.doubted else {})
    catalogue.set_fact(FACT, json.dumps(fields))


def _fields(fact: ClockFact | None) -> dict[str, Any]:
    return {"wall": format_time(fact.wall), "boottime": fact.boottime, "boot_id": fact.boot_id} if fact else {}


def doubt(catalogue: Catalogue, now: datetime, *, rehearsal: bool) -> ClockBehind | ClockAhead | None:
    """What is against the clock, as the next expiry will find; None: nothing. A rehearsal's goes where it is told."""
    if rehearsal:
        return None
    verdict = clock_verdict(past_clocks(catalogue), read_clocks(now), catalogue.newest_finish(), rehearsal)
    return verdict.stop or verdict.wait


def judge_clock(catalogue: Catalogue, now: ClockFact, forced: Forced, *, rehearsal: bool) -> tuple[ClockVerdict, ClockPast]:
    """Whether the clock can be right, and what the next expiry is to know. Nothing is against a clock that was forced."""
    if forced.clock:
        return ClockVerdict(), ClockPast(now)
    past = past_clocks(catalogue)
    verdict = clock_verdict(past, now, catalogue.newest_finish(), rehearsal)
    return verdict, after(past, now, verdict)
