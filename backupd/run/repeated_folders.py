"""Decides which folders of a backup have the files of other ones: snapshots of the host, bind mounts, copies. Pure.

Files are compared by name, size and time in nanoseconds, by a sample. Trees that are alike because the same packages were
installed twice, or are two checkouts, differ in the times of their folders, which the caller compares.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_FEWEST_EQUAL = 10  # files of the sample in two folders
_MOST_OTHER = 0.1  # of a folder's files may be in no other one
_LEAST_SHARE = 0.2  # of what a run has fetched must have been fetched twice
_SNAPSHOTS = frozenset({b".snapshots", b".snapshot", b".zfs", b"@snapshots", b"timeshift-btrfs", b"btrbk_snapshots"})
"""Folders of programs that make snapshots: all of their content is left out at once."""

Names = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class SampledFile:
    """A file of the backup. `folder`: the names of the folders above it; `is_new`: this run has fetched it."""

    folder: Names
    name: bytes
    size: int
    mtime: int
    is_new: bool


@dataclass(frozen=True, slots=True)
class RepeatedFolder:
    """`again` has the files of `folder`. `below`: folders relative to both that have equal files."""

    folder: Names
    again: Names
    below: tuple[Names, ...]


def repeated_folders(files: Sequence[SampledFile]) -> list[RepeatedFolder]:
    """Returns the folders whose files are in another folder, too. What is above a folder that is returned is not."""
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
    found = list[RepeatedFolder]()
    for (folder, again), below in pairs.items():
        depth = len(_common_start(below))
        top, rest = below[0][:depth], {names[depth:] for names in below}
        again = (*again, *top)
        if len(below) >= _FEWEST_EQUAL and repeated[again] >= (1 - _MOST_OTHER) * total[again]:
            found.append(RepeatedFolder((*folder, *top), again, tuple(sorted(rest))))
    return _outermost(found)


def is_much(files: Sequence[SampledFile], found: Iterable[RepeatedFolder]) -> bool:
    """Returns True if enough of what the run has fetched is in the folders, by files or by bytes."""
    folders = {repeat.again for repeat in found}
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
    """Returns the folder to leave out: that of all snapshots, where `again` is one."""
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


def _outermost(found: Sequence[RepeatedFolder]) -> list[RepeatedFolder]:
    by_folder = dict[Names, RepeatedFolder]()
    for repeat in sorted(found, key=lambda repeat: -len(repeat.below)):
        by_folder.setdefault(repeat.again, repeat)
    return [repeat for names, repeat in sorted(by_folder.items()) if not any(above in by_folder for above in _above(names)[:-1])]
