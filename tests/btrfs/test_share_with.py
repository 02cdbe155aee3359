"""`share_with`: the files of a run share data with the newest backup of a similar host; compared with rsync, find and btrfs.

All hosts of a test are fetched from the same path, one after the other: changes there in between are their differences.
"""

import fcntl
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from backupd.run.finalisation import SharedData, ShareWith, share_written
from btrkeep.clock import Clock
from btrkeep.pool.marker import open_pool
from btrkeep.process.progress import Cancellation
from tests.beds.faults import damage, damage_in_use
from tests.beds.look import exclusive_bytes
from tests.beds.nights import Nights
from tests.beds.watch import does_at, killed
from tests.beds.work import work

pytestmark = [pytest.mark.btrfs, pytest.mark.root, pytest.mark.slow]
MIB = 1 << 20
BIG = 2 * MIB + 100  # not whole blocks


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Sources that are on another filesystem than the pool."""
    tree = tmp_path / "usr"
    (tree / "lib").mkdir(parents=True)
    (tree / "lib" / "both").write_bytes(os.urandom(BIG))
    return tree


@pytest.fixture
def nights(shared_btrfs: Path, tree: Path) -> Nights:
    return pair(shared_btrfs, tree)


def pair(top: Path, tree: Path) -> Nights:
    """web1, and web2 that shares with it."""
    bed = Nights(top)
    bed.host("web1", tree)
    bed.host("web2", tree, share_with="web1", share_across_groups=True)
    return bed


def unlike(nights: Nights, host: str, tree: Path) -> str:
    """Returns the names of the tree that rsync would still transfer or delete."""
    return work(
        "rsync", "-n", "-aHAXc", "--delete", "--itemize-changes", "--modify-window=-1", f"{tree}/", f"{nights.data(host, tree)}/"
    ).stdout


def private(nights: Nights, host: str, tree: Path, name: str) -> int:
    return exclusive_bytes(nights.data(host, tree) / name)


def test_a_new_host_shares_what_both_have_and_is_as_if_there_were_no_other(nights: Nights, tree: Path) -> None:
    for name in ("differs", "one of web1", "first.secret"):
        (tree / name).write_bytes(os.urandom(BIG))
    (tree / "linked").hardlink_to(tree / "lib" / "both")
    with (tree / "sparse").open("wb") as file:
        file.truncate(32 * MIB)
        file.write(os.urandom(MIB))
    work("chown", "1000:1000", tree / "lib" / "both")
    nights.run("web1")
    nights.host("web2", tree, share_with="web1", share_across_groups=True, exclude=["*.secret"])
    (tree / "one of web1").unlink()
    with (tree / "differs").open("r+b") as file:
        file.write(b"x")
    work("setcap", "cap_net_raw+ep", tree / "lib" / "both")
    assert nights.run("web2")["web2"]["outcome"] == "complete"
    before = tree.stat()
    (tree / "first.secret").unlink()
    os.utime(tree, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert unlike(nights, "web2", tree) == ""
    assert nights.differences("web2", tree) == []
    assert private(nights, "web2", tree, "lib/both") == 0
    assert private(nights, "web2", tree, "sparse") == 0
    assert private(nights, "web2", tree, "differs") >= BIG


def test_what_was_shared_is_told_and_outlives_the_catalogue(nights: Nights, tree: Path) -> None:
    assert nights.run("web1")["web1"]["shared_bytes"] is None
    answer = nights.run("web2")["web2"]
    assert (answer["shared_bytes"], answer["new_bytes"]) == (BIG, BIG)
    record = nights.record("web2")
    assert (record["shared_with"], record["shared_bytes"]) == (f"web1@{nights.names('web1')[-1]}", BIG)
    assert [row["shared_bytes"] for row in nights.json("log", "web2")] == [BIG]
    assert "MiB shared" in nights.backupd("log", "web2").stdout
    for _ in range(2):
        (listed,) = nights.json("list", "web2")
        assert listed["shared_bytes"] == BIG
        assert "shared with another host" in nights.backupd("list", "web2").stdout
        for file in nights.state.glob("catalogue.sqlite*"):
            file.unlink()
        nights.backupd("rebuild")


def test_without_share_with_hosts_share_nothing(nights: Nights, tree: Path) -> None:
    nights.host("web2", tree)
    nights.run("web1")
    nights.run("web2")
    assert private(nights, "web2", tree, "lib/both") >= BIG


def test_what_comes_in_a_later_night_is_shared_too(nights: Nights, tree: Path) -> None:
    nights.run("web2")
    assert private(nights, "web2", tree, "lib/both") >= BIG, "web1 has no backup yet"
    (tree / "update").write_bytes(os.urandom(MIB // 2))  # small enough for a checksum even in the shortest run
    nights.run("web1")
    nights.run("web2")
    assert private(nights, "web2", tree, "update") == 0
    work("sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS", cwd=nights.backup("web2"))
    assert "/update\n" in (nights.backup("web2") / "SHA256SUMS").read_text(), "it was written, and is not any more by then"
    assert nights.differences("web2", tree) == []


def test_a_file_of_the_other_host_that_cannot_be_read_is_not_taken_over(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = pair(make_btrfs(size="300M"), tree)
    for name in ("whole", "lib/whole too", "z"):  # regardless of the names before and after it
        (tree / name).write_bytes(os.urandom(BIG))
    nights.run("web1")
    damage(nights.top, (tree / "lib" / "both").read_bytes()[MIB : MIB + 4096])
    assert nights.run("web2")["web2"]["outcome"] == "complete"
    assert nights.differences("web2", tree) == []
    assert [private(nights, "web2", tree, name) for name in ("whole", "lib/whole too", "z")] == [0, 0, 0]


def test_what_is_only_in_memory_of_the_other_host_is_not_taken_over(make_btrfs: Callable[..., Path], tree: Path) -> None:
    """The disk has lost it since then, and the kernel compares cached data."""
    top = make_btrfs()
    nights = pair(top, tree)
    nights.run("web1")
    both = (tree / "lib" / "both").read_bytes()
    assert (nights.data("web1", tree) / "lib" / "both").read_bytes() == both
    damage_in_use(top, both[MIB : MIB + 4096])
    assert nights.run("web2")["web2"]["outcome"] == "complete"
    Path("/proc/sys/vm/drop_caches").write_text("3")
    assert (nights.data("web2", tree) / "lib" / "both").read_bytes() == both
    with pytest.raises(OSError, match="Input/output"):
        (nights.data("web1", tree) / "lib" / "both").read_bytes()


def test_symlinks_in_the_other_host_s_backup_are_not_followed(nights: Nights, tree: Path) -> None:
    """The file that the link leads to is on the pool, and has the same bytes."""
    elsewhere = nights.top / "elsewhere"
    (tree / "lib").rename(tree.parent / "aside")
    elsewhere.mkdir()
    (elsewhere / "both").write_bytes((tree.parent / "aside" / "both").read_bytes())
    (tree / "lib").symlink_to(elsewhere)
    nights.run("web1")
    (tree / "lib").unlink()
    (tree.parent / "aside").rename(tree / "lib")
    nights.run("web2")
    assert private(nights, "web2", tree, "lib/both") >= BIG
    assert nights.differences("web2", tree) == []


def test_a_backup_that_is_being_deleted_is_left_alone_and_costs_nothing_but_room(nights: Nights, tree: Path) -> None:
    nights.run("web1")
    fd = os.open(nights.backup("web1"), os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        assert nights.run("web2")["web2"]["outcome"] == "complete"
    finally:
        os.close(fd)
    assert private(nights, "web2", tree, "lib/both") >= BIG


def test_a_backup_that_is_not_complete_is_not_shared_with(nights: Nights, tree: Path) -> None:
    nights.host("web1", tree, tree.parent / "missing")
    nights.run("web1", status=1)
    nights.run("web2")
    assert private(nights, "web2", tree, "lib/both") >= BIG


def test_who_cancels_gets_a_backup_that_shares_less(nights: Nights, tree: Path) -> None:
    nights.run("web1")
    work("btrfs", "subvolume", "snapshot", nights.backup("web1"), nights.top / "new")
    copy = nights.top / "new" / "data" / str(tree).strip("/") / "lib" / "both"
    copy.unlink()
    copy.write_bytes((tree / "lib" / "both").read_bytes())
    os.sync()
    pool, cancelled, now = open_pool(nights.pool), Cancellation(), Clock(None).now()
    cancelled.handle_signal(signal.SIGTERM)
    other = f"web1@{nights.names('web1')[-1]}"
    assert share_written(pool, nights.top / "new", ShareWith("web1", cancelled), now) == SharedData(0, 0, other)
    assert share_written(pool, nights.top / "new", ShareWith("web1", Cancellation()), now) == SharedData(1, BIG, other)
    assert exclusive_bytes(copy) == 0


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_that_is_killed_while_it_shares_is_whole_the_next_time(nights: Nights, tree: Path, when: str) -> None:
    nights.run("web1")
    killed(nights, when, "data shared with another host", "run", "web2")
    assert nights.names("web2") == []
    assert nights.run("web2")["web2"]["outcome"] == "complete"
    assert unlike(nights, "web2", tree) == ""
    assert not nights.working("web2").parent.exists()


def test_a_full_pool_costs_the_sharing_and_not_the_backup(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = pair(make_btrfs(size="300M"), tree)
    nights.run("web1")
    fill = f"head -c 1G /dev/zero | tr '\\0' x >{nights.top}/ballast; sync -f {nights.top}; true"
    done = does_at(nights, fill, "before", "data shared with another host", "run", "web2")
    assert "Traceback" not in done.stderr, done.stderr
    (nights.top / "ballast").unlink()
    work("sync", "-f", nights.top)
    nights.run("web2")
    for name in nights.names("web2"):
        assert (nights.data("web2", tree, name) / "lib/both").read_bytes() == (tree / "lib/both").read_bytes()
