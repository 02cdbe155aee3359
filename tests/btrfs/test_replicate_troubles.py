"""Replication with problems: processes are killed, the pool is full or read-only, two run at once, the catalogue is lost."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds import TOP, work
from tests.beds.two_pools import TwoPools
from tests.beds.watch import killed

pytestmark = pytest.mark.btrfs

KILL = """
import os, signal, sys
left = 2_000_000
while data := os.read(0, 65536):
    if 0 <= left < len(data):
        os.kill(int(open(sys.argv[1]).read()), signal.SIGKILL)
    left -= len(data)
    os.write(1, data)
"""
MEET = """
import os, sys, time
left, folder = 200_000, sys.argv[1]
while data := os.read(0, 65536):
    if 0 <= left < len(data):
        open(f"{folder}/{os.getpid()}", "w").close()
        end = time.monotonic() + 60
        while len(os.listdir(folder)) < 2:
            assert time.monotonic() < end, "nobody else fetches at the same time"
            time.sleep(0.02)
    left -= len(data)
    os.write(1, data)
"""


def more_hosts(two: TwoPools, *names: str) -> None:
    for name in names:
        source = two.first.source / name
        source.mkdir()
        (source / "file").write_bytes(os.urandom(1 << 20))
        two.first.host(name, source)
        two.first.backupd("run", name, "--now", "2026-03-01T22:00:00Z")


def mount_of(path: Path) -> str:
    return work("findmnt", "-no", "TARGET", "-T", path).stdout.strip()


def test_hosts_are_fetched_at_the_same_time_and_one_that_fails_costs_the_others_nothing(two: TwoPools, tmp_path: Path) -> None:
    """Each of two streams stops in its middle until the other one is there, too."""
    more_hosts(two, "aaa", "web2", "web3")
    theirs = two.second.pool / "hosts/aaa" / two.names(two.first.pool, "aaa")[0]
    theirs.mkdir(parents=True)  # foreign
    two.over_ssh(f'"$@" | {shlex.quote(sys.executable)} -c {shlex.quote(MEET)} {shlex.quote(str(tmp_path))}')
    answer = two.fetch(status=1)[0]
    assert [failure["host"] for failure in answer["failed"]] == ["aaa"]
    assert [len(two.names(two.second.pool, host)) for host in ("web2", "web3")] == [1, 1]
    assert list(theirs.iterdir()) == []


def test_a_worker_that_cannot_be_started_is_done_without(two: TwoPools) -> None:
    """The first thread works for all hosts, and each further one fetches a host; threads of the first server are not limited."""
    more_hosts(two, "web2", "web3")
    two.second.tables["replica.office"]["concurrency"] = 3
    two.second.write()
    program = (sys.executable, "-m", "tests.beds.no_more_threads")
    for threads in range(3):
        words = (str(threads), "--config", two.second.config, "replicate", "--now", "2026-03-20T12:00:00Z")
        done = work(*program, *words, check=False, cwd=TOP, timeout=120)
        assert "Traceback" not in done.stderr
        assert "the limit of processes is reached" in done.stderr
        assert done.returncode == (0 if threads == 2 else 1)
        assert work("flock", "--nonblock", two.second.pool / ".btrkeep/locks/replicate-office", "true", check=False).returncode == 0
        fetched = [len(two.names(two.second.pool, host)) for host in ("web2", "web3")]
        assert fetched == ([1, 1] if threads == 2 else [0, 0]), threads


def test_a_host_of_which_nothing_came_can_be_backed_up_here(two: TwoPools) -> None:
    """A compromised server lists invented names, and sends nothing: no host's first night fails because of that."""
    (two.source / "large").write_bytes(os.urandom(1 << 20))
    two.night("2026-03-01T22:00:00Z", "a")
    two.over_ssh('python3 -c "$RELAY" cut 700000 < <("$@")')
    answer = two.fetch(status=1)[0]
    assert (answer["fetched"], two.names(two.second.pool)) == ([], [])
    two.second.ssh("")
    two.second.host("web1", two.source)
    two.second.backupd("run", "web1", "--now", "2026-03-20T22:00:00Z")
    assert len(two.names(two.second.pool)) == 1


@pytest.mark.parametrize("checkpoint", ["notes.json replaced", "stream received"])
def test_a_host_that_a_killed_replication_has_marked_can_be_backed_up_here(two: TwoPools, checkpoint: str) -> None:
    """No backup of it was received, so nothing here belongs to the other pool; the remains of the killed one are removed."""
    two.night("2026-03-01T22:00:00Z", "a")
    killed(two.second, "after", checkpoint, "replicate", "office", "--now", "2026-03-20T12:00:00Z")
    folder = two.second.pool / "hosts/web1"
    assert "replica" in json.loads((folder / "notes.json").read_text())
    two.second.host("web1", two.source)
    two.second.backupd("run", "web1", "--now", "2026-03-20T22:00:00Z")
    assert len(two.names(two.second.pool)) == 1
    assert not (folder / ".receiving").exists()
    answer = two.fetch(status=1)[0]
    assert "backed up into this pool itself" in answer["failed"][0]["error"]


