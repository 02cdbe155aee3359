"""Decides which copies can stand in for a backup that this pool cannot give: replicas, pushes and offsite repositories. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from btrkeep.config.model import CopySettings, OffsiteSettings
from btrkeep.decisions.copies import OFFSITE, PUSH, REPLICA, KnownCopies


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
    found = [_configured(one, known, offsite, host) for one in configured.values()]
    copies = [one for one in found if one]
    if known:
        others = {name: of[host] for name, of in known.common.items() if host in of and name not in configured}
        copies += [OtherCopy(name, PUSH, "", newest) for name, newest in others.items()]
    return tuple(sorted(copies, key=lambda one: (one.kind == OFFSITE, one.name)))


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
