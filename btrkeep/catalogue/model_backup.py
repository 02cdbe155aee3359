"""The catalogue's data types: plain frozen dataclasses.

Times are aware UTC datetimes, sizes bytes, durations seconds, shares fractions of one. Text from a host may hold surrogate escapes
(PEP 383) for bytes that are not UTF-8; they are stored and returned unchanged.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from btrkeep.backup_states import Cause, Condition

RUN_OUTCOMES = ("complete", "suspect", "failed", "partial", "skipped")
KILLED = "killed"
"""`Run.meaning` of a run whose process ended without a result, as the next run found: how rsync ended is unknown."""
EXPIRY_OUTCOMES = ("complete", "partial", "stopped", "failed", "killed")
"""complete: everything due was deleted. partial: hosts were left out, or a limit was reached. stopped: by a guard, or a signal.
failed: an error ended it. killed: its process ended without a result, as the next run found.
"""
DEDUPE_OUTCOMES = ("complete", "stopped", "failed", "killed")
"""stopped: by a signal, or because its time was over."""


@dataclass(frozen=True, slots=True)
class Backup:
    """One backup of one host: a subvolume of the pool. The order of the fields is the order of the catalogue's columns."""

    host: str
    """The host's name in the configuration."""
    name: str | None
    """The folder's name, 2026-11-20T220003Z; None while it is still in `.working`."""
    path: str
    """Relative to the folder of the pool."""
    state: str
    """One of BACKUP_STATES."""
    started: datetime
    """When its run started."""
    finished: datetime | None
    """When its run ended; None: it has not, or it was killed."""
    duration: float | None
    """Duration of the run in seconds; None: unknown."""
    files: int | None
    """Number of regular files."""
    bytes: int | None
    """The size of all its files on the host."""
    new_bytes: int | None
    """Bytes of new data that rsync wrote for it, without holes."""
    error: str | None
    """Why it is not complete, in one line; None for a complete one."""
    warnings: tuple[str, ...] = ()
    """Its warnings, such as missing files, one line each."""
    base: str | None = None
    """The name of the backup on which it is based; None for a first copy."""
    subvolume_id: int | None = None
    """The subvolume's number in the pool's filesystem."""
    uuid: str | None = None
    """The backup's id, which its copies in other pools share."""
    outcome: str | None = None
    """Its state apart from its expiry: complete, suspect, failed or altered. None until it is final."""
    held_until: datetime | None = None
    """When its hold ends; None: the hold has no end, or there is none."""
    held_why: str | None = None
    """The reason of its hold, as the administrator wrote it; None: it is not held."""
    expired: datetime | None = None
    """When expiry marked it for deletion; None: it is not marked."""
    cause: Cause | None = None
    """`error` as data; None if it has only a text, such as that of a hook."""
    shared_bytes: int | None = None
    """Bytes of its new data that share the data of another host's backup (`share_with`); None: that is not configured."""
    sealed: int | None = None
    """The recorded transaction of its last change (ctransid); None: it has no seal."""
    live_paths: int | None = None
    """Number of source paths that were not read from snapshots of the host; None: `snapshots` was off, or unknown."""
    detail: Mapping[str, object] = field(default_factory=dict)
    """The other fields of backup.json; empty unless requested with `backups(with_detail=True)`."""


class BackupState(NamedTuple):
    """The fields of a backup's row for the retention. A tuple, because there are 95,000 of them and a dataclass takes three times
    as long.
    """

    host: str
    name: str | None
    """None: the host's `.working`."""
    started: datetime
    state: str
    outcome: str | None
    """Its state apart from its expiry; None: it is not final, or the catalogue does not have it."""
    held_until: datetime | None
    held_why: str | None
    expired: datetime | None
    subvolume_id: int | None
    uuid: str | None
    base: str | None
    """The base of a `.working`; None for all other backups."""
    sealed: int | None = None


