"""The power is cut a hundred times, in what changes most: the short form of `python -m bench.power_cuts`."""

import json
import sys
from typing import Any

import pytest

from tests.beds import TOP, nbd, session, work

CUTS = 20  # of each
cached = pytest.mark.skipif(bool(nbd.why_not()), reason=f"left out: a disk with a write cache ({nbd.why_not()})")


def cut(scenario: str, *words: str) -> dict[str, Any]:
    given = ("--round", "--only", scenario, "--in-a-round", str(CUTS), "--image-dir", str(session.folder(1 << 30)))
    return dict(json.loads(work(sys.executable, "-m", "bench.power_cuts", *given, *words, cwd=TOP, timeout=290).stdout))


@pytest.mark.btrfs
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("scenario", "disks"),
    [
        pytest.param("changed", "cached", marks=cached),
        ("continued", "plain"),
        ("expire", "plain"),
        pytest.param("notes", "cached", marks=cached),
        ("rename", "plain"),
    ],
)
def test_no_complete_backup_is_wrong_lost_or_invented_after_a_power_cut(scenario: str, disks: str) -> None:
    found = cut(scenario, "--disks", disks)
    assert found["defects"] == []
    assert found["cuts"] == CUTS


@pytest.mark.btrfs
@pytest.mark.timeout(300)
def test_a_program_without_its_last_sync_is_found_out() -> None:
    found = cut("few", "--disks", "plain", "--unsynced", "--in-a-round", "6")
    assert any("differs from its source" in line for line in found["defects"]), found
