"""An expiry and btrfs-balancer never work on the same pool at once, in either order; checked by locks and by btrfs."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from balancer.balancing import Balancing
from balancer.contention import backups_at_work, lock_out_expiries
from balancer.run_types import RunSettings, StopReason
from btrkeep.errors import LockHeld
from btrkeep.pool.locks import BALANCE_LOCK, take_lock
from tests.beds import backupd_start
from tests.beds.balancing import QUICK, Seen, balance, fragmented, nothing_is_left
from tests.beds.expiries import LATER, NOW, Expiries, at
from tests.beds.watch import rows, wait_for

pytestmark = [pytest.mark.btrfs, pytest.mark.root]
SINCE = "2026-03-20T22:00:00Z"


def waits_for_balance(pool: Expiries) -> bool:
    """Returns True if an expiry has recorded that it pauses for a balance."""
    return rows(pool, "select paused from expiry where outcome is null") == [("a balance is stopping",)]


def test_an_expiry_deletes_nothing_while_a_block_group_is_balanced(shared_btrfs: Path) -> None:
    pool = Expiries(shared_btrfs)
    pool.history("web1")
    pool.expire(NOW)
    going = pool.marked("web1")
    assert going
    with lock_out_expiries([pool.pool / ".btrkeep" / "locks"], NOW):  # as btrfs-balancer holds it
        process = backupd_start("--config", pool.config, "expire", *at(LATER))
        try:
            wait_for(lambda: waits_for_balance(pool))
            time.sleep(0.5)  # nothing may happen
            assert (
                backups_at_work([pool.pool / ".btrkeep" / "locks"], only_expiry=True) == f"backupd expire (process {process.pid})"
            )
            assert set(going) <= set(pool.left("web1"))
        except BaseException:
            process.kill()
            raise
    assert process.wait(timeout=60) == 0, process.communicate()
    process.communicate()
    assert not set(going) & set(pool.left("web1"))


def test_an_expiry_that_waits_for_a_balance_can_be_stopped(shared_btrfs: Path, backupd_running: Callable[..., Any]) -> None:
    pool = Expiries(shared_btrfs)
    pool.history("web1")
    pool.expire(NOW)
    before = pool.left("web1")
    with take_lock(pool.pool / ".btrkeep" / "locks" / BALANCE_LOCK, "btrfs-balancer", SINCE):
        process = backupd_running("--config", pool.config, "expire", *at(LATER))
        wait_for(lambda: waits_for_balance(pool))
        process.terminate()
        assert process.wait(timeout=60) == 143
    assert pool.left("web1") == before


def test_no_block_group_is_begun_while_an_expiry_deletes(make_btrfs: Callable[..., Path]) -> None:
    point = fragmented(make_btrfs(size="900M", mkfs=("-m", "single")))
    locks = point / ".btrkeep" / "locks"
    locks.mkdir(parents=True)
    held = take_lock(locks / BALANCE_LOCK, "backupd expire", SINCE)  # it was started after the last check of the other lock
    report = balance(point)
    assert (report.reason, report.steps) == (StopReason.BACKUPS, ())
    assert "backupd expire" in report.why
    released = Seen("waits", held.release)
    report = balance(point, released, wait_for_others=True, patience=0.5, budget=200 << 20)
    assert report.steps
    assert "waits" in released.events()

    with take_lock(locks / "night", "backupd run", SINCE):
        assert balance(point, budget=1).reason is StopReason.BACKUPS
        assert balance(point, only_to_expiry=True, budget=1).reason is StopReason.BUDGET
    with take_lock(locks / "expire", "backupd expire", SINCE):
        assert balance(point, only_to_expiry=True, budget=1).reason is StopReason.BACKUPS
    nothing_is_left(point)


def test_the_lock_is_held_while_a_block_group_moves_and_free_again_afterwards(make_btrfs: Callable[..., Path]) -> None:
    point = fragmented(make_btrfs(size="900M", mkfs=("-m", "single")))
    locks = point / ".btrkeep" / "locks"
    locks.mkdir(parents=True)
    refused: list[str] = []

    def try_balance_lock() -> None:
        with pytest.raises(LockHeld) as error:
            take_lock(locks / BALANCE_LOCK, "backupd expire", SINCE)
        refused.append(error.value.message)

    Balancing(point, RunSettings(**{**QUICK, "budget": 200 << 20}), sinks=[Seen("progress", try_balance_lock)]).run()
    assert refused
    assert all("btrfs-balancer" in text for text in refused)
    take_lock(locks / BALANCE_LOCK, "backupd expire", SINCE).release()