def test_a_host_whose_copy_cannot_be_read_is_not_backed_up_here(two: TwoPools) -> None:
    name = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    copy = two.second.backup("web1", name)
    work("btrfs", "property", "set", "-f", copy, "ro", "false")
    (copy / "backup.json").write_text("{")
    two.second.host("web1", two.source)
    process = two.second.backupd("run", "web1", "--now", "2026-03-20T22:00:00Z", check=False)
    assert process.returncode == 1
    assert "its backups are copies" in process.stdout + process.stderr


def test_a_sender_that_is_killed_leaves_nothing_and_the_next_one_fetches_it(two: TwoPools, tmp_path: Path) -> None:
    (two.source / "large").write_bytes(os.urandom(6_000_000))
    first = two.night("2026-03-01T22:00:00Z", "a")
    pid = shlex.quote(str(tmp_path / "pid"))
    two.over_ssh(
        f'bash -c \'echo $$ >"$0"; exec "$@"\' {pid} "$@" | {shlex.quote(sys.executable)} -c {shlex.quote(KILL)} {pid}; exit 1'
    )
    (failed,) = two.fetch(status=1)[0]["failed"]
    assert re.search("connection (has )?ended", failed["error"])
    assert two.names(two.second.pool) == []
    assert not (two.second.pool / "hosts/web1/.receiving").exists()
    two.over_ssh('"$@"')
    two.fetch()
    assert two.differences(first) == ""


def test_a_pool_that_becomes_full_in_the_middle_of_a_stream_keeps_what_it_has(make_btrfs: Callable[..., Path]) -> None:
    two = TwoPools(make_btrfs(), make_btrfs(size="500M"))
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    (two.source / "large").write_bytes(os.urandom(60_000_000))
    second = two.night("2026-03-02T22:00:00Z", "b")
    filled = two.second.top / "filled"
    left = int(work("stat", "-f", "-c", "%a", two.second.pool).stdout) * 4096
    work("fallocate", "-l", str(left - 25_000_000), filled)
    (failed,) = two.fetch(status=1)[0]["failed"]
    assert "No space left" in failed["error"]
    assert "the pool is full: keep fewer backups, or add a device" in failed["error"]
    assert two.names(two.second.pool) == [first]
    assert two.differences(first) == ""
    filled.unlink()
    work("btrfs", "filesystem", "sync", two.second.pool)
    assert [fetched_backup["parent"] for fetched_backup in two.fetch()[0]["fetched"]] == [first]
    assert two.differences(second) == ""


def test_a_read_only_pool_fetches_nothing_says_so_and_goes_on_afterwards(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    mount = mount_of(two.second.pool)
    work("mount", "-o", "remount,ro", mount)
    done = two.second.backupd("replicate", "--now", "2026-03-20T12:00:00Z", check=False)
    work("mount", "-o", "remount,rw", mount)
    assert done.returncode == 4
    assert "is read-only" in done.stderr
    assert "Traceback" not in done.stderr
    two.fetch()
    assert two.names(two.second.pool) == [first]


def test_of_two_at_once_the_second_is_refused_and_the_first_is_not_disturbed(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    go_on = two.second.top / "go-on"
    two.over_ssh(f'while [ ! -e {shlex.quote(str(go_on))} ]; do sleep 0.05; done; exec "$@"')
    words = [sys.executable, "-m", "backupd", "--config", str(two.second.config), "replicate", "--now", "2026-03-20T12:00:00Z"]
    lock, end = two.second.pool / ".btrkeep/locks/replicate-office", time.monotonic() + 60
    with subprocess.Popen(words, cwd=TOP, stdout=subprocess.DEVNULL) as earlier:
        while not (lock.exists() and lock.stat().st_size):
            assert time.monotonic() < end
            time.sleep(0.02)
        refused = two.fetch(status=3)
        go_on.touch()
        assert earlier.wait(60) == 0
    assert "the lock is held" in json.dumps(refused)
    assert two.differences(first) == ""


def test_after_a_lost_catalogue_only_differences_are_fetched(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    shutil.rmtree(two.second.state)
    two.second.backupd("rebuild")
    second = two.night("2026-03-02T22:00:00Z", "b")
    assert [(fetched_backup["backup"], fetched_backup["parent"]) for fetched_backup in two.fetch()[0]["fetched"]] == [
        (second, first)
    ]
    assert two.differences(second) == ""


def test_what_went_wrong_first_is_told_also_when_the_dashboard_cannot_be_told_of_it(two: TwoPools) -> None:
    """The folder of all hosts is removed while the second backup arrives: it cannot be stored, and the hosts here are unknown."""
    two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    two.night("2026-03-02T22:00:00Z", "b")
    hosts = two.second.pool / "hosts"
    away = shlex.join(["mv", str(hosts), f"{hosts}-away"])
    words = ("--config", two.second.config, "replicate", "--now", "2026-03-20T12:00:00Z")
    deed = (f"does:{away}", "after", "stream received", "1")
    done = work(sys.executable, "-m", "tests.beds.kill_at", *deed, *words, cwd=TOP, check=False)
    Path(f"{hosts}-away").rename(hosts)
    assert (done.returncode, "error: web1: " in done.stderr, "Traceback" in done.stderr) == (1, True, False), done.stderr
    assert "the dashboard does not show the new replicas" in done.stderr
