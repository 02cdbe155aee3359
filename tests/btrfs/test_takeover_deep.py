"""A snapshot of btrbk is taken over even if the user's tree is deeper than the longest path that the kernel accepts."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds import work
from tests.beds.nights import Nights
from tests.beds.old_trees import imported

pytestmark = [pytest.mark.btrfs, pytest.mark.root, pytest.mark.slow]


def test_a_tree_deeper_than_a_path_is_long_is_taken_over(make_btrfs: Callable[..., Path]) -> None:
    nights = Nights(make_btrfs(size="500M"))
    live, folder = nights.top / "live", nights.top / "btrbk"
    folder.mkdir()
    work("btrfs", "subvolume", "create", live)
    (live / "file").write_text("a")
    fd = os.open(live, os.O_RDONLY)
    for _ in range(30):
        os.mkdir("d" * 200, dir_fd=fd)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    work("btrfs", "subvolume", "snapshot", "-r", live, folder / "home.20260301T2200")
    imported(nights, "btrbk", folder, "--host", "web1", "--verify", "none")  # rsync does not support such paths
    (name,) = nights.names("web1")
    assert (nights.backup("web1", name) / "data/file").read_text() == "a"
