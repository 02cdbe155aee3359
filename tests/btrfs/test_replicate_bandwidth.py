"""`bandwidth` of a replica, whichever way the backups come, and the budget that it shares with the night."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds import TOP, work
from tests.beds.two_pools import TwoPools
from tests.btrfs.test_push import Pushing

pytestmark = [pytest.mark.btrfs, pytest.mark.slow]
SIZE = 3_000_000
DRAWN = """
import sys
from pathlib import Path
from backupd.rsync.bandwidth import prepare
from backupd.rsync.throttle import OpenBucket
print(OpenBucket(str(prepare(Path(sys.argv[1]), "pool", 1_000_000).path)).draw(12_000_000))
"""
LEAST = 1.2  # of 1.5 seconds for these bytes at 2 MB/s: a tenth may be caught up, and the last bytes are in pipes


def seconds(rows: list[dict[str, float]]) -> float:
    (by_name,) = rows
    assert by_name["bytes"] > SIZE
    return by_name["duration"]


@pytest.mark.parametrize("way", ["a folder", "ssh", "a connection from there"])
def test_a_stream_keeps_to_the_bandwidth_of_its_replica(make_btrfs: Callable[..., Path], way: str) -> None:
    two: TwoPools = (Pushing if way == "a connection from there" else TwoPools)(make_btrfs(), make_btrfs())
    (two.source / "large").write_bytes(os.urandom(SIZE))
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.second.tables["replica.office"]["bandwidth"] = "2MB"
    two.second.write()
    if way == "ssh":
        two.over_ssh('exec "$@"')
    answer = two.push()["sent"] if isinstance(two, Pushing) else two.fetch()[0]["fetched"]
    assert seconds(answer) > LEAST
    assert two.differences(first) == ""


@pytest.mark.parametrize(("way", "waits"), [("ssh", True), ("a folder", False)])
def test_what_comes_over_a_network_shares_the_budget_of_the_night(make_btrfs: Callable[..., Path], way: str, waits: bool) -> None:
    """Other transfers, as of a night, use the whole budget of the next seconds."""
    two = TwoPools(make_btrfs(), make_btrfs())
    two.night("2026-03-01T22:00:00Z", "a")
    two.second.settings("backup", bandwidth="1MB")
    if way == "ssh":
        two.over_ssh('exec "$@"')
    two.fetch("--dry-run")
    until = int(work(sys.executable, "-c", DRAWN, two.second.pool / ".btrkeep/bandwidth", cwd=TOP).stdout)
    two.fetch()
    assert (time.monotonic_ns() >= until) == waits
