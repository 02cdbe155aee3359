"""Balancing real filesystems: one block group at a time, and the report of a run."""

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import btrfs as python_btrfs
import pytest

from balancer.choose import FLOORS
from balancer.run_types import BalanceOutcome, RelocationObstacle, SpaceNumbers, StopReason
from btrkeep.errors import PoolUnusable
from btrkeep.pool.balance_ioctl import balance_block_group, cancel_balance
from tests.balancer.program import histogram, theirs
from tests.beds import btrfs, work
from tests.beds.balancing import (
    DATA,
    METADATA,
    Seen,
    balance,
    checksum,
    churn,
    foreign,
    fullest,
    groups,
    nothing_is_left,
    planned,
)

pytestmark = [pytest.mark.btrfs, pytest.mark.root]


@pytest.fixture
def opened(bed: Path) -> Iterator[int]:
    fd = os.open(bed, os.O_RDONLY)
    yield fd
    os.close(fd)


# --- the ioctl


def test_exactly_the_block_group_that_was_named_moves(make_btrfs: Callable[..., Path]) -> None:
    point = make_btrfs(size="700M", mkfs=("-m", "single"))
    churn(point, 2500, 1)
    before, files = groups(point), checksum(point)
    chosen = fullest(point)
    with python_btrfs.FileSystem(str(point)) as filesystem:
        assert balance_block_group(filesystem.fd, chosen, before[chosen][1]) == 1
        work("btrfs", "filesystem", "sync", point)
        after = groups(point)
        assert set(before) - set(after) == {chosen}
        assert {vaddr for vaddr, (_, kind, _) in after.items() if not kind & DATA} == {
            vaddr for vaddr, (_, kind, _) in before.items() if not kind & DATA
        }
        assert balance_block_group(filesystem.fd, chosen, before[chosen][1]) == 0  # it is gone
        rest = [vaddr for vaddr, (_, kind, _) in after.items() if not kind & DATA]
        assert [balance_block_group(filesystem.fd, vaddr, DATA) for vaddr in rest] == [0, 0]
    assert set(groups(point)) == set(after)
    assert checksum(point) == files
    nothing_is_left(point)


def test_a_mixed_block_group_moves_too(make_btrfs: Callable[..., Path]) -> None:
    point = make_btrfs(size="256M", mkfs=("--mixed",))
    churn(point, 400, 1)
    files, chosen = checksum(point), fullest(point)
    report = balance(point, budget=40 << 20)
    assert {step.outcome for step in report.steps} == {BalanceOutcome.DONE}
    with python_btrfs.FileSystem(str(point)) as filesystem:
        chosen = fullest(point)
        assert groups(point)[chosen][1] & METADATA
        assert balance_block_group(filesystem.fd, chosen, groups(point)[chosen][1]) == 1
    assert chosen not in groups(point)
    assert checksum(point) == files


def test_only_the_balance_of_that_block_group_is_cancelled(bed: Path, opened: int) -> None:
    assert not cancel_balance(opened)
    chosen = fullest(bed)
    other = foreign(bed, chosen)
    assert "is running" in work("btrfs", "balance", "status", bed, check=False).stdout
    assert not cancel_balance(opened, chosen + 4096)
    with pytest.raises(OSError) as refused:
        balance_block_group(opened, chosen, DATA)
    assert refused.value.errno == errno.EINPROGRESS
    assert cancel_balance(opened, chosen)
    assert "canceled by user" in other.communicate(timeout=60)[1]
    nothing_is_left(bed)


def test_no_room_for_a_block_group_is_said_by_the_kernel(make_btrfs: Callable[..., Path]) -> None:
    point = make_btrfs(size="256M", mkfs=("-m", "single"))
    fd = os.open(point / "all", os.O_CREAT | os.O_RDWR)
    with suppress(OSError):
        for number in range(10_000):
            os.posix_fallocate(fd, number << 20, 1 << 20)
    os.close(fd)
    assert os.statvfs(point).f_bavail * 4096 <= 1 << 20
    work("btrfs", "filesystem", "sync", point)
    chosen = fullest(point)
    with python_btrfs.FileSystem(str(point)) as filesystem, pytest.raises(OSError) as full:
        balance_block_group(filesystem.fd, chosen, DATA)
    assert full.value.errno == errno.ENOSPC
    nothing_is_left(point)


