"""Ctrl-C, SIGTERM, a closed terminal: the first signal stops cleanly and keeps the received files, a second one stops at once."""

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.beds.cli import BACKUPD, TOP, backupd_start
from tests.beds.nights import Nights
from tests.beds.patient import PATIENT
from tests.beds.terminal import at_a_terminal
from tests.beds.watch import (
    disagreements,
    ended,
    held_at,
    hold,
    is_writable,
    processes,
    receivers,
    results,
    rows,
    subvolumes,
    transferring,
    wait_for,
)

Start = Callable[..., "subprocess.Popen[str]"]
SIZE = 3_000_000
HOSTS = [f"h{number}" for number in range(4)]
SOON = 100.0  # seconds, on a machine under any load; things that must not be waited for take LONG
LONG = 600


def deliver_signal(process: "subprocess.Popen[str]", number: int = signal.SIGTERM) -> None:
    """Sends the signal, and waits until it has been taken: two at once would be one."""
    process.send_signal(number)
    wait_for(lambda: number not in pending(process.pid))


def pending(pid: int) -> set[int]:
    """Returns the signals that wait for the process."""
    status = Path(f"/proc/{pid}/status").read_text()
    masks = [int(text, 16) for text in re.findall(r"^(?:Sig|Shd)Pnd:\t(\w+)$", status, re.MULTILINE)]
    return {number for number in range(1, 65) if any(mask >> (number - 1) & 1 for mask in masks)}


def written(pid: int) -> int:
    """Returns the bytes that the process has written so far; 0 if it has ended."""
    with suppress(OSError):
        return int(re.findall(r"^wchar: (\d+)$", Path(f"/proc/{pid}/io").read_text(), re.MULTILINE)[0])
    return 0


def exit_status(number: int) -> int:
    return 128 + number


def stopped(process: "subprocess.Popen[str]", number: int = signal.SIGTERM) -> str:
    """Sends the signal; the program ends SOON with the signal's status. Returns its output."""
    process.send_signal(number)
    status, stdout, _ = ended(process, SOON)
    assert status == exit_status(number)
    return stdout


@pytest.fixture
def tree(nights: Nights) -> Path:
    tree = nights.source / "srv"
    tree.mkdir()
    (tree / "big").write_bytes(os.urandom(SIZE))
    return tree


@pytest.fixture
def web(nights: Nights, tree: Path) -> Path:
    nights.host("web", tree)
    return tree


def change(tree: Path) -> None:
    """Replaces the whole content, so that the next run has data to transfer."""
    (tree / "big").write_bytes(os.urandom(SIZE))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("night", [1, 2])
def test_the_first_signal_stops_four_transfers_within_seconds_and_keeps_what_they_have(
    nights: Nights, tree: Path, backupd_running: Start, number: int, night: int
) -> None:
    for host in (*HOSTS, "waits"):
        nights.host(host, tree)
    nights.settings("backup", concurrency=4)
    if night == 2:
        nights.run()
        change(tree)
    final = {host: nights.names(host) for host in HOSTS if night == 2}
    hold(nights, 2_000_000)
    process = backupd_running("--config", nights.config, "run", "--json", *HOSTS, "waits", program=PATIENT)
    wait_for(lambda: len(receivers(nights)) == 8)
    wait_for(lambda: all(nights.backup(host, ".working").is_dir() for host in HOSTS))
    wait_for(lambda: sum(written(pid) > 1_500_000 for pid in receivers(nights)) == len(HOSTS))
    stdout = stopped(process, number)
    assert transferring(nights) == []
    actual_results = results(stdout)
    assert {host: actual_results[host]["outcome"] for host in actual_results} == dict.fromkeys(HOSTS, "partial")
    assert rows(nights, "select count(*) from run where outcome is null") == [(0,)]
    assert rows(nights, "select host, state from backup where name = '' order by host") == [(host, "partial") for host in HOSTS]
    kept = {host: subvolumes(nights)[f"hosts/{host}/.working"] for host in HOSTS}
    assert all(is_writable(nights.backup(host, ".working")) for host in HOSTS)

    nights.ssh("")
    nights.run(*HOSTS)
    for host in HOSTS:
        name = nights.names(host)[-1]
        assert nights.names(host)[:-1] == final.get(host, [])
        assert subvolumes(nights)[f"hosts/{host}/{name}"] == kept[host]
        assert nights.differences(host, tree) == []
        (literal,) = (path["numbers"]["literal"] for path in nights.record(host)["paths"])
        assert literal < SIZE * 0.6, "what had come was sent again"
    assert disagreements(nights) == []


