"""Makes the pool and the catalogue agree: if they differ, the pool is right."""

import logging
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from pathlib import Path

from backupd.repo.backup_json import DATA, RECORD, Record, UnreadableRecord, read
from backupd.repo.catalogue_row import agrees, backup_row, row_by_notes
from backupd.repo.checksums import SUMS
from backupd.repo.final_backups import point_latest, read_if_ours, recover
from backupd.repo.hardlinks import STAGING
from backupd.repo.leftovers import clear_left_drills, remove_tree
from backupd.repo.notes_json import ALTERED_NOTE, Notes, effective_state, read_notes, write_notes
from backupd.repo.pool_files import hosts_of, names_of
from backupd.repo.seals import SealState, check_seal, effective_seal, read_seals, remembered_seal, with_altered, write_seals
from backupd.repo.verification_files import recall_verifications
from btrkeep.backup_states import FINAL, PARTIAL, Cause, CauseCode
from btrkeep.catalogue import KILLED, Backup, BackupState, Catalogue, CatalogueBusy, CatalogueUnusable, Run, StateFromNotes
from btrkeep.checkpoints import Checkpoint
from btrkeep.decisions.cause_words import cause_words
from btrkeep.errors import LockHeld, OperatorError, PoolUnusable, is_caused_by_damage, is_damage
from btrkeep.fs.openat import is_there
from btrkeep.pool.locks import take_lock
from btrkeep.pool.marker import MARKER, WORKING, Pool
from btrkeep.pool.subvolume import Subvolume, delete, describe, opened
from btrkeep.process.proc import start_time
from btrkeep.treescan import last_changes
from btrkeep.units import counted

log = logging.getLogger(__name__)

RECONCILING = "reconciling"
_KILLED, _ADDED, _DROPPED, _AMENDED, _STAGED, _DRILLS = "killed", "added", "dropped", "amended", "staged", "drills"
_ALTERED, _SEALED, _RESEALED = "altered", "sealed", "resealed"
_WORDS = {
    _KILLED: ("killed run", "found"),
    _ADDED: ("backup", "added"),
    _DROPPED: ("row", "without a backup dropped"),
    _AMENDED: ("row", "updated from notes.json"),
    _STAGED: ("unfinished subvolume", "of a killed run removed"),
    _DRILLS: ("scratch folder", "of a killed drill emptied"),
    _ALTERED: ("backup", "altered, see `backupd status`"),
    _SEALED: ("backup", "sealed for the first time, so later changes are noticed"),
    _RESEALED: ("backup", "sealed again, because seals.json was damaged or missing"),
}


def row_of(pool: Pool, host: str, name: str, notes: Notes | None = None) -> Backup | None:
    """Returns the row for the backup with that name, None if btrkeep did not make it. Raises UnreadableRecord.

    `notes`: those of the host, for callers with many of its backups: reading them for each one would take quadratic time.
    """
    path: Path = pool.host(host) / name
    final_backup = read_if_ours(path, host)
    if not final_backup:
        return None
    subvolume, record = final_backup
    if name == WORKING:
        return backup_row(pool, replace(record, name=None, state=PARTIAL), PARTIAL, subvolume.id)  # regardless of its record
    if record.state not in FINAL:
        return None
    notes = read_notes(pool.host(host)) if notes is None else notes
    if not subvolume.read_only and not notes.is_altered(name):
        return None
    return final_row(pool, host, record, subvolume, notes)


def final_row(pool: Pool, host: str, record: Record, subvolume: Subvolume, notes: Notes) -> Backup:
    """Returns the row for a final backup. The record may have an earlier name of the host."""
    record = record if record.host == host else replace(record, host=host)
    return backup_row(pool, record, effective_state(record, notes), subvolume.id, notes)


def follow_notes(pool: Pool, catalogue: Catalogue, host: str, names: Iterable[str]) -> None:
    """Writes the rows of these backups according to the host's present notes, and updates `latest`. The caller holds the host's
    lock.
    """
    notes = read_notes(pool.host(host))
    for name in names:
        if row := noted_row(pool, catalogue, host, name, notes):
            catalogue.put_backup(row)
    point_latest(pool, host)


