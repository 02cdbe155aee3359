"""Finds folders that a night emptied although nothing was deleted in them, because a filesystem was not mounted on the host.
Deleting a name in a folder sets the folder's time. So if a folder is empty now, and has not been changed since before the base
started, it is not the folder whose files are in the base: a filesystem is not mounted, or the system was returned to an earlier
state. Without a check, the missing files would be lost when the older backups expire.

rsync deletes what is missing from `.working`, which the pool finds by its generations; so the search costs only as much as the
night changed. A backup that cannot be compared is never complete: it is suspect, so the next run compares with the same base again.
"""

import errno
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from os import fsencode
from pathlib import Path
from typing import Any

from backupd.files.tree import Tree, joined
from backupd.files.walking import entries
from backupd.repo.backup_json import DATA, PathResult, Record
from backupd.run.unlisted import stored_size
from backupd.run.verdict import EmptiedFolders, EmptiedWhy, decide_run, judge_emptied
from btrkeep.backup_states import COMPLETE, SUSPECT, Cause, CauseCode, ConditionKey, ConditionKind
from btrkeep.decisions.cause_words import cause_words
from btrkeep.decisions.lasting import follow
from btrkeep.pool.subvolume import describe, opened
from btrkeep.process.progress import Cancellation
from btrkeep.treescan import FolderPaths, changed_inodes
from btrkeep.units import printable

_SKEW = 3600.0  # seconds by which the host's clock, which sets the times of folders, may be behind this server's
_LONGEST = 500  # bytes of a path that are shown
_NO_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
AFTER_STOP = 30.0
"""Seconds for which a stopped run may continue to compare, because a backup that has all its files is worth it."""


class _Stopped(Exception):
    """The run was stopped AFTER_STOP seconds ago."""


class _Patience:
    """Raises _Stopped if the run was stopped and the time for comparing is over."""

    def __init__(self, cancelled: Cancellation) -> None:
        self._cancelled = cancelled
        self._until: float | None = None

    def check(self) -> None:
        if not self._cancelled:
            return
        self._until = self._until or time.monotonic() + AFTER_STOP
        if time.monotonic() >= self._until:
            raise _Stopped


def judged(record: Record, subvolume: Path, base: Record, base_path: Path, limit: float, cancelled: Cancellation) -> Record:
    """Returns the record of a complete backup whose data is on the disk: suspect, or with a warning, if folders were emptied.

    `base`: the backup from which it was made. `limit`: share of a source path's files, and of its bytes, that may be missing. If
    the emptied folders cannot be determined, the backup is suspect.
    """
    if record.state != COMPLETE:
        return record
    numbers = {result.path: _numbers(result, base) for result in record.paths}
    try:
        emptied = _emptied(subvolume, record, base, base_path, numbers, limit, _Patience(cancelled))
    except _Stopped:
        return _not_compared(record, "the run was stopped")
    except OSError as error:
        return _not_compared(record, error.strerror or str(error))
    if not emptied:
        return record
    paths = tuple(
        judge_emptied(result, numbers[result.path], emptied[result.path], limit) if result.path in emptied else result
        for result in record.paths
    )
    warnings = [warning for new, old in zip(paths, record.paths, strict=True) for warning in new.warnings[len(old.warnings) :]]
    verdict = decide_run(paths)
    assert verdict.state is not None
    missing = [
        (path, emptied_folder.folder) for path, emptied_folder in emptied.items() if emptied_folder.why is EmptiedWhy.NOT_MOUNTED
    ]
    return replace(
        _with_conditions(record, base, [ConditionKey(ConditionKind.EMPTIED, path, folder) for path, folder in missing]),
        paths=paths,
        warnings=(*record.warnings, *warnings),
        state=verdict.state,
        error=verdict.error,
        cause=verdict.cause,
    )


def with_emptied(record: Record, subvolume: Path, base: Record) -> Record:
    """Returns the record with the folders that were emptied before its base was made and are still empty. A later night deletes
    nothing in them, so it cannot find them itself.
    """
    if record.state not in (COMPLETE, SUSPECT):
        return record
    emptied = [condition.key for condition in base.lasting if condition.kind is ConditionKind.EMPTIED]
    return _with_conditions(record, base, [key for key in emptied if _is_empty(subvolume, key.name)])


def _with_conditions(record: Record, base: Record, more: Sequence[ConditionKey]) -> Record:
    keys = [condition.key for condition in record.lasting]
    return replace(record, lasting=follow(base.lasting, [*keys, *more], record.started)) if more else record


def _is_empty(subvolume: Path, folder: str) -> bool:
    """Returns True if the backup has that folder and it is empty."""
    try:
        with Tree(subvolume) as tree:
            return not tree.names(fsencode(folder))
    except (OSError, ValueError):
        return False


def _not_compared(record: Record, why: str) -> Record:
    cause = Cause(CauseCode.NOT_COMPARED, facts={"why": why})
    return replace(record, state=SUSPECT, error=cause_words(cause), cause=cause)


