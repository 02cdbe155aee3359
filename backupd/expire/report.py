"""The events of an expiry: its progress and its result, and the texts for them."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from btrkeep.clock import elapsed
from btrkeep.decisions.expiry_plan import Plan, UnreadableHost
from btrkeep.decisions.safety_limits import (
    CLOCK,
    HOST_COUNT,
    HOST_SHARE,
    POOL,
    POOL_COUNT,
    POOL_SHARE,
    ClockAhead,
    ClockBehind,
    DeletedShare,
    force_word,
)
from btrkeep.process.proc import FolderUser
from btrkeep.process.progress import Notice
from btrkeep.units import counted, format_duration, format_share, local_time, names_in_words


class Pause(StrEnum):
    """The reason why an expiry deletes nothing for a while."""

    BALANCE = "balance"
    PACE = "pace"
    BACKUPS = "backups"


@dataclass(frozen=True, slots=True)
class ExpiryProgress:
    """The progress of an expiry."""

    deleted: int
    """Number of deleted backups."""
    planned: int
    """Number of backups to delete."""
    waiting: int
    """Number of deleted subvolumes that are not dropped yet, including those of other programs."""
    most: int
    """The limit of `waiting`."""
    rate: float | None
    """Drops per second over the last minute; None: unknown."""
    left: float | None
    """Seconds until everything planned is deleted and dropped at that rate; None: unknown."""
    paused: Pause | None = None
    """The reason of a pause; None: it is deleting."""
    batch: bool = False
    """True if a batch was just deleted."""


@dataclass(slots=True)
class Summary:
    """The result of an expiry."""

    planned: int = 0
    """Number of backups to delete."""
    marked: int = 0
    """Number of backups that were marked."""
    revived: int = 0
    """Number of marked backups that are kept again."""
    deleted: int = 0
    """Number of deleted backups."""
    rest: int = 0
    """Number of due deletions that were not made (a limit, a signal, a locked host, a backup that is being restored from)."""
    waiting_for_grace: int = 0
    """Number of backups that are marked and not due yet."""
    skipped_hosts: dict[str, DeletedShare | UnreadableHost] = field(default_factory=dict)
    """Skipped hosts with the reason."""
    busy: list[str] = field(default_factory=list)
    """Hosts that another job had locked; the next run processes them."""
    problems: list[str] = field(default_factory=list)
    """Problems that an administrator should check."""
    hosts_gone: list[str] = field(default_factory=list)
    """Hosts whose last backup was deleted."""
    stop: DeletedShare | ClockBehind | None = None
    """The reason why nothing was done at all; None: something was done."""
    clock: ClockBehind | ClockAhead | None = None
    """The problem of the clock; None: none."""
    error: str | None = None
    """The reason why it ended early; None: it did not."""
    mount_option: str | None = None
    """The mount option while it ran; None: not changed."""
    most_waiting: int = 0
    """The highest number of deleted subvolumes that waited for the cleaner."""
    still_waiting: int | None = None
    """How many of them still waited at the end; None: unknown."""
    written_bytes: int | None = None
    """Bytes that all programs wrote to the devices while it ran; None: unknown."""
    ended_by: int = 0
    """The signal that ended it; 0: none."""
    begun: float = field(default_factory=elapsed)
    """The start time, by the clock `elapsed`."""
    seconds: float = 0.0
    """How long it took."""

    @property
    def good(self) -> bool:
        """Returns True if nothing needs attention."""
        return not (self.skipped_hosts or self.problems or self.stop)

    @property
    def outcome(self) -> str:
        """Returns the outcome for the catalogue (EXPIRY_OUTCOMES)."""
        if self.error:
            return "failed"
        if self.stop or self.ended_by:
            return "stopped"
        return "partial" if self.skipped_hosts or self.problems or self.rest else "complete"

    @property
    def written_each(self) -> int | None:
        """Bytes written per deleted subvolume; None if none was deleted or they were not counted."""
        return round(self.written_bytes / self.deleted) if self.written_bytes is not None and self.deleted else None


@dataclass(frozen=True, slots=True)
class DeletedBackup:
    """A deleted backup."""

    host: str
    """The host's name."""
    name: str
    """The backup's name."""
    path: str
    """Its location, without symlinks."""


ExpiryEvent = Plan | ExpiryProgress | Notice | Summary
"""The plan comes first and the summary last."""


PAUSES = {
    Pause.BALANCE: "a balance is stopping",
    Pause.PACE: "the configured pace",
    Pause.BACKUPS: "backups are running",
}


def expiry_words(why: DeletedShare | ClockBehind | ClockAhead, command: str = "expire") -> str:
    """Formats why an expiry does nothing at all, or ends no grace. `command`: the backupd command that does it anyway."""
    match why:
        case DeletedShare():
            limits = _beyond(why, POOL_SHARE, POOL_COUNT)
            return f"in the whole pool, {limits}; if that is intended: `backupd {command} --force {POOL}`"
        case ClockBehind():
            gone = f"the clock went back from {local_time(why.newest_known)} to {local_time(why.now)}"
            later = "expiry resumes after the next night's run"
            return f"{gone}; if the time is correct now, {later}, or run `backupd {command} --force {CLOCK}`"
        case ClockAhead():
            ahead = f"the clock went ahead by {_span(why.by)} since {local_time(why.since)}"
            return (
                f"{ahead}, but this machine has run only {_span(why.explained)} in that time: graces and holds end one night "
                f"later. If the clock is right, `backupd {command} --force {CLOCK}` ends them now"
            )


def skip_words(host: str, why: DeletedShare | UnreadableHost, command: str = "expire") -> str:
    """Formats why an expiry skips the host."""
    if isinstance(why, UnreadableHost):
        return why.error
    return (
        f"{_beyond(why, HOST_SHARE, HOST_COUNT)}; if that is intended: `backupd {command} --force {shlex.quote(force_word(host))}`"
    )


def _beyond(share: DeletedShare, most: float, count: int) -> str:
    going = f"{share.going:,} of {counted(share.total, 'backup')} would be deleted at once"
    return f"{going}, more than {format_share(most)} and more than {count}"


def _span(span: timedelta) -> str:
    return format_duration(span.total_seconds())


def held_words(deleted: Mapping[int, DeletedBackup], held: Mapping[int, FolderUser | None]) -> str:
    """Formats which deleted backups the cleaner cannot drop, and which process has a file open in them."""
    holders = []
    for id_, who in sorted(held.items()):
        by = f"process {who.pid} ({who.name})" if who else "an unknown process (or a mount)"
        holders.append(f"{deleted[id_].host} {deleted[id_].name} by {by}")
    count, inside = counted(len(held), "deleted backup"), "it" if len(held) == 1 else "them"
    return f"{count} cannot be freed while files in {inside} are open: {names_in_words(holders)}"


def stuck_words(waiting: int) -> str:
    """Formats why nothing more is deleted if the queue does not shrink."""
    return (
        f"deletion has stopped: {counted(waiting, 'deleted subvolume')} fill the queue (max_orphans), and the kernel frees none; "
        "a process has open files or its working folder in them"
    )
