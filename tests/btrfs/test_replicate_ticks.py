"""A file counts as the same file as long as inode, size and time of change are equal: two different copies have two times."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds.two_pools import TwoPools

pytestmark = [pytest.mark.btrfs]


def test_what_changed_from_one_backup_to_the_next_has_another_time_in_the_copies(make_btrfs: Callable[..., Path]) -> None:
    two = TwoPools(make_btrfs(size="300M"), make_btrfs(size="300M"))
    names = [two.night(f"2026-03-{day:02}T22:00:00Z", chr(96 + day)) for day in range(1, 13)]
    two.fetch()
    inner = Path("data", *two.source.parts[1:], "changed")
    stat_results = [(two.second.pool / "hosts/web1" / name / inner).stat() for name in names]
    assert len({status.st_ino for status in stat_results}) == len({status.st_size for status in stat_results}) == 1
    assert len({status.st_ctime_ns for status in stat_results}) == len(names)
    assert two.second.backupd("verify", "--now", "2026-03-20T12:00:00Z").returncode == 0
