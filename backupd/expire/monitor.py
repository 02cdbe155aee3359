"""Watches the cleaner of a mounted btrfs: the rate at which it drops deleted subvolumes, and the time that it still needs.

A rate counts subvolumes that were waiting at one reading and not at the next, by id: so it does not matter how many are added in
between. A subvolume that is added and dropped between two readings is not counted. Only time in which something waited counts,
including time in which the cleaner slept.

The time left has an uncertainty: the observed time is divided into ten parts, and the deviation of their rates gives the error of
the mean. It cannot show whether the waiting subvolumes resemble the dropped ones.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import sqrt
from pathlib import Path
from statistics import stdev
from typing import TypeVar

from btrkeep.errors import PoolUnusable, UsageError
from btrkeep.pool.marker import filesystem_uuid
from btrkeep.pool.mounts import mount_of
from btrkeep.pool.orphans import Drop, Key, branches, dead_roots, passed, queued
from btrkeep.procfs import privilege_hint

WINDOW = 300.0  # seconds
_SHORTEST = 1.0  # seconds that must have been observed for a rate
_SETTLED = 1.0  # seconds after which a deleted subvolume is in the list of the cleaner, unless one of its files is open
_PARTS = 10
_FEWEST = 5  # subvolumes dropped, and parts of the time, before a time left is estimated
_MARGIN = 2.5  # standard errors on either side: 95 % by Student's t for five to ten parts, 2.8 to 2.3


@dataclass(frozen=True, slots=True)
class CleanerTotals:
    """Totals since the watch began. `at` is monotonic time, `busy` the seconds in which something waited, `gone` subvolumes."""

    at: float
    busy: float
    gone: int


@dataclass(frozen=True, slots=True)
class CleanerWatch:
    """The history of earlier readings."""

    steps: tuple[CleanerTotals, ...] = ()
    """Earlier totals."""
    waiting: frozenset[int] = frozenset()
    """The subvolumes that waited."""
    dropping: int | None = None
    """The root that is being dropped; None: none."""
    since: float | None = None
    """When that root was first observed."""
    from_before: bool = False
    """True if its drop had already started before the first measurement."""


@dataclass(frozen=True, slots=True)
class Rate:
    """The rate of the cleaner."""

    per_minute: float
    """Subvolumes per minute."""
    seconds: float
    """The time over which that was measured, counted only while something waited."""


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """Seconds until all waiting subvolumes are dropped."""

    seconds: float
    """The estimate."""
    at_least: float
    """Its lower bound."""
    at_most: float | None
    """Its upper bound; None if the rate is not known well enough."""


def watched(watch: CleanerWatch, at: float, waiting: Set[int], dropping: int | None) -> CleanerWatch:
    """Returns the watch after one more reading, at monotonic time `at`."""
    last = watch.steps[-1] if watch.steps else CleanerTotals(at, 0.0, 0)
    busy = last.busy + (at - last.at if watch.waiting else 0.0)
    step = CleanerTotals(at, busy, last.gone + len(watch.waiting - waiting))
    first = bisect_left(watch.steps, at - WINDOW, key=lambda each: each.at)
    same = dropping == watch.dropping
    return CleanerWatch(
        steps=(*watch.steps[first:], step),
        waiting=frozenset(waiting),
        dropping=dropping,
        since=watch.since if same else at if dropping is not None else None,
        from_before=watch.from_before if same else dropping is not None and not watch.steps,
    )


def rate(watch: CleanerWatch) -> Rate | None:
    """Returns the rate over the last minutes, None until enough was observed."""
    if not watch.steps:
        return None
    first, last = watch.steps[0], watch.steps[-1]
    seconds = last.busy - first.busy
    return Rate((last.gone - first.gone) / seconds * 60, seconds) if seconds >= _SHORTEST else None


def time_left(watch: CleanerWatch, share: float | None) -> TimeLeft | None:
    """Returns the time left, None until enough was observed. `share`: the completed share of the subvolume that is being dropped,
    if known.
    """
    if not watch.steps:
        return None
    if not watch.waiting:
        return TimeLeft(0.0, 0.0, 0.0)
    first, last = watch.steps[0], watch.steps[-1]
    seconds, gone = last.busy - first.busy, last.gone - first.gone
    parts = min(_PARTS, len(watch.steps) - 1)
    if seconds < _SHORTEST or gone < _FEWEST or parts < _FEWEST:
        return None
    each = seconds / parts
    totals = [_gone_at(watch.steps, first.busy + number * each) for number in range(parts + 1)]
    rates = [(after - before) / each for before, after in pairwise(totals)]
    margin = _MARGIN * max(stdev(rates) / sqrt(parts), 1 / seconds)  # a count is exact to one at best
    left, mean = len(watch.waiting) - (share or 0.0), gone / seconds
    return TimeLeft(left / mean, left / (mean + margin), left / (mean - margin) if mean > margin else None)


def _gone_at(steps: tuple[CleanerTotals, ...], busy: float) -> float:
    """Returns how many were dropped after this much busy time, interpolated between two readings."""
    after = bisect_left(steps, busy, key=lambda each: each.busy)
    if after == 0 or after == len(steps):
        return steps[min(after, len(steps) - 1)].gone
    before, behind = steps[after - 1], steps[after]
    return before.gone + (behind.gone - before.gone) * (busy - before.busy) / (behind.busy - before.busy)


_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Dropping:
    """The root that is being dropped."""

    drop: Drop
    """The kernel's record of it."""
    since: datetime
    """When it was first observed."""
    seconds: float
    """For how long it was observed."""
    from_before: bool
    """True if its drop had already started before the first measurement."""
    passed: int | None
    """How many of `branches` are dropped; None: unknown."""
    branches: int | None
    """The number of branches of its tree; None: unknown."""

    @property
    def share(self) -> float | None:
        """The share of the tree that is dropped."""
        return self.passed / self.branches if self.branches and self.passed is not None else None


