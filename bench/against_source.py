"""The cost of comparing a share of the files with the host in a night: the same host with `[verify] against_source = "1%"`, and
without.

    python -m bench.against_source [--files 100000] [--kib 8] [--nights 5]

Nothing changes from night to night. Both pools are on one filesystem, and take turns. The verdict compares the nights with and
without it.
"""

import argparse
import json
import random
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.common import own_folder, plain_parser, report, say, spread, timed, wait_for_quiet
from tests.beds import btrfs, work
from tests.beds.nights import Nights

LIMIT = 1.02
"""Agreed: 2 % of a night's time."""


def main() -> None:
    """Runs the command line."""
    made = plain_parser(__doc__.splitlines()[0] if __doc__ else "")
    made.add_argument("--files", type=int, default=100_000)
    made.add_argument("--kib", type=int, default=8, help="size of each file in KiB")
    made.add_argument("--nights", type=int, default=5)
    made.add_argument("--share", default="1%")
    options = made.parse_args()
    with own_folder(options):
        room = options.files * options.kib * 4 // 1024
        report(options, "A share compared with the host", _measure(options, btrfs.make(f"{room + 4096}M", options="noatime")))


def _measure(options: argparse.Namespace, point: Path) -> Mapping[str, object]:
    source, chance = point / "source", random.Random(1)
    for number in range(options.files):
        if number % 1000 == 0:
            (source / str(number // 1000)).mkdir(parents=True)
        (source / str(number // 1000) / str(number)).write_bytes(chance.randbytes(options.kib << 10))
    sides = {"with": _pool(point / "with", source, options.share), "without": _pool(point / "without", source, "none")}
    times: dict[str, list[float]] = {name: [] for name in sides}
    quiet, compared = [], []
    for night in range(options.nights + 1):
        work("sync", "-f", point)
        quiet.append(wait_for_quiet(options))
        for name in sorted(sides, reverse=bool(night % 2)):
            words = (sys.executable, "-m", "backupd", "--config", str(sides[name].config), "run", "--all")
            times[name].append(timed(words).seconds)
        recorded = json.loads((sides["with"].pool / "hosts/web/compared.json").read_text())["backups"]
        compared.append(recorded[max(recorded)]["alike"])
        say(", ".join(f"{name} {seconds[-1]:.2f} s" for name, seconds in times.items()) + f", {compared[-1]:,} files alike")
    ratios = [with_it / other for with_it, other in zip(times["with"][1:], times["without"][1:], strict=True)]
    shutil.rmtree(source)
    return {
        "seconds": {name: spread(seconds[1:]) for name, seconds in times.items()},
        "ratios": {"with to without": {**spread(ratios), "limit": LIMIT}},
        "files compared": compared,
        "quiet": all(quiet),
    }


def _pool(top: Path, source: Path, share: str) -> Nights:
    top.mkdir()
    made = Nights(top)
    made.tables["verify"] = {"against_source": share, "new_files": "none"}
    made.host("web", source)
    return made


if __name__ == "__main__":
    main()
