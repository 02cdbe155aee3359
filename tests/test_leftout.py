"""Which tests a run leaves out, and how it reports them.

If this is wrong, a developer believes in tests that did not run: those of the gate, those of a module that is not even imported, or
those that this machine cannot run.
"""

import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies

from tests.beds import TOP, gate, leftout, nbd, served_folder, work


def test_what_was_left_out_is_counted_by_reason_in_one_line() -> None:
    reasons = ["Skipped: left out: over ssh (no sshd)", "Skipped: left out: long (--long)", "Skipped: left out: long (--long)"]
    assert leftout.summary([*reasons, "Skipped: of its own accord"]) == "left out: 2 long (--long), 1 over ssh (no sshd)"
    assert leftout.summary([]) == ""


@pytest.mark.parametrize(
    ("folder", "fixtures", "mark", "unit"),
    [
        ("backupd", ("tmp_path",), "parametrize", True),
        ("btrfs", (), "parametrize", False),
        ("web", ("shop",), "parametrize", False),
        ("backupd", (), "slow", False),
    ],
)
def test_the_loop_of_a_minute_is_what_runs_anywhere(folder: str, fixtures: tuple[str, ...], mark: str, unit: bool) -> None:
    marks = [SimpleNamespace(name=mark)]
    item: Any = SimpleNamespace(path=Path("tests", folder, "test_it.py"), fixturenames=fixtures, iter_markers=lambda: marks)
    assert leftout.is_unit(item) is unit


def test_ci_runs_a_test_again_as_root_only_where_it_proves_more() -> None:
    def plain(tmp_path: Path) -> None: ...

    def wider(request: pytest.FixtureRequest) -> None: ...

    @hypothesis.given(strategies.integers())
    def examples(number: int) -> None: ...

    def again(function: Any, nodeid: str = "t::a") -> bool:
        item: Any = SimpleNamespace(nodeid=nodeid, function=function)
        return not leftout.passed_before(item, {"t::a"})

    assert not again(plain)
    assert again(plain, "t::b")
    assert again(wider)
    assert again(examples)


def test_ci_fails_where_a_program_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for why in (nbd.why_not(), served_folder.why_not()):
        assert leftout.must_run(leftout.reason("on a slow disk", why)), why


def test_a_property_is_tried_with_its_share_of_examples() -> None:
    before = hypothesis.settings.get_current_profile_name()
    shares = {}
    try:
        for profile in ("busy", "gate", "unit"):
            hypothesis.settings.load_profile(profile)
            shares[profile] = gate.examples(400)
    finally:
        hypothesis.settings.load_profile(before)
    assert shares == {"busy": 400, "gate": 100, "unit": 32}


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("pytestmark = pytest.mark.usefixtures('x')\n", True),
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
        (("--all", "-k", "a or b", "-n0"), ["-k", "a or b", "-n0"]),
        (("--unit",), ["--unit"]),
        (("tests/a b.py", "--all-but"), ["tests/a b.py", "--all-but"]),
    ],
)
def test_the_words_of_test_sh_reach_pytest(tmp_path: Path, words: tuple[str, ...], passed: list[str]) -> None:
    """With stand-ins for the programs that install, for the linters and for Python."""
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


def test_each_name_in_the_gate_stands_for_a_test(request: pytest.FixtureRequest) -> None:
    """Parameters are compared when the gate itself runs, because it has collected all tests."""
    assert gate.unknown_names(TOP) == []
    config = request.config
    if config.getoption("--gate") and config.args == config.getini("testpaths") and not config.getoption("keyword"):
        run = [item for item in request.session.items if not item.get_closest_marker("long")]  # the gate leaves long forms out
        assert gate.without_a_test(item.nodeid for item in run) == []
    assert len(gate.PROTECTIONS) > 25
    named = "tests/btrfs/test_reconcile.py::test_a_row_whose_subvolume_was_deleted_is_deleted"
    assert gate.is_named(f"{named}[x]")
    assert gate.is_named("tests/btrfs/test_restore.py::test_anything[1]")
    assert not gate.is_named("tests/btrfs/test_reconcile.py::test_another")
    assert [name for name in ("test_restore", "test_year") if leftout.has_gate(TOP / f"tests/btrfs/{name}.py")] == ["test_restore"]