@dataclass(frozen=True, slots=True)
class CleanerReading:
    """One reading, and the estimates that follow from earlier ones."""

    waiting: int
    """Number of deleted subvolumes that are not dropped yet."""
    held: int
    """At least this many cannot be dropped yet, because a file in them is open."""
    idle: bool
    """True if the cleaner works on none of them. Then `dropping` is a drop that it has started and does not continue, as on a
    filesystem that has become read-only.
    """
    dropping: Dropping | None
    """The root that is being dropped; None: none."""
    rate: Rate | None
    """The rate of the cleaner; None: unknown."""
    left: TimeLeft | None
    """The estimated time left; None: unknown."""


def require_btrfs(mountpoint: str) -> Path:
    """Returns the path to watch. Raises UsageError if no btrfs is mounted there."""
    if not mountpoint:
        raise UsageError("MOUNTPOINT is empty", "leave it out for the configured pool, or name a folder on a mounted btrfs")
    path = Path(mountpoint)
    if not path.is_dir():
        raise UsageError(f"there is no folder {mountpoint}", "name a folder on a mounted btrfs, such as /srv/backup")
    mount = mount_of(path)
    if mount.filesystem != "btrfs":
        where = f"{mountpoint} is on {mount.target}, which is {mount.filesystem}, not btrfs"
        raise UsageError(where, "mount the btrfs, or name a folder on one")
    return path


def in_hand(drops: Sequence[Drop], before: Mapping[int, Drop], last: int | None) -> Drop | None:
    """Returns the drop that is in progress: the one that advanced since the last reading, otherwise the last one that advanced.
    After interrupted drops several subvolumes have progress. None if unknown.
    """
    if len(drops) == 1:
        return drops[0]
    moved = [drop for drop in drops if before and before.get(drop.root) != drop]
    return moved[-1] if moved else next((drop for drop in drops if drop.root == last), None)


def held_at_least(first_seen: Iterable[float], at: float, listed: int) -> int:
    """Returns the minimum number of subvolumes that are held by open files. `first_seen`: when each waiting subvolume was first
    seen; `listed`: the highest count of the cleaner's list during the reading, because the cleaner takes some from it while the
    others are read.
    """
    settled = sum(at - seen >= _SETTLED for seen in first_seen)
    return max(0, settled - listed - 1)  # the cleaner may be dropping one, which is not in its list


class CleanerMonitor:
    """Watches one filesystem. Keeps nothing on it open, so that it can be unmounted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filesystem = self._ask(filesystem_uuid)
        self._watch = CleanerWatch()
        self._drops: dict[int, Drop] = {}
        self._first_seen: dict[int, float] = {}
        self._branches: tuple[int, tuple[Key, ...] | None] = (0, None)

    def take_reading(self) -> CleanerReading:
        """Takes another reading. Raises PoolUnusable if that is not permitted, or the path is on another filesystem now."""
        if self._ask(filesystem_uuid) != self._filesystem:
            raise PoolUnusable(f"{self.path} is on another filesystem now", "mount it again, then start this command again")
        before = self._ask(queued)
        dead = {each.id: each for each in self._ask(dead_roots)}
        after = self._ask(queued)
        counts = None if before is None or after is None else (before, after)  # the cleaner was busy in between
        read_only = "ro" in self._ask(mount_of).super_options  # then there may be neither a list nor a running cleaner
        drop = in_hand([each.drop for each in dead.values() if each.drop], self._drops, self._watch.dropping)
        self._drops = {each.drop.root: each.drop for each in dead.values() if each.drop}
        if drop and self._branches[0] != drop.root:
            self._branches = (drop.root, self._ask(lambda path: branches(path, dead[drop.root])))
        at = time.monotonic()
        self._first_seen = {subvolid: self._first_seen.get(subvolid, at) for subvolid in dead}
        self._watch = watched(self._watch, at, dead.keys(), drop.root if drop else None)
        dropping = self._dropping(drop) if drop else None
        return CleanerReading(
            waiting=len(dead),
            held=held_at_least(self._first_seen.values(), at, max(counts)) if counts and not read_only else 0,
            idle=read_only or (counts is not None and min(counts) >= len(dead)),
            dropping=dropping,
            rate=rate(self._watch),
            left=time_left(self._watch, dropping.share if dropping else None),
        )

    def _dropping(self, drop: Drop) -> Dropping:
        since = self._watch.since
        seconds = self._watch.steps[-1].at - since if since is not None else 0.0
        keys = self._branches[1]
        behind = passed(keys, drop.drop_progress) if keys and drop.drop_progress else None
        begun = datetime.now(UTC) - timedelta(seconds=seconds)
        return Dropping(drop, begun, seconds, self._watch.from_before, behind, len(keys) if keys else None)

    def _ask(self, question: Callable[[Path], _Answer]) -> _Answer:
        try:
            return question(self.path)
        except PermissionError:
            raise PoolUnusable(f"no permission to read the deleted subvolumes of {self.path}", privilege_hint()) from None
        except OSError as error:
            raise PoolUnusable(
                f"{self.path} cannot be watched: {error.strerror}", "check that the btrfs is mounted there"
            ) from None
