"""Which test modules CI runs for a change: those that it touches, each of the others in its turn, for which there is time."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from scripts import record_tests
from scripts.record_tests import lines_within_functions, modules_used, seconds_of_modules
from scripts.touched_tests import NOTHING, commits_since, default_base, main, turn
from tests.beds import TOP, work
from tests.beds.helpers_used import helpers_used
from tests.beds.touched import TURNS, Record, chosen, merged, read_records, turns_wanted, without_users, write_records

OTHERS = {f"tests/test_{number}.py": Record(100, frozenset({"web/app.py"}), number % TURNS) for number in range(40)}


def test_what_uses_most_of_a_change_comes_first_and_what_does_not_fit_is_named() -> None:
    records = OTHERS | {
        "tests/test_both.py": Record(300, frozenset({"btrkeep/a.py", "btrkeep/b.py"})),
        "tests/test_a.py": Record(100, frozenset({"btrkeep/a.py"})),
        "tests/test_long.py": Record(900, frozenset({"btrkeep/b.py"})),
    }
    choice = chosen(records, records, {"btrkeep/a.py", "btrkeep/b.py", "backupd/c.py"}, turns=(3,))
    assert choice.touched == ("tests/test_both.py", "tests/test_a.py")
    assert choice.no_time == ("tests/test_long.py",)
    assert set(choice.in_turn) <= set(OTHERS)


def test_what_differs_itself_comes_first_and_what_was_never_recorded_last() -> None:
    records = OTHERS | {"tests/test_a.py": Record(100, frozenset({"btrkeep/a.py"})), "tests/test_b.py": Record(300, frozenset())}
    choice = chosen(records, [*records, "tests/test_new.py"], {"btrkeep/a.py", "tests/test_b.py"}, turns=(3,))
    assert choice.touched == ("tests/test_b.py", "tests/test_a.py", "tests/test_new.py")
    long = records | {"tests/test_b.py": Record(430, frozenset())}
    choice = chosen(long, [*long, "tests/test_new.py"], {"btrkeep/a.py", "tests/test_b.py"}, turns=(3,))
    assert choice.touched == ("tests/test_b.py", "tests/test_a.py")
    assert choice.no_time == ("tests/test_new.py",)


def test_a_module_that_all_use_counts_less_than_one_that_few_use() -> None:
    records = {module: replace(record, uses=record.uses | {"btrkeep/units.py"}) for module, record in OTHERS.items()}
    records |= {"tests/test_z.py": Record(400, frozenset({"btrkeep/rare.py"}))}
    assert chosen(records, records, {"btrkeep/units.py", "btrkeep/rare.py"}, turns=(3,)).touched[0] == "tests/test_z.py"


def test_modules_without_a_record_run_in_another_order_each_turn() -> None:
    modules = [f"tests/test_{number}.py" for number in range(100)]
    orders = {tuple(module for module in chosen({}, modules, (), (turn,)).touched[:5]) for turn in range(5)}
    assert len(orders) == 5


def test_what_is_touched_and_has_its_turn_needs_no_further_time() -> None:
    records = OTHERS | {"tests/test_long.py": Record(2000, frozenset({"btrkeep/a.py"}), 0)}
    choices = [chosen(records, records, {"btrkeep/a.py"}, (turn,)) for turn in range(TURNS)]
    assert [choice.touched for choice in choices] == [("tests/test_long.py",)] + [()] * (TURNS - 1)
    assert [choice.no_time for choice in choices] == [()] + [("tests/test_long.py",)] * (TURNS - 1)


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
        ("man/backupd.8", "tests/docs/test_man.py"),
        ("systemd/btrkeep-backup@.service", "tests/systemd/test_units.py"),
        ("install.sh", "tests/install/test_options.py"),
        ("demo.sh", "tests/test_demo.py"),
        ("web/templates/base.html", "tests/web/test_hosts_page.py"),
    ],
)
def test_what_is_no_python_touches_the_tests_that_are_about_it(path: str, module: str) -> None:
    assert (TOP / module).is_file()
    records = OTHERS | {module: Record(10, frozenset())}
    assert chosen(records, records, {path}, turns=(3,)).touched == (module,)


def test_records_come_back_as_they_were_written() -> None:
    records = {"tests/test_b.py": Record(1.5, frozenset({"web/app.py"}), 9), "tests/test_a.py": Record(0.0, frozenset(), 0)}
    text = write_records(records)
    assert read_records(text) == records
    assert text.index("test_a") < text.index("test_b")
    assert json.loads(text)["modules"] == ["web/app.py"]


def test_the_record_tells_apart_what_test_modules_use() -> None:
    records = read_records((TOP / "tests" / "recorded.json").read_text(encoding="utf-8"))
    of_tests = {module: record for module, record in records.items() if (TOP / module).is_file()}
    assert len(of_tests) > 100
    assert all(record.seconds >= 0 for record in of_tests.values())
    users = Counter(name for record in of_tests.values() for name in record.uses)
    assert len(users) > 500
    assert sum(count < len(of_tests) / 2 for count in users.values()) > 0.9 * len(users)


HELPERS = {
    "tests/beds/__init__.py": "from tests.beds.work import work",
    "tests/beds/work.py": "",
    "tests/beds/ssh.py": "from tests.beds import session",
    "tests/beds/session.py": "",
    "tests/beds/dashboard.py": "import pytest",
    "tests/conftest.py": """
