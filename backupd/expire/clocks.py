"""The clocks that an expiry is held against: the wall's, and the boot clock, kept in the catalogue from run to run."""

import json
import time
from datetime import datetime
from pathlib import Path

from backupd.guards import ClockFact, ClockVerdict, Forced, clock_verdict
from btrkeep.catalogue import Catalogue
from btrkeep.units import format_time, parse_time

FACT = "expiry_clock"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Which boot of the machine this is."""
    return _BOOT_ID.read_text().strip()


def read_clocks(now: datetime) -> ClockFact:
    """The moment `now` and what the boot clock says (suspend included)."""
    return ClockFact(now, time.clock_gettime(time.CLOCK_BOOTTIME), boot_id())


def last_clocks(catalogue: Catalogue) -> ClockFact | None:
    """Those of the last expiry; None when there was none, or what is kept of it cannot be understood."""
    text = catalogue.get_fact(FACT)
    try:
        fields = json.loads(text) if text else {}
        return ClockFact(parse_time(fields["wall"]), float(fields["boottime"]), str(fields["boot_id"])) if fields else None
    except (ValueError, KeyError, TypeError):
        return None


def keep_clocks(catalogue: Catalogue, now: ClockFact) -> None:
    """For the next expiry."""
    fields = {"wall": format_time(now.wall), "boottime": now.boottime, "boot_id": now.boot_id}
    catalogue.set_fact(FACT, json.dumps(fields))


def judge_clock(catalogue: Catalogue, now: ClockFact, forced: Forced, *, rehearsal: bool) -> ClockVerdict:
    """Whether the clock can be right; nothing against it when it was forced."""
    if forced.clock:
        return ClockVerdict()
    return clock_verdict(last_clocks(catalogue), now, catalogue.newest_finish(), rehearsal)
