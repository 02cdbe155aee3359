"""Finds which block groups are worth balancing now, also by device: reads the filesystem, ranks block groups, reads the costs of
the best few.

Nothing is changed.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from balancer.choose import rank, why_not
from balancer.cost_model import Model
from balancer.explain import ExplainedBlockGroup, explain
from balancer.run_types import MAP_CELLS, PlannedBlockGroup, RunSettings, SpaceNumbers, StepDone
from balancer.score import free_below
from balancer.survey import Cost, DataBlockGroups, Survey, cost, survey
from btrkeep.errors import UsageError
from btrkeep.pool.allocation import read_allocation, read_room
from btrkeep.pool.space_by_profile import Room
from btrkeep.treescan.block_groups import Chunks, chunks, looked_up


def excluded_by_device(fd: int, settings: RunSettings) -> set[int]:
    """Returns the addresses of the block groups that `devices` and `fill` of the settings exclude. Raises OSError."""
    if not settings.devices and settings.fill is None:
        return set()
    chunk = chunks(fd)
    excluded = on_devices(chunk, (settings.fill,)) if settings.fill is not None else set()
    return excluded | (set(chunk.vaddr.tolist()) - on_devices(chunk, settings.devices) if settings.devices else set())


def on_devices(chunk: Chunks, devids: Collection[int]) -> set[int]:
    """Returns the addresses of the chunks that have a stripe on one of these devices."""
    is_there = np.isin(chunk.stripe_devid, np.array(list(devids), np.uint64))
    return set(chunk.vaddr[np.unique(chunk.stripe_chunk[is_there])].tolist())


def is_filled(folder: Path, devid: int) -> bool:
    """The device has no more unallocated space than the others, so the kernel does not prefer it any longer. Raises OSError."""
    unallocated = {device.devid: device.unallocated for device in read_allocation(folder).devices if device.present}
    others = [size for number, size in unallocated.items() if number != devid]
    return unallocated.get(devid, 0) <= max(others, default=0)


def require_devices(folder: Path, settings: RunSettings) -> None:
    """Raises UsageError if the filesystem has no device of a configured number, and OSError."""
    present = sorted(device.devid for device in read_allocation(folder).devices)
    for devid in (*settings.devices, *(() if settings.fill is None else (settings.fill,))):
        if devid not in present:
            raise UsageError(f"the filesystem has no device {devid}", f"its devices: {', '.join(map(str, present))}")


CONSIDERED = 16
"""The costs of this many block groups are read before one of them is chosen. On a large filesystem that takes a second."""
_ROUNDS = 4  # the next CONSIDERED block groups are tried this often, while no block group can be moved
_LARGE = 16 << 20


@dataclass(frozen=True, slots=True)
class FilesystemReading:
    """A filesystem at one time."""

    survey: Survey
    """Its block groups."""
    room: Room
    """Its size and free space."""

    @property
    def score(self) -> float:
        """Returns the total score of all block groups."""
        return float(self.survey.groups.score.sum())

    def numbers(self) -> SpaceNumbers:
        """Returns the data for a report."""
        groups = self.survey.groups
        return SpaceNumbers(
            block_groups=len(groups.vaddr),
            allocated=int(groups.length.sum()),
            used=int(groups.used.sum()),
            unallocated=self.room.unallocated,
            fragments=int(groups.fragments.sum()),
            score=self.score,
            largest_free=int(groups.largest_free.max(initial=0)),
            free_in_large=int(self.survey.bytes.sum()) - free_below(_LARGE, self.survey.bytes),
        )


def read_filesystem(fd: int, path: Path) -> FilesystemReading:
    """Reads the filesystem of `fd` and `path`. Raises OSError."""
    return FilesystemReading(survey(fd), read_room(path))


class Costs:
    """Costs of block groups, cached as long as the used bytes and the fragments do not change."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._costs: dict[int, tuple[tuple[int, int], Cost]] = {}

    def of(self, groups: DataBlockGroups, indices: Sequence[int]) -> dict[int, Cost]:
        """Returns the costs of the block groups, by vaddr. Raises OSError."""
        return {int(groups.vaddr[index]): self._cost_of(groups, index) for index in indices}

    def _cost_of(self, groups: DataBlockGroups, index: int) -> Cost:
        vaddr, state = int(groups.vaddr[index]), (int(groups.used[index]), int(groups.fragments[index]))
        cached = self._costs.get(vaddr)
        if cached is None or cached[0] != state:
            cached = self._costs[vaddr] = (state, cost(self._fd, vaddr, int(groups.length[index])))
        return cached[1]


@dataclass(frozen=True, slots=True)
class BestBlockGroup:
    """The result of `choose_block_group`."""

    index: int | None
    """The index of the best block group; None: no block group can be balanced now."""
    candidates: int
    """How many block groups are worth balancing."""
    beyond: int = 0
    """How many of these do not fit into the rest of the budget."""
    no_place: str = ""
    """Why the data of the first that fits cannot be moved; "" if `index` is set or none fits."""


def choose_block_group(
    seen: FilesystemReading, settings: RunSettings, costs: Costs, set_aside: Collection[int], left: int | None
) -> BestBlockGroup:
    """Ranks all block groups, then chooses by cost among the first CONSIDERED that fit into `left` bytes.

    If none of these can be moved, it tries the next CONSIDERED, up to _ROUNDS times. Raises OSError.
    """
    groups, room = seen.survey.groups, seen.room.unallocated
    ranked = rank(groups, settings.policy, settings.floors, None, set_aside, room, settings.by_device).tolist()
    fitting = [index for index in ranked if left is None or groups.used[index] <= left]
    beyond, no_place = len(ranked) - len(fitting), ""
    for first in range(0, min(len(fitting), _ROUNDS * CONSIDERED), CONSIDERED):
        considered = fitting[first : first + CONSIDERED]
        by_vaddr = costs.of(groups, considered)
        ordered = rank(groups, settings.policy, settings.floors, by_vaddr, set_aside, room, settings.by_device).tolist()
        best = next((index for index in ordered if index in considered), None)
        if best is not None:
            return BestBlockGroup(best, len(ranked), beyond)
        no_place = no_place or why_not(groups, considered[0], settings.floors, by_vaddr, set_aside, room)
    return BestBlockGroup(None, len(ranked), beyond, no_place)