from tests.beds import ssh, work
@pytest.fixture
def sshd():
    return ssh.start()
def other():
    work()
""",
    "tests/web/conftest.py": """
from tests.beds.dashboard import made
@pytest.fixture
def site(sshd):
    yield _made()
def _made():
    made()
""",
    "tests/btrfs/test_works.py": "from tests.beds import work\ndef test_site(site): pass",
    "tests/btrfs/test_named.py": "def test_a(request):\n    request.getfixturevalue('sshd')",
    "tests/web/test_page.py": "@pytest.mark.usefixtures('site')\ndef test_a(): pass",
    "tests/web/test_none.py": "import os\nfrom tests.beds.dashboard import made",
}


def test_a_bed_touches_who_imports_it_through_another_one_and_who_asks_for_its_fixture() -> None:
    ssh = {"tests/beds/ssh.py", "tests/beds/session.py", "tests/conftest.py"}
    assert helpers_used(HELPERS) == {
        "tests/btrfs/test_works.py": {"tests/beds/work.py"},  # the fixture of another folder is another one
        "tests/btrfs/test_named.py": ssh,
        "tests/web/test_page.py": ssh | {"tests/beds/dashboard.py", "tests/web/conftest.py"},
        "tests/web/test_none.py": {"tests/beds/dashboard.py"},
    }


def test_a_bed_that_is_started_as_a_program_touches_who_starts_it() -> None:
    """No import names it, and no line of it is recorded."""
    sources = {
        "tests/beds/liar.py": "from tests.beds import session",
        "tests/beds/session.py": "",
        "tests/beds/holding.py": "",
        "tests/beds/strangers.py": "HOLDER = Path('tests/beds/holding.py')",
        "tests/conftest.py": "import pytest\n@pytest.fixture\ndef badssh():\n    return HERE / 'beds' / 'liar.py'",
        "tests/test_path.py": "LIAR = TOP / 'beds' / 'liar.py'",
        "tests/test_module.py": "WORDS = (sys.executable, '-m', 'tests.beds.holding')",
        "tests/test_through.py": "from tests.beds.strangers import hold",
        "tests/test_fixture.py": "def test_a(badssh): pass",
        "tests/test_words.py": "'''See tests/beds/liar.py, or liar.py for short.'''",
    }
    liar, holding = {"tests/beds/liar.py", "tests/beds/session.py"}, {"tests/beds/holding.py"}
    assert helpers_used(sources) == {
        "tests/test_path.py": liar,
        "tests/test_module.py": holding,
        "tests/test_through.py": holding | {"tests/beds/strangers.py"},
        "tests/test_fixture.py": liar | {"tests/conftest.py"},
        "tests/test_words.py": set(),
    }


def test_beds_of_real_fixtures_are_among_what_a_test_module_uses() -> None:
    """Otherwise CI would not run the tests of a changed bed."""
    folders = ("tests", "tests/beds", "tests/btrfs", "tests/web")
    helpers = [path for folder in folders for path in (TOP / folder).glob("*.py") if not path.name.startswith("test_")]
    tests = [TOP / "tests/btrfs/test_holes.py", TOP / "tests/web/test_overview_page.py"]
    used = helpers_used({path.relative_to(TOP).as_posix(): path.read_text() for path in helpers + tests})
    assert used["tests/btrfs/test_holes.py"] >= {"tests/beds/btrfs.py", "tests/beds/session.py", "tests/beds/manifest.py"}
    assert "tests/beds/dashboard.py" not in used["tests/btrfs/test_holes.py"]


@pytest.mark.parametrize(
    "path", ["tests/conftest.py", "tests/web/conftest.py", "pyproject.toml", "setup.py", "scripts/requirements/x.txt"]
)
def test_what_all_tests_stand_on_asks_for_a_second_turn(path: str) -> None:
    turns = turns_wanted(40, 1, {"README.rst", path})
    assert turns == (0, 9)
    choice = chosen(OTHERS, OTHERS, {path}, turns)
    assert (len(choice.in_turn), choice.turns_left_out) == (8, ())


def test_a_changed_module_that_no_record_has_is_named_and_asks_for_a_second_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A new module, or one that only declares: otherwise CI would pass without any test chosen for it, and not report that."""
    changed = ["btrkeep/new.py", "web/app.py", "docs/conf.py", "tests/web/test_new.py", "README.rst", "backupd/used.py"]
    assert without_users({"tests/test_a.py": Record(1, frozenset({"backupd/used.py"}), 0)}, changed) == ["btrkeep/new.py"]
    monkeypatch.setattr("scripts.touched_tests.TOP", tmp_path)
    (tmp_path / "tests").mkdir()
    for number in range(40):
        (tmp_path / "tests" / f"test_{number}.py").touch()
    (tmp_path / "tests" / "recorded.json").write_text(write_records(OTHERS))
    work("git", "init", "--quiet", tmp_path)
    committed(tmp_path, "2026-03-01T10:00:00Z")
    for name, turns in (("notes.rst", 1), ("settings.py", 2)):
        (tmp_path / name).touch()
        work("git", "-C", tmp_path, "add", name)
        committed(tmp_path, "2026-03-01T11:00:00Z")
        monkeypatch.setattr(sys, "argv", ["touched_tests", "HEAD~1"])
        main()
        output, errors = capfd.readouterr()
        wanted = {"tests/test_2.py"} if turns == 1 else {"tests/test_2.py", "tests/test_3.py"}  # by the turns of the record
        assert wanted <= set(output.split())
        assert len(output.split()) == turns * 4, errors
        assert ("no record has these files, so there is a second turn: settings.py" in errors) == (turns == 2)


