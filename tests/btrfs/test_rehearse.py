"""A small real rehearsal: its measurements, its remains, and the devices that it refuses."""

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backupd.rehearse.fill import HostFiles, NightWriter
from backupd.rehearse.pool import PREFIX, remove_leftovers
from backupd.rehearse.rehearsal_types import HostModel
from btrkeep.catalogue import Catalogue
from btrkeep.config import load
from btrkeep.pool.marker import open_pool
from tests.beds import TOP, btrfs, session, work
from tests.beds.anyone import NOBODY
from tests.beds.cli import backupd, backupd_start
from tests.beds.hangfs import hanging
from tests.beds.nights import Nights
from tests.beds.walls import with_own_mounts
from tests.beds.watch import wait_for

pytestmark = [pytest.mark.btrfs, pytest.mark.root]
SMALL = ("--size", "256MiB", "--days", "2", "--age", "1", "--seeds", "2")
VARIANTS = ("--variant", "plain:inplace=always", "--variant", "packed:compression=zstd:3,balance=usage:20%")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for images; at the end nothing is mounted or attached in it."""
    folder = Path(tempfile.mkdtemp(prefix="rehearse-", dir=session.folder(1 << 30)))
    yield folder
    assert session.mounts_below(folder) == []
    assert session.loops_below(folder) == []
    assert list(folder.iterdir()) == []


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Two small hosts that were never backed up, on a pool that is not mounted."""
    lines = [f'[pool]\npath = "{tmp_path}/pool"\nstate = "{tmp_path}/state"\n[retention]\ndaily = 2\nmin_keep = 1\ngrace = "1m"']
    lines += [f'[host.h{number}]\naddress = "h{number}"\npaths = ["/srv"]' for number in range(2)]
    file = tmp_path / "main.toml"
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.mark.slow
@pytest.mark.takes(30)
def test_two_variants_are_rehearsed_and_compared_and_nothing_is_left(config: Path, place: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    words = ("rehearse", *SMALL, *VARIANTS, "--on", place, "--json", "--html", page)
    answer = json.loads(backupd("--config", config, *words, timeout=280).stdout)
    assert {(run["variant"], run["seed"]) for run in answer["runs"]} == {
        (name, seed) for name in ("plain", "packed") for seed in (1, 2)
    }
    for run in answer["runs"]:
        assert run["full"] is None
        assert [night["number"] for night in run["nights"]] == [1, 2]
        assert sum(night["deleted"] for night in run["nights"]) == 2  # one of each host; the first night only marks them
        for night in run["nights"]:
            assert night["size"] >= night["allocated"] >= night["used"] > night["new"]
            assert night["night_written"] > 0
    new = {(run["variant"], run["seed"]): [night["new"] for night in run["nights"]] for run in answer["runs"]}
    assert new["plain", 1] == new["packed", 1] != new["plain", 2] == new["packed", 2]  # common random numbers
    [judgement] = answer["judgements"]
    used = next(measure for measure in judgement["measures"] if measure["measure"] == "used")
    assert used["lower"] == 2  # half of the data compresses
    assert {measure["verdict"] for measure in judgement["measures"]} == {"too few runs"}
    assert answer["best"] is None
    text = page.read_text()
    assert text.count("<svg") == 9
    assert text.count("data:image/webp;base64,") == 2
    assert "http" not in text.replace("http://www.w3.org", "")
    assert not (tmp_path / "pool").exists()
    assert not (tmp_path / "state").exists()  # the configured pool and its catalogue are not touched


def test_a_dry_run_makes_nothing(config: Path, place: Path) -> None:
    answer = json.loads(backupd("--config", config, "rehearse", *VARIANTS, "--on", place, "--dry-run", "--json").stdout)
    assert [host["name"] for host in answer["hosts"]] == ["h0", "h1"]
    assert answer["assumed"] == ["h0", "h1"]
    assert answer["estimated_seconds"] > 60
    text = backupd("--config", config, "rehearse", "--question", "holes", "--on", place, "--dry-run").stdout
    assert "2 variants, each 30 nights with 5 seeds" in text


def begun(config: Path, place: Path) -> "subprocess.Popen[bytes]":
    """A rehearsal that has started its nights."""
    words = ("rehearse", "--size", "256MiB", "--days", "300", *VARIANTS, "--on", place)
    command = (sys.executable, "-m", "backupd", "--config", config, *words)
    process = subprocess.Popen(command, cwd=TOP, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: list(place.glob(f"{PREFIX}*/pool/mnt/pool/hosts/h*/20*/data")), seconds=60)
    return process


def test_one_that_runs_is_left_alone_and_ctrl_c_ends_it_without_a_trace(config: Path, place: Path) -> None:
    with begun(config, place) as running:
        assert remove_leftovers([place]) == []
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 130


def test_a_program_with_mounts_of_its_own_that_holds_the_filesystem_costs_no_result(config: Path, place: Path) -> None:
    words = ("rehearse", "--size", "256MiB", "--days", "1", "--age", "0", "--seeds", "1", *VARIANTS, "--on", place, "--json")
    with backupd_start("--config", config, *words) as running:
        wait_for(lambda: session.mounts_below(place), seconds=60)
        with subprocess.Popen(with_own_mounts("sleep", "infinity")) as holder:
            try:
                text, notes = running.communicate(timeout=280)
            finally:
                holder.kill()
    assert running.returncode == 0, notes
    assert len(json.loads(text)["runs"]) == 2
    assert notes.count("note: another program still uses /dev/loop") == 1
    assert list(place.iterdir()) == []
    wait_for(lambda: not session.loops_below(place))


def test_a_users_own_filesystem_with_the_name_of_a_rehearsal_ends_none(place: Path) -> None:
    """Not even root may enter it, and a request to it may hang for ever."""
    (place / "home").mkdir()
    for parent in (place, place / "home"):
        with hanging(folder := parent / f"{PREFIX}mine", user=NOBODY):
            assert remove_leftovers([place]) == []
        folder.rmdir()
    (place / "home").rmdir()


@pytest.fixture
def device() -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="spare-", dir=session.folder(1 << 29)))
    image = folder / "disk"
    with image.open("wb") as file:
        file.truncate(300 << 20)
    loop = btrfs.attach(image)
    yield loop
    work("losetup", "--detach", loop, check=False)
    wait_for(lambda: not session.loops_below(folder))  # another program may have it open for a moment
    session.remove(folder)


