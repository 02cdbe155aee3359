"""Scores the fragmentation of the free space of block groups, and judges all of it in a sentence: pure NumPy, no filesystem.

The score is Hans van Kranenburg's (python-btrfs, examples/show_free_space_fragmentation.py). Each free extent of a block group adds
the value of the tent function for its size. Fragments and score count free extents as the free space tree has them, like
python-btrfs: a free extent that continues in the next bitmap counts once in each. For the largest free extent and the histogram
such parts are joined.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from btrkeep.units import counted, format_share, format_size

Array = NDArray[Any]

GIB = 1 << 30
LEAST_LOG2 = 11
"""The left foot of the tent: extents of 2 KiB, which is smaller than any sector."""
BAD = 250.0
"""A block group of 1 GiB with a higher score is bad, according to the author of the score."""
SIZES = 64
"""Classes of the histogram: class k has the extents of 2**k bytes up to, and without, 2**(k + 1)."""

_U64 = np.dtype("<u8")


def tent(length: Array, group_length: Array) -> Array:
    """Returns what free extents of `length` bytes add to the score of block groups of `group_length` bytes: float64[n], 0 to 1.

    1 |           .            A hole as large as the block group is good: new data fits into it whole. One of 4 KiB is of little
      |         .   .          use, and does little harm as long as there are not very many. Those in the middle are what the
      |       .       .        allocator comes back to for file after file, and what balance can turn into large holes.
      |     .           .
    0 |___._______|_______.__
        2 KiB  middle   the    The scale is logarithmic, so the middle is the geometric mean of both feet: 1.4 MiB for 1 GiB.
                        whole
    """
    top = np.log2(group_length)
    half_width = (top - LEAST_LOG2) / 2
    middle = (top + LEAST_LOG2) / 2
    height: Array = 1 - np.abs((np.log2(length) - middle) / half_width)
    return np.maximum(height, 0.0)  # rounding can make it negative for an empty block group whose length is not a power of two


def size_class(length: Array) -> Array:
    """int64[n]: the class of each size in the histogram. Computed with integers: a logarithm would round 8 GiB minus a
    sector up.
    """
    exponent: Array = np.frexp(length.astype(np.float64))[1]
    return exponent.astype(np.int64) - 1


def joined(group: Array, vaddr: Array, end: Array) -> tuple[Array, Array, Array]:
    """Returns the free extents by address, with adjacent ones of a block group merged."""
    begins = np.concatenate(([True], (vaddr[1:] != end[:-1]) | (group[1:] != group[:-1])))
    at = np.flatnonzero(begins[: len(vaddr)])
    return group[at], vaddr[at], end[np.append(at, len(end))[1:] - 1]


@dataclass(frozen=True, slots=True)
class FreeExtents:
    """The free space in each of n block groups, and the sizes of all their free extents."""

    fragments: Array
    """i64[n]: number of free extents, as the free space tree has them."""
    free: Array
    """u64[n]: bytes."""
    largest: Array
    """u64[n]: bytes of the largest free extent, after joining adjacent extents."""
    score: Array
    """f64[n]: of the free extents as the free space tree has them."""
    extents: Array
    """i64[SIZES]: number of joined free extents by size class."""
    bytes: Array
    """i64[SIZES]: their bytes."""


class FreeSpaceTally:
    """Adds up free extents that come in batches, in order of addresses. Its memory is that of the block groups and of one batch.
    `vaddr` and `length`, u64[n], are the block groups, in order of addresses. Free extents outside of them are not counted.
    """

    def __init__(self, vaddr: Array, length: Array) -> None:
        self._vaddr, self._length, self._end = vaddr, length, vaddr + length
        count = len(vaddr)
        self._fragments = np.zeros(count, np.int64)
        self._free, self._largest = np.zeros(count, _U64), np.zeros(count, _U64)
        self._score = np.zeros(count)
        self._extents, self._bytes = np.zeros(SIZES, np.int64), np.zeros(SIZES, np.int64)
        # The last run of the previous batch, which the next batch may continue. Arrays of length one or zero.
        self._run = (np.zeros(0, np.int64), np.zeros(0, _U64), np.zeros(0, _U64))

    def add(self, vaddr: Array, length: Array) -> None:
        """Adds the next free extents, u64[m] each. All have higher addresses than those of the batch before."""
        if not len(vaddr):
            return
        low = int(np.searchsorted(self._end, vaddr[0], "right"))
        high = int(np.searchsorted(self._vaddr, vaddr[-1], "right"))
        if low >= high:
            return
        first = np.searchsorted(vaddr, self._vaddr[low:high])
        counts = np.searchsorted(vaddr, self._end[low:high]) - first
        group = np.repeat(np.arange(low, high), counts)
        if not len(group):
            return
        starts = np.cumsum(counts) - counts
        if len(group) < len(vaddr):  # some are in block groups of metadata
            kept = np.repeat(first - starts, counts) + np.arange(len(group))
            vaddr, length = vaddr[kept], length[kept]
        self._fragments[low:high] += counts
        self._add_scores(group, length)
        used_classes = np.flatnonzero(counts)
        self._add_sizes(low + used_classes, starts[used_classes], length)
        self._join(group, vaddr, vaddr + length)

    def _add_scores(self, group: Array, length: Array) -> None:
        """Adds the scores one after the other to those of earlier batches, because a sum in another order would round
        differently.
        """
        low, high = int(group[0]), int(group[-1]) + 1
        lengths = self._length[low:high]
        mostly_one = lengths[:1] if (lengths == lengths[0]).all() else self._length[group]
        added = tent(length, mostly_one)
        added[0] += self._score[low]
        sums = np.bincount(group - low, added, high - low)
        self._score[low] = sums[0]
        self._score[low + 1 : high] += sums[1:]

    def _add_sizes(self, groups: Array, starts: Array, length: Array) -> None:
        """Unchanged free extents: those of `groups[i]` start at `starts[i]`."""
        self._count(length, 1)
        self._free[groups] += np.add.reduceat(length, starts)
        self._largest[groups] = np.maximum(self._largest[groups], np.maximum.reduceat(length, starts))

    def _count(self, length: Array, times: int) -> None:
        which = size_class(length)
        self._extents += times * np.bincount(which, minlength=SIZES)
        self._bytes += times * np.bincount(which, length, SIZES).astype(np.int64)  # multiples of a sector, exact in float64

    def _join(self, group: Array, vaddr: Array, end: Array) -> None:
        """Replaces the few adjacent free extents in the histogram by the joined ones."""
        touching = (vaddr[1:] == end[:-1]) & (group[1:] == group[:-1])
        touched = np.zeros(len(vaddr), bool)
        touched[1:] |= touching
        touched[:-1] |= touching
        held_group, _, held_end = self._run
        goes_on = len(held_end) > 0 and held_end[0] == vaddr[0] and held_group[0] == group[0]
        touched[0] |= goes_on
        parts = [column[touched] for column in (group, vaddr, end)]
        if goes_on:
            parts = [np.concatenate(pair) for pair in zip(self._run, parts, strict=True)]
        whole = joined(*parts)
        self._count(parts[2] - parts[1], -1)
        self._count(whole[2] - whole[1], 1)
        np.maximum.at(self._largest, whole[0], whole[2] - whole[1])
        last = whole if touched[-1] else (group, vaddr, end)
        self._run = last[0][-1:], last[1][-1:], last[2][-1:]

    def finish(self) -> FreeExtents:
        """Returns the result. No batch may follow.

        A tree that changes while it is read can show a range both as an extent and as part of a bitmap, so the free bytes are
        limited to the size of the block group.
        """
        free, largest = np.minimum(self._free, self._length), np.minimum(self._largest, self._length)
        return FreeExtents(self._fragments, free, largest, self._score, self._extents, self._bytes)


def used_pct(used: Array, length: Array) -> Array:
    """i64[n]: whole percents, rounded as python-btrfs does."""
    share: Array = np.rint(used.astype(np.float64) * 100 / length)
    return share.astype(np.int64)


def benefit(score: Array, used: Array) -> Array:
    """f64[n]: score removed per GiB moved. NaN if nothing is used, because there is nothing to move.

    Balancing a block group removes its whole score: its data moves away and all of it becomes free.
    """
    per_gib: Array = np.divide(score * GIB, used, out=np.full(len(score), np.nan), where=used > 0)
    return per_gib


WORTH = 0.05
"""Maximum share of the data that the sentence suggests to move: the work of a few nights; all of it would take months."""
_SMALL, _MIDDLING = 1 << 20, 16 << 20


def free_below(limit: int, by_size: Array) -> int:
    """Free bytes in extents smaller than `limit`, a power of two. `by_size`: i64[SIZES], the histogram's bytes."""
    return int(by_size[: limit.bit_length() - 1].sum())


