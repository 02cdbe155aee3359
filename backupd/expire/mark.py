"""Marks backups that no rule keeps any longer, and removes the marks of kept backups, the notes of deleted ones, and forgotten
hosts.

The notes are written and synced first, then the rows. Hosts are locked in batches, so that two syncs of the filesystem are enough
for a batch, instead of two for each host, and no other process changes their notes in between. A file that is renamed before its
data is on disk may be empty after a power cut; then it would be unknown which backups are held. So all notes are written beside the
old ones, synced by a call that reports lost data, renamed, and synced again.

The folder of a forgotten host is first moved out of the folder of the hosts, in one step, and then emptied: if this is killed in
between, the host no longer exists, and the next run removes the rest.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from backupd.expire.expiry_context import ExpiryContext
from backupd.expire.host_backups import forgotten_at, gone_names, policy_of
from backupd.expire.queue import CleanerQueue
from backupd.repo.checksums import CHECKSUMS, CHECKSUMS_LOG
from backupd.repo.final_backups import LATEST, delete_working, point_latest, unfinished
from backupd.repo.leftovers import discard_received
from backupd.repo.notes_json import ASKED, NOTES, RULES, Notes, read_notes, text_of
from backupd.repo.pool_files import COMPARED, DAMAGED, VERIFIED, names_of
from backupd.repo.seals import SEALS
from btrkeep.backup_states import EXPIRED
from btrkeep.checkpoints import Checkpoint
from btrkeep.decisions.expiry_plan import ExpiryStep, HostPlan
from btrkeep.decisions.retention_words import reasons_words
from btrkeep.errors import PoolUnusable
from btrkeep.fs.openat import is_there
from btrkeep.pool.marker import MARKER, WORKING, Pool
from btrkeep.pool.reserve import with_reserve
from btrkeep.pool.syncfs import Syncfs, syncing
from btrkeep.units import format_time, printable


def write_many(pool: Path, notes: Mapping[Path, Notes], *, renamed_for_good: bool = True) -> None:
    """Replaces the notes in each folder; the hosts are locked. When this returns, all notes are on disk. Without `renamed_for_good`
    the old ones may return after a power cut, but never anything else.

    On a full pool the notes use the reserve. Raises OSError; PoolUnusable if the disk did not store the new notes, and then no old
    notes were replaced.
    """
    if not notes:
        return

    def stage() -> None:
        for folder, host_notes in notes.items():
            _stage(folder, host_notes)

    with syncing(pool) as disk:
        with_reserve(pool, stage)
        _sync(disk, pool)
        for folder in notes:
            with Checkpoint("notes.json replaced"):
                _staged(folder).replace(folder / NOTES)
        if renamed_for_good:
            _sync(disk, pool)


def _sync(disk: Syncfs, pool: Path) -> None:
    try:
        disk.sync()
    except OSError as error:
        raise PoolUnusable(
            f"{pool}: a write to the disk failed ({error.strerror})",
            "check the kernel's messages (dmesg) and `btrfs device stats`",
        ) from error


def _staged(folder: Path) -> Path:
    return folder / (NOTES + ".new")


@Checkpoint("notes.json staged")
def _stage(folder: Path, notes: Notes) -> None:
    fd = os.open(_staged(folder), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text_of(notes))


_AT_ONCE = 100  # hosts locked together, for 0.1 to 0.2 s; below any user's limit of open files

Row = tuple[str, str | None, str, datetime | None]
T = TypeVar("T")


@dataclass(slots=True)
class _Batch:
    notes: dict[Path, Notes] = field(default_factory=dict)
    """The new notes, by the host's folder."""
    rows: list[Row] = field(default_factory=list)
    """The rows to write."""
    marked: int = 0
    """Number of backups that are marked."""
    revived: list[str] = field(default_factory=list)
    """Backups that are kept again."""


def mark(context: ExpiryContext, plans: Sequence[HostPlan]) -> None:
    """Applies the marks and revivals of all plans. Raises PoolUnusable."""
    for host_plans in _batches([plan for plan in plans if plan.changes_notes]):
        if context.cancellation:
            return
        batch = _Batch()
        with ExitStack() as held:
            for plan in host_plans:
                if context.locked(plan.host, held):
                    with context.report_errors_of(plan.host):
                        _decide(context, plan, batch)
            write_many(context.pool.path, batch.notes)
            _write_rows(context, batch.rows)
            for folder in batch.notes:
                point_latest(context.pool, folder.name)
        context.summary.marked += batch.marked
        context.summary.revived += len(batch.revived)
        for text in batch.revived:
            context.sinks.notice(text)


def _write_rows(context: ExpiryContext, rows: Sequence[Row]) -> None:
    context.rows.write(lambda catalogue: catalogue.set_states(rows))


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    source = iter(items)
    while batch := list(islice(source, _AT_ONCE)):
        yield batch


def _decide(context: ExpiryContext, plan: HostPlan, batch: _Batch) -> None:
    on_pool, todo = context.recheck_under_lock(plan)
    notes = on_pool.notes
    for step in todo.mark:
        notes = notes.with_note(step.name, EXPIRED, _expired(on_pool.notes.note(step.name, EXPIRED), step, context.now))
        batch.rows.append((plan.host, step.name, EXPIRED, context.now))
    for step in todo.revive:
        notes = notes.without(step.name, EXPIRED)
        state = next(candidate.state for candidate in on_pool.facts.candidates if candidate.name == step.name)
        batch.rows.append((plan.host, step.name, state, None))
        batch.revived.append(f"{plan.host} {step.name} is kept again: {reasons_words(step.reasons)}")
    batch.rows += [(plan.host, name, state, on_pool.notes.expired_at(name)) for name, state in todo.amend]
    batch.marked += len(todo.mark)
    if notes is not on_pool.notes:
        batch.notes[context.pool.host(plan.host)] = notes


