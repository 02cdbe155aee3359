"""`backupd expire`, which never lets more than 100 deleted subvolumes wait, against deleting all at once; and with a pace.

    python -m bench.expire_all_at_once [--pairs 5] [--pace 20ms] [--image-dir DIR] [--json]

A rehearsal pool with snapshots of diverged data is made once (bench.churned); each run gets a copy of its image. The other side is
`btrfs subvolume delete` of the same ones, `btrfs filesystem sync`, which wakes the cleaner, and `btrfs subvolume sync`. Both are
whole processes, and both are timed until the cleaner's queue is empty, found by looking every 20 ms: `btrfs subvolume sync` looks
once a second and would be charged for its sleep. A process beside them writes 4 KiB and fsyncs, a hundred times a second.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import common
from bench.churned import Shape
from bench.common import Sides
from bench.deletion import Deleted, Original, shape_of, shape_options

LIMIT, PACED_LIMIT = 1.15, 0.5
SHAPE = Shape(hosts=100, nights=30, keep=5, files=1000, changed=100, smallest=512, largest=16 << 10)

MEASURES: Mapping[str, Callable[[Deleted], float]] = {
    "seconds until the queue is empty": lambda done: done.seconds,
    "seconds until all is written": lambda done: done.settled,
    "CPU seconds of the command": lambda done: done.cpu,
    "ms of a small fsync: median": lambda done: done.seen.p50,
    "ms of a small fsync: p99": lambda done: done.seen.p99,
    "ms of a small fsync: longest": lambda done: done.seen.worst,
    "MB written": lambda done: done.writes.bytes / 1e6,
}
SECONDS, P99 = "seconds until the queue is empty", "ms of a small fsync: p99"


def measure(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measures all pairs, each with a third run by btrkeep with a pace."""
    original = Original.make(folder, shape_of(options), options.mount, ("-m", options.metadata))

    def ours(pace: str = "off") -> Deleted:
        command = original.by_expire(max_orphans=options.max_orphans, pace=pace)
        return original.run(command, options, options.mount, watched=True)

    def theirs() -> Deleted:
        return original.run(original.by_btrfs(), options, options.mount, watched=True)

    pairs: list[tuple[Deleted, Deleted]] = []
    paced: list[tuple[Deleted, Deleted]] = []
    for number in range(options.pairs):
        pairs.append(common.alternate(number, ours, theirs))
        common.say(f"pair {number + 1}: ours {summary(pairs[-1][0])}; all at once {summary(pairs[-1][1])}")
        if options.pace != "off":
            paced.append((ours(options.pace), pairs[-1][1]))
            common.say(f"pair {number + 1}: ours, paced {summary(paced[-1][0])}")
    idle = [done.idle.p99 for pair in (*pairs, *paced) for done in pair if done.idle]
    return {
        "subvolumes": len(original.pool.doomed),
        "pairs": options.pairs,
        **{name: compare("ours", pairs, name, LIMIT if name == SECONDS else None) for name in MEASURES},
        **{
            f"paced: {name}": compare("ours, paced", paced, name, PACED_LIMIT if name == P99 else None)
            for name in (MEASURES if paced else ())
        },
        f"{P99}, before": {"nobody deletes": common.spread(idle)},
    }


def compare(side: str, pairs: Sequence[tuple[Deleted, Deleted]], name: str, limit: float | None) -> dict[str, Any]:
    """Compares one figure of both sides."""
    of = MEASURES[name]
    return Sides(side, "all at once", [(of(mine), of(theirs)) for mine, theirs in pairs]).summary(limit)


def summary(done: Deleted) -> str:
    """Describes a run in a few words."""
    return f"{done.seconds:.2f} s (back after {done.process:.2f}), p99 {done.seen.p99:.0f} ms, {done.writes.bytes / 1e6:.0f} MB"


def main() -> None:
    """Runs the command line."""
    words = common.plain_parser(__doc__ or "")
    words.add_argument("--pairs", type=int, default=5)
    words.add_argument("--pace", default="20ms", help="the pace of the third run of each pair; off: no third run")
    words.add_argument("--max-orphans", type=int, default=100)
    shape_options(words, SHAPE)
    words.add_argument(
        "--metadata", default="single", help="profile of the metadata, as for mkfs.btrfs; dup takes twice the memory"
    )
    words.add_argument("--mount", default="noatime,nodiscard", help="mount options")
    options = words.parse_args()
    with common.own_folder(options) as folder:
        common.report(options, "expiry against deleting all at once", measure(options, folder))


if __name__ == "__main__":
    main()
