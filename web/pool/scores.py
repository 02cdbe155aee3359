"""The fragmentation of the free space: scorings over time, and the block groups of a recorded state with their scores."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from btrkeep.catalogue import Catalogue, FreeSpaceScore
from heatmap.colourings import SCORE_TOP, TYPES
from heatmap.filesystem_state import PROFILE_MASK, PROFILES, TYPE_MASK, Array, FilesystemState
from web.mapping import from_row

SHOWN = 60


@dataclass(frozen=True, slots=True)
class SizeClass:
    """Free extents of similar sizes."""

    least: int
    """The lowest size in bytes; the class ends below twice as much."""
    extents: int
    """Number of extents."""
    bytes: int
    """Their size."""


@dataclass(frozen=True, slots=True)
class ScoreReading:
    """One scoring of the free space of all data block groups. Sizes are bytes as files have them."""

    taken: datetime
    """When it was measured."""
    score: float
    """The sum of all scores."""
    block_groups: int
    """Number of block groups."""
    bad: int
    """Number of block groups with a score above 250."""
    fragments: int
    """Number of free extents."""
    length: int
    """The size of all block groups."""
    used: int
    """Bytes in use."""
    largest_free: int
    """The size of the largest free extent."""
    free_in_large: int
    """Bytes in free extents of at least 16 MiB."""

    @property
    def free(self) -> int:
        """Returns the bytes allocated to data and unused."""
        return self.length - self.used


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of the free space; empty: it was never scored."""

    newest: ScoreReading | None
    """The last scoring; null: none."""
    sizes: tuple[SizeClass, ...]
    """The sizes of its free extents."""
    looks: tuple[ScoreReading, ...]
    """Scorings over time, oldest first."""


def scores(catalogue: Catalogue, filesystem: str, now: datetime, days: int) -> Scores:
    """Returns the scorings of that many days; the last one whatever its age."""
    newest = catalogue.newest_score(filesystem)
    if newest is None:
        return Scores(None, (), ())
    since = now - timedelta(days=days)
    free_space_scores = catalogue.scores(filesystem, since)
    return Scores(
        from_row(ScoreReading, newest),
        tuple(SizeClass(*size_class) for size_class in newest.histogram),
        tuple(
            from_row(ScoreReading, free_space_score)
            for free_space_score in _thinned(free_space_scores, since, timedelta(days=days) / SHOWN)
        ),
    )


def _thinned(samples: list[FreeSpaceScore], since: datetime, step: timedelta) -> list[FreeSpaceScore]:
    """Returns the last scoring of each step."""
    return list({int((free_space_score.taken - since) / step): free_space_score for free_space_score in samples}.values())


BAD = SCORE_TOP / 4
"""balancer.score.BAD, above which a block group of 1 GiB is bad: the scale of colours is based on it."""
BOUNDS = (0.0, 10.0, 25.0, 50.0, 100.0, BAD)
"""The lowest scores of the classes; the last class is open, and contains the block groups for balance."""
ORDERS = {"score": "worst score first", "used": "fullest first", "free": "most free first", "vaddr": "by virtual address"}
PAGE = 100
_NEAREST = 4
_WORST = 20


@dataclass(frozen=True, slots=True)
class BlockGroup:
    """One block group. Sizes are bytes."""

    vaddr: int
    """Its logical address."""
    length: int
    """Its size."""
    used: int
    """Bytes in use."""
    kind: str
    """Its type."""
    profile: str
    """Such as "raid1"."""
    score: float | None
    """Its score; null: it has no data."""
    places: tuple[tuple[int, int], ...]
    """Device and address of each stripe."""

    @property
    def share(self) -> float:
        """Returns the share of it that is used."""
        return self.used / self.length if self.length else 0.0


@dataclass(frozen=True, slots=True)
class GroupsPage:
    """A page of block groups."""

    groups: tuple[BlockGroup, ...]
    """The block groups of this page."""
    total: int
    """Number of block groups on all pages."""
    offset: int
    """Number of block groups before this page."""
    order: str
    """The order."""
    has_scores: bool
    """Whether the state has scores."""


@dataclass(frozen=True, slots=True)
class ScoreClass:
    """Data block groups with similar scores."""

    least: float
    """The lowest score."""
    most: float | None
    """The score below which they are; null: no limit."""
    block_groups: int
    """Their number."""
    used: int
    """Bytes in use."""
    free: int
    """Bytes that are free."""
    score: float
    """Their part of the total score."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """The distribution of the scores of a state's data block groups."""

    taken: datetime
    """When it was measured."""
    classes: tuple[ScoreClass, ...]
    """The classes of scores."""
    score: float
    """The total."""
    worst: tuple[BlockGroup, ...]
    """The block groups with the highest scores."""


