"""The project's structure: which module imports which, declared and installed files, the length of modules.

What they hold keeps a defect from users: a handler that hides a bug, a module or page that is missing in an installation, a package
that overwrites another's, a time in another zone than the pool's. The order of imports keeps a change in its room.
"""

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.beds import TOP, work
from tests.beds.imports import AREAS, PROGRAMS, broken, used_in, violations

PACKAGES = ("btrkeep", *PROGRAMS)
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
MODULES = sorted(path.relative_to(TOP) for package in PACKAGES for path in (TOP / package).rglob("*.py"))


def dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read(path: Path) -> str:
    return (TOP / path).read_text(encoding="utf-8")


@cache
def tree(path: Path) -> ast.Module:
    """Returns the syntax tree of a module, parsed once for all tests here."""
    return ast.parse(read(path))


def tracked_files() -> list[Path]:
    """Returns the files of the present or the next commit; without git, all files except those that .gitignore lists."""
    done = work(
        "git", "-c", f"safe.directory={TOP}", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=TOP, check=False
    )
    if done.returncode == 0:
        paths = (Path(name) for name in done.stdout.split("\0") if name)
    else:
        ignored = re.compile(r"(^|/)(\.git|\.venv|\.\w+_cache|__pycache__|\.hypothesis|build|dist|[^/]+\.egg-info)/")
        paths = (path.relative_to(TOP) for path in TOP.rglob("*") if not ignored.search(f"/{path.relative_to(TOP)}"))
    return [path for path in paths if (TOP / path).is_file()]


@pytest.mark.slow
def test_each_module_uses_only_what_its_place_allows() -> None:
    assert len(MODULES) > 300
    assert [line for path in MODULES for line in broken(dotted(path), uses_of_all()[dotted(path)])] == []


def test_every_module_of_the_ground_has_a_place_in_the_order() -> None:
    homeless = [module for path in MODULES if (module := dotted(path)) != "btrkeep" and not module.startswith(AREAS)]
    assert homeless == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("btrkeep.units", "from . import process"),
        ("btrkeep.catalogue", "def later():\n    import backupd.run"),
        ("web.views", "import backupd.run.work_subvolume"),
        ("backupd.run", "from subprocess import run as go"),
        ("backupd.run", "import os as o\no.system('x')"),
        ("backupd.run", "print('x')"),
        ("btrkeep.nowhere", "import btrkeep.process"),
    ],
)
def test_a_module_out_of_order_is_found(module: str, source: str) -> None:
    assert violations(module, source)


def loaded_with(*modules: str) -> set[str]:
    """Returns the modules that a new interpreter has loaded after it imported these."""
    look = "import sys\n" + "".join(f"import {module}\n" for module in modules) + "print(*sys.modules, sep='\\n')"
    loaded = set(work(sys.executable, "-c", look, cwd=TOP).stdout.split())
    assert set(modules) <= loaded
    return loaded


IMPURE = {"btrkeep.process.programs", "btrkeep.process.group", "btrkeep.treescan.search", "btrfs", "click", "rich", "asyncio"}


@pytest.mark.slow
def test_decisions_are_pure_and_so_is_what_the_dashboard_finds_behind_a_door() -> None:
    """They import no module that starts processes, no command line, no reader of trees and no python-btrfs."""
    decisions = [module for path in MODULES if (module := dotted(path)).startswith(("btrkeep.decisions", "btrkeep.charts"))]
    assert len(decisions) > 10
    assert loaded_with(*decisions).isdisjoint(IMPURE)
    drawing = {used for path in MODULES if path.parts[0] == "web" for used in uses_of_all()[dotted(path)]}
    drawing = {dotted(path) for path in MODULES} & {used.rpartition(".")[0] for used in drawing if used.startswith("heatmap.")}
    assert loaded_with(*sorted(drawing)).isdisjoint(IMPURE)


@cache
def uses_of_all() -> dict[str, set[str]]:
    """Returns the names that each module uses. Not computed while tests are collected, because each worker collects them."""
    return {dotted(path): {*used_in(tree(path), dotted(path), path.name == "__init__.py")} for path in MODULES}


