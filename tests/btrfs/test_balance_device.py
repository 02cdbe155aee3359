"""Block groups chosen by device, on a full mirror to which one device was added; compared with python-btrfs's list of chunks."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import btrfs as python_btrfs
import pytest

from tests.beds import TOP, btrfs, work

pytestmark = [pytest.mark.btrfs, pytest.mark.root]
MIB = 1 << 20


def chunks_on(point: Path) -> dict[int, set[int]]:
    """Returns the devices of each data chunk."""
    with python_btrfs.FileSystem(str(point)) as filesystem:
        return {
            chunk.vaddr: {stripe.devid for stripe in chunk.stripes}
            for chunk in filesystem.chunks()
            if chunk.type & python_btrfs.BLOCK_GROUP_DATA
        }


def balancer(point: Path, *words: str) -> "tuple[int, dict[str, object]]":
    command: list[str | Path] = [sys.executable, "-m", "balancer", "run", point, "--max-pressure", "none", "--json", *words]
    done = work(*command, check=False, cwd=TOP)
    return done.returncode, json.loads(done.stdout) if done.stdout else {"error": done.stderr}


@pytest.fixture
def added(make_btrfs: Callable[..., Path]) -> Path:
    """Two full mirrored devices with holes, and an empty third."""
    point = make_btrfs(size="600M", devices=2, mkfs=("-d", "raid1", "-m", "raid1"))
    for number in range(1000):
        try:
            with (point / f"f{number}").open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, MIB)
        except OSError:
            break
    for path in sorted(point.glob("f*"))[::4]:
        path.unlink()
    image = point.parent / "disk2"
    with image.open("wb") as file:
        file.truncate(600 * MIB)
    work("btrfs", "device", "add", "-f", btrfs.attach(image), point)
    work("btrfs", "filesystem", "sync", point)
    return point


def test_a_new_device_is_filled_and_then_it_is_well(added: Path) -> None:
    before = chunks_on(added)
    assert not any(3 in devices for devices in before.values())
    status, report = balancer(added, "--policy", "usage", "--fill", "3", "--min-unallocated", "0")
    assert status == 0, report
    assert report["budget"] is None
    assert report["ending"] != "budget"
    after = chunks_on(added)
    assert sum(3 in devices for devices in after.values()) >= 2
    assert os.statvfs(added).f_bavail * 4096 > 100 * MIB
    status, report = balancer(added, "--policy", "usage", "--fill", "3", "--min-unallocated", "0")
    assert status == 0


def test_only_block_groups_on_the_device_are_taken_and_one_that_is_not_there_is_refused(added: Path) -> None:
    status, report = balancer(added, "--policy", "usage", "--device", "3", "--min-unallocated", "0")
    assert (status, report["steps"]) == (0, [])
    status, report = balancer(added, "--device", "7")
    assert status == 2
    assert "no device 7" in str(report["error"])


def test_without_a_budget_what_fits_nowhere_is_the_reason(make_btrfs: Callable[..., Path]) -> None:
    point = make_btrfs(size="300M", mkfs=("-d", "single", "-m", "single"))
    for number in range(200):  # extents of 20 MiB, and holes of 1 MiB
        try:
            for name, size in (("large", 20 * MIB), ("small", MIB)):
                with (point / f"{name}{number}").open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, size)
        except OSError:
            break
    for path in point.glob("small*"):
        path.unlink()
    work("btrfs", "filesystem", "sync", point)
    status, report = balancer(point, "--policy", "usage", "--min-unallocated", "0")
    assert report["ending"] != "budget", report
    assert "budget" not in str(report["why"])
    assert status in (0, 1)
