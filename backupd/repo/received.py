"""Backups that a replication has received incompletely."""

from contextlib import suppress
from dataclasses import replace

from backupd.repo.listing import names_of
from backupd.repo.notes_json import DEMOTED, read_notes, write_notes
from backupd.repo.remove_tree import remove_tree
from btrkeep.checkpoints import Checkpoint
from btrkeep.fs.openat import is_there
from btrkeep.pool.marker import Pool
from btrkeep.pool.subvolume import delete, describe

RECEIVING = ".receiving"
REPLACED = ".replaced"
"""The copy that is to take the place of a damaged one, or that one, when they have changed names: the other has the name."""


def has_received(pool: Pool, host: str) -> bool:
    """Returns True if something is left that `discard_received` would delete: a power cut may restore it."""
    return any(is_there(pool.host(host) / name) for name in (RECEIVING, REPLACED))


def discard_received(pool: Pool, host: str) -> bool:
    """Deletes what a replication that was cut off has left of a backup; whether there was something. Needs the host's lock."""
    discard_replaced(pool, host)
    folder = pool.host(host) / RECEIVING
    if not is_there(folder):
        return False
    with Checkpoint("received part deleted"):
        for path in folder.iterdir():
            if left := describe(path):
                delete(folder, left.id)
        remove_tree(folder)
    return True


def discard_replaced(pool: Pool, host: str) -> None:
    """Deletes the one of two copies that has not the backup's name. Needs the host's lock."""
    path = pool.host(host) / REPLACED
    if left := describe(path):
        with Checkpoint("replaced copy deleted"):
            delete(path.parent, left.id)


def drop_empty_mark(pool: Pool, host: str) -> None:
    """Takes the mark of a host back of which nothing came: it would keep its first backup from being made here. Needs its lock.

    A copy whose record cannot be read is one all the same. A host that was demoted stays one without any: another server backs it
    up. Raises UnreadableRecord.
    """
    folder = pool.host(host)
    with suppress(OSError):  # it stays marked
        notes = read_notes(folder)
        if notes.replica and not notes.replica.get(DEMOTED) and not names_of(pool, host):
            discard_received(pool, host)
            write_notes(folder, replace(notes, replica=None))
