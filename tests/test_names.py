"""Names in code describe their thing. tests/names.txt lists the forbidden names and the exceptions, with their reasons."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from symtable import SymbolTable, symtable

from tests.beds import TOP
from tests.test_structure import tracked_files

PRODUCT = ("backupd", "btrkeep", "web", "heatmap", "balancer")
_LINES = [line.split(maxsplit=2) for line in (TOP / "tests" / "names.txt").read_text(encoding="utf-8").splitlines()]
NAMES = defaultdict[str, set[str]](set)
for _line in _LINES:
    if _line and not _line[0].startswith("#"):
        NAMES[_line[0]].add(_line[1])
MODULES = [path for path in tracked_files() if path.suffix == ".py"]
PRODUCT_MODULES = [path for path in MODULES if path.parts[0] in PRODUCT]


def variables(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and name of each variable and parameter, without fields of classes, which may be keys of stored data."""
    tree = ast.parse(source)
    fields = {
        id(name)
        for kind in ast.walk(tree)
        if isinstance(kind, ast.ClassDef)
        for statement in kind.body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        for name in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields:
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def bound(table: SymbolTable) -> Iterator[str]:
    """Yields all that `variables` yields, names of fields and exceptions too, and in a tenth of the time."""
    for symbol in table.get_symbols():
        if symbol.is_assigned() or symbol.is_parameter():
            yield symbol.get_name()
    for inner in table.get_children():
        yield from bound(inner)


def forbidden(paths: list[Path]) -> list[str]:
    sources = {path: (TOP / path).read_text(encoding="utf-8") for path in paths}
    return [
        f"{path}:{line}: {name}"
        for path, source in sources.items()
        if not NAMES["variable"].isdisjoint(bound(symtable(source, str(path), "exec")))
        for line, name in variables(source)
        if name in NAMES["variable"]
    ]


def test_no_variable_has_a_name_that_says_nothing() -> None:
    assert forbidden(MODULES) == []


def test_no_variable_of_a_template_has_a_name_that_says_nothing() -> None:
    """The variables of {% for %}, {% set %} and {% macro %}."""
    bindings = re.compile(r"{%-? *(?:for ([\w, ]+) in |set (\w+)|macro (\w+\([^)]*\)))")
    faults = [
        f"{path}: {name}"
        for path in tracked_files()
        if path.suffix == ".html" and path.parts[0] in PRODUCT
        for match in bindings.findall((TOP / path).read_text(encoding="utf-8"))
        for name in re.findall(r"\w+", " ".join(match))
        if name in NAMES["variable"]
    ]
    assert faults == []


def test_no_two_rooms_have_modules_of_one_name() -> None:
    """A tab or a traceback shows only the module's name. tests/names.txt lists the conventions (cli.py) and the exceptions.

    The module of a command has the command's name, also where another room has its work: cli/scrub.py and scrub.py.
    """
    rooms = defaultdict[str, list[Path]](list)
    for path in PRODUCT_MODULES:
        if not path.stem.startswith("__") and path.parent.name != "cli" and path.stem not in NAMES["module"]:
            rooms[path.stem].append(path)
    assert [sorted(map(str, paths)) for paths in rooms.values() if len(paths) > 1] == []


def test_variables_are_found_wherever_they_are_bound() -> None:
    source = "class A:\n    what: str\n\ndef f(one, *told):\n    for said in [some for some in one]:\n        (found := said)\n"
    assert sorted(name for _, name in variables(source)) == ["found", "one", "said", "some", "told"]
    assert {"found", "one", "said", "some", "told"} <= set(bound(symtable(source, "", "exec")))


def test_a_class_is_a_noun() -> None:
    """A participle alone (Prepared, Announced, Watched) does not tell which thing was prepared, announced or watched."""
    participle = re.compile(r"^ *class (_?[A-Z][a-z]+(?:ed|en))\b", re.MULTILINE)
    participles = [
        f"{path}: {name}"
        for path in PRODUCT_MODULES
        for name in participle.findall((TOP / path).read_text(encoding="utf-8"))
        if name not in NAMES["participle"]
    ]
    assert participles == []


def test_no_class_pretends_to_be_a_function() -> None:
    assert [str(path) for path in PRODUCT_MODULES if "noqa: N801" in (TOP / path).read_text(encoding="utf-8")] == []
