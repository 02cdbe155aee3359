"""Deletes the backups that are due: host by host, a few at a time, never more than fit into the cleaner's queue.

Under the host's lock everything is checked again; the rows get the state `deleting`; each subvolume is checked once more and
deleted by its id. Rows are removed when a commit has made the deletions durable. There is no commit after each batch, because each
commit writes trees that the cleaner changes again a moment later: with a commit for every fifty deletions, an expiry took half as
long again. After a kill at any point, the next run finds either the backup and deletes it, or only its row and removes that.

The kernel makes the pool read-only if it cannot read the metadata that it needs to drop a subvolume: metadata that no other
subvolume shares, and metadata that was written in this one even if others share it now. So this metadata is read first. The kernel
reads the same a moment later, and finds it in memory.
"""

import errno
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

from backupd.expire.expiry_context import ExpiryContext
from backupd.expire.host_backups import HostOnPool, is_still, read_host_from_pool
from backupd.expire.queue import CleanerQueue
from backupd.expire.report import DeletedBackup
from backupd.repo.final_backups import FinalBackup, point_latest
from backupd.repo.read_lock import lock_for_deletion
from btrkeep.backup_states import EXPIRED
from btrkeep.decisions.expiry_plan import HostPlan, Plan
from btrkeep.errors import OperatorError, PoolUnusable
from btrkeep.pool.subvolume import delete, opened
from btrkeep.process.progress import Cancelled
from btrkeep.process.threads import running_threads
from btrkeep.treescan import has_readable_tree

_SETTLE = 10.0  # seconds
_BROKEN = (errno.EROFS, errno.EIO, errno.ENOSPC)


class Deleter:
    """Deletes the backups of a plan, by host name; at most `limit`, None for all.

    With a limit the oldest backup of a host is deleted first. Without a limit the newest is: its base still exists then, so less of
    its metadata has to be read.
    """

    def __init__(self, context: ExpiryContext, queue: CleanerQueue, plan: Plan, limit: int | None) -> None:
        self.context = context
        self.queue = queue
        self.limit = limit
        order = -1 if limit is None else 1
        self.pending: deque[tuple[HostPlan, tuple[str, ...]]] = deque(
            (host, tuple(step.name for step in host.delete)[::order]) for host in plan.hosts if host.delete
        )
        self.busy = 0  # backups of locked hosts, or being read by a restore
        self.deleted: dict[int, DeletedBackup] = {}  # by the subvolume's id
        self.hosts: list[str] = []  # with at least one deleted backup
        self._gone: list[tuple[str, str]] = []  # deleted, but the deletion is not on disk yet
        self._settled = time.monotonic()
        self.reader = MetadataReader(context.cancellation.raise_if_cancelled)
        self._begun: set[tuple[str, str]] = set()  # to be read ahead

    @property
    def left(self) -> int:
        """Returns how many this run still has to delete, unless it is cancelled or limited."""
        return sum(len(names) for _, names in self.pending)

    def is_done(self) -> bool:
        """True if nothing is left to delete."""
        return not self.pending or self.limit == 0

    @property
    def unsettled(self) -> int:
        """Returns the number of deletions that are not durable yet."""
        return len(self._gone)

    def read_ahead(self, count: int) -> None:
        """Starts to read the metadata of the next `count` backups, unless it is being read already. Holds no lock."""
        for plan, names in self.pending:
            first_names, count = names[:count], count - len(names[:count])
            new = [name for name in first_names if (plan.host, name) not in self._begun]
            with suppress(OSError, OperatorError):  # its deletion reports the error
                final_backups = (
                    read_host_from_pool(self.context.pool, self.context.config, plan.host, plan.rows).backups if new else {}
                )
                for name in (new_name for new_name in new if new_name in final_backups):
                    self.reader.can_be_dropped(final_backups[name], final_backups.values())
            self._begun.update((plan.host, name) for name in new)
            if count <= 0:
                break

    def batch(self, room: int) -> None:
        """Deletes up to `room` backups; `settle` makes the deletions durable. Raises PoolUnusable."""
        room = room if self.limit is None else min(room, self.limit)
        before = len(self._gone)
        try:
            while self.pending and len(self._gone) - before < room and not self.context.cancellation:
                plan, names = self.pending.popleft()
                rest = self._first_names(plan, names, room - (len(self._gone) - before))
                if rest:
                    self.pending.appendleft((plan, rest))
                    if len(self._gone) - before < room:  # other programs have filled the queue since
                        break
        finally:
            self.limit = None if self.limit is None else self.limit - (len(self._gone) - before)

    def settle(self) -> None:
        """Makes the deletions durable, which also wakes the cleaner, then removes their rows. Raises PoolUnusable."""
        self._settled = time.monotonic()
        if self._gone:
            self.queue.commit()
            gone, self._gone = self._gone, []
            self.context.summary.deleted += len(gone)
            self.context.rows.write(lambda catalogue: catalogue.drop_backups(gone))

    def settle_if_due(self) -> None:
        """Calls `settle` every few seconds. Raises PoolUnusable."""
        if time.monotonic() - self._settled > _SETTLE:
            self.settle()

    def _first_names(self, plan: HostPlan, names: tuple[str, ...], room: int) -> tuple[str, ...]:
        """Deletes the first `room` of the named backups that are still due. Returns the names that are left for later."""
        first_names, rest = names[:room], names[room:]
        left: tuple[str, ...] = ()
        with ExitStack() as held:
            if not self.context.locked(plan.host, held):
                self.busy += len(names)
                return ()
            with self.context.report_errors_of(plan.host):
                on_pool, todo = self.context.recheck_under_lock(plan)
                due = {step.name for step in todo.delete}
                left = (*self._delete(plan.host, [name for name in first_names if name in due], on_pool), *rest)
        return left

    def _delete(self, host: str, names: list[str], on_pool: HostOnPool) -> tuple[str, ...]:
        """Deletes these backups. Returns the names of the postponed ones, because the queue is full or a signal arrived."""
        if not names:
            return ()
        self.context.rows.write(lambda catalogue: catalogue.mark_deleting([(host, name) for name in names]))
        put_off: list[str] = []
        kept: list[str] = []
        final_backups = on_pool.backups
        readings = [self.reader.can_be_dropped(final_backups[name], final_backups.values()) for name in names]
        for place, (name, reading) in enumerate(zip(names, readings, strict=True)):
            if self.context.cancellation or self.queue.full():
                put_off = names[place:]
                break
            try:
                is_deleted = self._delete_one(final_backups[name], reading)
            except Cancelled:  # while it was read
                put_off = names[place:]
                break
            if is_deleted:
                self._gone.append((host, name))
            else:
                kept.append(name)
        if len(kept) + len(put_off) < len(names) and host not in self.hosts[-1:]:
            self.hosts.append(host)
        point_latest(self.context.pool, host)
        left = [(host, name, EXPIRED, on_pool.notes.expired_at(name)) for name in (*kept, *put_off)]
        self.context.rows.write(lambda catalogue: catalogue.set_states(left))
        return tuple(put_off)

    def _delete_one(self, backup: FinalBackup, reading: Future[bool]) -> bool:
        path, subvolume, host = backup.path, backup.subvolume, backup.path.parent.name
        try:
            if not is_still(path, subvolume):
                self.context.problem(f"{host} {path.name} is kept: it has just been changed")
                return False
            if not reading.result():
                self.context.problem(
                    f"{host} {path.name} is kept: some of its metadata cannot be read from the disk, and the kernel makes the pool "
                    "read-only when such a subvolume is deleted"
                )
                return False
            with lock_for_deletion(path) as has_no_reader:
                if has_no_reader:
                    delete(path.parent, subvolume.id)
                    self.deleted[subvolume.id] = DeletedBackup(host, path.name, str(path.resolve()))
        except OSError as error:
            if error.errno in _BROKEN:
                raise PoolUnusable(f"{path} cannot be deleted: {error.strerror}", "check the kernel's messages (dmesg)") from error
            inside = "it contains a subvolume that does not belong to btrkeep" if error.errno == errno.ENOTEMPTY else error.strerror
            self.context.problem(f"{host} {path.name} cannot be deleted: {inside}")
            return False
        if not has_no_reader:
            self.busy += 1
            self.context.sinks.notice(f"{host} {path.name} is being restored from: a later expiry deletes it")
        return has_no_reader


