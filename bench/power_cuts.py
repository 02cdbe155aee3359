"""Cuts the power in every change of state, and looks at what is left: no complete backup is wrong, lost or invented.

A round makes a pool, carries out the commands of one scenario and copies both disks, the pool's and the state folder's, at
checkpoints and at random moments, with delayed writes held back (commit=300). Half of the rounds have disks with a write cache,
which lose any part of what was written since the last flush. Each copy is then checked (btrfs check), mounted,
compared by SHA-256 with what the sources were, given the command again and a run, and compared once more; `list` has to be the
same before and after `rebuild`. A defect is one line, with the words that repeat its round: the same sources and the same
commands, at moments that are as near as the machine allows.

Rounds follow one another, the scenarios in turn, until there were as many cuts as were asked for.
"""

import argparse
import ctypes
import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import cut_scenarios
from bench.common import own_folder, plain_parser, say
from bench.cut_disks import CutDisks
from bench.cut_round import Round
from bench.cut_scenarios import SCENARIOS
from tests.beds import TOP, session, work
from tests.beds.cli import close
from tests.beds.watch import KILL_AT

_IN_A_ROUND = 60
UNSYNCED = TOP / "bench" / "unsynced.py"
_OF_MANY = 4  # takes as long as all the others together
_DISKS = ("both", "plain", "cached")
_CLONE_NEWNS = 0x20000
_BYTECODE = "PYTHONPYCACHEPREFIX"


def main() -> None:
    """All rounds, or with --round one of them."""
    options = _parser().parse_args()
    if options.round:
        print(json.dumps(_one_round(options)))
        return
    begun = time.monotonic()
    with own_folder(options):
        found = _all_rounds(options)
    found["seconds"] = round(time.monotonic() - begun)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        _tell(found)
    sys.exit(1 if found["defects"] else 0)


def _parser() -> argparse.ArgumentParser:
    parser = plain_parser(__doc__)
    parser.add_argument("--cuts", type=int, default=2000, help="how many to look at")
    parser.add_argument("--in-a-round", type=int, default=_IN_A_ROUND, help="at most so many of one round")
    parser.add_argument("--jobs", type=int, default=2, help="rounds at once")
    parser.add_argument("--seed", type=int, default=1, help="of the first round; each takes the next one")
    parser.add_argument("--only", action="append", choices=sorted(SCENARIOS), help="this scenario; can be repeated")
    parser.add_argument("--disks", choices=_DISKS, default="both", help="cached: with a write cache, of which any part is lost")
    parser.add_argument("--files", type=int, default=20_000, help="small files of the scenario `many`")
    parser.add_argument("--unsynced", action="store_true", help="backupd without its last sync: defects have to be found")
    parser.add_argument("--until", type=float, metavar="SECONDS", help="begin no round later than that")
    parser.add_argument("--round", action="store_true", help=argparse.SUPPRESS)
    return parser


def _one_round(options: argparse.Namespace) -> dict[str, Any]:
    _unshare_mounts()
    bytecode = os.environ.get(_BYTECODE)
    with own_folder(options):
        if bytecode:  # that of all rounds together
            os.environ[_BYTECODE] = bytecode
        try:
            disks, program = CutDisks(options.disks == "cached", options.seed), UNSYNCED if options.unsynced else KILL_AT
            cut_scenarios.MANY = options.files
            return asdict(Round(disks, options.only[0], options.seed, options.in_a_round, program).run())
        finally:
            close()


def _unshare_mounts() -> None:
    """From now on nobody who makes a mount namespace of his own takes a copy of ours with it, which would keep it mounted; and we
    keep none of other sessions.
    """
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    work("mount", "--make-rprivate", "/")
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in reversed([point for point in points if session.PREFIX in point]):
        work("umount", "--lazy", point, check=False)


def _all_rounds(options: argparse.Namespace) -> dict[str, Any]:
    by_scenario: Counter[str] = Counter()
    moments: Counter[str] = Counter()
    defects: list[str] = []
    begun, planned = time.monotonic(), _rounds(options)
    with ThreadPoolExecutor(options.jobs) as pool:
        running = {pool.submit(_start, options, *one): one for _, one in zip(range(options.jobs), planned, strict=False)}
        while running:
            done = next(as_completed(running))
            name, seed, *_ = running.pop(done)
            told = done.result()
            by_scenario[name] += told["cuts"]
            moments.update(told["moments"])
            defects += told["defects"]
            for line in told["defects"]:
                say(f"DEFECT {line}")
            say(f"{sum(by_scenario.values())} cuts, {len(defects)} defects, {time.monotonic() - begun:.0f} s: {name}, seed {seed}")
            is_late = options.until and time.monotonic() - begun > options.until
            left = options.cuts - sum(by_scenario.values()) - sum(wanted for *_, wanted in running.values())
            if left > 0 and not is_late:
                *which, wanted = next(planned)
                one = (*which, min(wanted, left))
                running[pool.submit(_start, options, *one)] = one
    return {"cuts": sum(by_scenario.values()), "scenarios": dict(by_scenario), "moments": dict(moments), "defects": defects}


def _rounds(options: argparse.Namespace) -> Iterator[tuple[str, int, str, int]]:
    """Scenario, seed, kind of disks and number of cuts of each round. All scenarios once with one kind, then with the other."""
    names: Sequence[str] = options.only or list(SCENARIOS)
    kinds = _DISKS[1:] if options.disks == "both" else [options.disks]
    for number in itertools.count():
        name, kind = names[number % len(names)], kinds[number // len(names) % len(kinds)]
        yield name, options.seed + number, kind, min(options.in_a_round, options.cuts, _OF_MANY if name == "many" else options.cuts)


def _start(options: argparse.Namespace, name: str, seed: int, disks: str, wanted: int) -> dict[str, Any]:
    """A round as a process of its own; one that breaks is a defect."""
    given = {
        "only": name,
        "seed": seed,
        "disks": disks,
        "in-a-round": wanted,
        "files": options.files,
        "image-dir": options.image_dir,
    }
    words = ["--round", *(f"--{word}={value}" for word, value in given.items()), *(["--unsynced"] if options.unsynced else [])]
    done = subprocess.run([sys.executable, "-m", "bench.power_cuts", *words], check=False, capture_output=True, text=True, cwd=TOP)
    if done.returncode:
        broken = f"--only {name} --seed {seed} --disks {disks}: the round broke: {done.stderr[-3000:]}"
        return {"cuts": 0, "moments": {}, "defects": [broken]}
    return dict(json.loads(done.stdout))


def _tell(found: dict[str, Any]) -> None:
    print(f"{found['cuts']} power cuts in {found['seconds']} s, {len(found['defects'])} defects")
    for kind in ("scenarios", "moments"):
        print("  " + ", ".join(f"{name} {count}" for name, count in found[kind].items()))
    for line in found["defects"]:
        print(f"  {line}")


if __name__ == "__main__":
    main()
