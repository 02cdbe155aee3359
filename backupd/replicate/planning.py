"""What the other pool has compared with what is here: what is to be fetched.

Deletions, ends of holds and new names never come along: whoever owns the other pool cannot take away what is here.
"""

from collections.abc import Mapping
from dataclasses import replace

from backupd.replicate.far_answers import FarHost
from backupd.replicate.far_pool import FarPool
from backupd.replicate.marked import mark_of, other_replica, wants
from backupd.replicate.outcome import (
    ReplicationContext,
    ReplicationPlan,
)
from backupd.repo.final_backups import is_unreadable
from backupd.repo.listing import hosts_of
from backupd.repo.notes_json import read_notes
from btrkeep.backup_states import FINISHED
from btrkeep.catalogue import WHOLE, Catalogue
from btrkeep.decisions.replication import (
    HostFetches,
    NearBackup,
    NearHost,
    Obstacle,
    ReplicaMark,
    misplaced,
    plan_fetches,
)
from btrkeep.errors import OperatorError
from btrkeep.pool.marker import Pool


def make_plan(
    context: ReplicationContext, far: FarPool, named: tuple[str, ...] = (), *, damaged: bool = False
) -> tuple[ReplicationPlan, dict[str, FarHost]]:
    """Returns what is to be fetched, and the hosts as the other pool lists them. `damaged`: also what is damaged here.

    Raises ConnectionBroken, Refused.
    """
    if far.id == context.pool.id:
        raise OperatorError("that is this very pool", "fetch from another one")
    mark = ReplicaMark(far.id, context.replica.name)
    near = _near_hosts(context.pool, context.catalogue)
    hosts, obstacles, present, listed, total = [], [], dict[str, tuple[str, ...]](), dict[str, FarHost](), 0
    all_there = list(far.hosts())
    owned = {one.name: (one.was, one.backups) for one in all_there if one.copy_of != context.pool.id}
    elsewhere = misplaced(owned, near, far.id)
    for far_host in all_there:
        if not wants(context.replica, far_host.name, named):
            continue
        listed[far_host.name] = far_host
        total += len(far_host.backups)
        found = _plan_host(context, far_host, near, mark, elsewhere, damaged=damaged)
        if found.obstacle:
            obstacles.append(found)
            continue
        if found.present:
            present[found.host] = found.present
        if found.fetches:
            hosts.append(found)
    moved = {old for one in obstacles if (old := one.former_name)}
    gone = [
        host
        for host, it in near.items()
        if it.mark == mark and not it.forgotten and wants(context.replica, host, named) and host not in listed and host not in moved
    ]
    return ReplicationPlan(tuple(hosts), tuple(obstacles), present, total, bool(named), tuple(sorted(gone))), listed


def _plan_host(
    context: ReplicationContext,
    far: FarHost,
    near: Mapping[str, NearHost],
    mark: ReplicaMark,
    elsewhere: tuple[Mapping[str, str], Mapping[str, str]],
    *,
    damaged: bool,
) -> HostFetches:
    """`elsewhere` is what `misplaced` returns."""
    here, (renamed, held) = near.get(far.name, NearHost()), elsewhere
    if far.copy_of == context.pool.id:  # it is fetched from here
        is_of_each_other = here.mark is not None and here.mark.pool == mark.pool
        return HostFetches(far.name, obstacle=Obstacle.NOBODY_BACKS_UP if is_of_each_other else None)
    if far.copy_of and here.known and here.mark is None and {one.uuid for one in here.backups} & {one.uuid for one in far.backups}:
        return HostFetches(far.name)  # this pool's own host, which came back by way of a third pool
    if new := renamed.get(far.name):
        return HostFetches(far.name, obstacle=Obstacle.NAME_REUSED_THERE, text=new)
    if not here.known and (old := next((name for name in far.was if renamed.get(name) == far.name), None)):
        return HostFetches(far.name, obstacle=Obstacle.RENAMED_THERE, text=old)
    if other := other_replica(context, far.name, here.mark, mark):
        return HostFetches(far.name, obstacle=Obstacle.OF_ANOTHER_REPLICA, text=other)
    if not here.forgotten and (name := held.get(far.name)):
        return HostFetches(far.name, obstacle=Obstacle.OTHER_NAME_HERE, text=name)
    zone, policy, newest_only = context.config.pool.zone, context.replica.retention, context.replica.newest_only
    now = context.now
    return plan_fetches(far.name, far.backups, here, mark, policy, zone, now, newest_only=newest_only, damaged=damaged)


def _near_hosts(pool: Pool, catalogue: Catalogue) -> dict[str, NearHost]:
    """Returns every host of this pool, as the catalogue and the notes describe it."""
    damaged, unreadable = dict[str, set[str]](), dict[str, set[str]]()
    for (host, name), path in catalogue.first_damaged().items():
        is_lost = path == WHOLE and is_unreadable(pool.host(host) / name)  # a disk may have been away when it was read
        (unreadable if is_lost else damaged).setdefault(host, set()).add(name)
    backups: dict[str, list[NearBackup]] = {}
    for row in catalogue.states():
        of_host = backups.setdefault(row.host, [])
        if row.name and row.uuid and (row.outcome or row.state) in FINISHED:
            of_host.append(NearBackup(row.name, row.uuid, row.outcome or row.state, row.expired is not None))
    hosts = [host for host in hosts_of(pool) if host in backups or _is_marked(pool, host)]
    near = {host: _near(pool, host, backups.get(host, [])) for host in hosts}
    return {
        host: replace(near_host, damaged=damaged.get(host, ()), unreadable=unreadable.get(host, ()))
        for host, near_host in near.items()
    }


def _is_marked(pool: Pool, host: str) -> bool:
    """Returns True if the host is fetched, of which nothing may be left here but what its notes say."""
    return read_notes(pool.host(host)).replica is not None


def _near(pool: Pool, host: str, found: list[NearBackup]) -> NearHost:
    notes = read_notes(pool.host(host))
    found = [replace(backup, is_original=notes.is_original(backup.name)) for backup in found]
    return NearHost(found, mark_of(notes), notes.forgotten is not None, frozenset(notes.deleted), known=True)