@pytest.mark.parametrize("shown", ["xterm", "dumb"], ids=["live", "lines"])
def test_a_terminal_that_goes_away_stops_the_run_cleanly(nights: Nights, web: Path, shown: str) -> None:
    """The ssh connection of the run's terminal breaks: later output can no longer be written."""
    held = hold(nights, 2_000_000)
    with at_a_terminal([*PATIENT, "--config", nights.config, "run", "web"], {"TERM": shown, "PYTHONPATH": str(TOP)}) as terminal:
        wait_for(held.exists)
        terminal.goes_away()
        assert terminal.process.wait(SOON) == exit_status(signal.SIGTERM)
    assert transferring(nights) == []
    assert rows(nights, "select outcome, error from run") == [("partial", f"{web}: stopped by SIGHUP")]
    assert is_writable(nights.backup("web", ".working"))
    nights.ssh("")
    nights.run("web")
    assert nights.differences("web", web) == []
    assert disagreements(nights) == []


def test_a_run_that_is_to_outlive_its_terminal_does(nights: Nights, web: Path) -> None:
    held = hold(nights, 2_000_000)
    with at_a_terminal(["nohup", *BACKUPD, "--config", nights.config, "run", "web"], {"TERM": "xterm"}, cwd=nights.top) as terminal:
        wait_for(held.exists)
        terminal.goes_away()
        time.sleep(0.5)
        held.unlink()
        assert terminal.process.wait(SOON) == 0
    assert "web: complete" in (nights.top / "nohup.out").read_text()
    assert nights.differences("web", web) == []


def test_a_second_signal_does_not_wait_for_any_transfer(nights: Nights, web: Path, backupd_running: Start) -> None:
    nights.host("web", web, before=["/bin/sh", "-c", f"trap '' TERM; touch {nights.top}/begun; sleep {LONG}; exit 1"])
    process = backupd_running("--config", nights.config, "run", "web", program=PATIENT)
    wait_for((nights.top / "begun").exists)
    deliver_signal(process)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    stopped(process)
    wait_for(lambda: not processes(f"{nights.top}/begun"))  # a killed process is not waited for


@pytest.mark.parametrize("step", ["hard links split", "holes punched", "filesystem synced"])
def test_a_second_signal_ends_a_step_that_takes_long_and_the_next_run_ends_what_it_began(
    nights: Nights, web: Path, step: str
) -> None:
    nights.run()
    change(web)
    with held_at(nights, "before", step, "run", "web") as process:
        deliver_signal(process)
        stopped(process)
    nights.run("web")
    assert len(nights.names("web")) == 2
    assert nights.differences("web", web) == []
    assert disagreements(nights) == []


def test_a_signal_while_working_is_prepared_starts_no_transfer(nights: Nights, web: Path) -> None:
    nights.run()
    change(web)
    with held_at(nights, "before", "hard links split", "run", "web") as process:
        deliver_signal(process)
    status, stdout, _ = ended(process)
    assert (status, "web: partial" in stdout) == (exit_status(signal.SIGTERM), True)
    assert len(nights.names("web")) == 1
    assert rows(nights, "select exit_code from run order by id desc limit 1") == [(20,)]
    nights.run("web")
    assert nights.differences("web", web) == []


