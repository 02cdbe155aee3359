"""Many small hosts, four at a time, against the same work by a shell under `xargs -P4`.

    python -m bench.many_hosts [--hosts 300] [--json]

Each host's line is the bare one of bench.one_host. Both sides are whole processes. Our own CPU time is that of the backupd process
itself, start-up included, without rsync and the other children. Its system part is mostly the kernel's committing of transactions
(snapshot, sync, read-only), which in the shell's night the `btrfs` and `sync` processes do. So it is also printed without these
calls, and so is the CPU time of all processes together for both. A third night each time is that of the minimal process
(bench.least): only these three calls and rsync.
"""

import argparse
import json
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path

from bench import common
from bench.common import Bed, Sides, Timed, bed, timed
from bench.trees import Tree, forest
from tests.beds import work


@dataclass(slots=True)
class ManyHosts:
    """The two sides, from night to night."""

    place: Bed
    hosts: list[str]
    at_a_time: int
    night: int = 0
    user: list[float] = field(default_factory=list)
    system: list[float] = field(default_factory=list)
    commits: list[float] = field(default_factory=list)
    least: list[float] = field(default_factory=list)

    @property
    def bare(self) -> Path:
        return self.place.disk / "bare"

    def begin(self) -> None:
        """Makes the first backups: ours by our own run, the others' as snapshots of those."""
        timed(common.ours(self.place, "run", "--all"))
        for host in self.hosts:
            (self.bare / host).mkdir(parents=True)
            work("btrfs", "subvolume", "snapshot", self.place.newest(host), self.bare / host / "newest")
            work("btrfs", "subvolume", "snapshot", self.place.newest(host), self.bare / host / "least")

    def run_ours(self) -> Timed:
        """Runs a night of btrkeep."""
        self.place.settle()
        note = self.place.folder / "cpu"
        done = timed((sys.executable, "-m", "bench.own_cpu", str(note), *common.ours(self.place, "run", "--all", "--json")[3:]))
        outcomes = [result["outcome"] for result in json.loads(done.stdout)]
        assert outcomes == ["complete"] * len(self.hosts), outcomes
        user, system, commits = map(float, note.read_text().split())
        self.user.append(user)
        self.system.append(system)
        self.commits.append(commits)
        return done

    def run_bare(self) -> Timed:
        """Runs a night of the shell commands."""
        rsyncs = common.rsync_lines(self.place)
        scripts = []
        for host in self.hosts:
            new, newest = self.bare / host / f"night{self.night:03}", self.bare / host / "newest"
            script = self.place.folder / f"{host}.sh"
            script.write_text(common.bare_night(rsyncs[host], newest.resolve(), new) + "\n", encoding="utf-8")
            scripts.append(str(script))
        names = self.place.folder / "scripts"
        names.write_text("\n".join(scripts) + "\n", encoding="utf-8")
        self.place.settle()
        done = timed(("sh", "-c", f"xargs -P{self.at_a_time} -n1 sh <{shlex.quote(str(names))} >/dev/null"))
        for host in self.hosts:
            _point(self.bare / host / "newest", f"night{self.night:03}")
        return done

    def run_least(self) -> Timed:
        """Runs a night of the minimal program, and records its own CPU time."""
        rsyncs = common.rsync_lines(self.place)
        jobs = []
        for host in self.hosts:
            new, newest = self.bare / host / f"least{self.night:03}", self.bare / host / "least"
            jobs.append((str(newest.resolve()), str(new), [*rsyncs[host][:-1], f"{new}/data/"]))
        file, note = self.place.folder / "least.json", self.place.folder / "least"
        file.write_text(json.dumps(jobs), encoding="utf-8")
        self.place.settle()
        done = timed((sys.executable, "-m", "bench.least", str(file), str(note), str(self.at_a_time)))
        self.least.append(float(note.read_text()))
        for host in self.hosts:
            _point(self.bare / host / "least", f"least{self.night:03}")
        return done


def _point(link: Path, name: str) -> None:
    """Makes `link` a symlink to that snapshot; what the link replaced the first time is kept beside it."""
    if link.is_symlink():
        link.unlink()
    else:
        link.rename(link.with_name(f"first-{link.name}"))
    link.symlink_to(name)


def measure(options: argparse.Namespace, place: Bed) -> dict[str, object]:
    """Measures all nights."""
    trees: dict[str, Tree] = dict(forest(place.hosts, options.hosts, options.files, options.mean, per_folder=50))
    place.configure({host: tree.top for host, tree in trees.items()}, options.at_a_time)
    sides = ManyHosts(place, list(trees), options.at_a_time)
    sides.begin()
    whole, cpu = Sides("ours, whole process", "xargs"), Sides("ours, all processes", "xargs, all processes")
    noisy = 0
    for night in range(options.nights + 1):
        for tree in trees.values():
            tree.change(max(1, options.files // 100))
        sides.night = night
        place.settle()
        quiet = common.wait_for_quiet(options)
        mine, theirs = common.alternate(night, sides.run_ours, sides.run_bare)
        sides.run_least()
        per_host = (sides.user[-1] + sides.system[-1]) / len(trees) * 1000
        least = sides.least[-1] / len(trees) * 1000
        own = f"{per_host:.1f} ms CPU a host (the least {least:.1f})"
        line = f"night {night}: ours {mine.seconds:.2f} s, {own}, xargs {theirs.seconds:.2f} s"
        common.say(f"{line}; {common.noise(quiet, mine, theirs)}")
        if night:
            whole.pairs.append((mine.seconds, theirs.seconds))
            cpu.pairs.append((mine.cpu, theirs.cpu))
            noisy += not quiet
    host = min(trees)
    for other in ("newest", "least"):
        work("diff", "-r", "--no-dereference", place.newest(host) / "data", place.disk / "bare" / host / other / "data")
    user = [seconds / len(trees) * 1000 for seconds in sides.user[1:]]
    system = [seconds / len(trees) * 1000 for seconds in sides.system[1:]]
    commits = [seconds / len(trees) * 1000 for seconds in sides.commits[1:]]
    both = [sum(pair) for pair in zip(user, system, strict=True)]
    ours = [both_seconds - commit_seconds for both_seconds, commit_seconds in zip(both, commits, strict=True)]
    more = [(mine - theirs) / len(trees) * 1000 for mine, theirs in cpu.pairs]
    return {
        "nights": options.nights,
        "nights_not_quiet": noisy,
        "whole process": whole.summary(1.25),
        "own CPU, ms per host": {
            "user and system": {**common.spread(both), "limit": 10.0},
            "the least that a process can take": common.spread([seconds / len(trees) * 1000 for seconds in sides.least[1:]]),
            "of it the kernel, in snapshot, sync and read-only": common.spread(commits),
            "without these three calls": common.spread(ours),
            "user": common.spread(user),
            "system": common.spread(system),
            "what a host costs more than in the shell's night, all processes": common.spread(more),
        },
        "CPU seconds": cpu.summary(None),
    }


def main() -> None:
    """Runs the command line."""
    words = common.parser(__doc__ or "", nights=5)
    words.add_argument("--hosts", type=int, default=300)
    words.add_argument("--files", type=int, default=1000, help="files of each host")
    words.add_argument("--mean", type=common.size, default=common.size("2KiB"), help="mean size of a file")
    words.add_argument("--at-a-time", type=int, default=4)
    options = words.parse_args()
    with bed(options, "10GB", "5GB") as place:
        measured = measure(options, place)
        common.report(
            options, f"{options.hosts} hosts of {options.files} files, {options.at_a_time} at a time, 1 % changed", measured
        )


if __name__ == "__main__":
    main()
