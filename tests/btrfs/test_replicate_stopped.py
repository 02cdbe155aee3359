"""A `btrfs receive` that goes on no more, as on a frozen pool: the signal that ends a replication ends it all the same."""

import os
import signal
import time

import pytest

from tests.beds.two_pools import TwoPools

pytestmark = [pytest.mark.btrfs, pytest.mark.slow]


@pytest.mark.parametrize("size", [100, 5_000_000], ids=["between two streams", "within a stream"])
def test_a_receiver_that_reads_nothing_does_not_keep_a_replication_from_its_end(two: TwoPools, size: int) -> None:
    (two.source / "large").write_bytes(os.urandom(size))
    names = [two.night(f"2026-03-0{day}T22:00:00Z", chr(96 + day)) for day in (1, 2)]
    with two.replicating(two.second.top / "copy", "while [ $SECONDS -lt 90 ]; do :; done") as fetching:
        two.wait_for_streams(1)
        time.sleep(2)
        fetching.send_signal(signal.SIGTERM)
        said = fetching.communicate(timeout=40)[1]
    assert "Traceback" not in said, said
    assert not (two.second.pool / "hosts/web1/.receiving").exists()
    assert two.fetch()[0]["planned"] == 2
    assert two.names(two.second.pool) == names
