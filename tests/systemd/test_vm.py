"""Tests that need a virtual machine: a clock that leaps, limits of memory, device policies. Ten minutes, only on request."""

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.beds import TOP, session, vm
from tests.beds.workers import made_once

HERE = Path(__file__).resolve().parent
ASKED = "BTRKEEP_TEST_VM"
_BUDGET = 1200.0  # seconds of processor time: three times what the longer one takes
MISSING = ("" if os.environ.get(ASKED) else f"{ASKED}=1 asks for it") or vm.why_not()

pytestmark = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(bool(MISSING), reason=f"left out: in a virtual machine ({MISSING})"),
    pytest.mark.timeout(6000),  # the machine and its image may have to be made first; the machine has a limit of its own
]


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _console(tmp_path_factory, "main.sh", 1, "2026-11-20T21:00:00")


@pytest.fixture(scope="module")
def console_of_little_memory(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _console(tmp_path_factory, "little.sh", 2, "2026-11-20T10:00:00")


@pytest.fixture(scope="module")
def console_of_sleep(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _console(tmp_path_factory, "suspend.sh", 1, "2026-11-20T22:00:00", suspends=True)


def _console(factory: pytest.TempPathFactory, script: str, disks: int, clock: str, *, suspends: bool = False) -> str:
    """Returns the output of that script in a machine with that many disks, booted by one of the workers."""
    folder = made_once(factory, f"machine-{script}", "said", lambda folder: _carry_out(folder, script, disks, clock, suspends))
    return (folder / "said").read_text()


def _carry_out(folder: Path, script: str, disks: int, clock: str, suspends: bool) -> None:
    scripts = folder / "scripts"
    scripts.mkdir()
    shutil.copy(HERE / "invm" / script, scripts / "main.sh")
    for path in (HERE / "invm" / "truth.py", HERE / "inside" / "ground.sh", TOP / "tests" / "fakessh"):
        shutil.copy(path, scripts)
    shutil.copy(TOP / "backupd" / "source" / "btrkeep_source.py", scripts / "btrkeep-source")
    drives = [session.folder() / f"vm-pool-{number}" for number in range(disks)]
    for drive in drives:
        with drive.open("wb") as file:
            file.truncate(2 << 30)
    try:
        with vm.running(scripts, drives, clock=clock, systemd=not suspends, suspends=suspends) as machine:
            if suspends:
                _wake_each_time(machine)
            (folder / "said").write_text(machine.to_its_end(_BUDGET))
    finally:
        for drive in drives:
            drive.unlink()


def _wake_each_time(machine: vm.Vm) -> None:
    """Wakes the machine each time it reports that it sleeps, at the time that it reports, until its script ends."""

    def asleep(lines: Sequence[str]) -> list[str]:
        return [line.split()[1] for line in lines if line.startswith("asleep ")]

    def says_more(lines: Sequence[str]) -> bool:
        return len(asleep(lines)) > woken or lines[-1:] in (["status 0"], ["status 1"])

    woken = 0
    while len(times := asleep(machine.wait(_BUDGET, says_more))) > woken:
        machine.wake(times[woken])
        woken += 1


def test_a_clock_that_leaps_over_a_night_starts_its_jobs_once_and_in_order(console: str) -> None:
    assert re.findall(r"^(\w+) waits$", console, re.MULTILINE) == ["backup", "expire", "balance", "heatmap"]
    times = {job: (int(start), int(end)) for job, start, end in re.findall(r"^(\w+) success (\d+) (\d+) $", console, re.MULTILINE)}
    assert list(times) == ["backup", "expire", "balance"]
    assert times["backup"][1] <= times["expire"][0]
    assert times["expire"][1] <= times["balance"][0]
    assert "heatmap waits for 18:00" in console


def test_a_hook_reads_no_disk_and_all_kinds_of_nodes_are_backed_up(console: str) -> None:
    assert "the hook reads no disk\nthe hook reads zeros\n" in console
    nodes = re.findall(r"^node \S+/(\w+) (\S+) (\w+)", console, re.MULTILINE)
    assert nodes == [("unknown", "1ff:7", "character"), ("disk", "fe:0", "block")]


def test_a_job_stays_within_its_memory_or_is_ended(console: str) -> None:
    assert "heatmap success, limit 1073741824\n" in console
    assert "with little memory oom-kill\n" in console


def test_the_rsync_that_takes_too_much_is_ended_alone_and_the_night_goes_on(console: str) -> None:
    """The kernel ends a receiver, and systemd would end the unit, too. The next run has enough memory and is complete."""
    assert re.search(r"^with a long list exit-code, kills [1-9]", console, re.MULTILINE)
    states = re.findall(r"^(little|enough) (\w+) (\S+) (\d)$", console, re.MULTILINE)
    assert states[1:3] == [("little", "small", "ok", "1"), ("little", "smaller", "ok", "1")]
    assert states[0] != ("little", "large", "ok", "1")
    assert states[3:] == [("enough", "large", "ok", "1"), ("enough", "small", "ok", "2"), ("enough", "smaller", "ok", "2")]
    assert "the long list is whole\n" in console


@pytest.mark.takes(480)
def test_commands_that_the_kernel_ends_for_want_of_memory_leave_nothing_wrong(console_of_little_memory: str) -> None:
    """A run, an import, a verify, a replicate and an expire, each with four limits near its need."""
    output = console_of_little_memory
    tried = re.findall(r"^(\w+) within (\d+): status (\d+), ended (\d+)$", output, re.MULTILINE)
    commands = ["run", "import", "verify", "replicate", "expire"]
    assert list(dict.fromkeys(name for name, _, _, _ in tried)) == commands, output
    ended = {name: sum(int(number) for row, _, _, number in tried if row == name) for name in commands}
    assert min(ended.values()) >= 1, ended
    assert re.findall(r"^(\w+) with enough: status (\d+)$", output, re.MULTILINE) == [(name, "0") for name in commands], output
    assert re.findall(r"^wrong: .*", output, re.MULTILINE) == []
    assert re.findall(r"^(\w+) catalogue (.*)", output, re.MULTILINE) == [("main", "ok equal"), ("second", "ok equal")]
    assert "no rsync is left\n" in output


@pytest.mark.takes(150)
def test_a_machine_that_was_suspended_stops_what_runs_beyond_its_window_when_it_wakes(console_of_sleep: str) -> None:
    """The machine is suspended to memory, and its hardware clock is ahead when it wakes. Within the window the transfer
    continues.
    """
    output = console_of_sleep
    slept = re.findall(r"^slept (\d+) awake (\d+) at (\S+ \d\d)$", output, re.MULTILINE)
    assert [(int(seconds) // 3600, int(awake) < 60, at) for seconds, awake, at in slept] == [
        (0, True, "2026-11-20 22"),
        (8, True, "2026-11-21 07"),
        (14, True, "2026-11-21 22"),
    ], output
    assert "it goes on\n" in output
    ended = re.findall(r"^run morning (\d+) (\d+) (\w+) (.*)$", output, re.MULTILINE)
    assert [(status, int(seconds) < 15, state, "window" in why) for status, seconds, state, why in ended] == [
        ("1", True, "partial", True)
    ], output
    assert "next morning complete\n" in output
    assert re.findall(r"^wrong: .*", output, re.MULTILINE) == []


@pytest.fixture(scope="module")
def console_of_lvm(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _console(tmp_path_factory, "lvm.sh", 1, "2026-11-20T10:00:00")


def test_a_host_with_lvm_is_read_from_thin_and_classic_snapshots(console_of_lvm: str) -> None:
    """btrkeep-source with real volumes; a classic snapshot that overflows is reported, and nothing is left."""
    output = console_of_lvm
    assert output.count('"consistency": "snapshot", "methods": ["lvm"], "reason": null') == 1, output
    assert output.count('"consistency": "snapshot", "methods": ["lvm-thin"], "reason": null') >= 1
    assert "classic has before\nthin has before\n" in output
    assert len(re.findall(r"^btrkeep-source-SESSION\.\d$", output, re.MULTILINE)) == 2
    assert output.count("left: classic pool thin \n") == 3
    assert '{"format": 1, "removed": 1, "full": []}\n' in output
    assert '{"format": 1, "removed": 1, "full": ["/srv/classic"]}\n' in output
    assert "\n1\nsessions: 1\n" in output
