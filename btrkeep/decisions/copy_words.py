"""Copies: which can stand in for a backup that this pool cannot give, and the words about them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from btrkeep.config.model import CopySettings, OffsiteSettings
from btrkeep.decisions.copies import FETCHED_BY, OFFSITE, PUSH, REPLICA, KnownCopies, RunningFetch
from btrkeep.units import counted, format_duration, format_size


@dataclass(frozen=True, slots=True)
class OtherCopy:
    """A copy of a host's backups. `place`: where it is, "" if only the other side knows; `newest`: its newest backup by name, None
    if that is not known.
    """

    name: str
    kind: str
    place: str
    newest: str | None
    offsite: OffsiteSettings | None = None


def other_copies(
    configured: Mapping[str, CopySettings],
    known: KnownCopies | None,
    offsite: Mapping[str, Mapping[str, str]],
    host: str,
) -> tuple[OtherCopy, ...]:
    """Returns the copies of a host. `offsite`: by repository and host the newest backup there.

    With `known` None the catalogue is gone: then a copy counts if its `hosts` of the configuration include the host.
    """
    found = [_configured(copy_settings, known, offsite, host) for copy_settings in configured.values()]
    copies = [other_copy for other_copy in found if other_copy]
    if known:
        others = {name: of[host] for name, of in known.common.items() if host in of and name not in configured}
        copies += [OtherCopy(name, PUSH, "", newest) for name, newest in others.items()]
    return tuple(sorted(copies, key=lambda copy: (copy.kind == OFFSITE, copy.name)))


def _configured(
    settings: CopySettings, known: KnownCopies | None, offsite: Mapping[str, Mapping[str, str]], host: str
) -> OtherCopy | None:
    name, kind = settings.name, settings.kind
    newest = offsite.get(name, {}).get(host) if kind == OFFSITE else (known.common.get(name, {}).get(host) if known else None)
    if known is not None and newest is None and (kind != REPLICA or known.fetched.get(host) != name):
        return None
    if known is None and not any(fnmatchcase(host, pattern) for pattern in settings.hosts):
        return None
    return OtherCopy(name, kind, settings.source, newest, settings if isinstance(settings, OffsiteSettings) else None)


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
