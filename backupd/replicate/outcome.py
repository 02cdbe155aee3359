"""What a replication works with, what it is to do, and its progress and result.

The catalogue has the progress, for `status` and the dashboard.
"""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from backupd.replicate.far_pool import FarPool
from btrkeep.catalogue import Catalogue, CatalogueBusy, Damage
from btrkeep.config import Config
from btrkeep.config.model import ReplicaSettings
from btrkeep.decisions.copies import RunningFetch, note_running
from btrkeep.decisions.replication import HostFetches, Obstacle
from btrkeep.pool.marker import Pool
from btrkeep.process.cancellation import Cancellation
from btrkeep.process.proc import start_time
from btrkeep.process.progress import Notice, ProgressSinks, Waiting


@dataclass(frozen=True, slots=True)
class ReplicationOptions:
    """What is asked of one replication. It begins no backup after `end`; `seed`: the folder that is read in place of the other
    pool; `damaged`: damaged copies come again.
    """

    hosts: tuple[str, ...] = ()
    end: datetime | None = None
    seed: Path | None = None
    damaged: bool = False
    dry_run: bool = False
    as_json: bool = False

    @property
    def is_session(self) -> bool:
        """Returns True if it tells how current the copy is: that of some hosts does not, and of a seed the next fetch does."""
        return not self.hosts and not self.seed


@dataclass(frozen=True, slots=True)
class ReplicationPlan:
    """What is to be done. `hosts`: those with something to fetch; `obstacles`: those of which nothing can be.

    `present`: by host, the names of the backups that both pools have before it; `common`: the newest of them.
    `total`: all backups there. `is_of_some`: only hosts that somebody has named were looked at. `gone`: hosts that were fetched,
    and that the other pool does not list any more.
    """

    hosts: tuple[HostFetches, ...]
    obstacles: tuple[HostFetches, ...]
    present: Mapping[str, tuple[str, ...]]
    total: int
    is_of_some: bool = False
    gone: tuple[str, ...] = ()

    @property
    def common(self) -> dict[str, str]:
        """Returns by host the newest backup that both pools have before it."""
        return {host: max(names) for host, names in self.present.items()}

    @property
    def unwanted(self) -> tuple[HostFetches, ...]:
        """The obstacles that somebody has to take away: not those of hosts that were forgotten here on purpose."""
        return tuple(obstacle for obstacle in self.obstacles if obstacle.obstacle != Obstacle.FORGOTTEN_HERE)

    @property
    def count(self) -> int:
        """Returns the number of backups to fetch."""
        return sum(len(host.fetches) for host in self.hosts)


@dataclass(frozen=True, slots=True)
class Fetched:
    """A backup that has come: its bytes in the stream, and seconds. `again`: in the place of a damaged one.

    `damages`: what is known to be damaged in it, and what others have like it.
    """

    host: str
    name: str
    parent: str | None
    bytes: int
    seconds: float
    again: bool = False
    damages: tuple[Damage, ...] = ()


@dataclass(frozen=True, slots=True)
class UnreadableCopy:
    """A copy here whose metadata the disk cannot read, met while a difference to it was received."""

    host: str
    name: str


@dataclass(frozen=True, slots=True)
class HostFailed:
    """A host whose backups have not all come, and why."""

    host: str
    error: str


@dataclass(frozen=True, slots=True)
class ReplicationProgress:
    """The progress: backups done and planned, bytes so far, and the hosts that are being fetched. `announced`: `bytes` and what is
    still to come of the streams under way, as far as the other server says.
    """

    done: int
    planned: int
    bytes: int
    hosts: tuple[str, ...]
    announced: int = 0


@dataclass(slots=True)
class ReplicationSummary:
    """What came of it."""

    replica: str
    planned: int = 0
    fetched: list[Fetched] = field(default_factory=list)
    failed: list[HostFailed] = field(default_factory=list)
    cancelled: bool = False
    out_of_time: bool = False

    @property
    def bytes(self) -> int:
        """Returns the bytes of all streams."""
        return sum(fetched.bytes for fetched in self.fetched)


ReplicationEvent = ReplicationPlan | Fetched | HostFailed | ReplicationProgress | Notice | Waiting


Connect = Callable[[Callable[[], None]], AbstractContextManager[FarPool]]
"""Makes one more connection to the other pool, of what it calls now and then."""


@dataclass(slots=True)
class ReplicationContext:
    """What a replication works with. After `seconds_left` no backup is begun."""

    config: Config
    pool: Pool
    catalogue: Catalogue
    replica: ReplicaSettings
    now: datetime
    connect: Connect
    observer: ProgressSinks[ReplicationEvent]
    confined: bool
    seconds_left: float | None = None
    cancellation: Cancellation = field(default_factory=Cancellation)


_EVERY = 2.0  # seconds


class RunningRecord:
    """Takes what happens, and keeps how far it is. What the catalogue has no time for is kept the next time."""

    def __init__(self, catalogue: Catalogue, replica: str, now: datetime) -> None:
        self._catalogue, self._replica = catalogue, replica
        self._begun, self._said = time.monotonic(), -_EVERY
        self._is = RunningFetch(os.getpid(), start_time(os.getpid()), now, now, 0)

    def __call__(self, event: ReplicationEvent | Notice) -> None:
        match event:
            case ReplicationPlan():
                self._is = replace(self._is, planned=event.count)
            case ReplicationProgress():
                self._is = replace(self._is, done=event.done, bytes=event.bytes, hosts=event.hosts, announced=event.announced)
        if self._is.planned and time.monotonic() - self._said >= _EVERY:
            self._said = time.monotonic()
            self._is = replace(self._is, updated=self._is.began + timedelta(seconds=self._said - self._begun))
            self._keep(self._is)

    def end(self) -> None:
        """Notes that it runs no more."""
        if self._is.planned:
            self._keep(None)

    def _keep(self, found: RunningFetch | None) -> None:
        try:
            note_running(self._catalogue, self._replica, found)
        except CatalogueBusy:
            return
