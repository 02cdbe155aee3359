"""What has come from another pool is looked at, and gets the backup's name if it is whole.

What lies in `.receiving` has no name yet. Nothing may be able to write to it any more when it is looked at.
"""

import contextlib
import os
import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from backupd.files.sameness import Pulse, steady
from backupd.replicate.inherited_damage import inherited_damages
from backupd.replicate.same_copy import changed_since
from backupd.repo.backup_json import DATA, RECORD, Record, UnreadableRecord
from backupd.repo.backup_json import read as read_record
from backupd.repo.damages import replace_damaged
from backupd.repo.final_backups import is_named, own_backup
from backupd.repo.hardlinks import STAGING
from backupd.repo.notes_json import ALTERED_NOTE, read_notes, write_notes
from backupd.repo.read_lock import lock_for_deletion
from backupd.repo.received import REPLACED, discard_replaced
from backupd.repo.seals import seal_backup
from backupd.repo.sums import SUMS
from btrkeep.backup_states import FINAL
from btrkeep.checkpoints import Checkpoint
from btrkeep.decisions.replication import FarBackup, Fetch
from btrkeep.errors import OperatorError
from btrkeep.fs.exchange import exchange
from btrkeep.fs.openat import is_there
from btrkeep.pool.marker import Pool
from btrkeep.pool.subvolume import Subvolume, delete, describe, opened, snapshot
from btrkeep.treescan import has_readable_tree


class NotReceived(OperatorError):
    """A backup that did not come, or that is not what it should be; nothing of it is left."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A backup that is to come, and the one here that it is a difference to.

    `again`: it takes the place of the copy that is here.
    """

    host: str
    name: str
    uuid: str
    parent: FarBackup | None = None
    again: bool = False

    @classmethod
    def of(cls, host: str, fetch: Fetch) -> "Expected":
        """Returns what comes of a host by that fetch."""
        return cls(host, fetch.backup.name, fetch.backup.uuid, fetch.parent, fetch.again)


def named(pool: Pool, expected: Expected, path: Path, pulse: Pulse = steady) -> Subvolume:
    """Makes a read-only snapshot of `path` under the backup's name, which remembers whose copy it is.

    Raises NotReceived, OSError.
    """
    final = pool.host(expected.host) / expected.name
    if expected.parent and not expected.again:  # before it has its name: a kill must not leave damage that nobody knows
        rows = inherited_damages(pool, expected.host, expected.parent.name, expected.name, path)
        if rows:
            replace_damaged(pool, expected.host, expected.name, rows)
    if expected.again:
        return _put_in_place(pool, expected, path, final, pulse)
    if is_there(final):
        raise NotReceived(f"{final} is there already, and is no copy of it", "look at it, and move it away")
    made = _snapshot(path, final, expected)
    seal_backup(final, expected.name)
    return made


def _snapshot(path: Path, place: Path, expected: Expected) -> Subvolume:
    snapshot(path, place, read_only=True)
    found = describe(place)
    assert found is not None
    if found.received_uuid != expected.uuid:
        delete(place.parent, found.id)
        raise NotReceived(f"{expected.host}@{expected.name}: this kernel's snapshots forget whose copy they are")
    return found


def _put_in_place(pool: Pool, expected: Expected, path: Path, final: Path, pulse: Pulse) -> Subvolume:
    """The same in the place of the copy that has that name, which is deleted: the two change names, so one is always there.

    Raises NotReceived when what is there is no copy of it, is being read, or cannot be dropped by the kernel, or when what came is
    another backup than it was.
    """
    there = describe(final)
    if there is None or not _is_copy_of(final, there, expected):
        raise NotReceived(f"{final} is no copy of it any more", "look at it, and move it away")
    with opened(final) as fd:
        if not has_readable_tree(fd):
            raise NotReceived(
                f"{expected.host}@{expected.name} stays: the disk does not give back some of its metadata, and the kernel makes "
                "the pool read-only when such a subvolume is deleted"
            )
    if other_than := changed_since(pool, expected.host, final, path, pulse):
        raise NotReceived(
            f"{expected.host}@{expected.name} is another one there than it was: {other_than}, which is not damaged here, differs",
            "somebody may have changed it on the other server; the damaged copy stays",
        )
    with lock_for_deletion(final) as nobody_reads:
        if not nobody_reads:
            raise NotReceived(f"{expected.host}@{expected.name} is being read", "fetch it again when that has ended")
        discard_replaced(pool, expected.host)
        other = final.with_name(REPLACED)
        found = _snapshot(path, other, expected)
        with Checkpoint("damaged copy replaced"):
            exchange(other, final)
        seal_backup(final, expected.name)
        notes = read_notes(final.parent)
        if not notes.is_original(expected.name):
            write_notes(final.parent, notes.without(expected.name, ALTERED_NOTE))
        discard_replaced(pool, expected.host)
    return found


def _is_copy_of(final: Path, there: Subvolume, expected: Expected) -> bool:
    """Returns True if it is the copy that is to be replaced. An altered one may have lost its mark, and be writable."""
    if there.read_only and there.received_uuid == expected.uuid:
        return True
    if not read_notes(final.parent).is_altered(expected.name):
        return False
    try:
        found = own_backup(final, expected.host)
    except UnreadableRecord:
        return False
    return found is not None and found[1].uuid == expected.uuid


def require_alone(folder: Path, names: Collection[str], host: str) -> None:
    """Raises NotReceived if something else than these lies there."""
    if not {path.name for path in folder.iterdir()} <= set(names):
        raise NotReceived(f"{host}: the stream has written outside of the backup")


def require_whole(path: Path, expected: Expected) -> Record:
    """The record of what lies at `path`, if it is the backup that was to come. Raises NotReceived."""
    found = describe(path)
    if found is None or found.received_uuid != expected.uuid:
        raise NotReceived(f"{expected.host}@{expected.name}: what came is not whole")
    try:
        record = read_record(path)
    except UnreadableRecord as error:
        raise NotReceived(f"{expected.host}@{expected.name}: {error.message}") from None
    if record is None or (record.uuid, record.name) != (expected.uuid, expected.name) or record.state not in FINAL:
        raise NotReceived(f"{expected.host}@{expected.name}: its backup.json speaks of another backup")
    if not is_named(record.host, expected.host, path.parent.parent):
        raise NotReceived(f"{expected.host}@{expected.name}: its backup.json names the host {record.host!r}")
    _require_plain(path, expected)
    return record


def _require_plain(path: Path, expected: Expected) -> None:
    """Raises NotReceived unless `data` is a folder, and what later nights replace beside it are plain files.

    A symlink in the place of `data` would lead a night, which removes what is no source path, out of the pool.
    """
    for name, is_right in (
        (DATA, stat.S_ISDIR),
        *((name, stat.S_ISREG) for name in (RECORD, f"{RECORD}.new", SUMS, os.fsdecode(STAGING))),
    ):
        with contextlib.suppress(FileNotFoundError):
            if not is_right((path / name).lstat().st_mode):
                raise NotReceived(f"{expected.host}@{expected.name}: its {name} is not what a backup has by that name")