def _expired(before: Mapping[str, Any] | None, step: ExpiryStep, now: datetime) -> Mapping[str, Any]:
    """Returns the note of a backup that is marked now. An operator's request stays unchanged, except for a wrong time."""
    if before and before.get(ASKED):
        return {**before, "at": format_time(now)}
    return {"at": format_time(now), "why": reasons_words(step.reasons), RULES: [reason.code for reason in step.reasons]}


def drop_stale_notes(context: ExpiryContext, hosts: Sequence[str]) -> None:
    """Removes the notes of deleted backups. Nothing depends on them, so a locked host is left to the next run."""
    for batch in _batches(hosts):
        left: dict[Path, Notes] = {}
        with ExitStack() as held:
            for host in batch:
                folder = context.pool.host(host)
                with context.report_errors_of(host):
                    if folder.is_dir() and context.locked(host, held):
                        _drop_stale(folder, left, format_time(context.now))
            write_many(context.pool.path, left, renamed_for_good=False)


def _drop_stale(folder: Path, left: dict[Path, Notes], now: str) -> None:
    notes = read_notes(folder)
    if gone := gone_names(folder, notes):
        for name in gone:
            notes = notes.after_deletion(name, now)
        left[folder] = notes


_FILES = {name + end for name in (NOTES, CHECKSUMS, CHECKSUMS_LOG, VERIFIED, DAMAGED, COMPARED, SEALS) for end in ("", ".new")}
_LINKS = {LATEST, f".{LATEST}.new"}


def gone_folder(pool: Pool) -> Path:
    """Returns the folder in which the folders of forgotten hosts are emptied."""
    return pool.path / MARKER / "gone"


def remove_hosts(context: ExpiryContext, queue: CleanerQueue, hosts: list[str]) -> None:
    """Removes the folders of forgotten hosts without backups. Raises PoolUnusable."""
    for host in hosts:
        if context.cancellation:
            return
        if host in context.config.excluded:
            continue
        with ExitStack() as held, context.report_errors_of(host):
            if context.locked(host, held):
                _remove(context, queue, host)
    empty_gone(context.pool)


def _remove(context: ExpiryContext, queue: CleanerQueue, host: str) -> None:
    folder = context.pool.host(host)
    notes = read_notes(folder)
    given_up = forgotten_at(notes)
    if given_up is None:
        return
    is_over = given_up + timedelta(seconds=policy_of(context.config, host, notes).grace) <= context.now and not context.clock_waits
    put_off = set() if is_over and _delete_working(queue, folder, names_of(context.pool, host)) else {WORKING}
    if is_over:
        discard_received(context.pool, host)
    queue.commit()  # the deletions are on disk before the notes that permit them are deleted
    if others := set(_others(folder)):
        strangers = sorted(others - put_off)
        if strangers and not _waits(context, host):
            context.problem(
                f"{host} was forgotten, but {folder} contains {printable(strangers[0])}, which does not belong to "
                "btrkeep: move it away"
            )
        return
    gone_folder(context.pool).mkdir(mode=0o700, exist_ok=True)
    with Checkpoint("folder of the forgotten host moved away"):
        folder.rename(_free(gone_folder(context.pool), host))
    context.rows.write(lambda catalogue: catalogue.drop_host(host))
    context.summary.hosts_gone.append(host)
    context.sinks.notice(f"{host}: forgotten, and all its backups are deleted")


def _delete_working(queue: CleanerQueue, folder: Path, names: set[str]) -> bool:
    """Deletes an unfinished backup, after all others; returns False if the queue is full. The caller holds the lock."""
    if names - {WORKING} or queue.full():
        return False
    if subvolume := unfinished(folder / WORKING, folder.name):
        delete_working(folder / WORKING, subvolume)
    return True


def _others(folder: Path) -> Iterator[str]:
    """Yields the entries in the folder that must not be removed with it."""
    for entry in os.scandir(folder):
        is_ours = entry.is_symlink() if entry.name in _LINKS else entry.name in _FILES and entry.is_file(follow_symlinks=False)
        if not is_ours:
            yield entry.name


def _waits(context: ExpiryContext, host: str) -> bool:
    """Returns whether backups of the host are still to be deleted, in this run or a later one."""
    return any(row.name for row in context.catalogue.backups(host))


def _free(parent: Path, host: str) -> Path:
    number = 0
    while is_there(parent / f"{host}.{number}"):
        number += 1
    return parent / f"{host}.{number}"


def empty_gone(pool: Pool) -> None:
    """Removes folders that were moved out of the folder of the hosts, except foreign files in them."""
    with suppress(FileNotFoundError):
        for entry in list(os.scandir(gone_folder(pool))):
            if entry.is_dir(follow_symlinks=False):
                _empty(Path(entry.path))


@Checkpoint("folder of the forgotten host removed")
def _empty(folder: Path) -> None:
    if any(_others(folder)):
        return
    for entry in list(os.scandir(folder)):
        Path(entry.path).unlink()
    folder.rmdir()
