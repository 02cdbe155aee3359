"""What paces an expiry: pressure that is not told any more ends it, since nothing would hold it back."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from backupd.expire.pace import FsyncProbe, PressureProbe
from btrkeep import procfs
from btrkeep.errors import OperatorError


def test_pressure_that_is_not_told_any_more_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "io"
    told.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
    monkeypatch.setattr(procfs.IoPressure.__init__, "__defaults__", (told,))
    probe = PressureProbe()
    probe.take()
    told.unlink()
    with pytest.raises(OperatorError, match="does not tell the pressure on I/O"):
        probe.take()


def test_without_a_thread_the_probe_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading.Thread.start", Mock(side_effect=RuntimeError("can't start new thread")))
    opened = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OperatorError, match="the limit of processes"):
        FsyncProbe(tmp_path / "probe")
    assert len(list(Path("/proc/self/fd").iterdir())) == opened
    assert list(tmp_path.iterdir()) == []
