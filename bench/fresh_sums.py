"""What the checksums of fetched files cost a night: the same hosts with `[verify] new_files` as it is by default, and with "none".

    python -m bench.fresh_sums [--hosts 40] [--files 300] [--kib 100] [--nights 6]
    python -m bench.fresh_sums --realistic

Each night a tenth of every host's files is new. Both pools are on one filesystem, and take turns. The verdict: the night with them
against the night without. --realistic: few hosts with many files, so that the run of each host takes a second or more, as in the
night of a real site; otherwise a run takes 0.1 s, most of which is starting programs.
"""

import argparse
import os
import random
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.common import own_folder, plain_parser, report, say, spread, timed, wait_for_quiet
from tests.beds import btrfs
from tests.beds.nights import Nights

LIMIT = 1.02
"""Agreed: 2 % of a night's time."""


def main() -> None:
    """The command line."""
    made = plain_parser(__doc__.splitlines()[0] if __doc__ else "")
    made.add_argument("--hosts", type=int, default=40)
    made.add_argument("--files", type=int, default=300, help="of each host")
    made.add_argument("--kib", type=int, default=100, help="of each file")
    made.add_argument("--nights", type=int, default=6)
    made.add_argument("--realistic", action="store_true", help="4 hosts of 20,000 files of 30 KiB, whatever else is asked for")
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
    quiet = []
    for night in range(options.nights + 1):
        for host in range(options.hosts) if night else ():
            for number in range(night % 10, options.files, 10):
                (source / f"h{host}" / str(number)).write_bytes(chance.randbytes(options.kib << 10))
        os.sync()
        quiet.append(wait_for_quiet(options))
        for name in sorted(sides, reverse=bool(night % 2)):
            words = (sys.executable, "-m", "backupd", "--config", str(sides[name].config), "run", "--all")
            times[name].append(timed(words).seconds)
        say(", ".join(f"{name} {found[-1]:.2f} s" for name, found in times.items()))
    ratios = [one / other for one, other in zip(times["with"][1:], times["without"][1:], strict=True)]
    made = sum(1 for _ in (sides["with"].pool / "hosts").glob("*/2*/SHA256SUMS"))
    shutil.rmtree(source)
    return {
        "seconds": {
            **{name: spread(found[1:]) for name, found in times.items()},
            "a host, without": spread([one / options.hosts for one in times["without"][1:]]),
        },
        "ratios": {"with to without": {**spread(ratios), "limit": LIMIT}},
        "backups with sums": made,
        "quiet": all(quiet),
    }


def _pool(top: Path, source: Path, hosts: int, new_files: str) -> Nights:
    top.mkdir()
    made = Nights(top)
    made.tables["verify"] = {"new_files": new_files}
    for host in range(hosts):
        made.host(f"h{host}", source / f"h{host}")
    return made


if __name__ == "__main__":
    main()
