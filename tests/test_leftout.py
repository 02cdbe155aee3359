"""Which tests a run leaves out, and what it says of them."""

import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.beds import TOP, gate, leftout, work


def test_what_was_left_out_is_counted_by_reason_in_one_line() -> None:
    reasons = ["Skipped: left out: over ssh (no sshd)", "Skipped: left out: long (--long)", "Skipped: left out: long (--long)"]
    assert leftout.summary([*reasons, "Skipped: of its own accord"]) == "left out: 2 long (--long), 1 over ssh (no sshd)"
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


@pytest.mark.parametrize(
    ("words", "passed"),
    [
        ((), ["--gate"]),
        (("--all",), []),
        (("--unit",), ["--unit"]),
        (("--all", "-k", "a or b", "-n0"), ["-k", "a or b", "-n0"]),
        (("--unit", "-k", "a or b"), ["--unit", "-k", "a or b"]),
        (("--gate", "-n0"), ["--gate", "-n0"]),
        (("tests/a b.py", "--all-but"), ["tests/a b.py", "--all-but"]),
    ],
)
def test_the_words_of_test_sh_reach_pytest(tmp_path: Path, words: tuple[str, ...], passed: list[str]) -> None:
    """With stand-ins for what installs, for the linters and for Python."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(TOP / "test.sh", tmp_path)
    (tmp_path / "scripts" / "ground.sh").write_text(
        f"need_apt() {{ :; }}; need_venv() {{ :; }}; VENV={shlex.quote(str(tmp_path))}\n"
    )
    for name, line in (("scripts/lint.sh", ":"), ("bin/python", 'printf "%s\\n" "$@"')):
        program = tmp_path / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/bash\n{line}\n")
        program.chmod(0o755)
    lines = work(tmp_path / "test.sh", *words).stdout.splitlines()
    start = ["-m", "pytest", "-n", "auto", "--dist", "worksteal", *passed]
    assert [line for line in lines if not line.startswith("== ")] == start


def test_the_gate_has_tests_that_are_there_for_each_protection(request: pytest.FixtureRequest) -> None:
    """Parameters are compared when the gate itself runs, which has collected all of it."""
    assert gate.unknown_names(TOP) == []
    config = request.config
    if config.getoption("--gate") and config.args == config.getini("testpaths") and not config.getoption("keyword"):
        run = [item for item in request.session.items if not item.get_closest_marker("long")]  # the gate leaves long forms out
        assert gate.without_a_test(item.nodeid for item in run) == []
    assert len(gate.PROTECTIONS) > 25
    names = [name for names in gate.PROTECTIONS.values() for name in names]
    assert len(names) == len(set(names))


def test_a_name_in_the_gate_that_is_not_there_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_it.py").write_text("def test_one(): ...\n")
    names = {"test_it.py", "test_it.py::test_one[1]", "test_it.py::test_two[1]", "test_gone.py"}
    monkeypatch.setattr(gate, "_NAMED", names)
    monkeypatch.setattr(gate, "_MODULES", {"test_it.py", "test_gone.py"})
    assert gate.unknown_names(tmp_path) == ["test_gone.py", "test_it.py::test_two[1]"]


@pytest.mark.parametrize(
    ("protection", "words"),
    [
        ("power cut", "power_cut"),
        ("killed at any step", "test_crash_steps.py"),
        ("hostile host", "test_hostile_senders.py"),
        ("hostile bytes", "test_fuzz.py"),
        ("restore to a folder", "test_restore.py"),
        ("tar or a zip", "test_restore_archive.py"),
        ("restore to a host", "test_restore_to_host.py"),
        ("second pool has the same", "test_replicate_content.py"),
        ("taken over", "test_replicate_hostile.py"),
        ("offsite", "plain_restic_gets_back"),
        ("due and nothing else", "test_expire_steps.py"),
        ("mount option", "test_expire_option.py"),
        ("balance", "test_balance_stops.py"),
        ("catalogue", "test_reconcile.py"),
        ("verify", "test_repair.py"),
        ("root service", "test_serve_rights.py"),
        ("login", "test_gate_login.py"),
        ("browser", "no_name_runs"),
        ("installs", "test_units.py"),
    ],
)
def test_no_protection_goes_from_the_gate_unnoticed(protection: str, words: str) -> None:
    (names,) = (names for title, names in gate.PROTECTIONS.items() if protection in title)
    assert any(words in name for name in names)


def test_a_name_of_the_gate_that_stands_for_no_test_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "_NAMED", {"tests/test_a.py", "tests/test_b.py::test_b", "tests/test_c.py::test_c[1]"})
    tests = ["tests/test_a.py::test_a", "tests/test_b.py::test_b[1]", "tests/test_c.py::test_c[2]"]
    assert gate.without_a_test(tests) == ["tests/test_c.py::test_c[1]"]


def test_a_name_in_the_gate_stands_for_its_parameters_and_a_module_for_its_tests() -> None:
    assert gate.is_named("tests/btrfs/test_fidelity.py::test_anything[1]")
    assert gate.is_named("tests/btrfs/test_excluded_since.py::test_anything")
    assert gate.is_named(
        "tests/btrfs/test_hazard_links.py::test_a_hard_link_broken_at_the_source_harms_no_name_and_links_that_hold_stay[x]"
    )
    assert not gate.is_named("tests/btrfs/test_hazard_links.py::test_another")
    assert not gate.is_named("tests/btrfs/test_year.py::test_a_year")


def test_the_gate_imports_the_modules_that_it_has_tests_of() -> None:
    assert leftout.has_gate(TOP / "tests" / "btrfs" / "test_fidelity.py")
    assert leftout.has_gate(TOP / "tests" / "test_leftout.py")  # of --unit
    assert not leftout.has_gate(TOP / "tests" / "btrfs" / "test_year.py")
