"""Compares a backup of one host with many files, few of them changed, to the shell commands an administrator would write.

    python -m bench.one_host [--transport ssh] [--json]

The bare line is a shell's: `btrfs subvolume snapshot`, the very rsync command of `backupd run --dry-run`, `sync -f`, `btrfs
property set ro true`. Both sides run on the same filesystem after the same changes; who is first alternates. At the end the two
newest backups are compared file by file. "inside" is our time without start-up: from the begin of the host's run to its row in the
catalogue, as `backupd run --json` gives it.
"""

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path

from bench import common
from bench.common import Bed, Sides, Timed, bed, timed
from bench.trees import Tree
from tests.beds import work

HOST = "one"


@dataclass(slots=True)
class OneHost:
    """The two sides, from night to night."""

    place: Bed
    base: Path
    night: int = 0
    inside: list[float] = field(default_factory=list)

    def run_ours(self) -> Timed:
        """Runs a night of btrkeep."""
        self.place.settle()
        done = timed(common.ours(self.place, "run", HOST, "--json"))
        (result,) = json.loads(done.stdout)
        assert result["outcome"] == "complete", result
        self.inside.append(result["seconds"])
        return done

    def run_bare(self) -> Timed:
        """Runs a night of the shell commands."""
        new = self.base.parent / f"night{self.night:03}"
        line = common.bare_night(common.rsync_lines(self.place, [HOST])[HOST], self.base, new)
        self.base = new
        self.place.settle()
        return timed(("sh", "-c", f"({line}) >/dev/null"))


def measure(options: argparse.Namespace, place: Bed) -> dict[str, object]:
    """Measures all nights."""
    tree = Tree(place.hosts / "files", options.files, options.bytes // options.files, options.per_folder, seed=2)
    place.configure({HOST: tree.top})
    timed(common.ours(place, "run", HOST))
    bare = place.disk / "bare"
    bare.mkdir()
    work("btrfs", "subvolume", "snapshot", place.newest(HOST), bare / "first")
    sides = OneHost(place, bare / "first")
    inside, whole = Sides("ours, inside", "bare"), Sides("ours, whole process", "bare")
    cpu = Sides("ours, all processes", "bare, all processes")
    noisy = 0
    for night in range(options.nights + 1):
        tree.change(max(1, round(options.files * options.share)))
        sides.night = night
        place.settle()
        quiet = common.wait_for_quiet(options)
        mine, theirs = common.alternate(night, sides.run_ours, sides.run_bare)
        line = f"night {night}: ours {mine.seconds:.3f} s (inside {sides.inside[-1]:.3f}), bare {theirs.seconds:.3f} s"
        common.say(f"{line}; {common.noise(quiet, mine, theirs)}")
        if night:
            inside.pairs.append((sides.inside[-1], theirs.seconds))
            whole.pairs.append((mine.seconds, theirs.seconds))
            cpu.pairs.append((mine.cpu, theirs.cpu))
            noisy += not quiet
    work("diff", "-r", "--no-dereference", place.newest(HOST) / "data", sides.base / "data", timeout=1000)
    return {
        "nights": options.nights,
        "nights_not_quiet": noisy,
        "without our start-up": inside.summary(1.10),
        "whole process": whole.summary(1.25),
        "CPU seconds": cpu.summary(None),
    }


def main() -> None:
    """Runs the command line."""
    words = common.parser(__doc__ or "")
    words.add_argument("--files", type=int, default=100_000)
    words.add_argument("--bytes", type=common.size, default=common.size("800MB"), help="size of all files together")
    words.add_argument("--per-folder", type=int, default=200)
    words.add_argument("--share", type=float, default=0.01, help="share of the files that changes every day")
    options = words.parse_args()
    with bed(options, "10GB", "5GB") as place:
        measured = measure(options, place)
        common.report(options, f"one host of {options.files} files, {options.bytes} bytes, {options.share:.1%} changed", measured)


if __name__ == "__main__":
    main()
