"""The power is cut in what changes most: `python -m bench.power_cuts` with 30 cuts, or a hundred in the long form."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.cut_log import Replay, flushes, record
from tests.beds import TOP, nbd, session, work

CUTS, MANY_CUTS = 5, 17  # of each
cached = pytest.mark.skipif(bool(nbd.why_not()), reason=f"left out: a disk with a write cache ({nbd.why_not()})")


def cut(scenario: str, cuts: int, *words: str) -> dict[str, Any]:
    given = ("--round", "--only", scenario, "--in-a-round", str(cuts), "--image-dir", str(session.folder(1 << 30)))
    return dict(json.loads(work(sys.executable, "-m", "bench.power_cuts", *given, *words, cwd=TOP, timeout=590).stdout))


each_scenario = pytest.mark.parametrize(
    ("scenario", "disks"),
    [
        pytest.param("changed", "cached", marks=cached),
        ("continued", "plain"),
        ("expire", "plain"),
        pytest.param("notes", "cached", marks=cached),
        pytest.param("rename", "recorded", marks=cached),
        ("suspect", "plain"),
    ],
)


@pytest.mark.btrfs
@pytest.mark.timeout(300)
@each_scenario
def test_no_complete_backup_is_wrong_lost_or_invented_after_a_power_cut(scenario: str, disks: str) -> None:
    found = cut(scenario, CUTS, "--disks", disks)
    assert found["defects"] == []
    assert found["cuts"] == CUTS


@pytest.mark.long
@pytest.mark.btrfs
@pytest.mark.timeout(600)
@each_scenario
def test_nor_is_one_after_any_of_many(scenario: str, disks: str) -> None:
    """More moments of the same; each takes a second of processor time."""
    found = cut(scenario, MANY_CUTS, "--disks", disks)
    assert found["defects"] == []
    assert found["cuts"] == MANY_CUTS


@pytest.mark.btrfs
@pytest.mark.timeout(300)
def test_a_program_without_its_last_sync_is_found_out() -> None:
    found = cut("few", 6, "--disks", "plain", "--unsynced")
    assert any("differs from its source" in line for line in found["defects"]), found


@pytest.mark.btrfs
def test_a_replay_is_each_disk_as_it_was_at_a_flush(shared_btrfs: Path) -> None:
    images, log = [shared_btrfs / "one", shared_btrfs / "two"], shared_btrfs / "log"
    for image in images:
        image.write_bytes(bytes(8192))
    one, two = record(log, images)
    one.write(0, b"a" * 4096)
    one.flush()  # before the first mark, so nobody asks for it
    one.mark(0, "before it")
    two.write(4096, b"b" * 4096)
    two.flush()
    one.mark(1, "after it")
    one.write(0, b"c" * 100)
    one.flush()
    one.write(0, b"never flushed")
    found = list(flushes(log))
    assert [(flush.step, flush.moment) for flush in found] == [(0, "before it"), (1, "after it")]
    replay, copies = Replay(log, images), [shared_btrfs / "first", shared_btrfs / "second"]
    seen = []
    for flush in found:
        replay.copies(flush.number, copies)
        seen.append([copy.read_bytes() for copy in copies])
    second = bytes(4096) + b"b" * 4096
    assert seen == [[b"a" * 4096 + bytes(4096), second], [b"c" * 100 + b"a" * 3996 + bytes(4096), second]]