def noted_row(pool: Pool, catalogue: Catalogue, host: str, name: str, notes: Notes) -> Backup | None:
    """Returns the row of a backup. If its record or the whole backup is damaged, returns the present row with the data of the
    notes.
    """
    try:
        return row_of(pool, host, name, notes)
    except (UnreadableRecord, OSError) as error:
        if not is_caused_by_damage(error):
            raise
    rows = catalogue.backups(host, with_detail=True)
    return next((row_by_notes(row, notes) for row in rows if row.name == name), None)


def all_rows(pool: Pool, problems: list[str], unread: list[tuple[str, str]] | None = None) -> Iterator[Backup]:
    """Yields every backup of the pool, for a rebuild. Unreadable backups are added to `problems` and skipped; host and name
    of backups that the disk cannot read are added to `unread`.
    """
    for host in hosts_of(pool):
        names: list[str] = []
        with _collect_errors(problems, host):
            names = sorted(names_of(pool, host))
        notes = None
        with suppress(UnreadableRecord):  # each of its backups is reported then
            notes = read_notes(pool.host(host))
        for name in names:
            row = None
            with _collect_errors(problems, f"{host}/{name}"), _collect_unread(unread, host, name):
                row = row_of(pool, host, name, notes)
                if row is None:
                    problems.append(f"{host}/{name}: not a backup of btrkeep (its backup.json does not name it), not changed")
            if row:
                yield row


@contextmanager
def _collect_unread(unread: list[tuple[str, str]] | None, host: str, name: str) -> Iterator[None]:
    """Adds host and name to `unread` if the disk cannot read the backup. The error is raised again."""
    try:
        yield
    except (OperatorError, OSError) as error:
        if unread is not None and is_caused_by_damage(error):
            unread.append((host, name))
        raise


@contextmanager
def _collect_errors(problems: list[str], where: str) -> Iterator[None]:
    """Adds an error of one host to `problems` and continues with the others; for a bug, the traceback is logged."""
    try:
        yield
    except (LockHeld, PoolUnusable):
        raise
    except OperatorError as error:
        problems.append(f"{where}: {error.message}")
    except OSError as error:
        problems.append(f"{where}: {error}")
    except Exception as error:
        log.exception("%s", where)
        problems.append(f"{where}: {error!r}")


@dataclass(slots=True)
class ReconcileResult:
    """The changes that were made, and the hosts that could not be reconciled."""

    counts: Counter[str] = field(default_factory=Counter)
    """Number of changes by type."""
    locked: list[str] = field(default_factory=list)
    """Hosts that differ and are in use."""
    problems: list[str] = field(default_factory=list)
    """Hosts and backups that are not changed, with the reason."""

    def __str__(self) -> str:
        done = [f"{counted(self.counts[step], noun)} {rest}" for step, (noun, rest) in _WORDS.items() if self.counts[step]]
        return ", ".join([*done, *(f"not changed: {text}" for text in self.problems)])

    @property
    def sentence(self) -> str:
        """Returns a notice of what was done."""
        return f"the catalogue was updated from the pool: {self}"

    def in_the_pool(self) -> "ReconcileResult":
        """Returns the changes to the pool alone, without those to rows."""
        return ReconcileResult(Counter({_STAGED: self.counts[_STAGED]} if self.counts[_STAGED] else {}), self.locked, self.problems)

    def __bool__(self) -> bool:
        """True if there is anything to report."""
        return bool(+self.counts or self.problems)


