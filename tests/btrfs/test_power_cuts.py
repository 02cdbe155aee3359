"""The power is cut a hundred times, in what changes most: the short form of `python -m bench.power_cuts`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import cut_truth
from bench.cut_log import Replay, flushes, record
from bench.cut_worker import Order, Worker
from tests.beds import nbd, session, work

CUTS = 17  # of each
cached = pytest.mark.skipif(bool(nbd.why_not()), reason=f"left out: a disk with a write cache ({nbd.why_not()})")


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """One for all rounds of a session."""
    with Worker(session.folder(1 << 30)) as worker:
        yield worker


@pytest.mark.btrfs
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
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
def test_no_complete_backup_is_wrong_lost_or_invented_after_a_power_cut(worker: Worker, scenario: str, disks: str) -> None:
    found = worker.carry_out(Order(scenario, 1, disks, CUTS))
    assert found["defects"] == []
    assert found["cuts"] == CUTS


@pytest.mark.btrfs
@pytest.mark.timeout(900)
def test_a_program_without_its_last_sync_is_found_out(worker: Worker) -> None:
    for seed in range(1, 9):  # what waits may come to the disk by itself meanwhile
        found = worker.carry_out(Order("few", seed, "plain", 6, unsynced=True))
        if any("differs from its source" in line for line in found["defects"]):
            return
    pytest.fail(f"found nothing in {seed} rounds")


@pytest.mark.btrfs
def test_a_round_that_breaks_says_how_and_the_worker_goes_on(worker: Worker) -> None:
    for _ in range(2):
        with pytest.raises(ChildProcessError, match="KeyError: 'no such scenario'"):
            worker.carry_out(Order("no such scenario", 1, "plain", 1))


@pytest.mark.btrfs
def test_a_subvolume_is_another_when_a_byte_of_it_has_changed(shared_btrfs: Path) -> None:
    path = shared_btrfs / "backup"
    work("btrfs", "-q", "subvolume", "create", path)
    (path / "file").write_bytes(b"a" * 8192)
    work("btrfs", "property", "set", path, "ro", "true")
    cut_truth.commit(shared_btrfs)
    before = cut_truth.subvolume(path)
    shown = work("btrfs", "subvolume", "show", path).stdout
    assert f"Generation: \t\t{before.generation}\n" in shown
    assert f"Subvolume ID: \t\t{before.number}\n" in shown
    (shared_btrfs / "neighbour").write_bytes(b"b" * 8192)
    cut_truth.commit(shared_btrfs)
    assert cut_truth.subvolume(path) == before
    work("btrfs", "property", "set", path, "ro", "false")
    with (path / "file").open("r+b") as file:
        file.write(b"b")
    work("btrfs", "property", "set", path, "ro", "true")
    cut_truth.commit(shared_btrfs)
    assert cut_truth.subvolume(path) != before
    assert cut_truth.subvolume(path).flags == before.flags


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
