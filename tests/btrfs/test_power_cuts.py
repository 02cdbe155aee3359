"""The power is cut a hundred times, during the most frequent changes: the short form of `python -m bench.power_cuts`."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import cut_truth
from bench.cut_disks import IN_A_MACHINE
from bench.cut_log import Replay, base_of, entries, flushes, flushes_of, of_kernel, record
from bench.cut_worker import Order, Worker
from tests.beds import nbd, session, vm, work

CUTS = 17  # of each scenario
cached = pytest.mark.skipif(bool(nbd.why_not()), reason=f"left out: a disk with a write cache ({nbd.why_not()})")


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """One worker for all rounds of a session."""
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
    answer = worker.carry_out(Order(scenario, 1, disks, CUTS))
    assert answer["defects"] == []
    assert answer["cuts"] == CUTS


@pytest.mark.long
@pytest.mark.btrfs
@pytest.mark.skipif(bool(vm.why_not()), reason=f"left out: in a virtual machine ({vm.why_not()})")
@pytest.mark.timeout(3600)  # the machine and its image may have to be made first
@pytest.mark.parametrize("disks", IN_A_MACHINE)
def test_in_a_virtual_machine_nothing_is_wrong_lost_or_invented_and_a_program_without_its_last_sync_is_found_out(
    worker: Worker, disks: str
) -> None:
    answer = worker.carry_out(Order("few", 1, disks, 8))
    assert (answer["defects"], answer["cuts"]) == ([], 8)
    answer = worker.carry_out(Order("few", 1, disks, 16, unsynced=True))
    assert any("differs from its source" in line for line in answer["defects"])


@pytest.mark.btrfs
@pytest.mark.timeout(900)
def test_a_program_without_its_last_sync_is_found_out(worker: Worker) -> None:
    for seed in range(1, 9):  # pending writes may reach the disk by themselves
        answer = worker.carry_out(Order("few", seed, "plain", 6, unsynced=True))
        if any("differs from its source" in line for line in answer["defects"]):
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
    recorder, two = record(log, images)
    recorder.write(0, b"a" * 4096)
    recorder.flush()  # before the first mark, so it is not requested
    recorder.mark(0, "before it")
    two.write(4096, b"b" * 4096)
    two.flush()
    recorder.mark(1, "after it")
    recorder.write(0, b"c" * 100)
    recorder.flush()
    recorder.write(0, b"never flushed")
    rows = list(flushes(log))
    assert [(flush.step, flush.moment) for flush in rows] == [(0, "before it"), (1, "after it")]
    replay, copies = Replay(entries(log), [base_of(image) for image in images]), [shared_btrfs / "first", shared_btrfs / "second"]
    seen = []
    for flush in rows:
        replay.copies(flush.number, copies)
        seen.append([copy.read_bytes() for copy in copies])
    second = bytes(4096) + b"b" * 4096
    assert seen == [[b"a" * 4096 + bytes(4096), second], [b"c" * 100 + b"a" * 3996 + bytes(4096), second]]


def kernel_log(*logged: tuple[int, int, int, bytes]) -> bytes:
    """Writes the log described in Documentation/admin-guide/device-mapper/log-writes.rst: sector, number of sectors, flags and data
    of each entry.
    """
    head = struct.pack("<QQQI", 0x6A736677736872, 1, len(logged), 512).ljust(512, b"\0")
    written = (struct.pack("<QQQQ", at, count, flags, 0).ljust(512, b"\0") + data for at, count, flags, data in logged)
    return head + b"".join(written) + b"what an earlier log has left".ljust(512, b"\0")


@pytest.mark.btrfs
def test_a_log_of_the_kernel_is_replayed_to_what_was_safe_at_each_flush(shared_btrfs: Path) -> None:
    """Two disks of 8 KiB behind one another; a flush, a write through the cache, a discard, and a mark, which is not a flush."""
    bases, log = [shared_btrfs / "pool", shared_btrfs / "state"], shared_btrfs / "log"
    for base in bases:
        base.write_bytes(b"." * 8192)
    entries = [
        (8, 2, 0, b"a" * 1024),
        (16, 8, 0, b"b" * 4096),
        (0, 0, 1, b""),
        (1, 1, 2, b"c" * 512),
        (8, 1, 4, b""),
        (0, 0, 8, b""),
    ]
    log.write_bytes(kernel_log(*entries, (0, 0, 1, b""), (0, 1, 0, b"!" * 512)))
    sizes = [8192, 8192]
    assert flushes_of(of_kernel(log, sizes)) == 3
    replay, copies = Replay(of_kernel(log, sizes), bases), [shared_btrfs / "one", shared_btrfs / "two"]
    seen = []
    for number in (1, 2, 3):
        replay.copies(number, copies)
        seen.append([copy.read_bytes() for copy in copies])
    second = b"b" * 4096 + b"." * 4096
    flushed = b"." * 4096 + b"a" * 1024 + b"." * 3072
    through = b"." * 512 + b"c" * 512 + b"." * 3072 + flushed[4096:]
    assert seen == [[flushed, second], [through, second], [through[:4096] + bytes(512) + through[4608:], second]]
