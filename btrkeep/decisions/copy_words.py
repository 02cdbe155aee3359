"""Words about copies: replicas and offsite repositories."""

from btrkeep.decisions.copies import OFFSITE, REPLICA, RunningFetch
from btrkeep.units import counted, format_duration, format_size

_MOST_NAMED = 3


def done_words(kind: str) -> str:
    """Returns the verb for updating a copy of this kind."""
    return "fetched" if kind == REPLICA else "sent to"


def command_of(kind: str, name: str) -> str:
    """Returns the command that updates the copy."""
    return f"backupd offsite run {name}" if kind == OFFSITE else f"backupd replicate {name}"


def running_words(running: RunningFetch) -> str:
    """Describes the progress."""
    rate = f", {format_size(round(running.rate))}/s" if running.rate else ""
    of = f" of {format_size(running.announced)} announced" if running.announced > running.bytes else ""
    left = f", about {format_duration(running.left)} left" if running.left else ""
    at = f", at {', '.join(running.hosts[:_MOST_NAMED])}" if running.hosts else ""
    more = f" and {len(running.hosts) - _MOST_NAMED} more" if len(running.hosts) > _MOST_NAMED else ""
    return f"{running.done:,} of {counted(running.planned, 'backup')}, {format_size(running.bytes)}{of}{rate}{left}{at}{more}"
