"""The context of a run: configuration, opened pool and catalogue, clock, and progress sinks."""

import time
from collections import deque
from dataclasses import dataclass, field

from backupd.rsync.bandwidth import Bucket, make_buckets
from backupd.rsync.confined import Confinement
from backupd.rsync.output import Output
from backupd.rsync.version import Rsync
from backupd.run.ledger import Ledger
from btrkeep.catalogue import Catalogue
from btrkeep.checkpoints import Checkpoint
from btrkeep.clock import Clock
from btrkeep.config import Config, HostConfig
from btrkeep.pool.marker import Pool
from btrkeep.process.progress import Notice, ProgressSinks

_RATE_WINDOW = 10.0


@dataclass(frozen=True, slots=True)
class HostResult:
    """The result of one host in this run. `outcome`: complete, suspect, failed, partial, skipped or locked. Fields that a
    Record has by the same name come from it.
    """

    host: str
    outcome: str
    error: str | None = None
    name: str | None = None
    files: int | None = None
    bytes: int | None = None
    new_bytes: int | None = None
    shared_bytes: int | None = None
    seconds: float = 0.0
    attempts: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Returns True if it needs no attention."""
        return self.outcome in ("complete", "skipped")


@dataclass(slots=True)
class RunningTransfer:
    """A running transfer. `expected_files` is the number in the base, None for a first backup."""

    host: str
    run_id: int
    expected_files: int | None = None
    path: str = ""
    output: Output | None = None
    done_files: int = 0
    done_bytes: int = 0
    begun: float = field(default_factory=time.monotonic)
    pid: int = 0
    _share: float = 0.0
    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def files(self) -> int:
        """Returns the names checked so far, over all paths."""
        return self.done_files + (self.output.progress.checked if self.output else 0)

    @property
    def bytes(self) -> int:
        """Bytes of file data received so far."""
        return self.done_bytes + (self.output.progress.bytes if self.output else 0)

    @property
    def rate(self) -> float:
        """Bytes per second, over the last seconds."""
        since, before = self._seen[0] if self._seen else (self.begun, 0)
        return max(0.0, (self.bytes - before) / max(0.001, time.monotonic() - since))

    @property
    def share(self) -> float | None:
        """Returns the share of names checked, compared with the base; it never decreases. None without a base."""
        if not self.expected_files:
            return None
        self._share = max(self._share, min(1.0, self.files / self.expected_files))
        return self._share

    @Checkpoint("progress of rsync noted")
    def take(self, output: Output) -> None:
        """Records output of the running rsync."""
        self.output = output
        now = time.monotonic()
        if not self._seen or now - self._seen[-1][0] >= 1:
            self._seen.append((now, self.bytes))
        while now - self._seen[0][0] > _RATE_WINDOW and len(self._seen) > 1:
            self._seen.popleft()

    def finish_path(self) -> None:
        """Records that the current path is done."""
        self.done_files, self.done_bytes = self.files, self.bytes
        self.output = None


@dataclass(frozen=True, slots=True)
class NightStarted:
    """The run begins, with these hosts."""

    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NightEnded:
    """The run is over. `trouble`: an error is printed besides, or due hosts wait for their windows."""

    trouble: bool = False


NightEvent = NightStarted | RunningTransfer | HostResult | Notice | NightEnded
"""The events of a run, sent in the loop's thread. A RunningTransfer is sent when it begins; its fields change afterwards."""


@dataclass(slots=True)
class RunContext:
    """Everything a run needs. `catalogue` is a Ledger where it must not cost a backup that it cannot be written.

    `retry_pause` is the first pause in seconds between attempts; it triples.
    """

    config: Config
    pool: Pool
    catalogue: Catalogue | Ledger
    clock: Clock
    rsync: Rsync
    sinks: ProgressSinks[NightEvent]
    night: bool
    confinement: Confinement
    retry_pause: float = 10.0
    running: dict[str, RunningTransfer] = field(default_factory=dict)

    def confines(self, host: HostConfig) -> bool:
        """Returns True if the rsync that talks to that host is confined: a source on this machine is no host."""
        return bool(host.address) and not self.confinement.missing

    def buckets(self, host: HostConfig) -> list[Bucket]:
        """Returns the bandwidth budgets of a host's transfer: the pool's, its group's, its own. Creates missing ones."""
        return make_buckets(self.config, self.pool, host)