def test_a_push_of_several_commits_has_the_turns_of_all_as_far_as_there_is_time() -> None:
    """Else a module that has its turn at a commit in between would wait for another ten, without a word."""
    assert turns_wanted(13, 1, {"web/pyproject.toml"}) == (3,)
    assert turns_wanted(13, 0, ()) == (3,)
    assert turns_wanted(12, 4, ()) == (2, 1, 0, 9)
    assert sorted(turns_wanted(12, 400, ())) == list(range(TURNS))
    light = {f"tests/test_{number}.py": Record(100, frozenset({"web/app.py"}), number % TURNS) for number in range(200)}
    choice = chosen(light, light, (), (2, 1, 0, 9))
    assert set(choice.in_turn) == {module for turn in (2, 1) for module in chosen(light, light, (), (turn,)).in_turn}
    assert choice.turns_left_out == (0, 9)
    touched = chosen(light, light, {"web/app.py"}, (2, 1))
    assert touched.turns_left_out == (1,)
    assert len(touched.touched) > 20


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<<<<<<< HEAD\n",
        "[]",
        '{"modules": []}',
        '{"modules": [], "tests": []}',
        '{"modules": [], "tests": {"tests/test_a.py": [1.0, []]}}',
        '{"modules": [], "tests": {"tests/test_a.py": [1.0, 0, [0]]}}',
        '{"modules": [], "tests": {"tests/test_a.py": [1.0, 10, []]}}',
        '{"modules": [], "tests": {"tests/test_a.py": ["long", 0, []]}}',
        '{"modules": [], "tests": {"tests/test_a.py": [NaN, 0, []]}}',
        '{"modules": [], "tests": {"tests/test_a.py": 1}}',
    ],
)
def test_a_damaged_record_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        read_records(text)


