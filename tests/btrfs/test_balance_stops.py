"""A run on a real filesystem that ends for any reason at any time leaves nothing in the kernel, and disturbs no other program."""

import errno
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import btrfs as python_btrfs
import pytest

from balancer import balancing, relocation
from balancer import stop_rules as stops
from balancer.balancing import Balancing
from balancer.contention import backups_at_work, lock_folders
from balancer.run_types import BalanceOutcome, RoomFloor, RunSettings, StopReason
from btrkeep.errors import LockHeld
from btrkeep.pool.balance_ioctl import balance_block_group, exclusive_operation
from btrkeep.pool.locks import take_lock
from btrkeep.procfs import IoPressure
from tests.beds import btrfs, work
from tests.beds.balancing import (
    DATA,
    NO_TIME,
    QUICK,
    Seen,
    balance,
    checksum,
    churn,
    ended,
    foreign,
    fragmented,
    fullest,
    groups,
    nothing_is_left,
    planned,
    start,
    until,
)
from tests.beds.watch import wait_for

pytestmark = [pytest.mark.btrfs, pytest.mark.root]


# --- whatever happens

MOMENTS = ("before:SIGTERM:1", "after:SIGTERM:1", "progress:SIGTERM:1", "progress:SIGINT:1", "step_begins:SIGTERM:1")


@pytest.mark.parametrize("when", MOMENTS)
def test_a_signal_while_a_block_group_moves_ends_the_run_and_leaves_nothing(bed: Path, when: str) -> None:
    rows = ended(start(bed, when))
    assert rows[-1]["event"] == "ends"
    assert (rows[-1]["ending"], rows[-1]["signal"]) == ("stopped", getattr(signal, when.split(":")[1]))
    assert rows[-1]["steps"] == 1
    nothing_is_left(bed)


@pytest.mark.parametrize("when", ["look:SIGTERM:1", "begins:SIGHUP:1"])
def test_a_signal_before_the_first_block_group_begins_none(bed: Path, when: str) -> None:
    before = groups(bed)
    rows = ended(start(bed, when))
    assert [row["event"] for row in rows] == ["begins", "ends"]
    used = {vaddr for vaddr, group in before.items() if group[2]}
    assert used <= set(groups(bed)) <= set(before)  # the kernel drops those that have become empty when it likes
    nothing_is_left(bed)


def test_what_is_cancelled_stays_where_it_is(bed: Path) -> None:
    """The largest block group takes some tenths of a second, and the signal comes at its start: on a busy machine it is sometimes
    late.
    """
    for _ in range(8):
        fragmented(bed)
        files, before = checksum(bed), groups(bed)
        rows = ended(start(bed, "before:SIGTERM:1"))
        end = next(row for row in rows if row["event"] == "step_ends")
        assert end["outcome"] in ("cancelled", "done")
        if end["outcome"] == "cancelled":
            break
    assert (end["outcome"], end["moved"]) == ("cancelled", 0)
    assert [row["event"] for row in rows if row["event"] != "progress"] == [
        "begins",
        "step_begins",
        "stopping",
        "step_ends",
        "ends",
    ]
    assert end["vaddr"] in groups(bed)
    assert groups(bed)[end["vaddr"]][2] == before[end["vaddr"]][2]
    assert checksum(bed) == files
    nothing_is_left(bed)


def test_a_second_signal_changes_nothing(bed: Path) -> None:
    for _ in range(8):  # a small block group may be balanced before the signal is noticed
        fragmented(bed)
        process = start(bed, "before:SIGTERM:1")
        with suppress(AssertionError):
            until(process, "stopping")
            break
        process.wait(60)
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
    assert ended(process)[-1]["ending"] == "stopped"
    nothing_is_left(bed)


@pytest.mark.parametrize("when", ["before:SIGKILL:1", "progress:SIGKILL:1", "step_ends:SIGKILL:1"])
def test_killed_outright_it_leaves_nothing_in_the_kernel(bed: Path, when: str) -> None:
    files = checksum(bed)
    ended(start(bed, when), -signal.SIGKILL)
    nothing_is_left(bed)
    assert checksum(bed) == files


