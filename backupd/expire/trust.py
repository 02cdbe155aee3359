"""Checks whether the clock and the catalogue can be trusted: nothing is deleted by a clock that must be wrong, or without the
catalogue.

The wall clock and the boot clock are compared with those of earlier expiries, which the catalogue keeps. Both checks run whenever
the catalogue is opened, and their results are stored in it for the dashboard, which can read neither the pool nor the clocks.
"""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from backupd.expire.report import expiry_words
from backupd.repo.pool_files import hosts_of, names_of
from backupd.repo.reconcile import row_of
from btrkeep.catalogue import Catalogue
from btrkeep.config.published import CLOCK, LOST
from btrkeep.decisions import parse_fact
from btrkeep.decisions import pool_health as judge
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
from btrkeep.errors import LockHeld, OperatorError, PoolUnusable
from btrkeep.hung_storage import answers
from btrkeep.pool.marker import Pool
from btrkeep.procfs import boot_id
from btrkeep.trusted_path import untrusted_state
from btrkeep.units import format_time, parse_time

FACT = "expiry_clock"
_ANOTHER_BOOT = ""
_MOST_ERROR = 16_000_000  # microseconds; systemd's timedated uses the same limit (ntp_synced in basic/time-util.c)


def read_clocks(now: datetime) -> ClockFact:
    """Returns `now` with the boot clock (suspend included)."""
    return ClockFact(now, time.clock_gettime(time.CLOCK_BOOTTIME), boot_id())


def past_clocks(catalogue: Catalogue) -> ClockPast:
    """Returns the clocks of earlier expiries; invalid ones count as none.

    A rebuilt catalogue has none. Then the end of the newest run is used instead; otherwise a clock that jumped would be trusted.
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

    The dashboard's copy in the folder `state` has them. Without it, or if users other than root may write there, the newest backup
    is used instead: a time in the future would prevent every expiry.
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
    """Stores the clocks for the next expiry."""
    fields = _clock_fields(past.trusted) | ({"doubted": _clock_fields(past.doubted)} if past.doubted else {})
    catalogue.set_fact(FACT, json.dumps(fields))


def _clock_fields(fact: ClockFact | None) -> dict[str, Any]:
    return {"wall": format_time(fact.wall), "boottime": fact.boottime, "boot_id": fact.boot_id} if fact else {}


def clock_doubt(catalogue: Catalogue, now: datetime, *, rehearsal: bool) -> ClockBehind | ClockAhead | None:
    """Returns the problem of the clock, as the next expiry will find it; None: none. A rehearsal may set its own time."""
    if rehearsal:
        return None
    verdict = clock_verdict(past_clocks(catalogue), read_clocks(now), catalogue.newest_finish(), rehearsal)
    return verdict.stop or verdict.wait


def clock_synchronised() -> bool | None:
    """Returns True if a program (chrony, timesyncd, ntpd) keeps setting the kernel's time, so that the kernel has its maximum
    error.

    One system call. None: not permitted to this process.
    """
    import ctypes  # few commands need it

    words = (ctypes.c_long * 64)()  # struct timex (linux/timex.h): modes, offset, freq, maxerror, ...
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(words)) < 0:
        return None
    return bool(words[3] < _MOST_ERROR)


def judge_clock(catalogue: Catalogue, now: ClockFact, forced: Forced, *, rehearsal: bool) -> tuple[ClockVerdict, ClockPast]:
    """Returns the verdict on the clock, and the state to store for the next expiry. A forced clock is always right."""
    if forced.clock:
        return ClockVerdict(), ClockPast(now)
    past = past_clocks(catalogue)
    verdict = clock_verdict(past, now, catalogue.newest_finish(), rehearsal)
    return verdict, past_after(past, now, verdict)


@dataclass(frozen=True, slots=True)
class TrustCheck:
    """The result of the checks. `lost`: the pool has backups and the catalogue has none. `clock`: the problem of the clock, None if
    there is none.
    """

    lost: bool
    clock: str | None


def is_lost(pool: Pool, catalogue: Catalogue) -> bool:
    """Returns True if the pool has backups and the catalogue has none. The pool is only read if the catalogue has none."""
    return not catalogue.has_backups() and has_backups(pool)


def has_backups(pool: Pool) -> bool:
    """Returns True if the pool has a backup. A folder with such a name may belong to a user; an unreadable one counts as a
    backup.
    """
    try:
        return any(_is_ours(pool, host, name) for host in hosts_of(pool) for name in names_of(pool, host))
    except FileNotFoundError:  # no host was ever backed up
        return False


def _is_ours(pool: Pool, host: str, name: str) -> bool:
    try:
        return row_of(pool, host, name) is not None
    except (LockHeld, PoolUnusable):
        raise
    except (OperatorError, OSError):
        return True


def check_trust(pool: Pool, catalogue: Catalogue, now: datetime) -> TrustCheck:
    """Checks the clock and the catalogue, and records a change in the catalogue, for the dashboard."""
    clock = clock_doubt(catalogue, now, rehearsal=pool.rehearsal)
    trust_check = TrustCheck(is_lost(pool, catalogue), expiry_words(clock) if clock else None)
    with suppress(OperatorError):  # a catalogue that cannot be written is reported when a write is needed
        for fact, words in ((LOST, "1" if trust_check.lost else None), (CLOCK, trust_check.clock)):
            if words != catalogue.get_fact(fact):
                catalogue.set_fact(fact, words)
    return trust_check


def lost_catalogue(state: Path) -> OperatorError:
    """The error of a lost catalogue, with a hint."""
    finding = judge.lost(state)
    return OperatorError(finding.text, finding.hint)
