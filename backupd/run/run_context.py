"""The context of a run: configuration, opened pool, the catalogue as a run writes it, clock, and progress sinks."""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from backupd.rsync.bandwidth import Bucket, make_buckets
from backupd.rsync.command import Rsync
from backupd.rsync.confined import Confinement
from backupd.rsync.messages import Output
from btrkeep.catalogue import Backup, Catalogue, CatalogueBusy, Damage, HostFacts, Progress
from btrkeep.catalogue.facts import Span
from btrkeep.checkpoints import Checkpoint
from btrkeep.clock import Clock
from btrkeep.config import Config, HostConfig
from btrkeep.errors import OperatorError
from btrkeep.pool.marker import Pool
from btrkeep.process.progress import Notice, ProgressSinks

_RATE_WINDOW = 10.0
_PATIENCE = 1.0  # seconds that a write waits for another program after a failed wait
_NO_ROW = 0  # the id of a run that is not in the catalogue
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HostResult:
    """The result of one host in this run. Fields with the name of a field of Record have its value."""

    host: str
    """The host's name."""
    outcome: str
    """complete, suspect, failed, partial, skipped or locked."""
    error: str | None = None
    """Why it is not complete; None if it is."""
    name: str | None = None
    """The backup's name; None: it is not final."""
    files: int | None = None
    """Number of regular files."""
    bytes: int | None = None
    """The size of all files on the host."""
    new_bytes: int | None = None
    """Bytes of new data."""
    shared_bytes: int | None = None
    """Bytes that share data of another host's backup."""
    seconds: float = 0.0
    """How long it took."""
    attempts: int = 0
    """Number of attempts of the transfer."""
    warnings: tuple[str, ...] = ()
    """Missing or unusual data, one line each."""

    @property
    def good(self) -> bool:
        """Returns True if it needs no attention."""
        return self.outcome in ("complete", "skipped")


@dataclass(slots=True)
class RunningTransfer:
    """A running transfer."""

    host: str
    """The host's name."""
    run_id: int
    """The run's `id` in the catalogue."""
    expected_files: int | None = None
    """Number of files in the base; None for a first backup."""
    path: str = ""
    """The source path of the present transfer."""
    output: Output | None = None
    """The output of its rsync; None: not yet started."""
    done_files: int = 0
    """Number of files of the finished source paths."""
    done_bytes: int = 0
    """Bytes of the finished source paths."""
    begun: float = field(default_factory=time.monotonic)
    """Start by time.monotonic()."""
    pid: int = 0
    """The process that runs the host."""
    advanced: float = 0.0
    """When the numbers of the present transfer last grew, by time.monotonic()."""
    _numbers: tuple[int, int, int] | None = None
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
        """Returns the share of checked names, compared with the base; it never decreases. None without a base."""
        if not self.expected_files:
            return None
        self._share = max(self._share, min(1.0, self.files / self.expected_files))
        return self._share

    @Checkpoint("progress of rsync noted")
    def take(self, output: Output) -> None:
        """Records output of the running rsync."""
        now, progress = time.monotonic(), output.progress
        if self.output is not output or self._numbers != (progress.bytes, progress.checked, progress.listed):
            self.advanced, self._numbers = now, (progress.bytes, progress.checked, progress.listed)
        self.output = output
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
    """The run starts, with these hosts."""

    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NightEnded:
    """The run is over. `problem`: another error is printed, or due hosts wait for their windows."""

    problem: bool = False


NightEvent = NightStarted | RunningTransfer | HostResult | Notice | NightEnded
"""The events of a run, sent in the loop's thread. A RunningTransfer is sent at its start; its fields change afterwards."""


