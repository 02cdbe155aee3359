"""Limits for one backup of a host: new files, new bytes, memory of its rsync on this server, quota. A host that exceeds one is
stopped. The kernel measures the new data; nothing that the host reports is used.

The bytes that the kernel wrote for rsync (/proc/PID/io) are known at any moment and are never less than the new bytes. They may be
much more: a few bytes from the host can make rsync write a block of the last backup a thousand times. Only the subvolume's tree
gives the exact number, and reading it takes time. So it is read rarely: for the number of names; after a commit if by the first
number `max_new_bytes` may be exceeded; and at the end of rsync.

Zeros of a sparse file count only until they are holes: a host that exceeds `max_new_bytes` is judged after rsync has ended and the
holes were made. The limits apply to the whole `.working`, over all its runs. A `.working` that was stopped by a limit is not
continued until the limit is raised, because it would be stopped again: the next run starts again from the last backup, and
completes if the host is normal again.

The kernel enforces a quota while the host's rsync writes, and not while this program writes: a host that has used up its quota
still gets its record and its final name, and the next run can correct the result.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from backupd.repo.holes import punch_written
from backupd.rsync.messages import MessageClass, Messages
from btrkeep.backup_states import Cause, CauseCode
from btrkeep.config import HostConfig
from btrkeep.pool import qgroups
from btrkeep.pool.marker import Pool
from btrkeep.pool.subvolume import commit, describe, opened
from btrkeep.process.group import GroupCancellation
from btrkeep.process.proc import physical_memory
from btrkeep.treescan import SubvolumeGrowth, growth

log = logging.getLogger(__name__)

_PATIENCE = 1.0  # seconds from one reading of the tree to the next, at least
_PART = 20  # pause before the next reading, in multiples of the time that a reading takes
_READINGS = 5  # consecutive failed readings before giving up on them
_URGENT = 2  # the same while the host may have brought too many bytes


def exceeded(host: HostConfig, written: SubvolumeGrowth) -> Cause | None:
    """Returns the limit of the host that the new data in `.working` exceeds, if any."""
    for code, number, limit in (
        (CauseCode.MAX_FILES, written.names, host.max_files),
        (CauseCode.MAX_NEW_BYTES, written.bytes, host.max_new_bytes),
    ):
        if limit is not None and number > limit:
            return Cause(code, facts={"found": number, "limit": limit})
    return None


def exceeds_memory(host: HostConfig, taken: int, of_machine: int) -> Cause | None:
    """Returns the cause if `taken` bytes are more than the host's rsync may use on a machine with so much memory."""
    limit = host.max_memory.bytes_of(of_machine)
    return Cause(CauseCode.MAX_MEMORY, facts={"found": taken, "limit": limit}) if taken > limit else None


def still_exceeds(cause: Cause | None, host: HostConfig) -> bool:
    """Returns True if the host would be stopped again for the same reason."""
    if cause is not None and cause.code is CauseCode.QUOTA:  # the quota ends a run before it reaches this limit
        return host.quota is not None and host.quota <= cause.facts["limit"]
    if cause is None or cause.code not in (CauseCode.MAX_FILES, CauseCode.MAX_NEW_BYTES):
        return False
    limit = host.max_files if cause.code is CauseCode.MAX_FILES else host.max_new_bytes
    return limit is not None and limit < cause.facts["found"]


@dataclass(frozen=True, slots=True)
class _Reading:
    """A reading of the tree after a commit: new bytes, and the bytes that rsync had written before it."""

    new: int
    written: int


