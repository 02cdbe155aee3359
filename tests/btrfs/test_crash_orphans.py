"""Processes that a killed run leaves: they are ended before the next run starts, and no other process ever is."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backupd.run.interrupted import take_host_lock
from tests.beds.cli import TOP
from tests.beds.nights import Nights
from tests.beds.watch import disagreements, ended, group_of, hold, is_locked, killed, receivers, subvolumes, transferring, wait_for

Start = Callable[..., "subprocess.Popen[str]"]
SIZE = 2_000_000


@pytest.fixture
def tree(nights: Nights) -> Path:
    tree = nights.source / "srv"
    tree.mkdir()
    (tree / "big").write_bytes(os.urandom(SIZE))
    (tree / "small").write_text("small")
    nights.host("web", tree)
    nights.settings("backup", confine="never")  # a confined one ends with its run
    return tree


@pytest.fixture
def lock(nights: Nights) -> Path:
    return nights.pool / ".btrkeep" / "locks" / "host-web"


def in_the_middle_of_a_run(nights: Nights, start: Start) -> "subprocess.Popen[str]":
    """Starts a run whose transfer stalls after a third of the data."""
    flag = hold(nights)
    process = start("--config", nights.config, "run", "web")
    wait_for(flag.exists)
    wait_for(lambda: len(receivers(nights)) == 2)
    nights.ssh("")
    return process


@contextmanager
def most_groups_at_once(nights: Nights) -> Iterator[list[int]]:
    """The maximum number of process groups that received into the pool at the same time, polled continuously."""
    seen, over = [0], threading.Event()

    def watch_groups() -> None:
        while not over.wait(0.005):
            seen.append(len({group_of(pid) for pid in receivers(nights)} - {None}))

    thread = threading.Thread(target=watch_groups)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def test_kill_9_in_mid_transfer_and_started_again_at_once(nights: Nights, tree: Path, lock: Path, backupd_running: Start) -> None:
    first = in_the_middle_of_a_run(nights, backupd_running)
    orphans = receivers(nights)
    kept = subvolumes(nights)["hosts/web/.working"]
    first.kill()
    first.wait()
    assert set(orphans) <= set(receivers(nights)), "the receiver did not outlive its run, so this shows nothing"
    assert is_locked(lock), "a receiver lives, and the host is not locked"
    with most_groups_at_once(nights) as groups:
        assert nights.run("web")["web"]["outcome"] == "complete"
    assert max(groups) == 1
    assert not set(orphans) & set(receivers(nights))
    assert transferring(nights) == []
    assert nights.differences("web", tree) == []
    (name,) = nights.names("web")
    assert subvolumes(nights)[f"hosts/web/{name}"] == kept
    assert disagreements(nights) == []
    assert not is_locked(lock)


def test_a_confined_receiver_does_not_outlive_its_run(nights: Nights, tree: Path, lock: Path, backupd_running: Start) -> None:
    nights.settings("backup", confine="always")
    first = in_the_middle_of_a_run(nights, backupd_running)
    first.kill()
    first.wait()
    wait_for(lambda: not receivers(nights))
    wait_for(lambda: not is_locked(lock))
    wait_for(lambda: len(transferring(nights)) <= 1, why="the remote shell goes on")  # its remote process belongs to another host
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert nights.differences("web", tree) == []


def test_an_orphan_that_does_not_listen_is_ended_all_the_same(nights: Nights, tree: Path, backupd_running: Start) -> None:
    first = in_the_middle_of_a_run(nights, backupd_running)
    first.kill()
    first.wait()
    for pid in receivers(nights):
        os.kill(pid, signal.SIGSTOP)
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert transferring(nights) == []
    assert nights.differences("web", tree) == []


def test_an_orphan_is_ended_that_no_lock_names_yet(nights: Nights, tree: Path, lock: Path) -> None:
    """Killed between the start of rsync and the record of its group in the lock, and the host sends nothing."""
    flag = hold(nights, 0)
    killed(nights, "after", "process group started", "run", "web")
    assert json.loads(lock.read_text())["group"] == 0
    wait_for(flag.exists)
    orphans = receivers(nights)
    assert orphans
    assert is_locked(lock)
    nights.ssh("")
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert not set(orphans) & set(receivers(nights))
    assert nights.differences("web", tree) == []


def test_an_orphan_is_ended_although_the_pool_was_too_full_for_the_text_of_the_lock(
    nights: Nights, tree: Path, lock: Path, backupd_running: Start
) -> None:
    first = in_the_middle_of_a_run(nights, backupd_running)
    lock.write_bytes(b"")
    done = nights.backupd("run", "web", check=False)
    assert done.returncode == 3
    assert f"another process ({first.pid})" in done.stdout
    orphans = receivers(nights)
    first.kill()
    first.wait()
    assert set(orphans) <= set(receivers(nights))
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert not set(orphans) & set(receivers(nights))
    assert nights.differences("web", tree) == []


@pytest.mark.parametrize("which", [min, max], ids=["the leader", "the receiver"])
def test_when_one_of_the_rsyncs_is_killed_the_others_end_before_the_run_continues(
    nights: Nights, tree: Path, backupd_running: Start, which: Callable[[list[int]], int]
) -> None:
    process = in_the_middle_of_a_run(nights, backupd_running)
    os.kill(which(receivers(nights)), signal.SIGKILL)
    status, stdout, _ = ended(process)
    assert status == 1
    assert "partial" in stdout
    assert transferring(nights) == []
    assert nights.names("web") == []
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert nights.differences("web", tree) == []


def a_dead_holder(group: int) -> str:
    """Returns a lock's text of a killed run: the process with that number and start time does not exist."""
    process = subprocess.Popen(["true"])
    process.wait()
    return json.dumps(
        {"pid": process.pid, "started": "1", "since": "2026-11-20T22:00:00Z", "what": "backup of web", "group": group}
    )


