"""Which test modules CI runs beside the gate: those touched by a change, by recorded data, and a tenth of the others in turn.

tests/recorded.json has for each test module its seconds and the modules whose functions ran in it or in its processes;
scripts/record_tests.py writes it. Seconds are only compared with each other, so any machine may have measured them.
tests/beds/helpers_used.py adds the files below tests/ that a test module uses.

Nothing is recorded in a booted machine, in another installation, or only with --long: install/test_trees,
test_anywhere, btrfs/test_offsite_s3, systemd/test_second_copy_walks, and most of the other modules in systemd/. A change of their
product code does not touch these; they run in their turn, and when they or the files in _BY_FOLDER change.
"""

import json
import math
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

TURNS = 10
"""After that many consecutive commits, each test module has had its turn."""

# A share of the time of all tests, which is 45 to 90 minutes on two cores. The gate, the tests as nobody and the demonstration take
# 10 to 15 of the 25 minutes that CI has; HEAD's turn takes four to six more. What is touched comes first, and has a part of the
# room; a further turn runs if it fits into what is left.
_ROOM = 0.105
_ROOM_OF_TOUCHED = 0.06

# Files that all tests depend on, and files without a record: a change of these requires a second turn.
_WIDE = ("conftest.py", "pyproject.toml", "setup.py", "scripts/requirements/")

# Files other than Python have no record: a file with this prefix touches the test modules with that prefix.
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
    """The record of a test module."""

    seconds: float
    uses: frozenset[str]  # paths of modules, from the top folder
    turn: int | None = None  # None: not assigned yet


@dataclass(frozen=True, slots=True)
class Choice:
    """Test modules, each in one of the first three fields."""

    touched: tuple[str, ...]
    in_turn: tuple[str, ...]
    no_time: tuple[str, ...]  # touched, but there was no time left
    turns_left_out: tuple[int, ...]  # for which no time was left


def is_wide(changed: Iterable[str]) -> bool:
    """Returns True if a change of these files may touch any test."""
    return any(path.startswith(_WIDE) or path.endswith("/conftest.py") for path in changed)


def without_users(records: Mapping[str, Record], changed: Iterable[str]) -> list[str]:
    """Returns the Python files among `changed` that no record has: new modules, and those with declarations only. No tests are
    chosen by them.
    """
    used = {name for record in records.values() for name in record.uses}
    by_folder = tuple(files for files, _ in _BY_FOLDER)
    return sorted(
        path
        for path in changed
        if path.endswith(".py") and path not in used and not path.startswith(by_folder) and "/test_" not in path
    )


def turns_wanted(newest: int, commits: int, changed: Iterable[str]) -> tuple[int, ...]:
    """Returns the turns of the newest commit and of those before it, `commits` in all, newest first; after a wide change at least
    two.
    """
    count = max(commits, 2 if is_wide(changed) else 1)
    return tuple((newest - back) % TURNS for back in range(min(count, TURNS)))


def chosen(records: Mapping[str, Record], modules: Collection[str], changed: Collection[str], turns: Sequence[int]) -> Choice:
    """Chooses. `modules`: all test modules; `changed`: the files that a change touches; `turns`: from `turns_wanted`.

    A module that changed itself comes first; then those that use most of the changed modules, where a module that all use counts
    little; then those without a record, in another order each turn, with the average duration. The first turn always has time, each
    other turn if it fits into the time that the touched modules leave.
    """
    turn = turns[0]
    usual = sum(record.seconds for record in records.values()) / len(records) if records else 1.0
    seconds = {module: records[module].seconds if module in records else usual for module in modules}
    turn_of = {module: _turn(module, records.get(module)) for module in modules}
    of_turn = {module for module in modules if turn_of[module] == turn}
    users = Counter(name for record in records.values() for name in record.uses)
    weights = {module: _weight(module, records.get(module), changed, users) for module in modules}
    left, left_to_touched = (share * sum(seconds.values()) for share in (_ROOM, _ROOM_OF_TOUCHED))
    touched, no_time = [], []
    for module in sorted(modules, key=lambda module: (-weights[module], seconds[module], crc32(f"{turn}{module}".encode()))):
        if not weights[module]:
            break
        if module in of_turn:
            touched.append(module)
        elif seconds[module] <= left_to_touched:
            left -= seconds[module]
            left_to_touched -= seconds[module]
            touched.append(module)
        else:
            no_time.append(module)
    left_out = []
    for further in turns[1:]:
        added = {module for module in modules if turn_of[module] == further}.difference(touched)
        if (needed := sum(seconds[module] for module in added)) <= left:
            left -= needed
            of_turn |= added
        else:
            left_out.append(further)
    return Choice(tuple(touched), tuple(sorted(of_turn.difference(touched))), tuple(no_time), tuple(left_out))


