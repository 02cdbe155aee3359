"""Cuts the power in every change of state, and checks the pool: no complete backup is wrong, lost or invented.

A round makes a pool, carries out the commands of one scenario and copies both disks, the pool's and the state folder's, at
checkpoints and at random moments, with delayed writes held back (commit=300). A third of the rounds has disks with a write cache,
which lose any part of the writes since the last flush; of another third every write and flush is recorded, and the copies are the
disks at each flush. With --disks killed or logged the commands are carried out in virtual machines (bench/cut_machine.py), at the
price of some minutes for each round. Each copy is then checked (btrfs check), mounted, compared by SHA-256 with the sources of that
time, given the command again and two runs, and compared once more; `list` has to be the same before and after `rebuild`. A defect
is one line, with the words that repeat its round: the same sources and the same commands, at moments that are as near as the
machine allows.

Rounds follow one another, the scenarios in turn, until the requested number of cuts. With --record each round is a line of
that file as soon as it has ended, and the same command continues with the rounds that are not in it.
"""

import argparse
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from bench.common import own_folder, plain_parser, say
from bench.cut_disks import IN_A_MACHINE, KINDS
from bench.cut_scenarios import OF_MANY_FILES, SCENARIOS
from bench.cut_worker import Order, Worker

_IN_A_ROUND = 29  # 2,000 cuts are each scenario once on each kind of disks
_OF_MANY = 4  # they take as long as all the others together


def main() -> None:
    """Runs all rounds."""
    options = _parser().parse_args()
    begun = time.monotonic()
    with own_folder(options):
        all_rounds = _all_rounds(options)
    all_rounds["seconds"] = round(time.monotonic() - begun)
    if options.json:
        print(json.dumps(all_rounds, indent=2))
    else:
        _print_summary(all_rounds)
    sys.exit(1 if all_rounds["defects"] else 0)


def _parser() -> argparse.ArgumentParser:
    parser = plain_parser(__doc__)
    parser.add_argument("--cuts", type=int, default=2000, help="number of cuts to check")
    parser.add_argument("--in-a-round", type=int, default=_IN_A_ROUND, help="maximum number of cuts in one round")
    parser.add_argument("--jobs", type=int, default=2, help="rounds at the same time")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first round; each further round uses the next number")
    parser.add_argument("--only", action="append", choices=sorted(SCENARIOS), help="this scenario; can be repeated")
    disks = "cached: any part of their write cache is lost; recorded: as they were at each flush; killed: a virtual machine's, "
    disks += "which is killed; logged: a virtual machine's, as they were at its flushes; all: the first three"
    parser.add_argument("--disks", choices=("all", *KINDS, *IN_A_MACHINE), default="all", help=disks)
    parser.add_argument("--files", type=int, default=20_000, help="small files of the scenarios `many` and `many_continued`")
    parser.add_argument("--unsynced", action="store_true", help="use a backupd without its last sync: the bench must find defects")
    parser.add_argument("--until", type=float, metavar="SECONDS", help="start no round after this time")
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="append each round to FILE; rounds that are in it are not repeated"
    )
    return parser


@dataclass(slots=True)
class Sum:
    """The results of all rounds so far. `record`: the file to which each is written as a line of JSON."""

    record: Path | None
    scenarios: Counter[str] = field(default_factory=Counter)
    disks: Counter[str] = field(default_factory=Counter)
    moments: Counter[str] = field(default_factory=Counter)
    defects: list[str] = field(default_factory=list)
    recorded: set[tuple[str, int, str]] = field(default_factory=set)

    @property
    def cuts(self) -> int:
        """Those of all rounds."""
        return sum(self.scenarios.values())

    def read(self) -> None:
        """Adds the rounds of the file."""
        if self.record and self.record.exists():
            for line in self.record.read_text().splitlines():
                result = json.loads(line)
                self._add((result["scenario"], result["seed"], result["disks"]), result)

    def add(self, which: tuple[str, int, str], result: dict[str, Any]) -> None:
        """Adds a round, also to the file. A failed round is not written there, so that it is repeated."""
        self._add(which, result)
        if self.record and result["cuts"]:
            name, seed, disks = which
            with self.record.open("a") as file:
                file.write(json.dumps({"scenario": name, "seed": seed, "disks": disks, **result}) + "\n")

    def _add(self, which: tuple[str, int, str], result: dict[str, Any]) -> None:
        self.recorded.add(which)
        self.scenarios[which[0]] += result["cuts"]
        self.disks[which[2]] += result["cuts"]
        self.moments.update(result["moments"])
        self.defects += result["defects"]

    def as_fields(self) -> dict[str, Any]:
        """Returns the sum as JSON."""
        counts = {"scenarios": dict(self.scenarios), "disks": dict(self.disks), "moments": dict(self.moments)}
        return {"cuts": self.cuts, **counts, "defects": self.defects}


