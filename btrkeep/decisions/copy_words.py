"""Words about copies: replicas and offsite repositories."""

from btrkeep.decisions.copies import FETCHED_BY, OFFSITE, REPLICA, RunningFetch
from btrkeep.units import counted, format_duration, format_size

_MOST_NAMED = 3


def done_words(kind: str) -> str:
    """Returns the verb for updating a copy of this kind."""
    return "fetched" if kind in (REPLICA, FETCHED_BY) else "sent to"


def age_words(kind: str, age: float | None) -> str:
    """Returns how old a copy is; `age` as in CopyStatus."""
    if age is None:
        return f"never {done_words(kind)}"
    return (
        f"its newest backup is {format_duration(age)} old"
        if kind == OFFSITE
        else f"last {done_words(kind)} {format_duration(age)} ago"
    )


def command_of(kind: str, name: str) -> str:
    """Returns the command that updates the copy: of one that fetches from here, on the other server."""
    if kind == FETCHED_BY:
        return "backupd replicate"
    return f"backupd offsite run {name}" if kind == OFFSITE else f"backupd replicate {name}"


def remedy(kind: str, name: str) -> str:
    """Returns what to do about a copy that is not up to date."""
    command = f"`{command_of(kind, name)}`"
    if kind == FETCHED_BY:
        return f"{command} on the server that has this copy, or with its disk connected, says what is against it"
    return f"{command} brings what is missing, and says what is against it"


def running_words(running: RunningFetch) -> str:
    """Describes the progress."""
    rate = f", {format_size(round(running.rate))}/s" if running.rate else ""
    of = f" of {format_size(running.announced)} announced" if running.announced > running.bytes else ""
    left = f", about {format_duration(running.left)} left" if running.left else ""
    at = f", at {', '.join(running.hosts[:_MOST_NAMED])}" if running.hosts else ""
    more = f" and {len(running.hosts) - _MOST_NAMED} more" if len(running.hosts) > _MOST_NAMED else ""
    return f"{running.done:,} of {counted(running.planned, 'backup')}, {format_size(running.bytes)}{of}{rate}{left}{at}{more}"