@Checkpoint("catalogue reconciled with the pool")
def reconcile(pool: Pool, catalogue: Catalogue, since: str) -> ReconcileResult:
    """Repairs differences that a kill or a person left, cheaply: by names, and by the hosts' notes.

    A locked host is left to the process that holds the lock. A host with a foreign entry in its folder is listed in the result and
    does not affect the others.
    """
    done = ReconcileResult()
    dead = [run for run in catalogue.unfinished_runs() if start_time(run.pid) != run.pid_started]
    killed = {run.host for run in dead}
    if dead:
        done.counts[_KILLED] = len(dead)
    names_by_host: dict[str, set[str]] = {}
    for host, name in catalogue.names():
        names_by_host.setdefault(host, set()).add(name or WORKING)
    noted: dict[str, list[StateFromNotes]] = {}
    for row in catalogue.states_from_notes():
        noted.setdefault(row.host, []).append(row)
    for host in sorted({*hosts_of(pool), *names_by_host}):
        with _collect_errors(done.problems, host):
            if host in killed or _differs(pool, host, names_by_host.get(host, set()), noted.get(host, ())):
                _reconcile_locked(pool, catalogue, host, since, done)
    for host in _staged_hosts(pool):
        with _collect_errors(done.problems, f"{MARKER}/new/{host}"):
            _drop_staged(pool, host, since, done)
    with _collect_errors(done.problems, f"{MARKER}/drill"):
        if clear_left_drills(pool, since):
            done.counts[_DRILLS] = 1
    check_seals(pool, catalogue, since, done)
    last_progress = {progress.run_id: progress.updated for progress in catalogue.progress()} if dead else {}
    for run in dead:
        _end_dead_run(catalogue, run, last_progress.get(run.id))
    return done


def _differs(pool: Pool, host: str, row_names: set[str], noted: Sequence[StateFromNotes]) -> bool:
    in_pool = names_of(pool, host, row_names)
    if in_pool != row_names or (WORKING in in_pool and _is_finished(pool, host)):
        return True
    return bool(_stale(read_notes(pool.host(host)), row_names, noted))


def _stale(notes: Notes, row_names: AbstractSet[str], noted: Sequence[StateFromNotes]) -> set[str]:
    """Returns the names of rows that disagree with the host's notes."""
    rows = {row.name: row for row in noted if row.name}
    return {name for name in row_names & (notes.backups.keys() | rows.keys()) if not agrees(rows.get(name), notes, name)}


def _reconcile_locked(pool: Pool, catalogue: Catalogue, host: str, since: str, done: ReconcileResult) -> None:
    try:
        lock = take_lock(pool.host_lock(host), RECONCILING, since)
    except LockHeld:
        done.locked.append(host)
        return
    with lock:
        done.counts.update({step: count for step, count in _reconcile_host(pool, catalogue, host).items() if count})


def check_seals(pool: Pool, catalogue: Catalogue, since: str, done: ReconcileResult | None = None) -> ReconcileResult:
    """Compares every final backup with its seal, by one pass through the root tree. Opens only backups that differ."""
    done = done or ReconcileResult()
    with _collect_errors(done.problems, "seals of backups"):
        with opened(pool.path) as fd:
            changes = last_changes(fd)
        doubtful: dict[str, dict[str, BackupState]] = {}
        for host, rows in groupby(catalogue.states(), key=lambda row: row.host):
            sealed: AbstractSet[str] = read_seals(pool.host(host)).keys()
            for row in rows:  # a row can have a deleted subvolume: another copy was moved there manually
                is_same = row.subvolume_id in changes and changes[row.subvolume_id] == row.sealed
                if row.name and not (is_same and row.name in sealed):
                    doubtful.setdefault(host, {})[row.name] = row
        for host, names in doubtful.items():
            with _collect_errors(done.problems, host), suppress(LockHeld), take_lock(pool.host_lock(host), RECONCILING, since):
                done.counts.update(_check_seals_of(pool, catalogue, host, names, since))
    return done


