"""Savings and cost of `share_with`: many hosts with the same tree, all of which share with the first one.

    python -m bench.siblings [--source /usr/share] [--hosts 10]

Each host is local and new, and backed up once, one after the other; a host that shares nothing comes last. Used space is that of
the filesystem, data and metadata, with the second copy of the metadata. The verdict: all hosts against one, within 1.3.
"""

import argparse
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.common import own_folder, plain_parser, report, say, spread, timed, wait_for_quiet
from tests.beds import btrfs
from tests.beds.nights import Nights
from tests.beds.work import work

LIMIT = 1.3
"""The limit: ten equal hosts may take this many times the space of one."""


def main() -> None:
    """Runs the command line."""
    made = plain_parser(__doc__.splitlines()[0] if __doc__ else "")
    made.add_argument("--source", type=Path, default=Path("/usr/share"), help="the tree that all hosts have")
    made.add_argument("--hosts", type=int, default=10)
    options = made.parse_args()
    with own_folder(options):
        size = int(work("du", "-sm", options.source).stdout.split()[0])
        room = size * 4 + size * options.hosts // 4 + 2048
        report(options, "Equal hosts that share data", _measure(options, btrfs.make(f"{room}M", options="noatime")))


def _measure(options: argparse.Namespace, point: Path) -> Mapping[str, object]:
    nights = Nights(point)
    names = [f"h{number}" for number in range(options.hosts)]
    for name in names:
        nights.host(name, options.source, address=None, share_with=names[0], share_across_groups=True)
    nights.host("alone", options.source, address=None)
    empty, used, seconds, quiet = _used(point), [], [], []
    for name in (*names, "alone"):
        quiet.append(wait_for_quiet(options))
        words = (sys.executable, "-m", "backupd", "--config", str(nights.config), "run", name)
        seconds.append(timed(words).seconds)
        used.append(_used(point) - empty)
        say(f"{name}: {seconds[-1]:.1f} s, {used[-1] >> 20} MiB used in all")
    *shared, _ = used
    return {
        "MiB of one, of all that share": [used[0] >> 20, shared[-1] >> 20],
        "seconds of the first, of one that shares, of one that shares nothing": [
            round(seconds[0], 1),
            round(statistics.median(seconds[1:-1]), 1),
            round(seconds[-1], 1),
        ],
        "ratios": {
            "room of all to one": {**spread([shared[-1] / used[0]]), "limit": LIMIT},
            "time of sharing to not sharing": spread([sharing / seconds[-1] for sharing in seconds[1:-1]]),
        },
        "quiet": all(quiet),
    }


def _used(point: Path) -> int:
    """Returns the used bytes, including those that wait for a commit."""
    work("btrfs", "filesystem", "sync", point)
    for line in work("btrfs", "filesystem", "usage", "--raw", point).stdout.splitlines():
        if line.strip().startswith("Used:"):
            return int(line.split()[1])
    raise SystemExit("btrfs filesystem usage says nothing of what is used")


if __name__ == "__main__":
    main()
