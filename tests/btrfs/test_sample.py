"""`backupd sample` on a real btrfs, compared with the btrfs program, /proc/diskstats and /proc/mounts."""

import json
import re
import sqlite3
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.beds import TOP, btrfs, work
from tests.beds.nights import Nights

MIB = 1 << 20


@pytest.fixture(scope="module")
def bed() -> Iterator[Path]:
    """Two devices, raid1, for all tests of this file."""
    from tests.beds import session

    point = btrfs.make(size="1G", devices=2, mkfs=("-d", "raid1", "-m", "raid1"), options="noatime,commit=300")
    yield point
    problems = session.remove(point.parent)
    assert not problems, "\n".join(problems)


@pytest.fixture
def nights(bed: Path) -> Iterator[Nights]:
    top = bed / "top"
    work("btrfs", "-q", "subvolume", "create", top)
    yield Nights(top)
    btrfs.delete_subvolume(top, bed)


def write(path: Path, size: int) -> None:
    path.write_bytes(b"\xa5" * size)
    work("btrfs", "filesystem", "sync", path.parent)


def diskstats(devices: list[str]) -> tuple[int, int]:
    """Returns the bytes read from and written to them, by /proc/diskstats."""
    rows = [line.split() for line in Path("/proc/diskstats").read_text().splitlines()]
    ours = [row for row in rows if f"/dev/{row[2]}" in devices]
    assert len(ours) == len(devices)
    return sum(int(row[5]) for row in ours) * 512, sum(int(row[9]) for row in ours) * 512


def test_allocated_used_and_devices_are_what_the_btrfs_program_says(nights: Nights, bed: Path) -> None:
    write(nights.top / "file", 40 * MIB)
    answer = nights.json("sample")
    usage = work("btrfs", "filesystem", "usage", "-b", bed).stdout

    def number(label: str) -> int:
        match = re.search(rf"{label}:\s+(\d+)", usage)
        assert match
        return int(match[1])

    assert (answer["size"], answer["allocated"]) == (number("Device size"), number("Device allocated"))
    assert (answer["unallocated"], answer["used"]) == (number("Device unallocated"), number("Used"))
    lines = work("btrfs", "filesystem", "df", "-b", bed).stdout.splitlines()
    table = {
        tuple(match[:2]): tuple(map(int, match[2:]))
        for match in re.findall(r"(\w+), (\w+): total=(\d+), used=(\d+)", "\n".join(lines))
    }
    table.pop(("GlobalReserve", "single"))
    assert {
        (space["type"].title(), space["profile"].upper()): (space["allocated"], space["used"]) for space in answer["spaces"]
    } == table
    shown = work("btrfs", "filesystem", "show", "--raw", bed).stdout
    devices = {int(match[0]): (int(match[1]), int(match[2])) for match in re.findall(r"devid +(\d+) size (\d+) used (\d+)", shown)}
    assert {device["devid"]: (device["size"], device["allocated"]) for device in answer["devices"]} == devices
    (mounted,) = [line.split() for line in Path("/proc/mounts").read_text().splitlines() if line.split()[1] == str(bed)]
    assert set(answer["options"]) == set(mounted[3].split(","))


def test_what_was_read_and_written_since_the_sample_before_is_what_diskstats_says(nights: Nights, bed: Path) -> None:
    devices = btrfs.devices_of(bed)
    assert nights.json("sample")["written"] is None
    before = diskstats(devices)
    write(nights.top / "file", 30 * MIB)
    answer = nights.json("sample")
    after = diskstats(devices)
    assert (answer["read"], answer["written"]) == (after[0] - before[0], after[1] - before[1])
    assert answer["written"] > 60 * MIB  # raid1 writes both copies
    assert 0 < answer["seconds"] < 60


def test_another_boot_is_no_traffic(nights: Nights) -> None:
    nights.json("sample")
    with closing(sqlite3.connect(nights.state / "catalogue.sqlite")) as file, file:
        file.execute("""UPDATE sample SET counters = replace(counters, '"boot":"', '"boot":"0')""")
    answer = nights.json("sample")
    assert (answer["seconds"], answer["read"], answer["written"], answer["pressure"]) == (None, None, None, None)
    assert nights.json("sample")["seconds"] is not None


def test_orphans_a_scrub_and_pressure_are_seen(nights: Nights, bed: Path) -> None:
    nights.json("sample")
    write(nights.top / "file", 60 * MIB)
    victim = nights.top / "victim"
    work("btrfs", "-q", "subvolume", "create", victim)
    uuid = work("btrfs", "filesystem", "show", bed).stdout.split("uuid: ")[1].split()[0]
    speed = Path(f"/sys/fs/btrfs/{uuid}/devinfo/1/scrub_speed_max")
    if not speed.exists():
        pytest.skip("this kernel cannot slow a scrub down")
    with (victim / "open").open("wb"):  # keeps the cleaner from it
        work("btrfs", "-q", "subvolume", "delete", "--commit-after", victim)
        speed.write_text(str(8 * MIB))  # a scrub of seconds; what commits would wait for it
        try:
            # The scrub continues in the background and would keep a pipe open.
            subprocess.run(["btrfs", "scrub", "start", bed], stdout=subprocess.DEVNULL, check=True)
            answer = nights.json("sample")
        finally:
            work("btrfs", "scrub", "cancel", bed, check=False)
            speed.write_text("0")
    assert answer["activity"] == ["scrub"]
    assert answer["orphans"] >= 1
    if Path("/proc/pressure/io").exists():
        assert set(answer["pressure"]) == {"cpu_some", "io_some", "io_full", "memory_some", "memory_full"}
    assert nights.json("sample")["activity"] == []


