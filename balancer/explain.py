"""Everything about one block group: the layout of its free space, its map, the parts of its score, and the data that must move.

Addresses run from left to right, and each row of text is two lines of the map: the upper and the lower halves.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from balancer.score import SIZES, Array, FreeSpaceTally, joined, size_class, tent
from balancer.survey import DATA, Cost, Survey, cost, surveyed
from btrkeep.treescan.block_groups import Chunks, chunks, looked_up
from btrkeep.treescan.extents import gaps
from btrkeep.treescan.free_space import free_space, has_free_space_tree

HALVES = " ▄▀█"
"""Index: (upper is used) * 2 + (lower is used)."""
ASCII = " .'#"
_DARKEST, _GREYS = 234, 20  # of xterm's 256 colours: greys, from free to used

Paint = Callable[[str, int, int], str]
"""A character, and the colours of its upper and lower half."""


def used_shares(vaddr: Array, length: Array, start: int, size: int, cells: int) -> Array:
    """f64[cells]: the used share of each cell of a block group. `vaddr`, `length`: u64[n], its free extents, in order."""
    edges = np.array([start + size * number // cells for number in range(cells + 1)], np.uint64)
    before = np.concatenate((np.zeros(1, np.uint64), np.cumsum(length)))
    number = np.searchsorted(vaddr, edges, "right")
    end = np.concatenate((np.zeros(1, np.uint64), vaddr + length))[number]
    free_until = (before[number] - np.where(end > edges, end - edges, np.uint64(0))).astype(np.float64)
    shares: Array = 1 - np.diff(free_until) / np.diff(edges).astype(np.float64)
    return shares


def rows(shares: Array, width: int, paint: Paint | None = None, characters: str = HALVES) -> list[str]:
    """Returns the map as rows of text, `width` characters each; `shares`: f64[2 * width * rows].

    Without colours, a half block is drawn if more than half of its range is used. `paint` shows the share by brightness.
    """
    halves = shares.reshape(-1, 2, width)
    if paint:
        grey = _DARKEST + np.rint(halves * _GREYS).astype(np.int64)
        return ["".join(paint(HALVES[2], *pair) for pair in zip(*lines.tolist(), strict=True)) for lines in grey]
    numbers = (halves[:, 0] > 0.5) * 2 + (halves[:, 1] > 0.5)
    return ["".join(characters[number] for number in line) for line in numbers.tolist()]


_NEAREST = 3
_LARGEST = 5
_METADATA = 1 << 2  # BTRFS_BLOCK_GROUP_METADATA and the profiles, btrfs_tree.h
_PROFILES = {
    1 << 3: "RAID0",
    1 << 4: "RAID1",
    1 << 5: "DUP",
    1 << 6: "RAID10",
    1 << 7: "RAID5",
    1 << 8: "RAID6",
    1 << 9: "RAID1C3",
    1 << 10: "RAID1C4",
}


@dataclass(frozen=True, slots=True)
class ExplainedBlockGroup:
    """A block group, explained."""

    survey: Survey
    """The survey of only this block group."""
    profile: str
    """Such as "data, RAID1"."""
    stripes: tuple[tuple[int, int], ...]
    """(devid, paddr) of each."""
    parts: tuple[tuple[int, int, int, float], ...]
    """For each size class that occurs: its minimum in bytes, fragments, bytes, and its part of the score."""
    largest: tuple[tuple[int, int], ...]
    """(vaddr, length) of the largest free extents, joined."""
    shares: Array
    """f64[cells], the used share of each cell of its map."""
    cost: Cost
    """What moving it will cost."""


@dataclass(frozen=True, slots=True)
class NoSuchBlockGroup:
    """No data block group starts there. `inside`: vaddr and profile of the chunk that contains the address; `nearest`: vaddrs."""

    inside: tuple[int, str] | None
    nearest: tuple[int, ...]


def explain(fd: int, vaddr: int, cells: int) -> ExplainedBlockGroup | NoSuchBlockGroup:
    """Reads the data block group at `vaddr`, with its map of that many cells. Raises OSError (EPERM without CAP_SYS_ADMIN)."""
    chunk = chunks(fd)
    at = np.flatnonzero((chunk.vaddr == vaddr) & (chunk.type & np.uint64(DATA) != 0))
    start, length = chunk.vaddr[at], chunk.length[at]
    group = looked_up(fd, start, length)
    if not len(group.vaddr):  # nor is a block group that has vanished since the chunks were read
        return _no_such_group(chunk, vaddr)
    size = int(length[0])
    free_vaddr, free_length = _free_extents(fd, start, length)
    tally = FreeSpaceTally(start, length)
    tally.add(free_vaddr, free_length)
    survey = surveyed(start, length, group.used, tally.finish(), np.ones(1, bool))
    is_its = chunk.stripe_chunk == at[0]
    return ExplainedBlockGroup(
        survey,
        profile(int(group.flags[0])),
        tuple(zip(chunk.stripe_devid[is_its].tolist(), chunk.stripe_paddr[is_its].tolist(), strict=True)),
        parts(free_length, size),
        _largest(free_vaddr, free_length),
        used_shares(free_vaddr, free_length, vaddr, size, cells),
        cost(fd, vaddr, size),
    )


def _free_extents(fd: int, vaddr: Array, length: Array) -> tuple[Array, Array]:
    """Returns all free extents of one block group, as the score counts them: at most one for every two sectors."""
    if has_free_space_tree(fd):
        first, last = int(vaddr[0]), int(vaddr[0] + length[0]) - 1
        batches = [(batch.vaddr, batch.length) for batch in free_space(fd, first, last)]
    else:
        batches = list(gaps(fd, vaddr, length))
    nothing = (np.zeros(0, np.uint64), np.zeros(0, np.uint64))
    found_vaddr, found_length = (np.concatenate(columns) for columns in zip(nothing, *batches, strict=True))
    return found_vaddr, found_length


def parts(length: Array, group_length: int) -> tuple[tuple[int, int, int, float], ...]:
    """Returns what the free extents of each size class, `length` u64[n] in all, add to the score of a block group."""
    which = size_class(length)
    number = np.bincount(which, minlength=SIZES)
    size = np.bincount(which, length, SIZES)
    score = np.bincount(which, tent(length, np.array([group_length])), SIZES)
    return tuple(
        (1 << index, int(number[index]), int(size[index]), float(score[index])) for index in np.flatnonzero(number).tolist()
    )


def _largest(vaddr: Array, length: Array) -> tuple[tuple[int, int], ...]:
    _, begin, end = joined(np.zeros(len(vaddr), np.int64), vaddr, vaddr + length)
    size = end - begin
    first = np.argsort(size, kind="stable")[::-1][:_LARGEST]
    return tuple(zip(begin[first].tolist(), size[first].tolist(), strict=True))


def profile(flags: int) -> str:
    """Returns use and profile of a block group in the words of `btrfs filesystem df`: "data, RAID1", "data+metadata, single"."""
    kind = {DATA: "data", DATA | _METADATA: "data+metadata", _METADATA: "metadata"}.get(flags & (DATA | _METADATA), "system")
    return f"{kind}, {next((name for bit, name in _PROFILES.items() if flags & bit), 'single')}"


def _no_such_group(chunk: Chunks, vaddr: int) -> NoSuchBlockGroup:
    holds = np.flatnonzero((chunk.vaddr <= vaddr) & (chunk.vaddr + chunk.length > vaddr))
    inside = (int(chunk.vaddr[holds[0]]), profile(int(chunk.type[holds[0]]))) if len(holds) else None
    data = sorted(chunk.vaddr[chunk.type & np.uint64(DATA) != 0].tolist(), key=lambda start: abs(start - vaddr))
    return NoSuchBlockGroup(inside, tuple(sorted(data[:_NEAREST])))
