"""After a power cut files have the times and sizes of what had come, and not its data: no such file is taken for whole."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds import leftout, work
from tests.beds.faults import after_cut, cut
from tests.beds.nights import Nights
from tests.beds.watch import hold, processes, receivers, wait_for

MIB = 1 << 20
Make = Callable[..., Path]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Sources that lie on another filesystem than the pool."""
    tree = tmp_path / "srv"
    tree.mkdir()
    return tree


def pool_of(make_btrfs: Make) -> Nights:
    """One that commits only when somebody makes it."""
    nights = Nights(make_btrfs(size="1G", options="commit=300"))
    nights.settings("pool", min_free="0%")
    return nights


def cut_in_the_middle(nights: Nights, start: Start, arrived: Path, count: int) -> None:
    """Cuts the power in a transfer of the host `web` when `arrived` is whole, and the transfer stands still after `count` bytes.

    Another host's snapshot has just committed what the files are called, their times and their sizes; data still wait.
    """
    flag = hold(nights, count)
    copied = nights.working("web", arrived)
    work("btrfs", "-q", "subvolume", "create", nights.top / "other")
    work("sync", "-f", nights.top)
    process = start("--config", nights.config, "run", "web")
    wait_for(flag.exists)
    wait_for(lambda: copied.exists() and copied.stat().st_mtime_ns == arrived.stat().st_mtime_ns)
    work("sync", nights.backup("web", ".working") / "backup.json")  # as if it were half a minute old; no other file's data
    work("btrfs", "-q", "subvolume", "snapshot", nights.top / "other", nights.top / "snapshot")
    copy = cut(nights.top)
    for pid in (process.pid, *receivers(nights)):
        os.kill(pid, signal.SIGKILL)
    process.wait()
    flag.unlink()
    wait_for(lambda: not processes(nights.top))
    after_cut(nights.top, copy)
    assert copied.stat().st_mtime_ns == arrived.stat().st_mtime_ns
    assert copied.stat().st_size == arrived.stat().st_size
    if copied.read_bytes() == arrived.read_bytes():
        pytest.skip(leftout.reason("power cuts", "this busy machine wrote the data out before"))
    nights.ssh("")


def test_a_file_that_has_its_new_time_and_its_old_content_after_a_power_cut_is_not_taken_for_the_new_one(
    make_btrfs: Make, tree: Path, backupd_running: Start
) -> None:
    nights = pool_of(make_btrfs)
    for name in ("changes", "later"):
        (tree / name).write_bytes(os.urandom(4 * MIB))
    nights.host("web", tree)
    nights.run("web")
    for name in ("changes", "later"):
        (tree / name).write_bytes(os.urandom(4 * MIB))
    cut_in_the_middle(nights, backupd_running, tree / "changes", 6 * MIB)
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert nights.differences("web", tree) == []
    assert len(nights.names("web")) == 2


def test_a_first_copy_that_has_sizes_and_no_data_after_a_power_cut_is_not_taken_for_whole(
    make_btrfs: Make, tree: Path, backupd_running: Start
) -> None:
    nights = pool_of(make_btrfs)
    (tree / "early").write_bytes(os.urandom(4 * MIB))
    with (tree / "ends-in-zeros").open("wb") as file:
        file.write(os.urandom(2 * MIB))
        file.truncate(4 * MIB)
    (tree / "later").write_bytes(os.urandom(4 * MIB))
    nights.host("web", tree)
    cut_in_the_middle(nights, backupd_running, tree / "ends-in-zeros", 10 * MIB)
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert nights.differences("web", tree, blocks=False) == []
