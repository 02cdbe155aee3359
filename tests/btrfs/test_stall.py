"""A transfer without progress is stopped and its files are kept; one that works silently is not stopped."""

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from backupd.rsync.process import RsyncEnd, RunCancellation, transfer
from btrkeep.backup_states import Cause, CauseCode
from btrkeep.pool.locks import take_lock
from tests.beds import ssh as sshbed
from tests.beds.nights import Nights
from tests.beds.watch import disagreements, ended, hold, processes, receivers, results, transferring, wait_for

Start = Callable[..., "subprocess.Popen[str]"]
SIZE = 8_000_000


@pytest.fixture
def tree(nights: Nights) -> Path:
    tree = nights.source / "srv"
    tree.mkdir()
    (tree / "big").write_bytes(os.urandom(SIZE))
    return tree


def senders(tree: Path) -> list[int]:
    return [pid for pid, words in processes("--sender", tree).items() if words[0] == "rsync"]


@pytest.fixture
def stopped_sender(nights: Nights, tree: Path, sshd: sshbed.Sshd, backupd_running: Start) -> Iterator["subprocess.Popen[str]"]:
    """A run over a real ssh whose remote rsync was stopped during the transfer."""
    nights.settings("ssh", command="ssh -F none", key=str(sshd.key), known_hosts=str(sshd.known_hosts))
    nights.host("web", tree, address=sshd.address, port=sshd.port, bandwidth="1MB", stall="4s")
    process = backupd_running("--config", nights.config, "run", "--json", "web")
    wait_for(lambda: [path for path in nights.working("web").rglob("*") if path.is_file() and path.stat().st_blocks > 1000])
    for pid in senders(tree):
        os.kill(pid, signal.SIGSTOP)
    yield process
    for pid in senders(tree):
        os.kill(pid, signal.SIGKILL)


def test_a_host_whose_rsync_stands_still_is_given_up_and_what_came_is_kept(
    nights: Nights, tree: Path, stopped_sender: "subprocess.Popen[str]"
) -> None:
    start = time.monotonic()
    status, stdout, _ = ended(stopped_sender)
    assert status == 1
    assert 3 < time.monotonic() - start < 90
    result = results(stdout)["web"]
    assert result["outcome"] == "partial"
    assert "no progress for 4.0s" in result["error"]
    assert receivers(nights) == []
    assert sum(path.stat().st_size for path in nights.working("web").rglob("*") if path.is_file()) > 500_000
    for pid in senders(tree):
        os.kill(pid, signal.SIGKILL)
    nights.host("web", tree, stall="30s")
    nights.ssh("")
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert nights.differences("web", tree) == []
    assert disagreements(nights) == []


def test_the_deadline_ends_a_transfer_that_moves(nights: Nights, tree: Path) -> None:
    nights.host("web", tree, bandwidth="60KB", deadline="4s", stall="200s")
    start = time.monotonic()
    result = nights.run("web", status=1)["web"]
    assert 4 < time.monotonic() - start < 100  # the whole would take 130
    assert result["outcome"] == "partial"
    assert "deadline" in result["error"]
    assert transferring(nights) == []
    assert nights.backup("web", ".working").exists()


def test_what_we_stopped_was_stopped_whatever_its_status_is_then(nights: Nights, tree: Path) -> None:
    """rsync may end with the 255 of an ssh that was ended with it: "ssh could not connect" would be wrong."""
    env = nights.rsync('[[ $1 == -V* ]] && exec $REAL "$@"\ntrap "exit 255" TERM\nwhile :; do sleep 0.1; done')
    nights.host("web", tree, deadline="3s")
    nights.run("web", status=1, env=env)
    (answer,) = nights.json("log", "web")
    assert (answer["exit_code"], answer["meaning"]) == (255, "stopped")


def test_the_deadline_counts_for_the_hook_before_too(nights: Nights, tree: Path) -> None:
    nights.host("web", tree, before=["/bin/sleep", "60"], deadline="1s")
    result = nights.run("web", status=1)["web"]
    assert result["outcome"] == "failed"
    assert "deadline" in result["error"]


def test_a_stall_in_one_host_costs_no_other(nights: Nights, tree: Path) -> None:
    nights.host("other", tree)
    nights.settings("backup", concurrency=2)
    hold(nights)
    script = nights.top / "one-holds"
    holding = nights.tables["ssh"]["command"]
    fakessh = Path(__file__).resolve().parents[1] / "fakessh"
    script.write_text(f'#!/bin/sh\ncase "$*" in *" web "*) exec {holding} "$@";; *) exec {shlex.quote(str(fakessh))} "$@";; esac\n')
    script.chmod(0o755)
    nights.settings("ssh", command=str(script))
    nights.host("web", tree, stall="1s")
    answer = nights.run(status=1)
    assert answer["web"]["outcome"] == "partial"
    assert answer["other"]["outcome"] == "complete"


