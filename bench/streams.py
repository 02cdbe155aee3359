"""Compares a night of one host with many files, few of them changed: `engine = "send"`, rsync, and `btrfs send | btrfs receive`.

    python -m bench.streams [--files 100000] [--changed 20] [--json]

All three go through a real sshd. The line of a shell has what an administrator would type: a read-only snapshot there, `ssh btrfs
send -p` into `btrfs receive`, `sync -f`. "inside" is the time from the begin of the host's run to its row in the catalogue, without
our start-up. At the end all three copies are compared with the host's files.
"""

import argparse
import json
import shlex
from pathlib import Path

from bench import common
from bench.common import Bed, Sides, Timed, bed, timed
from bench.trees import Tree
from tests.beds import work
from tests.beds.source_program import SourceHost


class ThreeWays:
    """One host, and its three copies."""

    def __init__(self, place: Bed, tree: Path) -> None:
        assert place.sshd
        self.place, self.tree, self.sshd = place, tree, place.sshd
        self.bare, self.snapshots = place.disk / "bare", place.hosts / "kept"
        self.bare.mkdir()
        self.snapshots.mkdir()
        self.night = 0
        self.inside: dict[str, float] = {}
        program = SourceHost(place.sshd)
        program.ssh("bench")
        place.configure({})
        keys = {"address": self.sshd.address, "port": self.sshd.port, "paths": [str(tree)]}
        lines = [f"{name} = {json.dumps(value)}" for name, value in keys.items()]
        text = place.config.read_text().replace(json.dumps(str(self.sshd.key)), json.dumps(str(program.keys["bench"])))
        for engine in ("send", "rsync"):
            text += "\n".join((f"\n[host.{engine}]", f'engine = "{engine}"', *lines, ""))
        place.config.write_text(text)

    def run(self, engine: str) -> Timed:
        """A night of ours."""
        self.place.settle()
        done = timed(common.ours(self.place, "run", engine, "--json"))
        (result,) = json.loads(done.stdout)
        assert result["outcome"] == "complete", result
        self.inside[engine] = result["seconds"]
        return done

    def shell(self) -> Timed:
        """A night of the shell's line."""
        new, old = self.snapshots / f"night{self.night}", self.snapshots / f"night{self.night - 1}"
        remote = shlex.join(("btrfs", "-q", "subvolume", "snapshot", "-r", str(self.tree), str(new)))
        remote += " && " + shlex.join(("btrfs", "-q", "send", *(("-p", str(old)) if self.night else ()), str(new)))
        line = shlex.join((*self.sshd.ssh(), self.sshd.address, remote)) + f" | btrfs -q receive {self.bare} && sync -f {self.bare}"
        self.place.settle()
        return timed(("sh", "-c", line))

    def compare(self) -> None:
        """Compares all copies with the files. Our own folder has a time of its own."""
        for copy in (
            self.bare / f"night{self.night}",
            *(self.place.newest(engine) / "data" / str(self.tree).strip("/") for engine in ("send", "rsync")),
        ):
            work("diff", "-r", "--no-dereference", "-x", ".btrkeep-source", self.tree, copy, timeout=1000)


def measure(options: argparse.Namespace, place: Bed) -> dict[str, object]:
    """All nights."""
    work("btrfs", "-q", "subvolume", "create", place.hosts / "files")
    tree = Tree(place.hosts / "files" / "tree", options.files, options.bytes // options.files, options.per_folder, seed=2)
    ways = ThreeWays(place, place.hosts / "files")
    first = {engine: ways.run(engine).seconds for engine in ("send", "rsync")} | {"shell": ways.shell().seconds}
    common.say("the first copy: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in first.items()))
    to_shell, to_rsync = Sides("send, inside", "shell"), Sides("send, inside", "rsync, inside")
    whole, cpu = Sides("send, whole process", "rsync, whole process"), Sides("send, all processes", "rsync, all processes")
    for night in range(1, options.nights + 2):
        ways.night = night
        tree.change(options.changed)
        quiet = common.wait_for_quiet(options)
        order = ("send", "rsync", "shell") if night % 2 else ("shell", "rsync", "send")
        times = {name: ways.shell() if name == "shell" else ways.run(name) for name in order}
        common.say(
            f"night {night}: send {times['send'].seconds:.3f} s (inside {ways.inside['send']:.3f}), "
            f"rsync {times['rsync'].seconds:.3f} s (inside {ways.inside['rsync']:.3f}), shell {times['shell'].seconds:.3f} s"
            f"{'' if quiet else ' (not quiet)'}"
        )
        if night > 1:
            to_shell.pairs.append((ways.inside["send"], times["shell"].seconds))
            to_rsync.pairs.append((ways.inside["send"], ways.inside["rsync"]))
            whole.pairs.append((times["send"].seconds, times["rsync"].seconds))
            cpu.pairs.append((times["send"].cpu, times["rsync"].cpu))
    ways.compare()
    return {
        "nights": options.nights,
        "first copy": first,
        "against the shell": to_shell.summary(1.3),
        "against rsync": to_rsync.summary(0.1),
        "against rsync, whole process": whole.summary(None),
        "CPU seconds": cpu.summary(None),
    }


def main() -> None:
    """The command line."""
    words = common.parser(__doc__ or "")
    words.set_defaults(transport="ssh")
    words.add_argument("--files", type=int, default=100_000)
    words.add_argument("--bytes", type=common.size, default=common.size("400MB"), help="of all files together")
    words.add_argument("--per-folder", type=int, default=200)
    words.add_argument("--changed", type=int, default=20, help="files that change every day")
    options = words.parse_args()
    with bed(options, "6GB", "3GB") as place:
        measured = measure(options, place)
        common.report(options, f"a host of {options.files} files, {options.changed} of them changed", measured)


if __name__ == "__main__":
    main()
