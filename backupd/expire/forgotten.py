"""Removes what is left of a forgotten host when its last backup is deleted: its notes, `latest`, its folder, its rows.

The folder is renamed out of the hosts first, in one step, and emptied there: if this is killed in between, the host is gone all
the same, and the next run removes the rest.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path

from backupd.expire.context import ExpiryContext
from backupd.expire.look import forgotten_at, policy_of
from backupd.expire.queue import CleanerQueue
from backupd.repo.checksums import CHECKSUMS, CHECKSUMS_LOG
from backupd.repo.compared import COMPARED
from backupd.repo.damages import DAMAGED
from backupd.repo.final_backups import LATEST, delete_working, unfinished
from backupd.repo.listing import names_of
from backupd.repo.notes_json import NOTES, read_notes
from backupd.repo.received import discard_received
from backupd.repo.seals import SEALS
from backupd.repo.verified import VERIFIED
from btrkeep.checkpoints import Checkpoint
from btrkeep.fs.openat import is_there
from btrkeep.pool.marker import MARKER, WORKING, Pool
from btrkeep.units import printable

_FILES = {name + end for name in (NOTES, CHECKSUMS, CHECKSUMS_LOG, VERIFIED, DAMAGED, COMPARED, SEALS) for end in ("", ".new")}
_LINKS = {LATEST, f".{LATEST}.new"}


def gone_folder(pool: Pool) -> Path:
    """Returns the folder in which those of forgotten hosts are emptied."""
    return pool.path / MARKER / "gone"


def remove_hosts(context: ExpiryContext, queue: CleanerQueue, hosts: list[str]) -> None:
    """Removes those of the hosts that have no backup left. Raises PoolUnusable."""
    for host in hosts:
        if context.cancellation:
            return
        if host in context.config.excluded:
            continue
        with ExitStack() as held, context.spared(host):
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
    queue.commit()  # the notes say that the backups may go; they go last of all
    if others := set(_others(folder)):
        strangers = sorted(others - put_off)
        if strangers and not _waits(context, host):
            context.problem(f"{host} was given up, but {folder} holds {printable(strangers[0])}, which is not ours: move it away")
        return
    gone_folder(context.pool).mkdir(mode=0o700, exist_ok=True)
    with Checkpoint("folder of the forgotten host moved away"):
        folder.rename(_free(gone_folder(context.pool), host))
    context.rows.write(lambda catalogue: catalogue.drop_host(host))
    context.summary.hosts_gone.append(host)
    context.sinks.notice(f"{host}: given up, and nothing is left of it")


def _delete_working(queue: CleanerQueue, folder: Path, names: set[str]) -> bool:
    """Deletes an unfinished backup of ours, last of all; returns False if its turn has not come. Whoever calls has the lock."""
    if names - {WORKING} or queue.full():
        return False
    if found := unfinished(folder / WORKING, folder.name):
        delete_working(folder / WORKING, found)
    return True


def _others(folder: Path) -> Iterator[str]:
    """Yields what lies in the folder and must not be removed with it."""
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
    """Removes folders that were renamed out of the hosts, and nothing that somebody else has put there."""
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
