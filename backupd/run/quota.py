"""A host's quota in a run: how much of the data on the disks it may have written. The kernel enforces it while the host's rsync
writes.

It is not enforced while this program writes: a host that has used up its quota still gets its record and its final name, and the
next run can correct the result.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from backupd.rsync.messages import MessageClass, Messages
from btrkeep.causes import Cause, CauseCode
from btrkeep.config import HostConfig
from btrkeep.pool import quota
from btrkeep.pool.marker import Pool

log = logging.getLogger(__name__)


def begin(pool: Pool, host: str) -> None:
    """Lifts what a killed run left, before anything is written for the host. Raises OSError, OperatorError."""
    if quota.mode(pool.filesystem) == quota.SIMPLE and pool.host(host).is_dir():
        group = quota.group_of(pool, host)
        if quota.limit_of(pool, group) is not None:
            quota.limit(pool, group, None)


def join(pool: Pool, host: str, subvolume_id: int) -> None:
    """Counts new data of the subvolume as the host's. Raises OSError, OperatorError."""
    if quota.mode(pool.filesystem) == quota.SIMPLE:
        quota.join(pool, host, subvolume_id)


class HostQuota:
    """The quota of one run's host; none where the configuration has none, or simple quotas are not switched on."""

    def __init__(self, pool: Pool, host: HostConfig) -> None:
        self._pool = pool
        self._most = host.quota if quota.mode(pool.filesystem) == quota.SIMPLE else None
        self._group = quota.group_of(pool, host.name) if self._most is not None else 0
        if host.quota is not None and self._most is None:
            log.warning("%s: its quota has no effect, because simple quotas are not switched on (`backupd quota`)", host.name)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Makes the kernel refuse writes beyond the quota. Raises OSError."""
        if self._most is None:
            yield
            return
        await asyncio.to_thread(quota.limit, self._pool, self._group, self._most)
        try:
            yield
        finally:
            await asyncio.to_thread(quota.limit, self._pool, self._group, None)

    def exceeded(self, messages: Messages) -> Cause | None:
        """Returns the cause if rsync ended because the quota is used up."""
        if self._most is None or not messages.count(MessageClass.OVER_QUOTA):
            return None
        found = quota.referenced(self._pool, self._group) or 0
        return Cause(CauseCode.QUOTA, facts={"found": found, "limit": self._most})