class StateFromNotes(NamedTuple):
    """The fields of a backup's row that come from its host's notes."""

    host: str
    name: str | None
    state: str
    outcome: str | None
    held_until: datetime | None
    held_why: str | None
    expired: datetime | None


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt to back up one host, with rsync's numbers. Runs are history: they outlive the backup."""

    id: int
    """A run that started later has a higher one."""
    host: str
    """The host's name in the configuration."""
    started: datetime
    """When it started."""
    finished: datetime | None
    """When it ended; None: it is running, or was killed."""
    outcome: str | None
    """One of RUN_OUTCOMES; None: running now, or killed."""
    backup: str | None
    """The name of the backup that it made; None: no final one."""
    attempts: int
    """Number of attempts of the transfer."""
    exit_code: int | None
    """The exit status of the engine, rsync or that of a stream; negative for a signal."""
    meaning: str | None
    """The meaning of `exit_code`: an ExitCause; without one KILLED, or nothing."""
    error: str | None
    """Why the run did not make a complete backup; None if it did."""
    last_lines: tuple[str, ...]
    """The last lines that rsync wrote to its error output."""
    literal_bytes: int | None
    """Bytes of new data that it brought."""
    matched_bytes: int | None
    """Bytes of changed files that were already in the base."""
    received_bytes: int | None
    """Bytes received over the connection."""
    rsync_version: str | None
    """The version of rsync on this server; None: the run was by streams (`engine = "send"`), or has not ended."""
    protocol: int | None
    """The version of rsync's protocol that both sides used."""
    pid: int
    """The process that made the run."""
    pid_started: str | None
    """Its start time, which distinguishes it from a later process with the same number; None: unknown."""
    night: bool
    """True if it belongs to a run over all hosts, False if the host was named."""
    cause: Cause | None = None
    """`error` as data; None if it has only a text."""
    shared_bytes: int | None = None
    """The same field as in the backup that it made."""

    @property
    def killed(self) -> bool:
        """True if the run was killed; then its outcome is "failed", and `finished` is its last sign of life."""
        return self.exit_code is None and self.meaning == KILLED


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a running transfer: one row per host, deleted when its run ends."""

    host: str
    """The host's name in the configuration."""
    run_id: int
    """The `id` of its run."""
    pid: int
    """The process that transfers it."""
    pid_started: str | None
    """Its start time; None: unknown."""
    path: str
    """The source path that is being transferred."""
    files_done: int
    """Number of files that rsync has passed."""
    files_total: int | None
    """Number of files that rsync has to pass; None: still unknown."""
    bytes: int
    """Bytes transferred so far."""
    rate: float | None
    """Bytes per second."""
    share: float | None
    """The finished share of the transfer, 0 to 1; None: still unknown."""
    updated: datetime
    """When this was written."""
    advanced: datetime | None = None
    """When the numbers last grew; None: no rsync or stream is running now, or an older version wrote this."""


@dataclass(frozen=True, slots=True)
class PoolJob:
    """One run of a command on the whole pool."""

    id: int
    """A run that started later has a higher one."""
    started: datetime
    """When it started."""
    finished: datetime | None
    """When it ended; None: it is running, or was killed."""
    outcome: str | None
    """None: running now, or killed."""
    pid: int
    """The process that runs it."""
    pid_started: str | None
    """Its start time; None: unknown."""


@dataclass(frozen=True, slots=True)
class Expiry(PoolJob):
    """One run of `expire`; while it has no end, also its current step. `outcome`: one of EXPIRY_OUTCOMES. Counts are backups,
    except `left_out`, which counts hosts.
    """

    planned: int
    """Number of backups to delete."""
    marked: int
    """Number of backups that it marked for deletion."""
    revived: int
    """Number of marked backups that are no longer marked, because the policy changed or they were held."""
    deleted: int
    """Number of backups deleted so far."""
    left_out: int
    """Number of hosts that it skipped because of an error or a safety limit."""
    waiting: int | None
    """Deleted subvolumes that wait for the kernel's cleaner now, including those of other programs; None: unknown, also for the
    following fields.
    """
    most_waiting: int | None
    """The highest `waiting` of the run."""
    rate: float | None
    """Subvolumes per second."""
    eta: float | None
    """Seconds left, counted from `updated`."""
    written_bytes: int | None
    """Bytes written to the filesystem's devices since it started."""
    mount_option: str | None
    """The allocator's mount option while it runs, such as "ssd"; None: not changed."""
    paused: str | None
    """Why it pauses now; None: it does not pause."""
    error: str | None
    """Why it ended early; None: it did not."""
    updated: datetime
    """When this was written."""
    hosts: int | None = None
    """Number of hosts, if it was limited to named hosts; None: all."""


