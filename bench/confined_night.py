"""The cost of confining rsync: nights of many small hosts with and without confinement, in pairs.

    python -m bench.confined_night [--hosts 300] [--json]

CPU time is that of all processes of a night, rsync and the stand-in for ssh included, in milliseconds a host.
"""

import argparse

from bench import common
from bench.common import Bed, Timed, bed, timed
from bench.trees import forest


def night(place: Bed, confine: str) -> Timed:
    """Runs a night of all hosts, with this value of `confine` in the configuration."""
    text = place.config.read_text("utf-8")
    for other in ("always", "never"):
        text = text.replace(f'confine = "{other}"\n', "")
    place.config.write_text(text.replace("[backup]\n", f'[backup]\nconfine = "{confine}"\n'), encoding="utf-8")
    place.settle()
    return timed(common.ours(place, "run", "--all", "--json"))


def measure(options: argparse.Namespace, place: Bed) -> dict[str, object]:
    """Runs all nights; the first night of each kind is not counted."""
    trees = dict(forest(place.hosts, options.hosts, options.files, options.mean, per_folder=50))
    place.configure({host: tree.top for host, tree in trees.items()}, options.at_a_time)
    night(place, "never")
    confined, open_ones = list[Timed](), list[Timed]()
    for number in range(options.nights + 1):
        for tree in trees.values():
            tree.change(max(1, options.files // 100))
        quiet = common.wait_for_quiet(options)
        pair = common.alternate(number, lambda: night(place, "always"), lambda: night(place, "never"))
        line = f"night {number}: {_ms(pair[0], options):.1f} ms a host, without {_ms(pair[1], options):.1f}"
        common.say(f"{line}; {common.noise(quiet, *pair)}")
        if number:
            confined.append(pair[0])
            open_ones.append(pair[1])
    return {
        "CPU, ms a host, confined": common.spread([_ms(night, options) for night in confined]),
        "CPU, ms a host, not confined": common.spread([_ms(night, options) for night in open_ones]),
        "more, ms a host": common.spread(
            [_ms(with_walls, options) - _ms(without, options) for with_walls, without in zip(confined, open_ones, strict=True)]
        ),
        "seconds, confined": common.spread([night.seconds for night in confined]),
        "seconds, not confined": common.spread([night.seconds for night in open_ones]),
    }


def _ms(done: Timed, options: argparse.Namespace) -> float:
    hosts: int = options.hosts
    return done.cpu / hosts * 1000


def main() -> None:
    """Runs the command line."""
    words = common.parser(__doc__ or "", nights=5)
    words.add_argument("--hosts", type=int, default=300)
    words.add_argument("--files", type=int, default=100, help="files of each host")
    words.add_argument("--mean", type=common.size, default=common.size("2KiB"), help="mean size of a file")
    words.add_argument("--at-a-time", type=int, default=4)
    options = words.parse_args()
    with bed(options, "10GB", "5GB") as place:
        common.report(options, f"{options.hosts} hosts, {options.at_a_time} at a time, 1 % changed", measure(options, place))


if __name__ == "__main__":
    main()
