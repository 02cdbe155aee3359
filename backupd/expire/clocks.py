"""The wall clock and the boot clock, compared with those of earlier expiries, which the catalogue keeps."""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from btrkeep.catalogue import Catalogue
from btrkeep.decisions import parse_fact
from btrkeep.decisions.safety_limits import (
    ClockAhead,
    ClockBehind,
    ClockFact,
    ClockPast,
    ClockVerdict,
    Forced,
    clock_verdict,
    past_after,
)
from btrkeep.errors import OperatorError
from btrkeep.hung_storage import answers
from btrkeep.procfs import boot_id
from btrkeep.trusted_path import untrusted_state
from btrkeep.units import format_time, parse_time

FACT = "expiry_clock"
_ANOTHER_BOOT = ""
_MOST_ERROR = 16_000_000  # microseconds; what systemd's timedated calls synchronised (ntp_synced in basic/time-util.c)


def read_clocks(now: datetime) -> ClockFact:
    """Returns `now` with the boot clock (suspend included)."""
    return ClockFact(now, time.clock_gettime(time.CLOCK_BOOTTIME), boot_id())


def past_clocks(catalogue: Catalogue) -> ClockPast:
    """Returns the clocks of earlier expiries; those that cannot be parsed count as none.

    A catalogue that was lost has none: then the end of the newest run stands for them, or a clock that leapt would be believed
    exactly when nothing else contradicts it.
    """
    past = parse_fact(catalogue.get_fact(FACT), _clock_past, ClockPast())
    if past.trusted is None and (newest := catalogue.newest_finish()):
        return replace(past, trusted=ClockFact(newest, 0.0, _ANOTHER_BOOT))
    return past


def _clock_past(fields: Mapping[str, Any]) -> ClockPast:
    return ClockPast(_fact(fields if "wall" in fields else {}), _fact(fields.get("doubted") or {}))


def _fact(fields: Mapping[str, Any]) -> ClockFact | None:
    return ClockFact(parse_time(fields["wall"]), float(fields["boottime"]), str(fields["boot_id"])) if fields else None


def recall_clocks(stand_in: Catalogue, state: Path) -> None:
    """Stores the clocks of earlier expiries in a catalogue in memory that was filled from the pool.

    The dashboard's copy in the folder `state` has them. Without it the newest backup stands for them, and where users other than
    root may write there: a time in the future would hold back every expiry.
    """
    past = ClockPast()
    with suppress(OperatorError, OSError):
        if answers(state) and untrusted_state(state) is None:
            with Catalogue.open_copy(state) as copy:
                past = past_clocks(copy) if copy.pool_id() == stand_in.pool_id() else past
    if past.trusted is None and (newest := max((row.started for row in stand_in.states() if row.name), default=None)):
        past = replace(past, trusted=ClockFact(newest, 0.0, _ANOTHER_BOOT))
    if past.trusted:
        keep_clocks(stand_in, past)


def keep_clocks(catalogue: Catalogue, past: ClockPast) -> None:
    """Stores them for the next expiry."""
    fields = _fields(past.trusted) | ({"doubted": _fields(past.doubted)} if past.doubted else {})
    catalogue.set_fact(FACT, json.dumps(fields))


def _fields(fact: ClockFact | None) -> dict[str, Any]:
    return {"wall": format_time(fact.wall), "boottime": fact.boottime, "boot_id": fact.boot_id} if fact else {}


def clock_doubt(catalogue: Catalogue, now: datetime, *, rehearsal: bool) -> ClockBehind | ClockAhead | None:
    """Returns what is wrong with the clock, as the next expiry will find; None: nothing. A rehearsal may set its own."""
    if rehearsal:
        return None
    verdict = clock_verdict(past_clocks(catalogue), read_clocks(now), catalogue.newest_finish(), rehearsal)
    return verdict.stop or verdict.wait


def clock_synchronised() -> bool | None:
    """True if somebody (chrony, timesyncd, ntpd) keeps telling the kernel the time, so that it knows how wrong it is at the most.

    One system call. None: this process may not ask.
    """
    import ctypes  # of what starts expiry only few programs ask

    words = (ctypes.c_long * 64)()  # struct timex (linux/timex.h): modes, offset, freq, maxerror, ...
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(words)) < 0:
        return None
    return bool(words[3] < _MOST_ERROR)


def judge_clock(catalogue: Catalogue, now: ClockFact, forced: Forced, *, rehearsal: bool) -> tuple[ClockVerdict, ClockPast]:
    """Returns whether the clock can be right, and what to store for the next expiry. A forced clock is always right."""
    if forced.clock:
        return ClockVerdict(), ClockPast(now)
    past = past_clocks(catalogue)
    verdict = clock_verdict(past, now, catalogue.newest_finish(), rehearsal)
    return verdict, past_after(past, now, verdict)
