"""Judges a survey of the whole filesystem in one sentence, and finds the block groups that are worth balancing. Pure."""

import numpy as np

from balancer.score import BAD, Array, benefit
from btrkeep.units import counted, format_share, format_size

WORTH = 0.05
"""The share of the data that the sentence speaks of moving: a few nights' work, where all of it would be months."""
_SMALL, _MIDDLING = 1 << 20, 16 << 20


def below(limit: int, by_size: Array) -> int:
    """Free bytes in extents smaller than `limit`, a power of two. `by_size`: i64[SIZES], the histogram's bytes."""
    return int(by_size[: limit.bit_length() - 1].sum())


def worth(score: Array, used: Array) -> Array:
    """i64[m]: which of n block groups (f64[n], u64[n]) are worth balancing, the best first.

    Those above BAD, by benefit, until WORTH of the data would move; the first one whatever its size.
    """
    bad = np.flatnonzero(score > BAD)
    # One with nothing in it moves nothing: as good as can be.
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
        return "Nothing is free in the data block groups: new data takes unallocated space."
    small, middling = (format_share(below(limit, by_size) / free) for limit in (_SMALL, _MIDDLING))
    lies = f"Of {format_size(free)} free in data block groups {small} lies in extents below 1 MiB and {middling} below 16 MiB"
    return f"{lies}; {_what_to_do(score, used)}."


def _what_to_do(score: Array, used: Array) -> str:
    bad = int((score > BAD).sum())
    if not bad:
        return f"no block group scores above {BAD:.0f}: nothing is worth balancing"
    best = worth(score, used)
    moves, share = format_size(int(used[best].sum())), format_share(float(score[best].sum() / score.sum()))
    which = f"the {len(best):,} with the most benefit" if len(best) < bad else "it" if bad == 1 else "them"
    have = "scores" if bad == 1 else "score"
    found = f"{bad:,} of {counted(len(score), 'block group')} {have} above {BAD:.0f}"
    return f"{found}, and to balance {which} would move {moves} and remove {share} of all scores"
