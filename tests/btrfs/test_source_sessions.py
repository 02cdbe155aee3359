"""btrkeep-source: the owners and the number of sessions; no session outlives a server, a connection or a kill.

A snapshot that stays keeps deleted data, until the host's filesystem is full.
"""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from backupd.source import btrkeep_source as program
from tests.beds import work
from tests.beds.source_program import HIDDEN, SourceHost
from tests.beds.ssh import Sshd
from tests.beds.watch import wait_for

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.takes(60)]
KILLED = Path(__file__).resolve().parents[1] / "beds" / "source_killed.py"


@pytest.fixture
def host(sshd: Sshd) -> SourceHost:
    return SourceHost(sshd)


def snapshots(point: Path) -> list[str]:
    """Returns the sessions that have a snapshot, by the folder."""
    folder = point / HIDDEN
    return sorted(path.name.rpartition(".")[0] for path in folder.iterdir()) if folder.exists() else []


def mounts_of(host: SourceHost, point: Path) -> list[str]:
    """Returns the mounts of this test: in its folder, or of its filesystem. Other tests mount theirs at the same time."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    (device,) = {line.split()[0] for line in lines if line.split()[1] == str(point)}
    return [line for line in lines if str(host.folder.parent) in line or line.split()[0] == device]


def reading(host: SourceHost, name: str, path: Path, target: Path, server: str = "office") -> "subprocess.Popen[bytes]":
    """An rsync that reads from a session for as long as the test wants: it is stopped here, so the host's one waits."""
    words = host.rsync_words(name, path, target, "--bwlimit=100", server=server)
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: readers(host, name))
    return process


def readers(host: SourceHost, name: str) -> list[int]:
    """Returns the processes that hold the session's lock, by /proc/locks."""
    lock = host.state / f"{name}.lock"
    inode = f":{lock.stat().st_ino} "
    return [int(line.split()[4]) for line in Path("/proc/locks").read_text().splitlines() if inode in line]


def test_two_servers_have_their_own_sessions(host: SourceHost, btrfs_mount: Path, tmp_path: Path) -> None:
    office, home = host.begin(btrfs_mount)["session"], host.begin(btrfs_mount, server="home")["session"]
    assert snapshots(btrfs_mount) == sorted([office, home])
    second = host.begin(btrfs_mount)["session"]  # its own first one was not used
    assert snapshots(btrfs_mount) == sorted([second, home])
    for words in (f"end {second}", f"rsync {second} --server --sender -r . {btrfs_mount}/"):
        assert "is not a session of home" in host.refusal(f"btrkeep-source {words}", server="home")
    assert snapshots(btrfs_mount) == sorted([second, home])
    (tmp_path / "to").mkdir()
    assert work(*host.rsync_words(office, btrfs_mount, tmp_path / "to"), check=False).returncode != 0
    refusal = host.refusal(f"btrkeep-source rsync {office} --server --sender -r . {btrfs_mount}/")
    assert refusal == f"the session {office} is gone; begin another one"
    assert host.end(second) == {"format": 1, "removed": 1, "full": []}
    assert host.end(second) == {"format": 1, "removed": 0, "full": []}
    host.end(home, server="home")
    assert host.left(btrfs_mount) == []


def test_a_server_whose_name_begins_with_the_others_has_its_own(host: SourceHost, btrfs_mount: Path) -> None:
    other = host.begin(btrfs_mount, server="office-2")["session"]
    own = host.begin(btrfs_mount)["session"]
    host.end(own)
    assert snapshots(btrfs_mount) == [other]
    host.end(other, server="office-2")


