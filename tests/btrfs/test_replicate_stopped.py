"""A `btrfs receive` that hangs, as on a frozen pool: the signal that ends a replication still ends it."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.beds.two_pools import TwoPools, shown
from tests.beds.watch import wait_for

pytestmark = [pytest.mark.btrfs, pytest.mark.slow]


@pytest.mark.parametrize("size", [100, 5_000_000], ids=["between two streams", "within a stream"])
def test_a_receiver_that_reads_nothing_does_not_keep_a_replication_from_its_end(two: TwoPools, size: int) -> None:
    (two.source / "large").write_bytes(os.urandom(size))
    names = [two.night(f"2026-03-0{day}T22:00:00Z", chr(96 + day)) for day in (1, 2)]
    with two.replicating(two.second.top / "copy", "while [ $SECONDS -lt 250 ]; do :; done") as fetching:
        two.wait_for_streams(1)
        time.sleep(2)
        fetching.send_signal(signal.SIGTERM)
        output = fetching.communicate(timeout=100)[1]
    assert "Traceback" not in output, output
    assert not (two.second.pool / "hosts/web1/.receiving").exists()
    assert two.fetch()[0]["planned"] == 2
    assert two.names(two.second.pool) == names


def test_a_receiver_that_stops_after_its_last_stream_does_not_keep_a_replication_from_its_end(two: TwoPools) -> None:
    name = two.night("2026-03-01T22:00:00Z", "a")
    host = two.second.pool / "hosts/web1"
    host.mkdir()
    receives = 'cd "${!#}/.."; ./btrfs "$@"; while [ $SECONDS -lt 250 ]; do :; done'
    with two.replicating(host / "btrfs", receives) as fetching:  # where the cell sees it
        wait_for(lambda: is_marked(host / ".receiving/backup"), 60, "nothing came")
        time.sleep(0.5)
        fetching.send_signal(signal.SIGTERM)
        output = fetching.communicate(timeout=100)[1]
    assert fetching.returncode == 143, output
    assert "Traceback" not in output, output
    assert not (host / ".receiving").exists()
    assert two.fetch()[0]["status"] == 0
    assert two.names(two.second.pool) == [name]


def is_marked(path: Path) -> bool:
    return path.exists() and shown(path).get("Received UUID", "-") != "-"
