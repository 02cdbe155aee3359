"""The soak: its verdict about invented nights, the faults that it draws, and one small run with planted defects.

If it is blind, a leak of memory or space, or a backup that differs from its source, passes weeks of nights unseen.
"""

import random
import re
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backupd.rehearse.fill import Change, ChangeFile, DeleteFile, WriteFile
from bench.soak import COMMANDS, Soak
from bench.soak_faults import SERVER_OFF, Fault
from bench.soak_held import HeldExtents
from bench.soak_look import must_be_kept
from bench.soak_picture import draw
from bench.soak_site import Hosts, Site, Truth
from bench.soak_verdict import CREEPS, LIMITS, STEADY, judged, trend
from tests.beds import session, work

MEMORY = 60.0  # MB


def noisy(seed: int, nights: int, leak: float = 0.0) -> list[float]:
    """Returns MB of memory that vary by 1 % from night to night; each night's noise depends partly on the night before. `leak` MB
    are added each night.
    """
    draw, noise, result = random.Random(seed), 0.0, []
    for night in range(nights):
        noise = 0.5 * noise + draw.gauss(0, MEMORY / 100)
        result.append(MEMORY + noise + leak * night)
    return result


def as_nights(memory: list[float], history: int = 300) -> list[dict[str, Any]]:
    """Returns readings of 100 hosts. Only the memory of `run` changes, and the catalogue grows by `history` bytes for each host."""
    done = {"seconds": 5.0, "cpu": 1.0, "memory": 40.0, "status": 0}
    same = {**dict.fromkeys(("score", "fragments", "allocated", "used", "backups"), 1000), "size": 2000, "held": 500}
    return [
        {
            "night": night,
            "commands": {**dict.fromkeys(COMMANDS, done), "run": {**done, "memory": value}},
            **same,
            "catalogue": 5_000_000 + night * 100 * history,
        }
        for night, value in enumerate(memory)
    ]


def test_a_planted_leak_is_found_and_nothing_else_is_called_creeping() -> None:
    """A quarter of a MB each night, 40 % in 100 nights; 10 % are allowed."""
    result = judged(as_nights(noisy(1, 60, leak=0.25)), COMMANDS, 100)
    assert {name for name, trend in result.items() if trend["verdict"] == CREEPS} == {"run: memory"}
    assert {trend["verdict"] for name, trend in result.items() if name != "run: memory"} == {STEADY}
    assert result["run: memory"]["low"] > LIMITS["memory"]
    assert result["run: memory"]["growth"] == pytest.approx(100 * 0.25 / MEMORY, rel=0.3)


def test_an_extent_is_held_as_a_whole_as_a_filesystem_holds_it(module_btrfs: Path) -> None:
    """Compared with the figures of btrfs for the same changes in snapshots."""
    held, moments = HeldExtents(), [datetime(2024, 1, day, tzinfo=UTC) for day in range(1, 5)]
    block = 16384
    nights: tuple[tuple[Change, ...], ...] = (
        (WriteFile("a", 8 * block), WriteFile("b", 3 * block)),
        (ChangeFile("a", 8 * block, ((0, block), (4 * block, 2 * block))), DeleteFile("b")),
        (ChangeFile("a", 8 * block, ((block, 3 * block), (6 * block, block))),),
        (ChangeFile("a", 8 * block, ((7 * block, block),)),),
    )
    live = module_btrfs / "live"
    work("btrfs", "subvolume", "create", live)
    for moment, changes in zip(moments, nights, strict=True):
        for change in changes:
            held.change("web", change)
            match change:
                case WriteFile():
                    (live / change.name).write_bytes(random.randbytes(change.size))
                case DeleteFile():
                    (live / change.name).unlink()
                case ChangeFile():
                    with (live / change.name).open("r+b") as file:
                        for offset, length in change.pieces:
                            file.seek(offset)
                            file.write(random.randbytes(length))
        held.note("web", moment)
        work("btrfs", "filesystem", "sync", module_btrfs)
        work("btrfs", "subvolume", "snapshot", "-r", live, module_btrfs / f"{moment.day}")
    work("btrfs", "subvolume", "delete", live)
    for first in range(4):
        assert held.bytes_of("web", moments[first:]) == sum(extents(module_btrfs, range(first + 1, 5)).values())
    assert held.bytes_of("web", moments[2:3]) == 15 * block  # of a file of 8


def extents(top: Path, days: Iterable[int]) -> dict[int, int]:
    """Returns the extents of which the snapshots have a part, and their whole sizes, according to the trees on the disk."""
    device = work("findmnt", "-n", "-o", "SOURCE", "-T", top).stdout.strip().partition("[")[0]
    result: dict[int, int] = {}
    for day in days:
        number = work("btrfs", "inspect-internal", "rootid", top / str(day)).stdout.strip()
        dumped = work("btrfs", "inspect-internal", "dump-tree", "-t", number, device).stdout
        for at, size in re.findall(r"extent data disk byte ([1-9]\d*) nr (\d+)", dumped):
            result[int(at)] = int(size)
    return result