def graph(cut: int | None = None) -> dict[str, set[str]]:
    """Returns which modules import which, by the first `cut` parts of the names (None: modules). Imports in functions count too.

    The commands of a feature are above all features, so they count as a room of their own.
    """
    modules = {dotted(path) for path in MODULES}

    def module_of(used: str) -> str | None:
        return next((name for name in (used, used.rpartition(".")[0]) if name in modules), None)

    def shortened(name: str) -> str:
        parts = name.split(".")
        return ".".join(parts[: parts.index("cli") + 1 if cut and "cli" in parts[cut:] else cut])

    result: dict[str, set[str]] = {shortened(name): set() for name in modules}
    for name, used in uses_of_all().items():
        others = {shortened(module) for each in used if (module := module_of(each))} - {shortened(name)}
        result[shortened(name)] |= others
    return result


def cycles(by_name: Mapping[str, set[str]]) -> list[set[str]]:
    """Returns sets of nodes that reach each other."""
    reached = {node: reachable(by_name, node) for node in by_name}
    return [
        {node, other} for node in by_name for other in by_name if node < other and other in reached[node] and node in reached[other]
    ]


def reachable(by_name: Mapping[str, set[str]], node: str) -> set[str]:
    seen: set[str] = set()
    ahead = [node]
    while ahead:
        new = by_name[ahead.pop()] - seen
        seen |= new
        ahead += new
    return seen


@pytest.mark.slow
def test_nothing_is_imported_in_a_circle_neither_modules_nor_rooms() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b"}, {"a", "c"}, {"b", "c"}]
    assert cycles(graph()) == []
    rooms = graph(2)
    assert {"backupd.run", "backupd.repo", "btrkeep.decisions"} <= rooms.keys()
    assert cycles(rooms) == []


def test_the_picture_of_the_house_has_all_rooms_and_no_module_is_loose() -> None:
    text = (TOP / "CONTRIBUTING.rst").read_text()
    words = set(re.findall(r"[a-z]+", text.partition("Where does a line go\n---")[2].partition("\n=====")[0]))
    folders = {
        folder.name
        for top in ("backupd", "btrkeep", "web")
        for folder in (TOP / top).iterdir()
        if (folder / "__init__.py").exists()
    }
    assert folders - words == set()
    assert sorted(path.name for path in MODULES if path.parent == Path("backupd")) == ["__init__.py", "__main__.py"]


@pytest.mark.slow
def test_no_public_class_has_the_name_of_another() -> None:
    where: dict[str, list[str]] = {}
    for path in MODULES:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(dotted(path))
    assert where["Retention"] == ["btrkeep.config.config_model"]
    assert {name: modules for name, modules in where.items() if len(modules) > 1} == {}


def test_no_module_is_longer_than_500_lines() -> None:
    lengths = {str(path): read(path).count("\n") for path in tracked_files() if path.suffix == ".py"}
    lengths.pop("backupd/source/btrkeep_source.py")  # comes to hosts as one file
    assert "btrkeep/units.py" in lengths
    assert {name: length for name, length in lengths.items() if length > 500} == {}


@pytest.mark.slow
def test_no_handler_swallows_bugs() -> None:
    """A handler of all errors raises the error again, or logs it with its traceback; a linter's rule can be silenced."""
    assert [f"{path}:{line}" for path in MODULES for line in swallowing_handlers(tree(path))] == []


def swallowing_handlers(module: ast.Module) -> list[int]:
    handlers = [node for node in ast.walk(module) if isinstance(node, ast.ExceptHandler)]
    everything = [node for node in handlers if node.type is None or re.search(r"\b(Base)?Exception\b", ast.unparse(node.type))]
    return [node.lineno for node in everything if not any(_tells(inner) for inner in ast.walk(node))]


def _tells(node: ast.AST) -> bool:
    return isinstance(node, ast.Raise) or (isinstance(node, ast.Attribute) and node.attr == "exception")


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    """A project with scripts/lint.sh, our settings, a commit, and since then a module with a fault of each kind."""
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/lint.sh", "pyproject.toml"):
        (tmp_path / name).write_bytes((TOP / name).read_bytes())
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    for path in (tmp_path / "scripts/lint.sh", tmp_path / ".venv/bin/python"):
        path.chmod(0o755)
    (tmp_path / ".gitignore").write_text(".*\n")
    work("git", "init", "-q", "-b", "main", cwd=tmp_path)
    work("git", "add", ".", cwd=tmp_path)
    work("git", "-c", "user.name=x", "-c", "user.email=x@x", "commit", "-q", "-m", "x", cwd=tmp_path)
    (tmp_path / "bad.py").write_text("import os\nnumber: int = 'one'\n")
    return tmp_path