def _check_seals_of(pool: Pool, catalogue: Catalogue, host: str, states: Mapping[str, BackupState], since: str) -> Counter[str]:
    """Seals backups of one host, or marks them as altered, under its lock. `states`: by name, from their rows."""
    folder, counts = pool.host(host), Counter[str]()
    notes = notes_before = read_notes(folder)
    seals = seals_before = read_seals(folder)
    changed, rows = set[str](), list[tuple[str, str, int]]()
    for name in sorted(states):
        try:
            subvolume = describe(folder / name)
            if subvolume is None:
                continue
            is_same = subvolume.id == states[name].subvolume_id  # otherwise another subvolume is there now; only ours get a seal
            if not is_same and not _add(pool, catalogue, host, name, notes):
                continue
            if is_same and name not in seals:
                remembered = remembered_seal(folder / name, subvolume, states[name].sealed, notes)
                if remembered and not effective_seal(subvolume, seals, name):
                    seals = {**seals, name: remembered}
                    counts[_RESEALED] += 1
            check = check_seal(folder / name, subvolume, seals, name)
        except OSError as error:
            log.warning("%s %s: not compared with its seal: %s", host, name, error)
            continue
        if check.state is SealState.ALTERED:
            if not notes.is_altered(name):
                counts[_ALTERED] += 1
                notes = with_altered(notes, name, subvolume, since, check.seal)
                changed.add(name)
            continue
        note = notes.note(name, ALTERED_NOTE)
        if note and note.get("subvolume") != subvolume.id:  # the note is about the copy before it was fetched again
            notes = notes.without(name, ALTERED_NOTE)
            changed.add(name)
        counts[_SEALED] += check.state is SealState.NEW
        seals = {**seals, name: check.seal}
        if notes.is_original(name):
            rows.append((host, name, check.seal.ctransid))
    if seals != seals_before:
        in_pool = names_of(pool, host)
        write_seals(folder, {name: seal for name, seal in seals.items() if name in in_pool})
    if notes != notes_before:
        write_notes(folder, notes)
    for name in changed:
        _add(pool, catalogue, host, name, notes)
    catalogue.set_seals(rows)
    if changed:
        point_latest(pool, host)
    return counts


