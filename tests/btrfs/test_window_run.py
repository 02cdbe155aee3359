"""When `run` starts and stops backups: windows, due periods and clocks, tested with the command on a rehearsal pool."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds import TOP, work
from tests.beds.nights import Nights
from tests.beds.patient import PATIENT
from tests.beds.watch import ASLEEP, disagreements, ended, hold, results, transferring, wait_for

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def nights(shared_btrfs: Path) -> Nights:
    """As the others' fixture, with a pool that accepts another time."""
    return Nights(shared_btrfs, "--rehearsal")


@pytest.fixture
def tree(nights: Nights) -> Path:
    tree = nights.source / "srv"
    tree.mkdir()
    (tree / "big").write_bytes(os.urandom(1_000_000))
    nights.host("web", tree, window="22:00-06:00")
    return tree


def at(nights: Nights, now: str, *words: str, status: int = 0) -> dict[str, str]:
    """Executes `run` at that time and returns the hosts and the result of each."""
    done = nights.backupd("run", "--json", "--now", now, *words, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return {host: result["outcome"] for host, result in results(done.stdout).items()}


def test_outside_its_window_nothing_starts_and_it_is_said_when_it_opens(nights: Nights, tree: Path) -> None:
    assert at(nights, "2026-11-20T21:59:50Z") == {}
    output = nights.backupd("run", "--dry-run", "--now", "2026-11-20T12:00:00Z").stdout
    assert "2026-11-20T22:00:00Z" in output
    assert at(nights, "2026-11-20T22:00:00Z") == {"web": "complete"}
    assert nights.names("web")[0].startswith("2026-11-20T2200")


def test_the_windows_end_is_outside_and_past_midnight_is_inside(nights: Nights, tree: Path) -> None:
    assert at(nights, "2026-11-20T06:00:00Z") == {}
    assert at(nights, "2026-11-20T03:00:00Z") == {"web": "complete"}


def test_named_hosts_all_and_late_ones_that_catch_up_ignore_the_window(nights: Nights, tree: Path) -> None:
    noon = "2026-11-20T12:00:00Z"
    assert at(nights, noon, "--catch-up") == {"web": "complete"}  # never backed up is late
    assert at(nights, "2026-11-20T12:00:10Z", "web") == {"web": "complete"}
    assert at(nights, "2026-11-20T12:00:20Z", "--all") == {"web": "complete"}
    assert at(nights, "2026-11-21T12:00:00Z", "--catch-up") == {}, "24 h are less than one and a half times a day"
    assert at(nights, "2026-11-22T00:00:15Z", "--catch-up") == {"web": "complete"}
    assert at(nights, "2026-11-23T13:00:00Z", "--catch-up") == {"web": "complete"}
    assert at(nights, "2026-11-25T13:00:00Z") == {}


def test_what_runs_when_the_window_closes_is_stopped_kept_and_ended_the_night_after(
    nights: Nights, tree: Path, backupd_running: Start
) -> None:
    flag = hold(nights, 500_000)
    nights.host("waits", tree, window="22:00-06:00")
    nights.settings("backup", concurrency=1)
    process = backupd_running("--config", nights.config, "run", "--json", "--now", "2026-11-21T05:59:57Z", program=PATIENT)
    wait_for(flag.exists)
    status, stdout, _ = ended(process, 100)
    assert status == 1
    actual_results = results(stdout)
    stopped, skipped = (actual_results[host] for host in sorted(actual_results, key=lambda host: actual_results[host]["outcome"]))
    assert (stopped["outcome"], skipped["outcome"]) == ("partial", "skipped")
    assert "window" in stopped["error"]
    assert "06:00" in stopped["error"]
    assert transferring(nights) == []
    nights.ssh("")
    assert at(nights, "2026-11-21T22:00:00Z") == {"web": "complete", "waits": "complete"}
    assert nights.differences("web", tree) == []
    assert disagreements(nights) == []


@pytest.mark.parametrize(("hours", "woken_at"), [(9, "2026-11-21 07:00"), (72, "2026-11-23 22:00")])
def test_a_window_that_closed_while_the_machine_was_asleep_stops_what_runs(
    nights: Nights, tree: Path, backupd_running: Start, tmp_path: Path, hours: int, woken_at: str
) -> None:
    """After three days the time is within the window again, but in that of another night."""
    flag, asleep = hold(nights, 500_000), tmp_path / "asleep"
    (tmp_path / "sitecustomize.py").write_text(ASLEEP.format(flag=str(asleep), hours=hours))
    env = {"PYTHONPATH": f"{tmp_path}:{TOP}"}
    process = backupd_running("--config", nights.config, "run", "--json", "--now", "2026-11-20T22:00:00Z", env=env)
    wait_for(flag.exists)
    asleep.touch()
    status, stdout, _ = ended(process, 100)  # its window would close in eight hours by the other clock
    assert status == 1
    assert (results(stdout)["web"]["outcome"], "window" in results(stdout)["web"]["error"]) == ("partial", True)
    finished = work("sqlite3", nights.state / "catalogue.sqlite", "SELECT finished FROM run").stdout
    assert finished > woken_at, "the machine slept"
    nights.ssh("")
    assert at(nights, "2026-11-24T22:00:00Z") == {"web": "complete"}
    assert nights.differences("web", tree) == []


def test_a_named_run_goes_on_when_the_window_closes(nights: Nights, tree: Path, backupd_running: Start) -> None:
    flag = hold(nights, 500_000)
    process = backupd_running("--config", nights.config, "run", "--now", "2026-11-21T05:59:59Z", "web")
    wait_for(flag.exists)
    time.sleep(1.5)
    flag.unlink()
    assert ended(process)[0] == 0
    assert len(nights.names("web")) == 1


def test_once_a_night_over_the_days_of_a_clock_change(nights: Nights, tree: Path) -> None:
    """In Berlin the 25th of October 2026 has 25 hours: the window opens at 20:00 UTC before, and at 21:00 UTC after."""
    nights.settings("pool", zone="Europe/Berlin")
    ran = [
        now
        for now in (
            "2026-10-23T19:59:00Z",
            "2026-10-23T20:00:00Z",
            "2026-10-24T03:59:00Z",  # 05:59, and done already
            "2026-10-24T19:59:30Z",
            "2026-10-24T20:00:00Z",
            "2026-10-25T04:30:00Z",  # 05:30 again, after the repeated hour
            "2026-10-25T20:00:00Z",  # 21:00 now
            "2026-10-25T20:59:30Z",
            "2026-10-25T21:00:00Z",
            "2026-10-26T04:59:00Z",
        )
        if at(nights, now)
    ]
    assert ran == ["2026-10-23T20:00:00Z", "2026-10-24T20:00:00Z", "2026-10-25T21:00:00Z"]
    if not shutil.which("systemd-analyze"):
        return
    # systemd handles the clock change too
    output = work(
        "systemd-analyze", "calendar", "--iterations=3", "--base-time=2026-10-23 00:00 UTC", "*-*-* 22:00 Europe/Berlin"
    ).stdout
    for moment in ("Fri 2026-10-23 20:00:00 UTC", "Sat 2026-10-24 20:00:00 UTC", "Sun 2026-10-25 21:00:00 UTC"):
        assert moment in output


def test_once_a_night_over_the_day_that_has_23_hours(nights: Nights, tree: Path) -> None:
    """In Berlin that is the 29th of March 2026: the window opens at 21:00 UTC before, and at 20:00 UTC after."""
    nights.settings("pool", zone="Europe/Berlin")
    nights.host("skipped", tree, window="02:30-05:00")  # on that day there is no 02:30: the clock shows 03:30 then
    wanted = {
        "2026-03-27T20:59:30Z": {},
        "2026-03-27T21:00:00Z": {"web"},
        "2026-03-28T01:29:30Z": {},
        "2026-03-28T01:30:00Z": {"skipped"},
        "2026-03-28T20:59:30Z": {},
        "2026-03-28T21:00:00Z": {"web"},
        "2026-03-29T01:29:30Z": {},
        "2026-03-29T01:30:00Z": {"skipped"},
        "2026-03-29T19:59:30Z": {},  # 21:59 already
        "2026-03-29T20:00:00Z": {"web"},
        "2026-03-30T00:30:00Z": {"skipped"},
        "2026-03-30T03:59:00Z": {},
    }
    assert {now: set(at(nights, now)) for now in wanted} == {now: set(hosts) for now, hosts in wanted.items()}


def test_a_host_without_a_window_is_due_once_a_day_of_the_pools_zone(nights: Nights, tree: Path) -> None:
    nights.settings("pool", zone="Asia/Kolkata")  # midnight is 18:30 UTC
    nights.host("web", tree)
    assert at(nights, "2026-11-20T18:29:00Z") == {"web": "complete"}
    assert at(nights, "2026-11-20T18:29:30Z") == {}
    assert at(nights, "2026-11-20T18:30:00Z") == {"web": "complete"}
    assert at(nights, "2026-11-21T18:29:50Z") == {}


def test_every_of_some_hours_counts_from_the_last_start(nights: Nights, tree: Path) -> None:
    nights.host("web", tree, every="6h")
    assert at(nights, "2026-11-20T01:00:00Z") == {"web": "complete"}
    assert at(nights, "2026-11-20T06:59:50Z") == {}
    assert at(nights, "2026-11-20T07:00:10Z") == {"web": "complete"}


def test_an_ordinary_pool_refuses_another_time(nights: Nights, tree: Path) -> None:
    ordinary = nights.top / "ordinary"
    nights.backupd("init", ordinary)
    nights.settings("pool", path=str(ordinary), state=str(nights.top / "other-state"))
    done = nights.backupd("run", "--now", "2026-11-20T22:00:00Z", check=False)
    assert done.returncode == 2
    assert "--rehearsal" in done.stderr
    assert list((ordinary / "hosts").iterdir()) == []


def test_a_scheduled_run_in_which_nothing_is_due_writes_nothing(nights: Nights, tree: Path) -> None:
    """It writes neither a row nor a fact: a timer starts it 96 times a day."""
    assert at(nights, "2026-11-20T22:00:00Z") == {"web": "complete"}
    state = nights.state
    before = {path: path.read_bytes() for path in state.rglob("*") if path.is_file() and not path.name.endswith("-shm")}
    generation = work("btrfs", "subvolume", "show", nights.pool).stdout.partition("Generation:")[2].split()[0]
    for now in ("2026-11-20T22:15:00Z", "2026-11-21T12:00:00Z", "2026-11-21T21:59:00Z"):
        done = nights.backupd("run", "--scheduled", "--now", now)
        assert (done.stdout, done.stderr) == ("", ""), now
    assert {path: path.read_bytes() for path in state.rglob("*") if path.is_file() and not path.name.endswith("-shm")} == before
    assert work("btrfs", "subvolume", "show", nights.pool).stdout.partition("Generation:")[2].split()[0] == generation
    assert at(nights, "2026-11-21T22:00:00Z", "--scheduled") == {"web": "complete"}


def test_a_scheduled_run_waits_with_a_host_that_failed_and_one_by_hand_does_not(nights: Nights, tree: Path) -> None:
    shutil.move(tree, tree.parent / "away")
    assert at(nights, "2026-11-20T22:00:00Z", "--scheduled", status=1) == {"web": "failed"}
    assert at(nights, "2026-11-20T22:15:00Z", "--scheduled") == {}
    assert at(nights, "2026-11-21T02:59:00Z", "--scheduled") == {}
    assert at(nights, "2026-11-21T03:00:10Z", "--scheduled", status=1) == {"web": "failed"}
    assert at(nights, "2026-11-21T03:15:00Z", status=1) == {"web": "failed"}, "by hand"
    shutil.move(tree.parent / "away", tree)
    assert at(nights, "2026-11-21T03:20:00Z") == {"web": "complete"}
