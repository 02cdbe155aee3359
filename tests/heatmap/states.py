"""States of an invented filesystem: a backup pool that is filled, expired and balanced from day to day.

Only plausible, so good for pictures, benchmarks, and tests of code that uses a state; reading the state of a real filesystem is
tested on real ones.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from heatmap.filesystem_state import DATA, METADATA, SYSTEM, Array, FilesystemState
from heatmap.grid import HILBERT, SNAKE

GIB, TIB = 1 << 30, 1 << 40
FIRST_DAY = datetime(2025, 11, 21, 22, tzinfo=UTC)
FSID = "3f6c1c9e-5d0b-4c52-9a37-0d2f3b8a7e11"
_U64 = np.uint64


class Pool:
    """Block groups of `chunk` bytes on devices one after the other; `day()` lets a night of backups and an expiry pass."""

    def __init__(self, sizes: tuple[int, ...] = (TIB,), chunk: int = GIB, filled: float = 0.5, seed: int = 1) -> None:
        self._random, self.chunk, self.days = np.random.default_rng(seed), chunk, 0
        self.sizes = list(sizes)
        self.place = np.zeros(0, np.int64)  # number of the chunk-sized slot, counted over all devices
        self.vaddr = np.zeros(0, np.int64)
        self.used = np.zeros(0)
        self.score = np.zeros(0)
        self.generation = np.zeros(0)
        self.kind = np.zeros(0, np.int64)
        self._next = 1
        self.allocate(max(4, int(self._slots() * filled)))
        self.used[:] = self._random.beta(6, 0.7, len(self.used))
        self.score[:] = self._random.gamma(0.6, 90, len(self.score))
        self.generation[:] = np.sort(self._random.uniform(1, 1000, len(self.generation)))

    def _slots(self) -> int:
        return sum(size // self.chunk - 1 for size in self.sizes)

    def grow(self, size: int) -> None:
        """Adds another device."""
        self.sizes.append(size)

    def allocate(self, count: int) -> None:
        """Adds block groups in the first free places."""
        free = np.setdiff1d(np.arange(self._slots()), self.place)[:count]
        kinds = np.where(self._random.random(len(free)) < 0.03, METADATA, DATA)
        kinds[: max(0, 1 - self._next + 1)] = SYSTEM  # the very first
        self.place = np.concatenate((self.place, free))
        self.vaddr = np.concatenate((self.vaddr, (self._next + np.arange(len(free))) * self.chunk))
        self._next += len(free)
        for name, value in (("used", 1.0), ("score", 0.0), ("generation", 1000.0 + self.days * 40)):
            setattr(self, name, np.concatenate((getattr(self, name), np.full(len(free), value))))
        self.kind = np.concatenate((self.kind, kinds))

    def _keep(self, kept: Array) -> None:
        for name in ("place", "vaddr", "used", "score", "generation", "kind"):
            setattr(self, name, getattr(self, name)[kept])

    def day(self) -> None:
        """Fills holes, makes new ones by deleting backups, removes empty block groups, and balances the emptiest ones."""
        self.days += 1
        random, count = self._random, len(self.used)
        touched = random.random(count) < 0.04
        written = touched & (random.random(count) < 0.45)
        self.generation[written] += (1000 + self.days * 40 - self.generation[written]) * (1 - self.used[written])
        self.used[written] = 1.0
        self.score[written] *= 0.2
        expired = touched & ~written
        self.used[expired] = np.maximum(0, self.used[expired] - random.gamma(1.2, 0.12, int(expired.sum())))
        self.score[expired] += random.gamma(1.5, 60, int(expired.sum()))
        worst = np.argsort(-self.score)[: max(1, count // 400)]
        moved = float(self.used[worst].sum())
        kept = (self.used > 0.02) | (self.kind != DATA)
        kept[worst[self.kind[worst] == DATA]] = False
        self._keep(kept)
        self.allocate(int(moved) + 1 + int(count * 0.0015))

    def state(self, *, label: str = "backup", scores: bool = True, generations: bool = True) -> FilesystemState:
        """Returns the state of today."""
        order = np.argsort(self.vaddr)
        per_device = np.array([size // self.chunk - 1 for size in self.sizes])
        ends = np.cumsum(per_device)
        device = np.searchsorted(ends, self.place, "right")
        paddr = ((self.place - (ends - per_device)[device]) * self.chunk + (1 << 20)).astype(_U64)[order]
        devid, vaddr = (device + 1).astype(_U64)[order], self.vaddr.astype(_U64)[order]
        length = np.full(len(vaddr), self.chunk, _U64)
        by_place = np.lexsort((paddr, devid))
        used = (np.rint(self.used[order] * (self.chunk // 4096)) * 4096).astype(_U64)
        kind = self.kind[order].astype(_U64)
        score = np.where(kind == DATA, self.score[order], np.nan).astype(np.float32)
        return FilesystemState(
            FSID, label, FIRST_DAY + timedelta(days=self.days), 16384, 4096,
            np.arange(1, len(self.sizes) + 1).astype(_U64), np.array(self.sizes, _U64),
            devid[by_place], paddr[by_place], vaddr[by_place], length,
            vaddr, length, kind, np.ones(len(vaddr), np.int64), np.arange(len(vaddr)), devid, paddr,
            vaddr, length, used, kind,
            score if scores else None, np.where(used > 0, self.generation[order], 0).astype(_U64) if generations else None,
        )  # fmt: skip


def growing(days: int) -> list[FilesystemState]:
    """Returns the states of a small full pool over that many days. Half way it gets a second device, which is filled at once."""
    pool = Pool((64 * GIB,), filled=1.0)
    filesystem_states = []
    for number in range(days):
        if number == days // 2:
            pool.grow(32 * GIB)
            pool.allocate(90)
        filesystem_states.append(pool.state())
        pool.day()
    return filesystem_states


def at(state: FilesystemState, moment: datetime) -> FilesystemState:
    """Returns the same state with another time."""
    return replace(state, taken=moment)


def entries_at(answer: Mapping[str, Any], x: int, y: int) -> list[int]:
    """Returns the indices of a map's entries in the pixel (x, y) of the written picture, none where nothing is allocated."""
    down = int(answer["size"]) - int(answer["order"])
    place = step(answer["curve"], int(answer["order"]), x >> down, y >> down)
    start, end = answer["entries"]["start"], answer["entries"]["end"]
    at, here = bisect_right(start, place), []
    while at and end[at - 1] > place:
        at -= 1
        here.append(at)
    return here[::-1]


def step(curve: str, order: int, x: int, y: int) -> int:
    """Returns the place along the curve of the pixel (x, y) of 2**order x 2**order.

    On the Hilbert curve, which begins at the lower left: from the largest quarters to the smallest, count those before the pixel,
    and turn the rest so that its quarter looks like the whole.
    """
    edge = 1 << order
    if curve != HILBERT:
        return y * edge + (edge - 1 - x if curve == SNAKE and y % 2 else x)
    place, y = 0, edge - 1 - y
    half = edge >> 1
    while half:
        right, up = x >= half, y >= half
        x, y = x - half * right, y - half * up
        quarter = (0, 1, 3, 2)[2 * right + up]  # lower left, upper left, upper right, lower right
        place += quarter * half * half
        if quarter == 0:
            x, y = y, x
        elif quarter == 3:
            x, y = half - 1 - y, half - 1 - x
        half >>= 1
    return place
