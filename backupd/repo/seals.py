"""Seals of final backups: what a subvolume was when it became final, so that a later change is noticed.

A seal is the subvolume's id, the transaction of its last change (ctransid), and the time. The ctransid only says where to search:
sharing of data (`backupd dedupe`, duperemove) raises it too. A backup is *altered* if one of its inodes has a later ctime than the
seal. Every change by a program sets that time; sharing, balance and the read-only flag do not.

A copy from another pool that has no seal has an implicit one: it was made by one snapshot, whose transaction and time it has.
Any other backup without a seal (of an older version, or imported with the pool) is unknown, not altered. It gets its seal at the
next check, so changes from then on are noticed.
"""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from pathlib import Path

from backupd.repo.notes_json import ACCEPTED, ALTERED_NOTE, SEAL, Notes, NotesFull, Seal, read_notes, write_notes
from btrkeep.checkpoints import Checkpoint
from btrkeep.pool.subvolume import ROOT_FOLDER, Subvolume, commit, describe, opened
from btrkeep.treescan import ChangedInode, changed_inodes
from btrkeep.treescan.links import InodeNames
from btrkeep.units import format_time

_log = logging.getLogger(__name__)


class SealState(Enum):
    """How a final backup compares with its seal. NEW: it had none. MOVED: its transaction is another, but no inode was changed."""

    UNCHANGED = auto()
    MOVED = auto()
    NEW = auto()
    ALTERED = auto()


@dataclass(frozen=True, slots=True)
class SealCheck:
    """The result for one backup. `seal`: the one that it should have now; for an altered one, the one that it had."""

    state: SealState
    seal: Seal


def check_seal(path: Path, subvolume: Subvolume, notes: Notes, name: str) -> SealCheck:
    """Compares a final backup with its seal. Raises OSError if its metadata cannot be read."""
    seal = effective_seal(subvolume, notes, name)
    if seal is None:
        return SealCheck(SealState.NEW, new_seal(subvolume))
    if seal.ctransid == subvolume.written:
        return SealCheck(SealState.UNCHANGED, seal)
    if next(_changes(path, subvolume, seal), None):
        return SealCheck(SealState.ALTERED, seal)
    return SealCheck(SealState.MOVED, Seal(subvolume.id, subvolume.written, seal.at))


def effective_seal(subvolume: Subvolume, notes: Notes, name: str) -> Seal | None:
    """Returns the backup's seal, or the implicit one of a copy; None if it has none."""
    seal = notes.seal(name)
    if seal and seal.subvolume == subvolume.id:
        return seal
    if not subvolume.received_uuid:
        return None
    return Seal(subvolume.id, min(subvolume.written, subvolume.created), subvolume.created_at)


def new_seal(subvolume: Subvolume) -> Seal:
    """Returns the seal of what the subvolume is now, by the real clock, as the kernel's times are, in rehearsals too."""
    return Seal(subvolume.id, subvolume.written, time.time_ns())


def altered_inodes(path: Path, subvolume: Subvolume, notes: Notes, name: str) -> list[ChangedInode]:
    """Returns the files and folders of a backup that were changed after its seal. Raises OSError."""
    seal = effective_seal(subvolume, notes, name)
    return list(_changes(path, subvolume, seal)) if seal else []


def altered_paths(path: Path, subvolume: Subvolume, notes: Notes, name: str) -> list[bytes]:
    """Returns the paths in the subvolume, relative to it, of all that was changed after its seal, sorted; b"" is its top folder.

    A folder is among them if a name in it was made, deleted or changed. Raises OSError.
    """
    paths = list[bytes]()
    with opened(path) as root:
        names = InodeNames(root)
        for inode in altered_inodes(path, subvolume, notes, name):
            paths += [b""] if inode.ino == ROOT_FOLDER else names.of(subvolume.id, inode.ino)
    return sorted(paths)


def _changes(path: Path, subvolume: Subvolume, seal: Seal) -> Iterator[ChangedInode]:
    if not subvolume.read_only:
        commit(path)
    with opened(path) as fd:
        yield from (inode for inode in changed_inodes(fd, seal.ctransid) if _changed_at(inode) > seal.at)


def _changed_at(inode: ChangedInode) -> int:
    """Returns when it was changed. The top folder got a later ctime with the backup's name, which comes after the seal."""
    return inode.mtime if inode.ino == ROOT_FOLDER else inode.ctime


def is_altered(path: Path, subvolume: Subvolume, notes: Notes, name: str) -> bool:
    """Returns True if the backup is not what it was when it became final, by its notes or as it is now. Raises OSError."""
    return notes.is_altered(name) or check_seal(path, subvolume, notes, name).state is SealState.ALTERED


def is_original(path: Path, subvolume: Subvolume, notes: Notes, name: str) -> bool:
    """Returns True if the backup was never changed, so it can be the parent of a difference. Raises OSError."""
    return notes.is_original(name) and check_seal(path, subvolume, notes, name).state is not SealState.ALTERED


def with_seal(notes: Notes, name: str, seal: Seal) -> Notes:
    """Returns the notes with the seal of that backup."""
    return notes.with_note(name, SEAL, seal.as_json())


def with_altered(notes: Notes, name: str, subvolume: Subvolume, now: str) -> Notes:
    """Returns the notes in which that backup is altered. The time of the first notice stays."""
    before = notes.note(name, ALTERED_NOTE) or {}
    at = before["at"] if before.get("subvolume") == subvolume.id and not before.get(ACCEPTED) and before.get("at") else now
    return notes.with_note(name, ALTERED_NOTE, {"at": at, "subvolume": subvolume.id, "ctransid": subvolume.written})


def with_change_accepted(notes: Notes, name: str, subvolume: Subvolume, now: datetime, by: str) -> Notes:
    """Returns the notes in which the changes so far are accepted: sealed as it is, but no copy of its original any more."""
    note = dict(notes.note(name, ALTERED_NOTE) or {}) | {ACCEPTED: {"at": format_time(now), "by": by}}
    return with_seal(notes.with_note(name, ALTERED_NOTE, note), name, new_seal(subvolume))


@Checkpoint("backup sealed")
def seal_backup(path: Path, name: str) -> None:
    """Seals the read-only subvolume at `path`, which has that name or is about to get it. Raises UnreadableRecord.

    An error of the disk, or notes that are full, are only logged: the backup is there, and the next check seals it.
    """
    folder = path.parent
    notes = read_notes(folder)
    try:
        subvolume = describe(path)
        if subvolume:
            write_notes(folder, with_seal(notes.without(name, ALTERED_NOTE), name, new_seal(subvolume)))
    except (OSError, NotesFull) as error:
        _log.warning("%s: %s is not sealed yet: %s", folder, name, error)
