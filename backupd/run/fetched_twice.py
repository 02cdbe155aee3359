"""Finds what a run has fetched several times over: snapshots of the host, bind mounts, and the pool itself.

Asking the host would take a command that a restricted key does not permit, so the backup is searched: only in a run that has
fetched much, and by a sample. A folder counts if its files have the names, sizes and times of others, and its folders have the
times of the others, which neither a second installation nor a second checkout has.
"""

import json
import logging
import os
import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from backupd.files.tree import Tree, joined
from backupd.repo.backup_json import DATA, PathResult
from backupd.repo.json_file import NOT_UNDERSTOOD
from backupd.run.finishing import Prepared
from backupd.run.repeated_folders import RepeatedFolder, SampledFile, excluded_folder, is_much, is_snapshot, repeated_folders
from btrkeep.conditions import ConditionKey, ConditionKind, shortened
from btrkeep.config import HostConfig
from btrkeep.decisions.lasting import exclude_command, exclude_pattern
from btrkeep.pool.marker import MARKER, Pool
from btrkeep.pool.subvolume import commit, describe, inodes_made, opened
from btrkeep.process.cancellation import Cancellation
from btrkeep.treescan import ChangedInode, FolderPaths, changed_inodes
from btrkeep.units import counted, printable

log = logging.getLogger(__name__)

MUCH_FILES, MUCH_BYTES = 1000, 64 << 20
"""A run that has made fewer files and received fewer bytes is not searched."""
_SAMPLE = 2000
_COPIES = 16  # of one file that are looked at
_MOST_CHOSEN = 8 * _SAMPLE  # a host chooses the sizes and times by which the sample is made
_MOST_NAMES = 1 << 25  # squares of the folders' depths: four bytes each
_MOST_WARNINGS = 20
_FOLDERS = 30  # whose times are compared
_SAME_TIMES = 0.5
_LONGEST_MARKER = 1 << 16


class _Stopped(Exception):
    """The run was stopped."""


@dataclass(frozen=True, slots=True)
class FetchedTwice:
    """The results of a run with its warnings, and the `folders` that have the files of others."""

    results: list[PathResult]
    folders: tuple[ConditionKey, ...] = ()


@dataclass(frozen=True, slots=True)
class _Repeat:
    """A warning about a source path. `folder`: what could be left out; "" if the warning is about none."""

    path: str
    words: str
    folder: str = ""


def with_fetched_twice(
    pool: Pool, host: HostConfig, prepared: Prepared, results: Sequence[PathResult], cancelled: Cancellation, command: str
) -> FetchedTwice:
    """Returns the results of a run, with warnings about what its backup has several times, and about the pool itself.

    `command`: how `backupd` is called for this pool.
    """
    if not results:
        return FetchedTwice([])
    warnings, folders = defaultdict[str, list[str]](list), list[ConditionKey]()
    try:
        for repeat in _found(pool, host, prepared, results, cancelled, command):
            warnings[repeat.path].append(repeat.words)
            if repeat.folder:
                folders.append(ConditionKey(ConditionKind.FETCHED_TWICE, repeat.path, repeat.folder))
    except (_Stopped, OSError, ValueError) as error:
        why = "the run was stopped" if isinstance(error, _Stopped) else getattr(error, "strerror", None) or str(error)
        warnings[results[0].path].append(_unknown(results[0].path, why))
    except Exception as error:  # the transfer has come to its end: whatever the names of a host do to this, its backup stays
        log.exception("internal error while the backup of %s was searched", host.name)
        warnings[results[0].path].append(_unknown(results[0].path, f"internal error: {error!r}"))
    new = [replace(result, warnings=(*result.warnings, *warnings[result.path])) for result in results]
    return FetchedTwice(new, tuple(folders))


def _found(
    pool: Pool, host: HostConfig, prepared: Prepared, results: Sequence[PathResult], cancelled: Cancellation, command: str
) -> Iterator[_Repeat]:
    """Yields each warning."""
    own = own_place(prepared.path, pool)
    if own and (path := _path_of(results, own)):
        remedy = _remedy(host, path, own, command)
        yield _Repeat(path, f"{path}: this host is the backup server itself, and its backup has the pool in it: {remedy}")
    created, received = (sum(result.numbers.get(key, 0) for result in results) for key in ("created", "received"))
    if created >= MUCH_FILES or received >= MUCH_BYTES or not prepared.fresh:  # an earlier run may have made more
        created = created if prepared.fresh else inodes_made(prepared.path)
        repeats = list(_repeats(host, prepared, results, created, cancelled, command))
        yield from repeats[:_MOST_WARNINGS]
        if (more := len(repeats) - _MOST_WARNINGS) > 0:
            path = repeats[-1].path
            yield _Repeat(path, f"{path}: {counted(more, 'more folder')} were fetched several times")


def _unknown(path: str, why: str) -> str:
    return f"{path}: it is not known whether folders were fetched several times: {why}"


