"""Finds what a run has fetched several times (snapshots on the host, bind mounts, the pool itself), and watches that in later runs.

Asking the host would need a command that a restricted key does not permit, so the backup is searched: only in a run that has
fetched much, and by a sample. Files are compared by name, size and time in nanoseconds. A folder counts if its files are also in
another folder, and its folders have the times of those in the other folder, which is not so for a second installation or a second
checkout.
"""

import json
import logging
import os
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import islice
from os import fsencode
from pathlib import Path

from backupd.files.tree import Entry, Tree, joined
from backupd.files.walking import walk
from backupd.repo.backup_json import DATA, PathResult, Record
from backupd.repo.pool_files import NOT_UNDERSTOOD
from backupd.run.finalisation import WorkSubvolume
from backupd.run.interrupted import settings_of
from btrkeep.backup_states import ConditionKey, ConditionKind, shortened
from btrkeep.config import HostConfig
from btrkeep.decisions.lasting import exclude_command, exclude_pattern
from btrkeep.pool.marker import MARKER, Pool
from btrkeep.pool.subvolume import commit, describe, inodes_made, opened
from btrkeep.process.progress import Cancellation
from btrkeep.treescan import ChangedInode, FolderPaths, changed_inodes
from btrkeep.units import counted, printable

log = logging.getLogger(__name__)

Names = tuple[bytes, ...]
MUCH_FILES, MUCH_BYTES = 1000, 64 << 20
"""A run that has made fewer files and received fewer bytes is not searched."""
_SAMPLE = 2000
_COPIES = 16  # copies of a file that are examined
_MOST_CHOSEN = 8 * _SAMPLE  # limited, because a hostile host controls the sizes and times that select the sample
_MOST_NAMES = 1 << 25  # squares of the folders' depths: four bytes each
_MOST_WARNINGS = 20
_FOLDERS = 30  # folders whose times are compared
_SAME_TIMES = 0.5
_LONGEST_MARKER = 1 << 16


@dataclass(frozen=True, slots=True)
class SampledFile:
    """A file of the backup."""

    folder: Names
    """The names of the folders above it."""
    name: bytes
    """Its name."""
    size: int
    """Bytes."""
    mtime: int
    """Nanoseconds."""
    is_new: bool
    """True if this run has fetched it."""


@dataclass(frozen=True, slots=True)
class RepeatedFolder:
    """`again` has the files of `folder`. `below`: folders relative to both that have equal files."""

    folder: Names
    again: Names
    below: tuple[Names, ...]


class _Stopped(Exception):
    """The run was stopped."""


@dataclass(frozen=True, slots=True)
class FetchedTwice:
    """The results of a run with its warnings, and the `folders` whose files are also in another folder."""

    results: list[PathResult]
    folders: tuple[ConditionKey, ...] = ()


@dataclass(frozen=True, slots=True)
class _Repeat:
    """A warning about a source path."""

    path: str
    """The source path."""
    words: str
    """The warning."""
    folder: str = ""
    """The folder that could be excluded; "": the warning is not about a folder."""


def with_fetched_twice(
    pool: Pool, host: HostConfig, prepared: WorkSubvolume, results: Sequence[PathResult], cancelled: Cancellation, command: str
) -> FetchedTwice:
    """Returns the results of a run, with warnings about folders that its backup has several times, and about the pool itself.

    `command`: the command line of `backupd` for this pool.
    """
    if not results:
        return FetchedTwice([])
    warnings, folders = defaultdict[str, list[str]](list), list[ConditionKey]()
    try:
        for repeat in _warnings(pool, host, prepared, results, cancelled, command):
            warnings[repeat.path].append(repeat.words)
            if repeat.folder:
                folders.append(ConditionKey(ConditionKind.FETCHED_TWICE, repeat.path, repeat.folder))
    except (_Stopped, OSError, ValueError) as error:
        why = "the run was stopped" if isinstance(error, _Stopped) else getattr(error, "strerror", None) or str(error)
        warnings[results[0].path].append(_unknown(results[0].path, why))
    except Exception as error:  # the transfer is complete: odd names of a host must not cost its backup
        log.exception("internal error while the backup of %s was searched", host.name)
        warnings[results[0].path].append(_unknown(results[0].path, f"internal error: {error!r}"))
    new = [replace(result, warnings=(*result.warnings, *warnings[result.path])) for result in results]
    return FetchedTwice(new, tuple(folders))


def _warnings(
    pool: Pool, host: HostConfig, prepared: WorkSubvolume, results: Sequence[PathResult], cancelled: Cancellation, command: str
) -> Iterator[_Repeat]:
    """Yields each warning."""
    own = own_place(prepared.path, pool)
    if own and (path := _path_of(results, own)):
        remedy = _remedy(host, path, own, command)
        yield _Repeat(path, f"{path}: this host is the backup server itself, and its backup contains the pool: {remedy}")
    created, received = (sum(result.numbers.get(key, 0) for result in results) for key in ("created", "received"))
    if created >= MUCH_FILES or received >= MUCH_BYTES or not prepared.fresh:  # an earlier run may have made more
        created = created if prepared.fresh else inodes_made(prepared.path)
        repeats = list(_repeats(host, prepared, results, created, cancelled, command))
        yield from repeats[:_MOST_WARNINGS]
        if (more := len(repeats) - _MOST_WARNINGS) > 0:
            path = repeats[-1].path
            yield _Repeat(path, f"{path}: {counted(more, 'more folder')} were backed up several times")


