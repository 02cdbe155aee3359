"""A pool of two mirrored devices, one of them missing: everything works, or reports in a line why not; nothing is lost."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds import btrfs, work
from tests.beds.faults import leaves
from tests.beds.nights import Nights
from tests.beds.two_pools import NOW, TwoPools
from tests.beds.watch import disagreements

pytestmark = [pytest.mark.btrfs, pytest.mark.root]
MIRRORED = {"size": "300M", "devices": 2, "mkfs": ("-m", "raid1", "-d", "raid1")}
FILES = 800


def take_away_one(top: Path, *spoilt: int) -> None:
    """Mounts it `degraded` without its second device; overwrites the first one's copies of these tree blocks."""
    first, second = btrfs.devices_of(top)
    places = [place_on(first, block) for block in spoilt]
    btrfs.unmount(top)
    work("btrfs", "device", "scan", "--forget", first, second)
    work("losetup", "--detach", second)
    with Path(first).open("r+b") as disk:
        for place in places:
            disk.seek(place + 3000)
            disk.write(b"spoilt")
    work("blockdev", "--flushbufs", first)
    work("mount", "-t", "btrfs", "-o", "degraded", first, top)


def place_on(device: str, block: int) -> int:
    lines = work("btrfs-map-logical", "-l", str(block), device).stdout.splitlines()
    (words,) = (line.split() for line in lines if line.endswith(f"device {device}"))
    return int(words[words.index("physical") + 1])


def is_writable(top: Path) -> bool:
    return " rw," in next(line for line in Path("/proc/mounts").read_text().splitlines() if f" {top} " in line)


def lines(nights: Nights, *words: str, status: int = 0) -> list[str]:
    done = nights.backupd(*words, check=False)
    assert done.returncode == status, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return [line for line in (done.stdout + done.stderr).splitlines() if line]


def test_copies_proofs_and_restores_work_without_a_device_and_a_balance_says_why_it_does_not(
    make_btrfs: Callable[..., Path], tmp_path: Path
) -> None:
    two = TwoPools(make_btrfs(**MIRRORED), make_btrfs(**MIRRORED))
    names = [two.night(f"2026-03-{day:02}T22:00:00Z", f"{day}") for day in (1, 2)]
    two.fetch()
    names.append(two.night("2026-03-03T22:00:00Z", "3"))
    for side in (two.first, two.second):
        take_away_one(side.top)
    names.append(two.night("2026-03-04T22:00:00Z", "4"))
    assert [fetched_backup["backup"] for fetched_backup in two.fetch()[0]["fetched"]] == names[2:]
    for side in (two.first, two.second):
        assert "read" in lines(side, "verify", "--now", NOW)[-1]
        assert json.loads(side.backupd("list", "--json").stdout)[-1]["state"] == "complete"
        assert any("no errors" in line for line in lines(side, "scrub", status=1))
        lines(side, "dedupe", "--now", NOW)
        assert any("proven" in line for line in lines(side, "drill", "--now", NOW))
        lines(side, "rebuild")
        balanced = work(sys.executable, "-m", "balancer", "run", side.top, check=False)
        assert balanced.returncode == 4
        assert "1 device missing" in balanced.stderr.splitlines()[0]
        assert disagreements(side) == []
    assert [two.differences(name) for name in names] == [""] * 4
    lines(two.second, "restore", "web1", str(two.source), "--to", str(tmp_path))
    assert work("rsync", "-n", "-aHAXci", "--delete", f"{two.source}/", f"{tmp_path / two.source.name}/").stdout == ""


def test_damage_whose_other_copy_is_missing_costs_no_more_than_the_backup_that_has_it(make_btrfs: Callable[..., Path]) -> None:
    """Its deletion would make the pool read-only; its copy cannot be fetched; the host is complete from an older base."""
    two = TwoPools(make_btrfs(**MIRRORED), make_btrfs(size="300M"))
    first = two.first
    for day in (1, 2, 3):
        for number in range(FILES):
            (two.source / f"file-{number:06}").write_bytes(b"%d of %d" % (number, day))
        two.night(f"2026-03-{day:02}T22:00:00Z", f"{day}")
    old, damaged, last = names = two.names(first.pool)
    others = {leaf for name in (old, last) for leaf in leaves(first.pool / "hosts/web1" / name, first.top)}
    own = [leaf for leaf in leaves(first.pool / "hosts/web1" / damaged, first.top) if leaf not in others]
    take_away_one(first.top, own[len(own) // 2])
    answer = two.fetch(status=1)[0]
    assert damaged not in [fetched_backup["backup"] for fetched_backup in answer["fetched"]]
    assert len(answer["failed"]) == 1
    assert any(damaged in line for line in lines(first, "verify", "--now", NOW, status=1))
    first.backupd("delete", f"web1@{damaged}", "--why", "a test")
    assert any(damaged in line for line in lines(first, "expire", "web1", "--skip-grace", "--now", NOW, status=1))
    work("btrfs", "filesystem", "sync", first.top)
    work("btrfs", "subvolume", "sync", first.top)
    assert two.names(first.pool) == names
    assert is_writable(first.top)
    new = two.night("2026-03-21T22:00:00Z", "4")
    assert first.differences("web1", two.source) == []
    assert new not in names
    scrubbed = first.backupd("scrub", check=False)
    assert scrubbed.returncode == 1
    assert "uncorrectable" in scrubbed.stdout
    assert is_writable(first.top)