def refused(config: Path, *words: str | Path) -> str:
    done = backupd("--config", config, "rehearse", *SMALL, *VARIANTS, *words, check=False)
    assert done.returncode == 2, done.stderr
    return done.stderr


def test_a_device_with_something_on_it_is_refused_unless_it_is_named_once_more(config: Path, device: str) -> None:
    work("mkfs.ext4", "-q", device)
    assert "is not empty: ext4" in refused(config, "--on", device)
    assert "give the same device to both" in refused(config, "--on", device, "--erase", "/dev/other")
    assert "give the device to both" in refused(config, "--on", "/dev/shm", "--erase", device)
    assert work("blkid", "-p", "-o", "value", "-s", "TYPE", device).stdout.strip() == "ext4"


def test_after_kill_nine_the_next_one_removes_what_was_left_and_a_spare_device_is_empty_in_the_end(
    config: Path, place: Path, device: str
) -> None:
    """The next one has its own pool elsewhere: it finds the leftovers by the mount. (Another test's may be faster.)"""
    with begun(config, place) as killed:
        [left] = place.iterdir()
        killed.kill()
    assert left.name.startswith(PREFIX)
    work("mkfs.ext4", "-q", device)
    words = ("--size", "256MiB", "--days", "1", "--age", "0", "--seeds", "1", *VARIANTS)
    backupd("--config", config, "rehearse", *words, "--on", device, "--erase", device, timeout=280)
    assert not left.exists()
    assert work("blkid", "-p", device, check=False).returncode == 2


def test_a_device_that_is_in_use_is_refused_whatever_is_said(config: Path, device: str, tmp_path: Path) -> None:
    work("mkfs.btrfs", "-q", device)
    point = tmp_path / "mnt"
    point.mkdir()
    work("mount", device, point)
    (point / "precious").write_text("mine")
    try:
        assert "is in use" in refused(config, "--on", device, "--erase", device)
        assert (point / "precious").read_text() == "mine"
    finally:
        work("umount", point)


def test_neither_a_folder_nor_a_device_of_the_pool_is_taken(shared_btrfs: Path, tmp_path: Path) -> None:
    nights = Nights(shared_btrfs)
    nights.host("h0", nights.source)
    assert "is on the pool itself" in refused(nights.config, "--on", nights.top)


@pytest.mark.slow
def test_a_night_takes_as_much_as_a_run_with_the_same_changes_by_rsync(make_btrfs: Any) -> None:
    """The same changes, made in a rehearsal's pool, and in a source that a real run fetches in place: btrfs counts the same bytes.

    rsync writes up to a block more on either side of a change. The figures of a host's runs include that.
    """
    nights = Nights(make_btrfs(size="900M"), "--rehearsal")
    nights.host("h0", nights.source, inplace="always")
    model = HostModel("h0", 400, 60_000.0, 1.5, 8, 60_000.0, 8, 30, 0.5, 0.3)
    config = load("main", nights.config)
    pool = open_pool(nights.pool)
    own, real = pool.hosts / "ours", pool.hosts / "h0"
    start = datetime(2026, 1, 1, 22, tzinfo=UTC)
    with Catalogue.open(nights.state) as catalogue:
        ours = replace(config.hosts["h0"], name="ours")
        writer = NightWriter(pool, catalogue, {"ours": (ours, HostFiles(model, 1, 8 << 20))}, None)
        for number in range(3):
            writer.write(start + timedelta(days=number), 1)
            newest = max(own.iterdir()) / "data"
            work("rsync", "-a", "--inplace", "--no-whole-file", "--delete", f"{newest}/", nights.source / "data")
            [result] = nights.night("h0", now=start + timedelta(days=number))
            assert result.outcome == "complete"
    work("btrfs", "filesystem", "sync", nights.pool)
    mine, theirs = (exclusive_of(sorted(path for path in folder.iterdir() if path.name[:2] == "20")) for folder in (own, real))
    assert len(mine) == len(theirs) == 3
    assert sum(mine) > 1_000_000
    assert sum(mine) == pytest.approx(sum(theirs), rel=0.25)


def exclusive_of(backups: list[Path]) -> list[int]:
    """Returns the bytes of each backup that no other shares, by `btrfs filesystem du`."""
    numbers = []
    for backup in backups:
        line = work("btrfs", "filesystem", "du", "--raw", "-s", backup).stdout.splitlines()[-1]
        numbers.append(int(line.split()[1]))
    return numbers