def _unknown(path: str, why: str) -> str:
    return f"{path}: could not check whether folders were backed up several times: {why}"


def own_place(subvolume: Path, pool: Pool) -> str:
    """Returns the path at which a backup has the marker of its own pool, if that is the pool's path; else ""."""
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
    host: HostConfig, prepared: WorkSubvolume, results: Sequence[PathResult], created: int, cancelled: Cancellation, command: str
) -> Iterator[_Repeat]:
    """Yields each warning: one for each folder to exclude."""
    files = sampled_files(prepared.path, created, cancelled)
    with Tree(prepared.path) as tree:
        repeated = [repeat for repeat in repeated_folders(files) if _has_same_times(tree, repeat)]
    if not is_much(files, repeated):
        return
    by_excluded = defaultdict[tuple[bytes, ...], list[RepeatedFolder]](list)
    for repeat in repeated:
        by_excluded[excluded_folder(repeat)].append(repeat)
    for names, repeats in by_excluded.items():
        folder = os.fsdecode(joined(list(names)))
        path = _path_of(results, folder)
        if path and folder != path:
            if is_snapshot(repeats[0]):
                remedy = _remedy(host, path, folder, command)
            else:  # it is unknown which one is the original
                remedy = (
                    f"`{command} host test {shlex.quote(host.name)}` lists the mounts; add the folder that is a mount or a "
                    "copy to `exclude`"
                )
            yield _Repeat(path, _words(path, repeats, remedy), folder)


def _remedy(host: HostConfig, path: str, folder: str, command: str) -> str:
    key = ConditionKey(ConditionKind.NOT_KEPT, path, folder)
    return f"to exclude it: {exclude_command(host.name, key, command)}" if exclude_pattern(key) else "add the folder to `exclude`"


def _words(path: str, repeats: Sequence[RepeatedFolder], remedy: str) -> str:
    first = repeats[0]
    again, original = (shortened(printable(joined(list(names)))) for names in (first.again, first.folder))
    more = f" (and {counted(len(repeats) - 1, 'more folder')} of that kind)" if len(repeats) > 1 else ""
    return f"{path}: {again}{more} has the same files as {original}(a snapshot, a bind mount or a copy); {remedy}"


def _has_same_times(tree: Tree, repeat: RepeatedFolder) -> bool:
    same = compared = 0
    for below in repeat.below[:_FOLDERS]:
        with suppress(OSError, ValueError):
            times = {tree.stat(joined([*names, *below])).mtime for names in (repeat.folder, repeat.again)}
            same, compared = same + (len(times) == 1), compared + 1
    return bool(same) and same >= _SAME_TIMES * compared


def sampled_files(subvolume: Path, created: int, cancelled: Cancellation) -> list[SampledFile]:
    """Returns a sample of the files that a run has made, and all files with the size and time of one of them."""
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
    """Returns True for one of `part` files, by a hash: files of equal size and time are either all chosen, or none of them is."""
    return hash((inode.size, inode.mtime)) % part == 0


def _regular(root: int, since: int, cancelled: Cancellation) -> Iterator[ChangedInode]:
    for number, inode in enumerate(changed_inodes(root, since)):
        if not number % 4096 and cancelled:
            raise _Stopped
        if inode.size and inode.mode & 0o170000 == 0o100000:
            yield inode


_FEWEST_EQUAL = 10  # files of the sample in two folders
_MOST_OTHER = 0.1  # share of a folder's files that may be in no other folder
_LEAST_SHARE = 0.2  # share of a run's data that must have been fetched twice
_SNAPSHOTS = frozenset({b".snapshots", b".snapshot", b".zfs", b"@snapshots", b"timeshift-btrfs", b"btrbk_snapshots"})
"""Folders of programs that make snapshots: one exclusion leaves out all of their content."""


def repeated_folders(files: Sequence[SampledFile]) -> list[RepeatedFolder]:
    """Returns the folders whose files are also in another folder. A folder above a returned one is not returned."""
    pairs, repeated = defaultdict[tuple[Names, Names], list[Names]](list), Counter[Names]()
    for copies in _by_content(files):
        first, *others = sorted(copies, key=lambda file: (file.is_new, len(file.folder), file.folder))
        for other in others:
            same = _common_end(first.folder, other.folder)
            end = len(same)
            pairs[first.folder[: len(first.folder) - end], other.folder[: len(other.folder) - end]].append(same)
            repeated.update(_above(other.folder))
    total = Counter[Names]()
    for file in files:
        total.update(_above(file.folder))
    repeats = list[RepeatedFolder]()
    for (folder, again), below in pairs.items():
        depth = len(_common_start(below))
        top, rest = below[0][:depth], {names[depth:] for names in below}
        again = (*again, *top)
        if len(below) >= _FEWEST_EQUAL and repeated[again] >= (1 - _MOST_OTHER) * total[again]:
            repeats.append(RepeatedFolder((*folder, *top), again, tuple(sorted(rest))))
    return _outermost(repeats)


