"""Which test modules CI runs for a change: those that the change touches, and each of the others in its turn, as far as there is
time.

If this is wrong, CI passes a change whose tests it did not run, and its developer believes that they passed.
"""

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.record_tests import modules_used, seconds_of_modules
from scripts.touched_tests import NOTHING, commits_since, default_base, main, turn
from tests.beds import TOP, work
from tests.beds.helpers_used import helpers_used
from tests.beds.touched import TURNS, Record, chosen, merged, read_records, turns_wanted, without_users, write_records

OTHERS = {f"tests/test_{number}.py": Record(100, frozenset({"web/app.py"}), number % TURNS) for number in range(40)}


def test_a_changed_test_comes_first_then_what_uses_most_of_a_change_and_what_does_not_fit_is_named() -> None:
    records = OTHERS | {
        "tests/test_both.py": Record(100, frozenset({"btrkeep/a.py", "btrkeep/b.py"})),
        "tests/test_a.py": Record(50, frozenset({"btrkeep/a.py"})),
        "tests/test_long.py": Record(900, frozenset({"btrkeep/b.py"})),
        "tests/test_itself.py": Record(40, frozenset()),
    }
    changed = {"btrkeep/a.py", "btrkeep/b.py", "backupd/c.py", "tests/test_itself.py"}
    choice = chosen(records, [*records, "tests/test_new.py"], changed, turns=(3,))
    assert choice.touched == ("tests/test_itself.py", "tests/test_both.py", "tests/test_a.py", "tests/test_new.py")
    assert choice.no_time == ("tests/test_long.py",)
    assert set(choice.in_turn) <= set(OTHERS)


def test_each_module_has_its_turn_once_in_ten_and_all_turns_take_about_as_long() -> None:
    new = {f"tests/test_{number}.py": Record(number % 70, frozenset()) for number in range(400)}
    records = merged({}, new, new)
    turns = [chosen(records, records, (), turns_wanted(number, 1, ())).in_turn for number in range(17, 17 + TURNS)]
    assert sorted(module for modules in turns for module in modules) == sorted(records)
    times = [sum(records[module].seconds for module in modules) for modules in turns]
    assert max(times) < 1.1 * min(times)


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("docs/recovery.rst", "tests/docs/test_pages.py"),
        ("systemd/btrkeep-backup@.service", "tests/systemd/test_units.py"),
        ("web/templates/base.html", "tests/web/test_hosts_page.py"),
    ],
)
def test_what_is_no_python_touches_the_tests_that_are_about_it(path: str, module: str) -> None:
    assert (TOP / module).is_file()
    records = OTHERS | {module: Record(10, frozenset())}
    assert chosen(records, records, {path}, turns=(3,)).touched == (module,)


def test_the_record_tells_apart_what_test_modules_use() -> None:
    """With a record in which each module uses everything, the choice would be chance."""
    records = read_records((TOP / "tests" / "recorded.json").read_text(encoding="utf-8"))
    assert read_records(write_records(records)) == records
    of_tests = {module: record for module, record in records.items() if (TOP / module).is_file()}
    assert len(of_tests) > 400
    users = Counter(name for record in of_tests.values() for name in record.uses)
    assert len(users) > 400
    assert sum(count < len(of_tests) / 2 for count in users.values()) > 0.9 * len(users)


def test_a_changed_bed_touches_who_imports_or_starts_it_and_who_asks_for_its_fixture() -> None:
    """The record has no lines of beds."""
    tests = {
        f"tests/{name}.py"
        for name in ("btrfs/test_holes", "web/test_hostile", "btrfs/test_replicate_turns", "backupd/test_cli_status")
    }
    paths = {path.relative_to(TOP).as_posix(): path for path in (TOP / "tests").rglob("*.py")}
    paths = {name: path for name, path in paths.items() if name in tests or not path.name.startswith("test_")}
    used = helpers_used({name: path.read_text(encoding="utf-8") for name, path in paths.items()})
    holes = used["tests/btrfs/test_holes.py"]
    assert holes >= {"tests/conftest.py", "tests/beds/btrfs.py", "tests/beds/session.py", "tests/beds/manifest.py"}
    assert "tests/beds/dashboard.py" not in holes  # of the fixtures of another folder
    assert used["tests/web/test_hostile.py"] >= {"tests/web/conftest.py", "tests/beds/dashboard.py"}
    assert "tests/beds/holding.py" in used["tests/btrfs/test_replicate_turns.py"]  # a program
    assert "tests/beds/badssh.py" in used["tests/backupd/test_cli_status.py"]  # a program, started by a fixture


