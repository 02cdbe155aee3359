"""One way of balancing a churned pool within budgets of moved bytes, and what the pool is like after each."""

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from balancer.balance_plan import Costs, FilesystemReading, choose_block_group, read_filesystem
from balancer.choose import FLOORS, Floors
from balancer.cost_model import MeasuredBalance
from balancer.run_types import RunSettings, SpaceNumbers
from balancer.score import Array
from bench.images import Mounted
from btrkeep.pool.balance_ioctl import balance_block_group
from btrkeep.pool.marker import filesystem_uuid
from btrkeep.pool.subvolume import commit
from tests.beds import work

EVERYTHING = Floors(0.0, 0.0, 0)
_SYSFS = Path("/sys/fs/btrfs")
_LONG = 1800.0


@dataclass(frozen=True, slots=True)
class Reached:
    """The state of the pool when a budget is spent. `moved`, `written`: bytes since the start; `steps`: block groups balanced."""

    numbers: SpaceNumbers
    steps: int
    moved: int
    written: int
    seconds: float


class Way:
    """Balances block groups one at a time. Each step is kept in `measured`, with the score that it took away in `gained`."""

    def __init__(self, mounted: Mounted, policy: str, floors: Floors) -> None:
        self._mounted, self._settings = mounted, RunSettings(policy=policy, floors=floors)
        self.measured: list[MeasuredBalance] = []
        self.gained: list[tuple[float, float]] = []  # the score that the block group had, and by how much that of all fell
        self.moved = 0
        self.before: SpaceNumbers | None = None

    def spend(self, budgets: Sequence[int]) -> Iterator[Reached]:
        """Balances up to each of these bytes in turn. The next block group is the best one that still fits, for each of the orders.

        What this balance itself makes is not moved again: else least used first would chase its own tail.
        """
        fd = os.open(self._mounted.point, os.O_RDONLY | os.O_CLOEXEC)
        try:
            costs = Costs(fd)
            seen = read_filesystem(fd, self._mounted.point)
            self.before = seen.numbers()
            last = int(seen.survey.groups.vaddr.max())
            before, begun = self._mounted.writes().bytes, time.monotonic()
            for budget in budgets:
                while (after := self._step(fd, seen, costs, budget - self.moved, last)) is not None:
                    seen = after
                self._mounted.sync()
                now = read_filesystem(fd, self._mounted.point).numbers()
                seconds = time.monotonic() - begun
                yield Reached(now, len(self.measured), self.moved, self._mounted.writes().bytes - before, seconds)
        finally:
            os.close(fd)

    def _step(self, fd: int, seen: FilesystemReading, costs: Costs, left: int, last: int) -> FilesystemReading | None:
        groups = seen.survey.groups
        made = set(groups.vaddr[groups.vaddr > last].tolist())
        index = choose_block_group(seen, self._settings, costs, made, left).index
        if index is None:
            return None
        cost = costs.of(groups, [index])[int(groups.vaddr[index])]
        before, begun = self._mounted.writes().bytes, time.monotonic()
        balance_block_group(fd, int(groups.vaddr[index]), 1)
        seconds = time.monotonic() - begun
        self._mounted.sync()
        self.moved += int(groups.used[index])
        written = self._mounted.writes().bytes - before
        self.measured.append(MeasuredBalance(cost.moves, cost.extents, cost.references, written, seconds))
        after = read_filesystem(fd, self._mounted.point)
        self.gained.append((float(groups.score[index]), seen.score - after.score))
        return after


def by_usage_filter(mounted: Mounted, budgets: Sequence[int]) -> Iterator[tuple[int, Reached]]:
    """Runs `btrfs balance start -dusage=N` with the highest N that the budget allows; returns N and the result."""
    fd = os.open(mounted.point, os.O_RDONLY | os.O_CLOEXEC)
    try:
        steps, moved, begun, before = 0, 0, time.monotonic(), mounted.writes().bytes
        for budget in budgets:
            groups = read_filesystem(fd, mounted.point).survey.groups
            share = highest_usage(groups.used, groups.length, budget - moved)
            moved += int(groups.used[groups.used * 100 < groups.length * np.uint64(share)].sum())
            output = work("btrfs", "balance", "start", f"-dusage={share}", mounted.point, timeout=_LONG).stdout
            steps += int(re.findall(r"relocate (\d+) out of", output)[0])
            mounted.sync()
            now = read_filesystem(fd, mounted.point).numbers()
            yield share, Reached(now, steps, moved, mounted.writes().bytes - before, time.monotonic() - begun)
    finally:
        os.close(fd)


def highest_usage(used: Array, length: Array, budget: int) -> int:
    """Returns the highest N for which block groups that are used less than N % contain no more than `budget` bytes; u64[n] each."""
    for share in range(1, 101):
        if int(used[used * 100 < length * np.uint64(share)].sum()) > budget:
            return share - 1
    return 100


def by_kernel(mounted: Mounted, patience: float) -> Reached:
    """Uses the kernel's own reclaim, dynamic and periodic; ends when it has done nothing for `patience` seconds."""
    knobs = _SYSFS / filesystem_uuid(mounted.point) / "allocation" / "data"
    fd = os.open(mounted.point, os.O_RDONLY | os.O_CLOEXEC)
    try:
        begun, before = time.monotonic(), mounted.writes().bytes
        for name in ("dynamic_reclaim", "periodic_reclaim"):
            (knobs / name).write_text("1")
        count, since = _number(knobs / "reclaim_count"), time.monotonic()
        while time.monotonic() - since < patience:
            time.sleep(0.5)
            commit(mounted.point)  # wakes the cleaner, who looks for what to reclaim
            if _number(knobs / "reclaim_count") != count:
                count, since = _number(knobs / "reclaim_count"), time.monotonic()
        written, seconds = mounted.writes().bytes - before, time.monotonic() - begun
        return Reached(read_filesystem(fd, mounted.point).numbers(), count, _number(knobs / "reclaim_bytes"), written, seconds)
    finally:
        os.close(fd)


def _number(file: Path) -> int:
    return int(file.read_text())


def has_kernel_reclaim(point: Path) -> bool:
    """Returns True if this kernel has it: by the file, not by the version."""
    return (_SYSFS / filesystem_uuid(point) / "allocation" / "data" / "dynamic_reclaim").exists()


WAYS = {
    "benefit": ("benefit", FLOORS["benefit"]),
    "score": ("score", EVERYTHING),
    "usage": ("usage", EVERYTHING),
}
"""By name: policy and floors. The others have no floors, so that none keeps them from their budget."""
