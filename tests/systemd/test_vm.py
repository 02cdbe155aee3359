"""What only a virtual machine shows: a clock that leaps, limits of memory, device policies. Ten minutes: only when asked for."""

import os
import re
import shutil
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
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _said(tmp_path_factory, "main.sh", 1, "2026-11-20T21:00:00")


@pytest.fixture(scope="module")
def said_of_little_memory(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _said(tmp_path_factory, "little.sh", 2, "2026-11-20T10:00:00")


def _said(factory: pytest.TempPathFactory, script: str, disks: int, clock: str) -> str:
    """What that script says in a machine with so many disks, which one of the workers boots."""
    folder = made_once(factory, f"machine-{script}", "said", lambda folder: _carry_out(folder, script, disks, clock))
    return (folder / "said").read_text()


def _carry_out(folder: Path, script: str, disks: int, clock: str) -> None:
    scripts = folder / "scripts"
    scripts.mkdir()
    shutil.copy(HERE / "invm" / script, scripts / "main.sh")
    for path in (HERE / "invm" / "truth.py", HERE / "inside" / "ground.sh", TOP / "tests" / "fakessh"):
        shutil.copy(path, scripts)
    drives = [session.folder() / f"vm-pool-{number}" for number in range(disks)]
    for drive in drives:
        with drive.open("wb") as file:
            file.truncate(2 << 30)
    try:
        with vm.running(scripts, drives, clock=clock) as machine:
            (folder / "said").write_text(machine.to_its_end(_BUDGET))
    finally:
        for drive in drives:
            drive.unlink()


def test_a_clock_that_leaps_over_a_night_starts_its_jobs_once_and_in_order(said: str) -> None:
    assert re.findall(r"^(\w+) waits$", said, re.MULTILINE) == ["backup", "expire", "balance", "heatmap"]
    times = {job: (int(start), int(end)) for job, start, end in re.findall(r"^(\w+) success (\d+) (\d+) $", said, re.MULTILINE)}
    assert list(times) == ["backup", "expire", "balance"]
    assert times["backup"][1] <= times["expire"][0]
    assert times["expire"][1] <= times["balance"][0]
    assert "heatmap waits for 18:00" in said


def test_a_hook_reads_no_disk_and_all_kinds_of_nodes_are_backed_up(said: str) -> None:
    assert "the hook reads no disk\nthe hook reads zeros\n" in said
    nodes = re.findall(r"^node \S+/(\w+) (\S+) (\w+)", said, re.MULTILINE)
    assert nodes == [("unknown", "1ff:7", "character"), ("disk", "fe:0", "block")]


def test_a_job_stays_within_its_memory_or_is_ended(said: str) -> None:
    assert "heatmap success, limit 1073741824\n" in said
    assert "with little memory oom-kill\n" in said


def test_the_rsync_that_takes_too_much_is_ended_alone_and_the_night_goes_on(said: str) -> None:
    """The kernel ends a receiver, and systemd would end the unit with it; the next run, with enough memory, is complete."""
    assert re.search(r"^with a long list exit-code, kills [1-9]", said, re.MULTILINE)
    states = re.findall(r"^(little|enough) (\w+) (\S+) (\d)$", said, re.MULTILINE)
    assert states[1:3] == [("little", "small", "ok", "1"), ("little", "smaller", "ok", "1")]
    assert states[0] != ("little", "large", "ok", "1")
    assert states[3:] == [("enough", "large", "ok", "1"), ("enough", "small", "ok", "2"), ("enough", "smaller", "ok", "2")]
    assert "the long list is whole\n" in said


@pytest.mark.takes(480)
def test_commands_that_the_kernel_ends_for_want_of_memory_leave_nothing_wrong(said_of_little_memory: str) -> None:
    """A run, an import, a verify, a replicate and an expire, each with four limits that come near to what it takes."""
    said = said_of_little_memory
    tried = re.findall(r"^(\w+) within (\d+): status (\d+), ended (\d+)$", said, re.MULTILINE)
    commands = ["run", "import", "verify", "replicate", "expire"]
    assert list(dict.fromkeys(name for name, _, _, _ in tried)) == commands, said
    ended = {name: sum(int(number) for what, _, _, number in tried if what == name) for name in commands}
    assert min(ended.values()) >= 1, ended
    assert re.findall(r"^(\w+) with enough: status (\d+)$", said, re.MULTILINE) == [(name, "0") for name in commands], said
    assert re.findall(r"^wrong: .*", said, re.MULTILINE) == []
    assert re.findall(r"^(\w+) catalogue (.*)", said, re.MULTILINE) == [("main", "ok equal"), ("second", "ok equal")]
    assert "no rsync is left\n" in said
