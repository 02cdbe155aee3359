"""Folders that a host reports as unreadable: the search for them has a limit, and can be cancelled."""

import os
from pathlib import Path

import pytest

from backupd.run.unlisted import MOST_LOOKS, files_below
from tests.beds.cancelling import CancelledWhen

DEEP = 900


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    """A backup of /srv with nested folders called srv, and a file in the first."""
    (tmp_path / "data" / "srv").mkdir(parents=True)
    (tmp_path / "data" / "srv" / "file").touch()
    fd = os.open(tmp_path / "data" / "srv", os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir("srv", dir_fd=fd)
        inner = os.open("srv", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    return tmp_path


@pytest.mark.slow
def test_folders_that_take_too_long_to_count_are_reported_as_not_counted(deep: Path) -> None:
    """Each start of such a path could be the folder that the host means, and checking one requires walking the whole path."""
    hostile = [b"/srv" * DEEP + b"/x%d" % number for number in range(3000)]
    asked = 0

    def stopped() -> bool:
        nonlocal asked
        asked += 1
        return False

    count, unknown = files_below(deep, "/srv", hostile, 10**6, CancelledWhen(stopped))
    assert count == 0
    assert 0 < unknown < len(hostile)
    assert asked <= MOST_LOOKS


def test_what_can_be_found_is_counted(deep: Path) -> None:
    assert files_below(deep, "/srv", [b"/srv", b"/srv/srv", b"/no"], 10**6) == (DEEP + 1, 0)


def test_counting_below_unreadable_folders_stops_with_the_run(deep: Path) -> None:
    assert files_below(deep, "/srv", [b"/srv", b"/srv/srv"], 10**6, CancelledWhen(lambda: True)) == (0, 2)
    asked = iter([False] * 50 + [True] * 10)
    count, unknown = files_below(deep, "/srv", [b"/srv"], 10**6, CancelledWhen(lambda: next(asked)))
    assert 0 < count < DEEP
    assert unknown == 1
