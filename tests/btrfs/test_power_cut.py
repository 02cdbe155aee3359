"""After a power cut, files have the new times and sizes without the data: such files never count as complete."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from btrkeep.pool.subvolume import create, snapshot
from tests.beds import work
from tests.beds.btrfs import remount
from tests.beds.faults import after_cut, cut
from tests.beds.nights import Nights
from tests.beds.watch import hold, processes, receivers, wait_for

MIB = 1 << 20
Make = Callable[..., Path]
Start = Callable[..., "subprocess.Popen[str]"]


def pool_of(make_btrfs: Make) -> Nights:
    """A pool on a filesystem that commits only on request."""
    nights = Nights(make_btrfs(size="1G", options="commit=300"))
    nights.settings("pool", min_free="0%")
    return nights


def cut_in_the_middle(nights: Nights, start: Start, host: str, arrived: Path, count: int) -> bool:
    """Cuts the power in a transfer of `host` when `arrived` is complete, and the transfer has stopped after `count` bytes.

    Another host's snapshot has just committed the names, times and sizes of the files. Returns True if data was still unwritten:
    between the last byte and that commit are milliseconds, in which the kernel may write it, for its own reasons or for a sync(2)
    of another program.
    """
    flag = hold(nights, count)
    copied = nights.working(host, arrived)
    other = nights.top / f"other-{host}"
    create(other)
    remount(nights.top, "commit=300")
    work("sync", "-f", nights.top)
    process = start("--config", nights.config, "run", host)
    wait_for(flag.exists)
    wait_for(lambda: copied.exists() and copied.stat().st_mtime_ns == arrived.stat().st_mtime_ns, pause=0.001)
    with (nights.backup(host, ".working") / "backup.json").open() as record:
        os.fsync(record)  # as if it were half a minute old; without the data of other files
    snapshot(other, nights.top / f"snapshot-{host}")
    copy = cut(nights.top)
    for pid in (process.pid, *receivers(nights)):
        with contextlib.suppress(ProcessLookupError):  # it ended between the check and the signal
            os.kill(pid, signal.SIGKILL)
    process.wait()
    flag.unlink()
    wait_for(lambda: not processes(nights.top))
    after_cut(nights.top, copy)
    nights.ssh("")
    assert copied.stat().st_mtime_ns == arrived.stat().st_mtime_ns
    assert copied.stat().st_size == arrived.stat().st_size
    return copied.read_bytes() != arrived.read_bytes()


def change(tree: Path) -> None:
    for name in ("changes", "later"):
        (tree / name).write_bytes(os.urandom(4 * MIB))


def until_cut(attempt: Callable[[str], bool]) -> str:
    """Returns the host, a new one each time, whose data were lost at last: other tests may call sync(2) for seconds on end."""
    for number in range(1, 31):
        if attempt(host := f"web{number}"):
            return host
        time.sleep(number / 10)
    pytest.fail(f"{number} times the data were on the disk before the cut")


def test_a_file_that_has_its_new_time_and_its_old_content_after_a_power_cut_is_not_taken_for_the_new_one(
    make_btrfs: Make, tree: Path, backupd_running: Start
) -> None:
    nights = pool_of(make_btrfs)

    def attempt(host: str) -> bool:
        nights.host(host, tree)
        change(tree)
        nights.run(host)
        change(tree)
        return cut_in_the_middle(nights, backupd_running, host, tree / "changes", 6 * MIB)

    host = until_cut(attempt)
    assert nights.run(host)[host]["outcome"] == "complete"
    assert nights.differences(host, tree) == []
    assert len(nights.names(host)) == 2


def test_a_first_copy_that_has_sizes_and_no_data_after_a_power_cut_is_not_taken_for_whole(
    make_btrfs: Make, tree: Path, backupd_running: Start
) -> None:
    nights = pool_of(make_btrfs)
    (tree / "early").write_bytes(os.urandom(4 * MIB))
    with (tree / "ends-in-zeros").open("wb") as file:
        file.write(os.urandom(2 * MIB))
        file.truncate(4 * MIB)
    (tree / "later").write_bytes(os.urandom(4 * MIB))

    def attempt(host: str) -> bool:
        nights.host(host, tree)
        return cut_in_the_middle(nights, backupd_running, host, tree / "ends-in-zeros", 10 * MIB)

    host = until_cut(attempt)
    assert nights.run(host)[host]["outcome"] == "complete"
    assert nights.differences(host, tree, blocks=False) == []


def names_after_a_cut_now(nights: Nights, host: str) -> list[str]:
    after_cut(nights.top, cut(nights.top))
    return nights.names(host)


def test_what_a_run_has_called_complete_has_its_name_when_the_power_is_cut_at_its_end(make_btrfs: Make, tree: Path) -> None:
    """The first run writes more at its end; a second one on the same day writes nothing after the name."""
    nights = pool_of(make_btrfs)
    nights.host("web", tree)
    nights.run("web")
    change(tree)
    remount(nights.top, "commit=300")
    nights.run("web")
    names = nights.names("web")
    assert names_after_a_cut_now(nights, "web") == names
    assert len(names) == 2


def test_what_an_import_has_made_has_its_name_when_the_power_is_cut_at_its_end(make_btrfs: Make, tree: Path) -> None:
    """After an import, its user may delete the old history at once."""
    nights = pool_of(make_btrfs)
    old = nights.source / "old"
    old.mkdir()
    for day in ("2026-01-01", "2026-01-02"):
        change(tree)
        work("cp", "-a", tree, old / day)
    remount(nights.top, "commit=300")
    nights.backupd("import", "tree", old, "--host", "web", "--verify", "none")
    names = nights.names("web")
    assert names_after_a_cut_now(nights, "web") == names
    assert len(names) == 2
