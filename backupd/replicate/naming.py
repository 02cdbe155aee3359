"""Checks a received backup, and renames it if it is complete; records the known damage that it inherits.

A subvolume in `.receiving` has no name yet. When it is checked, no process may be able to write to it.

A backup that replaces a damaged copy has to be the same backup: the other server may have been taken over since. Files that are
damaged here, or were changed by hand after the copy was final, are not compared, because their content is lost. All other files
have to be as they are in the copy: name, kind, size, mode, owner, time and attributes, and the content, which is read only where
the two do not share it.

A difference shares all unchanged data with its parent, so it has the parent's damage, too. The damage is recorded before the new
copy has its name. The record is removed only after a read: by `backupd verify`, by a scrub, or here, of a copy that replaces a
damaged copy.
"""

import errno
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from pathlib import Path

from backupd.files.backup_differences import compare
from backupd.files.sameness import Pulse, equal_data, steady
from backupd.files.tree import Tree
from backupd.files.walking import entries, walk
from backupd.proof.damaged_files import FoundDamage, backups_that_share, recorded_damage
from backupd.repo.backup_json import DATA, RECORD, Record, UnreadableRecord, read
from backupd.repo.backup_json import read as read_record
from backupd.repo.checksums import SUMS, key_of
from backupd.repo.final_backups import is_named, read_if_ours
from backupd.repo.hardlinks import STAGING
from backupd.repo.leftovers import REPLACED, discard_replaced
from backupd.repo.notes_json import ALTERED_NOTE, read_notes, write_notes
from backupd.repo.read_lock import lock_for_deletion
from backupd.repo.seals import altered_paths, seal_backup
from backupd.repo.verification_files import forgotten_damages, replace_damaged
from btrkeep.backup_states import FINAL
from btrkeep.catalogue import WHOLE, Damage
from btrkeep.checkpoints import Checkpoint
from btrkeep.decisions.replication import Fetch, RemoteBackup
from btrkeep.errors import DAMAGED, OperatorError
from btrkeep.fs.file_data import NO_PLACE, extents
from btrkeep.fs.openat import is_there
from btrkeep.fs.output_file import exchange
from btrkeep.pool.marker import Pool
from btrkeep.pool.subvolume import Subvolume, delete, describe, opened, snapshot
from btrkeep.treescan import has_readable_tree
from btrkeep.treescan.links import InodeNames
from btrkeep.units import printable


class NotReceived(OperatorError):
    """A backup that was not received, or that is not the expected one; nothing of it is left."""


@dataclass(frozen=True, slots=True)
class ExpectedBackup:
    """A backup that is about to be received."""

    host: str
    """The host's name."""
    name: str
    """The backup's name."""
    uuid: str
    """The UUID that identifies the backup in every pool."""
    parent: RemoteBackup | None = None
    """The backup in this pool that is the parent of the difference; None: the stream is complete."""
    again: bool = False
    """True if it replaces the existing copy."""

    @classmethod
    def of(cls, host: str, fetch: Fetch) -> "ExpectedBackup":
        """Returns the backup that the fetch should bring."""
        return cls(host, fetch.backup.name, fetch.backup.uuid, fetch.parent, fetch.again)


def named(pool: Pool, expected: ExpectedBackup, path: Path, pulse: Pulse = steady) -> Subvolume:
    """Makes a read-only snapshot of `path` under the backup's name, which keeps the mark of its original.

    Raises NotReceived, OSError.
    """
    final = pool.host(expected.host) / expected.name
    if expected.parent and not expected.again:  # before it gets its name: a kill must not leave unrecorded damage
        rows = inherited_damages(pool, expected.host, expected.parent.name, expected.name, path)
        if rows:
            replace_damaged(pool, expected.host, expected.name, rows)
    if expected.again:
        return _put_in_place(pool, expected, path, final, pulse)
    if is_there(final):
        raise NotReceived(
            f"{final} exists already, and is not a copy of this backup", "check its content, and move it to another folder (mv)"
        )
    made = _snapshot(path, final, expected)
    seal_backup(final, expected.name)
    return made


