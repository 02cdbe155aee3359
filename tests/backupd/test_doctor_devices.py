"""The advice of the doctor for a full pool, by the number of devices that its profile needs."""

import pytest

from btrkeep.pool.space_by_profile import Room
from tests.backupd.test_doctor import FILESYSTEM, GIB, TIB, findings_of, fs

TIGHT = Room(40 * TIB, 10 * TIB, 0, 10 * GIB)


@pytest.mark.parametrize(
    ("data", "unallocated", "command"),
    [
        ("raid1", {1: 0, 2: 0}, "btrfs device add /dev/NEW /dev/NEW1 "),
        ("raid1", {1: 0, 2: 0, 3: 2 * TIB}, "--policy usage --fill 3 --min-unallocated 0"),
        ("raid1c3", {1: 0, 2: 0, 3: 0}, "btrfs device add /dev/NEW /dev/NEW1 /dev/NEW2 "),
        ("single", {1: 0}, "btrfs device add /dev/NEW "),
    ],
)
def test_the_advice_knows_how_many_devices_a_profile_needs(data: str, unallocated: dict[int, int], command: str) -> None:
    full = Room(40 * TIB, 0, 0, 10 * GIB)
    for room, check in ((full, "used"), (TIGHT, "unallocated")):
        facts = fs(room=room, profiles={**FILESYSTEM.profiles, "data": (data,)}, unallocated=unallocated)
        (finding,) = (finding for finding in findings_of(facts) if finding.check == check)
        lines = "\n".join(finding.remedy.lines)
        if check == "used" or "--fill" in command:
            assert command in lines, (check, lines)
        if "--fill" in command:
            assert "usage=10" not in lines, "it would end with ENOSPC"
