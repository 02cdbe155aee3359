"""Which test modules CI runs beside the gate: those that a change touches, by recorded data, and a tenth of the others in turn.

tests/recorded.json has for each test module its seconds and the modules whose functions ran in it or in its processes;
scripts/record_tests.py writes it. Seconds are only compared with each other, so any machine may have measured them.
"""

import ast
import json
import math
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from zlib import crc32

TURNS = 10
"""After so many commits that follow each other each test module has had its turn."""

# A share of what all tests take, which is 45 minutes on two cores. The gate, the tests as nobody and the demonstration take 15 of
# the 25 minutes that CI has; a turn takes four more.
_ROOM_FOR_TOUCHED = 0.12

# What is no Python has no record: test modules that begin so are touched by a file that begins so.
_BY_FOLDER = (
    ("docs/", "tests/docs/"),
    ("man/", "tests/docs/"),
    ("README.rst", "tests/docs/"),
    ("systemd/", "tests/systemd/"),
    ("install.sh", "tests/install/"),
    ("scripts/ground.sh", "tests/install/"),
    ("demo.sh", "tests/test_demo"),
    ("web/", "tests/web/"),
    ("bench/", "tests/test_bench"),
    ("btrkeep/catalogue/schema/", "tests/btrkeep/test_catalogue"),
)


@dataclass(frozen=True, slots=True)
class Record:
    """What was recorded of a test module."""

    seconds: float
    uses: frozenset[str]  # paths of modules, from the top folder


@dataclass(frozen=True, slots=True)
class Choice:
    """Test modules, each in one of the three."""

    touched: tuple[str, ...]
    in_turn: tuple[str, ...]
    no_time: tuple[str, ...]  # touched, but there was no time left


def chosen(records: Mapping[str, Record], modules: Collection[str], changed: Collection[str], turn: int) -> Choice:
    """`modules` are all test modules that there are, `changed` the files that a change touches, `turn` any number.

    A module that changed itself comes first; then those that use most of what changed, where a module that all use counts little;
    then those without a record, in another order each turn. These count as long as the others are on average.
    """
    usual = sum(record.seconds for record in records.values()) / len(records) if records else 1.0
    seconds = {module: records[module].seconds if module in records else usual for module in modules}
    of_turn = {module for number, module in enumerate(_by_time(modules, seconds)) if number % TURNS == turn % TURNS}
    users = Counter(name for record in records.values() for name in record.uses)
    weights = {module: _weight(module, records.get(module), changed, users) for module in modules}
    left = _ROOM_FOR_TOUCHED * sum(seconds.values())
    touched, no_time = [], []
    for module in sorted(modules, key=lambda module: (-weights[module], seconds[module], crc32(f"{turn}{module}".encode()))):
        if not weights[module]:
            break
        if module in of_turn:
            touched.append(module)
        elif seconds[module] <= left:
            left -= seconds[module]
            touched.append(module)
        else:
            no_time.append(module)
    return Choice(tuple(touched), tuple(sorted(of_turn.difference(touched))), tuple(no_time))


def beds_imported(source: str) -> frozenset[str]:
    """Returns the paths of the modules of tests/beds that a test module imports itself. They have no record."""
    beds: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "tests.beds":
            beds.update(name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests.beds."):
            beds.add((node.module or "").split(".")[2])
    return frozenset(f"tests/beds/{bed}.py" for bed in beds)


def _by_time(modules: Iterable[str], seconds: Mapping[str, float]) -> list[str]:
    """Neighbours take about the same time, so each turn has as much to do as the others."""
    return sorted(modules, key=lambda module: (-seconds[module], module))


def _weight(module: str, record: Record | None, changed: Collection[str], users: Mapping[str, int]) -> float:
    if module in changed:
        return math.inf
    by_folder = any(module.startswith(tests) and path.startswith(files) for files, tests in _BY_FOLDER for path in changed)
    if record is None:
        return by_folder or sys.float_info.min
    return sum(1 / users[name] for name in record.uses.intersection(changed)) + by_folder


def read_records(text: str) -> dict[str, Record]:
    """Of tests/recorded.json, {"modules": [PATH, ...], "tests": {TEST MODULE: [SECONDS, [NUMBER OF A MODULE, ...]], ...}}."""
    content = json.loads(text)
    names = content["modules"]
    return {
        test: Record(seconds, frozenset(names[number] for number in uses)) for test, (seconds, uses) in content["tests"].items()
    }


def write_records(records: Mapping[str, Record]) -> str:
    """The text of tests/recorded.json: a line for each module."""
    names = sorted({name for record in records.values() for name in record.uses})
    numbers = {name: number for number, name in enumerate(names)}
    lines = [
        f"{json.dumps(test)}: {json.dumps([round(record.seconds, 1), sorted(numbers[name] for name in record.uses)])}"
        for test, record in sorted(records.items())
    ]
    return '{"modules": [\n' + ",\n".join(map(json.dumps, names)) + '\n], "tests": {\n' + ",\n".join(lines) + "\n}}\n"