def own_place(subvolume: Path, pool: Pool) -> str:
    """Returns where a backup has the marker of the pool that it is in, if that is the pool's own path; else ""."""
    for place in dict.fromkeys((pool.path.absolute(), pool.path.resolve())):
        with suppress(OSError, *NOT_UNDERSTOOD), Tree(subvolume) as tree:
            with os.fdopen(tree.open_file(os.fsencode(place / MARKER / "pool.json")), "rb") as file:
                fields = json.loads(file.read(_LONGEST_MARKER))
            if isinstance(fields, dict) and fields.get("id") == pool.id:
                return str(place)
    return ""


def _path_of(results: Sequence[PathResult], folder: str) -> str:
    return next((each.path for each in results if f"{folder}/".startswith(each.path.rstrip("/") + "/")), "")


def _repeats(
    host: HostConfig, prepared: Prepared, results: Sequence[PathResult], created: int, cancelled: Cancellation, command: str
) -> Iterator[_Repeat]:
    """Yields each warning: one for each folder to leave out."""
    files = sampled_files(prepared.path, created, cancelled)
    with Tree(prepared.path) as tree:
        found = [repeat for repeat in repeated_folders(files) if _has_same_times(tree, repeat)]
    if not is_much(files, found):
        return
    by_excluded = defaultdict[tuple[bytes, ...], list[RepeatedFolder]](list)
    for repeat in found:
        by_excluded[excluded_folder(repeat)].append(repeat)
    for names, repeats in by_excluded.items():
        folder = os.fsdecode(joined(list(names)))
        path = _path_of(results, folder)
        if path and folder != path:
            if is_snapshot(repeats[0]):
                remedy = _remedy(host, path, folder, command)
            else:  # which of the two is the original is not known here
                remedy = f"`{command} host test {shlex.quote(host.name)}` names mounts; `exclude` the one that is a mount or a copy"
            yield _Repeat(path, _words(path, repeats, remedy), folder)


def _remedy(host: HostConfig, path: str, folder: str, command: str) -> str:
    key = ConditionKey(ConditionKind.NOT_KEPT, path, folder)
    return f"to leave it out: {exclude_command(host.name, key, command)}" if exclude_pattern(key) else "`exclude` it"


def _words(path: str, repeats: Sequence[RepeatedFolder], remedy: str) -> str:
    first = repeats[0]
    again, original = (shortened(printable(joined(list(names)))) for names in (first.again, first.folder))
    more = f" (and {counted(len(repeats) - 1, 'more folder')} of that kind)" if len(repeats) > 1 else ""
    return f"{path}: {again}{more} has the same files as {original}, as a snapshot, a bind mount or a copy has; {remedy}"


def _has_same_times(tree: Tree, repeat: RepeatedFolder) -> bool:
    same = compared = 0
    for below in repeat.below[:_FOLDERS]:
        with suppress(OSError, ValueError):
            times = {tree.stat(joined([*names, *below])).mtime for names in (repeat.folder, repeat.again)}
            same, compared = same + (len(times) == 1), compared + 1
    return bool(same) and same >= _SAME_TIMES * compared


def sampled_files(subvolume: Path, created: int, cancelled: Cancellation) -> list[SampledFile]:
    """Returns a sample of the files that a run has made, and all that have the size and time of one of them."""
    commit(subvolume)  # the tree search sees committed inodes only
    now = describe(subvolume)
    assert now is not None
    part = max(1, created // _SAMPLE)
    new, copies = set[int](), defaultdict[tuple[int, int], list[ChangedInode]](list)
    with opened(subvolume) as root:
        for inode in _regular(root, now.created - 1, cancelled):
            if _is_chosen(inode, part) and len(new) < _MOST_CHOSEN and len(copies[inode.size, inode.mtime]) < _COPIES:
                copies[inode.size, inode.mtime].append(inode)
                new.add(inode.ino)
        for inode in _regular(root, 0, cancelled) if now.parent_uuid else ():
            same = copies.get((inode.size, inode.mtime))
            if same is not None and len(same) < _COPIES and inode.ino not in new:
                same.append(inode)
        paths, files, room = FolderPaths(root), list[SampledFile](), _MOST_NAMES
        for inodes in copies.values():
            for inode in inodes:
                if cancelled:
                    raise _Stopped
                with suppress(FileNotFoundError):
                    top, *folder = paths.of(inode.ino)
                    if top == os.fsencode(DATA) and folder:
                        name = folder.pop()
                        if (room := room - len(folder) ** 2) < 0:
                            raise ValueError("there are too many deep folders")
                        files.append(SampledFile(tuple(folder), name, inode.size, inode.mtime, inode.ino in new))
    return files


def _is_chosen(inode: ChangedInode, part: int) -> bool:
    """Returns True for one file in `part`: the same for all files of one size and time."""
    return hash((inode.size, inode.mtime)) % part == 0


def _regular(root: int, since: int, cancelled: Cancellation) -> Iterator[ChangedInode]:
    for number, inode in enumerate(changed_inodes(root, since)):
        if not number % 4096 and cancelled:
            raise _Stopped
        if inode.size and inode.mode & 0o170000 == 0o100000:
            yield inode
