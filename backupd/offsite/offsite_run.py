"""Sends the newest complete backup of each host to a restic repository: one after the other, because restic reads with many
threads.

It waits for a night, an expiry and a balance, and locks the backup that it reads, so that no expiry deletes it.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

from backupd.expire.trust import clock_doubt
from backupd.files.tree import require_nothing_mounted
from backupd.offsite.repository import (
    MOST_AT_ONCE,
    KnownRepository,
    machine_of,
    note_machines,
    restic_time,
    snapshots,
    tag_incomplete,
    tags_of,
)
from backupd.offsite.restic import INCOMPLETE, SHOWN, Restic, ResticFailed, limit_words
from backupd.replicate.outcome import HostFailed
from backupd.repo.final_backups import bases, find_base
from backupd.repo.notes_json import read_notes
from backupd.repo.pool_files import hosts_of
from backupd.repo.read_lock import lock_for_reading
from btrkeep.catalogue import Catalogue
from btrkeep.clock import elapsed
from btrkeep.config import Config
from btrkeep.config.config_model import OffsiteSettings
from btrkeep.decisions.offsite import OffsiteSnapshot, Removal, given_up, tagged_incomplete, to_remove, to_send
from btrkeep.decisions.safety_limits import ClockAhead, ClockBehind, Forced
from btrkeep.errors import ConfigError, LockHeld, OperatorError
from btrkeep.pool.locks import at_work
from btrkeep.pool.marker import Pool
from btrkeep.process.progress import Cancellation, Cancelled, Notice, ProgressSinks, Waiting
from btrkeep.units import format_duration, format_time

_PAUSE = 1.0
_UNREAD = "could not read {names} from the disk, so an older backup counts as the newest: check dmesg and `backupd damaged`"
_GIVEN_UP = (
    "restic could not read all of {name} in any attempt: check dmesg and run `backupd scrub`. The next backup is sent instead; "
    "this one is sent again only if {host} is named"
)


class IncompleteSnapshot(ResticFailed):
    """A snapshot was made without some of the backup's files; it is recorded as incomplete."""


@dataclass(frozen=True, slots=True)
class OffsitePlan:
    """What to send."""

    sendings: tuple[tuple[str, str], ...]
    """Host and backup, by name."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A backup that is now in the repository."""

    host: str
    """The host's name."""
    name: str
    """The backup's name."""
    files: int
    """Number of files."""
    bytes: int
    """Bytes that were added to the repository."""
    seconds: float
    """How long it took."""


@dataclass(frozen=True, slots=True)
class OffsiteProgress:
    """The progress of the backup that is being sent."""

    host: str
    """The host's name."""
    share: float
    """The part of the data that restic has read so far, 0 to 1."""
    bytes: int
    """Bytes that it has read."""


@dataclass(slots=True)
class OffsiteSummary:
    """The result."""

    offsite: str
    """The repository's name."""
    hosts: int = 0
    """Number of hosts that should have a backup in the repository."""
    planned: int = 0
    """Number of backups to send."""
    sent: list[Sent] = field(default_factory=list)
    """The backups that were sent."""
    failed: list[HostFailed] = field(default_factory=list)
    """Hosts whose backup could not be sent."""
    removed: int = 0
    """Number of snapshots that were removed."""
    removal: Removal | None = None
    """The safety limits that prevented removals; None: none."""
    remove_error: OperatorError | None = None
    """The reason why removing failed; None: it did not fail."""
    doubt: ClockBehind | ClockAhead | None = None
    """The reason why the clock must be wrong, so that nothing was removed; None: it may be right."""
    cancelled: bool = False
    """True if a signal ended it."""
    out_of_time: bool = False
    """True if its time limit ended it."""

    @property
    def bytes(self) -> int:
        """Returns the bytes that were added for all backups."""
        return sum(sent.bytes for sent in self.sent)