class BestEffortCatalogue:
    """Writes to the catalogue, a copy of the pool's records, and ignores failures: the next run adds missing rows from the pool.
    `problem` is the first reason, `say` is called once with it.

    Methods and their arguments are those of Catalogue.
    """

    def __init__(self, catalogue: Catalogue, say: Callable[[str], None], problem: OperatorError | None = None) -> None:
        self._catalogue = catalogue
        self._say = say
        self.problem: OperatorError | None = None
        if problem:
            self.note(problem)

    def note(self, error: OperatorError) -> None:
        """Records that the catalogue could not be written."""
        log.info("%s", error.message)
        if isinstance(error, CatalogueBusy):  # another program may hold it all night, and each write would wait again
            self._catalogue.wait_at_most(_PATIENCE)
        if self.problem is None:
            self.problem = error
            self._say(f"{error.message}; backups continue, and the next run records them ({error.hint})")

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OperatorError as error:
            self.note(error)

    def host_facts(self, latest: datetime) -> dict[str, HostFacts]:
        return self._catalogue.host_facts(latest)

    def get_fact(self, name: str) -> str | None:
        return self._catalogue.get_fact(name)

    def unknown_spans(self) -> tuple[Span, ...]:
        return self._catalogue.unknown_spans()

    def damages(self, host: str) -> list[Damage]:
        """Returns the recorded damages; an empty list if they cannot be read."""
        try:
            return self._catalogue.damages(host)
        except OperatorError as error:
            self.note(error)
            return []

    def start_run(self, host: str, started: datetime, pid: int, pid_started: str | None, night: bool) -> int:
        try:
            return self._catalogue.start_run(host, started, pid, pid_started, night)
        except OperatorError as error:
            self.note(error)
            return _NO_ROW

    def update_run(self, run_id: int, **fields: Any) -> None:
        if run_id != _NO_ROW:
            self._try(lambda: self._catalogue.update_run(run_id, **fields))

    def finish_run(self, run_id: int, **fields: Any) -> None:
        if run_id != _NO_ROW:
            self._try(lambda: self._catalogue.finish_run(run_id, **fields))

    def finish_backup(self, backup: Backup, /, run_id: int, **fields: Any) -> None:
        if run_id != _NO_ROW:
            self._try(lambda: self._catalogue.finish_backup(backup, run_id, **fields))
        else:
            self._try(lambda: self._catalogue.drop_backup(backup.host, None))
            self._try(lambda: self._catalogue.put_backup(backup))

    def put_damages(self, damages: Sequence[Damage]) -> None:
        self._try(lambda: self._catalogue.put_damages(damages))

    def put_backup(self, backup: Backup) -> None:
        self._try(lambda: self._catalogue.put_backup(backup))

    def drop_backup(self, host: str, name: str | None) -> None:
        self._try(lambda: self._catalogue.drop_backup(host, name))

    def put_progress(self, progress_now: Progress) -> None:
        if progress_now.run_id != _NO_ROW:
            self._try(lambda: self._catalogue.put_progress(progress_now))


@dataclass(slots=True)
class RunContext:
    """Everything a run needs."""

    config: Config
    """The configuration."""
    pool: Pool
    """The pool."""
    catalogue: Catalogue | BestEffortCatalogue
    """The catalogue, or an object that passes calls on to it and ignores failing writes, so that they do not fail a backup."""
    clock: Clock
    """The clock."""
    rsync: Rsync
    """The rsync of this server."""
    sinks: ProgressSinks[NightEvent]
    """The receiver of the events of the night."""
    night: bool
    """True for a run of all hosts, False for named ones."""
    confinement: Confinement
    """How rsync is confined."""
    retry_pause: float = 10.0
    """Seconds of the first pause between attempts; each pause is three times the one before."""
    running: dict[str, RunningTransfer] = field(default_factory=dict)
    """The running transfers, by host."""

    def confines(self, host: HostConfig) -> bool:
        """Returns True if the rsync that talks to that host is confined; always False if this machine is the source."""
        return bool(host.address) and not self.confinement.missing

    def buckets(self, host: HostConfig) -> list[Bucket]:
        """Returns the bandwidth budgets of a host's transfer: the pool's, its group's, its own. Makes missing ones."""
        return make_buckets(self.config, self.pool, host)
