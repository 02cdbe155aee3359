"""`backupd scrub` on a real filesystem, compared with `btrfs scrub status` and with bytes damaged on purpose."""

import json
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backupd.proof.scrub import parse
from tests.beds import TOP, btrfs, work
from tests.beds.cli import BACKUPD
from tests.beds.nights import Nights

pytestmark = [pytest.mark.btrfs, pytest.mark.root]


def status_of(point: Path) -> dict[str, str]:
    pairs = (line.split(":", 1) for line in work("btrfs", "scrub", "status", "-R", point).stdout.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def spoil(device: str, marked: bytes) -> int:
    """Overwrites every place of the device where these bytes begin; returns their number."""
    count = 0
    with Path(device).open("r+b") as disk:
        while chunk := disk.read(1 << 20):
            at = disk.tell() - len(chunk)
            for offset in range(0, len(chunk), 4096):
                if chunk[offset : offset + len(marked)] == marked:
                    disk.seek(at + offset)
                    disk.write(b"spoilt" * 100)
                    count += 1
            disk.seek(at + len(chunk))
    return count


@pytest.fixture
def nights(make_btrfs: Callable[..., Path]) -> Nights:
    return Nights(make_btrfs(size="500M", devices=2, mkfs=("-d", "raid1", "-m", "raid1")))


def test_a_scrub_without_errors_is_well(nights: Nights) -> None:
    (nights.source / "file").write_bytes(bytes(range(256)) * 40_000)
    work("sync", "-f", nights.top)
    answer = nights.json("scrub")
    status = status_of(nights.top)
    assert status["Status"] == "finished"
    assert answer["scrubbed"] == int(status["data_bytes_scrubbed"]) + int(status["tree_bytes_scrubbed"]) > 20_000_000  # both copies
    assert (answer["outcome"], answer["resumed"], set(answer["errors"].values())) == ("finished", False, {0})
    assert nights.backupd("scrub").stdout.startswith("finished: ")


def test_errors_are_told_and_fail_it_even_when_they_were_put_right(nights: Nights) -> None:
    marked = b"mark of this test" * 8
    (nights.source / "file").write_bytes((marked + bytes(4096))[:4096] * 10)
    work("sync", "-f", nights.top)
    devices = btrfs.devices_of(nights.top)
    work("umount", nights.top)
    assert spoil(devices[0], marked) == 10
    work("mount", "-o", f"device={devices[1]}", devices[0], nights.top)
    done = nights.backupd("scrub", "--json", check=False)
    answer = json.loads(done.stdout)
    assert done.returncode == 1
    assert (answer["outcome"], answer["errors"]["csum"], answer["errors"]["corrected"], answer["errors"]["uncorrectable"]) == (
        "finished",
        10,
        10,
        0,
    )
    assert nights.json("scrub")["errors"]["csum"] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_one_that_is_stopped_is_cancelled_and_taken_up_again(
    nights: Nights, backupd_running: Callable[..., Any], number: signal.Signals
) -> None:
    noise = Path("/dev/urandom").open("rb").read(1 << 20)  # noqa: SIM115
    with (nights.source / "file").open("wb") as file:
        for _ in range(300):
            file.write(noise)
    work("sync", "-f", nights.top)
    slow_down(nights.top, "20m")
    running = backupd_running("--config", nights.config, "scrub", "--json")
    deadline = time.monotonic() + 60
    while status_of(nights.top).get("Status") != "running" and time.monotonic() < deadline:
        time.sleep(0.05)
    refused = nights.backupd("scrub", check=False)
    assert (refused.returncode, "a scrub is running" in refused.stderr) == (3, True)
    running.send_signal(number)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 143, err
    answer = json.loads(out)
    assert (answer["outcome"], answer["why"], status_of(nights.top)["Status"]) == ("stopped", None, "aborted")
    slow_down(nights.top, "0")
    again = nights.json("scrub")
    assert (again["outcome"], again["resumed"], status_of(nights.top)["Status"]) == ("finished", True, "finished")
    assert "Scrub resumed" in status_of(nights.top)
    assert again["scrubbed"] > answer["scrubbed"]
    assert again["scrubbed"] >= 2 * 300 << 20


def slow_down(point: Path, limit: str) -> None:
    """Uses the kernel's own limit (Linux 5.14), which `btrfs scrub limit` sets in newer versions of the program."""
    uuid = work("findmnt", "-no", "UUID", point).stdout.strip()
    for file in Path(f"/sys/fs/btrfs/{uuid}/devinfo").glob("*/scrub_speed_max"):
        file.write_text(limit)


def test_a_cancellation_by_another_program_is_reported(nights: Nights, backupd_running: Callable[..., Any]) -> None:
    (nights.source / "file").write_bytes(Path("/dev/urandom").open("rb").read(60 << 20))  # noqa: SIM115
    work("sync", "-f", nights.top)
    slow_down(nights.top, "5m")
    running = backupd_running("--config", nights.config, "scrub")
    deadline = time.monotonic() + 60
    while subprocess.run(["btrfs", "scrub", "cancel", nights.top], capture_output=True, check=False).returncode:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 1
    assert out.startswith("stopped (it was cancelled (`btrfs scrub cancel`)): ")


def test_a_pool_that_is_not_there_is_not_scrubbed(nights: Nights) -> None:
    nights.settings("pool", path=str(nights.top / "elsewhere"))
    assert nights.backupd("scrub", check=False).returncode == 4


def test_what_was_never_scrubbed_has_no_state() -> None:
    scrub_state = parse("UUID:  x\n\tno stats available\n", "Total to scrub:   315588608\nError summary:    no errors found\n")
    assert (scrub_state.status, scrub_state.scrubbed, scrub_state.total, set(scrub_state.errors.values())) == (
        "",
        0,
        315588608,
        {0},
    )


def test_without_a_device_each_scrub_reads_the_others_as_a_whole_and_names_it(nights: Nights) -> None:
    """From the second time on, btrfs-progs resumes only the scrub of the missing device: it reads nothing, and exits with 0."""
    marked = b"mark of this test" * 8
    (nights.source / "file").write_bytes((marked + bytes(4096))[:4096] * 10)
    nights.host("web1", nights.source)
    nights.run()
    first, second = btrfs.devices_of(nights.top)
    (missing,) = re.findall(
        rf"devid +(\d+) .* path {second}$", work("btrfs", "filesystem", "show", nights.top).stdout, re.MULTILINE
    )
    btrfs.unmount(nights.top)
    work("btrfs", "device", "scan", "--forget", first, second)
    work("losetup", "--detach", second)
    work("mount", "-t", "btrfs", "-o", "degraded", first, nights.top)
    outputs = [nights.backupd("scrub", "--json", check=False)]
    btrfs.unmount(nights.top)
    assert spoil(first, marked) >= 1
    work("mount", "-t", "btrfs", "-o", "degraded", first, nights.top)
    outputs += [nights.backupd("scrub", "--json", check=False) for _ in range(2)]
    assert [done.returncode for done in outputs] == [1, 1, 1]
    results = [json.loads(done.stdout) for done in outputs]
    assert [(result["outcome"], result["resumed"]) for result in results] == [("incomplete", False)] * 3
    assert [[(row["device"], row["why"]) for row in each["unread"]] for each in results] == [[(int(missing), "missing")]] * 3
    assert [result["errors"]["uncorrectable"] > 0 for result in results] == [False, True, True]
    used = used_of_profiles(nights.top)
    redundancy = results[-1]["redundancy"]
    assert redundancy["one_good_copy_left"] == sum(used.values()) > 0
    shown = nights.backupd("scrub", check=False).stdout
    assert f"device {missing} is missing: nothing on it was read" in shown
    check = {row["subject"]: row for row in json.loads(nights.backupd("check", "--json", check=False).stdout)}
    assert check["redundancy"]["level"] == "error"
    assert "have one good copy left" in check["redundancy"]["message"]
    nights.backupd("sample")
    drop = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")  # like the service of `notify` and `metrics`
    metrics = work(*drop, *BACKUPD, "--config", nights.config, "metrics", cwd=TOP).stdout
    values = re.findall(r'^btrkeep_stored_bytes{copies="1",pool="[^"]*",type="(\w+)"} (\S+)$', metrics, re.MULTILINE)
    assert {kind: float(size) for kind, size in values} == used


def used_of_profiles(point: Path) -> dict[str, int]:
    """What `btrfs filesystem df` reports as used, by type: a degraded mount adds block groups of the profile single."""
    used = Counter[str]()
    for kind, size in re.findall(
        r"^(\w+), \S+: .*used=(\d+)$", work("btrfs", "filesystem", "df", "-b", point).stdout, re.MULTILINE
    ):
        used[kind.lower()] += int(size) if kind != "GlobalReserve" else 0
    return dict(+used)
