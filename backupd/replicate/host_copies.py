"""One host's backups fetched, one after the other, under that host's lock."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from backupd.replicate.far_pool import FarPool
from backupd.replicate.marked import require_marked, take_notes
from backupd.replicate.outcome import (
    Fetched,
    ReplicationContext,
)
from backupd.replicate.receiver import Expected, NotReceived, newest_received, receive
from backupd.replicate.room import require_room
from backupd.replicate.rsync_engine import fetch_by_rsync
from backupd.repo.compared import forget_compared
from backupd.repo.final_backups import own_backup, point_latest
from backupd.repo.received import discard_received
from backupd.repo.verified import forget_verified
from btrkeep.decisions.replication import (
    FarBackup,
    Fetch,
)
from btrkeep.decisions.stream_limit import longest_stream
from btrkeep.errors import OperatorError
from btrkeep.pool.locks import Lock, at_work, take_lock
from btrkeep.pool.marker import Pool
from btrkeep.units import format_size, format_time

_LOOK = 64 << 20  # bytes between two looks at the room
_LOOK_AROUND = 0.1  # seconds; a look takes a millisecond, a small difference twenty
_LOOK_THERE = "look at the other server: no backup is that long"


@dataclass(frozen=True, slots=True)
class HostCopies:
    """`is_over` says whether to stop between two backups; `wait` returns when nothing else works in the pool.

    `expect` takes the announced bytes of the backup that is coming, None if unknown, and `follow` those that have come; `tell`
    takes each that has come.
    """

    site: ReplicationContext
    far: FarPool
    host: str
    is_over: Callable[[], bool]
    wait: Callable[[], None]
    expect: Callable[[int | None], None]
    follow: Callable[[int], None]
    tell: Callable[[Fetched], None]

    def fetch(self, fetches: Iterable[Fetch]) -> None:
        """Fetches them in that order. Raises OperatorError, OSError; PoolUnusable when nothing more can be fetched at all.

        It gives way to a night, an expiry and a balance between two backups, and the host's lock is free meanwhile.
        """
        left = deque(fetches)
        while left and not self.is_over():
            self.wait()
            if not self.is_over():
                self._fetch_while_idle(left)

    def _fetch_while_idle(self, left: deque[Fetch]) -> None:
        """Fetches the first of them, and more until something else works in the pool; takes those that have come from `left`."""
        site, host = self.site, self.host
        folder = site.pool.host(host)
        what, since = f"replication of {host}", format_time(site.now)
        is_sealed = self._by_rsync and site.confined  # rsync in its cell inherits the lock
        with take_lock(site.pool.locks / f"host-{host}", what, since, sealed=is_sealed) as lock:
            folder.mkdir(mode=0o700, exist_ok=True)
            require_marked(site, self.far, host)
            discard_received(site.pool, host)
            try:
                looked = time.monotonic()
                while left and not self.is_over():
                    if time.monotonic() - looked > _LOOK_AROUND:
                        if at_work(site.pool.locks):
                            return
                        looked = time.monotonic()
                    self._fetch(left.popleft(), lock)
            finally:
                point_latest(site.pool, host)

    @property
    def _by_rsync(self) -> bool:
        return self.site.replica.engine == "rsync"

    def _fetch(self, fetch: Fetch, lock: Lock) -> None:
        site, host = self.site, self.host
        begun = time.monotonic()
        _require_parent(site.pool, host, fetch.parent)
        size = fetch_by_rsync(site, self.far, lock, host, fetch, self.follow) if self._by_rsync else self._receive(fetch)
        if fetch.again:
            forget_verified(site.pool.host(host), fetch.backup.name)
            forget_compared(site.pool.host(host), fetch.backup.name)
        parent = fetch.parent.name if fetch.parent else None
        self.tell(Fetched(host, fetch.backup.name, parent, size, time.monotonic() - begun, fetch.again))

    def _receive(self, fetch: Fetch) -> int:
        """Fetches it as a stream; returns the bytes that came."""
        site, far, host = self.site, self.far, self.host
        before = far.bytes
        announced, pieces = far.fetch(host, fetch, min(far.stream, newest_received()))
        expected = Expected(host, fetch.backup.name, fetch.backup.uuid, fetch.parent.uuid if fetch.parent else None, fetch.again)
        looked, longest = before, longest_stream(announced.total, require_room(site).total)
        self.expect(announced.bytes)

        def look() -> None:
            nonlocal looked
            self.follow(far.bytes - before)
            if far.bytes - before > longest:
                raise NotReceived(
                    f"{host}@{fetch.backup.name}: more than {format_size(longest)} came, so it has no end", _LOOK_THERE
                )
            if far.bytes - looked >= _LOOK:
                looked = far.bytes
                require_room(site)

        take_notes(site.pool, host, fetch.backup.name, announced, site.replica.name)  # first: it comes but once
        receive(site.pool, expected, pieces, version=announced.stream, confined=site.confined, look=look)
        return far.bytes - before


def _require_parent(pool: Pool, host: str, parent: FarBackup | None) -> None:
    """Raises OperatorError when the backup that the difference is to is not the very one."""
    if parent is None:
        return
    found = own_backup(pool.host(host) / parent.name, host)
    if found is None or not found[0].read_only or found[1].uuid != parent.uuid:
        raise OperatorError(f"{host}@{parent.name} is not here any more", "`backupd rebuild`, then fetch again")