def _turn(module: str, record: Record | None) -> int:
    return crc32(module.encode()) % TURNS if record is None or record.turn is None else record.turn


def _weight(module: str, record: Record | None, changed: Collection[str], users: Mapping[str, int]) -> float:
    if module in changed:
        return math.inf
    by_folder = any(module.startswith(tests) and path.startswith(files) for files, tests in _BY_FOLDER for path in changed)
    if record is None:
        return by_folder or sys.float_info.min
    return sum(1 / users[name] for name in record.uses.intersection(changed)) + by_folder


def read_records(text: str) -> dict[str, Record]:
    """Returns the content of tests/recorded.json, {"modules": [PATH, ...], "tests": {TEST MODULE: [SECONDS, TURN, [NUMBER OF A
    MODULE, ...]], ...}}.

    Raises ValueError.
    """
    try:
        content = json.loads(text)
        names = [str(name) for name in content["modules"]]
        records = {
            test: Record(float(seconds), frozenset(names[number] for number in uses), int(turn))
            for test, (seconds, turn, uses) in content["tests"].items()
        }
    except (KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise ValueError(f"no record of tests: {type(error).__name__}: {error}") from error
    for test, record in records.items():
        if not 0 <= record.seconds < math.inf or record.turn not in range(TURNS):
            raise ValueError(f"no record of tests: {test} has {record.seconds} seconds and turn {record.turn}")
    return records


def merged(old: Mapping[str, Record], new: Mapping[str, Record], modules: Collection[str]) -> dict[str, Record]:
    """Returns the records of `new`, and those of `old` for the others of `modules`. A record without used modules, because all of
    its tests were left out, replaces none.

    A module keeps its turn for ever, else it could miss it. A new one gets the turn that has least to do, the longest first.
    """
    replacing = {module: record for module, record in new.items() if record.uses or module not in old}
    records = {module: record for module, record in {**old, **replacing}.items() if module in modules}
    turns = {module: old[module].turn for module in old}
    loads = dict.fromkeys(range(TURNS), 0.0)
    for module in sorted(records, key=lambda module: (turns.get(module) is None, -records[module].seconds, module)):
        turn = turns.get(module)
        turn = min(loads, key=lambda each: loads[each]) if turn is None else turn
        loads[turn] += records[module].seconds
        records[module] = replace(records[module], turn=turn)
    return records


def write_records(records: Mapping[str, Record]) -> str:
    """Returns the text of tests/recorded.json: a line for each module. `records`: from `merged`."""
    names = sorted({name for record in records.values() for name in record.uses})
    numbers = {name: number for number, name in enumerate(names)}
    lines = [
        f"{json.dumps(test)}: {json.dumps([round(record.seconds, 1), record.turn, sorted(numbers[name] for name in record.uses)])}"
        for test, record in sorted(records.items())
    ]
    return '{"modules": [\n' + ",\n".join(map(json.dumps, names)) + '\n], "tests": {\n' + ",\n".join(lines) + "\n}}\n"