@dataclass(frozen=True, slots=True)
class Dedupe(PoolJob):
    """One run of `dedupe`; without an end, its progress. `outcome`: one of DEDUPE_OUTCOMES."""

    backups: int
    """Number of backups that it has finished."""
    files: int
    """Number of files that now share data, counted in each backup that has them."""
    shared_bytes: int
    """The size of those files."""
    read_bytes: int
    """Bytes of files that it read to compare them."""
    left_out: int
    """Number of backups that it skipped, partly or completely."""
    data_saved: int | None
    """Decrease of the filesystem's used data until the end, including the writes of other programs; None: it did not finish."""
    metadata_added: int | None
    """Increase of the filesystem's used metadata until the end; None: it did not finish."""
    updated: datetime
    """When this was written."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Facts about a host that `status` and `due` need. Backups with a time in the future are ignored, except by `ahead`: a clock
    was wrong, and their real time is unknown. `newest_*` is the newest backup in any state, including `.working`. `last_run_*` is
    the newest run that has ended: a run in progress, or one that was killed and not yet cleaned up, does not hide the outcome of
    the one before.
    """

    last_complete: datetime | None
    """When the newest complete backup started."""
    last_complete_finished: datetime | None
    """When the run that made it ended."""
    last_complete_files: int | None
    """Its number of regular files."""
    last_complete_bytes: int | None
    """The size of its files on the host."""
    last_complete_new_bytes: int | None
    """Bytes of its new data."""
    newest_state: str | None
    """One of BACKUP_STATES; None: the host has no backup."""
    newest_error: str | None
    """Why it is not complete; None for a complete one."""
    newest_warnings: tuple[str, ...]
    """The warnings of the newest backup, one line each."""
    last_run: int | None
    """Its `id`. A later run has a higher one, even within the same second or after the clock was set back."""
    last_run_started: datetime | None
    """When it started."""
    last_run_outcome: str | None
    """One of RUN_OUTCOMES."""
    last_run_error: str | None
    """Why it did not make a complete backup."""
    ahead: datetime | None = None
    """The latest time of a backup in the future; None: none."""
    newest_cause: Cause | None = None
    """`newest_error` as data; None if it has only a text."""
    last_run_cause: Cause | None = None
    """`last_run_error` as data; None if it has only a text."""
    lasting: tuple[Condition, ...] = ()
    """The files that the newest complete backup could not fetch or delete, each with the first of the successive backups with that
    problem.
    """
    last_complete_live_paths: int | None = None
    """The `live_paths` of the newest complete backup."""


@dataclass(frozen=True, slots=True)
class Night:
    """One process of `backupd run` over all hosts. Counts only the rows that are still in the catalogue."""

    first_run: int
    """The `id` of its first run. Runs of other processes may be between this one and `last_run`."""
    last_run: int
    """The `id` of its last run."""
    started: datetime
    """When its first run started."""
    finished: datetime | None
    """When its last run ended; None: a run has not ended yet."""
    pid: int
    """The process."""
    pid_started: str | None
    """Its start time; None: unknown."""
    outcomes: Mapping[str, int]
    """Number of runs by outcome, one of RUN_OUTCOMES; "" for those without an end."""
    literal_bytes: int
    """Bytes of new data of all its runs."""

    @property
    def runs(self) -> int:
        """Number of hosts that it tried."""
        return sum(self.outcomes.values())


@dataclass(frozen=True, slots=True)
class PastRuns:
    """Which runs of hosts are requested: those that match all fields. None or an empty field matches all."""

    hosts: Collection[str] | None = None
    """Names of hosts; empty: no run. None: all hosts."""
    outcomes: Collection[str] = ()
    """Of RUN_OUTCOMES; "" is a run without an end. Empty: all outcomes."""
    since: datetime | None = None
    """Only runs that started then or later."""
    night: bool | None = None
    """True: only runs over all hosts; False: only those with named hosts; None: both."""
    process: tuple[int, str | None] | None = None
    """The pid and the start time of the process that made them; None: any process."""
    ids: tuple[int, int] | None = None
    """The lowest and the highest `id`, inclusive; None: all."""
    before: int | None = None
    """Only runs with a lower `id`, for the next page; None: all."""


class HostRuns(NamedTuple):
    """One run without rsync's output. A tuple, because a month of 3,000 hosts has 90,000 of them."""

    host: str
    id: int
    started: datetime
    finished: datetime | None
    outcome: str | None
    """One of RUN_OUTCOMES; None: running now, or killed."""
    backup: str | None
    error: str | None
    literal_bytes: int | None
    pid: int
    pid_started: str | None
    night: bool


class RunVolume(NamedTuple):
    """How much a complete run of one attempt transferred, and how long it took."""

    host: str
    seconds: float
    bytes: int
    """Of changed files, whether their data was new or already in the base: what `Progress.bytes` ends at."""


class BackupOutcome(NamedTuple):
    """The first and the present state of a final backup."""

    host: str
    name: str
    state: str
    """One of BACKUP_STATES."""
    outcome: str | None
    """complete, suspect or failed, whatever its present state; None: unknown."""


@dataclass(frozen=True, slots=True)
class RunTotals:
    """All runs of hosts with one outcome in a period."""

    outcome: str
    """One of RUN_OUTCOMES."""
    runs: int
    """Number of runs."""
    literal_bytes: int
    """Bytes of their new data."""


@dataclass(frozen=True, slots=True)
class BalanceTotals:
    """All runs of balance on a filesystem since the beginning of the history."""

    runs: int
    """Number of runs."""
    block_groups: int
    """Number of relocated block groups."""
    moved: int
    """Bytes of data that they moved."""
    written: int
    """Bytes written to the devices, by the runs for which it is known."""


@dataclass(frozen=True, slots=True)
class ExpiryTotals:
    """All runs of `expire` since the beginning of the history."""

    runs: int
    """Number of runs."""
    deleted: int
    """Number of backups that they deleted."""
