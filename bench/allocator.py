"""Compares deleting diverged snapshots with the mount options ssd and nossd, on copies of a used pool with fragmented metadata.

    python -m bench.allocator [--pairs 5] [--by btrfs] [--image-dir DIR] [--json]

The pool (bench.churned) has had a backup of every host each night, and old ones deleted, so the block groups of metadata are full
of holes. The rest of the device is then allocated to data (not with --spare); otherwise the allocator would make new block groups
instead of filling holes. The work is `backupd expire`, or all at once by the `btrfs` program; it ends when the cleaner's queue is
empty. No other program writes: the writes to the device are metadata, each copy of it, and a little for the hosts' notes.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

from bench import common
from bench.churned import Shape
from bench.common import Sides
from bench.deletion import Deleted, Original, shape_of, shape_options
from bench.holes import holes
from bench.images import Mounted
from tests.beds import work

SHAPE = Shape(hosts=60, nights=60, keep=5, files=600, changed=60, smallest=256, largest=4 << 10, window=14)
PIECES = tuple(size << 20 for size in (1024, 256, 64, 16))
LEFT = 64 << 20  # for the notes of the hosts

MEASURES: Mapping[str, Callable[[Deleted, int], float]] = {
    "seconds until the queue is empty": lambda done, _: done.seconds,
    "seconds until all is written": lambda done, _: done.settled,
    "KiB written per deleted subvolume": lambda done, count: done.writes.bytes / count / 1024,
    "write requests per deleted subvolume": lambda done, count: done.writes.requests / count,
    "places written to per deleted subvolume": lambda done, count: (done.places or 0) / count,
    "KiB per place": lambda done, _: done.writes.bytes / (done.places or done.writes.requests) / 1024,
}


def measure(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measures all pairs."""
    fill = None if options.spare else allocate_the_rest
    mkfs = ("-m", options.metadata)
    original = Original.make(folder, shape_of(options), options.mount, mkfs, fill)
    churned_holes = holes(original.images.original("churned"))
    common.say(f"metadata: {churned_holes.in_words}")
    count = len(original.pool.doomed)

    def run(option: str) -> Deleted:
        command = (
            original.by_expire(mount_option="none", max_orphans=options.max_orphans)
            if options.by == "expire"
            else original.by_btrfs()
        )
        return original.run(command, options, f"{options.mount},{option}", watched=False, trace=options.trace)

    pairs = []
    for number in range(options.pairs):
        ssd, nossd = common.alternate(number, lambda: run("ssd"), lambda: run("nossd"))
        pairs.append((ssd, nossd))
        common.say(f"pair {number + 1}: ssd {summary(ssd)}; nossd {summary(nossd)}")
    return {
        "subvolumes": count,
        "pairs": options.pairs,
        "metadata block groups before": churned_holes.in_words,
        **{
            name: Sides("ssd", "nossd", [(of(ssd, count), of(nossd, count)) for ssd, nossd in pairs]).summary(None)
            for name, of in MEASURES.items()
            if "place" not in name or all(done.places for pair in pairs for done in pair)
        },
    }


def summary(done: Deleted) -> str:
    """Describes a run in a few words."""
    return f"{done.seconds:.2f} s, {done.writes.bytes / 1e6:.0f} MB in {done.writes.requests} requests to {done.places} places"


def allocate_the_rest(mounted: Mounted) -> None:
    """Allocates the rest of the device to block groups of data, by reserving space for files, so that metadata gets no new block
    groups.
    """
    spare = mounted.point / "spare"
    work("fallocate", "-l", str(LEFT), spare)
    for size in PIECES:
        number = 0
        while work("fallocate", "-l", str(size), mounted.point / f"full-{size}-{number}", check=False).returncode == 0:
            number += 1
    spare.unlink()
    mounted.sync()


def main() -> None:
    """Runs the command line."""
    words = common.plain_parser(__doc__ or "")
    words.add_argument("--pairs", type=int, default=5)
    words.add_argument(
        "--by",
        choices=("expire", "btrfs"),
        default="expire",
        help="the program that deletes: backupd expire, or btrfs, all at once",
    )
    words.add_argument("--max-orphans", type=int, default=100, help="max_orphans of backupd; a lower number means more commits")
    words.add_argument("--spare", action="store_true", help="leave the rest of the device unallocated")
    words.add_argument("--no-trace", dest="trace", action="store_false", help="do not trace the positions of the writes")
    words.add_argument("--metadata", default="dup", help="profile of the metadata, as for mkfs.btrfs")
    words.add_argument("--mount", default="noatime,nodiscard", help="further mount options")
    shape_options(words, SHAPE)
    options = words.parse_args()
    with common.own_folder(options) as folder:
        common.report(options, f"ssd against nossd, deleted by {options.by}", measure(options, folder))


if __name__ == "__main__":
    main()
