"""The steps of `doctor --fix room`: what is refused, what is moved, and that only empty devices are removed."""

from dataclasses import replace

import pytest

from backupd.doctor.room_plan import (
    DATA,
    METADATA,
    SMALLEST,
    End,
    MoveBlockGroup,
    Piece,
    PlacedBlockGroup,
    PoolDevice,
    Refusal,
    RemoveDevice,
    RoomEnd,
    RoomProgress,
    RoomReading,
    Shrink,
    TurnBack,
    TurnForth,
    next_step,
    plan,
)
from btrkeep.decisions.pool_health import Shortage, shortage
from btrkeep.pool.space_by_profile import Room

MIB, GIB = 1 << 20, 1 << 30
FLOOR = 200 * MIB


def group(vaddr: int, used: int, *places: tuple[int, int], flags: int = DATA) -> PlacedBlockGroup:
    """Returns a block group of 1 GiB; places are devices and its starts on them, in GiB, after the first MiB."""
    pieces = tuple(Piece(devid, MIB + start * GIB, GIB) for devid, start in places)
    return PlacedBlockGroup(vaddr * GIB, GIB, used * MIB, flags, pieces)


FULL = RoomReading(
    (PoolDevice(1, 4 * GIB + 2 * MIB, "/dev/a"),),
    (group(1, 500, (1, 0)), group(2, 100, (1, 1)), group(3, 1024, (1, 2)), group(4, 900, (1, 3), flags=METADATA)),
    frozenset({"single"}),
)
WITH_TEMPORARY = replace(FULL, devices=(*FULL.devices, PoolDevice(2, 3 * GIB, "/dev/loop0")))
RAID1 = RoomReading(
    (PoolDevice(1, 4 * GIB, "/dev/a"), PoolDevice(2, 3 * GIB + MIB, "/dev/b")),
    (group(1, 500, (1, 0), (2, 0)), group(2, 300, (1, 1), (2, 1))),
    frozenset({"raid1"}),
)


def step(
    reading: RoomReading, temporary: tuple[int, ...] = (2,), *, back: bool = False, last: bool = True, **progress: object
) -> object:
    made = RoomProgress(**progress)  # type: ignore[arg-type]
    return next_step(reading, temporary, 2 * FLOOR, 4 * GIB, is_returning=back, is_last_round=last, progress=made)


def test_a_full_pool_needs_one_device_and_raid1_two_and_what_is_unallocated_counts_on_both() -> None:
    room_plan = plan(FULL, FLOOR)
    assert (room_plan.count, room_plan.unallocated, room_plan.goal, room_plan.refusal) == (1, MIB, 400 * MIB, None)
    assert room_plan.is_needed
    assert room_plan.size >= 2 * GIB
    both = plan(RAID1, FLOOR)
    assert (both.count, both.unallocated) == (2, GIB)
    assert not both.is_needed


@pytest.mark.parametrize(
    ("reading", "refusal", "details"),
    [
        (replace(FULL, read_only=True), Refusal.READ_ONLY, ""),
        (replace(FULL, missing=(2, 3)), Refusal.MISSING, "2, 3"),
        (replace(FULL, busy="balance paused"), Refusal.BUSY, "balance paused"),
        *[(replace(FULL, profiles=frozenset({"single", name})), Refusal.PROFILE, name) for name in ("raid5", "raid6", "raid1c3")],
        *[(replace(FULL, profiles=frozenset({name})), Refusal.PROFILE, name) for name in ("raid1c4", "raid10", "raid0", "unknown")],
        (replace(FULL, devices=FULL.devices * 3), Refusal.DEVICES, "3"),
        (replace(FULL, groups=(group(1, 1000, (1, 0)), group(2, 1000, (1, 1)), *FULL.groups[2:])), Refusal.DATA_FULL, ""),
    ],
)
def test_in_doubt_it_is_refused(reading: RoomReading, refusal: Refusal, details: str) -> None:
    room_plan = plan(reading, FLOOR)
    assert (room_plan.refusal, room_plan.details) == (refusal, details)


def test_the_least_used_is_moved_until_enough_is_unallocated_or_nothing_is_gained() -> None:
    assert step(WITH_TEMPORARY) == MoveBlockGroup(2 * GIB, DATA, 100 * MIB, back=False)
    assert step(WITH_TEMPORARY, moved={2 * GIB}) == MoveBlockGroup(1 * GIB, DATA, 500 * MIB, back=False)
    assert step(WITH_TEMPORARY, moved={GIB, 2 * GIB}) == TurnBack(RoomEnd.EXHAUSTED)  # neither the full one nor metadata
    assert step(WITH_TEMPORARY, failed={7, 8, 9}) == TurnBack(RoomEnd.NO_SPACE)
    assert step(WITH_TEMPORARY, since=12) == TurnBack(RoomEnd.NO_GAIN)
    freed = replace(WITH_TEMPORARY, groups=WITH_TEMPORARY.groups[1:])
    assert step(freed) == TurnBack(RoomEnd.REACHED)
    borrowed = replace(freed, groups=(*freed.groups, group(9, 500, (2, 0))))
    assert isinstance(step(borrowed), MoveBlockGroup), "what is free now has to come back"


