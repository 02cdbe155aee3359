"""Finds folders that a night emptied although nothing was deleted in them: what was mounted there is missing.

Removing a name from a folder sets the folder's time. So one that holds nothing now, and has not been changed since before the base
began, is not the one in which the base found files: it lies below a filesystem that is not mounted, or is that of a system which
was put back to an earlier state. If nobody sees it, what is missing leaves the backups as the older ones expire.

rsync deletes what is missing from `.working`, which the pool knows by its generations; so it costs what the night changed.
"""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from backupd.files.tree import Tree, joined
from backupd.files.walking import entries
from backupd.repo.backup_json import DATA, PathResult, Record
from backupd.run.verdict import Emptied, decide_run, judge_emptied
from btrkeep.backup_states import COMPLETE, SUSPECT
from btrkeep.conditions import ConditionKey, ConditionKind
from btrkeep.decisions.lasting import follow
from btrkeep.pool.subvolume import describe, opened
from btrkeep.process.cancellation import Cancellation
from btrkeep.treescan import FolderPaths, changed_inodes
from btrkeep.units import printable

_SKEW = 3600.0  # seconds by which the host's clock, which sets the times of folders, may be behind this server's
_LONGEST = 500  # bytes of a path that are told


def judged(record: Record, subvolume: Path, base: Record, base_path: Path, limit: float, cancelled: Cancellation) -> Record:
    """Returns the record of a complete backup whose data is on the disk, suspect or with a warning if such folders are in it.

    `base` is what it grew from. `limit`: of a source path's files, and of its bytes, so much may be missing. Settings other than
    the base's may empty folders themselves, so nothing is said then. If it cannot be told, a warning says so.
    """
    may_have_emptied = record.state == COMPLETE and record.settings == base.settings
    if not may_have_emptied:
        return record
    try:
        found = _emptied(subvolume, record, base, base_path, limit, cancelled)
    except FileNotFoundError:  # the base was deleted meanwhile
        return record
    except OSError as error:
        warning = f"what the previous backup has in folders that are empty now could not be counted: {error.strerror or error}"
        return replace(record, warnings=(*record.warnings, warning))
    if not found:
        return record
    paths = tuple(_judged_path(result, base, found, limit) for result in record.paths)
    warnings = [warning for new, old in zip(paths, record.paths, strict=True) for warning in new.warnings[len(old.warnings) :]]
    verdict = decide_run(paths)
    assert verdict.state is not None
    emptied = [ConditionKey(ConditionKind.EMPTIED, path, one.folder) for path, one in found.items()]
    return replace(
        _with_conditions(record, base, emptied),
        paths=paths,
        warnings=(*record.warnings, *warnings),
        state=verdict.state,
        error=verdict.error,
        cause=verdict.cause,
    )


def with_emptied(record: Record, subvolume: Path, base: Record) -> Record:
    """Returns the record with the folders that were emptied before its base, and are still empty. A night that does not find them
    mounted again has nothing to delete there.
    """
    if record.state not in (COMPLETE, SUSPECT):
        return record
    emptied = [condition.key for condition in base.lasting if condition.kind is ConditionKind.EMPTIED]
    return _with_conditions(record, base, [key for key in emptied if _is_empty(subvolume, key.name)])


def _with_conditions(record: Record, base: Record, more: Sequence[ConditionKey]) -> Record:
    keys = [condition.key for condition in record.lasting]
    return replace(record, lasting=follow(base.lasting, [*keys, *more], record.started)) if more else record


def _is_empty(subvolume: Path, folder: str) -> bool:
    """Returns True if the backup has that folder, with nothing in it."""
    try:
        with Tree(subvolume) as tree:
            return not tree.names(os.fsencode(folder))
    except (OSError, ValueError):
        return False


def _judged_path(result: PathResult, base: Record, found: Mapping[str, Emptied], limit: float) -> PathResult:
    before = base.path(result.path)
    emptied = found.get(result.path)
    return judge_emptied(result, before.numbers, emptied, limit) if before and emptied else result


def _emptied(
    subvolume: Path, record: Record, base: Record, base_path: Path, limit: float, cancelled: Cancellation
) -> dict[str, Emptied]:
    """Returns those folders by source path, as the record has it: what the base says may come from another pool.

    Counts what is missing only until it is too much.
    """
    found = dict[str, Emptied]()
    with Tree(base_path) as tree:
        for folder in _unchanged_empty_folders(subvolume, base.started.timestamp() - _SKEW):
            if cancelled:
                break
            path = _path_of(folder, record)
            result = base.path(path) if path else None
            if result is None:
                continue
            before = found.get(result.path)
            if before and before.is_too_much(result.numbers, limit):
                continue
            start = replace(before, others=before.others + 1) if before else Emptied(_told(folder))
            with suppress(FileNotFoundError, NotADirectoryError):  # the base has none there
                counted = _counted(tree, folder, start, result.numbers, limit)
                if counted.files > start.files:
                    found[result.path] = counted
    return found


def _counted(tree: Tree, folder: bytes, start: Emptied, numbers: Mapping[str, int], limit: float) -> Emptied:
    """Returns `start` with what is below that folder of the base."""
    found, below = start, entries(tree, folder)
    next(below)
    for entry in below:
        size = entry.size if entry.kind in ("file", "symlink") else 0
        found = replace(found, files=found.files + 1, bytes=found.bytes + size)
        if found.is_too_much(numbers, limit):
            break
    return found


def _unchanged_empty_folders(subvolume: Path, before: float) -> Iterator[bytes]:
    """Yields the path of each folder with nothing in it that this run has written to and that is older than `before`, in seconds
    since 1970.
    """
    now, moment = describe(subvolume), int(before * 1e9)
    assert now is not None
    with opened(subvolume) as root:
        paths = FolderPaths(root)
        for inode in changed_inodes(root, now.created - 1):
            if stat.S_ISDIR(inode.mode) and not inode.size and inode.mtime < moment:
                with suppress(FileNotFoundError):
                    top, *names = paths.of(inode.ino)
                    if top == os.fsencode(DATA):
                        yield joined(names)


def _path_of(folder: bytes, record: Record) -> str | None:
    """Returns the source path in which it lies. A configuration has none within another."""
    inside = (result.path for result in record.paths if folder.startswith(os.fsencode(result.path).rstrip(b"/") + b"/"))
    return next(inside, None)


def _told(folder: bytes) -> str:
    shown = folder if len(folder) <= _LONGEST else b"..." + folder[-_LONGEST:]
    return printable(shown)
