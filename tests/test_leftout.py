"""Which tests a run leaves out, and what it says of them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.beds import leftout


def test_what_was_left_out_is_counted_by_reason_in_one_line() -> None:
    reasons = ["Skipped: left out: over ssh (no sshd)", "Skipped: left out: slow (--fast)", "Skipped: left out: slow (--fast)"]
    assert leftout.summary([*reasons, "Skipped: of its own accord"]) == "left out: 2 slow (--fast), 1 over ssh (no sshd)"
    assert leftout.summary([]) == ""


@pytest.mark.parametrize(
    ("folder", "fixtures", "mark", "unit"),
    [
        ("backupd", (), "parametrize", True),
        ("backupd", ("tmp_path",), "timeout", True),
        ("btrfs", (), "parametrize", False),
        ("web", ("shop",), "parametrize", False),
        *(("backupd", (), mark, False) for mark in ("btrfs", "ssh", "root", "slow", "takes", "long", "alone")),
    ],
)
def test_the_loop_of_a_minute_is_what_runs_anywhere(folder: str, fixtures: tuple[str, ...], mark: str, unit: bool) -> None:
    marks = [SimpleNamespace(name=mark)]
    item: Any = SimpleNamespace(path=Path("tests", folder, "test_it.py"), fixturenames=fixtures, iter_markers=lambda: marks)
    assert leftout.is_unit(item) is unit


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("pytestmark = pytest.mark.usefixtures('x')\n", True),
        ("pytestmark = [pytest.mark.slow]\n", False),
        ("pytestmark = [\n    pytest.mark.x,\n    pytest.mark.btrfs,\n]\n", False),
        ("@pytest.mark.slow\ndef test_one(): ...\ndef test_two(): ...\n", True),
    ],
)
def test_a_module_of_which_nothing_is_in_the_loop_is_not_imported(tmp_path: Path, text: str, unit: bool) -> None:
    (tmp_path / "test_it.py").write_text(text)
    assert leftout.has_unit(tmp_path / "test_it.py") is unit


def test_each_test_is_in_one_share() -> None:
    names = [f"tests/test_{number}.py::test_it" for number in range(1000)]
    parts = [{name for name in names if leftout.is_of_share(name, which, 3)} for which in (1, 2, 3)]
    assert sorted(name for part in parts for name in part) == sorted(names)
    assert min(map(len, parts)) > 250
    assert leftout.is_of_share("tests/test_1.py::test_a", 1, 2) == leftout.is_of_share("tests/test_1.py::test_b[1]", 1, 2)


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        leftout.share(text)
