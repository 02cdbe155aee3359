"""The options, the plan, the progress and the result of a replication.

The catalogue stores the progress, for `status` and the dashboard.
"""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from backupd.replicate.remote_pool import RemotePool
from btrkeep.catalogue import Catalogue, CatalogueBusy, Damage
from btrkeep.config import Config
from btrkeep.config.config_model import ReplicaSettings
from btrkeep.decisions.copy_status import RunningFetch, note_running
from btrkeep.decisions.replication import HostFetches, Obstacle
from btrkeep.pool.marker import Pool
from btrkeep.process.proc import start_time
from btrkeep.process.progress import Cancellation, Notice, ProgressSinks, Waiting


@dataclass(frozen=True, slots=True)
class ReplicationOptions:
    """The options of one replication."""

    hosts: tuple[str, ...] = ()
    """Names; empty: all."""
    end: datetime | None = None
    """No backup starts after it; None: no limit."""
    initial_copy: Path | None = None
    """The folder of an initial copy that is read instead of the other pool; None: the other pool."""
    damaged: bool = False
    """True if damaged copies are fetched again."""
    dry_run: bool = False
    """True if nothing is fetched."""
    as_json: bool = False
    """True if the result is printed as JSON."""

    @property
    def is_session(self) -> bool:
        """Returns True if it shows how current the copy is: a replication of only some hosts does not; an initial copy does with
        its next fetch.
        """
        return not self.hosts and not self.initial_copy


@dataclass(frozen=True, slots=True)
class ReplicationPlan:
    """The plan. `hosts`: those with backups to fetch; `obstacles`: those that cannot be fetched.

    `present`: by host, the names of the common backups before the replication; `common`: the newest of them. `total`: number of all
    backups in the other pool. `is_of_some`: only named hosts were checked. `gone`: hosts that were fetched, and that the other pool
    no longer lists.
    """

    hosts: tuple[HostFetches, ...]
    obstacles: tuple[HostFetches, ...]
    present: Mapping[str, tuple[str, ...]]
    total: int
    is_of_some: bool = False
    gone: tuple[str, ...] = ()

    @property
    def common(self) -> dict[str, str]:
        """Returns by host the newest common backup before the replication."""
        return {host: max(names) for host, names in self.present.items()}

    @property
    def unwanted(self) -> tuple[HostFetches, ...]:
        """Returns the obstacles that an operator has to remove, without hosts that were forgotten here on purpose."""
        return tuple(obstacle for obstacle in self.obstacles if obstacle.obstacle != Obstacle.FORGOTTEN_HERE)

    @property
    def count(self) -> int:
        """Returns the number of backups to fetch."""
        return sum(len(host.fetches) for host in self.hosts)


@dataclass(frozen=True, slots=True)
class FetchedBackup:
    """A backup that has been fetched."""

    host: str
    """The host's name."""
    name: str
    """The backup's name."""
    parent: str | None
    """The name of the backup to which the stream was a difference; None: it was complete."""
    bytes: int
    """Bytes of the stream."""
    seconds: float
    """How long it took."""
    again: bool = False
    """True if it replaces a damaged copy."""
    damages: tuple[Damage, ...] = ()
    """Its known damage, including inherited damage."""


@dataclass(frozen=True, slots=True)
class UnreadableCopy:
    """A copy here whose metadata could not be read while a difference to it was received."""

    host: str
    """The host's name."""
    name: str
    """The backup's name."""


@dataclass(frozen=True, slots=True)
class HostFailed:
    """A host of which some backups could not be fetched."""

    host: str
    """The host's name."""
    error: str
    """Why not."""


@dataclass(frozen=True, slots=True)
class ReplicationProgress:
    """The progress: backups done and planned, bytes so far, and the hosts that are being fetched. `announced`: `bytes` and the
    missing bytes of the current streams, as announced by the other server.
    """

    done: int
    planned: int
    bytes: int
    hosts: tuple[str, ...]
    announced: int = 0


@dataclass(slots=True)
class ReplicationSummary:
    """The result of a replication."""

    replica: str
    """Its name in the configuration."""
    planned: int = 0
    """Number of backups to fetch."""
    fetched: list[FetchedBackup] = field(default_factory=list)
    """The fetched backups."""
    failed: list[HostFailed] = field(default_factory=list)
    """Hosts of which some backups could not be fetched."""
    cancelled: bool = False
    """True if a signal ended it."""
    out_of_time: bool = False
    """True if its time limit ended it."""

    @property
    def bytes(self) -> int:
        """Returns the bytes of all streams."""
        return sum(fetched.bytes for fetched in self.fetched)


ReplicationEvent = ReplicationPlan | FetchedBackup | HostFailed | ReplicationProgress | Notice | Waiting


Connect = Callable[[Callable[[], None]], AbstractContextManager[RemotePool]]
"""Opens one more connection to the other pool, with the functions that it calls from time to time."""


@dataclass(slots=True)
class ReplicationContext:
    """Everything a replication needs."""

    config: Config
    """The configuration."""
    pool: Pool
    """The pool."""
    catalogue: Catalogue
    """The catalogue."""
    replica: ReplicaSettings
    """Its settings."""
    now: datetime
    """When it started."""
    connect: Connect
    """Connects to the other server."""
    observer: ProgressSinks[ReplicationEvent]
    """The receivers of its events."""
    confined: bool
    """True if the receiver is confined."""
    seconds_left: float | None = None
    """No backup starts after this many seconds; None: no limit."""
    cancellation: Cancellation = field(default_factory=Cancellation)
    """Ends it early."""


_EVERY = 2.0  # seconds


class RunningRecord:
    """Records the events and the progress. If the catalogue is busy, the progress is recorded with the next one."""

    def __init__(self, catalogue: Catalogue, replica: str, now: datetime) -> None:
        self._catalogue, self._replica = catalogue, replica
        self._begun, self._last_report = time.monotonic(), -_EVERY
        self._is = RunningFetch(os.getpid(), start_time(os.getpid()), now, now, 0)

    def __call__(self, event: ReplicationEvent | Notice) -> None:
        match event:
            case ReplicationPlan():
                self._is = replace(self._is, planned=event.count)
            case ReplicationProgress():
                self._is = replace(self._is, done=event.done, bytes=event.bytes, hosts=event.hosts, announced=event.announced)
        if self._is.planned and time.monotonic() - self._last_report >= _EVERY:
            self._last_report = time.monotonic()
            self._is = replace(self._is, updated=self._is.began + timedelta(seconds=self._last_report - self._begun))
            self._keep(self._is)

    def end(self) -> None:
        """Records that it has ended."""
        if self._is.planned:
            self._keep(None)

    def _keep(self, running: RunningFetch | None) -> None:
        try:
            note_running(self._catalogue, self._replica, running)
        except CatalogueBusy:
            return