def test_a_block_group_with_a_swap_file_stays_and_is_set_aside(make_btrfs: Callable[..., Path]) -> None:
    point = make_btrfs(size="256M", mkfs=("-m", "single"))
    (point / "first").write_bytes(os.urandom(8 << 20))
    swap = point / "swap"
    swap.touch()
    work("chattr", "+C", swap)
    swap.write_bytes(bytes(4 << 20))
    swap.chmod(0o600)
    work("btrfs", "filesystem", "sync", point)
    (point / "first").unlink()
    work("btrfs", "filesystem", "sync", point)
    work("mkswap", swap)
    if work("swapon", swap, check=False).returncode:
        pytest.skip("this machine may not swap")
    try:
        before = groups(point)
        report = balance(point)
        after = groups(point)
    finally:
        work("swapoff", swap)
    failed = [(step.outcome, step.obstacle, step.moved) for step in report.steps if step.error]
    assert failed == [(BalanceOutcome.FAILED, RelocationObstacle.SWAP, 0)]
    assert report.reason is StopReason.DONE
    assert {step.group.vaddr for step in report.steps if step.error} <= set(before) & set(after)


# --- a whole run, and its numbers


def test_a_run_balances_what_is_worth_it_and_reports_what_python_btrfs_sees(make_btrfs: Callable[..., Path]) -> None:
    point = make_btrfs(size="1G", mkfs=("-m", "dup"))
    churn(point, 3500, 2)
    files, seen, independent = checksum(point), Seen(), truth(point)
    expected = planned(point)
    disk = Path(btrfs.devices_of(point)[0]).name
    written = sectors_written(disk)
    report = balance(point, seen)
    assert sectors_written(disk) - written >= report.written > report.moved
    assert report.written > 0.9 * (sectors_written(disk) - written)
    assert counts(report.before) == independent
    assert counts(report.after) == truth(point)
    assert report.gained > 0.5 * report.before.score
    assert report.moved == sum(step.group.used for step in report.steps if step.outcome is BalanceOutcome.DONE)
    assert sum(step.gained for step in report.steps) == pytest.approx(report.gained)
    assert (report.steps[0].group.vaddr, report.steps[0].group.cost) == (expected[0].vaddr, expected[0].cost)
    assert report.reason is StopReason.DONE
    middle = ["step_begins", "step_ends"] * len(report.steps)
    assert seen.events() == ["begins", *middle, "ends"]
    assert checksum(point) == files
    nothing_is_left(point)
    work("btrfs", "scrub", "start", "-B", point)
    for number in range(2):  # moved data belongs to the same files: all can be deleted without a remainder
        work("btrfs", "-q", "subvolume", "delete", point / f"snapshot{number}")
    btrfs.unmount(point)
    work("btrfs", "check", btrfs.devices_of(point)[0])


def truth(point: Path) -> tuple[Any, ...]:
    work("btrfs", "filesystem", "sync", point)
    expected = theirs(point).values()
    runs = [length for seen in expected for length in seen.joined]
    large = sum(row["bytes"] for row in histogram(runs) if row["at_least"] >= 16 << 20)
    numbers = (
        sum(seen.length for seen in expected),
        sum(seen.used for seen in expected),
        sum(seen.fragments for seen in expected),
    )
    return len(expected), *numbers, pytest.approx(sum(seen.score for seen in expected)), max(runs), large


def counts(numbers: SpaceNumbers) -> tuple[Any, ...]:
    return (
        numbers.block_groups,
        numbers.allocated,
        numbers.used,
        numbers.fragments,
        numbers.score,
        numbers.largest_free,
        numbers.free_in_large,
    )


def sectors_written(disk: str) -> int:
    return int(Path(f"/sys/block/{disk}/stat").read_text().split()[6]) * 512