def recheck_group(
    fd: int, seen: FilesystemReading, best: BestBlockGroup, settings: RunSettings, model: Model, done: Sequence[StepDone]
) -> PlannedBlockGroup | None:
    """Reads the chosen block group again, right before it is balanced.

    Returns None if it no longer exists, is no longer worth it, or exceeds the rest of the budget. Raises OSError.
    """
    groups, index, moved = seen.survey.groups, best.index, sum(step.moved for step in done)
    assert index is not None
    vaddr = int(groups.vaddr[index])
    explained = explain(fd, vaddr, MAP_CELLS)
    if not isinstance(explained, ExplainedBlockGroup):
        return None
    data_block_groups = explained.survey.groups
    flags = looked_up(fd, data_block_groups.vaddr, data_block_groups.length).flags
    left = None if settings.budget is None else settings.budget - moved
    if not len(flags) or (left is not None and data_block_groups.used[0] > left):
        return None
    now, by_vaddr = _with(groups, index, data_block_groups), {vaddr: explained.cost}
    if index not in rank(now, settings.policy, settings.floors, by_vaddr, (), seen.room.unallocated, settings.by_device):
        return None
    alone = _planned(data_block_groups, 0, int(flags[0]), explained.cost, model)
    moved += alone.used
    return replace(alone, number=len(done) + 1, moved_so_far=moved, candidates=best.candidates, left=left, shares=explained.shares)


def _with(groups: DataBlockGroups, index: int, new_groups: DataBlockGroups) -> DataBlockGroups:
    """Returns the block groups with new values for the block group at `index`."""
    columns = [(getattr(groups, field.name), getattr(new_groups, field.name)) for field in fields(DataBlockGroups)]
    return DataBlockGroups(*(np.concatenate((old[:index], new, old[index + 1 :])) for old, new in columns))


def plan_all(fd: int, seen: FilesystemReading, settings: RunSettings, model: Model) -> list[PlannedBlockGroup]:
    """Returns all block groups that would be balanced, in order, if nothing else changed. Raises OSError.

    Reads the costs of all of them, which may take some seconds.
    """
    groups, room, excluded = seen.survey.groups, seen.room.unallocated, excluded_by_device(fd, settings)
    ranked = rank(groups, settings.policy, settings.floors, None, excluded, room, settings.by_device).tolist()
    by_vaddr = Costs(fd).of(groups, ranked)
    ordered = rank(groups, settings.policy, settings.floors, by_vaddr, excluded, room, settings.by_device).tolist()
    place = {index: at for at, index in enumerate(ordered)}
    used: list[int] = groups.used.tolist()
    within, rest = _in_turn(used, [index for index in ranked if index in place], place, settings.budget)
    after, _ = _in_turn(used, rest, place, None)
    type_of = dict(zip(*_types(fd, groups, ranked), strict=True))
    moved, left, planned_block_groups = 0, settings.budget, list[PlannedBlockGroup]()
    for index in (*within, *after):
        vaddr = int(groups.vaddr[index])
        number, worth = len(planned_block_groups) + 1, len(ranked) - len(planned_block_groups)
        moved += used[index]
        alone = _planned(groups, index, type_of.get(vaddr, 0), by_vaddr[vaddr], model)
        planned_block_groups.append(replace(alone, number=number, moved_so_far=moved, candidates=worth, left=left))
        left = left - used[index] if left is not None and planned_block_groups[-1].is_within else left
    return planned_block_groups


def _types(fd: int, groups: DataBlockGroups, indices: Sequence[int]) -> tuple[list[int], list[int]]:
    chosen = np.array(indices, np.int64)
    block_groups = looked_up(fd, groups.vaddr[chosen], groups.length[chosen])
    return block_groups.vaddr.tolist(), block_groups.flags.tolist()


def _in_turn(used: Sequence[int], ranked: Sequence[int], place: dict[int, int], left: int | None) -> tuple[list[int], list[int]]:
    """Returns the block groups in the order of `choose_block_group`, until none fits into `left` bytes; and the rest."""
    taken: list[int] = []
    rest = list(ranked)
    while True:
        fitting = []
        for index in rest:
            if left is None or used[index] <= left:
                fitting.append(index)
                if len(fitting) == CONSIDERED:
                    break
        if not fitting:
            return taken, rest
        best = min(fitting, key=place.__getitem__)
        rest.remove(best)
        taken.append(best)
        left = None if left is None else left - used[best]


def _planned(groups: DataBlockGroups, index: int, flags: int, cost: Cost, model: Model) -> PlannedBlockGroup:
    """Returns the block group as the only one of a plan without a budget."""
    used = int(groups.used[index])
    return PlannedBlockGroup(
        number=1,
        vaddr=int(groups.vaddr[index]),
        length=int(groups.length[index]),
        type=flags,
        used=used,
        fragments=int(groups.fragments[index]),
        score=float(groups.score[index]),
        benefit=float(groups.benefit[index]),
        cost=cost,
        estimate=model.estimate(cost),
        moved_so_far=used,
        candidates=1,
        left=None,
    )
