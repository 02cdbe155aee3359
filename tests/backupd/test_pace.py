"""The pace of an expiry: it deletes less while other programs wait for the disks, and ends if the load cannot be measured."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from backupd.expire.queue import FsyncProbe, Governor, PressureProbe, governor
from btrkeep import procfs
from btrkeep.config import Pace
from btrkeep.errors import OperatorError


def test_an_expiry_paced_by_pressure_ends_when_the_kernel_stops_reporting_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "io"
    path.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
    monkeypatch.setattr(procfs.IoPressure.__init__, "__defaults__", (path,))
    probe = PressureProbe()
    probe.take()
    path.unlink()
    with pytest.raises(OperatorError, match="has no I/O pressure information"):
        probe.take()


def test_the_pressure_is_that_since_the_last_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, clock = tmp_path / "io", [100.0]

    def pass_(seconds: float, total: int) -> None:
        clock[0] += seconds
        path.write_text(f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")

    monkeypatch.setattr(procfs.IoPressure.__init__, "__defaults__", (path,))
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    pass_(0, 0)
    probe = PressureProbe()
    pass_(10, 5_000_000)
    assert probe.take() == 0.5
    assert probe.take() is None  # a moment ago
    pass_(10, 6_000_000)
    assert probe.take() == 0.1


def test_without_a_thread_the_probe_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading.Thread.start", Mock(side_effect=RuntimeError("can't start new thread")))
    opened = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OperatorError, match="the limit of processes"):
        FsyncProbe(tmp_path / "probe")
    assert len(list(Path("/proc/self/fd").iterdir())) == opened
    assert list(tmp_path.iterdir()) == []


class Measured:
    """A probe with prepared values; each `take` returns the next one."""

    def __init__(self, *values: float | None) -> None:
        self.values = list(values)
        self.is_closed = False

    def take(self) -> float | None:
        return self.values.pop(0)

    def close(self) -> None:
        self.is_closed = True


def test_without_a_pace_as_many_wait_as_may_and_nothing_rests() -> None:
    pace = Governor(50, None, None)
    pace.begin()
    pace.judge(10.0)
    assert (pace.paced, pace.width, pace.rest) == (False, 50, 0.0)


def test_a_paced_expiry_begins_with_four_at_a_time_or_fewer_if_fewer_may_wait() -> None:
    assert [Governor(most, 0.1, Measured()).width for most in (50, 4, 3)] == [4, 4, 3]
    assert Governor(50, 0.1, Measured()).rest == 0.05
    assert Governor(50, 0.1, Measured()).paced


@pytest.mark.parametrize(
    ("worst", "busy", "width", "rest"),
    [
        (0.101, 1.0, 10, 0.4),  # at least twice the rest
        (0.2, 3.0, 10, 3.0),  # as long as the batch for each time that the limit is exceeded
        (0.9, 1.0, 10, 4.0),  # four times at most
        (0.9, 9.0, 10, 10.0),  # ten seconds at most
        (0.1, 9.0, 20, 0.2),  # exactly at the limit
        (0.06, 9.0, 20, 0.2),
        (0.059, 9.0, 25, 0.1),
        (0.0, 9.0, 25, 0.1),  # a quarter more
        (None, 9.0, 20, 0.2),
    ],
)
def test_a_batch_that_others_felt_is_followed_by_half_as_many_and_a_longer_rest(
    worst: float | None, busy: float, width: int, rest: float
) -> None:
    pace = Governor(50, 0.1, Measured(worst))
    pace.width, pace.rest = 20, 0.2
    pace.judge(busy)
    assert pace.width == width
    assert pace.rest == pytest.approx(rest)


def test_width_and_rest_stay_within_their_bounds_however_long_it_goes_one_way() -> None:
    pace = Governor(50, 0.1, Measured(*[1.0] * 20, *[0.0] * 40))
    for _ in range(20):
        pace.judge(1.0)
    assert (pace.width, pace.rest) == (1, 10.0)
    pace.judge(1.0)
    assert (pace.width, pace.rest) == (2, 5.0)  # one more at least
    for _ in range(39):
        pace.judge(1.0)
    assert (pace.width, pace.rest) == (50, 0.05)


def test_the_configured_limit_is_measured_by_what_it_is_a_limit_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not governor(None, tmp_path, 50).paced
    with governor(Pace("50ms", 0.05), tmp_path, 50) as pace:
        assert (pace.limit, pace.most, type(pace.probe)) == (0.05, 50, FsyncProbe)
        assert [path.name for path in tmp_path.iterdir()] == ["pace-probe"]
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "io").write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
    monkeypatch.setattr(procfs.IoPressure.__init__, "__defaults__", (tmp_path / "io",))
    with governor(Pace("20%", None, 0.2), tmp_path, 50) as pace:
        assert (pace.limit, pace.most, type(pace.probe)) == (0.2, 50, PressureProbe)


def test_what_was_measured_before_a_batch_does_not_count_and_the_probe_ends_with_the_expiry() -> None:
    probe = Measured(9.0, 0.0)
    with Governor(50, 0.1, probe) as pace:
        pace.begin()
        pace.judge(1.0)
        assert pace.width == 5
    assert probe.values == []
    assert probe.is_closed


def test_a_write_that_has_not_returned_yet_counts_with_the_time_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading.Thread.start", Mock())
    monkeypatch.setattr("threading.Thread.join", Mock())
    monkeypatch.setattr("time.monotonic", lambda: 107.0)
    probe = FsyncProbe(tmp_path / "probe")
    assert (tmp_path / "probe").stat().st_mode == 0o100600
    assert probe.take() is None
    probe._worst = 3.0
    assert probe.take() == 3.0
    assert probe.take() is None  # only since the last call
    probe._begun = 100.0
    assert probe.take() == 7.0
    probe._worst = 3.0
    assert probe.take() == 7.0
    probe._begun, probe._worst = 105.0, 3.0
    assert probe.take() == 3.0
    probe.close()
    assert list(tmp_path.iterdir()) == []
