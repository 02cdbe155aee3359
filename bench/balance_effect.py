"""The gain of a balance of 5, 10 and 20 % of the data, by the order of block groups; and the cost of each block group.

    python -m bench.balance_effect [--pool mixed|alike|...] [--seeds 1,2,3] [--scale 0.4] [--block-group 256MiB] [--bounds-only]

For each seed a pool is made (bench.fragmented), and each way of balancing gets a copy of its image, so all find the same. The
orders are benefit (with its lower limits), highest score first and least used first (without limits), through the code that
`btrfs-balancer run` uses. All of them take the best block group that still fits the budget, read the filesystem again after each,
and do not move what they have made. The budgets are reached one after the other, as in three nights. Then come `btrfs balance start
-dusage=N`, with the highest N that the budget allows, and the kernel's own reclaim, which knows no budget. Everything is counted on
the whole filesystem.
"""

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

import numpy as np

from balancer.balance_plan import FilesystemReading, read_filesystem
from balancer.cost_model import DEFAULT, MeasuredBalance, Model, fit
from balancer.run_types import SpaceNumbers
from balancer.survey import Cost
from bench import common
from bench.bound import bound
from bench.fragmented import POOLS, Builder, Shape
from bench.images import Images, Mounted
from bench.relocating import WAYS, Reached, Way, by_kernel, by_usage_filter, has_kernel_reclaim
from btrkeep.pool.marker import filesystem_uuid
from btrkeep.pool.mounts import open_btrfs
from tests.beds import work

SHAPE = Shape()
BUDGETS = (0.05, 0.10, 0.20)
AGREED = {"score": 2.0, "usage": 10.0}
"""At the first budget: how many times as much score ours was agreed to remove as these orders do."""


def seed_of(options: argparse.Namespace, images: Images, seed: int) -> dict[str, Any]:
    """Runs all ways of balancing on one pool; returns the result of each at each budget, by name."""
    name = f"seed{seed}"
    shape = Shape(POOLS[options.pool], options.days, options.written, options.scale, seed)
    with images.made(name, options.size, "noatime,nossd,discard=async", ("-m", options.metadata)) as mounted:
        chunk_size = Path("/sys/fs/btrfs") / filesystem_uuid(mounted.point) / "allocation/data/chunk_size"
        chunk_size.write_text(str(options.block_group))
        Builder(mounted.point, shape).build()
        seen = seen_at(mounted)
    groups = seen.survey.groups
    budgets = [int(groups.used.sum() * share) for share in BUDGETS]
    limits = [bound(groups.used, groups.score, budget) for budget in budgets]
    results: dict[str, Any] = {"seed": seed, "before": asdict(seen.numbers()), "bound": limits, "steps": []}
    if options.bounds_only:
        return results
    work("fallocate", "--dig-holes", images.original(name), timeout=600)
    for way in (*WAYS, "btrfs -dusage", "kernel"):
        with images.copy(name, "noatime,nossd,nodiscard") as mounted:
            before = seen_at(mounted).numbers()
            reached = [
                step_result(before, reached, note) for note, reached in _run(options, mounted, way, budgets, results["steps"])
            ]
        results[way] = reached
        for share, figures in zip(BUDGETS, reached, strict=False):
            common.say(f"seed {seed}: {way} at {share:.0%}: {figures}")
    return results


def _run(
    options: argparse.Namespace, mounted: Mounted, name: str, budgets: Sequence[int], steps: list[tuple[Any, ...]]
) -> Iterator[tuple[str, Reached]]:
    """Runs one way, with a note for each budget. Appends the cost of each block group to `steps`."""
    if name in WAYS:
        way = Way(mounted, *WAYS[name])
        yield from (("", reached) for reached in way.spend(budgets))
        steps += [(*astuple(step), *gained) for step, gained in zip(way.measured, way.gained, strict=True)]
    elif name == "kernel":
        if has_kernel_reclaim(mounted.point):
            yield "no budget", by_kernel(mounted, options.patience_kernel)
    else:
        yield from ((f"N={share}", reached) for share, reached in by_usage_filter(mounted, budgets))


def seen_at(mounted: Mounted) -> FilesystemReading:
    """Reads the pool's present state."""
    with open_btrfs(mounted.point) as fd:
        return read_filesystem(fd, mounted.point)


def step_result(before: SpaceNumbers, reached: Reached, note: str) -> dict[str, Any]:
    """The gain and the cost, in bytes. `large`: free in extents of 16 MiB and more, or unallocated, now."""
    after = reached.numbers
    return {
        "note": note,
        "steps": reached.steps,
        "moved": reached.moved,
        "written": reached.written,
        "seconds": round(reached.seconds, 1),
        "removed": round(before.score - after.score, 1),
        "score": round(after.score, 1),
        "fragments": after.fragments,
        "unallocated": after.unallocated,
        "large": after.free_in_large + after.unallocated,
    }