def test_a_signal_while_a_backup_is_made_final_lets_it_become_final(nights: Nights, web: Path) -> None:
    with held_at(nights, "before", "subvolume made read-only", "run", "web") as process:
        deliver_signal(process)
    status, stdout, _ = ended(process)
    assert (status, "web: complete" in stdout) == (exit_status(signal.SIGTERM), True)
    assert nights.differences("web", web) == []
    assert disagreements(nights) == []


def test_a_signal_during_the_hook_before_ends_it_and_nothing_else_begins(nights: Nights, web: Path, backupd_running: Start) -> None:
    begun, after = nights.top / "begun", nights.top / "after"
    nights.host("web", web, before=["/bin/sh", "-c", f"touch {begun}; sleep {LONG}"], after=["/usr/bin/touch", str(after)])
    process = backupd_running("--config", nights.config, "run", "web", program=PATIENT)
    wait_for(begun.exists)
    stopped(process)
    wait_for(lambda: not processes(begun))
    assert not nights.backup("web", ".working").exists()
    assert not after.exists()
    assert disagreements(nights) == []


def test_a_hook_before_that_ends_well_when_told_to_stop_is_followed_by_after(
    nights: Nights, web: Path, backupd_running: Start
) -> None:
    """Its result (a snapshot, a dump) has to be removed."""
    begun, after = nights.top / "begun", nights.top / "after"
    hook = f"trap 'exit 0' TERM; touch {begun}; while :; do sleep 0.1; done"
    nights.host("web", web, before=["/bin/sh", "-c", hook], after=["/usr/bin/touch", str(after)])
    process = backupd_running("--config", nights.config, "run", "web", program=PATIENT)
    wait_for(begun.exists)
    stopped(process)
    assert after.exists()
    assert not nights.backup("web", ".working").exists()


def test_a_first_signal_lets_the_hook_after_come_to_its_end_and_a_second_one_does_not(
    nights: Nights, web: Path, backupd_running: Start
) -> None:
    begun, done = nights.top / "begun", nights.top / "done"
    nights.host("web", web, after=["/bin/sh", "-c", f"touch {begun}; sleep 1; touch {done}"])
    process = backupd_running("--config", nights.config, "run", "web", program=PATIENT)
    wait_for(begun.exists)
    stopped(process)
    assert done.exists()

    begun.unlink()
    nights.host("web", web, after=["/bin/sh", "-c", f"touch {begun}; sleep {LONG}"])
    process = backupd_running("--config", nights.config, "run", "web", program=PATIENT)
    wait_for(begun.exists)
    deliver_signal(process)
    stopped(process)
    wait_for(lambda: not processes(begun))


def test_a_signal_in_the_pause_before_another_attempt_ends_the_pause(nights: Nights, web: Path, backupd_running: Start) -> None:
    nights.host("web", web, attempts=3)
    came = nights.top / "came"
    nights.in_the_middle(2_000_000, f"touch {shlex.quote(str(came))}", end="dies")
    process = backupd_running("--config", nights.config, "run", "web", program=PATIENT)
    wait_for(came.exists)
    wait_for(lambda: not receivers(nights))
    time.sleep(0.3)
    stdout = stopped(process)
    assert "web: partial" in stdout
    assert nights.backup("web", ".working").exists()
    assert disagreements(nights) == []


def test_a_reader_that_has_seen_enough_does_not_end_the_backups(nights: Nights, web: Path) -> None:
    """`backupd run | head -1`: the reader of the output has ended, but the backups are still made."""
    nights.host("other", web)
    nights.settings("backup", concurrency=1)
    hold_once = hold(nights)
    process = backupd_start("--config", nights.config, "run", "web", "other")
    assert process.stdout is not None
    wait_for(hold_once.exists)
    process.stdout.close()
    nights.ssh("")
    hold_once.unlink()
    assert process.wait(SOON) == 0
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    assert len(nights.names("web")) == len(nights.names("other")) == 1
    assert disagreements(nights) == []
