"""Changes one place of the product at a time, in a copy of the checkout, and lists the changes that no test notices.

    python -m scripts.mutate btrkeep/decisions/retention.py --count 40 --seed 1 --tests tests/backupd/test_retention.py

The places are drawn at random, by the seed, from the given modules. Changes that `--tests` do not notice are run against the tests
of `--then`. Only tests of the gate are run, and the modules of `--also`. Exit status 1 if a change survives: it needs a test, or a
reason why it has no effect.

The tests are collected once. Each change is made in a process forked from there, and in the copy for the commands that tests start.
"""

import argparse
import ast
import contextlib
import copy
import gc
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

TOP = Path(__file__).resolve().parents[1]
_WANTED = "BTRKEEP_MUTATIONS"

_OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.Continue: ast.Break, ast.Break: ast.Continue,
}  # fmt: skip
_OTHER_FUNCTION = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list"}
_SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "defaults", "kw_defaults"}
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
_JOURNAL = {"log", "logging"}


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change. `place`: its number among all changes of the module."""

    module: str
    place: int
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line} #{self.place}: {self.before}  ->  {self.after}"


def mutations(module: str, source: str) -> list[Mutation]:
    """Returns all changes of a module, in the order of its text."""
    changes = enumerate(_changes(ast.parse(source)))
    return [Mutation(module, place, old.lineno, _short(old), _short(new)) for place, (old, new) in changes]


def mutated(source: str, place: int) -> ast.Module:
    """Returns the module with that change. Lines keep their numbers."""
    tree = ast.parse(source)
    old, new = _changes(tree)[place]
    ast.copy_location(new, old)
    _Replace(old, new).visit(tree)
    return ast.fix_missing_locations(tree)


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).split())
    return text if len(text) <= 90 else f"{text[:87]}..."


def _changes(tree: ast.AST) -> list[tuple[ast.stmt | ast.expr, ast.AST]]:
    return [(node, new) for node in _evaluated(tree) for new in _variants(node)]


def _evaluated(node: ast.AST) -> Iterator[ast.stmt | ast.expr]:
    """Yields the nodes that decide something at run time, without annotations, decorators, defaults, texts and log messages."""
    if isinstance(node, ast.expr | ast.stmt):
        yield node
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            is_default = isinstance(node, ast.ClassDef) and not isinstance(child, _FUNCTIONS)
            if isinstance(child, ast.AST) and not (name in _SKIPPED_FIELDS or is_default or _is_words(child)):
                yield from _evaluated(child)


def _is_words(node: ast.AST) -> bool:
    if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom):
        return True
    value = node.value if isinstance(node, ast.Expr) else None
    function = value.func if isinstance(value, ast.Call) else None
    is_journal = isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id in _JOURNAL
    return is_journal or isinstance(value, ast.Constant)


def _variants(node: ast.stmt | ast.expr) -> Iterator[ast.AST]:
    match node:
        case ast.Compare():
            for index, operator in enumerate(node.ops):
                if type(operator) in _OTHER:
                    yield _with(node, ops=[*node.ops[:index], _OTHER[type(operator)](), *node.ops[index + 1 :]])
        case ast.BoolOp():
            yield _with(node, op=_OTHER[type(node.op)]())
            for index in range(len(node.values)):
                rest = node.values[:index] + node.values[index + 1 :]
                yield copy.copy(rest[0]) if len(rest) == 1 else _with(node, values=rest)
        case ast.UnaryOp(op=ast.Not()):
            yield copy.copy(node.operand)
        case ast.BinOp() | ast.AugAssign() if type(node.op) in _OTHER:
            yield _with(node, op=_OTHER[type(node.op)]())
        case ast.If() | ast.While():
            yield _with(node, test=ast.UnaryOp(ast.Not(), node.test))
        case ast.IfExp():
            yield _with(node, body=node.orelse, orelse=node.body)
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int() | float() as number):
            yield ast.Constant(number + 1)
        case ast.Return(value=ast.expr()) if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield ast.Return(ast.Constant(None))
        case ast.Raise() | ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Continue() | ast.Break():
            yield _OTHER[type(node)]()
        case ast.Call(func=ast.Name(id=name)) if name in _OTHER_FUNCTION:
            yield _with(node, func=ast.Name(_OTHER_FUNCTION[name], ast.Load()))
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            for index, part in enumerate(node.generators):
                if part.ifs:
                    yield _with(node, generators=[*node.generators[:index], _with(part, ifs=[]), *node.generators[index + 1 :]])


def _with(node: Any, **fields: object) -> Any:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


# In pytest, which has this module as a plugin.


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Replaces the run of all tests by a run for each change, in a separate process, until the first test fails."""
    if _WANTED not in os.environ:
        return None
    wanted = json.loads(os.environ.pop(_WANTED))
    assert not session.testsfailed, "tests could not be collected"
    if killer := _forked(session, None):
        raise pytest.UsageError(f"fails without any change: {killer}")
    for module, place in wanted:
        path = TOP / module
        source = path.read_text(encoding="utf-8")
        try:
            killer = _forked(session, (module, place))
        finally:
            path.write_text(source, encoding="utf-8")
        print(json.dumps([module, place, killer]), file=sys.__stderr__, flush=True)
    return True