def _snapshot(path: Path, place: Path, expected: ExpectedBackup) -> Subvolume:
    snapshot(path, place, read_only=True)
    subvolume = describe(place)
    assert subvolume is not None
    if subvolume.received_uuid != expected.uuid:
        delete(place.parent, subvolume.id)
        raise NotReceived(f"{expected.host}@{expected.name}: this kernel's snapshots do not record their origin")
    return subvolume


def _put_in_place(pool: Pool, expected: ExpectedBackup, path: Path, final: Path, pulse: Pulse) -> Subvolume:
    """Replaces the existing copy by the received backup: the two exchange names, so that one always exists, and the old copy is
    deleted.

    Raises NotReceived if the existing subvolume is not a copy of the backup, is being read, or cannot be dropped by the kernel, or
    if the received backup differs from it.
    """
    existing = describe(final)
    if existing is None or not _is_copy_of(final, existing, expected):
        raise NotReceived(f"{final} is no longer a copy of this backup", "check its content, and move it to another folder (mv)")
    with opened(final) as fd:
        if not has_readable_tree(fd):
            raise NotReceived(
                f"{expected.host}@{expected.name} is not replaced: some of its metadata cannot be read from the disk, and the "
                "kernel makes the pool read-only when such a subvolume is deleted"
            )
    if other_than := changed_since(pool, expected.host, final, path, pulse):
        raise NotReceived(
            f"{expected.host}@{expected.name} differs from the copy here: {other_than}, which is not damaged here, has changed",
            "check whether the backup was changed on the other server; the damaged copy is kept",
        )
    with lock_for_deletion(final) as has_no_reader:
        if not has_no_reader:
            raise NotReceived(
                f"{expected.host}@{expected.name} is being read", "run this command again when the other command has ended"
            )
        discard_replaced(pool, expected.host)
        other = final.with_name(REPLACED)
        subvolume = _snapshot(path, other, expected)
        with Checkpoint("damaged copy replaced"):
            exchange(other, final)
        seal_backup(final, expected.name)
        notes = read_notes(final.parent)
        if not notes.is_original(expected.name):
            write_notes(final.parent, notes.without(expected.name, ALTERED_NOTE))
        discard_replaced(pool, expected.host)
    return subvolume


def _is_copy_of(final: Path, subvolume: Subvolume, expected: ExpectedBackup) -> bool:
    """Returns True if it is the copy to be replaced. An altered copy may have lost its mark, and be writable."""
    if subvolume.read_only and subvolume.received_uuid == expected.uuid:
        return True
    if not read_notes(final.parent).is_altered(expected.name):
        return False
    try:
        final_backup = read_if_ours(final, expected.host)
    except UnreadableRecord:
        return False
    return final_backup is not None and final_backup[1].uuid == expected.uuid


def require_alone(folder: Path, names: Collection[str], host: str) -> None:
    """Raises NotReceived if the folder contains a name that is not in `names`."""
    if not {path.name for path in folder.iterdir()} <= set(names):
        raise NotReceived(f"{host}: the stream has written outside of the backup")


def require_whole(path: Path, expected: ExpectedBackup) -> Record:
    """Returns the record of the backup at `path` if it is the expected one. Raises NotReceived."""
    subvolume = describe(path)
    if subvolume is None or subvolume.received_uuid != expected.uuid:
        raise NotReceived(f"{expected.host}@{expected.name}: the received copy is incomplete")
    try:
        record = read_record(path)
    except UnreadableRecord as error:
        raise NotReceived(f"{expected.host}@{expected.name}: {error.message}") from None
    if record is None or (record.uuid, record.name) != (expected.uuid, expected.name) or record.state not in FINAL:
        raise NotReceived(f"{expected.host}@{expected.name}: its backup.json describes another backup")
    if not is_named(record.host, expected.host, path.parent.parent):
        raise NotReceived(f"{expected.host}@{expected.name}: its backup.json names the host {record.host!r}")
    _require_plain(path, expected)
    return record