# --- what counts as progress: programs that are called rsync and do one thing only


@pytest.fixture
def called_rsync(tmp_path: Path) -> Callable[[str], str]:
    """Copies a program of this machine under the name rsync, which is the only difference to others."""

    def make(program: str) -> str:
        real = shutil.which(program)
        assert real
        (tmp_path / "bin").mkdir()
        return str(shutil.copy(Path(real).resolve(), tmp_path / "bin" / "rsync"))

    return make


def watched(tmp_path: Path, *command: str, stall: float = 1.0) -> RsyncEnd:
    """Runs it as a transfer."""

    async def run() -> RsyncEnd:
        (tmp_path / "locks").mkdir()
        with take_lock(tmp_path / "locks" / "host", "test", "") as lock:
            return await transfer(command, lock, RunCancellation(), stall)

    return asyncio.run(run())


def test_silence_without_any_work_is_a_stall(tmp_path: Path, called_rsync: Callable[[str], str]) -> None:
    rsync_end = watched(tmp_path, called_rsync("sleep"), "200")
    assert rsync_end.stopped == Cause(CauseCode.STALLED, facts={"seconds": 1.0})
    assert rsync_end.seconds < 100


def test_reading_a_file_in_silence_is_progress(tmp_path: Path, called_rsync: Callable[[str], str]) -> None:
    """For example the checksums of a large existing file: nothing arrives, nothing is printed."""
    feed, rsync = tmp_path / "feed", called_rsync("cat")
    os.mkfifo(feed)
    feeder = subprocess.Popen(["/bin/sh", "-c", f"for i in 1 2 3 4 5 6 7 8; do sleep 0.8; head -c 4000 /dev/zero; done > {feed}"])
    rsync_end = watched(tmp_path, "/bin/sh", "-c", f"{rsync} {feed} > /dev/null", stall=3.0)
    feeder.wait()
    assert rsync_end.stopped is None
    assert rsync_end.seconds > 6


def test_less_than_a_kilobyte_is_a_keep_alive_and_no_progress(tmp_path: Path, called_rsync: Callable[[str], str]) -> None:
    feed, rsync = tmp_path / "feed", called_rsync("cat")
    os.mkfifo(feed)
    feeder = subprocess.Popen(["/bin/sh", "-c", f"for i in 1 2 3 4 5 6 7 8; do sleep 0.4; printf '1234'; done > {feed}"])
    rsync_end = watched(tmp_path, "/bin/sh", "-c", f"{rsync} {feed} > /dev/null")
    feeder.wait()
    assert rsync_end.stopped == Cause(CauseCode.STALLED, facts={"seconds": 1.0})


def test_working_in_silence_is_progress(tmp_path: Path, called_rsync: Callable[[str], str]) -> None:
    """For example a long deletion: nothing is read either, but CPU time is used."""
    rsync_end = watched(tmp_path, called_rsync("bash"), "-c", "while (( SECONDS < 3 )); do :; done")
    assert rsync_end.stopped is None
    assert rsync_end.seconds > 1.5


def test_a_long_comparison_by_a_real_rsync_is_no_stall(nights: Nights, tree: Path) -> None:
    """A file that is here already, with another time: both sides read it, and next to nothing is sent."""
    with (tree / "sparse").open("wb") as file:
        file.truncate(1600 << 20)
    nights.host("web", tree)
    nights.run("web")
    os.utime(tree / "sparse", (1, 1))
    nights.host("web", tree, stall="3s", bandwidth="100KB")
    start, done = time.monotonic(), threading.Event()
    with ThreadPoolExecutor() as beside:
        pulses = beside.submit(_let_it_work_in_pulses, nights, done, 10.0)
        try:
            assert nights.run("web")["web"]["outcome"] == "complete"
        finally:
            done.set()
        assert pulses.result() > 5, "too quick to show anything"
    assert time.monotonic() - start > 8, "too quick to show anything"
    assert nights.record("web")["paths"][0]["numbers"]["literal"] == 0


def _let_it_work_in_pulses(nights: Nights, done: threading.Event, seconds: float) -> int:
    """Stops each rsync of the transfer except for moments: a comparison that is slow on any machine. Returns the number of moments.

    It begins when the sender runs.
    """
    end = time.monotonic() + 60
    while not senders(nights.source / "srv") and not done.wait(0.02):
        assert time.monotonic() < end
    end, pulses = time.monotonic() + seconds, 0
    while time.monotonic() < end and not done.is_set():
        held = [pid for pid in transferring(nights) if _is_rsync(pid)]
        _signal(held, signal.SIGSTOP)
        done.wait(0.4)
        _signal(held, signal.SIGCONT)
        done.wait(0.03)
        pulses += 1
    return pulses


def _is_rsync(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/comm").read_text() == "rsync\n"
    return False


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
