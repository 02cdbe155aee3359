"""The gain of a balance for unallocated space: `btrfs-balancer run --policy usage`, `-dusage=N`, and btrfs-balance-least-used.

    python -m bench.balance_space [--size 4GiB] [--share 0.4] [--usage 80] [--extent 64KiB]

A pool is filled with small extents of which a share is deleted, in every block group, beside one small file in a block group of its
own. Each way gets a copy of its image. Everything is counted on the whole filesystem. btrfs-balance-least-used belongs to
python-btrfs; without it that program is skipped.
"""

import argparse
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import common
from bench.balance_effect import seen_at
from bench.images import Images, Mounted
from tests.beds import TOP, work

_LONG = 900.0
_OPTIONS = "noatime,nossd"


def fill(point: Path, share: float, extent: int, level: float) -> None:
    """Writes files of one extent each, until that share of the pool is used; then deletes a share of them, some in each block
    group.
    """
    rng = random.Random(7)
    (point / "small").write_bytes(os.urandom(100_000))
    work("btrfs", "filesystem", "sync", point)
    room = os.statvfs(point)
    count = int(room.f_blocks * room.f_frsize * level) // extent
    for number in range(count):
        folder = point / str(number // 1000)
        folder.mkdir(exist_ok=True)
        fd = os.open(folder / str(number), os.O_CREAT | os.O_WRONLY)
        try:
            os.posix_fallocate(fd, 0, extent)
        finally:
            os.close(fd)
        if number % 2000 == 0:
            work("btrfs", "filesystem", "sync", point)
    work("btrfs", "filesystem", "sync", point)
    for number in range(count):
        if rng.random() < share:
            (point / str(number // 1000) / str(number)).unlink()
    work("btrfs", "filesystem", "sync", point)


def ways(options: argparse.Namespace) -> dict[str, Sequence[str]]:
    """Returns the commands by name; the path is appended to each."""
    ours = (sys.executable, "-m", "balancer", "run", "--policy", "usage", "--max-pressure", "none", "--time", "10m")
    commands: dict[str, Sequence[str]] = {
        "btrfs-balancer --policy usage": ours,
        f"btrfs balance -dusage={options.usage}": ("btrfs", "balance", "start", f"-dusage={options.usage}"),
    }
    least_used = Path(sys.executable).with_name("btrfs-balance-least-used")
    if least_used.exists():
        commands["btrfs-balance-least-used"] = (str(least_used), "--usage", str(options.usage))
    return commands


def tried(mounted: Mounted, command: Sequence[str]) -> dict[str, Any]:
    """Runs one way on its copy; returns the gain in bytes."""
    before, written, begun = seen_at(mounted).numbers(), mounted.writes().bytes, time.monotonic()
    work(*command, mounted.point, cwd=TOP, timeout=_LONG)
    mounted.sync()
    after = seen_at(mounted).numbers()
    return {
        "seconds": round(time.monotonic() - begun, 1),
        "written": mounted.writes().bytes - written,
        "unallocated before": before.unallocated,
        "unallocated": after.unallocated,
        "block groups": after.block_groups,
    }


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measures all ways."""
    images = Images(folder)
    with images.made("full", options.size, _OPTIONS) as mounted:
        fill(mounted.point, options.share, options.extent, options.level)
    results = {}
    for name, command in ways(options).items():
        with images.copy("full", _OPTIONS) as mounted:
            results[name] = tried(mounted, command)
        common.say(f"{name}: {results[name]}")
    return results


def show(options: argparse.Namespace, results: Mapping[str, Any]) -> None:
    """Prints JSON, or a table."""
    if options.json:
        common.report(options, "balance for unallocated space", results)
        return
    print(f"{'':32} {'gained MiB':>10} {'written MiB':>11} {'seconds':>8}")
    for name, figures in results.items():
        gained = (figures["unallocated"] - figures["unallocated before"]) / 2**20
        print(f"{name:32} {gained:10.0f} {figures['written'] / 2**20:11.0f} {figures['seconds']:8.1f}")


def main() -> None:
    """Runs the command line."""
    words = common.plain_parser(__doc__ or "")
    words.add_argument("--size", type=common.size, default=4 << 30, help="size of the filesystem")
    words.add_argument("--share", type=float, default=0.4, help="share of the files that is deleted")
    words.add_argument("--level", type=float, default=0.7, help="share of the filesystem that is filled first")
    words.add_argument("--usage", type=int, default=80, help="the usage limit of the two other ways, in percent")
    words.add_argument("--extent", type=common.size, default=64 << 10, help="size of each file")
    options = words.parse_args()
    with common.own_folder(options) as folder:
        show(options, measure(options, folder))


if __name__ == "__main__":
    main()
