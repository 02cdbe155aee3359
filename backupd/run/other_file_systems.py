"""Finds what `one_file_system` leaves out of a backup: mounts on folders of the host, and nested subvolumes. rsync transfers such a
folder as an empty one, deletes nothing below it, and prints nothing.

So the host is asked again about the folders that may be mount points: those that are empty and that this run has made or changed,
because such a folder has the owner and the times of the mounted filesystem. A folder that an earlier backup found remains in the
list as long as it is unchanged. The host is asked about all folders in a first backup, and if files of the base were neither listed
nor deleted.

A host with btrkeep-source lists its mounts and subvolumes at the beginning of a session, with their sizes, and is not asked again.
"""

import asyncio
import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from backupd.files.tree import Tree, joined
from backupd.repo.backup_json import DATA, PathOutcome, PathResult, Record
from backupd.rsync.host_answers import NO_SIZES, is_expected, left_out_words
from backupd.rsync.probe import HostAccess, left_empty
from backupd.rsync.process import RunCancellation
from backupd.rsync.shared_connection import NotConnected, SharedConnection
from backupd.run.finalisation import WorkSubvolume
from backupd.run.run_context import RunContext
from btrkeep.config import HostConfig
from btrkeep.config.self_exclusion import below
from btrkeep.errors import OperatorError
from btrkeep.pool.subvolume import commit, describe, opened
from btrkeep.treescan import FolderPaths, changed_inodes

_PRINTS_MOUNTS = 31  # the protocol of rsync 3.1
_MOST_CHOSEN = 200  # folders that are listed one by one; for more, a complete list is cheaper
_MOST_RULES = 1 << 18  # bytes of their filter rules, which repeat the paths of all parent folders
_MOST_KEPT = 100
_MOST_EMPTY = 4 << 20  # bytes of the paths of empty folders
_CHOSEN_SECONDS, _ALL_FOLDERS_SECONDS = 300.0, 3600.0
STOPPED = "the run was stopped"


@dataclass(frozen=True, slots=True)
class ChangedFolders:
    """Folders that a run has made or changed: the paths of the `empty` ones, and the inode numbers of `all`.

    `beyond`: there are more empty ones, too many to ask about each.
    """

    empty: tuple[str, ...]
    all: frozenset[int]
    beyond: bool = False


async def with_left_out(
    context: RunContext,
    host: HostConfig,
    prepared: WorkSubvolume,
    results: Sequence[PathResult],
    protocol: int | None,
    cancellation: RunCancellation,
    connection: SharedConnection,
    inner: Mapping[str, int | None] | None,
) -> list[PathResult]:
    """Returns the results of a run with `one_file_system`, with the folders that were left out of each path. Raises OSError of the
    pool.

    `protocol`: that of the transfer; None if unknown. `connection`: that of the run. `inner`: as in SnapshotSession.
    """
    if inner is not None:
        return [_listed(prepared.path, result, inner) if _is_whole(result) else result for result in results]
    if protocol is not None and protocol < _PRINTS_MOUNTS:
        return [not_looked(result, "the host needs rsync 3.1 or later") for result in results]
    changed = await asyncio.to_thread(_changed_folders, prepared.path)
    new = list[PathResult]()
    for result in results:
        is_asked = _is_whole(result)
        new.append(await _one_path(context, host, prepared, result, changed, cancellation, connection) if is_asked else result)
    return new


def _is_whole(result: PathResult) -> bool:
    return result.outcome in (PathOutcome.COMPLETE, PathOutcome.SUSPECT)


def _listed(subvolume: Path, result: PathResult, inner: Mapping[str, int | None]) -> PathResult:
    """Returns the result with the folders that the host's list has below its path."""
    folders = [folder for folder in inner if folder != result.path and below(folder, result.path)]
    return _with_folders(subvolume, result, folders, inner)


def not_looked(result: PathResult, why: str) -> PathResult:
    """Returns the result with a warning; the next run asks the host about all folders."""
    words = f"{result.path}: could not list the folders that `one_file_system` excludes: {why}"
    return replace(result, warnings=(*result.warnings, words))


