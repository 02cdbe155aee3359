"""One host's backups fetched, one after the other, under that host's lock."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Protocol

from backupd.replicate.far_pool import FarPool
from backupd.replicate.marked import require_marked, take_notes
from backupd.replicate.naming import Expected, NotReceived
from backupd.replicate.outcome import (
    Fetched,
    ReplicationContext,
)
from backupd.replicate.receive_program import newest_received
from backupd.replicate.receiver import Receiving
from backupd.repo.backup_json import Record
from backupd.repo.final_backups import own_backup, point_latest
from backupd.repo.notes_json import read_notes
from backupd.repo.received import discard_received, drop_empty_mark
from backupd.repo.reconcile import final_row
from backupd.repo.recorded_rows import forget_gone, forget_recorded
from backupd.repo.room import require_room
from backupd.repo.seals import is_original, sealed_row
from btrkeep.catalogue import Backup
from btrkeep.decisions.replication import (
    FarBackup,
    Fetch,
)
from btrkeep.decisions.stream_limit import longest_stream
from btrkeep.errors import OperatorError
from btrkeep.pool.locks import Lock, take_lock
from btrkeep.pool.marker import Pool
from btrkeep.pool.subvolume import Subvolume
from btrkeep.units import format_size, format_time

_LOOK, _LOOK_AFTER = 64 << 20, 3.0  # bytes, seconds between two looks at the room
_MOST_TOGETHER, _MOST_BYTES, _LONGEST_TOGETHER = 16, 64 << 20, 10.0  # backups, bytes, seconds: what a cut may cost
_LOOK_THERE = "look at the other server: no backup is that long"


class Watched(Protocol):
    """Who follows the fetching of one host."""

    def wait(self) -> bool:
        """Returns when nothing else works in the pool; whether one more backup is to be begun."""

    def may_go_on(self) -> bool:
        """Whether one more backup is to be begun, and nothing else works in the pool."""

    @property
    def is_stopped(self) -> bool:
        """Whether all of it is to end now."""

    def expect(self, size: int | None) -> None:
        """Takes the announced bytes of the backup that is coming, None if unknown."""

    def follow(self, size: int) -> None:
        """Takes how many bytes of it have come."""

    def tell(self, done: Fetched, row: Backup) -> None:
        """Takes what has come, and its row."""

    def finish(self, work: Callable[[], None]) -> None:
        """Has that done, now or beside what comes next, which is of this host only if nothing went wrong."""


@dataclass(frozen=True, slots=True)
class HostCopies:
    """What is fetched of one host. Backups that come in a short time are received by one program, and get their names together."""

    context: ReplicationContext
    far: FarPool
    host: str
    watched: Watched

    def fetch(self, fetches: Iterable[Fetch]) -> None:
        """Fetches them in that order. Raises OperatorError, OSError; PoolUnusable when nothing more can be fetched at all.

        It gives way to a night, an expiry and a balance between two backups, and the host's lock is free meanwhile.
        """
        left = deque(fetches)
        while left and self.watched.wait():
            with ExitStack() as held:
                lock = self._locked(held)
                if self._by_rsync:
                    self._copy(left, lock)
                else:
                    self._receive(left, held)

    def _locked(self, held: ExitStack) -> Lock:
        """Takes the host's lock, which `held` gives back; nothing is left of an earlier time then."""
        context, host = self.context, self.host
        what, since = f"replication of {host}", format_time(context.now)
        is_sealed = self._by_rsync and context.confined  # rsync in its cell inherits the lock
        lock = held.enter_context(take_lock(context.pool.host_lock(host), what, since, sealed=is_sealed))
        context.pool.host(host).mkdir(mode=0o700, exist_ok=True)
        require_marked(context, self.far, host)
        held.callback(drop_empty_mark, context.pool, host)
        discard_received(context.pool, host)
        held.callback(point_latest, context.pool, host)
        return lock

    @property
    def _by_rsync(self) -> bool:
        return self.context.replica.engine == "rsync"

    def _copy(self, left: deque[Fetch], lock: Lock) -> None:
        """Fetches by rsync, one after the other, until something else works in the pool."""
        from backupd.replicate.rsync_engine import fetch_by_rsync  # only this engine needs asyncio

        context, host = self.context, self.host
        while left and self.watched.may_go_on():
            fetch, begun = left.popleft(), time.monotonic()
            _require_parent(context.pool, host, fetch.parent)
            forget_gone(context.pool, host, fetch.backup.name)
            size = fetch_by_rsync(context, self.far, lock, host, fetch, self.watched.follow)
            found = own_backup(context.pool.host(host) / fetch.backup.name, host)
            if found:
                self._tell(fetch, size, time.monotonic() - begun, *found)

    def _receive(self, left: deque[Fetch], held: ExitStack) -> None:
        """Receives some as streams, until something else works in the pool, and has what `held` holds end when they have names."""
        receiving = held.enter_context(
            Receiving(self.context.pool, self.host, confined=self.context.confined, patience=self.context.replica.stall)
        )
        came = dict[str, tuple[Fetch, int, float]]()
        try:
            self._take_some(left, receiving, came)
        except BaseException:
            with suppress(OperatorError, OSError):
                self._publish(receiving, came)
            raise
        receiving.end_input()
        later = held.pop_all()

        def finish() -> None:
            with later:
                self._publish(receiving, came)

        self.watched.finish(finish)

    def _take_some(self, left: deque[Fetch], receiving: Receiving, came: dict[str, tuple[Fetch, int, float]]) -> None:
        """Takes the streams of the first of `left`, which are added to `came`: by name, with the bytes and the seconds of each."""
        since, size = time.monotonic(), 0
        while left and (not came or self.watched.may_go_on()):
            fetch, begun = left.popleft(), time.monotonic()
            if not (fetch.parent and fetch.parent.name in came):
                _require_parent(self.context.pool, self.host, fetch.parent)
            come = self._take(fetch, receiving)
            came[fetch.backup.name] = fetch, come, time.monotonic() - begun
            size += come
            is_enough = len(came) >= _MOST_TOGETHER or size > _MOST_BYTES or time.monotonic() - since > _LONGEST_TOGETHER
            if is_enough or receiving.ends:
                return

    def _take(self, fetch: Fetch, receiving: Receiving) -> int:
        """Takes one stream; returns the bytes that came."""
        context, far, host = self.context, self.far, self.host
        before = far.bytes
        forget_gone(context.pool, host, fetch.backup.name)
        announced, pieces = far.fetch(host, fetch, min(far.stream, newest_received()))
        expected = Expected.of(host, fetch)
        longest = longest_stream(announced.total, require_room(context.pool, context.config).total)
        self.watched.expect(announced.bytes)
        is_stopped, looked, looked_at = far.look, before, time.monotonic()

        def look() -> None:
            nonlocal looked, looked_at
            is_stopped()
            self.watched.follow(far.bytes - before)
            if far.bytes - before > longest:
                raise NotReceived(
                    f"{host}@{fetch.backup.name}: more than {format_size(longest)} came, so it has no end", _LOOK_THERE
                )
            if far.bytes - looked >= _LOOK or time.monotonic() - looked_at > _LOOK_AFTER:
                looked, looked_at = far.bytes, time.monotonic()
                require_room(context.pool, context.config)

        take_notes(context.pool, host, fetch.backup.name, announced, context.replica.name)  # first: it comes but once
        far.look = look  # also while nothing comes: few bytes can reserve much room
        try:
            receiving.take(expected, pieces, version=announced.stream, look=look)
        finally:
            far.look = is_stopped
        return far.bytes - before

    def _publish(self, receiving: Receiving, came: Mapping[str, tuple[Fetch, int, float]]) -> None:
        for expected, subvolume, record in receiving.publish(lambda: self.watched.is_stopped):
            self._tell(*came[expected.name], subvolume, record)

    def _tell(self, fetch: Fetch, size: int, seconds: float, subvolume: Subvolume, record: Record) -> None:
        folder, name = self.context.pool.host(self.host), fetch.backup.name
        if fetch.again:
            forget_recorded(self.context.pool, self.host, name)
        parent = fetch.parent.name if fetch.parent else None
        row = sealed_row(folder, final_row(self.context.pool, self.host, record, subvolume, read_notes(folder)))
        self.watched.tell(Fetched(self.host, name, parent, size, seconds, fetch.again), row)


def _require_parent(pool: Pool, host: str, parent: FarBackup | None) -> None:
    """Raises OperatorError when the backup that the difference is to is not the very one."""
    if parent is None:
        return
    folder, hint = pool.host(host), "fetch again: the next one takes another backup that both pools have"
    found = own_backup(folder / parent.name, host)
    if found is None or not found[0].read_only or found[1].uuid != parent.uuid:
        raise OperatorError(f"{host}@{parent.name} is not here any more", hint)
    if not is_original(folder / parent.name, found[0], read_notes(folder), parent.name):
        raise OperatorError(f"{host}@{parent.name} was changed after it was final", hint)
