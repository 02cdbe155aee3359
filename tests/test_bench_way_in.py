"""The benches of imports and of shared data run through in a tiny size, tell what they should, and leave nothing.

Their figures mean nothing here.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.beds import TOP, session, work

pytestmark = [pytest.mark.long, pytest.mark.btrfs, pytest.mark.root]


def told(bench: str, *words: str | Path) -> Any:
    place = session.folder(5 << 30)
    done = work(sys.executable, "-m", bench, *words, "--quiet", "0", "--image-dir", place, "--json", cwd=TOP, timeout=110)
    assert not [*place.glob(f"{session.PREFIX}*")]
    return json.loads(done.stdout)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for number in range(20):
        (tmp_path / f"{number}").write_bytes(bytes([number]) * 70_000)
    return tmp_path


def test_the_bench_of_imports_runs_through() -> None:
    ratios = told("bench.import_", "--files", "50", "--kib", "8", "--days", "3", "--rounds", "1", "--names", "100")["ratios"]
    assert all(one["median"] > 0 for one in ratios.values())


def test_the_bench_of_equal_hosts_runs_through(source: Path) -> None:
    found = told("bench.siblings", "--source", source, "--hosts", "2")
    assert found["ratios"]["room of all to one"]["median"] > 0


def test_the_bench_of_ways_to_share_runs_through(source: Path) -> None:
    words = ("--hosts", "2", "--mib", "1", "--nights", "0", "1", "--ways", "share_with,index")
    found = told("bench.dedupe_ways", "--source", source, *words)
    ways = ["share_with, 0 snapshots of each", "index, 0 snapshots of each", "index, 1 snapshots of each"]
    assert [name for name in found if "snapshots" in name] == ways