def groups(state: FilesystemState, order: str, offset: int) -> GroupsPage:
    """Returns a page of all block groups, from the `offset`-th on."""
    chosen = order if order in ORDERS and (order != "score" or state.score is not None) else "vaddr"
    ranked = _ranked(state, chosen)
    at = max(0, min(offset, len(ranked) - 1) // PAGE * PAGE)
    block_groups = tuple(_group(state, index) for index in ranked[at : at + PAGE].tolist())
    return GroupsPage(block_groups, len(ranked), at, chosen, state.score is not None)


def _ranked(state: FilesystemState, order: str) -> Array:
    count = len(state.bg_vaddr)
    if order == "score" and state.score is not None:
        return np.argsort(-np.nan_to_num(state.score, nan=-1.0), kind="stable")
    if order == "used":
        return np.argsort(-(state.bg_used / state.bg_length), kind="stable")
    if order == "free":
        return np.argsort(-(state.bg_length - state.bg_used).astype(np.int64), kind="stable")
    return np.arange(count)


def one_group(state: FilesystemState, vaddr: int) -> BlockGroup | None:
    """Returns the block group that starts there; None if there is none."""
    index = _index(state, vaddr)
    is_start = 0 <= index < len(state.bg_vaddr) and int(state.bg_vaddr[index]) == vaddr
    return _group(state, index) if is_start else None


def neighbours(state: FilesystemState, vaddr: int) -> tuple[int | None, int | None]:
    """Returns the addresses of the block groups before and after the block group at `vaddr`; None: there is none."""
    index, all_of_them = _index(state, vaddr), state.bg_vaddr
    before = int(all_of_them[index - 1]) if index else None
    after = index + (index < len(all_of_them) and int(all_of_them[index]) == vaddr)
    return before, int(all_of_them[after]) if after < len(all_of_them) else None


def nearest(state: FilesystemState, vaddr: int) -> tuple[int, ...]:
    """Returns the block groups near an address at which none starts; first the block group that contains the address, if any."""
    index = _index(state, vaddr)
    near = sorted(state.bg_vaddr[max(0, index - _NEAREST) : index + _NEAREST].tolist(), key=lambda start: abs(start - vaddr))
    inside = [start for start in near if (group := one_group(state, start)) and start <= vaddr < start + group.length]
    return tuple(dict.fromkeys([*inside, *near]))[:_NEAREST]


def _index(state: FilesystemState, vaddr: int) -> int:
    return int(np.searchsorted(state.bg_vaddr, np.uint64(vaddr)))


def _group(state: FilesystemState, index: int) -> BlockGroup:
    vaddr, flags = int(state.bg_vaddr[index]), int(state.bg_flags[index])
    score = None if state.score is None or np.isnan(state.score[index]) else float(state.score[index])
    return BlockGroup(
        vaddr,
        int(state.bg_length[index]),
        int(state.bg_used[index]),
        TYPES.get(flags & TYPE_MASK, "unknown"),
        PROFILES.get(flags & PROFILE_MASK, "unknown"),
        score,
        tuple(_places(state, vaddr)),
    )


def _places(state: FilesystemState, vaddr: int) -> Iterator[tuple[int, int]]:
    chunk = int(np.searchsorted(state.ch_vaddr, np.uint64(vaddr)))
    if chunk < len(state.ch_vaddr) and int(state.ch_vaddr[chunk]) == vaddr:
        first, last = np.searchsorted(state.st_chunk, (chunk, chunk + 1))
        yield from zip(state.st_devid[first:last].tolist(), state.st_paddr[first:last].tolist(), strict=True)


def distribution(state: FilesystemState) -> Distribution | None:
    """Returns the distribution; None if the state has no scores."""
    if state.score is None:
        return None
    scored = np.flatnonzero(~np.isnan(state.score))
    score, used, length = state.score[scored].astype(np.float64), state.bg_used[scored], state.bg_length[scored]
    which = np.searchsorted(np.array(BOUNDS), score, "right") - 1
    edges = zip(BOUNDS, (*BOUNDS[1:], None), strict=True)
    classes = tuple(_class(least, most, which == number, score, used, length) for number, (least, most) in enumerate(edges))
    ranked = scored[np.argsort(-score, kind="stable")][:_WORST].tolist()
    return Distribution(state.taken, classes, float(score.sum()), tuple(_group(state, index) for index in ranked))


def _class(least: float, most: float | None, inside: Array, score: Array, used: Array, length: Array) -> ScoreClass:
    taken = int(used[inside].sum())
    return ScoreClass(least, most, int(inside.sum()), taken, int(length[inside].sum()) - taken, float(score[inside].sum()))
