"""Seals of final backups: the state of a subvolume when it became final, so that a later change is noticed. A seal is the
subvolume's id, the transaction of its last change (ctransid), and the time in nanoseconds by this server's clock. seals.json in the
host's folder has those of all its backups; it is replaced completely: {"format": 1, "backups": {NAME: [SUBVOLUME, CTRANSID, TIME]}}

The ctransid only limits the search: sharing of data (`backupd dedupe`, duperemove) raises it too. A backup is *altered* if one of
its inodes has a later ctime than the seal. Every change by a program sets that time; sharing, balance and the read-only flag do
not.

A copy from another pool without a seal has an implicit one: it was made by one snapshot, whose transaction and time are used. Any
other backup without a seal (imported with the pool) is unknown, not altered. It gets its seal at the next check, so changes from
then on are noticed. A seals.json that is damaged or missing is made again from the catalogue, which has the ctransid of each seal,
and from the notes of altered backups.
"""

import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backupd.repo.backup_json import UnreadableRecord
from backupd.repo.backup_json import read as read_record
from backupd.repo.notes_json import ACCEPTED, ALTERED_NOTE, Notes, read_notes
from backupd.repo.pool_files import has_room, read_json_file
from btrkeep.checkpoints import Checkpoint
from btrkeep.pool.atomic import write_atomically
from btrkeep.pool.reserve import with_reserve
from btrkeep.pool.subvolume import ROOT_FOLDER, Subvolume, commit, describe, opened
from btrkeep.units import format_time

if TYPE_CHECKING:  # commands that read backups need neither; the catalogue takes as long as Python's start
    from btrkeep.catalogue import Backup
    from btrkeep.treescan import ChangedInode


SEALS = "seals.json"
SEALED_AT = "sealed"  # a key of ALTERED_NOTE: the time of the seal, in nanoseconds
_FORMAT = 1
_DAY = 86400 * 10**9  # nanoseconds
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Seal:
    """The state of a backup when it became final."""

    subvolume: int
    """The subvolume's id."""
    ctransid: int
    """The transaction of its last change."""
    at: int
    """The time of the seal by this server's clock, in nanoseconds."""


Seals = Mapping[str, Seal]
"""Seals by the name of a host's backup."""


def read_seals(folder: Path) -> Seals:
    """Returns the seals in a host's folder. A file that cannot be read is logged and counts as empty: no backup becomes altered
    because of it.
    """
    return read_json_file(folder / SEALS, _parse, {})


def _parse(fields: Mapping[str, Any]) -> Seals:
    if fields["format"] != _FORMAT:
        raise ValueError(f"format {fields['format']}")
    return {str(name): Seal(*map(int, numbers)) for name, numbers in fields["backups"].items()}


def write_seals(folder: Path, seals: Seals) -> None:
    """Replaces the seals of a host; they are on the disk when this returns. On a full pool the reserve is used. Raises OSError."""
    rows = {name: [seal.subvolume, seal.ctransid, seal.at] for name, seal in sorted(seals.items())}
    text = json.dumps({"format": _FORMAT, "backups": rows}) + "\n"
    if has_room(text):  # with 200,000 backups there would not be
        with_reserve(folder.parent.parent, lambda: write_atomically(folder / SEALS, text))


class SealState(Enum):
    """The result of comparing a final backup with its seal. NEW: it had no seal. MOVED: its transaction is another, but no inode
    was changed.
    """

    UNCHANGED = auto()
    MOVED = auto()
    NEW = auto()
    ALTERED = auto()


@dataclass(frozen=True, slots=True)
class SealCheck:
    """The result for one backup."""

    state: SealState
    """The result."""
    seal: Seal
    """The seal that it should have now; for an altered backup, the one that it had."""


def check_seal(path: Path, subvolume: Subvolume, seals: Seals, name: str) -> SealCheck:
    """Compares a final backup with its seal. Raises OSError if its metadata cannot be read."""
    seal = effective_seal(subvolume, seals, name)
    if seal is None:
        return SealCheck(SealState.NEW, new_seal(path, subvolume))
    if seal.ctransid == subvolume.written:
        return SealCheck(SealState.UNCHANGED, seal)
    if next(_changes(path, subvolume, seal), None):
        return SealCheck(SealState.ALTERED, seal)
    return SealCheck(SealState.MOVED, Seal(subvolume.id, subvolume.written, seal.at))


def effective_seal(subvolume: Subvolume, seals: Seals, name: str) -> Seal | None:
    """Returns the backup's seal, or the implicit one of a copy; None if it has none."""
    seal = seals.get(name)
    if seal and seal.subvolume == subvolume.id:
        return seal
    if not subvolume.received_uuid:
        return None
    return Seal(subvolume.id, min(subvolume.written, subvolume.created), subvolume.created_at)


def remembered_seal(path: Path, subvolume: Subvolume, sealed: int | None, notes: Notes) -> Seal | None:
    """Returns the seal of a backup that is missing in seals.json: for an altered one from its note, else from `sealed`, the
    transaction in its row. None if it had no seal.

    The row has no time: if nothing was changed, the time is now; else that of the backup's name, which is given right after the
    seal. Raises OSError.
    """
    note = notes.note(path.name, ALTERED_NOTE)
    if note and notes.is_altered(path.name) and note.get("subvolume") == subvolume.id and type(note.get(SEALED_AT)) is int:
        return Seal(subvolume.id, 0, note[SEALED_AT])
    if sealed == subvolume.written:
        return new_seal(path, subvolume)
    return None if sealed is None else Seal(subvolume.id, sealed, path.lstat().st_ctime_ns)


