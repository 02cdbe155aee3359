"""Our command as a process, and a filesystem read without our code."""

import math
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import btrfs

from tests.beds.cli import command

Span = tuple[int, int]
"""vaddr and length."""


def balancer(*words: str | Path, check: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs `btrfs-balancer WORDS` to its end; `check` expects exit status 0."""
    return command("balancer", *words, check=check, env=env)


@dataclass(frozen=True, slots=True)
class Seen:
    """A data block group as python-btrfs's example reads it, with further counts from the same items."""

    vaddr: int
    length: int
    used: int
    used_pct: int
    free: tuple[Span, ...]
    score: float
    joined: tuple[int, ...]
    extents: int
    references: int

    @property
    def fragments(self) -> int:
        return len(self.free)


def score_of(free: Iterable[Span], group_length: int) -> float:
    """Returns the sum, one free extent after the other, by the published formula."""
    top, total = math.log2(group_length), 0.0
    for _, length in free:
        total += 1 - abs((math.log2(length) - (top + 11) / 2) / ((top - 11) / 2))
    return total


def joined(free: Iterable[Span]) -> list[int]:
    """Returns the lengths of runs; adjacent runs count as one."""
    runs: list[list[int]] = []
    for vaddr, length in free:
        if runs and runs[-1][1] == vaddr:
            runs[-1][1] += length
        else:
            runs.append([vaddr, vaddr + length])
    return [end - begin for begin, end in runs]


def histogram(lengths: Iterable[int]) -> list[dict[str, int]]:
    """Returns the histogram in the form of our JSON, counted one by one."""
    by_name: dict[int, list[int]] = {}
    for length in lengths:
        by_name.setdefault(length.bit_length() - 1, []).append(length)
    classes = range(min(by_name), max(by_name) + 1) if by_name else range(0)
    return [
        {"at_least": 2**number, "extents": len(by_name.get(number, [])), "bytes": sum(by_name.get(number, []))}
        for number in classes
    ]


def theirs(mount: Path) -> dict[int, Seen]:
    """Returns each data block group by python-btrfs, an object for each item, like its example."""
    with btrfs.FileSystem(str(mount)) as filesystem:
        has_tree = _has_free_space_tree(filesystem)
        return {
            chunk.vaddr: _seen(filesystem, chunk, has_tree) for chunk in filesystem.chunks() if chunk.type & btrfs.BLOCK_GROUP_DATA
        }


def _has_free_space_tree(filesystem: btrfs.FileSystem) -> bool:
    try:
        list(filesystem.free_space_extents(0, 0))
    except FileNotFoundError:
        return False
    return True


def _seen(filesystem: btrfs.FileSystem, chunk: btrfs.ctree.Chunk, has_tree: bool) -> Seen:
    first, last = chunk.vaddr, chunk.vaddr + chunk.length - 1
    group = filesystem.block_group(chunk.vaddr, chunk.length)
    kinds = (btrfs.ctree.ExtentItem, btrfs.ctree.MetaDataItem)
    extents = [extent for extent in filesystem.extents(first, last) if isinstance(extent, kinds)]
    if has_tree:
        free = [
            (free_space_extent.vaddr, free_space_extent.length) for free_space_extent in filesystem.free_space_extents(first, last)
        ]
    else:
        free = list(_between(extents, filesystem.nodesize, first, last + 1))
    score, runs = score_of(free, chunk.length), tuple(joined(free))
    references = sum(extent.refs for extent in extents)
    used, share = group.used, group.used_pct
    return Seen(first, chunk.length, used, share, tuple(free), score, runs, len(extents), references)


def _between(extents: Iterable[btrfs.ctree.ExtentItem], nodesize: int, first: int, end: int) -> Iterator[Span]:
    reached = first
    for extent in extents:
        if extent.vaddr > reached:
            yield reached, extent.vaddr - reached
        reached = extent.vaddr + (nodesize if isinstance(extent, btrfs.ctree.MetaDataItem) else extent.length)
    if reached < end:
        yield reached, end - reached