def test_a_push_of_several_commits_has_the_turns_of_all_as_far_as_there_is_time() -> None:
    """Otherwise a module that has its turn at a commit in between would silently wait for another ten commits."""
    assert turns_wanted(40, 1, {"README.rst", "tests/web/conftest.py"}) == (0, 9)  # all tests depend on it: at least two turns
    assert turns_wanted(12, 4, ()) == (2, 1, 0, 9)
    assert sorted(turns_wanted(12, 400, ())) == list(range(TURNS))
    light = {f"tests/test_{number}.py": Record(100, frozenset({"web/app.py"}), number % TURNS) for number in range(200)}
    choice = chosen(light, light, (), (2, 1, 0, 9))
    assert set(choice.in_turn) == {module for turn in (2, 1) for module in chosen(light, light, (), (turn,)).in_turn}
    assert choice.turns_left_out == (0, 9)


def test_what_was_recorded_again_replaces_its_record_and_no_other_and_keeps_its_turn() -> None:
    """If each record changed the turns, a module could miss its turn for as long as tests are added."""
    old = {f"tests/test_{name}.py": Record(1.0, frozenset({"web/app.py"}), 7) for name in "abcd"}
    new = {
        "tests/test_b.py": Record(2.0, frozenset({"web/gate.py"})),
        "tests/test_c.py": Record(0.0, frozenset()),  # all left out, without root
        "tests/test_e.py": Record(3.0, frozenset()),
    }
    names = [f"tests/test_{name}.py" for name in "abce"]
    assert merged(old, new, names) == {
        "tests/test_a.py": old["tests/test_a.py"],
        "tests/test_b.py": replace(new["tests/test_b.py"], turn=7),
        "tests/test_c.py": old["tests/test_c.py"],
        "tests/test_e.py": replace(new["tests/test_e.py"], turn=0),
    }


