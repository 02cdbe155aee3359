"""`backupd doctor --fix room` on full pools: the pool is as before, with space, without any trace of a temporary device."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from btrkeep.pool.temporary_devices import RECORD, read_record, write_record
from tests.beds import TOP, btrfs, work

pytestmark = [pytest.mark.btrfs, pytest.mark.root]
_FOUR_DEVICES = pytest.mark.long
"""Linux 6.18 has hung for good in a full pool of three small devices: on such a machine no further test can run."""
MIB = 1 << 20
Make = Callable[..., Path]


@dataclass(frozen=True, slots=True)
class FullPool:
    """A pool of which all space is allocated. `place`: a folder on a disk, with configuration and state."""

    point: Path
    place: Path

    @property
    def state(self) -> Path:
        return self.place / "state"

    def doctor(self, *words: str | Path, kill: Sequence[str] = ()) -> CompletedProcess[str]:
        program = ["tests.beds.kill_at", *kill] if kill else ["backupd"]
        argv: list[str | Path] = [sys.executable, "-m", *program, "--config", self.place / "main.toml", "doctor", *words]
        return work(*argv, cwd=TOP, check=False, timeout=120)

    def findings(self) -> dict[str, str]:
        answer = json.loads(self.doctor("--json").stdout)["findings"]
        return {row["name"]: row["what"] for row in answer}

    def sums(self) -> dict[str, str]:
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in self.point.glob("real*")}

    def unallocated(self) -> int:
        usage = work("btrfs", "filesystem", "usage", "-b", self.point).stdout
        return int(usage.partition("Device unallocated:")[2].split()[0])

    def is_as_before(self, devices: list[str], sums: dict[str, str]) -> None:
        """Requires that there is no trace of a temporary device, and that all data is good, by btrfs-progs and the kernel. The
        scrub allocates block groups.
        """
        shown = work("btrfs", "filesystem", "show", self.point).stdout
        assert sorted(re.findall(r" path (\S+)", shown)) == sorted(devices)
        assert self.sums() == sums
        assert list(self.state.glob("temporary*")) == []
        assert str(self.state) not in work("losetup", "--list", "--noheadings", "--output", "BACK-FILE").stdout
        assert "rw" in work("findmnt", "-no", "OPTIONS", self.point).stdout.strip().split(",")
        assert "Error summary:    no errors found" in work("btrfs", "scrub", "start", "-B", self.point).stdout
        assert "No balance found" in work("btrfs", "balance", "status", self.point, check=False).stdout


def fill(point: Path, *, metadata: bool) -> None:
    """Allocates all space; in each block group, files of 5 MiB lie between holes of 3 MiB, which are too small for them."""
    for number in range(3):
        (point / f"real{number}").write_bytes(os.urandom(2 * MIB))
    with contextlib.suppress(OSError):
        for number in range(10_000):
            fd = os.open(point / f"f{number}", os.O_CREAT | os.O_RDWR)
            try:
                os.posix_fallocate(fd, 0, (3 if number % 2 else 5) * MIB)
            finally:
                os.close(fd)
    work("btrfs", "filesystem", "sync", point)
    for file in point.glob("f*[13579]"):
        file.unlink()
    work("btrfs", "filesystem", "sync", point)
    if metadata:
        (point / "small").mkdir()
        with contextlib.suppress(OSError):
            for number in range(200_000):
                (point / "small" / str(number)).write_bytes(b"x" * 1900)
        work("btrfs", "filesystem", "sync", point)


@pytest.fixture
def full(make_btrfs: Make) -> Iterator[Callable[..., FullPool]]:
    places: list[Path] = []

    def make(*, metadata: bool = False, **words: object) -> FullPool:
        point = make_btrfs(size="1G", **words)
        place = Path(tempfile.mkdtemp(prefix="btrkeep-room-", dir="/var/tmp"))  # a temporary device may not be in memory
        places.append(place)
        (place / "state").mkdir()
        lines = ["[pool]", f'path = "{point}/pool"', f'state = "{place}/state"', 'min_free = "0%"']
        (place / "main.toml").write_text("\n".join(lines) + "\n")
        work(sys.executable, "-m", "backupd", "--config", place / "main.toml", "init", point / "pool", cwd=TOP)
        fill(point, metadata=metadata)
        return FullPool(point, place)

    yield make
    for place in places:
        for line in work("losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE").stdout.splitlines():
            if str(place) in line:
                for point in work("findmnt", "-rno", "TARGET", "-S", line.split()[0], check=False).stdout.split():
                    btrfs.unmount(Path(point))
                work("losetup", "--detach", line.split()[0], check=False)
        shutil.rmtree(place)


@pytest.mark.slow
@pytest.mark.parametrize("mkfs", [(), pytest.param(("-d", "raid1", "-m", "raid1"), marks=_FOUR_DEVICES)])
def test_a_full_pool_gets_unallocated_space_and_is_otherwise_as_before(
    full: Callable[..., FullPool], mkfs: tuple[str, ...]
) -> None:
    pool = full(metadata=not mkfs, devices=2 if mkfs else 1, mkfs=mkfs)
    devices, sums, before = btrfs.devices_of(pool.point), pool.sums(), pool.unallocated()
    assert before < 4 * MIB
    assert ("metadata is full" if not mkfs else "all space is allocated") in pool.findings()["unallocated"]
    rehearsed = pool.doctor("--fix", "room", "--dry-run")
    assert (rehearsed.returncode, pool.unallocated()) == (0, before), rehearsed.stderr
    pool.is_as_before(devices, sums)
    done = pool.doctor("--fix", "room")
    assert done.returncode == 0, done.stdout + done.stderr
    assert pool.unallocated() > 40 * MIB
    assert "unallocated" not in pool.findings()
    pool.is_as_before(devices, sums)


STEPS = (
    ("after", "temporary devices recorded", 1),
    ("after", "temporary file attached", 1),
    ("after", "temporary device added", 1),
    ("after", "block group balanced", 2),
    ("before", "temporary device removed", 1),
    ("after", "temporary device removed", 1),
    ("before", "temporary devices forgotten", 1),
)


@pytest.mark.slow
def test_killed_at_one_step_after_the_other_it_is_reported_each_time_and_the_last_one_finishes(
    full: Callable[..., FullPool],
) -> None:
    pool = full()
    devices, sums = btrfs.devices_of(pool.point), pool.sums()
    for when, checkpoint, count in STEPS:
        killed = pool.doctor("--fix", "room", kill=("die", when, checkpoint, str(count)))
        assert killed.returncode == -signal.SIGKILL, (checkpoint, killed.stdout + killed.stderr)
        assert (pool.state / RECORD).exists()
    assert "a temporary device is still part of the pool" in pool.findings()["unallocated"]
    done = pool.doctor("--fix", "room")
    assert done.returncode == 0, done.stdout + done.stderr
    assert pool.unallocated() > 40 * MIB
    pool.is_as_before(devices, sums)


@pytest.mark.slow
def test_after_a_restart_in_the_middle_it_attaches_the_file_again_and_goes_on(full: Callable[..., FullPool]) -> None:
    pool = full()
    devices, sums = btrfs.devices_of(pool.point), pool.sums()
    killed = pool.doctor("--fix", "room", kill=("die", "after", "block group balanced", "1"))
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    loop = work("losetup", "--noheadings", "--output", "NAME", "--associated", pool.state / "temporary-device-1").stdout.strip()
    btrfs.unmount(pool.point)  # a restart: neither mount nor loop device
    work("losetup", "--detach", loop)
    work("btrfs", "device", "scan", "--forget", loop, check=False)
    assert "Attach" not in pool.doctor().stdout
    attached = pool.doctor("--fix", "room")
    assert (attached.returncode, "is attached again" in attached.stderr) == (4, True), attached.stdout + attached.stderr
    work("mount", "-o", "noatime", devices[0], pool.point)
    done = pool.doctor("--fix", "room")
    assert done.returncode == 0, done.stdout + done.stderr
    pool.is_as_before(devices, sums)


@pytest.mark.slow
@pytest.mark.parametrize("named", [False, True])
def test_after_a_restart_under_another_name_it_empties_and_removes_the_device_that_it_has_added(
    full: Callable[..., FullPool], named: bool
) -> None:
    pool = full()
    devices, sums = btrfs.devices_of(pool.point), pool.sums()
    (folder := pool.place / "named").mkdir()
    image = (folder if named else pool.state) / "temporary-device-1"
    words: list[str | Path] = ["--fix", "room"]
    if named:
        with image.open("wb") as file:
            file.truncate(1 << 30)
        words += ["--device", btrfs.attach(image)]
    killed = pool.doctor(*words, kill=("die", "after", "block group balanced", "1"))
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    loop = work("losetup", "--noheadings", "--output", "NAME", "--associated", image).stdout.strip()
    if named:  # the disks have changed places: the recorded name is that of the pool's own one
        record = pool.state / RECORD
        record.write_text(record.read_text().replace(loop, devices[0]))
    else:  # the file was attached by another path, which the kernel reports
        btrfs.unmount(pool.point)
        work("losetup", "--detach", loop)
        work("btrfs", "device", "scan", "--forget", loop, check=False)
        work("mount", "--bind", image.parent, folder)
        loop = work("losetup", "--find", "--show", folder / image.name).stdout.strip()
        work("btrfs", "device", "scan", loop)
        work("mount", "-o", "noatime", devices[0], pool.point)
    try:
        done = pool.doctor("--fix", "room")
        assert done.returncode == 0, done.stdout + done.stderr
        assert sorted(re.findall(r" path (\S+)", work("btrfs", "filesystem", "show", pool.point).stdout)) == sorted(devices)
        assert pool.sums() == sums
        assert image.exists() == named
    finally:
        work("losetup", "--detach", loop)
        if not named:
            work("umount", folder)


@pytest.mark.slow
def test_a_file_that_the_pool_still_uses_is_never_deleted(full: Callable[..., FullPool]) -> None:
    pool = full()
    killed = pool.doctor("--fix", "room", kill=("die", "after", "block group balanced", "1"))
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    record = read_record(pool.state)
    assert record is not None
    write_record(pool.state, replace(record, added=("of no device",), is_returning=True))  # a wrong record
    refused = pool.doctor("--fix", "room")
    assert (refused.returncode, "is not deleted" in refused.stderr) == (1, True), refused.stdout + refused.stderr
    assert (pool.state / "temporary-device-1").exists()
    write_record(pool.state, record)
    assert pool.doctor("--fix", "room").returncode == 0


def test_what_is_in_doubt_is_refused_and_nothing_is_changed(full: Callable[..., FullPool]) -> None:
    pool = full()
    devices, sums = btrfs.devices_of(pool.point), pool.sums()
    image = pool.place / "other"
    with image.open("wb") as file:
        file.truncate(1 << 30)
    loop = btrfs.attach(image)
    try:
        work("mkfs.ext4", "-q", loop)
        for device, words in (
            (loop, "is not empty"),
            (devices[0], "in use"),
            (image, "is not a block device"),
            ("/dev/null", "is not a block device"),
        ):
            refused = pool.doctor("--fix", "room", "--device", device)
            assert (refused.returncode, words in refused.stderr) == (1, True), refused.stdout + refused.stderr
            assert "hint:" in refused.stderr
        work("wipefs", "-aq", loop)
        two = pool.doctor("--fix", "room", "--device", loop, "--device", devices[0])
        assert "needs 1 temporary device" in two.stderr
        pool.is_as_before(devices, sums)
        named = pool.doctor("--fix", "room", "--device", loop)  # it is empty now
        assert named.returncode == 0, named.stdout + named.stderr
        assert work("blkid", "--probe", loop, check=False).returncode == 2
    finally:
        work("losetup", "--detach", loop)
    pool.is_as_before(devices, sums)


def test_a_file_on_the_pool_itself_or_in_memory_is_refused(full: Callable[..., FullPool]) -> None:
    pool = full()
    (strange := pool.state / "temporary-device-1").write_text("of somebody else")
    refused = pool.doctor("--fix", "room")
    assert (refused.returncode, "exists already" in refused.stderr) == (1, True), refused.stdout + refused.stderr
    assert strange.read_text() == "of somebody else"
    strange.unlink()
    config = pool.place / "main.toml"
    text = config.read_text()
    for state, words in ((pool.point / "state", "is on the pool itself"), (pool.point.parent / "state", "is on tmpfs")):
        state.mkdir()
        config.write_text(text.replace(f"{pool.place}/state", str(state)))
        refused = pool.doctor("--fix", "room")
        assert refused.returncode == 1
        is_memory = work("findmnt", "-no", "FSTYPE", "-T", state).stdout.strip() == "tmpfs"
        assert words in refused.stderr or not is_memory, refused.stderr
