"""The devices' counters of failed writes show whether data that was just written is safe."""

import pytest

from btrkeep.pool.allocation import Allocation, DeviceUse, Space, may_have_lost_data


def counted(profile: str, failed: list[int | None]) -> Allocation:
    devices = (DeviceUse(devid, 0, 0, None if count is None else (count, 0, 0, 0, 0)) for devid, count in enumerate(failed, 1))
    return Allocation((Space("data", profile, 0, 0, 1.0),), tuple(devices))


@pytest.mark.parametrize(
    ("profile", "before", "after", "lost"),
    [
        ("single", [0, 7], [0, 7], False),
        ("single", [0, 7], [0, 8], True),
        ("dup", [0], [2], True),
        ("raid1", [0, 7], [0, 9], False),
        ("raid1", [0, 7], [1, 9], True),
        ("raid1", [0, 0], [0, None], False),  # a device that has gone
        ("raid1", [0, None], [1, None], True),
        ("single", [0, 0], [0, None], True),
    ],
)
def test_failed_writes_lose_data_unless_another_device_has_it(
    profile: str, before: list[int | None], after: list[int | None], lost: bool
) -> None:
    assert may_have_lost_data(counted(profile, before), counted(profile, after)) is lost
