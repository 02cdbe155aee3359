"""How much data fits with each profile, compared with an allocator that places small chunks one by one."""

import random

import pytest

from btrkeep.pool.space_by_profile import PROFILES, data_that_fits, devices_needed

GIB = 1 << 30


def allocated(profile: str, sizes: list[int], unit: int) -> int:
    """Places chunks with stripes of `unit` on the devices with the most space, as long as a chunk fits, and returns how much data
    they hold.
    """
    recorded, data = PROFILES[profile], 0
    while True:
        sizes = sorted(sizes, reverse=True)
        able = [size for size in sizes if size >= unit]
        if profile == "dup":
            if sizes[0] < 2 * unit:
                return data
            sizes[0] -= 2 * unit
            data += unit
            continue
        count = len(able) - len(able) % recorded.copies if recorded.striped else recorded.least
        if len(able) < max(recorded.least, 1) or count < recorded.least:
            return data
        for index in range(count):
            sizes[index] -= unit
        data += unit * (count - recorded.parity) // recorded.copies


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_what_fits_is_what_an_allocator_of_small_chunks_places(profile: str) -> None:
    choice = random.Random(profile)
    unit = 1 << 20
    for _ in range(25):
        sizes = [choice.choice((0, 1, 2, 3, 5, 8)) * 50 * unit for _ in range(choice.randint(1, 7))]
        expected = allocated(profile, sizes, unit) if sizes else 0
        assert data_that_fits(profile, sizes) == pytest.approx(expected, abs=8 * unit, rel=0.01), (profile, sizes)


@pytest.mark.parametrize(
    ("profile", "sizes", "fits"),
    [
        ("raid1", (0, 0, 2), 0),
        ("raid1", (2, 1), 1),
        ("raid1", (2, 2, 2), 3),
        ("raid1", (10, 2, 2), 4),
        ("raid1c3", (4, 4, 1), 1),
        ("raid1c3", (4, 4, 2, 2), 4),
        ("raid1c4", (3, 3, 3, 3), 3),
        ("raid5", (4, 4, 4), 8),
        ("raid5", (4, 4, 1), 5),
        ("raid6", (4, 4, 4, 4), 8),
        ("raid6", (4, 4), 0),
        ("raid10", (4, 4, 4, 4), 8),
        ("single", (4, 1), 5),
        ("dup", (4, 1), 2),
    ],
)
def test_some_that_can_be_counted_by_hand(profile: str, sizes: tuple[int, ...], fits: int) -> None:
    gib = [size * GIB for size in sizes]
    expected = fits * GIB if (profile, sizes) != ("dup", (4, 1)) else 5 * GIB // 2
    assert data_that_fits(profile, gib) == expected


def test_a_new_chunk_needs_as_many_devices_as_its_profile() -> None:
    assert [devices_needed(name) for name in ("single", "raid1", "raid1c3", "raid1c4", "raid6")] == [1, 2, 3, 4, 3]
    assert all(data_that_fits(name, [GIB] * (profile.least - 1)) == 0 for name, profile in PROFILES.items())
    assert all(data_that_fits(name, [GIB] * profile.least) > 0 for name, profile in PROFILES.items())