_READERS = 4
"""The number of backups that are read at the same time: a single reader waits for each block of metadata, and most disks are idle.
"""


class MetadataReader:
    """Reads the metadata of backups that are going to be deleted, several at the same time.

    The result is kept for each subvolume, so the reading can run ahead, while the cleaner drops others. `pulse` is called after
    each piece; an exception that it raises ends the reading, and is raised by the result.
    """

    def __init__(self, pulse: Callable[[], None]) -> None:
        self._pulse = pulse
        self._readers: ThreadPoolExecutor | None = None
        self._read: dict[int, tuple[int, Future[bool]]] = {}

    def can_be_dropped(self, own: FinalBackup, final_backups: Iterable[FinalBackup]) -> Future[bool]:
        """Starts to check whether the kernel can drop a backup of a host that has these `final_backups`. Raises NoThread.

        The result is False if the disk cannot read metadata that the kernel needs for that; an OSError comes with it. Metadata that
        the backup shares with its base is not read if the base is in `final_backups`: when the base is deleted, it is read for the
        base. If the backup was based on none of them, or was received, all metadata is read.
        """
        since = max((_shared_before(own, final_backup) for final_backup in final_backups), default=0)
        running = self._read.get(own.subvolume.id)
        if running and running[0] <= since:
            return running[1]
        if self._readers is None:
            self._readers = running_threads(_READERS, "look")
        reading = self._readers.submit(_is_readable, own.path, since, self._pulse)
        self._read[own.subvolume.id] = since, reading
        return reading

    def forget(self) -> None:
        """Forgets the results, because they are too old."""
        self._read.clear()

    def close(self) -> None:
        """Starts no further reading."""
        if self._readers:
            self._readers.shutdown(cancel_futures=True)


def _is_readable(path: Path, since: int, pulse: Callable[[], None]) -> bool:
    with opened(path) as fd:
        return has_readable_tree(fd, since, pulse)


def _shared_before(own: FinalBackup, other: FinalBackup) -> int:
    """Returns the generation before which all metadata of `own` belongs to the other subvolume too; 0 if none is known.

    The other subvolume must be unchanged since then; `backupd dedupe`, for example, changes it.
    """
    since = 0
    if other.subvolume.uuid == own.subvolume.parent_uuid:
        since = own.subvolume.created
    elif not own.subvolume.received_uuid:  # the record of a received backup is about another pool
        since = min(own.record.ancestors.get(other.path.name, 0), own.subvolume.created)
    return since if max(other.subvolume.created, other.subvolume.written) <= since else 0
