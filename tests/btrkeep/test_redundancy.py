"""How many good copies are left, and how much a scrub has read; compared with a model that removes devices one by one."""

from datetime import UTC, datetime, timedelta
from itertools import combinations

import pytest

from btrkeep.decisions.pool_health import copies_left, redundancy, redundancy_words
from btrkeep.decisions.scrub import DeviceScrub, UnreadReason, begun_of, is_resumable, unread_devices, unread_words
from btrkeep.pool.space_by_profile import ChunkUse

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
BEGUN = NOW - timedelta(hours=3)
MIB = 1 << 20


def is_readable(profile: str, devids: tuple[int, ...], missing: set[int]) -> bool:
    """Tells whether data is readable, from an independent list of the places that each profile uses."""
    here = [devid not in missing for devid in devids]
    match profile:
        case "single" | "raid0" | "dup":
            return all(here)
        case "raid1" | "raid1c3" | "raid1c4":
            return any(here)
        case "raid10":
            return all(here[at] or here[at + 1] for at in range(0, len(here), 2))
        case "raid5":
            return here.count(False) <= 1
        case "raid6":
            return here.count(False) <= 2
    raise AssertionError(profile)


@pytest.mark.parametrize(
    ("profile", "devids"),
    [
        ("single", (1,)),
        ("raid0", (1, 2, 3)),
        ("raid1", (2, 1)),
        ("raid1c3", (1, 2, 3)),
        ("raid1c4", (4, 1, 2, 3)),
        ("raid10", (1, 2, 3, 4)),
        ("raid10", (4, 2, 1, 3, 6, 5)),
        ("raid5", (1, 2, 3)),
        ("raid6", (1, 2, 3, 4)),
    ],
)
def test_copies_are_as_many_as_the_devices_that_may_still_be_lost_and_one(profile: str, devids: tuple[int, ...]) -> None:
    for count in range(len(devids) + 1):
        for missing in map(set, combinations(devids, count)):
            left = copies_left(profile, devids, missing)
            smallest = next(
                more
                for more in range(len(devids) + 1)
                if any(not is_readable(profile, devids, missing | set(lost)) for lost in combinations(devids, more))
            )
            assert left == smallest, (profile, missing)


def test_the_copies_of_dup_are_on_one_device() -> None:
    assert [copies_left("dup", (1, 1), missing) for missing in ((), (1,), (2,))] == [2, 0, 2]


def test_what_has_one_good_copy_left_is_told_from_what_never_had_more() -> None:
    uses = (
        ChunkUse("data", "raid1", 10 * MIB, (1, 2)),
        ChunkUse("data", "raid1", 20 * MIB, (1, 3)),
        ChunkUse("data", "single", 3 * MIB, (1,)),
        ChunkUse("data", "single", 4 * MIB, (2,)),
        ChunkUse("metadata", "single", 5 * MIB, (1,)),
    )
    recorded = redundancy(uses, {2})
    assert (recorded.lost, recorded.reduced, recorded.single) == (4 * MIB, 13 * MIB, 18 * MIB)
    assert recorded.copies == {"data": {1: 13 * MIB, 2: 20 * MIB, 0: 4 * MIB}, "metadata": {1: 5 * MIB}}
    words = redundancy_words(recorded)
    assert "4.00 MiB cannot be read" in words
    assert "18.0 MiB" not in words, "metadata never had a second copy"
    assert "13.0 MiB have one good copy left" in words
    assert redundancy_words(redundancy((ChunkUse("data", "single", MIB, ()),), ())) == "one copy of 1.00 MiB data"


def scrub(devid: int, status: str = "finished", scrubbed: int = MIB, begun: datetime | None = BEGUN) -> DeviceScrub:
    return DeviceScrub(devid, status, scrubbed, begun)


@pytest.mark.parametrize(
    ("scrubs", "missing", "expected"),
    [
        ({1: scrub(1), 2: scrub(2)}, set(), {}),
        ({1: scrub(1), 2: scrub(2, "aborted", 0)}, {2}, {2: UnreadReason.MISSING}),
        ({1: scrub(1), 2: scrub(2)}, {2}, {2: UnreadReason.MISSING}),
        ({1: scrub(1)}, set(), {2: UnreadReason.NOT_STARTED}),
        ({1: scrub(1), 2: scrub(2, "")}, set(), {2: UnreadReason.NOT_STARTED}),
        ({1: scrub(1, "interrupted"), 2: scrub(2, "aborted")}, set(), {1: UnreadReason.ABORTED, 2: UnreadReason.ABORTED}),
        ({1: scrub(1), 2: scrub(2, begun=BEGUN - timedelta(1))}, set(), {2: UnreadReason.OUTDATED}),
        ({1: scrub(1), 2: scrub(2, begun=None)}, set(), {2: UnreadReason.OUTDATED}),
        ({1: scrub(1), 2: scrub(2, scrubbed=0)}, set(), {2: UnreadReason.NO_PROGRESS}),
    ],
)
def test_a_device_that_was_not_read_as_a_whole_is_named(
    scrubs: dict[int, DeviceScrub], missing: set[int], expected: dict[int, UnreadReason]
) -> None:
    unread = unread_devices(scrubs, {1, 2} - missing, missing, {1: MIB, 2: MIB}, BEGUN)
    assert {unread_device.devid: unread_device.why for unread_device in unread} == expected
    assert all(f"device {unread_device.devid} " in unread_words(unread_device) for unread_device in unread)


def test_a_device_without_data_has_nothing_to_be_read_and_an_unknown_one_has() -> None:
    scrubs = {1: scrub(1), 2: scrub(2, scrubbed=0)}
    assert unread_devices(scrubs, {1, 2}, (), {1: MIB}, BEGUN) == ()
    assert [unread_device.devid for unread_device in unread_devices(scrubs, {1, 2}, (), None, BEGUN)] == [2]


def test_only_what_a_present_device_still_lacks_is_resumed_and_not_after_weeks() -> None:
    half = {1: scrub(1), 2: scrub(2, "aborted")}
    assert is_resumable(half, {1, 2}, NOW)
    assert not is_resumable(half, {1}, NOW), "the missing one can only be aborted again"
    assert not is_resumable({1: scrub(1), 2: scrub(2)}, {1, 2}, NOW)
    assert not is_resumable(half, {1, 2}, NOW + timedelta(days=36))
    assert not is_resumable(half, {1, 2}, NOW - timedelta(days=1)), "it began in the future: the clock was wrong"
    assert begun_of({1: scrub(1), 2: scrub(2, begun=NOW)}, {1, 2}) == BEGUN
    assert begun_of(half, {1, 2, 3}) is None