@pytest.mark.slow
def test_noise_that_lasts_for_days_is_not_called_creeping() -> None:
    verdicts = Counter(trend_of_noise.verdict for seed in range(20) if (trend_of_noise := trend(noisy(seed, 36), LIMITS["memory"])))
    assert verdicts[CREEPS] == 0
    assert verdicts[STEADY] >= 15


def test_what_must_be_kept_is_the_first_of_the_newest_days_and_weeks_and_the_newest() -> None:
    days = [f"2024-01-{day:02}" for day in range(1, 31)]
    names = [f"{day}T{hour}Z" for day in days for hour in ("220001", "233000")]
    weeks = ["2024-01-15T220001Z", "2024-01-22T220001Z", "2024-01-29T220001Z"]  # Mondays
    daily = [f"{day}T220001Z" for day in days[-7:]]
    assert must_be_kept(names) == {*weeks, *daily, "2024-01-30T233000Z"}
    assert must_be_kept(names[:1]) == {names[0]}


def test_a_backup_is_compared_with_what_its_source_was_then() -> None:
    truth, first = Truth(), datetime(2024, 1, 1, tzinfo=UTC)
    for day, content in enumerate("abc"):
        truth.note("web", first + timedelta(days=day), {"file": (content,)})
    assert truth.at("web", first) == {"file": ("a",)}
    assert truth.at("web", first + timedelta(days=1, hours=23)) == {"file": ("b",)}
    assert truth.at("web", first + timedelta(days=9)) == {"file": ("c",)}


NIGHTS = (
    (),
    (Fault("run killed", 0, 0.4), Fault("unreadable file", 1, 0), Fault("source away", 2, 0)),
    (Fault("state full", 0, 0), Fault("expire killed", 0, 0.6), Fault("replicate killed", 0, 0.6)),
    (Fault("pool full", 0, 0.2), Fault("host unreachable", 1, 0), Fault("balance killed", 0, 0), Fault("unreadable file", 3, 0)),
    (Fault("catalogue lost", 0, 0), Fault("connection lost", 3, 0.3)),
    (Fault(SERVER_OFF, 0, 0),),
    (),
    (),
)


@pytest.fixture
def soak() -> Iterator[Soak]:
    """A soak of four hosts, of which three are in the second pool."""
    folder = Path(tempfile.mkdtemp(prefix="soak-", dir=session.folder(4 << 30)))
    beds = [folder]
    try:
        hosts = Hosts(4, 12, 1)
        beds.append(hosts.sources.parent)
        site = Site(hosts, 3, "1GiB", folder)
        beds += [pool.top.parent for pool in site.pools]
        yield Soak(site, NIGHTS)
    finally:
        for bed in beds:
            assert session.remove(bed) == []


@pytest.mark.long
@pytest.mark.btrfs
@pytest.mark.root
@pytest.mark.timeout(900)
def test_a_tiny_soak_runs_through_and_finds_what_is_planted_afterwards(soak: Soak, tmp_path: Path) -> None:
    """Only this test has kills, faults of hosts and full disks in one sequence of nights, on real pools."""
    readings = list(soak.run())
    assert soak.wrong == []
    assert [set(reading["faults"]) for reading in readings] == [{fault.kind for fault in faults} for faults in NIGHTS]
    draw(readings, tmp_path / "soak.svg")
    words = [text.text for text in ET.parse(tmp_path / "soak.svg").iter("{http://www.w3.org/2000/svg}text")]
    assert {"peak of memory, MB", "faults", *(fault.kind for faults in NIGHTS for fault in faults)} <= set(words)
    soak.settle()
    assert soak.wrong == []

    pool, names = soak.site.first, soak.site.hosts.names
    changed, gone = (pool.backup(name) for name in names[:2])
    work("btrfs", "property", "set", "-f", changed, "ro", "false")
    next(path for path in sorted((changed / "data").rglob("file*")) if path.is_file()).write_bytes(b"planted")
    work("btrfs", "property", "set", changed, "ro", "true")
    work("btrfs", "subvolume", "delete", gone)
    pool.backup(names[2], ".working").mkdir()
    work("mount", "-o", "remount,ssd", pool.top)
    soak.settle()
    result = "\n".join(soak.wrong)
    assert f"{names[0]}/{changed.name} is called complete and differs from its source" in result
    assert f"pool 1, {names[1]}: left [], lost ['{gone.name}']" in result
    assert f"hosts/{names[2]}/.working" in result
    assert "which was" in result
