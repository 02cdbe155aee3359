"""Fetches one host's backups, one after the other, under that host's lock."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Protocol

from backupd.replicate.fetch_plan import require_marked, take_notes
from backupd.replicate.naming import ExpectedBackup, NotReceived, still_damaged
from backupd.replicate.outcome import (
    FetchedBackup,
    ReplicationContext,
)
from backupd.replicate.receiver import Receiving, newest_received
from backupd.replicate.remote_pool import RemotePool
from backupd.replicate.wire import RemoteRefused, UnreadableThere
from backupd.repo.backup_json import Record
from backupd.repo.final_backups import is_unreadable, point_latest, read_if_ours
from backupd.repo.leftovers import discard_received, drop_empty_mark
from backupd.repo.notes_json import read_notes
from backupd.repo.pool_context import require_room
from backupd.repo.reconcile import final_row
from backupd.repo.seals import is_original, sealed_row
from backupd.repo.verification_files import forget_gone, forget_recorded, read_damaged
from btrkeep.catalogue import Backup, Damage
from btrkeep.decisions.replication import (
    Fetch,
    HostFetches,
    RemoteBackup,
    longest_stream,
    planned_again,
)
from btrkeep.errors import OperatorError, is_caused_by_damage
from btrkeep.pool.locks import take_lock
from btrkeep.pool.marker import Pool
from btrkeep.pool.subvolume import Subvolume
from btrkeep.units import format_size, format_time, printable

_LOOK, _LOOK_AFTER = 64 << 20, 3.0  # bytes, and seconds, between two checks of free space
_MOST_TOGETHER, _MOST_BYTES, _LONGEST_TOGETHER = 16, 64 << 20, 10.0  # backups, bytes, seconds: at most lost in a power cut
_LOOK_THERE = "check the other server: no backup is that large"
_STILL_DAMAGED = "run `backupd replicate --damaged` again, which now fetches both"
_MOST_REFUSED = 3  # backups of a host in one replication; more than that have a common cause
_REFUSED_THERE = "check the log on that server (journalctl)"
_UNREADABLE_THERE = (
    "run `backupd verify {host}` and `backupd repair {host}` on that server; delete those that cannot be repaired: `backupd "
    "delete {host}@{name} --why damaged`"
)


class FetchObserver(Protocol):
    """The callbacks of the fetching of one host."""

    def wait(self) -> bool:
        """Waits until no other job uses the pool; returns whether to start another backup."""

    def can_continue(self) -> bool:
        """Returns whether to start another backup, and no other job uses the pool."""

    @property
    def is_stopped(self) -> bool:
        """Returns whether everything has to end now."""

    def expect(self, size: int | None) -> None:
        """Receives the announced bytes of the backup that is being received, None if unknown."""

    def follow(self, size: int) -> None:
        """Receives the number of bytes that were received so far."""

    def tell(self, done: FetchedBackup, row: Backup) -> None:
        """Receives a fetched backup and its row."""

    def tell_failed(self, why: str) -> None:
        """Receives the reason why a backup is not fetched; the others of this host continue."""

    def tell_unreadable(self, name: str) -> None:
        """Receives a copy of which the disk here cannot read the metadata."""

    def fetch_again(self, planned: HostFetches) -> None:
        """Schedules these fetches to be repeated later."""

    def finish(self, work: Callable[[], None]) -> None:
        """Runs the work, now or beside the next fetch; the next fetch of this host starts only if the work succeeded."""


class FetchQueue:
    """The remaining fetches of a host, in order, and their possible parents.

    `pending`: fetches that were received but have no final name yet, in order.
    """

    def __init__(self, planned: HostFetches) -> None:
        self.planned, self._parents = planned, planned.parents
        self._fetches = deque(planned.fetches)
        self.pending = list[Fetch]()
        self._refused = 0

    def __bool__(self) -> bool:
        return bool(self._fetches)

    def take(self) -> Fetch:
        """Returns the next fetch; the one after it can be a difference to it."""
        fetch = self._fetches.popleft()
        self.pending.append(fetch)
        self._parents = self._parents.with_fetched(fetch)
        return fetch

    def may_refuse(self) -> bool:
        """Counts a backup that the other pool refuses. Returns False for one too many: then the host ends here."""
        self._refused += 1
        return self._refused <= _MOST_REFUSED

    def end(self, name: str) -> None:
        """Removes a fetch that has its final name."""
        self.pending = [copy for copy in self.pending if copy.backup.name != name]

    def put_back(self, fetches: Iterable[Fetch], unreadable: RemoteBackup) -> None:
        """Puts back fetches that failed. A difference to the `unreadable` copy becomes a difference to another one."""
        back = tuple(fetches)
        for backup in (unreadable, *(copy.backup for copy in (*back, *self.pending))):
            self._parents = self._parents.without(backup)
        self.pending = []
        self._fetches = deque(planned_again((*back, *self._fetches), self._parents))

    def drain(self) -> HostFetches:
        """Returns all remaining fetches, for a later time."""
        left = replace(self.planned, fetches=tuple(self._fetches), parents=self._parents)
        self._fetches.clear()
        return left


@dataclass(frozen=True, slots=True)
class HostCopies:
    """The fetching of one host. Backups that arrive within a short time are received by one program and renamed together."""

    context: ReplicationContext
    """The context of the replication."""
    far: RemotePool
    """The other pool."""
    host: str
    """The host's name."""
    watched: FetchObserver
    """Gets the progress."""

    def fetch(self, planned: HostFetches) -> None:
        """Fetches the planned backups, in that order. Raises OperatorError, OSError; PoolUnusable if nothing more can be fetched at
        all.

        Between two backups it waits for a night, an expiry and a balance, without holding the host's lock. A backup that the other
        pool cannot read is skipped; if the parent cannot be read, the next one is a difference to another.
        """
        left = FetchQueue(planned)
        while left and self.watched.wait() and left:  # a parallel stream may have taken the rest
            try:
                with ExitStack() as held:
                    self._lock(held)
                    self._receive(left, held)
            except (OperatorError, OSError) as error:
                if not self._passes_over(left, error):
                    raise

    def _passes_over(self, left: FetchQueue, error: OperatorError | OSError) -> bool:
        """Puts back failed fetches, to be fetched with another parent, or without the one that the other pool cannot read.

        Returns False for any other error.
        """
        pending = left.pending
        if not pending:
            return False
        if isinstance(error, UnreadableThere):
            *others, last = pending
            if error.parent and last.parent:
                left.put_back(pending, last.parent)
                return True
            left.put_back(others, last.backup)
            hint = _UNREADABLE_THERE.format(host=self.host, name=last.backup.name)
            self.watched.tell_failed(f"{printable(error.message)}; {hint}")
            return True
        if isinstance(error, RemoteRefused) and left.may_refuse():
            *others, last = pending
            left.put_back(others, last.backup)
            self.watched.tell_failed(f"{printable(error.message)}; {_REFUSED_THERE}")
            return True
        if not (isinstance(error, NotReceived) or is_caused_by_damage(error)):
            return False
        coming = {copy.backup for copy in pending}
        for parent in dict.fromkeys(copy.parent for copy in pending):
            if parent and parent not in coming and self._is_unreadable(parent):
                left.put_back(pending, parent)
                self.watched.tell_unreadable(parent.name)
                return True
        return False

    def _is_unreadable(self, backup: RemoteBackup) -> bool:
        with suppress(FileNotFoundError, NotADirectoryError):
            return is_unreadable(self.context.pool.host(self.host) / backup.name)
        return False

    def _lock(self, held: ExitStack) -> None:
        """Takes the host's lock, which `held` releases; deletes leftovers of earlier fetches."""
        context, host = self.context, self.host
        purpose, since = f"replication of {host}", format_time(context.now)
        held.enter_context(take_lock(context.pool.host_lock(host), purpose, since))
        context.pool.host(host).mkdir(mode=0o700, exist_ok=True)
        require_marked(context, self.far, host)
        held.callback(drop_empty_mark, context.pool, host)
        discard_received(context.pool, host)
        held.callback(point_latest, context.pool, host)

    def _receive(self, left: FetchQueue, held: ExitStack) -> None:
        """Receives some backups as streams, until another job uses the pool, and ends the resources in `held` when they have final
        names.
        """
        receiving = held.enter_context(
            Receiving(self.context.pool, self.host, confined=self.context.confined, patience=self.context.replica.stall)
        )
        came = dict[str, tuple[Fetch, int, float]]()
        try:
            self._take_some(left, receiving, came)
        except BaseException:
            with suppress(OperatorError, OSError):
                self._publish(receiving, came, left)
            raise
        receiving.end_input()
        later = held.pop_all()

        def finish() -> None:
            try:
                with later:
                    self._publish(receiving, came, left)
            except (OperatorError, OSError) as error:
                if not self._passes_over(left, error):
                    raise
                self.watched.fetch_again(left.drain())  # another host may be using the connection now

        self.watched.finish(finish)

    def _take_some(self, left: FetchQueue, receiving: Receiving, came: dict[str, tuple[Fetch, int, float]]) -> None:
        """Receives the streams of the first of `left`; adds them to `came`: by name, with bytes and seconds."""
        since, size = time.monotonic(), 0
        while left and (not came or self.watched.can_continue()):
            fetch, begun = left.take(), time.monotonic()
            if not (fetch.parent and fetch.parent.name in came):
                _require_parent(self.context.pool, self.host, fetch.parent)
            come = self._take(fetch, receiving)
            came[fetch.backup.name] = fetch, come, time.monotonic() - begun
            size += come
            is_enough = len(came) >= _MOST_TOGETHER or size > _MOST_BYTES or time.monotonic() - since > _LONGEST_TOGETHER
            if is_enough or receiving.ends:
                return

    def _take(self, fetch: Fetch, receiving: Receiving) -> int:
        """Receives one stream; returns the number of bytes."""
        context, far, host = self.context, self.far, self.host
        before = far.bytes
        forget_gone(context.pool, host, fetch.backup.name)
        announced, pieces = far.fetch(host, fetch, min(far.stream, newest_received()))
        expected = ExpectedBackup.of(host, fetch)
        longest = longest_stream(announced.total, require_room(context.pool, context.config).total)
        self.watched.expect(announced.bytes)
        is_stopped, looked, looked_at = far.poll, before, time.monotonic()

        def poll() -> None:
            nonlocal looked, looked_at
            is_stopped()
            self.watched.follow(far.bytes - before)
            if far.bytes - before > longest:
                raise NotReceived(f"{host}@{fetch.backup.name}: more than the limit of {format_size(longest)} arrived", _LOOK_THERE)
            if far.bytes - looked >= _LOOK or time.monotonic() - looked_at > _LOOK_AFTER:
                looked, looked_at = far.bytes, time.monotonic()
                require_room(context.pool, context.config)

        take_notes(context.pool, host, fetch.backup.name, announced, context.replica, context.now)  # first: sent only once
        far.poll = poll  # even while no data arrives: a few bytes can reserve much space
        try:
            receiving.take(expected, pieces, version=announced.stream, poll=poll)
        finally:
            far.poll = is_stopped
        return far.bytes - before

    def _publish(self, receiving: Receiving, came: Mapping[str, tuple[Fetch, int, float]], left: FetchQueue) -> None:
        for expected, subvolume, record in receiving.publish(lambda: self.watched.is_stopped):
            left.end(expected.name)
            self._tell(*came[expected.name], subvolume, record)

    def _tell(self, fetch: Fetch, size: int, seconds: float, subvolume: Subvolume, record: Record) -> None:
        folder, name = self.context.pool.host(self.host), fetch.backup.name
        pool, host, damages = self.context.pool, self.host, list[Damage]()
        if fetch.again:
            damages = still_damaged(pool, host, name, self.context.now)
            forget_recorded(pool, host, name, damages)
        elif fetch.parent:
            damages = [damage for damage in read_damaged(folder, host) if damage.name == name]
        parent = fetch.parent.name if fetch.parent else None
        row = sealed_row(folder, final_row(self.context.pool, self.host, record, subvolume, read_notes(folder)))
        self.watched.tell(FetchedBackup(self.host, name, parent, size, seconds, fetch.again, tuple(damages)), row)
        if fetch.again and damages:
            self.watched.tell_failed(f"{host}@{name} shares damaged data with {parent}: {_STILL_DAMAGED}")


def _require_parent(pool: Pool, host: str, parent: RemoteBackup | None) -> None:
    """Raises OperatorError if the parent of the difference is no longer exactly that backup."""
    if parent is None:
        return
    folder, hint = pool.host(host), "run `backupd replicate` again: it uses another common backup"
    final_backup = read_if_ours(folder / parent.name, host)
    if final_backup is None or not final_backup[0].read_only or final_backup[1].uuid != parent.uuid:
        raise OperatorError(f"{host}@{parent.name} is no longer here", hint)
    if not is_original(folder / parent.name, final_backup[0], read_notes(folder), parent.name):
        raise OperatorError(f"{host}@{parent.name} was changed after it was final", hint)
