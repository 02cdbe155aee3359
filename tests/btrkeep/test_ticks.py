"""What changes after a step of the kernel's clock is dated later than what changed before it."""

import os
import time
from pathlib import Path

import pytest

from btrkeep.clock import moment, wait_for_tick

ROUNDS = 300
TICK = time.clock_getres(5)  # CLOCK_REALTIME_COARSE of linux/time.h


def test_what_changes_after_the_wait_is_dated_later_than_what_changed_before(tmp_path: Path) -> None:
    assert all(second > first for first, second in _pairs(tmp_path))


@pytest.mark.btrfs
def test_it_is_so_on_a_btrfs_too(shared_btrfs: Path) -> None:
    assert all(second > first for first, second in _pairs(shared_btrfs))


def test_a_kernel_with_finer_times_need_not_be_waited_for(tmp_path: Path) -> None:
    if not _has_finer_times(tmp_path):
        pytest.skip("this kernel dates changes by its ticks alone (before Linux 6.13)")
    waited = min(_waited() for _ in range(ROUNDS))
    assert waited < TICK / 4


def _waited() -> float:
    """A wait that begins right after a tick takes a whole one."""
    wait_for_tick(moment())
    begun = time.perf_counter()
    wait_for_tick(moment())
    return time.perf_counter() - begun


def _pairs(folder: Path) -> list[tuple[int, int]]:
    """When two files were changed, of which the second was after the wait. No time is asked for before all are there, which would
    make that file's next change a finer one; but every third first one's is.
    """
    names = [(folder / f"first{number}", folder / f"second{number}") for number in range(ROUNDS)]
    for number, (first, second) in enumerate(names):
        _write(first)
        if number % 3 == 0:
            first.stat()
            _write(first)
        wait_for_tick(moment())
        _write(second)
    return [(first.stat().st_ctime_ns, second.stat().st_ctime_ns) for first, second in names]


def _write(path: Path) -> None:
    """Python's own files ask for the time when they are opened."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(fd, b"content")
    os.close(fd)


def _has_finer_times(folder: Path) -> bool:
    path = folder / "file"
    times = set()
    for _ in range(100):
        path.touch()
        times.add(path.stat().st_ctime_ns)
    return len(times) > 50