def test_an_observer_that_fails_ends_the_run_with_the_balance_cancelled(bed: Path) -> None:
    def fail() -> None:
        raise RuntimeError("a bug")

    before, chosen = threading.active_count(), planned(bed)[0].vaddr
    with pytest.raises(RuntimeError):
        balance(bed, Seen("progress", fail))
    assert threading.active_count() == before
    assert chosen in groups(bed)
    nothing_is_left(bed)


@pytest.mark.parametrize(("verb", "words"), [("cancel", "cancelled"), ("pause", "paused")])
def test_who_cancels_or_pauses_our_balance_ends_the_run(bed: Path, verb: str, words: str) -> None:
    """By the btrfs program; a paused balance does not remain paused."""
    seen = Seen("step_begins", threading.Thread(target=from_outside, args=(bed, verb)).start)
    report = balance(bed, seen)
    assert report.reason is StopReason.SIGNAL
    assert words in report.why
    assert report.signal is None
    nothing_is_left(bed)


def from_outside(point: Path, verb: str) -> None:
    wait_for(lambda: exclusive_operation(point) == "balance", pause=0.005)
    work("btrfs", "balance", verb, point, check=False)


@pytest.mark.parametrize("ending", [StopReason.TIME, StopReason.WINDOW])
def test_time_and_window_cancel_what_is_under_way(bed: Path, monkeypatch: pytest.MonkeyPatch, ending: StopReason) -> None:
    """When the first block group begins to move, its clock advances by two hours."""
    later = [0.0]
    monkeypatch.setattr(balancing, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + later[0]))
    monkeypatch.setattr(balancing, "datetime", SimpleNamespace(now=lambda zone: datetime.now(zone) + timedelta(seconds=later[0])))
    limit = {"time": 3600.0} if ending is StopReason.TIME else {"until": datetime.now(UTC) + timedelta(hours=1)}
    begins = Seen("step_begins", lambda: later.append(later.pop() + 7200))
    report = Balancing(bed, RunSettings(**QUICK, **limit), NO_TIME, [begins]).run()
    assert report.reason is ending
    assert [step.outcome for step in report.steps] == [BalanceOutcome.CANCELLED]
    nothing_is_left(bed)


def test_one_that_should_take_longer_than_there_is_time_is_not_begun(bed: Path) -> None:
    estimated = planned(bed)[0].estimate.seconds
    report = balance(bed, time=estimated / 2)
    assert (report.reason, report.steps) == (StopReason.TIME, ())


def test_without_room_to_spare_nothing_is_begun(bed: Path) -> None:
    report = balance(bed, min_unallocated=RoomFloor(1 << 40, 1.0))
    assert (report.reason, report.steps) == (StopReason.UNALLOCATED, ())


def test_one_without_room_is_set_aside_and_two_in_a_row_end_it(bed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_fd: int, vaddr: int, _flags: int) -> int:
        tried.append(vaddr)
        raise OSError(errno.ENOSPC, "No space left on device")

    tried: list[int] = []
    monkeypatch.setattr(relocation, "balance_block_group", full)
    monkeypatch.setattr(stops, "_MOST_WITHOUT_SPACE", 2)
    report = balance(bed)
    assert len(tried) == len(set(tried)) == 2
    assert report.reason is StopReason.NO_SPACE
    assert {step.outcome for step in report.steps} == {BalanceOutcome.NO_SPACE}


# --- others


def test_a_paused_balance_of_another_program_is_refused_in_one_line_and_not_changed(bed: Path) -> None:
    chosen = fullest(bed)
    other = foreign(bed, chosen)
    work("btrfs", "balance", "pause", bed)
    other.communicate(timeout=60)
    assert exclusive_operation(bed) == "balance paused"
    for wait in (False, True):  # it might stay so for ever
        with pytest.raises(LockHeld, match=f"a balance of the block group at {chosen} is paused") as refused:
            balance(bed, wait_for_others=wait)
        assert f"btrfs balance cancel {bed}" in refused.value.hint
    assert "paused" in work("btrfs", "balance", "status", bed, check=False).stdout
    work("btrfs", "balance", "cancel", bed)
    nothing_is_left(bed)