async def _one_path(
    context: RunContext,
    host: HostConfig,
    prepared: WorkSubvolume,
    result: PathResult,
    changed: ChangedFolders,
    cancellation: RunCancellation,
    connection: SharedConnection,
) -> PathResult:
    base = prepared.base
    before = base.path(result.path) if base else None
    unchanged, changed_folders = _split_by_change(prepared.path, (before.left_out if before else None) or (), changed.all)
    inside = [
        folder
        for folder in changed.empty
        if folder.startswith(result.path.rstrip("/") + "/") and not is_expected(folder, result.path)
    ]
    chosen = list(dict.fromkeys((*changed_folders, *inside)))
    everything = before is None or was_hidden(base, before, result) or changed.beyond or are_too_many(chosen)
    left_out = list(unchanged)
    if everything or chosen:
        if cancellation:
            return not_looked(result, STOPPED)
        try:
            access = HostAccess(context.confines(host), await connection.socket(cancellation), context.buckets(host))
            folders = await left_empty(
                context.config,
                host,
                result.path,
                () if everything else chosen,
                access=access,
                seconds=_ALL_FOLDERS_SECONDS if everything else _CHOSEN_SECONDS,
                cancellation=cancellation,
            )
        except NotConnected:
            return not_looked(result, STOPPED if cancellation else "the host could not be reached again")
        except OperatorError as error:
            await connection.close()  # the error may have broken it
            return not_looked(result, STOPPED if cancellation else error.message)
        left_out += [os.fsdecode(folder) for folder in folders]
    return _with_folders(prepared.path, result, left_out)


def _with_folders(
    subvolume: Path, result: PathResult, folders: Sequence[str], sizes: Mapping[str, int | None] = NO_SIZES
) -> PathResult:
    """Returns the result with those of the folders that are in the backup, and a warning that names them."""
    present = [
        folder for folder in dict.fromkeys(folders) if not is_expected(folder, result.path) and _is_folder(subvolume, folder)
    ]
    if not present:
        return replace(result, left_out=())
    old = [folder for folder in present if not _is_empty(subvolume, folder)]
    return replace(
        result,
        left_out=tuple(present[:_MOST_KEPT]),
        warnings=(*result.warnings, left_out_words(result.path, present, len(old), sizes)),
    )


def are_too_many(folders: Sequence[str]) -> bool:
    """Returns True if asking about all folders takes less time, or if the names, which the host chose, make too many rules."""
    return len(folders) > _MOST_CHOSEN or sum(len(folder) * folder.count("/") for folder in folders) > _MOST_RULES


def was_hidden(base: Record | None, before: PathResult, result: PathResult) -> bool:
    """Returns True if the base has, or may have, files that this run neither listed nor deleted."""
    if base is None or before.left_out is None:
        return True
    if result.unreadable or result.vanished or result.deletions_skipped or result.not_kept:
        return False
    old, new = before.numbers, result.numbers
    if not {"files", "created", "deleted"} <= new.keys() or "files" not in old:
        return False
    return old["files"] + new["created"] - new["deleted"] > new["files"]


def _changed_folders(subvolume: Path) -> ChangedFolders:
    commit(subvolume)  # the tree search sees committed inodes only
    now = describe(subvolume)
    assert now is not None
    empty, every, size = list[str](), set[int](), 0
    with opened(subvolume) as root:
        paths = FolderPaths(root)
        for inode in changed_inodes(root, now.created - 1):
            if not stat.S_ISDIR(inode.mode):
                continue
            every.add(inode.ino)
            if not inode.size and size <= _MOST_EMPTY:
                with suppress(FileNotFoundError):
                    top, *names = paths.of(inode.ino)
                    if top == os.fsencode(DATA):
                        empty.append(os.fsdecode(joined(names)))
                        size += len(empty[-1])
    return ChangedFolders(tuple(empty), frozenset(every), beyond=size > _MOST_EMPTY)


def _split_by_change(subvolume: Path, left_out: Sequence[str], changed: frozenset[int]) -> tuple[list[str], list[str]]:
    """Returns those of the base's folders that are unchanged, and those about which the host must be asked again."""
    unchanged, changed_folders = list[str](), list[str]()
    with Tree(subvolume) as tree:
        for folder in left_out:
            with suppress(OSError, ValueError):
                (changed_folders if tree.stat(os.fsencode(folder)).inode in changed else unchanged).append(folder)
    return unchanged, changed_folders


def _is_folder(subvolume: Path, folder: str) -> bool:
    with suppress(OSError, ValueError), Tree(subvolume) as tree:
        return tree.stat(os.fsencode(folder)).kind == "folder"
    return False


def _is_empty(subvolume: Path, folder: str) -> bool:
    with suppress(OSError, ValueError), Tree(subvolume) as tree:
        return not tree.names(os.fsencode(folder))
    return True
