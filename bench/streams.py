"""Compares a night of one host with many files, few of them changed: `engine = "send"`, rsync, `btrfs send | btrfs receive`, and
btrbk if it is installed.

    python -m bench.streams [--files 100000] [--changed 20] [--minutes 30] [--without-btrbk] [--json]

All go through a real sshd. The line of a shell has what an administrator would type: a read-only snapshot there, `ssh btrfs send
-p` into `btrfs receive`, `sync -f`. "inside" is the time from the begin of the host's run to its row in the catalogue, without our
start-up. btrbk keeps the newest snapshot and the newest copy only, and its whole process is timed, with a `sync -f`. At the end all
copies are compared with the host's files, if there is time.

After --minutes no other night begins. The medians of the complete nights are printed then, and also after Ctrl-C or SIGTERM.
"""

import argparse
import json
import os
import shlex
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from bench import common
from bench.common import Bed, Sides, Timed, bed, timed
from bench.trees import Tree
from tests.beds import work
from tests.beds.source_program import SourceHost

BTRBK = """
timestamp_format long-iso
ssh_identity {key}
ssh_user root
snapshot_dir btrbk-snapshots
snapshot_preserve_min latest
snapshot_preserve no
target_preserve_min latest
target_preserve no
volume ssh://127.0.0.1:{port}{volume}
  subvolume {subvolume}
    target {target}
"""


class FourWays:
    """One host, and its copies."""

    def __init__(self, place: Bed, tree: Path, with_btrbk: bool) -> None:
        assert place.sshd
        self.place, self.tree, self.sshd = place, tree, place.sshd
        self.bare, self.snapshots = place.disk / "bare", place.hosts / "kept"
        self.bare.mkdir()
        self.snapshots.mkdir()
        self.btrbk = self._btrbk() if with_btrbk and shutil.which("btrbk") else None
        self.night = 0
        self.inside: dict[str, float] = {}
        self.phases: dict[str, dict[str, float]] = {}
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
        """Runs a night of btrkeep."""
        self.place.settle()
        done = timed(common.ours(self.place, "run", engine, "--json"))
        (result,) = json.loads(done.stdout)
        assert result["outcome"] == "complete", result
        self.inside[engine] = result["seconds"]
        self.phases[engine] = json.loads((self.place.newest(engine) / "backup.json").read_text())["seconds"]
        return done

    def shell(self) -> Timed:
        """Runs a night of the shell commands."""
        new, old = self.snapshots / f"night{self.night}", self.snapshots / f"night{self.night - 1}"
        remote = shlex.join(("btrfs", "-q", "subvolume", "snapshot", "-r", str(self.tree), str(new)))
        remote += " && " + shlex.join(("btrfs", "-q", "send", *(("-p", str(old)) if self.night else ()), str(new)))
        line = shlex.join((*self.sshd.ssh(), self.sshd.address, remote)) + f" | btrfs -q receive {self.bare} && sync -f {self.bare}"
        self.place.settle()
        return timed(("sh", "-c", line))

    def _btrbk(self) -> str:
        """Writes btrbk's configuration, and an ssh that has the host's address; returns the shell line."""
        folder, target = self.place.disk / "btrbk", self.place.disk / "btrbk/copies"
        target.mkdir(parents=True)
        (self.place.hosts / "btrbk-snapshots").mkdir()
        words = {"key": self.sshd.key, "port": self.sshd.port, "volume": self.place.hosts, "subvolume": self.tree.name}
        (folder / "btrbk.conf").write_text(BTRBK.format(target=target, **words))
        options = ("-F", "none", "-o", f"UserKnownHostsFile={self.sshd.known_hosts}")
        (folder / "ssh").write_text(f'#!/bin/sh\nexec {shlex.join((shutil.which("ssh") or "ssh", *options))} "$@"\n')
        (folder / "ssh").chmod(0o755)
        path = f"{folder}:{os.environ['PATH']}"
        return f"PATH={shlex.quote(path)} btrbk -q -c {folder / 'btrbk.conf'} run && sync -f {target}"

    def run_btrbk(self) -> Timed:
        """Runs a night of btrbk."""
        assert self.btrbk
        self.place.settle()
        return timed(("sh", "-c", self.btrbk))

    def compare(self) -> None:
        """Compares all copies with the files. The time of our own folder itself differs."""
        for copy in (
            self.bare / f"night{self.night}",
            *sorted((self.place.disk / "btrbk/copies").glob(f"{self.tree.name}.*"))[-1:],
            *(self.place.newest(engine) / "data" / str(self.tree).strip("/") for engine in ("send", "rsync")),
        ):
            work("diff", "-r", "--no-dereference", "-x", ".btrkeep-source", self.tree, copy, timeout=1000)