def test_a_budget_is_never_exceeded_and_what_fits_is_done(bed: Path) -> None:
    budget = planned(bed)[0].used + (1 << 20)
    expected = planned(bed, budget=budget)
    within = [group for group in expected if group.is_within]
    assert sum(group.used for group in within) == within[-1].moved_so_far <= budget
    rehearsed, before = balance(bed, budget=budget, dry_run=True), groups(bed)
    assert [group.vaddr for group in rehearsed.planned] == [group.vaddr for group in expected]
    report = balance(bed, budget=budget)
    gone = set(before) - set(groups(bed))
    assert 0 < report.moved <= budget
    assert report.moved == sum(before[vaddr][2] for vaddr in gone)
    assert report.reason is StopReason.BUDGET


# --- filesystems that may not be balanced


def test_a_read_only_filesystem_and_a_read_only_mount_are_refused(bed: Path, tmp_path: Path) -> None:
    work("mount", "--bind", bed, tmp_path)
    work("mount", "-o", "remount,bind,ro", tmp_path)
    try:
        with pytest.raises(PoolUnusable, match="is a read-only mount"):
            balance(tmp_path)
    finally:
        work("umount", tmp_path)
    btrfs.remount(bed, "ro")
    try:
        with pytest.raises(PoolUnusable, match="is read-only"):
            balance(bed)
    finally:
        btrfs.remount(bed, "rw")


def test_a_degraded_filesystem_is_refused(make_btrfs: Callable[..., Path]) -> None:
    point = make_btrfs(size="256M", devices=2, mkfs=("-d", "raid1", "-m", "raid1"))
    (point / "file").write_bytes(os.urandom(1 << 20))
    assert balance(point).reason is StopReason.DONE
    first, second = btrfs.devices_of(point)
    number = re.search(rf"devid\s+(\d+) .*path {second}$", work("btrfs", "filesystem", "show", point).stdout, re.MULTILINE)
    btrfs.unmount(point)
    work("losetup", "-d", second)
    work("btrfs", "device", "scan", "--forget", second, check=False)
    work("mount", "-o", "degraded", first, point)
    with pytest.raises(PoolUnusable, match=rf"is degraded: 1 device missing \({number and number[1]}\)"):
        balance(point)


def holed(point: Path, megabytes: int, share: float = 0.4) -> None:
    """Makes one file of 100 KB, then files of 1 MiB, of which a share is deleted: block groups with a hole each few MiB."""
    (point / "small").write_bytes(os.urandom(100_000))
    work("btrfs", "filesystem", "sync", point)
    kept = []
    for number in range(megabytes):
        fd = os.open(point / f"f{number}", os.O_CREAT | os.O_RDWR)
        try:
            os.posix_fallocate(fd, 0, 1 << 20)
        finally:
            os.close(fd)
        if number % 100 == 99:
            work("btrfs", "filesystem", "sync", point)
        kept.append(number)
    for number in kept:
        if (number * 7919 + 13) % 100 < share * 100:
            (point / f"f{number}").unlink()
    work("btrfs", "filesystem", "sync", point)


def test_a_run_for_space_moves_nothing_twice_and_ends_when_no_more_is_to_be_had(make_btrfs: Callable[..., Path]) -> None:
    point = make_btrfs(size="2G", mkfs=("-m", "single"), options="nossd")
    holed(point, 1100)
    before = groups(point)
    report = balance(point, policy="usage", floors=FLOORS["usage"], time=60.0)
    assert report.reason in (StopReason.DONE, StopReason.NO_GAIN)
    moved = [step.group.vaddr for step in report.steps if step.outcome is BalanceOutcome.DONE]
    assert len(moved) == len(set(moved))
    assert set(moved) <= set(before)  # nothing that the run itself has made
    allocated = [sum(length for length, kind, _ in read.values() if kind & DATA) for read in (before, groups(point))]
    used = sum(used for _, kind, used in before.values() if kind & DATA)
    longest = max(length for length, _, _ in before.values())
    assert allocated[0] - used > 2 * longest  # there was something to gain
    assert allocated[1] - used < 2 * longest  # and it was gained
    assert sum(step.freed for step in report.steps) == pytest.approx(
        report.after.unallocated - report.before.unallocated, abs=1 << 20
    )
