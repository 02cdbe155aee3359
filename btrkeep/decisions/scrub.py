"""Decides what a scrub has read: every present device as a whole, by its own counters, or which of them not, and why. Pure.

btrfs-progs 6.2 reports a scrub of a pool with a missing device as aborted, exits 0, and resumes it each time without any reading.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

SCRUB_EVERY = timedelta(days=35)
"""A scrub that began longer ago is not resumed: what it read first is due again."""
UNFINISHED = ("aborted", "interrupted")


@dataclass(frozen=True, slots=True)
class DeviceScrub:
    """The last scrub of a device. `status`: "", "running", "finished", "aborted" or "interrupted"; `scrubbed` bytes; `begun`: its
    first start, also of a resumed scrub; None if not reported.
    """

    devid: int
    status: str
    scrubbed: int
    begun: datetime | None


class UnreadReason(StrEnum):
    """Why a device was not read as a whole."""

    MISSING = "missing"
    NOT_STARTED = "not-started"
    ABORTED = "aborted"
    OUTDATED = "outdated"
    NO_PROGRESS = "no-progress"


@dataclass(frozen=True, slots=True)
class UnreadDevice:
    """A device that a scrub did not read as a whole. `used`: bytes on it; None if unknown."""

    devid: int
    why: UnreadReason
    used: int | None = None


def is_resumable(scrubs: Mapping[int, DeviceScrub], present: Collection[int], now: datetime) -> bool:
    """Returns True if a scrub of a present device was interrupted, and no present device was read too long ago to count with it.

    A missing device does not count: its scrub can only be aborted again.
    """
    here = [scrubs[devid] for devid in present if devid in scrubs]
    is_recent = all(one.begun and timedelta() <= now - one.begun <= SCRUB_EVERY for one in here)
    return is_recent and any(one.status in UNFINISHED for one in here)


def begun_of(scrubs: Mapping[int, DeviceScrub], present: Collection[int]) -> datetime | None:
    """Returns since when the present devices have been read: the oldest beginning. None if one has none."""
    moments = [scrubs[devid].begun if devid in scrubs else None for devid in present]
    return min((moment for moment in moments if moment), default=None) if all(moments) else None


def unread_devices(
    scrubs: Mapping[int, DeviceScrub],
    present: Collection[int],
    missing: Collection[int],
    used: Mapping[int, int] | None,
    since: datetime | None,
) -> tuple[UnreadDevice, ...]:
    """Returns the devices that were not read as a whole since that moment. `used`: bytes on each device; None if unknown."""
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