class LimitWatch:
    """Watches the new data of a host in one run, and stops the host if it exceeds a limit."""

    def __init__(
        self,
        host: HostConfig,
        working: Path,
        cancellation: GroupCancellation[Cause],
        stop_to_recount: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """`stop_to_recount` stops rsync so that zeros become holes; None if rsync writes no zeros."""
        self.host = host
        self.working = working
        self.cancellation = cancellation
        self.counts = host.max_files is not None or host.max_new_bytes is not None
        self.cause: Cause | None = None
        self.has_holes = False
        self._stop_to_recount = stop_to_recount
        self._ends = False  # rsync has ended
        self._written = 0
        self._last_reading: _Reading | None = None
        self._ended = self._took = 0.0  # when the last reading of the tree ended, and how long it took
        self._reading: asyncio.Task[None] | None = None
        self._failed = 0  # consecutive failed readings

    def check(self, written: int, memory: int) -> None:
        """Checks the bytes that the host's processes have written in this run and their memory; stops the host above a limit."""
        self._written = written
        if cause := exceeds_memory(self.host, memory, physical_memory()):
            self.cancellation.cancel_for(cause)
        elif self.counts and not self._reading:
            urgent = self.host.max_new_bytes is not None and _may_exceed(self.host.max_new_bytes, self._last_reading, written)
            if urgent or self.host.max_files is not None:
                pause = max(_PATIENCE, (_URGENT if urgent else _PART) * self._took)
                if time.monotonic() - self._ended > pause:
                    self._reading = asyncio.create_task(self._read_beside(committed=urgent))

    async def _read_beside(self, committed: bool) -> None:
        """Reads the tree beside the transfer. Stops a host that exceeds a limit, or whose limits cannot be checked."""
        try:
            cause = await self._read(committed)
            if cause and not self._ends and not (self._may_be_zeros(cause) and await self._recount()):
                self._stop(cause)
            self._failed = 0
        except OSError as error:  # it is read again
            log.warning("%s cannot be read: %s", self.working, error)
            self._ended, self._failed = time.monotonic(), self._failed + 1
            if self._failed == _READINGS:
                self.cause = Cause(CauseCode.POOL, facts={"text": f"its new data cannot be counted: {error.strerror}"})
                self.cancellation.cancel_for(self.cause)
        finally:
            self._reading = None

    async def at_end(self) -> Cause | None:
        """Returns the exceeded limit after an rsync has ended; the tree is not read again after that. Raises OSError."""
        self._ends = True
        try:
            if self._reading:
                await self._reading
            if self.counts and not self.cancellation.reason:
                cause = await self._read(committed=True)
                if cause and self._may_be_zeros(cause):
                    await asyncio.to_thread(punch_written, self.working, self.cancellation)
                    self.has_holes = True
                    cause = await self._read(committed=True)
                if cause:
                    self._stop(cause)
        finally:
            self._ends = False
        return self.cause

    def _may_be_zeros(self, cause: Cause) -> bool:
        return cause.code is CauseCode.MAX_NEW_BYTES and self._stop_to_recount is not None

    async def _recount(self) -> bool:
        return self._stop_to_recount is not None and await self._stop_to_recount()

    def _stop(self, cause: Cause) -> None:
        self.cause = cause
        self.cancellation.cancel_for(cause)

    async def _read(self, committed: bool) -> Cause | None:
        """Reads the tree, and returns the exceeded limit. Data that waits for a commit is not counted."""
        begun, written = time.monotonic(), self._written
        subvolume_growth = await asyncio.to_thread(_growth, self.working, committed)
        self._ended = time.monotonic()
        self._took = self._ended - begun
        if committed:
            self._last_reading = _Reading(subvolume_growth.bytes, written)
        return exceeded(self.host, subvolume_growth)


def _may_exceed(limit: int, last: _Reading | None, written: int) -> bool:
    """Returns True if the bytes written since the last reading may exceed the limit. A commit delays every writer, so there is no
    commit for less than 1 % of the limit.
    """
    return last is None or written - last.written > max(limit - last.new, limit // 100)


def _growth(working: Path, committed: bool) -> SubvolumeGrowth:
    if committed:
        commit(working)
    subvolume = describe(working)
    assert subvolume is not None
    with opened(working) as fd:
        return growth(fd, subvolume.created - 1)


def lift_left_quota(pool: Pool, host: str) -> None:
    """Removes a quota limit that a killed run left, before anything is written for the host. Raises OSError, OperatorError."""
    if qgroups.mode(pool.filesystem) == qgroups.SIMPLE and pool.host(host).is_dir():
        group = qgroups.group_of(pool, host)
        if qgroups.limit_of(pool, group) is not None:
            qgroups.limit(pool, group, None)


def join_quota(pool: Pool, host: str, subvolume_id: int) -> None:
    """Counts new data of the subvolume as the host's. Raises OSError, OperatorError."""
    if qgroups.mode(pool.filesystem) == qgroups.SIMPLE:
        qgroups.join(pool, host, subvolume_id)


class HostQuota:
    """The quota of one run's host; without effect if none is configured, or if simple quotas are off."""

    def __init__(self, pool: Pool, host: HostConfig) -> None:
        self._pool = pool
        self._most = host.quota if qgroups.mode(pool.filesystem) == qgroups.SIMPLE else None
        self._group = qgroups.group_of(pool, host.name) if self._most is not None else 0
        if host.quota is not None and self._most is None:
            log.warning("%s: its quota has no effect, because simple quotas are not switched on (`backupd quota`)", host.name)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Makes the kernel refuse writes beyond the quota. Raises OSError."""
        if self._most is None:
            yield
            return
        await asyncio.to_thread(qgroups.limit, self._pool, self._group, self._most)
        try:
            yield
        finally:
            await asyncio.to_thread(qgroups.limit, self._pool, self._group, None)

    def exceeded(self, messages: Messages) -> Cause | None:
        """Returns the cause if rsync ended because the quota is used up."""
        return self.used_up() if self._most is not None and messages.count(MessageClass.OVER_QUOTA) else None

    def used_up(self) -> Cause:
        """Returns the cause that the quota is used up."""
        referenced = qgroups.referenced(self._pool, self._group) or 0
        return Cause(CauseCode.QUOTA, facts={"found": referenced, "limit": self._most or 0})
