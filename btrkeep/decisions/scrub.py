"""Decides which devices a scrub has not read completely, and why, and follows the counted read errors since then. Pure. btrfs-progs
6.2 reports a scrub of a pool with a missing device as aborted, exits with 0, and resumes it each time without reading anything.

The counters show that a read failed, but not of what. Only the kernel's log names it, and not always.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from btrkeep.decisions import FactReader, FactWriter, parse_fact
from btrkeep.units import parse_time

SCRUB_EVERY = timedelta(days=35)
"""A scrub that started longer ago is not resumed: the data that it read first is due again."""
UNFINISHED = ("aborted", "interrupted")


@dataclass(frozen=True, slots=True)
class DeviceScrub:
    """The last scrub of a device."""

    devid: int
    """The device's number in the filesystem."""
    status: str
    """"", "running", "finished", "aborted" or "interrupted"."""
    scrubbed: int
    """Bytes that it has read."""
    begun: datetime | None
    """When it was first started, also if it was resumed; None: not reported."""


class UnreadReason(StrEnum):
    """Why a device was not read completely."""

    MISSING = "missing"
    NOT_STARTED = "not-started"
    ABORTED = "aborted"
    OUTDATED = "outdated"
    NO_PROGRESS = "no-progress"


@dataclass(frozen=True, slots=True)
class UnreadDevice:
    """A device that a scrub did not read completely."""

    devid: int
    """The device's number in the filesystem."""
    why: UnreadReason
    """Why not."""
    used: int | None = None
    """Bytes in use on it; None: unknown."""


def is_resumable(scrubs: Mapping[int, DeviceScrub], present: Collection[int], now: datetime) -> bool:
    """Returns True if a scrub of a present device was interrupted, and no present device was read too long ago to count with it. A
    missing device does not count: its scrub can only be aborted again.
    """
    here = [scrubs[devid] for devid in present if devid in scrubs]
    is_recent = all(device_scrub.begun and timedelta() <= now - device_scrub.begun <= SCRUB_EVERY for device_scrub in here)
    return is_recent and any(device_scrub.status in UNFINISHED for device_scrub in here)


def begun_of(scrubs: Mapping[int, DeviceScrub], present: Collection[int]) -> datetime | None:
    """Returns the earliest start of the scrubs of the present devices. None if a device has none."""
    moments = [scrubs[devid].begun if devid in scrubs else None for devid in present]
    return min((moment for moment in moments if moment), default=None) if all(moments) else None


def unread_devices(
    scrubs: Mapping[int, DeviceScrub],
    present: Collection[int],
    missing: Collection[int],
    used: Mapping[int, int] | None,
    since: datetime | None,
) -> tuple[UnreadDevice, ...]:
    """Returns the devices that were not read completely since that time. `used`: bytes on each device; None if unknown."""
    unread = []
    for devid in sorted({*present, *missing}):
        scrub, size = scrubs.get(devid), used.get(devid, 0) if used is not None else None
        if devid in missing:
            why = UnreadReason.MISSING
        elif scrub is None or not scrub.status:
            why = UnreadReason.NOT_STARTED
        elif scrub.status != "finished":
            why = UnreadReason.ABORTED
        elif since and (scrub.begun is None or scrub.begun < since):
            why = UnreadReason.OUTDATED
        elif not scrub.scrubbed and size != 0:
            why = UnreadReason.NO_PROGRESS
        else:
            continue
        unread.append(UnreadDevice(devid, why, size))
    return tuple(unread)


_WHY = {
    UnreadReason.MISSING: "device {devid} is missing: nothing on it was read. `backupd doctor` has the commands that replace it",
    UnreadReason.NOT_STARTED: "device {devid} was not read: the scrub did not start on it. Run `backupd scrub` again",
    UnreadReason.ABORTED: "device {devid} was read in part only: its scrub was aborted. Run `backupd scrub` again",
    UnreadReason.OUTDATED: "device {devid} was not read by this scrub: its last one is older. Run `backupd scrub` again",
    UnreadReason.NO_PROGRESS: "device {devid} was not read: its scrub ended without reading anything. See dmesg",
}


def unread_words(unread: UnreadDevice) -> str:
    """Formats why a device was not read."""
    return _WHY[unread.why].format(devid=unread.devid)


_FACT = "device_errors"
_MOST = 100  # checks whose unexplained errors are stored separately


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


def new_errors(seen: SeenErrors, counters: Mapping[int, int]) -> int:
    """Returns how many errors were counted since. A counter that is lower than before has been reset."""
    before = seen.counters
    return sum(count - before.get(devid, 0) if count >= before.get(devid, 0) else count for devid, count in counters.items())


def seen_now(seen: SeenErrors, counters: Mapping[int, int], named: int, boot: str, message: int, now: datetime) -> SeenErrors:
    """Returns the present check, in whose messages the log had `named` that many errors."""
    unexplained, unnamed = seen.unexplained, max(0, new_errors(seen, counters) - named)
    if unnamed:
        unexplained = (*unexplained, (now, unnamed))
    if len(unexplained) > _MOST:  # the later time, so that no error is forgotten too early
        unexplained = ((unexplained[1][0], unexplained[0][1] + unexplained[1][1]), *unexplained[2:])
    return SeenErrors(dict(counters), boot, message, unexplained)


def forget_unnamed(facts: FactWriter, seen: SeenErrors, until: datetime | None, own: int) -> None:
    """Clears the unexplained errors found until that time, at which a scrub started that has named all errors it found.

    Errors counted later may come from another reader, in a place that the scrub had already read: these remain, except as many as
    the scrub's `own` reads added. None: its time is unknown.
    """
    later = tuple(error for error in seen.unexplained if until is None or error[0] > until)
    note_seen(facts, replace(seen, unexplained=_without_own(later, own)))


def forget_own(facts: FactWriter, seen: SeenErrors, since: datetime, own: int) -> None:
    """Clears as many of the unexplained errors found after that time as the reads of a job added, which has named the files.

    Errors counted before that remain: they may be where only a scrub reads, in metadata or an unfinished backup.
    """
    before, later = ([error for error in seen.unexplained if (error[0] > since) == is_later] for is_later in (False, True))
    note_seen(facts, replace(seen, unexplained=(*before, *_without_own(tuple(later), own))))


def _without_own(later: tuple[tuple[datetime, int], ...], own: int) -> tuple[tuple[datetime, int], ...]:
    if not (own and later):
        return later
    rest = sum(count for _, count in later) - own
    return ((later[-1][0], rest),) if rest > 0 else ()


def note_seen(facts: FactWriter, seen: SeenErrors) -> None:
    """Stores it for the next check."""
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
    """Reads the last check; an empty one if there was none or the fact is invalid."""
    return parse_fact(facts.get_fact(_FACT), _parsed, SeenErrors())


def _parsed(given: Mapping[str, Any]) -> SeenErrors:
    counters = {int(devid): int(count) for devid, count in given["counters"].items()}
    unexplained = tuple((parse_time(moment), int(count)) for moment, count in given["unexplained"])
    return SeenErrors(counters, str(given["boot"]), int(given["message"]), unexplained)
