"""The power is cut a hundred times, in what changes most: the short form of `python -m bench.power_cuts`."""

import json
import sys

import pytest

from tests.beds import TOP, session, work

CUTS = 20  # of each


@pytest.mark.btrfs
@pytest.mark.timeout(180)
@pytest.mark.parametrize("scenario", ["changed", "continued", "expire", "notes", "rename"])
def test_no_complete_backup_is_wrong_lost_or_invented_after_a_power_cut(scenario: str) -> None:
    words = ("--round", "--only", scenario, "--in-a-round", str(CUTS), "--image-dir", str(session.folder(1 << 30)))
    found = json.loads(work(sys.executable, "-m", "bench.power_cuts", *words, cwd=TOP, timeout=170).stdout)
    assert found["defects"] == []
    assert found["cuts"] == CUTS