def _numbers(result: PathResult, base: Record) -> Mapping[str, int]:
    """Returns the numbers of a source path in the base; its own numbers if in the base it is only a part of another path."""
    before = base.path(result.path)
    return before.numbers if before else result.numbers


def may_empty_folders(settings: Mapping[str, Any], base: Mapping[str, Any]) -> bool:
    """Returns True if this run's settings may empty a folder of a base that was made with the other settings: a new exclusion."""
    return not set(settings.get("exclude", ())) <= set(base.get("exclude", ()))


def _why_emptied(record: Record, base: Record) -> EmptiedWhy:
    if may_empty_folders(record.settings, base.settings):
        return EmptiedWhy.EXCLUDED
    return EmptiedWhy.UNDATED if base.started > record.started else EmptiedWhy.NOT_MOUNTED


def _emptied(
    subvolume: Path,
    record: Record,
    base: Record,
    base_path: Path,
    numbers: dict[str, Mapping[str, int]],
    limit: float,
    patience: _Patience,
) -> dict[str, EmptiedFolders]:
    """Returns the emptied folders by source path. The paths are those of the record, because the base may come from another pool.

    Counts missing files only until there are too many. `numbers`: of the base, by source path. Their bytes are rsync's, with holes;
    where this may matter, they are replaced by those without holes, for which the base is read. Raises OSError, _Stopped.
    """
    emptied, uncertain, walked = dict[str, EmptiedFolders](), _why_emptied(record, base), set[str]()
    folders = list(_empty_folders(subvolume, patience))
    if not folders:  # the base may have been deleted by now, and is not needed
        return emptied
    with Tree(base_path) as tree:
        for folder, mtime in folders:
            path = _path_of(folder, record)
            if path is None:
                continue
            try:
                why = _reason(mtime, tree.stat(folder).mtime, base.started, uncertain)
                if why is None:
                    continue
                before = emptied.get(path.path)
                if before and before.is_too_much(numbers[path.path], limit):
                    continue
                start = replace(before, others=before.others + 1) if before else EmptiedFolders(_shown(folder), why=why)
                counted = _counted(tree, folder, start, numbers[path.path], limit, patience)
                if counted.bytes and path.path not in walked and not counted.is_too_much(numbers[path.path], limit):
                    walked.add(path.path)
                    numbers[path.path] = {**numbers[path.path], "bytes": _stored(tree, path.path, patience)}
            except OSError as error:
                if error.errno in _NO_FOLDER:  # the base has no folder there
                    continue
                raise
            if counted.files > start.files:
                emptied[path.path] = counted
    return emptied


def _reason(mtime: int, in_base: int, started: datetime, uncertain: EmptiedWhy) -> EmptiedWhy | None:
    """Returns why a folder that is empty now is doubted; None if its content was deleted, so that it has a new time. If the base
    has a time in the future, times prove nothing.

    A folder whose time is not newer than in the base was not emptied on the host, whatever the clock of this server shows.
    """
    if uncertain is EmptiedWhy.UNDATED:
        return EmptiedWhy.NOT_MOUNTED if mtime <= in_base else EmptiedWhy.UNDATED
    return uncertain if mtime < max(int((started.timestamp() - _SKEW) * 1e9), in_base + 1) else None


def _counted(
    tree: Tree, folder: bytes, start: EmptiedFolders, numbers: Mapping[str, int], limit: float, patience: _Patience
) -> EmptiedFolders:
    """Returns `start` plus the content of the folder in the base."""
    sum_, below = start, entries(tree, folder)
    next(below)
    for entry in below:
        patience.check()
        sum_ = replace(sum_, files=sum_.files + 1, bytes=sum_.bytes + stored_size(entry))
        if sum_.is_too_much(numbers, limit):
            break
    return sum_


def _stored(tree: Tree, path: str, patience: _Patience) -> int:
    """Returns the bytes of a source path without holes."""
    total = 0
    for entry in entries(tree, fsencode(path)):
        patience.check()
        total += stored_size(entry)
    return total


def _empty_folders(subvolume: Path, patience: _Patience) -> Iterator[tuple[bytes, int]]:
    """Yields the path and time of each empty folder that this run has changed."""
    now = describe(subvolume)
    assert now is not None
    with opened(subvolume) as root:
        paths = FolderPaths(root)
        for inode in changed_inodes(root, now.created - 1):
            patience.check()
            if stat.S_ISDIR(inode.mode) and not inode.size:
                with suppress(FileNotFoundError):
                    top, *names = paths.of(inode.ino)
                    if top == fsencode(DATA):
                        yield joined(names), inode.mtime


def _path_of(folder: bytes, record: Record) -> PathResult | None:
    """Returns the result of the source path that contains the folder. A configuration has no source path within another."""
    inside = (result for result in record.paths if folder.startswith(fsencode(result.path).rstrip(b"/") + b"/"))
    return next(inside, None)


def _shown(folder: bytes) -> str:
    shown = folder if len(folder) <= _LONGEST else b"..." + folder[-_LONGEST:]
    return printable(shown)
