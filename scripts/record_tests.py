"""Records in tests/recorded.json how long test modules take, and which modules they use. CI chooses tests by it (touched.py).

    .venv/bin/python -m scripts.record_tests COVERAGE JUNIT [--checkout FOLDER]

COVERAGE is a data file of coverage.py in which each context is the path of a test module, as tests/btrfs/test_holes.py. JUNIT is
what `pytest --junit-xml` wrote in the same run. FOLDER is the checkout that ran; default: this one. Only the test modules of that
run are replaced in the record, each as a whole; those that no longer exist are deleted from it. Only lines within functions count:
all other lines run when a module is imported, even if nothing in it is used.
"""

import argparse
import ast
from collections import Counter, defaultdict
from pathlib import Path
from xml.etree import ElementTree as ET

import coverage

from tests.beds import TOP
from tests.beds.touched import Record, merged, read_records, write_records


def seconds_of_modules(junit: Path) -> Counter[str]:
    """Returns the seconds of each test module, including setup and teardown of its tests."""
    seconds: Counter[str] = Counter()
    for test in ET.parse(junit).iter("testcase"):
        seconds[test.attrib["classname"].replace(".", "/") + ".py"] += float(test.attrib["time"])  # type: ignore[assignment]
    return seconds


def modules_used(data_file: Path, checkout: Path) -> dict[str, frozenset[str]]:
    """Returns, for each context, the paths of the checkout's modules in which it ran a line of a function."""
    data = coverage.CoverageData(str(data_file))
    data.read()
    used: dict[str, set[str]] = defaultdict(set)
    for measured in data.measured_files():
        path = Path(measured)
        if not path.is_relative_to(checkout) or not path.is_file():
            continue
        name = path.relative_to(checkout).as_posix()
        within = lines_within_functions(path.read_text(encoding="utf-8"))
        for line, contexts in data.contexts_by_lineno(measured).items():
            if line in within:
                for context in contexts:
                    used[context.rpartition("|")[2]].add(name)  # "STATIC|DYNAMIC" if a process had both contexts
    return {context: frozenset(names - {context}) for context, names in used.items() if context}


def lines_within_functions(source: str) -> set[int]:
    return {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for line in range(node.body[0].lineno, (node.end_lineno or 0) + 1)
    }


def main() -> None:
    words = argparse.ArgumentParser(description="Records what test modules use in tests/recorded.json.")
    words.add_argument("coverage", type=Path)
    words.add_argument("junit", type=Path)
    words.add_argument("--checkout", type=Path, default=TOP)
    given = words.parse_args()
    seconds = seconds_of_modules(given.junit)
    used = modules_used(given.coverage, given.checkout)
    new = {test: Record(seconds[test], used.get(test, frozenset())) for test in seconds}
    modules = {path.relative_to(TOP).as_posix() for path in (TOP / "tests").rglob("test_*.py")}
    path = TOP / "tests" / "recorded.json"
    try:
        old = read_records(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise SystemExit(
            f"tests/recorded.json would lose its other records: `git checkout tests/recorded.json` first: {error}"
        ) from None
    records = merged(old, new, modules)
    path.write_text(write_records(records), encoding="utf-8")
    print(f"{len(new)} test modules, {sum(seconds.values()):.0f} seconds; the record has {len(records)} of {len(modules)}")
    for test in sorted(set(seconds).difference(used)):
        print(f"no module recorded: {test}")


if __name__ == "__main__":
    main()