def test_what_was_made_since_the_beginning_or_lies_on_the_temporary_device_is_not_moved_there() -> None:
    later = replace(WITH_TEMPORARY, groups=(*WITH_TEMPORARY.groups, group(5, 1, (1, 3)), group(0, 1, (2, 0))))
    assert step(later) == MoveBlockGroup(2 * GIB, DATA, 100 * MIB, back=False)


def test_a_temporary_device_is_shrunk_then_emptied_from_its_end_and_only_then_removed() -> None:
    two = replace(WITH_TEMPORARY, groups=(*WITH_TEMPORARY.groups, group(8, 10, (2, 1), flags=METADATA), group(9, 500, (2, 0))))
    assert step(two, back=True) == Shrink(2, 2 * GIB + MIB)
    shrunk = replace(two, devices=(FULL.devices[0], PoolDevice(2, 2 * GIB + MIB, "/dev/loop0")))
    assert step(shrunk, back=True) == MoveBlockGroup(8 * GIB, METADATA, 10 * MIB, back=True)
    assert step(shrunk, back=True, failed={8 * GIB}) == MoveBlockGroup(9 * GIB, DATA, 500 * MIB, back=True)
    assert step(shrunk, back=True, failed={8 * GIB, 9 * GIB}) == End(RoomEnd.STUCK)
    assert step(shrunk, back=True, returned=1000) == step(shrunk, back=True, empty=5) == End(RoomEnd.STUCK)
    empty = replace(shrunk, groups=FULL.groups)
    assert step(empty, back=True) == Shrink(2, SMALLEST)
    smallest = replace(empty, devices=(FULL.devices[0], PoolDevice(2, SMALLEST, "/dev/loop0")))
    assert step(smallest, back=True) == RemoveDevice(2)
    assert step(FULL, back=True) == End(RoomEnd.REACHED)


def test_of_two_temporary_devices_none_is_removed_before_both_are_empty() -> None:
    devices = (*RAID1.devices, PoolDevice(3, SMALLEST, "/dev/loop0"), PoolDevice(4, GIB + MIB, "/dev/loop1"))
    one_has_something = replace(RAID1, devices=devices, groups=(*RAID1.groups, group(9, 5, (2, 2), (4, 0))))
    assert step(one_has_something, (3, 4), back=True) == MoveBlockGroup(9 * GIB, DATA, 5 * MIB, back=True)
    both = replace(RAID1, devices=(*devices[:3], PoolDevice(4, SMALLEST, "/dev/loop1")))
    assert step(both, (3, 4), back=True) == RemoveDevice(3)


def test_it_begins_another_round_as_long_as_what_came_back_has_taken_the_space() -> None:
    devices = (FULL.devices[0], PoolDevice(2, SMALLEST, "/dev/loop0"))
    empty = replace(FULL, devices=devices)
    assert step(empty, back=True, last=False) == TurnForth()
    assert step(empty, back=True) == RemoveDevice(2)
    in_the_way = Piece(2, MIB, 50 * MIB)
    appeared = replace(empty, groups=(*FULL.groups, PlacedBlockGroup(9 * GIB, 50 * MIB, 0, METADATA, (in_the_way,))))
    assert step(appeared, back=True, last=False) == TurnForth()
    assert step(appeared, back=True) == MoveBlockGroup(9 * GIB, METADATA, 0, back=True)
    enough = replace(empty, groups=FULL.groups[1:])
    assert step(enough, back=True, last=False) == RemoveDevice(2)


def test_progress_is_what_stays_on_the_lasting_devices() -> None:
    progress = RoomProgress()
    progress.note(WITH_TEMPORARY, (2,))
    for _ in range(2):
        progress.note(replace(WITH_TEMPORARY, groups=(*FULL.groups[1:], group(9, 500, (2, 0)))), (2,))
    assert progress.since == 2, "one moved to the temporary device gains nothing"
    progress.note(replace(WITH_TEMPORARY, groups=FULL.groups[2:]), (2,))
    assert progress.since == 0


@pytest.mark.parametrize(
    ("free", "metadata_free", "expected"),
    [
        (GIB, 10 * GIB, Shortage.DATA),
        (GIB, 0, Shortage.DATA),
        (50 * GIB, 100 * MIB, Shortage.METADATA),
        (50 * GIB, GIB, Shortage.ALLOCATED),
    ],
)
def test_data_full_metadata_full_and_all_allocated_are_told_apart(free: int, metadata_free: int, expected: Shortage) -> None:
    assert shortage(Room(100 * GIB, free, 0, metadata_free)) is expected