def new_seal(path: Path, subvolume: Subvolume, base: Seal | None = None) -> Seal:
    """Returns a seal of the present state of the subvolume, by the real clock, as the kernel's times are, also in rehearsals.

    If the clock is behind, the time is that in the backup's name or in the seal of its base, because files from the base keep their
    times. Raises OSError.
    """
    return Seal(subvolume.id, subvolume.written, max(time.time_ns(), path.lstat().st_ctime_ns, base.at if base else 0))


def altered_paths(path: Path, subvolume: Subvolume) -> list[bytes]:
    """Returns the sorted paths, relative to the subvolume, of everything that was changed after its seal; b"" is its top folder.

    A folder is included if a name in it was made, deleted or changed. Raises OSError.
    """
    paths, seal = list[bytes](), effective_seal(subvolume, read_seals(path.parent), path.name)
    if seal is None:
        return []
    from btrkeep.treescan.links import InodeNames  # as above

    with opened(path) as root:
        names = InodeNames(root)
        for inode in list(_changes(path, subvolume, seal)):
            paths += [b""] if inode.ino == ROOT_FOLDER else names.of(subvolume.id, inode.ino)
    return sorted(paths)


def _changes(path: Path, subvolume: Subvolume, seal: Seal) -> Iterator["ChangedInode"]:
    from btrkeep.treescan import changed_inodes  # as above

    if not subvolume.read_only:
        commit(path)
    with opened(path) as fd:
        yield from (inode for inode in changed_inodes(fd, seal.ctransid) if _changed_at(inode) > seal.at)


def _changed_at(inode: "ChangedInode") -> int:
    """Returns the time of the last change. Giving the backup its name, after the seal, changes the ctime of the top folder."""
    return inode.mtime if inode.ino == ROOT_FOLDER else inode.ctime


def is_altered(path: Path, subvolume: Subvolume, notes: Notes, name: str) -> bool:
    """Returns True if the backup was changed since it became final, according to its notes or its present state. Raises OSError."""
    return notes.is_altered(name) or check_seal(path, subvolume, read_seals(path.parent), name).state is SealState.ALTERED


def is_original(path: Path, subvolume: Subvolume, notes: Notes, name: str) -> bool:
    """Returns True if the backup was never changed, so it can be the parent of a difference. Raises OSError."""
    if not notes.is_original(name):
        return False
    return check_seal(path, subvolume, read_seals(path.parent), name).state is not SealState.ALTERED


def with_altered(notes: Notes, name: str, subvolume: Subvolume, now: str, seal: Seal) -> Notes:
    """Returns the notes in which that backup is altered. The time of the first detection and the first `seal` are kept: later
    content was not backed up.
    """
    before = notes.note(name, ALTERED_NOTE) or {}
    sealed = before.get(SEALED_AT, seal.at) if before.get("subvolume") == subvolume.id else seal.at
    at = before["at"] if before.get("subvolume") == subvolume.id and not before.get(ACCEPTED) and before.get("at") else now
    return notes.with_note(name, ALTERED_NOTE, {"at": at, "subvolume": subvolume.id, SEALED_AT: sealed})


def first_change(notes: Notes, name: str) -> int | None:
    """Returns the time, in nanoseconds, after which files of the backup were changed manually, accepted or not. None: no file was
    changed.
    """
    note = notes.note(name, ALTERED_NOTE)
    if note is None:
        return None
    sealed = note.get(SEALED_AT)
    return sealed if type(sealed) is int else 0  # a damaged note: any file may have changed


def with_change_accepted(notes: Notes, name: str, now: datetime, by: str) -> Notes:
    """Returns the notes in which the changes so far are accepted; the backup is still no copy of its original."""
    note = dict(notes.note(name, ALTERED_NOTE) or {}) | {ACCEPTED: {"at": format_time(now), "by": by}}
    return notes.with_note(name, ALTERED_NOTE, note)


def sealed_row(folder: Path, row: "Backup") -> "Backup":
    """Returns the row with the transaction of its seal; without it, the next check opens the backup once."""
    seal = read_seals(folder).get(row.name or "")
    if seal and seal.subvolume == row.subvolume_id and read_notes(folder).is_original(row.name or ""):
        return replace(row, sealed=seal.ctransid)
    return row


@Checkpoint("backup sealed")
def seal_backup(path: Path, name: str) -> None:
    """Seals the subvolume at `path`, which has that name or is about to get it.

    A disk error is only logged: the backup exists, and the next check seals it.
    """
    folder = path.parent
    try:
        if subvolume := describe(path):
            seals = read_seals(folder)
            write_seals(folder, {**seals, name: new_seal(path, subvolume, _seal_of_base(path, seals))})
    except OSError as error:
        _log.warning("%s: %s is not sealed yet: %s", folder, name, error.strerror)


def _seal_of_base(path: Path, seals: Seals) -> Seal | None:
    """Returns the seal of the base of this backup; None if it has none that can be trusted.

    A seal more than a day in the future is trusted only if the clock is behind, so that the base itself is from the future.
    Otherwise it was made while the clock was ahead, and would hide all changes of all later backups.
    """
    now = time.time_ns()
    with suppress(UnreadableRecord):
        name = ((record := read_record(path)) and record.base) or ""
        seal, base = seals.get(name), describe(path.with_name(name)) if name else None
        if seal and base and (seal.at <= now + _DAY or base.created_at > now):
            return seal
    return None