@pytest.mark.slow
def test_the_linter_the_formatter_and_mypy_are_each_heard(faulty: Path) -> None:
    done = work("bash", "scripts/lint.sh", "--changed", cwd=faulty, check=False)
    assert done.returncode == 1
    assert "bad.py:1:8: F401" in done.stdout
    assert "would be reformatted" in done.stdout
    assert "bad.py:2: error: Incompatible types in assignment" in done.stdout
    (faulty / "bad.py").write_text("number: int = 1\n")
    assert work("bash", "scripts/lint.sh", "--changed", cwd=faulty).stdout.endswith("Success: no issues found in 1 source file\n")


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((TOP / "scripts").glob("*.py")), ids=lambda path: path.stem)
def test_a_script_that_is_asked_for_help_prints_it_and_does_nothing_else(path: Path) -> None:
    if "__main__" not in path.read_text(encoding="utf-8"):
        return
    done = work(sys.executable, "-m", f"scripts.{path.stem}", "--help", cwd=TOP)
    assert done.stdout.startswith("usage: ")


def test_the_shell_scripts_are_well_formed() -> None:
    scripts = [
        path
        for path in tracked_files()
        if re.match(rb"#!.*\bsh|#!.*\bbash", (TOP / path).read_bytes()[:64]) or path.suffix == ".sh"
    ]
    assert {Path("test.sh"), Path("scripts/ground.sh"), Path("tests/fakessh")} <= set(scripts)
    for path in scripts:
        work("bash", "-n", TOP / path)


# Notes beside the project that its readers do not have, folders of one machine, and where packages come from, which is the
# administrator's choice. The plus signs only keep the words out of this file.
FORBIDDEN = [
    re.compile(pattern.replace("+", ""))
    for pattern in (
        "sha+red/(DESIGN|STYLE|facts|hooks|tools)",
        r"(?<![\w.])/wo+rk/",
        "/var/tmp/+lab/",
        "index-+url",
        "trusted-+host",
        "find-+links",
        "/opt/+wheels",
    )
]


def forbidden_words(text: str) -> list[str]:
    return [match[0] for pattern in FORBIDDEN if (match := pattern.search(text))]


@pytest.mark.slow
def test_no_file_names_what_only_its_authors_machine_has() -> None:
    texts = {path: (TOP / path).read_text(encoding="utf-8", errors="replace") for path in tracked_files()}
    assert {str(path): words for path, text in texts.items() if (words := forbidden_words(text))} == {}


def foreign_owners(owners: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Returns other distributions that install a package with one of our names: installed side by side, one would overwrite the
    other.
    """
    others = {name: sorted({*owners.get(name, ())} - {"btrkeep"}) for name in PACKAGES}
    return {name: who for name, who in others.items() if who}


def test_our_import_names_belong_to_no_other_package_here() -> None:
    assert foreign_owners(packages_distributions()) == {}


# Needed, though no module imports it: zoneinfo reads it where the system has no time zones of its own.
NEVER_IMPORTED = {"tzdata"}
DISTRIBUTION = {
    "PIL": "pillow",
    "argon2": "argon2-cffi",
    "flask_wtf": "flask-wtf",
    "zipstream": "zipstream-ng",
}


def declared() -> set[str]:
    """Returns the names in setup.py's install_requires, read from its text."""
    calls = [node for node in ast.walk(ast.parse(read(Path("setup.py")))) if isinstance(node, ast.keyword)]
    [words] = [ast.literal_eval(node.value) for node in calls if node.arg == "install_requires"]
    return {re.split(r"[<>=!~ ;\[]", word)[0] for word in words}


WORDS_OF_TIMES = {
    "btrkeep.units": "the functions that all others use",
    "btrkeep.config.values": "a window as the configuration writes it",
    "btrkeep.decisions.trend": "an axis of times, in the zone that it is given",
    "backupd.observe.graph_pictures": "the title of a day's picture, named with its zone",
    "btrkeep.charts.day": "the words of a day's chart, in the zone that it is given",
    "btrkeep.charts.trend": "the words of a trend's chart, by days",
    "backupd.offsite.repository": "restic's --time",
    "backupd.source.btrkeep_source": "names of sessions, and times for the server, in UTC",
}
"""The modules of the command line that format times themselves, and why."""
RECORDS_OF_TIMES = {
    "backupd.alarms.alarm_memory",
    "backupd.serve.start_job",
    "btrkeep.catalogue.sqlite",
    "btrkeep.decisions.scrub",
    "btrkeep.decisions.verification",
    "heatmap.recorded",
}
"""Those that write times down with more than seconds."""


def formats_times(module: str, source: ast.AST) -> list[str]:
    """Returns the lines that format a time without `local_time` or a similar function, or put `format_time` into a sentence."""
    result = []
    for node in ast.walk(source):
        if isinstance(node, ast.Attribute) and node.attr in ("strftime", "isoformat", "asctime"):
            result.append(f"{module}:{node.lineno}: {node.attr}")
        if isinstance(node, ast.FormattedValue) and node.format_spec and re.search("%[a-zA-Z-]", ast.unparse(node.format_spec)):
            result.append(f"{module}:{node.lineno}: {ast.unparse(node.format_spec)}")
        if isinstance(node, ast.FormattedValue):
            calls = {call.func.id for call in ast.walk(node) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)}
            result += [f"{module}:{node.lineno}: format_time"] if "format_time" in calls else []
    return result


