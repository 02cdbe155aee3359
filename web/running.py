"""The running jobs: transfers, an expiry, a balance, and the number of deleted subvolumes that wait for the kernel's cleaner.

A job without an end in the catalogue is looked up in /proc. If this service may not see processes of others
(ProtectProc=invisible), the time of the job's last update in the catalogue decides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median

from btrkeep.catalogue import Catalogue, Expiry, Progress, Run, RunVolume
from btrkeep.decisions.verification import read_verifying
from btrkeep.process.proc import start_time
from btrkeep.serving.viewer import Viewer
from web.api import STATE, ApiRequest, Endpoint
from web.mapping import from_row
from web.source import RequestContext

_SILENT = timedelta(minutes=10)
"""A running job updates its row much more often."""
_INIT = 1


def is_alive(pid: int, pid_started: str | None, heard: datetime, now: datetime) -> bool:
    """Returns True if the job is still running. `heard`: the time of the last update of its row."""
    if start_time(_INIT) is None:
        return now - heard <= _SILENT
    return pid_started is not None and start_time(pid) == pid_started


_LEAST_SHARE = 0.02  # below it, no remaining time is estimated
_LEAST_RUNS = 3  # with fewer earlier runs, none either
_ALIKE = 2.0  # the largest of them has at most that many times the bytes of the smallest
_CLOSE = 60.0  # seconds by which two estimates may always differ
_STALLED = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Transfer:
    """A host that is being backed up."""

    host: str
    """Its name."""
    path: str
    """The source path that is transferred now."""
    files: int
    """Number of files that are done."""
    files_total: int | None
    """Number of files in all; null: still unknown."""
    bytes: int
    """Transferred so far."""
    rate: float | None
    """Bytes per second; null: still unknown."""
    share: float | None
    """The part of the names that is done, 0 to 1; names differ in the work they need; null: unknown."""
    started: datetime | None
    """When its run started; null: unknown."""
    left: float | None
    """Seconds, estimated from the bytes so far and the host's last runs; null: any number would be a guess."""
    night: bool
    """Whether it belongs to a run over all hosts."""
    run_id: int
    """The id of its run."""
    stalled: float | None = None
    """Seconds without any progress, two minutes or more, as of the last report of the run; null: it advances, or is unknown."""


@dataclass(frozen=True, slots=True)
class ExpiryNow:
    """An expiry that is deleting."""

    started: datetime
    """When it started."""
    planned: int
    """Number of backups to delete."""
    deleted: int
    """Number of backups deleted so far."""
    waiting: int | None
    """Number of deleted subvolumes that wait for the cleaner; null: unknown."""
    rate: float | None
    """Backups per second; null: unknown."""
    left: float | None
    """Seconds; null: unknown."""
    paused: str | None
    """Why it pauses now; null: it does not."""
    id: int
    """Its id."""


@dataclass(frozen=True, slots=True)
class BalanceRow:
    """A balance that is running."""

    started: datetime
    """When it started."""
    policy: str
    """The order of block groups."""
    block_groups: int
    """Number of relocated block groups."""
    moved: int
    """Bytes of data that it moved."""
    budget: int | None
    """Bytes that it may move; null: no limit."""
    current: int | None
    """Logical address of the block group that it relocates now; null: none."""
    gained: float
    """Score removed."""
    written: int | None
    """Bytes that all programs wrote to the devices; null: unknown."""
    id: int
    """Its id."""


@dataclass(frozen=True, slots=True)
class VerificationNow:
    """A verification that is running."""

    began: datetime
    """When it started."""
    words: str
    """What it reads, and how much it has read; "": it has just started."""


@dataclass(frozen=True, slots=True)
class RunningNow:
    """The running jobs."""

    transfers: tuple[Transfer, ...]
    """Hosts that are being backed up."""
    expiries: tuple[ExpiryNow, ...]
    """Expiries; empty without `pool`."""
    balances: tuple[BalanceRow, ...]
    """Balances; empty without `pool`."""
    verifications: tuple[VerificationNow, ...]
    """The verification; empty if there is none, or without `pool`."""
    orphans: int | None
    """Deleted subvolumes that waited for the cleaner at `orphans_at`; null: unknown."""
    orphans_at: datetime | None
    """When that was measured; null: unknown."""
    pool: bool
    """Whether the user may see the pool's jobs."""
    rate: float | None
    """Bytes per second of all transfers together; null: unknown."""

    @property
    def idle(self) -> bool:
        """Returns True if nothing is running."""
        return not (self.transfers or self.expiries or self.balances or self.verifications)


def alive_runs(catalogue: Catalogue, now: datetime) -> frozenset[int]:
    """Returns the ids of the runs without an end whose process still exists: a killed run has no end either."""
    heard = {entry.run_id: entry.updated for entry in catalogue.progress()}
    unfinished = catalogue.unfinished_runs()
    return frozenset(run.id for run in unfinished if is_alive(run.pid, run.pid_started, heard.get(run.id, run.started), now))