@pytest.fixture
def bystander() -> Iterator["subprocess.Popen[bytes]"]:
    """Starts a foreign process, in its own group."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process
        assert process.poll() is None, "a process was ended that is not ours"
        process.kill()


def test_a_process_that_was_given_the_number_of_a_dead_receiver_is_left_alone(
    nights: Nights, tree: Path, lock: Path, bystander: "subprocess.Popen[bytes]"
) -> None:
    lock.write_text(a_dead_holder(bystander.pid))
    assert nights.run("web")["web"]["outcome"] == "complete"


def test_also_when_the_lock_is_held_by_a_third(
    nights: Nights, tree: Path, lock: Path, bystander: "subprocess.Popen[bytes]"
) -> None:
    """A foreign flock(1) on the file is not a receiver of btrkeep, nor is a process with the number in the text."""
    lock.write_text(a_dead_holder(bystander.pid))
    with subprocess.Popen(["flock", lock, "sleep", "600"], start_new_session=True) as third:
        wait_for(lambda: is_locked(lock))
        done = nights.backupd("run", "web", check=False)
        assert done.returncode == 3
        assert third.poll() is None
        os.killpg(third.pid, signal.SIGKILL)


def test_a_holder_that_has_not_said_yet_what_it_does_is_waited_for(nights: Nights, tree: Path, lock: Path) -> None:
    """As during a reconcile, between taking the lock and writing its text."""
    with asyncio.Runner() as runner, subprocess.Popen(["flock", "--no-fork", lock, "cat"], stdin=subprocess.PIPE) as holder:
        wait_for(lambda: is_locked(lock))
        assert holder.stdin
        threading.Timer(0.3, holder.stdin.close).start()
        runner.run(take_host_lock(lock, "backup of web", "2026-11-20T22:00:00Z")).release()


HOLDS = """
import sys
from pathlib import Path
from backupd.repo.reconcile import RECONCILING
from btrkeep.pool.locks import take_lock

held = take_lock(Path(sys.argv[1]), RECONCILING, "2026-11-20T22:00:00Z")
print("held", flush=True)
sys.stdin.read()
held.release()
"""


@pytest.mark.parametrize("is_killed", [False, True], ids=["to its end", "until it is killed"])
def test_a_run_waits_for_a_program_that_reconciles_its_host(
    nights: Nights, tree: Path, lock: Path, backupd_running: Start, is_killed: bool
) -> None:
    """An expiry does that for each host at its start. The run would fail, although the lock is free a moment later."""
    words = [sys.executable, "-c", HOLDS, str(lock)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=TOP, text=True) as holder:
        assert holder.stdin
        assert holder.stdout
        assert holder.stdout.readline() == "held\n"
        process = backupd_running("--config", nights.config, "run", "web")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
        if is_killed:
            holder.kill()
        holder.stdin.close()
        status, out, err = ended(process)
        assert status == 0, out + err
    assert nights.differences("web", tree) == []


def test_the_receivers_of_a_living_run_are_left_alone_whatever_the_lock_says(
    nights: Nights, tree: Path, lock: Path, backupd_running: Start
) -> None:
    """As from another container, where the holder's number belongs to another process or to none."""
    flag = hold(nights)
    process = backupd_running("--config", nights.config, "run", "web")
    wait_for(flag.exists)
    group = json.loads(lock.read_text())["group"]
    lock.write_text(a_dead_holder(group))
    done = nights.backupd("run", "web", check=False)
    assert done.returncode == 3
    assert "web" in done.stdout + done.stderr
    flag.unlink()
    status, _, _ = ended(process)
    assert status == 0
    assert nights.differences("web", tree) == []
