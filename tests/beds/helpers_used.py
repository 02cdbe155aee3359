"""Finds the files below tests/ that a test module uses: beds that it imports or starts, those that these import, and those of its
fixtures.

By the syntax tree, because lines of beds are not recorded (tests/beds/touched.py). Fixtures are found by the names of arguments, in
`usefixtures` and in `getfixturevalue`; one with `autouse` has no name there. A bed that is started as a program is found by a text
that names it and nothing else: "tests.beds.holding", "tests/beds/liar.py", "liar.py".
"""

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath

_BEDS = "tests/beds/__init__.py"  # it passes names of other beds on


@dataclass(frozen=True, slots=True)
class _File:
    """The relevant parts of the syntax tree of a file below tests/."""

    imports: Mapping[str, str]  # name in the file, or text that names a program: its path below tests/
    functions: Mapping[str, frozenset[str]]  # each function at the top: the names, arguments and texts in it
    fixtures: frozenset[str]  # names of arguments, of any function


def helpers_used(sources: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """`sources` has the text of each Python file below tests/. Returns, for each test module, the paths of the others it uses."""
    files = {path: _read(source, sources) for path, source in sources.items()}
    passed_on = files[_BEDS].imports if _BEDS in files else {}

    def origin(path: str, name: str) -> str:
        return passed_on.get(name, path) if path == _BEDS else path

    @cache
    def direct(path: str) -> frozenset[str]:
        return frozenset(origin(target, name) for name, target in files[path].imports.items())

    def of_fixtures(test: str) -> set[str]:
        folders = {f"{folder}/conftest.py" for folder in PurePosixPath(test).parents}
        confs = [(conf, files[conf]) for conf in sorted(folders.intersection(files))]
        used: set[str] = set()
        names, seen = set(files[test].fixtures), set[str]()
        while names:
            seen.update(names)
            reached = [(conf, file, name) for conf, file in confs for name in names.intersection(file.functions)]
            names = set()
            for conf, file, name in reached:
                inner = file.functions[name]
                used.add(conf)
                used.update(origin(file.imports[each], each) for each in inner.intersection(file.imports))
                names |= inner - seen
        return used

    tests = [path for path in files if PurePosixPath(path).name.startswith("test_")]
    return {test: frozenset(_reached(direct(test) | of_fixtures(test), direct) - {test}) for test in tests}


def _reached(begin: Iterable[str], direct: Callable[[str], frozenset[str]]) -> set[str]:
    """A conftest.py is not followed: what it imports is used only by those that name its fixtures."""
    reached: set[str] = set()
    left = list(begin)
    while left:
        path = left.pop()
        if path not in reached:
            reached.add(path)
            left.extend(direct(path) if not path.endswith("conftest.py") else ())
    return reached


def _read(source: str, paths: Iterable[str]) -> _File:
    known_paths = frozenset(paths)
    tree = ast.parse(source)
    imports: dict[str, str] = {}
    fixtures: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "tests":
            for name in node.names:
                if path := _path(f"{node.module}.{name.name}", known_paths) or _path(node.module or "", known_paths):
                    imports[name.asname or name.name] = path
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if path := _program(node.value, known_paths):
                imports[node.value] = path
        elif isinstance(node, ast.arg):
            fixtures.add(node.arg)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("usefixtures", "getfixturevalue")):
            fixtures.update(str(word.value) for word in node.args if isinstance(word, ast.Constant))
    functions = {node.name: _names(node) for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    return _File(imports, functions, frozenset(fixtures))


def _path(module: str, paths: frozenset[str]) -> str | None:
    path = module.replace(".", "/")
    return next((file for file in (f"{path}.py", f"{path}/__init__.py") if file in paths), None)


def _program(text: str, paths: frozenset[str]) -> str | None:
    """Returns the file of tests/beds that `text` names as a module, or by the end of its path."""
    name = text.removeprefix("tests.beds.") + ".py" if text.startswith("tests.beds.") else PurePosixPath(text).name
    path = f"tests/beds/{name}"
    return path if path in paths and path != _BEDS else None


def _names(function: ast.AST) -> frozenset[str]:
    nodes = list(ast.walk(function))
    return frozenset(
        {node.id for node in nodes if isinstance(node, ast.Name)}
        | {node.arg for node in nodes if isinstance(node, ast.arg)}
        | {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    )