def _forked(session: pytest.Session, change: tuple[str, int] | None) -> str:
    """Returns the first test that fails after the change, "" if all pass."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        status = 1
        try:
            silence = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(silence, descriptor)
            os.write(writing, _first_failure(session, change).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as answer:
        text = answer.read()
    _, status = os.waitpid(process, 0)
    return text if status == 0 else f"the process of the tests ended with {status}"


def _first_failure(session: pytest.Session, change: tuple[str, int] | None) -> str:
    from tests.beds import session as beds

    os.environ[beds.MARK] = beds.own_name()
    if change:
        _make(*change)
    failures = _Failures()
    session.config.pluginmanager.register(failures)
    for item, following in zip(session.items, [*session.items[1:], None], strict=True):
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if failures.tests:
            with contextlib.suppress(Exception):  # the change may also keep a fixture from ending
                session._setupstate.teardown_exact(None)
            break
    beds.end_session(beds.own_name(), patience=2)
    return next(iter(failures.tests), "")


class _Failures:
    def __init__(self) -> None:
        self.tests: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.tests.append(report.nodeid)


def _make(module: str, place: int) -> None:
    """Makes a change in the file, and in this process if the module is already loaded."""
    path = TOP / module
    tree = mutated(path.read_text(encoding="utf-8"), place)
    path.write_text(ast.unparse(tree), encoding="utf-8")
    os.utime(path, (0, 1_000_000_000 + 10 * place))  # a compiled module counts as current by its source's time and size
    loaded = sys.modules.get(".".join(path.relative_to(TOP).with_suffix("").parts))
    if loaded is None:
        return
    codes = {(code.co_qualname, code.co_firstlineno): code for code in _codes(compile(tree, str(path), "exec"))}
    gc.unfreeze()
    for function in [thing for thing in gc.get_objects() if isinstance(thing, FunctionType)]:
        old = function.__code__
        new = codes.get((old.co_qualname, old.co_firstlineno)) if old.co_filename == str(path) else None
        if new and new.co_freevars == old.co_freevars:
            function.__code__ = new
    names: dict[str, object] = dict(vars(loaded))
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            exec(compile(ast.Module([statement], []), str(path), "exec"), names)
    for name, old_value in dict(vars(loaded)).items():
        if isinstance(old_value, int | float | timedelta) and names[name] != old_value:
            for other in list(sys.modules.values()):
                if getattr(other, "__dict__", {}).get(name) is old_value:
                    setattr(other, name, names[name])


def _codes(code: CodeType) -> Iterator[CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            yield from _codes(inner)


# Outside of pytest.


def _copied(folder: Path) -> None:
    """Copies the files that git knows, as they are now."""
    words = ("git", "-C", str(TOP), "ls-files", "-z", "-co", "--exclude-standard")
    for name in filter(None, subprocess.run(words, check=True, capture_output=True, text=True).stdout.split("\0")):
        if (TOP / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(TOP / name, folder / name, follow_symlinks=False)


def _killers(folder: Path, wanted: Sequence[Mutation], tests: Sequence[str], also: Sequence[str]) -> dict[Mutation, str]:
    """Returns the test that fails for each change; "" if no test fails."""
    words = [sys.executable, "-m", "pytest", "-p", "scripts.mutate", "-q", "-s", "--gate", "--hypothesis-seed=1"]
    environment = {**os.environ, "PYTHONPATH": str(folder), _WANTED: json.dumps([(each.module, each.place) for each in wanted])}
    answers = {}
    by_place = {(each.module, each.place): each for each in wanted}
    words += ["-p", "no:cacheprovider", "-o", "timeout=120", *(f"--also={module}" for module in also), *tests]
    with subprocess.Popen(words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        for line in process.stderr:
            if line.startswith("["):
                module, place, killer = json.loads(line)
                answers[by_place[module, place]] = killer
                print("killed  " if killer else "survived", by_place[module, place], f"({killer})" if killer else "", flush=True)
        assert process.stdout
        text = process.stdout.read()
    if len(answers) < len(wanted):
        raise SystemExit(text)
    return answers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="+")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--tests", nargs="+", required=True)
    parser.add_argument("--then", nargs="+", default=[])
    parser.add_argument(
        "--also", nargs="+", default=[], metavar="MODULE", help="modules of tests that run although they are not in the gate"
    )
    parser.add_argument("--only", nargs="+", metavar="MODULE#PLACE", help="only these of the drawn changes, to try survivors again")
    asked = parser.parse_args()
    every = [change for module in asked.modules for change in mutations(module, (TOP / module).read_text(encoding="utf-8"))]
    drawn = random.Random(asked.seed).sample(every, min(asked.count, len(every)))
    drawn = [change for change in drawn if not asked.only or f"{change.module}#{change.place}" in asked.only]
    left = sorted(drawn, key=lambda change: (change.module, change.place))
    with tempfile.TemporaryDirectory(prefix="mutants-", dir="/var/tmp") as name:
        _copied(Path(name))
        for tests in filter(None, (asked.tests, asked.then)):
            killers = _killers(Path(name), left, tests, asked.also) if left else {}
            left = [change for change in left if not killers[change]]
    for change in left:
        print(f"SURVIVED {change}")
    print(f"{len(drawn) - len(left)} of {len(drawn)} changes killed, of {len(every)} possible; seed {asked.seed}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