def _all_rounds(options: argparse.Namespace) -> dict[str, Any]:
    done = Sum(options.record)
    done.read()
    begun = time.monotonic()
    planned = (cut_round for cut_round in _rounds(options) if cut_round[:3] not in done.recorded)
    workers: SimpleQueue[Worker] = SimpleQueue()
    with ThreadPoolExecutor(options.jobs) as pool, ExitStack() as stack:  # in this order: an interrupted one stops its rounds
        for _ in range(options.jobs):
            workers.put(stack.enter_context(Worker(options.image_dir)))
        running: dict[Future[dict[str, Any]], tuple[str, int, str, int]] = {}

        def start_one() -> None:
            left = options.cuts - done.cuts - sum(wanted for *_, wanted in running.values())
            if left > 0 and not (options.until and time.monotonic() - begun > options.until):
                name, seed, kind, wanted = next(planned)
                cut_round = (name, seed, kind, min(wanted, left))
                running[pool.submit(_one_round, options, workers, *cut_round)] = cut_round

        for _ in range(options.jobs):
            start_one()
        while running:
            ended = next(as_completed(running))
            name, seed, kind, _ = running.pop(ended)
            result = ended.result()
            done.add((name, seed, kind), result)
            for line in result["defects"]:
                say(f"DEFECT {line}")
            say(f"{done.cuts} cuts, {len(done.defects)} defects, {time.monotonic() - begun:.0f} s: {name}, seed {seed}, {kind}")
            start_one()
    return done.as_fields()


def _rounds(options: argparse.Namespace) -> Iterator[tuple[str, int, str, int]]:
    """Scenario, seed, kind of disks and number of cuts of each round. The kinds take turns: each scenario has all of them."""
    names: Sequence[str] = options.only or list(SCENARIOS)
    kinds = KINDS if options.disks == "all" else [options.disks]
    for number in itertools.count():
        turn, place = divmod(number, len(names))
        wanted = _OF_MANY if names[place] in OF_MANY_FILES else options.cuts
        yield names[place], options.seed + number, kinds[(turn + place) % len(kinds)], min(options.in_a_round, options.cuts, wanted)


def _one_round(
    options: argparse.Namespace, workers: SimpleQueue[Worker], name: str, seed: int, disks: str, wanted: int
) -> dict[str, Any]:
    """Runs a round on the next free worker; a round that fails is a defect."""
    worker = workers.get()
    try:
        return worker.carry_out(Order(name, seed, disks, wanted, options.files, options.unsynced))
    except ChildProcessError as error:
        broken = f"--only {name} --seed {seed} --disks {disks}: the round broke: {error}"
        return {"cuts": 0, "moments": {}, "defects": [broken]}
    finally:
        workers.put(worker)


def _print_summary(result: dict[str, Any]) -> None:
    print(f"{result['cuts']} power cuts in {result['seconds']} s, {len(result['defects'])} defects")
    for kind in ("scenarios", "disks", "moments"):
        print("  " + ", ".join(f"{name} {count}" for name, count in result[kind].items()))
    for line in result["defects"]:
        print(f"  {line}")


if __name__ == "__main__":
    main()