def running(source: RequestContext, viewer: Viewer) -> RunningNow:
    """Returns the running jobs that the viewer may see."""
    catalogue, now = source.catalogue, source.now
    begun = {run.id: run for run in catalogue.unfinished_runs()}
    rows = [
        entry
        for entry in catalogue.progress()
        if viewer.may_see(entry.host) and is_alive(entry.pid, entry.pid_started, entry.updated, now)
    ]
    volumes = _volumes(source, tuple(entry.host for entry in rows))
    transfers = tuple(transfer(entry, begun.get(entry.run_id), now, volumes.get(entry.host, ())) for entry in rows)
    rates = [running_transfer.rate for running_transfer in transfers if running_transfer.rate is not None]
    expiries, balances = ((), ()) if viewer.limited else (_expiries(catalogue, now), _balances(catalogue, now))
    orphans, at = (None, None) if viewer.limited else _orphans(source, expiries)
    verifications = () if viewer.limited else _verifications(catalogue, now)
    rate = sum(rates) if rates else None
    return RunningNow(transfers, expiries, balances, verifications, orphans, at, not viewer.limited, rate)


def _volumes(source: RequestContext, hosts: tuple[str, ...]) -> Mapping[str, list[RunVolume]]:
    """Returns the last complete runs of these hosts; cached between requests."""
    if not hosts:
        return {}
    by_host: dict[str, list[RunVolume]] = {}
    for volume in source.cached(("volumes", hosts), lambda: source.catalogue.run_volumes(hosts)):
        by_host.setdefault(volume.host, []).append(volume)
    return by_host


def transfer(entry: Progress, run: Run | None, now: datetime, volumes: Sequence[RunVolume] = ()) -> Transfer:
    """Returns one transfer, with an estimate of its remaining time from the host's last complete runs.

    The time without progress is as of the last report of the run: the copy of the catalogue may be half an hour old.
    """
    started, silent = run.started if run else None, entry.updated - entry.advanced if entry.advanced else timedelta()
    stalled = silent.total_seconds() if silent >= _STALLED else None
    left = time_left(entry.bytes, (now - started).total_seconds(), volumes) if started and stalled is None else None
    night = run.night if run else False
    return from_row(Transfer, entry, files=entry.files_done, started=started, left=left, night=night, stalled=stalled)


def time_left(done: int, elapsed: float, volumes: Sequence[RunVolume]) -> float | None:
    """Returns the remaining seconds of a transfer; None if they would be a guess: without earlier runs of about the same volume,
    near either end, and when the rate so far and the duration of earlier runs disagree.
    """
    sizes = [volume.bytes for volume in volumes]
    if len(sizes) < _LEAST_RUNS or max(sizes) > _ALIKE * min(sizes) or elapsed <= 0:
        return None
    usual = median(sizes)
    if not _LEAST_SHARE * usual <= done < usual:
        return None
    by_rate, by_duration = elapsed * (usual - done) / done, median(volume.seconds for volume in volumes) - elapsed
    return by_rate if abs(by_rate - by_duration) <= max(_CLOSE, min(by_rate, by_duration)) else None


def _expiries(catalogue: Catalogue, now: datetime) -> tuple[ExpiryNow, ...]:
    rows = [row for row in catalogue.unfinished_expiries() if is_alive(row.pid, row.pid_started, row.updated, now)]
    return tuple(from_row(ExpiryNow, row, left=_left_of(row, now)) for row in rows)


def _left_of(row: Expiry, now: datetime) -> float | None:
    """Returns the remaining seconds from now; those in the row are from the time when it was written."""
    return max(0.0, row.eta - (now - row.updated).total_seconds()) if row.eta is not None else None


def _balances(catalogue: Catalogue, now: datetime) -> tuple[BalanceRow, ...]:
    rows = [row for row in catalogue.unfinished_balances() if is_alive(row.pid, row.pid_started, row.updated, now)]
    return tuple(from_row(BalanceRow, row) for row in rows)


def _verifications(catalogue: Catalogue, now: datetime) -> tuple[VerificationNow, ...]:
    state = read_verifying(catalogue)
    if state is None or not is_alive(state.pid, state.pid_started, state.updated, now):
        return ()
    return (VerificationNow(state.began, state.words),)


def _orphans(source: RequestContext, expiries: Sequence[ExpiryNow]) -> tuple[int | None, datetime | None]:
    """Returns the number of waiting subvolumes from a running expiry, else from the newest sample."""
    for expiry in expiries:
        if expiry.waiting is not None:
            return expiry.waiting, source.now
    filesystem = source.config.filesystem
    sample = source.catalogue.newest_sample(filesystem) if filesystem else None
    return (sample.orphans, sample.taken) if sample and sample.orphans is not None else (None, None)


def _answer(asked: ApiRequest) -> RunningNow:
    return running(asked.source, asked.viewer)


ENDPOINTS = (Endpoint("GET", "/running", "running", STATE, "Running jobs", RunningNow, _answer),)
