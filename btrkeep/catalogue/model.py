"""The catalogue's data types: plain frozen dataclasses.

Times are aware UTC datetimes, sizes bytes, durations seconds, shares fractions of one. Text from a host may hold surrogate escapes
(PEP 383) for bytes that are not UTF-8; they are stored and returned unchanged.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from btrkeep.causes import Cause, Condition

RUN_OUTCOMES = ("complete", "suspect", "failed", "partial", "skipped")
KILLED = "killed"
"""What `Run.meaning` says of a run whose process was gone when the next one came: how rsync ended nobody knows."""
EXPIRY_OUTCOMES = ("complete", "partial", "stopped", "failed", "killed")
"""complete: all that was due is gone. partial: hosts were left out, or a limit was reached. stopped: by a guard, or a signal.
failed: an error ended it. killed: its process was gone when the next one came."""
DEDUPE_OUTCOMES = ("complete", "stopped", "failed", "killed")
"""stopped: by a signal, or because its time was over."""


@dataclass(frozen=True, slots=True)
class Backup:
    """One backup of one host: a subvolume of the pool. The order of the fields is the order of the catalogue's columns."""

    host: str
    name: str | None
    """The folder's name, 2026-11-20T220003Z; None while it is still in `.working`."""
    path: str
    state: str
    """One of BACKUP_STATES."""
    started: datetime
    finished: datetime | None
    duration: float | None
    files: int | None
    bytes: int | None
    """Size of all files, as the host has them."""
    new_bytes: int | None
    """What this backup added: rsync's literal data."""
    error: str | None
    warnings: tuple[str, ...] = ()
    base: str | None = None
    """The name of the backup that it grew from."""
    subvolume_id: int | None = None
    uuid: str | None = None
    outcome: str | None = None
    """complete, suspect, failed or altered: what `state` is but for its expiry. None until it is final."""
    held_until: datetime | None = None
    """When its hold ends; None for one without end."""
    held_why: str | None = None
    """Why it is held, in somebody's words; None: it is not held."""
    expired: datetime | None = None
    """When retention marked it; None when it did not."""
    cause: Cause | None = None
    """What `error` says, as data; None where that has words alone, such as a hook's."""
    shared_bytes: int | None = None
    """Of what it added, bytes that share the data of the other host's backup (`share_with`); None: nothing was to be shared."""
    sealed: int | None = None
    """The transaction of its last change that is known (ctransid); None: it has no seal."""
    detail: Mapping[str, object] = field(default_factory=dict)
    """The rest of backup.json, as JSON has it; empty unless it was asked for (`backups(with_detail=True)`)."""


class BackupState(NamedTuple):
    """The part of a backup's row that retention needs. A tuple, because there are 95,000 of them and a dataclass takes three times
    as long.
    """

    host: str
    name: str | None
    """None: the host's `.working`."""
    started: datetime
    state: str
    outcome: str | None
    """What `state` would be had it not expired; None for what is not final, and where the catalogue does not know."""
    held_until: datetime | None
    held_why: str | None
    expired: datetime | None
    subvolume_id: int | None
    uuid: str | None
    base: str | None
    """The base of a `.working`; None for all others, of which nobody needs it."""
    sealed: int | None = None


class StateFromNotes(NamedTuple):
    """The part of a backup's row that comes from its host's notes."""

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
    host: str
    started: datetime
    finished: datetime | None
    outcome: str | None
    """One of RUN_OUTCOMES; None: running now, or killed."""
    backup: str | None
    attempts: int
    exit_code: int | None
    """rsync's; negative for a signal."""
    meaning: str | None
    """What `exit_code` means: an ExitCause; without one KILLED, or nothing."""
    error: str | None
    last_lines: tuple[str, ...]
    literal_bytes: int | None
    matched_bytes: int | None
    received_bytes: int | None
    rsync_version: str | None
    protocol: int | None
    pid: int
    pid_started: str | None
    night: bool
    cause: Cause | None = None
    """What `error` says, as data; None where that has words alone."""
    shared_bytes: int | None = None
    """As in the backup that it made."""

    @property
    def killed(self) -> bool:
        """True if the run was killed; its outcome is "failed" then, and `finished` is when it was last heard of."""
        return self.exit_code is None and self.meaning == KILLED


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a running transfer: one row per host, deleted when its run ends."""

    host: str
    run_id: int
    pid: int
    pid_started: str | None
    path: str
    """The source path that is being transferred."""
    files_done: int
    files_total: int | None
    bytes: int
    rate: float | None
    """Bytes per second."""
    share: float | None
    updated: datetime


@dataclass(frozen=True, slots=True)
class PoolJob:
    """One run of a command on the whole pool."""

    id: int
    started: datetime
    finished: datetime | None
    outcome: str | None
    """None: running now, or killed."""
    pid: int
    pid_started: str | None


@dataclass(frozen=True, slots=True)
class Expiry(PoolJob):
    """One run of `expire`; while it has no end, also its current step. `outcome`: one of EXPIRY_OUTCOMES. Counts are backups,
    except `left_out`, which counts hosts.
    """

    planned: int
    """How many it set out to delete."""
    marked: int
    revived: int
    """How many are kept again, since the policy changed or a hold came."""
    deleted: int
    left_out: int
    waiting: int | None
    """Deleted subvolumes that wait for the cleaner now, those of others too; None: unknown, as for all that follow."""
    most_waiting: int | None
    rate: float | None
    """Subvolumes per second."""
    eta: float | None
    """Seconds that are left, counted from `updated`."""
    written_bytes: int | None
    """Written to the filesystem's devices since it started."""
    mount_option: str | None
    """The allocator's option that the pool has for the time of it; None: left alone."""
    paused: str | None
    """Why it pauses now; None: it does not."""
    error: str | None
    updated: datetime
    hosts: int | None = None
    """Of how many hosts alone it was, which somebody has named; None: of all."""