def test_a_recording_is_read_from_what_coverage_and_pytest_wrote(tmp_path: Path) -> None:
    """A real recording of a real package: one context calls a function, the other only imports the module."""
    (tmp_path / "product").mkdir()
    (tmp_path / "product" / "called.py").write_text("def f():\n    return 1\n")
    (tmp_path / "product" / "imported.py").write_text("X = 1\n\ndef g():\n    return 2\n")
    program = """
import coverage, sys
measured = coverage.Coverage(data_file=sys.argv[1], include=["product/*"], config_file=False)
measured.start()
measured.switch_context("tests/test_a.py")
from product import called, imported
called.f()
measured.switch_context("tests/test_b.py")
imported.g()
called.f()
measured.stop()
measured.save()
"""
    subprocess.run((sys.executable, "-c", program, tmp_path / "data"), check=True, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert modules_used(tmp_path / "data", tmp_path) == {
        "tests/test_a.py": {"product/called.py"},
        "tests/test_b.py": {"product/called.py", "product/imported.py"},
    }
    junit = tmp_path / "junit.xml"
    junit.write_text(
        '<testsuites><testsuite><testcase classname="tests.btrfs.test_a" name="a" time="1.5"/>'
        '<testcase classname="tests.btrfs.test_a" name="b" time="0.5"/></testsuite></testsuites>'
    )
    assert seconds_of_modules(junit) == {"tests/btrfs/test_a.py": 2.0}


IDENTITY = {f"GIT_{who}_{field}": "somebody@example.org" for who in ("AUTHOR", "COMMITTER") for field in ("NAME", "EMAIL")}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with forty test modules and their record."""
    monkeypatch.setattr("scripts.touched_tests.TOP", tmp_path)
    (tmp_path / "tests").mkdir()
    for number in range(40):
        (tmp_path / "tests" / f"test_{number}.py").touch()
    (tmp_path / "tests" / "recorded.json").write_text(write_records(OTHERS))
    work("git", "init", "--quiet", "--initial-branch=main", tmp_path)
    return tmp_path


def committed(folder: Path, moment: str, *words: str) -> str:
    """Makes a commit at that moment and returns its hash; `words`: the git command, in place of an empty commit."""
    dates = {"GIT_COMMITTER_DATE": moment, "GIT_AUTHOR_DATE": moment}
    work("git", *(words or ("commit", "--quiet", "--allow-empty", "-m", moment)), cwd=folder, env=IDENTITY | dates)
    return work("git", "rev-parse", "HEAD", cwd=folder).stdout.strip()


def test_a_changed_module_that_no_record_has_is_named_and_asks_for_a_second_turn(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A new module, or one with declarations only: otherwise CI would pass without a test for it, and not report that."""
    changed = ["btrkeep/new.py", "web/app.py", "docs/conf.py", "tests/web/test_new.py", "README.rst", "backupd/used.py"]
    assert without_users({"tests/test_a.py": Record(1, frozenset({"backupd/used.py"}), 0)}, changed) == ["btrkeep/new.py"]
    committed(checkout, "2026-03-01T10:00:00Z")
    for name, turns in (("notes.rst", 1), ("settings.py", 2)):
        (checkout / name).touch()
        work("git", "-C", checkout, "add", name)
        committed(checkout, "2026-03-01T11:00:00Z")
        monkeypatch.setattr(sys, "argv", ["touched_tests", "HEAD~1"])
        main()
        output, errors = capfd.readouterr()
        wanted = {"tests/test_2.py"} if turns == 1 else {"tests/test_2.py", "tests/test_3.py"}  # by the turns of the record
        assert wanted <= set(output.split())
        assert len(output.split()) == turns * 4, errors
        assert ("no record has these files, so there is a second turn: settings.py" in errors) == (turns == 2)


def test_with_a_damaged_record_ci_reports_it_and_runs_some_tests_all_the_same(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["touched_tests", "HEAD"])
    committed(checkout, "2026-03-01T10:00:00Z")
    for text in ("<<<<<<< HEAD\n", '{"modules": [], "tests": {"tests/test_a.py": [1.0, 0, [0]]}}'):
        (checkout / "tests" / "recorded.json").write_text(text)
        main()
        output, errors = capfd.readouterr()
        assert len(output.split()) > 2
        assert errors.startswith("tests/recorded.json is not used: take an older one (`git log tests/recorded.json`)")


def test_a_change_begins_at_the_newest_commit_that_is_a_day_older_and_a_merged_branch_is_one(checkout: Path) -> None:
    """If the newest of all commits counted, only the branch's missing commits would be the change, and a merge would skip turns."""
    moments = ("2026-03-01T10:00:00Z", "2026-03-02T10:00:00Z", "2026-03-03T09:00:00Z", "2026-03-03T10:00:00Z")
    commits = [committed(checkout, moment) for moment in moments]
    assert default_base() == commits[1]
    assert turn() == 4
    assert (commits_since(commits[1]), commits_since(f"{commits[1]}^{{tree}}")) == (2, 0)
    work("git", "reset", "--quiet", "--hard", commits[0], cwd=checkout)
    assert default_base() == NOTHING
    work("git", "checkout", "--quiet", "-b", "branch", cwd=checkout)
    for moment in ("2026-03-02T10:00:00Z", "2026-03-03T10:00:00Z"):
        committed(checkout, moment)
    work("git", "checkout", "--quiet", "main", cwd=checkout)
    committed(checkout, "2026-03-09T10:00:00Z", "merge", "--quiet", "--no-ff", "-m", "merged", "branch")
    assert default_base() == commits[0]
    assert turn() == 2
