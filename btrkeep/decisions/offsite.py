"""Decides which backups are sent to an offsite repository, and which are removed there. Pure."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from btrkeep.backup_states import COMPLETE
from btrkeep.config.model import Retention
from btrkeep.decisions.retention import Candidate, decide
from btrkeep.decisions.safety_limits import Forced, Guarded, Share, too_many

_TRIES = 3


@dataclass(frozen=True, slots=True)
class OffsiteSnapshot:
    """A backup in the repository: restic's id of it, the host, our name of the backup, and when that began."""

    id: str
    host: str
    name: str
    started: datetime


def newest_there(there: Iterable[OffsiteSnapshot], incomplete: Collection[str]) -> dict[str, str]:
    """The newest whole backup of each host in the repository, by name."""
    return {host: max(names) for host, names in complete_there(there, incomplete).items()}


def complete_there(there: Iterable[OffsiteSnapshot], incomplete: Collection[str]) -> dict[str, set[str]]:
    """The names of the whole backups of each host in the repository."""
    found: dict[str, set[str]] = {}
    for one in there:
        if one.id not in incomplete:
            found.setdefault(one.host, set()).add(one.name)
    return found


def to_send(newest: Mapping[str, str], there: Iterable[OffsiteSnapshot], incomplete: Collection[str]) -> list[tuple[str, str]]:
    """Returns the hosts whose `newest` complete backup is not there, with its name. The one furthest behind comes first."""
    whole = {(one.host, one.name) for one in there if one.id not in incomplete}
    known = newest_there(there, incomplete)
    missing = [(host, name) for host, name in newest.items() if (host, name) not in whole]
    return sorted(missing, key=lambda one: (known.get(one[0], ""), one[0]))


def given_up(
    sendings: Iterable[tuple[str, str]], there: Iterable[OffsiteSnapshot], incomplete: Collection[str]
) -> set[tuple[str, str]]:
    """Returns the backups that were sent so often without being complete there that trying again is useless; the host's next backup
    is sent instead.

    Each try leaves a snapshot, which a key that can only append cannot remove.
    """
    tries = Counter((one.host, one.name) for one in there if one.id in incomplete)
    return {one for one in sendings if tries[one] >= _TRIES}


@dataclass(frozen=True, slots=True)
class Removal:
    """`going`: what no rule keeps. `guarded`: hosts of which too much would go, and whether too much would go at all."""

    going: tuple[OffsiteSnapshot, ...]
    guarded: Guarded


def to_remove(
    there: Iterable[OffsiteSnapshot], incomplete: Collection[str], policy: Retention, zone: ZoneInfo, now: datetime, forced: Forced
) -> Removal:
    """Returns what the policy removes, host by host; nothing without a rule. Incomplete snapshots are removed once a complete one
    of the host is newer.

    The safety limits of expiry apply: hosts beyond them are skipped unless forced by name.
    """
    of_host: dict[str, list[OffsiteSnapshot]] = defaultdict(list)
    for one in there:
        of_host[one.host].append(one)
    going: list[OffsiteSnapshot] = []
    for found in of_host.values():
        whole = {one.id: one for one in found if one.id not in incomplete}
        candidates = [Candidate(one.id, one.started, COMPLETE) for one in whole.values()]
        gone = {one.name for one in decide(candidates, policy, zone, now) if not one.keep}
        last = max((one.name for one in whole.values()), default="")
        going += [one for one in found if one.id in gone or (one.id in incomplete and one.name < last)]
    shares = {host: Share(sum(one.host == host for one in going), len(found)) for host, found in of_host.items()}
    guarded = too_many(shares, forced)
    if guarded.stop:
        return Removal((), guarded)
    return Removal(tuple(one for one in going if one.host not in guarded.left_out), guarded)