def test_a_running_balance_of_another_program_is_refused_and_named_or_waited_for(
    bed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balancing, "_LOOK_AGAIN", 0.1)
    other = foreign(bed, fullest(bed))
    with pytest.raises(LockHeld, match=rf"balance is running, by process {other.pid}: btrfs balance start"):
        balance(bed)
    seen = Seen("waits", lambda: other.communicate(timeout=60))
    report = balance(bed, seen, wait_for_others=True, budget=1)
    assert seen.events()[:2] == ["begins", "waits"]
    assert report.reason is StopReason.BUDGET
    nothing_is_left(bed)


def test_a_device_being_removed_keeps_balances_out(make_btrfs: Callable[..., Path]) -> None:
    """The kernel then refuses with a positive number, which is not an error for a caller that does not check it."""
    point = make_btrfs(size="700M", devices=2, mkfs=("-m", "single", "-d", "single"))
    churn(point, 5000, 8)
    chosen, device = fullest(point), btrfs.devices_of(point)[0]
    removing = subprocess.Popen(["btrfs", "device", "remove", device, str(point)])
    try:
        wait_for(lambda: exclusive_operation(point) == "device remove", pause=0.005)
        with python_btrfs.FileSystem(str(point)) as filesystem, pytest.raises(OSError) as refused:
            balance_block_group(filesystem.fd, chosen, DATA)
        with pytest.raises(LockHeld, match=f"device remove is running, by process {removing.pid}: btrfs device remove {device}"):
            balance(point)
    finally:
        assert removing.wait(timeout=60) == 0
    assert refused.value.errno == errno.EINPROGRESS


def test_two_runs_do_not_meet(bed: Path) -> None:
    refused: list[LockHeld] = []

    def another() -> None:
        if not refused:
            with pytest.raises(LockHeld, match="balance is running") as held:
                balance(bed)
            refused.append(held.value)

    report = balance(bed, Seen("progress", another), budget=200 << 20)
    assert refused
    assert report.steps[0].outcome is BalanceOutcome.DONE
    nothing_is_left(bed)


def test_backups_that_begin_cancel_it_and_a_lock_of_a_moment_does_not(bed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balancing, "_LOOK_FOR_OTHERS", 0.05)
    locks = bed / ".btrkeep" / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    assert backups_at_work(lock_folders(bed, work("findmnt", "-no", "UUID", bed).stdout.strip())) is None
    held = []
    seen = Seen("step_begins", lambda: held.append(take_lock(locks / "host-web", "backupd run", "2026-11-20T22:00:00Z")))
    report = balance(bed, seen)
    assert report.reason is StopReason.BACKUPS
    assert report.why == f"backups come first: backupd run (process {os.getpid()})"
    assert "stopping" in seen.events()
    held[0].release()
    nothing_is_left(bed)

    with take_lock(locks / "expire", "backupd expire", "2026-11-20T22:00:00Z"):
        assert balance(bed).steps == ()
        assert balance(bed, yield_to_backups=False, budget=1).reason is StopReason.BUDGET
        with monkeypatch.context() as patched:
            patched.setattr(balancing, "_LOOK_AGAIN", 0.05)
            report = balance(bed, seen := Seen(), wait_for_others=True, patience=0.2)
            assert (report.reason, report.steps) == (StopReason.BACKUPS, ())
            assert set(seen.events()) == {"begins", "waits", "ends"}
    (locks / "night").write_text("what a killed run left")
    assert balance(bed, budget=1).reason is StopReason.BUDGET


def test_pressure_on_the_disks_is_waited_for_and_then_ends_it(bed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "io"
    total = iter(range(0, 10**12, 10**9))  # much more each time it is read: far beyond all of the time
    monkeypatch.setattr(IoPressure, "total", lambda _self: next(total))
    monkeypatch.setattr(balancing, "_LOOK_AGAIN", 0.05)
    report = balance(bed, seen := Seen(), max_pressure=0.4, patience=0.2)
    assert (report.reason, report.steps) == (StopReason.PRESSURE, ())
    assert "waits" in seen.events()
    monkeypatch.undo()
    assert IoPressure(path).share() is None
    path.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
    clock = [1000.0]
    monkeypatch.setattr("btrkeep.procfs.time", SimpleNamespace(monotonic=lambda: clock[0]))
    pressure = IoPressure(path)
    clock[0] += 0.05
    path.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=1020000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
    assert pressure.share() == pytest.approx(0.4)