def test_errors_of_a_device_and_a_missing_device_are_told(make_btrfs: Callable[..., Path]) -> None:
    point = make_btrfs(size="512M", devices=2, mkfs=("-d", "raid1", "-m", "raid1"))
    work("btrfs", "-q", "subvolume", "create", point / "top")
    nights = Nights(point / "top")
    write(nights.top / "file", 20 * MIB)
    loops = btrfs.devices_of(point)
    work("umount", point)
    with (point.parent / "disk1").open("r+b") as image:  # rotten bits in one copy, behind the superblocks
        for at in range(70 * MIB, 400 * MIB, 2 * MIB):
            image.seek(at)
            image.write(b"\xff" * MIB)
    work("mount", "-t", "btrfs", "-o", f"device={loops[1]}", loops[0], point)
    work("btrfs", "scrub", "start", "-B", point, check=False)
    answer = nights.json("sample")
    document = json.loads(work("btrfs", "--format", "json", "device", "stats", point).stdout)["device-stats"]
    wanted = (
        {int(row["devid"]): [int(row[f"{kind}_errs"]) for kind in KINDS] for row in document} if "devid" in document[0] else None
    )
    counts = {device["devid"]: list(device["errors"].values()) for device in answer["devices"]}
    assert list(answer["devices"][0]["errors"]) == [kind.removesuffix("_io") for kind in KINDS]
    assert sum(map(sum, counts.values())) > 0
    if wanted is not None:
        assert counts == wanted
    line = nights.backupd("sample").stdout
    assert re.search(r"device [12]: errors: [\d,]+ \w+", line)
    work("umount", point)
    work("losetup", "-d", loops[1])
    work("btrfs", "device", "scan", "--forget", check=False)
    work("mount", "-t", "btrfs", "-o", "degraded,ro", loops[0], point)
    missing = nights.json("sample")
    assert len(missing["devices"]) == 2
    assert missing["read"] is None or missing["read"] >= 0


KINDS = ("write_io", "read_io", "flush_io", "corruption", "generation")


def test_a_busy_catalogue_leaves_a_sample_out_and_fails_nothing(nights: Nights) -> None:
    nights.json("sample")
    with closing(sqlite3.connect(nights.state / "catalogue.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        begun = time.monotonic()
        done = nights.backupd("sample", check=False)
        took = time.monotonic() - begun
    assert (done.returncode, done.stdout) == (0, "")
    assert "this sample was skipped" in done.stderr
    assert took < 25  # others wait for half a minute
    nights.json("sample")


def test_a_sample_has_the_score_that_was_recorded_last_and_scores_nothing_itself(nights: Nights) -> None:
    assert nights.json("sample")["score"] is None
    assert nights_rows(nights, "SELECT score FROM score") == []
    work(sys.executable, "-m", "balancer", "score", "--config", nights.config, "--record", cwd=TOP)
    ((score,),) = nights_rows(nights, "SELECT score FROM score")
    assert nights.json("sample")["score"] == pytest.approx(score, abs=0.001)


def nights_rows(nights: Nights, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(nights.state / "catalogue.sqlite")) as file:
        return file.execute(statement).fetchall()


LOADED = """
import sys
from backupd.cli import main
sys.argv = ["backupd", "--config", sys.argv[1], "sample"]
try:
    main()
finally:
    print(",".join(name for name in ("numpy", "rich", "PIL") if name in sys.modules), file=sys.stderr)
"""


def test_a_sample_loads_nothing_that_it_does_not_need(nights: Nights) -> None:
    nights.json("sample")
    done = subprocess.run([sys.executable, "-c", LOADED, nights.config], cwd=TOP, text=True, capture_output=True, check=True)
    assert done.stderr.strip() == ""
    assert "allocated" in done.stdout


def test_a_night_shows_in_the_day_and_in_pictures(nights: Nights) -> None:
    nights.host("web1", nights.source)
    (nights.source / "data").write_bytes(bytes(range(256)) * 4096 * 8)
    nights.json("sample")
    nights.run("web1")
    work("btrfs", "filesystem", "sync", nights.top)
    nights.json("sample")
    day = nights.json("day")
    assert "backup" in {phase["job"] for phase in day["phases"]}
    assert day["sums"][0]["job"] is None
    assert day["sums"][0]["data"] == 2 * 8 * MIB  # rsync's literal bytes, in two copies
    assert day["sums"][0]["written"] >= day["sums"][0]["data"]
    assert "web1" not in nights.backupd("day").stdout
    for command in ("day", "trend"):
        picture = nights.top / f"{command}.svg"
        assert nights.backupd(command, "--svg", picture).stdout == ""
        words = "".join(ET.parse(picture).getroot().itertext())
        assert str(nights.pool) in words
        refused = nights.backupd(command, "--svg", nights.top / f"{command}.png", check=False)
        assert (refused.returncode, f"SVG: name it {command}.svg" in refused.stderr) == (2, True)
    nights.json("sample")
    assert [point["used"] > 0 for point in nights.json("trend")["points"]] == [True] * 3
    drawn = nights.backupd("trend").stdout
    assert "there is one sample" not in drawn
    assert "allocated, not used" in drawn
    assert "14 are needed" in nights.json("forecast")["used"]["why_not"]
    assert "Too little history" in nights.backupd("forecast").stdout
    assert "There are no samples" in nights.backupd("day", "2001-01-01").stdout
    assert nights.backupd("day", "tomorrow", check=False).returncode == 2
