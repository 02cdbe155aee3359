"""A process that only reads the catalogue, in a loop, and prints the errors: `catalogue_reader.py STATE SECONDS SEED`.

It prints one line of JSON. `wrong` has every impossible answer: rows of two transactions in one answer, a state older than one that
was committed before the query, or older than one of an earlier answer. Committed states are in files beside the state folder.
"""

import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

from btrkeep.catalogue import Catalogue
from btrkeep.errors import OperatorError


def committed(state: Path) -> dict[str, int]:
    by_name = {}
    for file in state.parent.glob("committed-*"):
        text = file.read_text()
        by_name[file.name.partition("-")[2]] = int(text or 0)
    return by_name


def check_catalogue(catalogue: Catalogue, state: Path, seen: dict[str, int], wrong: list[str]) -> None:
    floor = committed(state)
    texts: dict[str, set[int]] = {}
    rows: Counter[str] = Counter()
    for alarm in catalogue.alarms():
        texts.setdefault(alarm.what, set()).add(int(alarm.text.split()[0]))
        rows[alarm.what] += 1
    for writer, least in floor.items():
        values = texts.get(writer, {0})
        if len(values) != 1 or rows[writer] not in (0, 40):
            wrong.append(f"torn: {writer} {sorted(values)[:3]} in {rows[writer]} rows")
        value = max(values)
        if value < least:
            wrong.append(f"old: {writer} {value}, committed was {least}")
        if value < seen.get(writer, 0):
            wrong.append(f"back: {writer} {value} after {seen[writer]}")
        seen[writer] = value


def main() -> None:
    state, seconds = Path(sys.argv[1]), float(sys.argv[2])
    chance, patient = random.Random(int(sys.argv[3])), int(sys.argv[3]) % 2 == 0
    end, longest = time.monotonic() + seconds, 0.0
    seen: dict[str, int] = {}
    wrong: list[str] = []
    counts: Counter[str] = Counter()
    while time.monotonic() < end:
        try:
            with Catalogue.open_readonly(state) as catalogue:
                for _ in range(chance.choice((1, 1, 3, 20) if patient else (1, 2))):
                    with_journal = Path(state / "catalogue.sqlite-wal").exists()
                    begun = time.monotonic()
                    check_catalogue(catalogue, state, seen, wrong)
                    longest = max(longest, time.monotonic() - begun)
                    counts["journal" if with_journal else "alone"] += 1
                    time.sleep(chance.choice((0, 0, 0.001, 0.01)))
        except OperatorError as error:
            wrong.append(f"error: {error.message}: {error.__cause__}")
        time.sleep(chance.choice((0, 0.002, 0.05) if patient else (0.05, 0.1, 0.2)))
    sys.stdout.write(json.dumps({"wrong": wrong[:20], "faults": len(wrong), "counts": counts, "longest": longest, "seen": seen}))


main()
