"""Decides which backups are sent to an offsite repository, and which are removed there. Pure."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from zoneinfo import ZoneInfo

from btrkeep.backup_states import COMPLETE
from btrkeep.config.config_model import Retention
from btrkeep.decisions.retention import Candidate, decide
from btrkeep.decisions.safety_limits import DeletedShare, Forced, LimitsExceeded, too_many

_TRIES = 3


@dataclass(frozen=True, slots=True)
class OffsiteSnapshot:
    """A backup in an offsite repository."""

    id: str
    """restic's id of the snapshot."""
    host: str
    """The host's name."""
    name: str
    """The backup's name in the pool."""
    started: datetime
    """When that backup started."""
    machine: str = ""
    """The id that the host had in the pool; "": it could not be recorded."""
    label: str = ""
    """The name that the host had when the backup was sent, if it was renamed since; "" if not."""
    former: bool = False
    """True if another machine has that name now."""
    proven: bool = False
    """True if the repository does not know the machine, but the pool has the backup."""
    original: str = ""
    """restic's id before its tags were changed; "": they never were."""
    incomplete: bool = False
    """True if restic could not read all of the backup, as a tag of the snapshot records."""


def placed(taken: Iterable[OffsiteSnapshot], machines: Mapping[str, str | None]) -> list[OffsiteSnapshot]:
    """Returns the backups there under the present names of the hosts in the pool.

    `machines`: the id of each host of the pool; None if nothing of it was sent so far. If two hosts have the same id, because an
    administrator has copied a folder, it belongs to no host.
    """
    counts = Counter(filter(None, machines.values()))
    names = {machine: host for host, machine in machines.items() if machine and counts[machine] == 1}
    snapshots = []
    for snapshot in taken:
        own = bool(snapshot.machine) and machines.get(snapshot.host) == snapshot.machine
        if (host := names.get(snapshot.machine, snapshot.host)) != snapshot.host:
            snapshots.append(replace(snapshot, host=host, label=snapshot.host))
        else:
            snapshots.append(replace(snapshot, former=not own and bool(snapshot.machine) and snapshot.host in machines))
    return snapshots


def left_by_tag(snapshots: Iterable[OffsiteSnapshot]) -> set[str]:
    """Returns the ids of snapshots that exist a second time with the id of the machine: a `restic tag` was killed before it removed
    the old one.
    """
    one_by_one = list(snapshots)
    tagged = {snapshot.original for snapshot in one_by_one if snapshot.machine and not snapshot.proven}
    return {snapshot.id for snapshot in one_by_one if snapshot.proven and (snapshot.original or snapshot.id) in tagged}


def tagged_incomplete(snapshots: Iterable[OffsiteSnapshot]) -> set[str]:
    """Returns the ids of snapshots that a tag marks as incomplete, and of those that exist a second time without the tag: the key
    may not delete, or a `restic tag` was killed before it removed the first one.
    """
    every = list(snapshots)
    originals = {snapshot.original for snapshot in every if snapshot.incomplete and snapshot.original}
    return {
        snapshot.id
        for snapshot in every
        if snapshot.incomplete or snapshot.id in originals or (snapshot.original and snapshot.original in originals)
    }


def newest_in_repository(snapshots: Iterable[OffsiteSnapshot], incomplete: Collection[str]) -> dict[str, str]:
    """Returns the newest complete backup of each host in the repository, by name."""
    return {host: max(names) for host, names in complete_in_repository(snapshots, incomplete).items()}


def complete_in_repository(snapshots: Iterable[OffsiteSnapshot], incomplete: Collection[str]) -> dict[str, set[str]]:
    """Returns the names of the complete backups of each host in the repository that have its present name.

    A user who knows only that name cannot find the others there, so the newest one of a renamed host is sent again.
    """
    names_by_host: dict[str, set[str]] = {}
    for snapshot in snapshots:
        if snapshot.id not in incomplete and not snapshot.former and not snapshot.label:
            names_by_host.setdefault(snapshot.host, set()).add(snapshot.name)
    return names_by_host