def measure(options: argparse.Namespace, place: Bed) -> dict[str, object]:
    """Measures all nights."""
    work("btrfs", "-q", "subvolume", "create", place.hosts / "files")
    tree = Tree(place.hosts / "files" / "tree", options.files, options.bytes // options.files, options.per_folder, seed=2)
    ways = FourWays(place, place.hosts / "files", not options.without_btrbk)
    nights: dict[str, Callable[[], Timed]] = {"send": lambda: ways.run("send"), "rsync": lambda: ways.run("rsync")}
    nights |= {"shell": ways.shell} | ({"btrbk": ways.run_btrbk} if ways.btrbk else {})
    first = dict[str, float]()
    for name, run in nights.items():
        first[name] = run().seconds
        common.say(f"the first copy: {name} {first[name]:.2f} s")
    to_btrbk = Sides("send, inside", "btrbk")
    to_shell, to_rsync = Sides("send, inside", "shell"), Sides("send, inside", "rsync, inside")
    whole, cpu = Sides("send, whole process", "rsync, whole process"), Sides("send, all processes", "rsync, all processes")
    begun = time.monotonic()
    try:
        for night in range(1, options.nights + 2):
            longest = max(0.0, time.monotonic() - begun)
            begun = time.monotonic()
            if begun + longest > options.end and night > 2:
                common.say(f"no time for night {night}")
                break
            ways.night = night
            tree.change(options.changed)
            quiet = common.wait_for_quiet(options)
            times = {name: nights[name]() for name in (nights if night % 2 else reversed(nights))}
            seconds = ", ".join(f"{name} {side.seconds:.3f} s" for name, side in times.items())
            inside = f"inside: send {ways.inside['send']:.3f} s, rsync {ways.inside['rsync']:.3f} s"
            common.say(f"night {night}: {seconds}; {inside}{'' if quiet else ' (not quiet)'}")
            common.say(f"    of it: {ways.phases['send']}")
            if night > 1:
                to_shell.pairs.append((ways.inside["send"], times["shell"].seconds))
                if ways.btrbk:
                    to_btrbk.pairs.append((ways.inside["send"], times["btrbk"].seconds))
                to_rsync.pairs.append((ways.inside["send"], ways.inside["rsync"]))
                whole.pairs.append((times["send"].seconds, times["rsync"].seconds))
                cpu.pairs.append((times["send"].cpu, times["rsync"].cpu))
    except (KeyboardInterrupt, SystemExit):
        if not to_shell.pairs:
            raise
        common.say(f"stopped after {len(to_shell.pairs)} measured nights")
    else:
        if time.monotonic() + first["rsync"] < options.end:
            ways.compare()
        else:
            common.say("no time to compare the copies")
    return {
        "nights": len(to_shell.pairs),
        "first copy": ", ".join(f"{name} {seconds:.1f} s" for name, seconds in first.items()),
        "against the shell": to_shell.summary(1.3),
        **({"against btrbk": to_btrbk.summary(None)} if ways.btrbk else {}),
        "against rsync": to_rsync.summary(0.1),
        "against rsync, whole process": whole.summary(None),
        "CPU seconds": cpu.summary(None),
    }


def main() -> None:
    """Runs the command line."""
    words = common.parser(__doc__ or "")
    words.set_defaults(transport="ssh")
    words.add_argument("--files", type=int, default=100_000)
    words.add_argument("--bytes", type=common.size, default=common.size("400MB"), help="size of all files together")
    words.add_argument("--per-folder", type=int, default=200)
    words.add_argument("--changed", type=int, default=20, help="files that change every day")
    words.add_argument("--minutes", type=float, default=30.0, help="how long nights may begin")
    words.add_argument("--without-btrbk", action="store_true", help="leave btrbk out")
    options = words.parse_args()
    options.end = time.monotonic() + options.minutes * 60
    gigabytes = max(1.0, options.files / 250_000)  # most is metadata
    with bed(options, f"{round(6 * gigabytes)}GB", f"{round(3 * gigabytes)}GB") as place:
        measured = measure(options, place)
        common.report(options, f"a host of {options.files} files, {options.changed} of them changed", measured)


if __name__ == "__main__":
    main()