def test_a_damaged_record_is_one_line_and_ci_runs_as_if_there_were_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("scripts.touched_tests.TOP", tmp_path)
    monkeypatch.setattr(sys, "argv", ["touched_tests", "HEAD"])
    (tmp_path / "tests").mkdir()
    for number in range(20):
        (tmp_path / "tests" / f"test_{number}.py").touch()
    work("git", "init", "--quiet", tmp_path)
    committed(tmp_path, "2026-03-01T10:00:00Z")
    main()
    without, _ = capfd.readouterr()
    (tmp_path / "tests" / "recorded.json").write_text("<<<<<<< HEAD")
    main()
    output, errors = capfd.readouterr()
    assert output == without
    assert len(output.split()) > 2
    damaged, _, unrecorded, _ = errors.splitlines()
    assert damaged.startswith("tests/recorded.json is not used: take an older one (`git log tests/recorded.json`)")
    assert unrecorded == "without a record: 20 test modules (scripts/record_tests.py)"


def test_what_was_recorded_anew_replaces_its_record_and_no_other() -> None:
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


def test_a_module_keeps_its_turn_whatever_is_recorded_added_or_deleted() -> None:
    """If each record dealt the turns again, a module could miss its own for as long as tests are added."""
    new = {f"tests/test_{number}.py": Record(number % 7 + 1, frozenset({"web/app.py"})) for number in range(50)}
    records = merged({}, new, new)
    added = {"tests/test_new.py": Record(100, frozenset()), "tests/test_3.py": Record(90, frozenset({"web/app.py"}))}
    left = [*new, "tests/test_new.py"][1:]
    later = merged(records, added, left)
    assert set(later) == set(left)
    assert {module: later[module].turn for module in new if module in left} == {
        module: records[module].turn for module in left[:-1]
    }
    undealt = {module: Record(1, frozenset()) for module in left}
    for number in range(TURNS):
        many, few = chosen(undealt, left, (), (number,)).in_turn, chosen(undealt, left[10:], (), (number,)).in_turn
        assert few == tuple(module for module in many if module in left[10:])
    assert len(many) > 1


def test_lines_of_functions_are_no_lines_of_imports() -> None:
    source = """import os

@decorated
def f(a=os.sep):
    b = a
    return b

class C:
    x = 1
    def m(self):
        return 1
"""
    assert lines_within_functions(source) == {5, 6, 11}


def test_a_recording_is_read_from_what_coverage_and_pytest_wrote(tmp_path: Path) -> None:
    """A real recording of a real package: one context calls a function, the other one only imports the module."""
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