def _require_plain(path: Path, expected: ExpectedBackup) -> None:
    """Raises NotReceived unless `data` is a folder, and the files beside it that later nights replace are plain files.

    A symlink named `data` would lead a night, which removes everything that is not a source path, out of the pool.
    """
    for name, is_right in (
        (DATA, stat.S_ISDIR),
        *((name, stat.S_ISREG) for name in (RECORD, f"{RECORD}.new", SUMS, os.fsdecode(STAGING))),
    ):
        with suppress(FileNotFoundError):
            if not is_right((path / name).lstat().st_mode):
                raise NotReceived(f"{expected.host}@{expected.name}: its {name} is not of the expected type")


_PIECE = 1 << 20
_MOST_EXTENTS = 1000  # extents of a file; a file with more counts as sharing damaged data


def _recorded_damages(pool: Pool, host: str, name: str) -> list[Damage]:
    """Returns the recorded damage of one backup."""
    return forgotten_damages(pool, host, {name}, (), recorded_damage)


def inherited_damages(pool: Pool, host: str, parent: str, name: str, path: Path) -> list[Damage]:
    """Returns the damage that the backup `name` at `path` inherits from its `parent`.

    A file inherits damage if it is the same inode, under any of its names, and refers to data of the damaged part.
    """
    rows = _recorded_damages(pool, host, parent)
    subvolume = describe(path) if rows else None
    if subvolume is None:
        return []
    inherited = dict[tuple[str, int], Damage]()
    with Tree(pool.host(host) / parent) as old, Tree(path) as new, opened(path) as root:
        names = InodeNames(root)
        for row in rows:
            paths = [row.path] if row.path == WHOLE else map(os.fsdecode, _names_in(old, new, names, subvolume.id, row))
            inherited |= {(other, row.start): replace(row, name=name, path=other) for other in paths}
    return list(inherited.values())


def _names_in(old: Tree, new: Tree, names: InodeNames, subvolume: int, row: Damage) -> Iterator[bytes]:
    """Yields the paths in the new backup that inherit this damage. Damage that cannot be determined counts as inherited."""
    path = os.fsencode(row.path)
    try:
        before = old.stat(path)
        for name in names.of(subvolume, before.inode):
            other = b"/" + name.partition(b"/")[2]  # in the subvolume it is below `data`
            now = new.stat(other)
            is_unchanged = (now.changed, now.size) == (before.changed, before.size)
            if now.kind == "file" and (is_unchanged or _share(old, path, new, other, row)):
                yield other
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the parent has no such file
        return
    except OSError as error:
        if error.errno not in DAMAGED:
            raise
        yield path


def _share(old: Tree, path: bytes, new: Tree, other: bytes, row: Damage) -> bool:
    """Returns True if the second file refers to data of the damaged part of the first. Raises OSError."""
    damaged, after = _places(old, path, row.start, row.length), _places(new, other)
    if damaged is None or after is None:
        return True
    return any(begin < other_end and other_begin < end for begin, end in damaged for other_begin, other_end in after)


def _places(tree: Tree, path: bytes, start: int = 0, length: int = 0) -> list[tuple[int, int]] | None:
    """Returns the places on disk of the extents of a part of a file; None if there are too many to compare."""
    fd = tree.open_file(path)
    try:
        places = list[tuple[int, int]]()
        for logical, physical, size, flags in extents(fd):
            if flags & NO_PLACE or logical + size <= start or (length and logical >= start + length):
                continue
            places.append((physical, physical + size))
            if len(places) > _MOST_EXTENTS:
                return None
        return places
    finally:
        os.close(fd)


def still_damaged(pool: Pool, host: str, name: str, now: datetime) -> list[Damage]:
    """Reads the files that are recorded as damaged in a backup, which is another subvolume now. Returns the damage that it still
    has, and that of the host's other backups with the same files.
    """
    rows = _recorded_damages(pool, host, name)
    paths = {os.fsencode(row.path) for row in rows}
    bad = list[FoundDamage]()
    with Tree(pool.host(host) / name) as tree:
        if os.fsencode(WHOLE) in paths:
            every = (entry.path for entry in entries(tree, b"/") if entry.kind == "file")
        else:
            every = (path for path in sorted(paths))
        for path in every:
            with suppress(FileNotFoundError, NotADirectoryError, ValueError):
                entry = tree.stat(path)
                if entry.kind == "file" and (start := _first_unreadable(tree, path)) is not None:
                    bad.append(FoundDamage(path, start, key_of(entry.inode, entry.changed, entry.size)))
    return list(_rows(pool, host, name, bad, now))


