"""The cost of checksums of fetched files in a night: the same hosts with the default of `[verify] new_files`, and with "none".

    python -m bench.fresh_sums [--hosts 40] [--files 300] [--kib 100] [--nights 6]
    python -m bench.fresh_sums --realistic

Each night a tenth of every host's files is new. Both pools are on one filesystem, and take turns. A night varies by more than the
checksums cost, so the ratio of the nights with and without them is printed but not judged. The verdict is by the step, timed in
the night's process: its share of the processor time of all that night's processes, and of the time on the clock, as if the night
waited for each of the steps. Blocks that were read from a disk during the step are counted, too.

--realistic: few hosts with many files, so that the run of each host takes a second or more, as in the night of a real site;
otherwise a run takes 0.1 s, most of which is starting programs.
"""

import argparse
import json
import os
import random
import resource
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from backupd.cli import main as backupd_main
from backupd.run.fresh_sums import SumLimits, sum_fetched
from bench.common import Timed, own_folder, plain_parser, report, say, spread, timed, wait_for_quiet
from tests.beds import btrfs
from tests.beds.nights import Nights

LIMIT = 0.02
"""Agreed: at most this share of a night's time."""
_INSIDE = "--inside"


def main() -> None:
    """Runs the command line."""
    made = plain_parser(__doc__.splitlines()[0] if __doc__ else "")
    made.add_argument("--hosts", type=int, default=40)
    made.add_argument("--files", type=int, default=300, help="files of each host")
    made.add_argument("--kib", type=int, default=100, help="size of each file in KiB")
    made.add_argument("--nights", type=int, default=6)
    made.add_argument("--realistic", action="store_true", help="4 hosts of 20,000 files of 30 KiB, regardless of other options")
    options = made.parse_args()
    if options.realistic:
        options.hosts, options.files, options.kib = 4, 20_000, 30
    with own_folder(options):
        room = options.hosts * options.files * options.kib * (3 + options.nights // 3) // 1024
        report(options, "Checksums of fetched files", _measure(options, btrfs.make(f"{room + 4096}M", options="noatime")))


def _measure(options: argparse.Namespace, point: Path) -> Mapping[str, object]:
    source, chance = point / "source", random.Random(1)
    sides = {
        "with": _pool(point / "with", source, options.hosts, "200"),
        "without": _pool(point / "without", source, options.hosts, "none"),
    }
    for host in range(options.hosts):
        (source / f"h{host}").mkdir(parents=True)
        for number in range(options.files):
            (source / f"h{host}" / str(number)).write_bytes(chance.randbytes(options.kib << 10))
    times: dict[str, list[float]] = {name: [] for name in sides}
    quiet, note, shares = [], point / "steps", _Shares()
    for night in range(options.nights + 1):
        for host in range(options.hosts) if night else ():
            for number in range(night % 10, options.files, 10):
                (source / f"h{host}" / str(number)).write_bytes(chance.randbytes(options.kib << 10))
        os.sync()
        quiet.append(wait_for_quiet(options))
        for name in sorted(sides, reverse=bool(night % 2)):
            note.write_text("")
            words = ("-m", "bench.fresh_sums", _INSIDE, str(note), "--config", str(sides[name].config), "run", "--all")
            done = timed((sys.executable, *words))
            times[name].append(done.seconds)
            if night and name == "with":
                shares.add(done, [json.loads(line) for line in note.read_text().splitlines()])
        say(", ".join(f"{name} {seconds[-1]:.2f} s" for name, seconds in times.items()))
    ratios = [with_it / other for with_it, other in zip(times["with"][1:], times["without"][1:], strict=True)]
    made = sum(1 for _ in (sides["with"].pool / "hosts").glob("*/2*/SHA256SUMS"))
    shutil.rmtree(source)
    return {
        "seconds": {
            **{name: spread(seconds[1:]) for name, seconds in times.items()},
            "the step of a host, CPU": spread(shares.each),
            "a host, without": spread([total / options.hosts for total in times["without"][1:]]),
        },
        "ratios": {
            "with to without": spread(ratios),
            "the step, of the night's processor time": {**spread(shares.cpu), "limit": LIMIT},
            "the steps, of the night on the clock": {**spread(shares.clock), "limit": LIMIT},
        },
        "blocks read in the steps": shares.blocks,
        "backups with sums": made,
        "quiet": all(quiet),
    }


@dataclass(slots=True)
class _Shares:
    """By night: the step's share of the processor time and of the elapsed time; by run: its seconds of processor time."""

    cpu: list[float] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)
    each: list[float] = field(default_factory=list)
    blocks: int = 0

    def add(self, night: Timed, steps: Sequence[Mapping[str, float]]) -> None:
        self.cpu.append(sum(step["cpu"] for step in steps) / night.cpu)
        self.clock.append(sum(step["seconds"] for step in steps) / night.seconds)
        self.each += [step["cpu"] for step in steps]
        self.blocks += sum(int(step["blocks"]) for step in steps)


def _run_inside(note: Path, words: Sequence[str]) -> None:
    """Runs `backupd WORDS` in this process. Each step that makes checksums appends a line to `note`."""

    def timed_step(subvolume: Path, limits: SumLimits) -> None:
        before, used, begun = resource.getrusage(resource.RUSAGE_THREAD), time.thread_time(), time.perf_counter()
        sum_fetched(subvolume, limits)
        spent = {"cpu": time.thread_time() - used, "seconds": time.perf_counter() - begun}
        spent["blocks"] = resource.getrusage(resource.RUSAGE_THREAD).ru_inblock - before.ru_inblock
        with note.open("a") as file:
            file.write(json.dumps(spent) + "\n")

    sys.argv = ["backupd", *words]
    with patch("backupd.run.finalisation.sum_fetched", timed_step):
        backupd_main()


def _pool(top: Path, source: Path, hosts: int, new_files: str) -> Nights:
    top.mkdir()
    made = Nights(top)
    made.tables["verify"] = {"new_files": new_files}
    for host in range(hosts):
        made.host(f"h{host}", source / f"h{host}")
    return made


if __name__ == "__main__":
    if sys.argv[1:2] == [_INSIDE]:
        _run_inside(Path(sys.argv[2]), sys.argv[3:])
    else:
        main()
