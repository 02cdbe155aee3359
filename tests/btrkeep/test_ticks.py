"""Changes after a tick of the kernel's clock are dated later than changes before it."""

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
    """Returns how long a wait takes that begins right after a tick: a whole tick."""
    wait_for_tick(moment())
    begun = time.perf_counter()
    wait_for_tick(moment())
    return time.perf_counter() - begun


def _pairs(folder: Path) -> list[tuple[int, int]]:
    """Returns the times of changes of two files; the second file was changed after the wait. No time is read before all files
    exist, because reading gives a file's next change a finer time; only every third first file is read.
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
    """Writes without Python's file objects, which read the time when they are opened."""
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
