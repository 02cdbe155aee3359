"""A new sparse file takes only the space of its data, in the transfer and in the pool, not its length."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from backupd.run.arriving_zeros import WORTH_A_STOP, ArrivalRate, ArrivingZeros, ZerosStop, is_worth_a_stop
from tests.beds import ssh, work
from tests.beds.nights import Nights

pytestmark = [pytest.mark.btrfs, pytest.mark.root]
MIB, GIB = 1 << 20, 1 << 30
DATA = 75 * 4096


@pytest.fixture
def host(nights: Nights, sshd: ssh.Sshd) -> Path:
    """A source path of a host behind a real sshd."""
    log = nights.source / "log"
    log.mkdir(parents=True)
    (log / "messages").write_bytes(os.urandom(4000))
    nights.settings("ssh", command="ssh -F none", key=str(sshd.key), known_hosts=str(sshd.known_hosts))
    nights.host("web1", log, address=sshd.address, port=sshd.port, bandwidth="24MB")  # enough time to observe it on a slow machine
    return log


def lastlog(path: Path, size: int) -> None:
    """A sparse file with 300 KiB of data in it."""
    with path.open("wb") as file:
        file.truncate(size)
        for number in range(75):
            file.seek(size // 80 * number)
            file.write(os.urandom(4096))


def smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backupd.run.arriving_zeros.LOOK_AFTER", 8 * MIB)
    monkeypatch.setattr("backupd.run.arriving_zeros.WORTH_A_STOP", 16 * MIB)


def received(nights: Nights) -> int:
    """Returns the bytes that rsync received in the newest run, or would have received in the stopped ones by its progress."""
    totals = nights.record("web1")["totals"]
    return max(totals["received"], totals["literal"])


def allocated(path: Path) -> int:
    work("btrfs", "filesystem", "sync", path.parent)
    return path.stat().st_blocks * 512


def assert_cheap(nights: Nights, host: Path, size: int, name: str = "lastlog") -> None:
    assert not nights.differences("web1", host)
    copy = nights.pool / "hosts/web1" / nights.names("web1")[-1] / "data" / str(host).lstrip("/") / name
    assert (copy.stat().st_size, received(nights) < size // 2) == (size, True)
    assert allocated(copy) <= allocated(host / name) + MIB
    assert nights.listed("web1")[0]["new_bytes"] < DATA + 2 * MIB


@pytest.mark.parametrize("first", [False, True], ids=["second night", "first copy"])
def test_zeros_of_a_new_sparse_file_are_not_transferred(
    nights: Nights, host: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    """And when the file is rotated, the backup is not suspect."""
    smaller(monkeypatch)
    if not first:
        nights.run("web1")
    lastlog(host / "lastlog", 256 * MIB)
    (host / "zz").write_bytes(os.urandom(MIB))
    (done,) = nights.night("web1")
    assert (done.outcome, done.warnings) == ("complete", ())
    assert_cheap(nights, host, 256 * MIB)
    (host / "lastlog").write_bytes(os.urandom(DATA))
    assert nights.run("web1")["web1"]["outcome"] == "complete"
    assert not nights.differences("web1", host)


def test_max_new_bytes_counts_no_zeros(nights: Nights, host: Path) -> None:
    """One large file, and three that arrive before the first check."""
    nights.run("web1")
    nights.tables["host"]["web1"]["max_new_bytes"] = "40MiB"
    nights.write()
    for number, size in enumerate((20, 20, 20, 200)):
        lastlog(host / f"lastlog{number}", size * MIB)
    assert nights.run("web1")["web1"]["outcome"] == "complete"
    assert not nights.differences("web1", host)
    (host / "dense").write_bytes(os.urandom(50 * MIB))
    assert "max_new_bytes" in nights.run("web1", status=1)["web1"]["error"]
    assert nights.listed("web1")[0]["state"] == "partial"


@pytest.mark.parametrize(
    ("size", "at", "expected"),
    [(None, 0, False), (WORTH_A_STOP, 0, True), (WORTH_A_STOP, 1, False), (100 * GIB, 256 * MIB, True), (1 << 60, 0, False)],
)
def test_rsync_is_stopped_when_much_is_to_come(size: int | None, at: int, expected: bool) -> None:
    assert is_worth_a_stop(size, at, ArrivalRate(0.0)) is expected


@pytest.mark.parametrize(("gib", "expected"), [(50, False), (150, True)])
def test_rsync_is_not_stopped_when_a_new_list_takes_longer_than_the_zeros(gib: int, expected: bool) -> None:
    """A list of 1000 s, of which 400 s come before the first file; then 100 MiB arrive in a second."""
    pace = ArrivalRate(begun=50.0)
    pace.note_first(0, 300.0)
    pace.note_first(MIB, 450.0)
    pace.measure(20_000 * MIB, 450.0 + 600 + 200)
    pace.measure(20_300 * MIB, 450.0 + 600 + 203)
    assert (pace.rate, round(pace.other_seconds)) == (100 * MIB, 1000)
    assert is_worth_a_stop(gib * GIB, 256 * MIB, pace) is expected


def test_a_file_that_had_arrived_before_rsync_was_stopped_keeps_its_length(
    nights: Nights, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """rsync can end by itself before it gets the signal, and the file may have grown on the host when its length is asked for."""
    smaller(monkeypatch)
    nights.run("web1")
    with (host / "zeros").open("wb") as file:
        file.truncate(96 * MIB)
    stops = []

    def stop_too_late(zeros: ArrivingZeros, why: ZerosStop) -> bool:
        assert why.size is not None
        zeros.stopped = replace(why, size=why.size + 4096)
        stops.append(why)
        return True

    monkeypatch.setattr(ArrivingZeros, "_stop", stop_too_late)
    (done,) = nights.night("web1")
    assert (done.outcome, len(stops)) == ("complete", 1)
    assert not nights.differences("web1", host)
