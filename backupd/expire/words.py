"""The words of an expiry."""

import shlex
from collections.abc import Mapping, Sequence
from datetime import timedelta

from backupd.expire.report import Deleted, Pause
from btrkeep.decisions.expiry_plan import UnreadableHost
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
from btrkeep.units import counted, format_duration, format_share, local_time

_MOST_NAMES = 5
PAUSES = {
    Pause.BALANCE: "a balance makes way",
    Pause.PACE: "the pace that is configured",
    Pause.BACKUPS: "backups run",
}


def expiry_words(why: DeletedShare | ClockBehind | ClockAhead, command: str = "expire") -> str:
    """Says why an expiry does nothing at all, or lets no grace end. `command`: the one of backupd that does it after all."""
    match why:
        case DeletedShare():
            limits = _beyond(why, POOL_SHARE, POOL_COUNT)
            return f"of the pool {limits}: if that is right: `backupd {command} --force {POOL}`"
        case ClockBehind():
            gone = f"the clock went backwards: it says {local_time(why.now)}, and it was {local_time(why.known)} already"
            later = "the expiry after the next night's run goes on"
            return f"{gone}; if it is right now, {later}, or `backupd {command} --force {CLOCK}` now"
        case ClockAhead():
            ahead = f"the clock went ahead by {_span(why.by)} since {local_time(why.since)}"
            return (
                f"{ahead}, of which this machine's boot clock explains {_span(why.explained)}: "
                f"grace and hold ends wait for an expiry a night later, or `backupd {command} --force {CLOCK}` ends them now"
            )


def left_out_words(host: str, why: DeletedShare | UnreadableHost, command: str = "expire") -> str:
    """Says why an expiry leaves the host out."""
    if isinstance(why, UnreadableHost):
        return why.error
    return f"{_beyond(why, HOST_SHARE, HOST_COUNT)}: if that is right: `backupd {command} --force {shlex.quote(force_word(host))}`"


def _beyond(share: DeletedShare, most: float, count: int) -> str:
    going = f"{share.going:,} of {counted(share.total, 'backup')} would be deleted at once"
    return f"{going}, more than {format_share(most)} and more than {count}"


def _span(span: timedelta) -> str:
    return format_duration(span.total_seconds())


def names_in_words(names: Sequence[str]) -> str:
    """ "a, b and 17 more"."""
    shown = ", ".join(names[:_MOST_NAMES])
    return f"{shown} and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else shown


def held_words(deleted: Mapping[int, Deleted], held: Mapping[int, FolderUser | None]) -> str:
    """Formats which deleted backups the cleaner cannot drop, and which process has a file open in them."""
    holders = []
    for id_, who in sorted(held.items()):
        by = f"process {who.pid} ({who.name})" if who else "no process that was found (a mount?)"
        holders.append(f"{deleted[id_].host} {deleted[id_].name} by {by}")
    count, inside = counted(len(held), "deleted backup"), "it" if len(held) == 1 else "them"
    return f"{count} cannot be dropped as long as something in {inside} is open: {names_in_words(holders)}"


def stuck_words(waiting: int) -> str:
    """Says why nothing more is deleted if nothing leaves the queue."""
    return (
        f"nothing more is deleted: {counted(waiting, 'deleted subvolume')} fill the queue (max_orphans) and nothing moves; "
        "somebody has files open in them, or stands in them"
    )