OffsiteEvent = OffsitePlan | Sent | OffsiteProgress | HostFailed | Notice | Waiting


@dataclass(slots=True)
class _Watch:
    """Follows restic's output for one host. While the repository accepts nothing, restic repeats the same line every second."""

    run: "OffsiteRun"
    """The run."""
    host: str
    """The host's name."""
    _since: float = field(default_factory=time.monotonic)
    _last_progress: tuple[Any, ...] = ()

    def tell(self, line: dict[str, Any]) -> None:
        """Receives each line of restic's output."""
        progress = tuple(line.get(key) for key in ("message_type", "total_bytes", "total_files", "bytes_done", "files_done"))
        if progress != self._last_progress:
            self._last_progress, self._since = progress, time.monotonic()
        if line.get("message_type") == "status":
            self.run.sinks(OffsiteProgress(self.host, float(line.get("percent_done", 0.0)), int(line.get("bytes_done", 0))))

    def poll(self) -> None:
        """Raises Cancelled; and ResticFailed if there was no progress for too long."""
        self.run.cancellation.raise_if_cancelled()
        stall = self.run.settings.stall
        if time.monotonic() - self._since > stall:
            raise ResticFailed(
                f"restic has made no progress for {format_duration(stall)}", "check that the repository accepts data"
            )