def test_a_session_in_use_stays_and_no_more_than_most_are_begun(sshd: Sshd, btrfs_mount: Path, tmp_path: Path) -> None:
    host = SourceHost(sshd, "[snapshots]\nmost = 2\n")
    (btrfs_mount / "large").write_bytes(bytes(range(256)) * 40_000)
    processes = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        name = host.begin(btrfs_mount)["session"]
        processes.append(reading(host, name, btrfs_mount, tmp_path / str(number)))
    assert len(snapshots(btrfs_mount)) == 2
    assert "office has 2 sessions on this host already" in host.refusal(f"btrkeep-source begin {btrfs_mount}")
    third = host.begin(btrfs_mount, server="home")["session"]
    host.end(third, server="home")
    for process in processes:
        process.kill()
        process.wait()
    for pid in [pid for record in host.state.glob("office-*.json") for pid in readers(host, record.stem)]:
        work("kill", str(pid))  # otherwise it waits for its bandwidth before it notices that the reader is gone
    wait_for(lambda: not readers(host, name))
    last = host.begin(btrfs_mount)["session"]
    assert snapshots(btrfs_mount) == [last]
    host.end(last)
    assert host.left(btrfs_mount) == []


def test_end_stops_an_rsync_that_still_reads(host: SourceHost, btrfs_mount: Path, tmp_path: Path) -> None:
    (btrfs_mount / "large").write_bytes(bytes(range(256)) * 400_000)
    (tmp_path / "to").mkdir()
    name = host.begin(btrfs_mount)["session"]
    process = reading(host, name, btrfs_mount, tmp_path / "to")
    assert host.end(name)["removed"] == 1
    assert process.wait(60) != 0
    assert host.left(btrfs_mount) == []


def test_a_session_that_is_too_old_is_ended_even_if_it_is_in_use(sshd: Sshd, btrfs_mount: Path, tmp_path: Path) -> None:
    """`clean` is what the timer runs; a begin of another server does it too."""
    host = SourceHost(sshd, "[snapshots]\noldest = 1s\n")
    (btrfs_mount / "large").write_bytes(bytes(range(256)) * 40_000)
    (tmp_path / "to").mkdir()
    name = host.begin(btrfs_mount)["session"]
    process = reading(host, name, btrfs_mount, tmp_path / "to")
    time.sleep(2)
    assert json.loads(work(*host.words(), "clean").stdout) == {"format": 1, "removed": 1}
    assert process.wait(60) != 0
    assert host.left(btrfs_mount) == []


def test_a_session_of_another_system_on_the_same_filesystem_stays(
    host: SourceHost, sshd: Sshd, btrfs_mount: Path, tmp_path: Path
) -> None:
    """Such as a container, with the same --server. Each worker's tests are another system too, on the same machine."""
    other = SourceHost(sshd, "[snapshots]\noldest = 1s\n")
    while program.tag_of(str(other.state)) == program.tag_of(str(host.state)):
        other = SourceHost(sshd, "[snapshots]\noldest = 1s\n")
    (btrfs_mount / "file").write_text("x")
    name = host.begin(btrfs_mount)["session"]
    time.sleep(2)
    other.end(other.begin(btrfs_mount)["session"])
    work(*other.words(), "clean")
    assert (host.fetch(name, btrfs_mount, tmp_path / "to") / "file").read_text() == "x"
    host.end(name)
    assert host.left(btrfs_mount) == []
    old = btrfs_mount / HIDDEN / f"office-20260101T000000Z-{program.tag_of(str(host.state))}aaaa.0"
    old.parent.mkdir(0o700)
    work("btrfs", "-q", "subvolume", "create", old)
    work("btrfs", "property", "set", old, "ro", "true")
    other.end(other.begin(btrfs_mount)["session"])
    assert not old.exists()


def test_a_snapshot_without_a_record_is_removed_by_the_next_begin(host: SourceHost, btrfs_mount: Path) -> None:
    """As after a reboot, which empties /run."""
    old, other = host.begin(btrfs_mount)["session"], host.begin(btrfs_mount, server="home")["session"]
    shutil.rmtree(host.state)
    work("btrfs", "-q", "subvolume", "snapshot", btrfs_mount, btrfs_mount / HIDDEN / "of-the-administrator")
    new = host.begin(btrfs_mount)["session"]
    assert old not in snapshots(btrfs_mount)
    assert {new, other} <= {*snapshots(btrfs_mount)}
    host.end(new)
    assert (btrfs_mount / HIDDEN / "of-the-administrator").exists()
    host.begin(btrfs_mount, server="home")
    assert other not in snapshots(btrfs_mount)


