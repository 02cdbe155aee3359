"""From the JSON of benchmarks to the tables of docs/benchmarks.rst.

    python -m bench.one_host --json >one.json; python -m bench.table one.json

Seconds and ratios are medians, with their range in brackets.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def lines_of(result: Mapping[str, Any]) -> Iterator[str]:
    """Yields the table of one bench, with its title and the machine on which it was measured."""
    facts = result["machine"]
    yield f".. {result['bench']}; python {result['command']}"
    yield "   " + ", ".join(f"{key} {value}" for key, value in facts.items())
    yield ""
    yield ".. csv-table::"
    yield "   :header: , ours, the other, ratio, agreed"
    yield ""
    for name, measure in result.items():
        if isinstance(measure, Mapping) and "ratio" in measure:
            first, second, ratio = measure.values()
            limit = ratio["limit"]
            yield _row(name, _spread(first), _spread(second), _spread(ratio), f"at most {limit}" if limit else "")
    for name, measure in result.get("own CPU, ms per host", {}).items():
        yield _row(
            f"own CPU per host: {name}", f"{_spread(measure)} ms", "", "", f"{limit} ms" if (limit := measure.get("limit")) else ""
        )


def _spread(numbers: Mapping[str, float]) -> str:
    return f"{numbers['median']:.2f} [{numbers['min']:.2f} - {numbers['max']:.2f}]"


def _row(*cells: str) -> str:
    return "   " + ", ".join(f'"{cell}"' if "," in cell else cell for cell in cells).rstrip()


def main() -> None:
    """Runs the command line."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("files", nargs="+", type=Path, help="the output of a bench with --json")
    for file in words.parse_args().files:
        print("\n".join(lines_of(json.loads(file.read_text(encoding="utf-8")))) + "\n")


if __name__ == "__main__":
    main()
