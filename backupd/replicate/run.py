"""One replication: what the other pool has is compared with what is here, and what is missing is fetched, some hosts at a time.

Each worker has a connection of its own and takes one host after the other, under that host's lock. A host that fails costs the
others nothing. Deletions, ends of holds and new names never come along: whoever owns the other pool cannot take away what is here.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from fnmatch import fnmatchcase

from backupd.replicate.far_pool import Announced, FarHost, FarPool
from backupd.replicate.receiver import Expected, receive
from backupd.repo.common import common_with, write_common
from backupd.repo.final_backups import final_backups, ours, point_latest
from backupd.repo.listing import hosts_of
from backupd.repo.notes_json import ACCEPTED, HOLD, Notes, read_notes, write_notes
from backupd.repo.received import discard_received
from backupd.repo.reconcile import row_of
from btrkeep.backup_states import FINAL
from btrkeep.catalogue import Backup, Catalogue
from btrkeep.config import Config
from btrkeep.config.model import ReplicaSettings, Retention
from btrkeep.decisions.pool_room import lacks_room
from btrkeep.decisions.replication import (
    FarBackup,
    Fetch,
    HostFetches,
    NearBackup,
    NearHost,
    Obstacle,
    ReplicaMark,
    obstacle_words,
    plan_fetches,
)
from btrkeep.errors import OperatorError, PoolUnusable
from btrkeep.pool.locks import POOL_LOCKS, read_holder, take_lock
from btrkeep.pool.marker import Pool
from btrkeep.pool.room import read_room
from btrkeep.pool.send import newest_stream
from btrkeep.process.cancellation import Cancellation
from btrkeep.process.progress import Notice, ProgressSinks, Waiting
from btrkeep.units import format_time, parse_time

log = logging.getLogger(__name__)

_LOOK = 64 << 20  # bytes between two looks at the room
_PAUSE = 1.0
_TELL = 0.5  # seconds
_PARTS = ("at", "until", "why")  # of a note


@dataclass(frozen=True, slots=True)
class ReplicationPlan:
    """What is to be done. `hosts`: those with something to fetch; `obstacles`: those of which nothing can be; `common`: by host.

    `total`: all backups there. `is_of_some`: only hosts that somebody has named were looked at.
    """

    hosts: tuple[HostFetches, ...]
    obstacles: tuple[HostFetches, ...]
    common: Mapping[str, str]
    total: int
    is_of_some: bool = False

    @property
    def count(self) -> int:
        """How many backups are to be fetched."""
        return sum(len(one.fetches) for one in self.hosts)


@dataclass(frozen=True, slots=True)
class Fetched:
    """A backup that has come: its bytes in the stream, and seconds."""

    host: str
    name: str
    parent: str | None
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class HostFailed:
    """A host whose backups have not all come, and why."""

    host: str
    error: str


@dataclass(frozen=True, slots=True)
class ReplicationProgress:
    """How far it is: backups done of how many, bytes so far, and the hosts that are at it."""

    done: int
    planned: int
    bytes: int
    hosts: tuple[str, ...]


@dataclass(slots=True)
class ReplicationSummary:
    """What came of it."""

    replica: str
    planned: int = 0
    fetched: list[Fetched] = field(default_factory=list)
    failed: list[HostFailed] = field(default_factory=list)
    cancelled: bool = False

    @property
    def bytes(self) -> int:
        """Of all streams."""
        return sum(one.bytes for one in self.fetched)


ReplicationEvent = ReplicationPlan | Fetched | HostFailed | ReplicationProgress | Notice | Waiting


@dataclass(slots=True)
class ReplicationContext:
    """What a replication works with. `connect` makes one more connection to the other pool."""

    config: Config
    pool: Pool
    catalogue: Catalogue
    replica: ReplicaSettings
    now: datetime
    connect: Callable[[Callable[[], None]], AbstractContextManager[FarPool]]
    observer: ProgressSinks[ReplicationEvent]
    confined: bool
    cancellation: Cancellation = field(default_factory=Cancellation)


def wants(replica: ReplicaSettings, host: str, named: tuple[str, ...]) -> bool:
    """Whether the replica fetches that host, and it is among those that somebody has named."""
    return any(fnmatchcase(host, pattern) for pattern in replica.hosts) and (not named or host in named)


def make_plan(site: ReplicationContext, far: FarPool, named: tuple[str, ...] = ()) -> tuple[ReplicationPlan, dict[str, FarHost]]:
    """What is to be fetched, and the hosts as the other pool lists them. Raises LineBroken, Refused."""
    if far.id == site.pool.id:
        raise OperatorError("that is this very pool", "fetch from another one")
    mark = ReplicaMark(far.id, site.replica.name)
    policy = site.replica.retention
    near = _near_hosts(site.pool, site.catalogue)
    hosts, obstacles, common, listed, total = [], [], dict[str, str](), dict[str, FarHost](), 0
    for far_host in far.hosts():
        if not wants(site.replica, far_host.name, named):
            continue
        listed[far_host.name] = far_host
        total += len(far_host.backups)
        found = _plan_host(site, far_host, near, mark, policy)
        if found.obstacle:
            obstacles.append(found)
            continue
        if found.common:
            common[found.host] = found.common
        if found.fetches:
            hosts.append(found)
    return ReplicationPlan(tuple(hosts), tuple(obstacles), common, total, bool(named)), listed


def _plan_host(
    site: ReplicationContext, far: FarHost, near: Mapping[str, NearHost], mark: ReplicaMark, policy: Retention
) -> HostFetches:
    here = near.get(far.name, NearHost())
    if far.copy_of == site.pool.id:  # it is fetched from here
        return HostFetches(far.name, obstacle=Obstacle.NOBODY_BACKS_UP if here.mark else None)
    if not here.known and (old := next((name for name in far.was if (it := near.get(name)) and it.mark == mark), None)):
        return HostFetches(far.name, obstacle=Obstacle.RENAMED_THERE, text=old)
    zone = site.config.pool.zone
    return plan_fetches(far.name, far.backups, here, mark, policy, zone, site.now, newest_only=site.replica.newest_only)


def _near_hosts(pool: Pool, catalogue: Catalogue) -> dict[str, NearHost]:
    """Every host of this pool, by what the catalogue and the notes say of it."""
    backups: dict[str, list[NearBackup]] = {}
    for row in catalogue.states():
        of_host = backups.setdefault(row.host, [])
        if row.name and row.uuid and (row.outcome or row.state) in FINAL:
            of_host.append(NearBackup(row.name, row.uuid, row.outcome or row.state, row.expired is not None))
    return {host: _near(pool, host, backups.get(host, [])) for host in hosts_of(pool) if host in backups or _is_marked(pool, host)}


def _is_marked(pool: Pool, host: str) -> bool:
    """Whether the host is fetched, of which nothing may be left here but what its notes say."""
    return read_notes(pool.host(host)).replica is not None


def _near(pool: Pool, host: str, found: list[NearBackup]) -> NearHost:
    notes = read_notes(pool.host(host))
    return NearHost(found, mark_of(notes), notes.forgotten is not None, frozenset(notes.deleted), known=True)


def mark_of(notes: Notes) -> ReplicaMark | None:
    """Whose copy the host is; None for one that is backed up here."""
    return ReplicaMark(str(notes.replica.get("pool")), str(notes.replica.get("name"))) if notes.replica else None


def replicate(site: ReplicationContext, plan: ReplicationPlan, listed: Mapping[str, FarHost], far: FarPool) -> ReplicationSummary:
    """Fetches what is planned, and has both pools leave alone what they have in common. Raises PoolUnusable."""
    summary = ReplicationSummary(site.replica.name, plan.count)
    summary.failed += [HostFailed(one.host, obstacle_words(one)) for one in plan.obstacles]
    site.observer(plan)
    work = _Work(site, plan, listed, summary)
    work.run()
    blocked = {name for one in plan.obstacles for name in (one.host, one.text)}
    known = common_with(site.pool, site.replica.name)
    others = {host: name for host, name in known.items() if plan.is_of_some or host in blocked}
    common = {**others, **plan.common, **work.common}
    if not site.cancellation:
        write_common(site.pool, site.replica.name, common)
        try:
            renamed = {one.host: known[one.text] for one in plan.obstacles if one.text in known}
            far.note_common(site.replica.name, common | renamed)
        except OperatorError as error:  # all is here; at the worst the next one fetches more than differences
            site.observer.notice(f"the other pool does not note what both have in common: {error.message}")
    summary.cancelled = bool(site.cancellation)
    return summary


class _Work:
    """The workers, and the thread that began them, which alone knows the catalogue and tells what happens."""

    def __init__(
        self, site: ReplicationContext, plan: ReplicationPlan, listed: Mapping[str, FarHost], summary: ReplicationSummary
    ) -> None:
        self.site, self.plan, self.listed, self.summary = site, plan, listed, summary
        self.common: dict[str, str] = {}
        self._waiting: queue.SimpleQueue[HostFetches] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[tuple[ReplicationEvent | None, Backup | None]] = queue.SimpleQueue()
        self._at: dict[str, int] = {}
        self._unusable: PoolUnusable | None = None
        self._ends = False

    def run(self) -> None:
        """Fetches all. Raises PoolUnusable when nothing more can be, and OperatorError of the catalogue."""
        for one in self.plan.hosts:
            self._waiting.put(one)
        threads = [threading.Thread(target=self._work) for _ in range(min(self.site.replica.concurrency, len(self.plan.hosts)))]
        for thread in threads:
            thread.start()
        try:
            self._follow(len(threads))
        finally:
            self._ends = True
            for thread in threads:
                thread.join()
        if self._unusable:
            raise self._unusable

    def _follow(self, working: int) -> None:
        """Does with each event what concerns all, until the last worker has ended."""
        while working:
            try:
                event, row = self._events.get(timeout=_TELL)
            except queue.Empty:
                size = self.summary.bytes + sum(list(self._at.values()))
                event, row = ReplicationProgress(len(self.summary.fetched), self.summary.planned, size, tuple(self._at)), None
            if event is None:
                working -= 1
                continue
            if row:
                self.site.catalogue.put_backup(row)
            if isinstance(event, Fetched):
                self.summary.fetched.append(event)
            if isinstance(event, HostFailed):
                self.summary.failed.append(event)
            self.site.observer(event)

    def _work(self) -> None:
        """One host after the other. After a failure the connection is closed: nobody knows where in an answer it is."""
        try:
            far: FarPool | None = None
            with ExitStack() as held:
                while not self._is_over and (planned := self._next()):
                    try:
                        far = far or held.enter_context(self.site.connect(self._require_going))
                        self._wait()
                        if not self._is_over:
                            self._host(far, planned)
                    except PoolUnusable as error:
                        self._unusable = self._unusable or error
                    except (OperatorError, OSError) as error:
                        self._events.put((HostFailed(planned.host, str(error)), None))
                        held.close()
                        far = None
                    except Exception as error:
                        log.exception("%s", planned.host)
                        self._events.put((HostFailed(planned.host, repr(error)), None))
                        held.close()
                        far = None
                    finally:
                        self._at.pop(planned.host, None)
        finally:
            self._events.put((None, None))

    @property
    def _is_over(self) -> bool:
        return self._ends or bool(self.site.cancellation) or self._unusable is not None

    def _require_going(self) -> None:
        if self._is_over:
            raise OperatorError("stopped")

    def _next(self) -> HostFetches | None:
        try:
            return self._waiting.get_nowait()
        except queue.Empty:
            return None

    def _wait(self) -> None:
        """Gives way to a night, an expiry and a balance."""
        while not self._is_over and (who := _at_work(self.site.pool)):
            self._events.put((Waiting(who), None))
            self.site.cancellation.sleep(_PAUSE)

    def _host(self, far: FarPool, planned: HostFetches) -> None:
        site, host = self.site, planned.host
        folder = site.pool.host(host)
        with take_lock(site.pool.locks / f"host-{host}", f"replication of {host}", format_time(site.now)):
            folder.mkdir(mode=0o700, exist_ok=True)
            _require_marked(site, far, host)
            discard_received(site.pool, host)
            try:
                for fetch in planned.fetches:
                    if self._is_over:
                        return
                    self._fetch(far, host, fetch)
            finally:
                point_latest(site.pool, host)

    def _fetch(self, far: FarPool, host: str, fetch: Fetch) -> None:
        site, begun, before = self.site, time.monotonic(), far.bytes
        _require_parent(site.pool, host, fetch.parent)
        announced, pieces = far.fetch(host, fetch, min(far.stream, newest_stream()))
        expected = Expected(host, fetch.backup.name, fetch.backup.uuid, fetch.parent.uuid if fetch.parent else None)
        looked = [before]

        def look() -> None:
            self._at[host] = far.bytes - before
            if far.bytes - looked[0] >= _LOOK:
                looked[0] = far.bytes
                _require_room(site)

        _require_room(site)
        _take_notes(site.pool, host, fetch.backup.name, announced, site.replica.name)  # first: it comes but once
        receive(site.pool, expected, pieces, version=announced.stream, confined=site.confined, look=look)
        self.common[host] = max(fetch.backup.name, self.common.get(host, self.plan.common.get(host, "")))
        parent = fetch.parent.name if fetch.parent else None
        done = Fetched(host, fetch.backup.name, parent, far.bytes - before, time.monotonic() - begun)
        self._events.put((done, row_of(site.pool, host, fetch.backup.name)))


def _at_work(pool: Pool) -> str:
    """Who makes, expires or balances backups, in words; "" when nobody does."""
    for name in POOL_LOCKS:
        holder = read_holder(pool.locks / name)
        if holder and holder.alive:
            return f"{holder.what} (process {holder.pid})"
    return ""


def _require_room(site: ReplicationContext) -> None:
    if why := lacks_room(read_room(site.pool.path), site.config.pool.min_free):
        raise PoolUnusable(why, "expire backups, or give the pool more room")


def _require_marked(site: ReplicationContext, far: FarPool, host: str) -> None:
    """Has the host's notes say whose copy it is, before anything of it is here. Raises OperatorError when it is another's."""
    folder = site.pool.host(host)
    notes, wanted = read_notes(folder), ReplicaMark(far.id, site.replica.name)
    if notes.replica is None:
        if any(final_backups(site.pool, host)) or site.pool.working(host).exists():
            raise OperatorError(obstacle_words(HostFetches(host, obstacle=Obstacle.BACKED_UP_HERE)))
        write_notes(folder, replace(notes, replica={"pool": far.id, "name": site.replica.name, "at": format_time(site.now)}))
    elif (mark := mark_of(notes)) and mark.pool != wanted.pool:
        raise OperatorError(obstacle_words(HostFetches(host, obstacle=Obstacle.OF_ANOTHER_POOL, text=mark.pool)))
    elif mark_of(notes) != wanted:  # the replica has another name now
        write_notes(folder, replace(notes, replica={**notes.replica, "name": site.replica.name}))


def _require_parent(pool: Pool, host: str, parent: FarBackup | None) -> None:
    """Raises OperatorError when the backup that the difference is to is not the very one."""
    if parent is None:
        return
    found = ours(pool.host(host) / parent.name, host)
    if found is None or not found[0].read_only or found[1].uuid != parent.uuid:
        raise OperatorError(f"{host}@{parent.name} is not here any more", "`backupd rebuild`, then fetch again")


def _take_notes(pool: Pool, host: str, name: str, announced: Announced, replica: str) -> None:
    """Has a hold and an acceptance come along with the backup."""
    folder = pool.host(host)
    notes = read_notes(folder)
    for key in (HOLD, ACCEPTED):
        note = announced.notes.get(key)
        if note and _is_note(note):
            kept: dict[str, str | None] = {
                part: str(note[part]) if note[part] is not None else None for part in _PARTS if part in note
            }
            notes = notes.with_note(name, key, {**kept, "from": replica})
    if notes != read_notes(folder):
        write_notes(folder, notes)


def _is_note(note: Mapping[str, object]) -> bool:
    try:
        for part in ("at", "until"):
            if note.get(part) is not None:
                parse_time(str(note[part]))
    except ValueError:
        return False
    return bool(note.get("at"))