@pytest.mark.slow
def test_only_one_place_has_words_for_times() -> None:
    """Other modules would print UTC where the administrator reads times in the pool's zone."""
    lines = {dotted(path): formats_times(dotted(path), tree(path)) for path in MODULES if path.parts[0] != "web"}
    own_names = "backupd.serve.jobs"  # the names of jobs are made from times
    assert lines.pop(own_names)
    assert {module for module, matches in lines.items() if matches} == {*WORDS_OF_TIMES, *RECORDS_OF_TIMES}
    for module in RECORDS_OF_TIMES:
        assert [line for line in lines[module] if not line.endswith("isoformat")] == []


@pytest.mark.slow
def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    tops = {used.partition(".")[0] for all_used in uses_of_all().values() for used in all_used}
    foreign = {DISTRIBUTION.get(name, name) for name in tops - {*sys.stdlib_module_names, *PACKAGES, "print"}}
    assert foreign - declared() == set()
    assert declared() - foreign - NEVER_IMPORTED == set()


@pytest.mark.slow
def test_an_installation_holds_every_module_and_data_file_and_nothing_else(tmp_path: Path) -> None:
    argv = [sys.executable, "setup.py", "-q", "build", "--build-base", str(tmp_path / "base"), "--build-lib", str(tmp_path / "lib")]
    subprocess.run(argv, cwd=TOP, check=True, stdin=subprocess.DEVNULL)
    installed = {path.relative_to(tmp_path / "lib") for path in (tmp_path / "lib").rglob("*") if path.is_file()}
    ours = {path for path in tracked_files() if path.parts[0] in PACKAGES}
    assert ours - installed == set()
    assert {path.parts[0] for path in installed} == {*PACKAGES}


def test_every_command_that_is_installed_exists() -> None:
    calls = [node for node in ast.walk(ast.parse(read(Path("setup.py")))) if isinstance(node, ast.keyword)]
    [points] = [ast.literal_eval(node.value) for node in calls if node.arg == "entry_points"]
    for line in points["console_scripts"]:
        module, _, function = line.partition(" = ")[2].partition(":")
        path = Path(*module.split("."))
        source = read(path / "__init__.py" if (TOP / path).is_dir() else path.with_suffix(".py"))
        assert function in {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)}, line


def _is_described(body: Sequence[ast.stmt], at: int, name: str, docstring: str) -> bool:
    """Tells whether the field has a line below it, is named in the docstring, or has its text as a key or a parameter."""
    has_text = re.search(r"\b(entry|filled_by|ConfigKey|_period|Field)\(", ast.unparse(body[at]))
    is_named = re.search(rf"\b{name}\b", docstring)
    return bool(has_text or is_named) or (at + 1 < len(body) and isinstance(body[at + 1], ast.Expr))


_PARAMETERS = "Host|Path|Which|Why|Name|Before|Overwrite"  # types of web/api, which have a description each


def test_each_field_of_a_dataclass_has_a_line() -> None:
    """Without that line, a reader, such as a user of the API, has to search the code for the field's unit and the meaning of None.

    Not: options of a command, which have their help; arrays, which a class describes together; fields that begin with _.
    """
    bare = [
        f"{path}: {kind.name}.{field.target.id}"
        for path in MODULES
        if "cli" not in path.parts and path.name != "cli.py"
        for kind in ast.walk(tree(path))
        if isinstance(kind, ast.ClassDef) and any("dataclass" in ast.unparse(each) for each in kind.decorator_list)
        for at, field in enumerate(kind.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and not field.target.id.startswith("_")
        if not re.search(rf"ClassVar|\bArray\b|Annotated|^({_PARAMETERS})\b", ast.unparse(field.annotation))
        if not _is_described(kind.body, at, field.target.id, ast.get_docstring(kind) or "")
    ]
    assert not bare, "\n".join(bare)