def to_send(
    newest: Mapping[str, str], snapshots: Collection[OffsiteSnapshot], incomplete: Collection[str]
) -> list[tuple[str, str]]:
    """Returns the hosts whose `newest` complete backup is missing in the repository, with its name. The host that is furthest
    behind comes first.
    """
    whole = complete_in_repository(snapshots, incomplete)
    newest_sent = newest_in_repository(snapshots, incomplete)
    missing = [(host, name) for host, name in newest.items() if name not in whole.get(host, ())]
    return sorted(missing, key=lambda pair: (newest_sent.get(pair[0], ""), pair[0]))


def given_up(
    sendings: Iterable[tuple[str, str]], snapshots: Iterable[OffsiteSnapshot], incomplete: Collection[str]
) -> set[tuple[str, str]]:
    """Returns the backups that were sent several times and are never complete there, so that trying again is useless; the host's
    next backup is sent instead.

    Each attempt leaves a snapshot, which a key that can only append cannot remove.
    """
    tries = Counter((snapshot.host, snapshot.name) for snapshot in snapshots if snapshot.id in incomplete and not snapshot.former)
    return {sending for sending in sendings if tries[sending] >= _TRIES}


@dataclass(frozen=True, slots=True)
class Removal:
    """`going`: backups that no rule keeps. `guarded`: hosts that would lose too much, and whether too much would be
    removed in all.
    """

    going: tuple[OffsiteSnapshot, ...]
    guarded: LimitsExceeded


def to_remove(
    in_repository: Collection[OffsiteSnapshot],
    incomplete: Collection[str],
    policy: Retention,
    zone: ZoneInfo,
    now: datetime,
    forced: Forced,
) -> Removal:
    """Returns what the policy removes, machine by machine; nothing without a rule. Incomplete ones are removed when the machine has
    a newer complete one. The backups of an earlier machine of that name are a separate history.

    The safety limits of expiry apply: hosts beyond them are skipped unless forced by name.
    """
    of_machine: dict[tuple[str, str], list[OffsiteSnapshot]] = defaultdict(list)
    for snapshot in in_repository:
        of_machine[snapshot.host, snapshot.machine].append(snapshot)
    going: list[OffsiteSnapshot] = []
    for snapshots in of_machine.values():
        whole = {snapshot.name: snapshot.started for snapshot in snapshots if snapshot.id not in incomplete}
        candidates = [Candidate(name, started, COMPLETE) for name, started in whole.items()]
        gone = {decision.name for decision in decide(candidates, policy, zone, now) if not decision.keep}
        last = max(whole, default="")
        going += [
            snapshot for snapshot in snapshots if (snapshot.name < last if snapshot.id in incomplete else snapshot.name in gone)
        ]
    guarded = too_many(_shares(of_machine, going), forced)
    if guarded.stop:
        return Removal((), guarded)
    return Removal(tuple(snapshot for snapshot in going if snapshot.host not in guarded.skipped_hosts), guarded)


def _shares(
    of_machine: Mapping[tuple[str, str], Collection[OffsiteSnapshot]], going: Iterable[OffsiteSnapshot]
) -> dict[str, DeletedShare]:
    """Returns how much of each host would be removed. If two machines have that name, a machine that loses nothing does
    not count, because it would make the share of the other machine look smaller.
    """
    going_of = Counter((snapshot.host, snapshot.machine) for snapshot in going)
    shares: dict[str, DeletedShare] = {}
    for (host, machine), snapshots in of_machine.items():
        lost, before = going_of[host, machine], shares.get(host, DeletedShare(0, 0))
        if bool(lost) == bool(before.going):
            shares[host] = DeletedShare(before.going + lost, before.total + len(snapshots))
        elif lost:
            shares[host] = DeletedShare(lost, len(snapshots))
    return shares