@dataclass(frozen=True, slots=True)
class Dedupe(PoolJob):
    """One run of `dedupe`; while it has no end, how far it is. `outcome`: one of DEDUPE_OUTCOMES."""

    backups: int
    """Of how many it came to the end."""
    files: int
    """That share data now and did not before, in each backup that has them."""
    shared_bytes: int
    """Bytes of those files."""
    read_bytes: int
    left_out: int
    """Backups that were left, in part or as a whole."""
    data_saved: int | None
    """By how many bytes of data less was in use at the end, all other work included; None: it did not come to its end."""
    metadata_added: int | None
    updated: datetime


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Facts about a host that `status` and `due` need.

    Backups with a time in the future are ignored, except by `ahead`: a clock was wrong, and their real time is unknown. `newest_*`
    is the newest backup in any state, including `.working`. `last_run_*` is the newest run that has ended: a run in progress, or
    one that was killed and not yet cleaned up, does not hide the outcome of the one before.
    """

    last_complete: datetime | None
    """When the newest complete backup started."""
    last_complete_finished: datetime | None
    last_complete_files: int | None
    last_complete_bytes: int | None
    last_complete_new_bytes: int | None
    newest_state: str | None
    newest_error: str | None
    newest_warnings: tuple[str, ...]
    last_run: int | None
    """Its id. A later id began later, also within one second and whatever the clock did between them."""
    last_run_started: datetime | None
    last_run_outcome: str | None
    last_run_error: str | None
    ahead: datetime | None = None
    """The latest stamp that lies in the future; None when there is none."""
    newest_cause: Cause | None = None
    """What `newest_error` says, as data; as for the next."""
    last_run_cause: Cause | None = None
    lasting: tuple[Condition, ...] = ()
    """What the newest complete backup could not fetch or delete, each with the first backup in a row that had it."""


@dataclass(frozen=True, slots=True)
class Night:
    """One process of `backupd run` over all hosts. Counts only the rows that are still in the catalogue."""

    first_run: int
    """Ids of its first and of its last run; those of other processes may lie between."""
    last_run: int
    started: datetime
    """When its first run did."""
    finished: datetime | None
    """When the last one ended; None: one has no end."""
    pid: int
    pid_started: str | None
    outcomes: Mapping[str, int]
    """How many runs ended how, one of RUN_OUTCOMES; "": those without an end."""
    literal_bytes: int
    """New data that all of them brought."""

    @property
    def runs(self) -> int:
        """Number of hosts that it tried."""
        return sum(self.outcomes.values())


@dataclass(frozen=True, slots=True)
class PastRuns:
    """Which runs of hosts are asked for: those that are all of this. None, or nothing given: any."""

    hosts: Collection[str] | None = None
    outcomes: Collection[str] = ()
    """Of RUN_OUTCOMES; "" is a run without an end."""
    since: datetime | None = None
    """Started then or later."""
    night: bool | None = None
    process: tuple[int, str | None] | None = None
    """pid and start time of the process that made them."""
    ids: tuple[int, int] | None = None
    """From the one to the other, both included."""
    before: int | None = None
    """With a lower id: for the next page."""


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


class BackupOutcome(NamedTuple):
    """The first and the present state of a final backup."""

    host: str
    name: str
    state: str
    """One of BACKUP_STATES."""
    outcome: str | None
    """complete, suspect or failed, whatever became of it since; None where the catalogue does not know."""


@dataclass(frozen=True, slots=True)
class RunTotals:
    """All runs of hosts that ended with one outcome in some time: how many, and the bytes of new data that they brought."""

    outcome: str
    runs: int
    literal_bytes: int


@dataclass(frozen=True, slots=True)
class BalanceTotals:
    """All runs of balance on a filesystem, ever. `written`: by those of which it is known."""

    runs: int
    block_groups: int
    moved: int
    written: int


@dataclass(frozen=True, slots=True)
class ExpiryTotals:
    """All runs of `expire`, ever."""

    runs: int
    deleted: int