def summary(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns, by budget and way, the medians over the seeds, and how much more score ours removed (the median of the seeds'
    ratios).
    """
    results: dict[str, Any] = {}
    for number, share in enumerate(BUDGETS):
        for way in (*WAYS, "btrfs -dusage", "kernel"):
            pairs = [(seed["benefit"][number], seed[way][number]) for seed in seeds if len(seed[way]) > number]
            if pairs:
                results[f"{share:.0%} {way}"] = {
                    key: statistics.median(other[key] for _, other in pairs) for key in pairs[0][1] if key != "note"
                } | {"ours removes times as much": ratio([(ours["removed"], other["removed"]) for ours, other in pairs])}
    return results


def bounds(seeds: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Returns, by budget, for each seed, the maximum factor by which any choice could be better than highest score first."""
    return {f"{share:.0%}": [round(seed["bound"][at]["at most times"], 3) for seed in seeds] for at, share in enumerate(BUDGETS)}


def ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """Returns the median of the ratios; infinite if the other side removed nothing, or made it worse."""
    return statistics.median(ours / other if other > 0 else float("inf") for ours, other in pairs)


def goodness(steps: Sequence[MeasuredBalance], model: Model) -> dict[str, float]:
    """Returns how well a model predicts the measurements: R2 of bytes and of seconds, and the median and maximum of the relative
    errors.
    """
    figures: dict[str, float] = {}
    guesses = [model.estimate(Cost(step.extents, step.references, step.moved, 0)) for step in steps]
    for name, took, label in (
        ("written", [step.written for step in steps], [guess.moved + guess.metadata for guess in guesses]),
        ("metadata", [step.written - step.moved for step in steps], [guess.metadata for guess in guesses]),
        ("seconds", [step.seconds for step in steps], [guess.seconds for guess in guesses]),
    ):
        real, off = np.array(took, float), np.array(label, float) - np.array(took, float)
        figures[f"{name}: R2"] = float(1 - (off**2).sum() / ((real - real.mean()) ** 2).sum())
        relative = np.abs(off) / np.maximum(np.abs(real), 1e-9)
        figures[f"{name}: median error"], figures[f"{name}: worst error"] = float(np.median(relative)), float(relative.max())
    return {key: round(value, 3) for key, value in figures.items()}


def cost_model(seeds: Sequence[Sequence[MeasuredBalance]]) -> dict[str, Any]:
    """The model fitted to all pools; and how well each pool is predicted by the model of the others, and by DEFAULT.

    Its own other steps are left out: the ways of balancing choose many of the same block groups, so those would be known already.
    """
    others = [[step for other in (*seeds[:number], *seeds[number + 1 :]) for step in other] for number in range(len(seeds))]
    return {
        "learned from all": asdict(fit([step for steps in seeds for step in steps])),
        "by the other pools": [goodness(steps, fit(rest)) for steps, rest in zip(seeds, others, strict=True) if rest],
        "by default": [goodness(steps, DEFAULT) for steps in seeds],
    }


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measures all seeds."""
    seeds: list[dict[str, Any]] = []
    for seed in options.seeds:
        images = Images(folder)
        seeds.append(seed_of(options, images, seed))
        images.original(f"seed{seed}").unlink()
    if options.bounds_only:
        return {"pool": options.pool, "bounds": bounds(seeds), "seeds": seeds}
    steps = [[MeasuredBalance(*step[:5]) for step in seed["steps"]] for seed in seeds]
    return {
        "pool": options.pool,
        "agreed at 5%": AGREED,
        "by budget": summary(seeds),
        "bounds": bounds(seeds),
        "model": cost_model(steps),
        "seeds": seeds,
    }


def show(options: argparse.Namespace, results: Mapping[str, Any]) -> None:
    """Prints JSON, or a table of medians."""
    if options.json:
        common.report(options, "balance in several orders", results)
        return
    print(f"{options.pool}: the best choice of all, against highest score first, at most times as much: {results['bounds']}")
    if options.bounds_only:
        return
    print(f"{'budget, order':18} {'moved GiB':>9} {'written':>8} {'removed':>8} {'ours/it':>8} {'large GiB':>10} {'seconds':>8}")
    for name, shares in results["by budget"].items():
        sizes = shares["moved"] / 2**30, shares["written"] / 2**30
        rest = shares["removed"], shares["ours removes times as much"], shares["large"] / 2**30, shares["seconds"]
        print(f"{name:18} {sizes[0]:9.2f} {sizes[1]:8.2f} {rest[0]:8.0f} {rest[1]:8.2f} {rest[2]:10.2f} {rest[3]:8.1f}")
    print("cost model:", results["model"])


def main() -> None:
    """Runs the command line."""
    words = common.plain_parser(__doc__ or "")
    words.add_argument("--pool", choices=tuple(POOLS), default="mixed")
    words.add_argument("--seeds", type=lambda text: [int(word) for word in text.split(",")], default=[1, 2, 3])
    words.add_argument("--scale", type=float, default=SHAPE.scale, help="share of the hosts; 1 makes some 30 GiB of data")
    words.add_argument(
        "--size", type=common.size, default=24 << 30, help="size of the filesystem; its image takes space only for written data"
    )
    words.add_argument("--days", type=int, default=SHAPE.days)
    words.add_argument(
        "--written", type=float, default=SHAPE.written, help="share of the files that are written, not only allocated"
    )
    words.add_argument("--block-group", type=common.size, default=256 << 20, help="length of the data block groups, from 256 MiB")
    words.add_argument("--metadata", default="single", help="profile of the metadata, as for mkfs.btrfs")
    words.add_argument(
        "--patience-kernel", type=float, default=8.0, help="seconds without activity after which the kernel counts as finished"
    )
    words.add_argument("--bounds-only", action="store_true", help="balance nothing; print the maximum gain of any choice")
    options = words.parse_args()
    with common.own_folder(options) as folder:
        show(options, measure(options, folder))


if __name__ == "__main__":
    main()