def test_recording_one_module_keeps_the_records_of_the_others_and_refuses_to_lose_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_tests, "TOP", tmp_path)
    monkeypatch.setattr(sys, "argv", ["record_tests", str(tmp_path / "data"), str(tmp_path / "junit.xml")])
    record = tmp_path / "tests" / "recorded.json"
    record.parent.mkdir()
    for name in "ab":
        (record.parent / f"test_{name}.py").touch()
    (tmp_path / "junit.xml").write_text('<testsuite><testcase classname="tests.test_b" name="b" time="2"/></testsuite>')
    old = {f"tests/test_{name}.py": Record(1.0, frozenset({"web/app.py"}), 7) for name in ("a", "gone")}
    record.write_text(write_records(old))
    record_tests.main()
    assert read_records(record.read_text()) == {
        "tests/test_a.py": old["tests/test_a.py"],
        "tests/test_b.py": Record(2.0, frozenset(), 0),
    }
    record.write_text("<<<<<<<")
    with pytest.raises(SystemExit, match="would lose its other records"):
        record_tests.main()
    assert record.read_text() == "<<<<<<<"


IDENTITY = {f"GIT_{who}_{what}": "somebody@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def committed(folder: Path, moment: str, *words: str) -> str:
    """The hash of a commit of that moment; `words`: what git does instead of committing nothing."""
    dates = {"GIT_COMMITTER_DATE": moment, "GIT_AUTHOR_DATE": moment}
    work("git", *(words or ("commit", "--quiet", "--allow-empty", "-m", moment)), cwd=folder, env=IDENTITY | dates)
    return work("git", "rev-parse", "HEAD", cwd=folder).stdout.strip()


def test_a_change_begins_at_the_newest_commit_that_is_a_day_older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scripts.touched_tests.TOP", tmp_path)
    work("git", "init", "--quiet", tmp_path)
    moments = ("2026-03-01T10:00:00Z", "2026-03-02T10:00:00Z", "2026-03-03T09:00:00Z", "2026-03-03T10:00:00Z")
    commits = [committed(tmp_path, moment) for moment in moments]
    assert default_base() == commits[1]
    assert turn() == 4
    assert (commits_since(commits[1]), commits_since(f"{commits[1]}^{{tree}}")) == (2, 0)
    work("git", "reset", "--quiet", "--hard", commits[0], cwd=tmp_path)
    assert default_base() == NOTHING


def test_a_branch_that_is_merged_is_the_change_however_old_its_commits_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the newest of all commits the change would be what the branch had not, and a merge would skip turns."""
    monkeypatch.setattr("scripts.touched_tests.TOP", tmp_path)
    work("git", "init", "--quiet", "--initial-branch=main", tmp_path)
    before = committed(tmp_path, "2026-03-01T10:00:00Z")
    work("git", "checkout", "--quiet", "-b", "branch", cwd=tmp_path)
    for moment in ("2026-03-02T10:00:00Z", "2026-03-03T10:00:00Z"):
        committed(tmp_path, moment)
    work("git", "checkout", "--quiet", "main", cwd=tmp_path)
    committed(tmp_path, "2026-03-09T10:00:00Z", "merge", "--quiet", "--no-ff", "-m", "merged", "branch")
    assert default_base() == before
    assert turn() == 2


def test_a_base_that_is_no_commit_here_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["touched_tests", "0000000000"])
    with pytest.raises(SystemExit, match="no commit 0000000000 in this checkout"):
        main()
    assert capfd.readouterr() == ("", "")


def test_the_turn_of_a_shallow_clone_is_another_for_each_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work("git", "init", "--quiet", tmp_path / "whole")
    turns = set()
    for number in range(3):
        committed(tmp_path / "whole", f"2026-03-0{number + 1}T10:00:00Z")
        work("git", "clone", "--quiet", "--depth=1", f"file://{tmp_path}/whole", tmp_path / str(number))
        monkeypatch.setattr("scripts.touched_tests.TOP", tmp_path / str(number))
        turns.add(turn())
    assert len(turns) == 3