@dataclass(slots=True)
class OffsiteRun:
    """A run that sends backups to one repository."""

    config: Config
    """The configuration."""
    pool: Pool
    """The pool."""
    catalogue: Catalogue
    """The catalogue."""
    settings: OffsiteSettings
    """The repository's settings."""
    restic: Restic
    """The repository."""
    now: datetime
    """When it started."""
    sinks: ProgressSinks[OffsiteEvent]
    """The receivers of its events."""
    seconds_left: float | None = None
    """No backup starts after this many seconds; None: no limit."""
    cancellation: Cancellation = field(default_factory=Cancellation)
    """Ends it early."""
    patience: float = 600.0
    """Seconds to wait in all for other commands that hold the lock of a host of which nothing was sent yet."""
    _patient_until: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.restic = replace(self.restic, poll=self.cancellation.raise_if_cancelled)

    def plan(self, named: Sequence[str]) -> tuple[OffsiteSummary, list[OffsiteSnapshot], list[tuple[str, str]]]:
        """Reads the repository and returns its contents and the backups to send; hosts whose backup failed too often count as
        failed. Raises ResticFailed, Cancelled.
        """
        in_repository = snapshots(self.restic, self.pool)
        newest, unread, unknown = {}, dict[str, list[str]](), list[HostFailed]()
        for host in hosts_of(self.pool):
            if any(fnmatchcase(host, pattern) for pattern in self.settings.hosts) and (not named or host in named):
                try:
                    notes, lost = read_notes(self.pool.host(host)), unread.setdefault(host, [])
                    base = next(bases(self.pool, host, self.now, notes, lost), None)
                except OperatorError as error:
                    unknown.append(HostFailed(host, error.message))
                    continue
                if base:
                    newest[host] = base.path.name
        incomplete = KnownRepository(self.catalogue, self.settings.name).incomplete(in_repository)
        sendings = to_send(newest, in_repository, incomplete)
        hopeless = set() if named else given_up(sendings, in_repository, incomplete)
        sendings = [sending for sending in sendings if sending not in hopeless]
        summary = OffsiteSummary(self.settings.name, len(newest), len(sendings))
        summary.failed = [HostFailed(host, _GIVEN_UP.format(name=name, host=host)) for host, name in sorted(hopeless)]
        summary.failed += unknown
        summary.failed += [HostFailed(host, _UNREAD.format(names=", ".join(lost))) for host, lost in unread.items() if lost]
        return summary, in_repository, sendings

    def send(self, summary: OffsiteSummary, in_repository: list[OffsiteSnapshot], sendings: Sequence[tuple[str, str]]) -> None:
        """Sends the backups, and records the contents of the repository in the catalogue. If a host fails, it continues with the
        others.
        """
        self.sinks(OffsitePlan(tuple(sendings)))
        known_repository = KnownRepository(self.catalogue, self.settings.name)
        incomplete, unheard = set(known_repository.incomplete(in_repository)), set[tuple[str, str]]()
        known_repository.note(in_repository, incomplete)
        end = elapsed() + self.seconds_left if self.seconds_left is not None else None
        for host, name in self._in_turn(sendings):
            try:
                self._wait()
                if end is not None and elapsed() > end:
                    summary.out_of_time = True
                    return
                unheard.add((host, name))  # until it succeeds, a snapshot that restic made does not count
                known_repository.note(in_repository, incomplete, unheard)
                self._send(host, name, summary, in_repository, incomplete)
                unheard.discard((host, name))
            except IncompleteSnapshot as error:
                unheard.discard((host, name))
                self._fail(summary, host, f"{error.message}; {error.hint}")
            except Cancelled:
                summary.cancelled = True
                return
            except OperatorError as error:
                self._fail(summary, host, f"{error.message}; {error.hint}" if error.hint else error.message)
            except OSError as error:
                self._fail(summary, host, error.strerror or str(error))
            known_repository.note(in_repository, incomplete, unheard)

    def _in_turn(self, sendings: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        """Yields the backups; last those of hosts whose id cannot be recorded yet, because another command uses them."""
        later = []
        for sending in sendings:
            if self._is_busy(sending[0]):
                later.append(sending)
            else:
                yield sending
        yield from later

    def _is_busy(self, host: str) -> bool:
        try:
            machine_of(self.pool, host, format_time(self.now))
        except LockHeld:
            return True
        except OperatorError:  # sending the backup reports the error
            return False
        return False

    def _machine(self, host: str) -> str:
        """Returns the id of the host, which cannot be recorded while another command uses the host. Raises LockHeld,
        UnreadableRecord, Cancelled.
        """
        while True:
            try:
                return machine_of(self.pool, host, format_time(self.now))
            except LockHeld as error:
                self._patient_until = self._patient_until or time.monotonic() + self.patience
                if time.monotonic() > self._patient_until:
                    raise
                self.sinks(Waiting(error.message))
            self.cancellation.sleep(_PAUSE)
            self.cancellation.raise_if_cancelled()

    def _fail(self, summary: OffsiteSummary, host: str, why: str) -> None:
        failed = HostFailed(host, why)
        summary.failed.append(failed)
        self.sinks(failed)

    def _send(
        self, host: str, name: str, summary: OffsiteSummary, in_repository: list[OffsiteSnapshot], incomplete: set[str]
    ) -> None:
        path, machine = self.pool.host(host) / name, self._machine(host)
        base = find_base(self.pool, host, self.now)
        if base is None or base.path != path:
            raise OperatorError(f"{name} is no longer the newest complete backup", "the next run sends the newest")
        require_nothing_mounted(path)
        begun = time.monotonic()
        words = ("--host", host, "--time", restic_time(base.record.started), *tags_of(self.pool, name, machine))
        words += (*_parent_words(in_repository, host, machine), *limit_words(self.settings))
        with lock_for_reading(path):
            watch = _Watch(self, host)
            answer = self.restic.ask("backup", *words, str(SHOWN), shown=path, poll=watch.poll, tell=watch.tell)
        answer_summary = next((line for line in reversed(answer.lines) if isinstance(line, dict) and "snapshot_id" in line), None)
        if answer_summary is None:
            raise ResticFailed("restic ended without a snapshot")
        if answer.status == INCOMPLETE:
            in_repository[:] = snapshots(self.restic, self.pool)  # restic before 0.15 prints only the first letters of an id
            ids = [snapshot.id for snapshot in in_repository if snapshot.id.startswith(answer_summary["snapshot_id"])]
            incomplete.update(ids)  # first, because setting the tag may fail or be interrupted
            KnownRepository(self.catalogue, self.settings.name).note(in_repository, incomplete, {(host, name)})
            try:
                tag_incomplete(self.restic, ids, watch.poll)
                in_repository[:] = snapshots(self.restic, self.pool)
            except ResticFailed as error:
                self.sinks.notice(f"{host}@{name}: could not mark its snapshot as incomplete in the repository: {error.message}")
            incomplete.update(tagged_incomplete(in_repository))
            raise IncompleteSnapshot(
                "restic could not read all of the backup",
                "check dmesg and run `backupd scrub`: the snapshot in the repository does not count",
            )
        in_repository.append(OffsiteSnapshot(answer_summary["snapshot_id"], host, name, base.record.started, machine))
        seconds = time.monotonic() - begun
        sent = Sent(host, name, answer_summary["total_files_processed"], answer_summary["data_added"], seconds)
        summary.sent.append(sent)
        self.sinks(sent)

    def remove(self, summary: OffsiteSummary, forced: Forced) -> None:
        """Removes the snapshots that the repository's own retention does not keep; nothing without one. Raises ResticFailed, and
        ConfigError if a file of the configuration could not be read.

        `restic prune` frees the space, and rewrites the rest: the administrator chooses its time.
        """
        if self.settings.retention is None or summary.cancelled:
            return
        if self.config.unread:  # it may have the zone of the retention
            raise ConfigError(self.config.unread, "nothing is removed until that file can be read: correct it, or move it away")
        summary.doubt = None if forced.clock else clock_doubt(self.catalogue, self.now, rehearsal=self.pool.rehearsal)
        if summary.doubt:
            return
        known_repository = KnownRepository(self.catalogue, self.settings.name)
        poll, going = self.cancellation.raise_if_cancelled, list[str]()
        try:
            in_repository = snapshots(self.restic, self.pool)
            if note_machines(self.restic, in_repository, known_repository.incomplete(in_repository), poll):
                in_repository = snapshots(self.restic, self.pool)
            summary.removal = self.removal(in_repository, forced)
            going = [snapshot.id for snapshot in summary.removal.going]
            for first in range(0, len(going), MOST_AT_ONCE):
                ids = going[first : first + MOST_AT_ONCE]
                self.restic.ask("forget", *ids, poll=poll)
                summary.removed += len(ids)
        except Cancelled:
            summary.cancelled = True
            return
        known_repository.note(
            [snapshot for snapshot in in_repository if snapshot.id not in going], known_repository.incomplete(in_repository)
        )

    def removal(self, in_repository: Sequence[OffsiteSnapshot], forced: Forced) -> Removal:
        """Returns the snapshots that would be removed. Needs a retention."""
        assert self.settings.retention is not None
        incomplete = KnownRepository(self.catalogue, self.settings.name).incomplete(in_repository)
        return to_remove(in_repository, incomplete, self.settings.retention, self.config.pool.zone, self.now, forced)

    def _wait(self) -> None:
        """Waits for a night, an expiry and a balance."""
        while who := at_work(self.pool.locks):
            self.cancellation.raise_if_cancelled()
            self.sinks(Waiting(who))
            self.cancellation.sleep(_PAUSE)
        self.cancellation.raise_if_cancelled()


def _parent_words(in_repository: Sequence[OffsiteSnapshot], host: str, machine: str) -> tuple[str, ...]:
    """Returns the options that choose the snapshot to compare with: the newest one of this machine, whatever its name was then.

    By default restic takes the newest snapshot with the same name: it would not read files that look the same on another machine.
    """
    own = [
        snapshot
        for snapshot in in_repository
        if snapshot.host == host and not snapshot.former and snapshot.machine in (machine, "")
    ]
    return ("--parent", max(own, key=lambda snapshot: snapshot.name).id) if own else ("--force",)