def test_two_begins_at_once_leave_one_session_and_both_can_end(host: SourceHost, btrfs_mount: Path) -> None:
    argv = [*host.words(), "begin", str(btrfs_mount)]
    processes = [subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(6)]
    outputs = [process.communicate()[0] for process in processes]
    names = [json.loads(output)["session"] for output in outputs]
    assert len(set(names)) == 6
    [left] = snapshots(btrfs_mount)
    assert left in names
    assert sum(host.end(name)["removed"] for name in names) == 1
    assert host.left(btrfs_mount) == []


def killed_at(host: SourceHost, count: int, *words: str | Path) -> "subprocess.CompletedProcess[str]":
    return work(sys.executable, KILLED, str(count), *host.words(), *words, check=False)


def test_a_kill_in_any_step_leaves_nothing_after_the_next_begin_and_end(host: SourceHost, btrfs_mount: Path) -> None:
    work("btrfs", "-q", "subvolume", "create", btrfs_mount / "nested")
    (btrfs_mount / "dumped").mkdir()
    host.config.write_text(f"[dump x]\ncommand = echo hello\noutput = {btrfs_mount}/dumped/x\n")
    whole = killed_at(host, 0, "begin", btrfs_mount)
    steps = int(whole.stderr.splitlines()[-1])
    assert steps > 12
    ends = killed_at(host, 0, "end", json.loads(whole.stdout)["session"])
    for step in range(1, steps + 1):
        assert killed_at(host, step, "begin", btrfs_mount).returncode == -9
        answer = host.begin(btrfs_mount)
        assert snapshots(btrfs_mount) == [answer["session"]] * 2
        assert answer["dumps"][0]["status"] == 0
        host.end(answer["session"])
        assert host.left(btrfs_mount) == [], f"killed at step {step}"
        assert [path.name for path in (btrfs_mount / "dumped").iterdir()] == ["x"]
    for step in range(1, int(ends.stderr.splitlines()[-1]) + 1):
        name = host.begin(btrfs_mount)["session"]
        assert killed_at(host, step, "end", name).returncode == -9
        host.end(host.begin(btrfs_mount)["session"])
        assert host.left(btrfs_mount) == [], f"the end was killed at step {step}"


def test_a_killed_rsync_leaves_no_mount_and_the_next_begin_removes_its_session(
    host: SourceHost, btrfs_mount: Path, tmp_path: Path
) -> None:
    (btrfs_mount / "large").write_bytes(bytes(range(256)) * 40_000)
    (tmp_path / "to").mkdir()
    mounts = mounts_of(host, btrfs_mount)
    name = host.begin(btrfs_mount)["session"]
    process = reading(host, name, btrfs_mount, tmp_path / "to")
    assert mounts_of(host, btrfs_mount) == mounts
    for pid in readers(host, name):
        work("kill", "-9", str(pid))
    process.wait(60)
    new = host.begin(btrfs_mount)["session"]
    assert snapshots(btrfs_mount) == [new]
    host.end(new)
    assert host.left(btrfs_mount) == []
    assert mounts_of(host, btrfs_mount) == mounts


def test_the_end_of_a_session_asks_btrfs_in_proportion_to_its_subvolumes(host: SourceHost, btrfs_mount: Path) -> None:
    """With 2,000 it took five minutes while each deletion read the list of all of them again."""
    calls = []
    for number in range(1, 41):
        work("btrfs", "-q", "subvolume", "create", btrfs_mount / f"nested{number}")
        if number in (20, 40):
            name = host.begin(btrfs_mount)["session"]
            calls.append(int(work(sys.executable, KILLED, "0", *host.words(), "end", name).stderr.splitlines()[-1]))
            assert host.left(btrfs_mount) == []
    assert calls[1] < 2.5 * calls[0], calls