def worth_balancing(score: Array, used: Array) -> Array:
    """i64[m]: which of n block groups (f64[n], u64[n]) are worth balancing, the best first.

    Those above BAD, by benefit, until WORTH of the data would be moved; the first one whatever its size.
    """
    bad = np.flatnonzero(score > BAD)
    # An empty block group moves no data: the best possible case.
    gain = np.nan_to_num(benefit(score[bad], used[bad]), nan=np.inf)
    order = bad[np.argsort(-gain, kind="stable")]
    fits = np.cumsum(used[order].astype(np.float64)) <= WORTH * float(used.sum())
    return order[: max(1, int(fits.sum()))]


def judgement(score: Array, used: Array, by_size: Array) -> str:
    """The sentence. `score` f64[n], `used` u64[n]: of the data block groups; `by_size` i64[SIZES]: free bytes by size of extent."""
    free = int(by_size.sum())
    if not len(score):
        return "There are no data block groups yet."
    if not free:
        return "The data block groups have no free space: new data takes unallocated space."
    small, middling = (format_share(free_below(limit, by_size) / free) for limit in (_SMALL, _MIDDLING))
    lies = (
        f"Of {format_size(free)} free in data block groups, {small} are in extents below 1 MiB and {middling} in extents "
        "below 16 MiB"
    )
    return f"{lies}; {_what_to_do(score, used)}."


def _what_to_do(score: Array, used: Array) -> str:
    bad = int((score > BAD).sum())
    if not bad:
        return f"no block group scores above {BAD:.0f}: nothing is worth balancing"
    best = worth_balancing(score, used)
    moves, share = format_size(int(used[best].sum())), format_share(float(score[best].sum() / score.sum()))
    which = f"the {len(best):,} with the most benefit" if len(best) < bad else "it" if bad == 1 else "them"
    have = "scores" if bad == 1 else "score"
    statement = f"{bad:,} of {counted(len(score), 'block group')} {have} above {BAD:.0f}"
    return f"{statement}, and balancing {which} would move {moves} and lower the sum of the scores by {share}"