def is_much(files: Sequence[SampledFile], repeats: Iterable[RepeatedFolder]) -> bool:
    """Returns True if enough of the fetched data is in the folders, by number of files or by bytes."""
    folders = {repeat.again for repeat in repeats}
    new = [file for file in files if file.is_new]
    again = [file for file in new if any(names in folders for names in _above(file.folder))]
    return any(
        part and part >= _LEAST_SHARE * whole
        for part, whole in (
            (len(again), len(new)),
            (sum(file.size for file in again), sum(file.size for file in new)),
        )
    )


def is_snapshot(repeat: RepeatedFolder) -> bool:
    """Returns True if `again` is in a folder of a program that makes snapshots."""
    return not _SNAPSHOTS.isdisjoint(repeat.again)


def excluded_folder(repeat: RepeatedFolder) -> Names:
    """Returns the folder to exclude: the folder of all snapshots if `again` is a snapshot."""
    for depth, name in enumerate(repeat.again):
        if name in _SNAPSHOTS:
            return repeat.again[: depth + 1]
    return repeat.again


def _by_content(files: Iterable[SampledFile]) -> list[list[SampledFile]]:
    groups = defaultdict[tuple[bytes, int, int], list[SampledFile]](list)
    for file in files:
        groups[file.name, file.size, file.mtime].append(file)
    return [group for group in groups.values() if len(group) > 1]


def _above(folder: Names) -> list[Names]:
    return [folder[:depth] for depth in range(len(folder) + 1)]


def _common_end(first: Names, second: Names) -> Names:
    length = 0
    while length < min(len(first), len(second)) and first[-length - 1] == second[-length - 1]:
        length += 1
    return first[len(first) - length :]


def _common_start(many: Sequence[Names]) -> Names:
    low, high = min(many), max(many)
    length = 0
    while length < min(len(low), len(high)) and low[length] == high[length]:
        length += 1
    return low[:length]


def _outermost(repeats: Sequence[RepeatedFolder]) -> list[RepeatedFolder]:
    by_folder = dict[Names, RepeatedFolder]()
    for repeat in sorted(repeats, key=lambda repeat: -len(repeat.below)):
        by_folder.setdefault(repeat.again, repeat)
    return [repeat for names, repeat in sorted(by_folder.items()) if not any(above in by_folder for above in _above(names)[:-1])]


_MOST_LOOKED_UP = 3000  # names; each folder counts twice


def standing_keys(subvolume: Path, base: Record | None, twice: FetchedTwice, host: HostConfig) -> list[ConditionKey]:
    """Returns the lasting conditions of a backup: those that its run has found, and those of its base that the run did not check.

    A run searches for repeated folders only if it has fetched much. Otherwise a condition of the base counts until the files of its
    folder are no longer in the backup: the folder was excluded, or a bind mount has ended. A changed `exclude` also ends it,
    because the other folder may be excluded now.
    """
    before = [condition.key for condition in base.lasting] if base else []
    keys = list(twice.folders)
    exclude = settings_of(host)["exclude"]
    if base and base.settings.get("exclude", exclude) == exclude:
        old = subvolume.parent / str(base.name)
        keys += [key for key in before if key.kind is ConditionKind.FETCHED_TWICE and _has_files_of(subvolume, old, key.name)]
    for result in twice.results:
        if result.left_out is not None:
            keys += [ConditionKey(ConditionKind.LEFT_OUT, result.path, folder) for folder in result.left_out]
        elif host.one_file_system:  # the host could not be asked
            keys += [
                key
                for key in before
                if key.kind is ConditionKind.LEFT_OUT and key.path == result.path and _is_folder(subvolume, key.name)
            ]
    return keys


def _has_files_of(subvolume: Path, base: Path, folder: str) -> bool:
    """Returns True if a file of this folder in the base is in the backup unchanged. If the base cannot be read, the folder must
    exist.
    """
    path = fsencode(folder)
    try:
        with Tree(subvolume) as tree, Tree(base) as old, closing(walk(old, path)) as walk_entries:
            entries = (each.entry for each in islice(walk_entries, _MOST_LOOKED_UP))
            return any(_is_same(tree, entry) for entry in entries if entry.kind == "file")
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return _is_folder(subvolume, folder)


def _is_same(tree: Tree, file: Entry) -> bool:
    with suppress(FileNotFoundError, NotADirectoryError):
        present = tree.stat(file.path)
        return (present.kind, present.size, present.mtime) == ("file", file.size, file.mtime)
    return False


def _is_folder(subvolume: Path, folder: str) -> bool:
    with suppress(OSError, ValueError), Tree(subvolume) as tree:
        return tree.stat(fsencode(folder)).kind == "folder"
    return False
