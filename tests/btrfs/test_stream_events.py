"""What happens to a host with `engine = "send"`: it is renamed, taken over, killed, and its pool becomes full."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds import work
from tests.beds.nights import Nights
from tests.beds.ssh import Sshd
from tests.beds.stream_host import Web1
from tests.beds.watch import does_at

pytestmark = [pytest.mark.btrfs, pytest.mark.root, pytest.mark.slow]


@pytest.fixture
def web1(nights: Nights, sshd: Sshd, btrfs_mount: Path) -> Web1:
    return Web1(nights, sshd, btrfs_mount)


def test_a_renamed_host_goes_on_with_its_snapshots_and_leaves_none_under_the_old_name(web1: Web1) -> None:
    for number in range(2):
        (web1.srv / "www/page").write_text(f"night {number}")
        web1.run()
    web1.nights.backupd("rename", "web1", "web9", "--yes")
    web1.nights.tables["host"]["web9"] = web1.nights.tables["host"].pop("web1")
    web1.nights.write()
    (web1.srv / "www/page").write_text("night 2")
    for _ in range(2):
        assert web1.nights.run("web9")["web9"]["outcome"] == "complete"
        assert web1.nights.record("web9")["paths"][0]["numbers"]["received"] < 10_000
    assert len(web1.kept()) == 2
    assert len({path.name.split("=")[1] for path in web1.kept()}) == 1


def test_the_second_copy_goes_on_with_the_hosts_snapshots(web1: Web1, make_btrfs: Callable[..., Path]) -> None:
    """With the same --server in its key. With another one the first stream is complete, because the snapshots are not its own."""
    web1.run()
    second, ssh = Nights(make_btrfs(size="500M"), "--rehearsal"), web1.nights.tables["ssh"]
    second.tables["replica.office"] = {"from": str(web1.nights.pool)}
    second.write()
    second.backupd("replicate")
    second.backupd("promote", "web1", "--yes")
    keys = {"address": web1.program.sshd.address, "port": web1.program.sshd.port, "engine": "send"}
    second.host("web1", web1.srv, **keys)
    web1.program.ssh("home")
    for server, is_complete in (("office", False), ("home", True), ("home", False)):
        (web1.srv / "www/page").write_text(f"{server} {is_complete}")
        second.settings("ssh", **{**ssh, "key": str(web1.program.keys[server])})
        assert second.run("web1")["web1"]["outcome"] == "complete"
        assert (second.record("web1")["paths"][0]["numbers"]["received"] > 4 << 20) == is_complete
        assert (second.data("web1", web1.srv) / "www/page").read_text() == f"{server} {is_complete}"
    web1.run()  # the first server's snapshots are still there
    assert web1.path()["numbers"]["received"] < 10_000


def test_a_pool_that_becomes_full_in_the_middle_of_a_stream_keeps_its_backups(
    sshd: Sshd, make_btrfs: Callable[..., Path], btrfs_mount: Path
) -> None:
    """With no free space required: the applier meets the full filesystem."""
    nights = Nights(make_btrfs(size="200M"))
    web1 = Web1(nights, sshd, btrfs_mount)
    web1.run()
    (web1.srv / "large").write_bytes(random.Random(2).randbytes(50 << 20) * 6)
    error = web1.run("failed")["error"]
    assert "No space left on device" in error, error
    assert not (nights.pool / "hosts/web1/.working").exists()
    assert len(nights.names("web1")) == 1
    (web1.srv / "large").unlink()
    work("btrfs", "subvolume", "sync", nights.top)  # what was discarded
    web1.run()
    assert web1.differences() == []
    assert web1.path()["numbers"]["received"] < 100_000


def test_the_hosts_program_killed_in_the_middle_of_a_stream_is_a_connection_that_is_made_again(web1: Web1) -> None:
    """The test waits for the pause before the second attempt."""
    web1.run()
    (web1.srv / "other").write_bytes(random.Random(3).randbytes(8 << 20))
    web1.configure(bandwidth="1MB", attempts=2)
    marker = str(web1.program.state)
    kill = f"for pid in $(pgrep -f -- {marker}); do [ $pid = $$ ] || kill -9 $pid; done; sleep 1"
    kill = f"[ -e {web1.top}/once ] || {{ touch {web1.top}/once; {kill}; }}"
    done = does_at(web1.nights, kill, "after", "host's snapshots for streams made", "run", "--json", "web1")
    (result,) = json.loads(done.stdout)
    assert (done.returncode, result["outcome"], result["attempts"]) == (0, "complete", 2), result
    assert web1.differences() == []
    assert len(web1.kept()) == 2


def test_a_stream_is_stopped_before_the_pool_is_full(sshd: Sshd, make_btrfs: Callable[..., Path], btrfs_mount: Path) -> None:
    nights = Nights(make_btrfs(size="400M"))
    web1 = Web1(nights, sshd, btrfs_mount)
    web1.run()
    (web1.srv / "large").write_bytes(random.Random(2).randbytes(50 << 20) * 6)
    nights.settings("pool", min_free="20%")
    web1.configure(bandwidth="40MB")
    done = nights.backupd("run", "--json", "web1", check=False)
    (result,) = json.loads(done.stdout)
    assert (done.returncode, result["outcome"]) == (4, "partial")
    assert "free space" in result["error"]
    assert os.statvfs(nights.top).f_bavail > 0
    assert not (nights.pool / "hosts/web1/.working").exists()
    (web1.srv / "large").unlink()
    nights.settings("pool", min_free="0%")
    work("btrfs", "subvolume", "sync", nights.top)  # what was discarded
    web1.run()
    assert web1.differences() == []


def test_a_local_history_on_the_host_is_as_configured_and_as_its_administrator_allows(web1: Web1) -> None:
    web1.configure(keep_on_host="daily=2")
    done = web1.nights.backupd("check", "--connect", check=False)
    assert "write history = 20 in [snapshots]" in " ".join(done.stdout.split())
    web1.program.config.write_text("[snapshots]\nhistory = 3\n")
    done = web1.nights.backupd("check", "--connect", check=False)
    assert "daily=2 as local history, at most 3 snapshots" in " ".join(done.stdout.split())
    for number in range(4):  # of one day: the first, and the two that the next stream needs
        (web1.srv / "www/page").write_text(f"night {number}")
        assert web1.run()["warnings"] == []
        assert web1.differences() == []
        assert number == 0 or web1.path()["numbers"]["received"] < 10_000
    assert [(path / "www/page").read_text() for path in web1.kept()] == ["night 0", "night 2", "night 3"]
    web1.program.config.write_text("")
    assert "1 snapshot fewer than keep_on_host asks for" in web1.run()["warnings"][0]
    assert len(web1.kept()) == 2