def _rows(pool: Pool, host: str, name: str, bad: list[FoundDamage], now: datetime) -> Iterator[Damage]:
    damages_by_backup: Iterable[tuple[str, list[FoundDamage]]] = [
        (name, bad),
        *(backups_that_share(pool, host, name, bad) if bad else ()),
    ]
    for backup, files in damages_by_backup:
        for file in files:
            yield Damage(host, backup, os.fsdecode(file.path), file.start, 0, "verify", now)


def _first_unreadable(tree: Tree, path: bytes) -> int | None:
    """Returns the start of the first piece that the disk cannot read; None if the whole file can be read."""
    fd = tree.open_file(path)
    at = 0
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        while piece := os.pread(fd, _PIECE, at):
            at += len(piece)
    except OSError as error:
        if error.errno in DAMAGED:
            return at
        raise
    finally:
        os.close(fd)
    return None


_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def changed_since(pool: Pool, host: str, copy: Path, came: Path, pulse: Pulse = steady) -> str:
    """Returns the first entry that is undamaged in a host's copy and differs in the received backup, "" if there is none.

    Raises what `pulse` raises, and OSError if the received backup cannot be read.
    """
    changed = _changed_by_hand(pool, host, copy)
    with suppress(OSError, UnreadableRecord):  # of the copy, whose record may be the damaged part
        if RECORD.encode() not in changed and read(copy) != read(came):
            return "its record"
    damaged = {os.fsencode(damage.path) for damage in _recorded_damages(pool, host, copy.name)}
    by_hand = {b"/" + path.partition(b"/")[2] for path in changed if path.partition(b"/")[0] == DATA.encode()}
    with Tree(came) as new:
        try:
            old = Tree(copy)
        except OSError as error:
            return "" if error.errno in DAMAGED else str(error)
        with old:
            names, contents = _names(old, new, damaged, pulse), _contents(old, new, damaged | by_hand, pulse)
            left = (path for path in chain(names, contents) if not _is_by_hand(path, by_hand, old, new))
            return next(map(printable, left), "")


def _changed_by_hand(pool: Pool, host: str, copy: Path) -> list[bytes]:
    """Returns the paths in the subvolume that were changed after the copy was final; none if it is not altered."""
    notes, subvolume = read_notes(pool.host(host)), describe(copy)
    if subvolume is None or not notes.is_altered(copy.name):
        return []
    return altered_paths(copy, subvolume)


def _is_by_hand(path: bytes, changed: AbstractSet[bytes], old: Tree, new: Tree) -> bool:
    """Returns True if the path is in `changed`, or exists in only one of the two trees, below a folder whose names were changed."""
    if path in changed:
        return True
    while path != b"/":
        above = path.rpartition(b"/")[0] or b"/"
        if above in changed and not (_has(old, path) and _has(new, path)):
            return True
        path = above
    return False


def _has(tree: Tree, path: bytes) -> bool:
    """Returns True if the tree has the path, or if that is unknown."""
    try:
        tree.stat(path)
    except OSError as error:
        return error.errno not in _ABSENT
    return True


def _names(old: Tree, new: Tree, damaged: set[bytes], pulse: Pulse) -> Iterator[bytes]:
    """Yields names that differ in anything but content. A read error ends it, because an unreadable folder hides its content."""
    try:
        for difference in compare(old, new, b"/", pulse=pulse):
            if difference.path not in damaged:
                yield difference.path
    except OSError as error:
        if error.errno not in DAMAGED:
            raise


def _contents(old: Tree, new: Tree, damaged: set[bytes], pulse: Pulse) -> Iterator[bytes]:
    """Yields files with different content."""
    for walk_entry in walk(old, b"/", lambda _path, _error: None):
        entry = walk_entry.entry
        if walk_entry.left or entry.kind != "file" or entry.path in damaged:
            continue
        pulse()
        try:
            is_same = equal_data(old, entry, new, new.stat(entry.path), pulse)
        except OSError as error:
            if error.errno not in (*DAMAGED, *_ABSENT):
                raise
            is_same = error.errno in DAMAGED
        if not is_same:
            yield entry.path