def _staged_hosts(pool: Pool) -> list[str]:
    """Returns the hosts with a possible unfinished subvolume of a killed run."""
    try:
        return sorted(entry.name for entry in os.scandir(pool.path / MARKER / "new") if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []


def _drop_staged(pool: Pool, host: str, since: str, done: ReconcileResult) -> None:
    """Deletes the subvolume that a killed run of the host had created but not yet named `.working` or given a record.

    Runs hold the host's lock while they create one. Anything that does not look like the subvolume of a run is not touched.
    """
    path = pool.staged(host)
    if describe(path) is None:
        return
    try:
        lock = take_lock(pool.host_lock(host), RECONCILING, since)
    except LockHeld:
        return
    with lock:
        subvolume = describe(path)
        if subvolume and not subvolume.read_only and _is_of_run(path, host, read_notes(pool.host(host)).was):
            delete(path.parent, subvolume.id)
            done.counts[_STAGED] += 1


def _is_of_run(path: Path, host: str, was: Sequence[str]) -> bool:
    """Returns True if it is empty, or a snapshot of one of the host's backups, of its present or a former (`was`) name."""
    if not {entry.name for entry in os.scandir(path)} <= {RECORD, RECORD + ".new", SUMS, DATA, os.fsdecode(STAGING)}:
        return False
    try:
        record = read(path)
    except UnreadableRecord:
        return True
    return not is_there(path / DATA) if record is None else record.host in (host, *was)


def _is_finished(pool: Pool, host: str) -> bool:
    subvolume = describe(pool.working(host))
    return subvolume is not None and subvolume.read_only


def _reconcile_host(pool: Pool, catalogue: Catalogue, host: str) -> dict[str, int]:
    """Repairs one host under its lock, after examining it again, and returns counts of the changes.

    Writes the row of a `.working` again if no run is working on it.
    """
    recover(pool, host)
    in_pool, rows = names_of(pool, host), {row.name or WORKING: row for row in catalogue.backups(host)}
    for name in rows.keys() - in_pool:
        catalogue.drop_backup(host, None if name == WORKING else name)
    if WORKING in rows.keys() & in_pool:
        _add(pool, catalogue, host, WORKING)
    noted = [
        StateFromNotes(host, row.name, row.state, row.outcome, row.held_until, row.held_why, row.expired)
        for row in rows.values()
        if row.name
    ]
    notes = read_notes(pool.host(host))
    stale = _stale(notes, rows.keys() & in_pool, noted)
    point_latest(pool, host)
    added = [name for name in in_pool - rows.keys() if _add(pool, catalogue, host, name, notes)]
    if added:  # a base with unrecorded damage would pass it on to the next backup
        recall_verifications(pool, catalogue, host, added)
    return {
        _ADDED: len(added),
        _DROPPED: len(rows.keys() - in_pool),
        _AMENDED: sum(_add(pool, catalogue, host, name, notes) for name in stale),
    }


def _add(pool: Pool, catalogue: Catalogue, host: str, name: str, notes: Notes | None = None) -> bool:
    try:
        row = row_of(pool, host, name, notes)
    except OperatorError:
        return False
    except OSError as error:  # of this backup; the host's others are still entered
        if not is_damage(error):
            raise
        return False
    if row:
        catalogue.put_backup(row)
    return row is not None


def point_all(pool: Pool, since: str) -> None:
    """Updates the `latest` of every host that is not in use."""
    for host in hosts_of(pool):
        with suppress(LockHeld, PoolUnusable), take_lock(pool.host_lock(host), RECONCILING, since):
            point_latest(pool, host)


def _end_dead_run(catalogue: Catalogue, run: Run, last_progress: datetime | None) -> None:
    """Ends the row of a run whose process was killed; if its backup was already final, with the result of that backup.

    `last_progress`: the time of its last progress.
    """
    made = next((backup for backup in catalogue.backups(run.host) if backup.name and backup.started == run.started), None)
    if made is None:
        cause, meaning = Cause(CauseCode.KILLED), KILLED if run.exit_code is None else run.meaning
        ended = {"outcome": "failed", "meaning": meaning, "error": cause_words(cause), "cause": cause}
        catalogue.finish_run(run.id, finished=last_progress or run.started, **ended)
        return
    outcome = made.state if made.state in FINAL else "failed"
    ended = {"outcome": outcome, "backup": made.name, "error": made.error, "cause": made.cause}
    catalogue.finish_run(run.id, finished=made.finished or run.started, **ended)


_MEMORY = Path("/dev/shm")  # noqa: S108  each makes a folder of its own there, for root alone
_STAND_IN = "btrkeep-catalogue-"  # followed by the pid and start time of its owner, and a unique part


@contextmanager
def open_catalogue_or_memory(state: Path, pool_id: str) -> Iterator[tuple[Catalogue, OperatorError | None]]:
    """Yields the catalogue in `state`; if it cannot be read or written, an empty one in memory, and the reason.

    Every run starts with reconciling, which fills an empty one. Raises OperatorError for a catalogue of a newer version.
    """
    clear_dead_stand_ins()
    try:
        catalogue = Catalogue.open(state)
    except (CatalogueUnusable, CatalogueBusy) as error:
        problem: OperatorError | None = error
    else:
        with catalogue:
            problem = _why_unwritable(catalogue, pool_id)
            if problem is None:
                yield catalogue, None
                return
    with stand_in(pool_id) as catalogue:
        yield catalogue, problem


def _why_unwritable(catalogue: Catalogue, pool_id: str) -> OperatorError | None:
    """Returns why the catalogue cannot be written, by writing an existing value again."""
    try:
        if catalogue.pool_id() in (None, pool_id):
            catalogue.set_pool_id(pool_id)
    except (CatalogueUnusable, CatalogueBusy) as error:
        return error
    return None


@contextmanager
def stand_in(pool_id: str) -> Iterator[Catalogue]:
    """Yields an empty catalogue in memory."""
    from tempfile import TemporaryDirectory  # few commands need it

    name = f"{_STAND_IN}{os.getpid()}-{start_time(os.getpid())}-"
    with TemporaryDirectory(prefix=name, dir=_memory()) as folder, Catalogue.open(Path(folder), copies=False) as catalogue:
        catalogue.set_pool_id(pool_id)
        yield catalogue


def _memory() -> Path:
    from tempfile import gettempdir

    return _MEMORY if _MEMORY.is_dir() else Path(gettempdir())


def clear_dead_stand_ins() -> None:
    """Deletes what killed runs left in memory. A file with such a name that another user made is not touched."""
    for folder in _memory().glob(f"{_STAND_IN}*"):
        pid, _, rest = folder.name.removeprefix(_STAND_IN).partition("-")
        with suppress(OSError):
            status = folder.lstat()
            is_ours = status.st_uid == os.geteuid() and stat.S_ISDIR(status.st_mode)
            if is_ours and pid.isdecimal() and start_time(int(pid)) != rest.partition("-")[0]:
                remove_tree(folder)
