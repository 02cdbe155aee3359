"""Compares a night of btrkeep with one of Debian's rsnapshot with link_dest; both delete one old day completely.

    python -m bench.rsnapshot_night [--cache cold] [--json]

Both keep two days of the same host on the same btrfs; the order alternates. rsnapshot (package rsnapshot, settings as Debian ships
them except `link_dest 1`, `retain alpha 2` and the paths; sync_first stays 0) first removes its oldest day by rm -rf, then links
and copies; its night ends with `btrfs filesystem sync`. btrkeep's night deletes its oldest backup first too (`btrfs subvolume
delete`, as `backupd expire` does, and `btrfs filesystem sync`, which wakes the cleaner), then comes `backupd run`, and the night
ends when the kernel has dropped the old one and no deleted subvolume is listed any more. (`btrfs subvolume sync` would wait for the
same, but checks only once a second.) A cold night begins with empty caches for files, folders and metadata of the whole machine.

Debian's rsnapshot calls rsync with -a: neither ACLs nor xattrs nor hard links, which btrkeep keeps and which take half of its
rsync's time. `--rsync-args=-aHAX` lets rsnapshot keep the same.
"""

import argparse
import json
import shlex
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench import common
from bench.common import Bed, Sides, Timed, bed, timed
from bench.trees import Tree
from tests.beds import work

HOST = "one"
CACHES = ("cold", "warm")


@dataclass(slots=True)
class TwoDays:
    """The two sides, each with two kept days."""

    place: Bed
    tree: Tree
    rsync_args: str
    cold: bool = False

    @property
    def conf(self) -> Path:
        return self.place.folder / "rsnapshot.conf"

    @property
    def root(self) -> Path:
        return self.place.disk / "rsnapshot"

    def configure(self) -> None:
        """Writes Debian's settings with the paths of this bench."""
        place = self.place
        here = place.transport == "local"
        address = "" if here else f"{place.sshd.address if place.sshd else 'root@elsewhere'}:"
        lines = [
            ("config_version", "1.2"),
            ("snapshot_root", f"{self.root}/"),
            ("cmd_cp", "/bin/cp"),
            ("cmd_rm", "/bin/rm"),
            ("cmd_rsync", shutil.which("rsync") or "rsync"),
            *([("rsync_short_args", self.rsync_args)] if self.rsync_args else []),
            *self._ssh_lines(),
            ("link_dest", "1"),
            ("retain", "alpha", "2"),
            ("verbose", "2"),
            ("loglevel", "3"),
            ("lockfile", str(place.folder / "rsnapshot.pid")),
            ("backup", f"{address}{self.tree.top}/", f"{HOST}/"),
        ]
        self.root.mkdir()
        self.conf.write_text("".join("\t".join(line) + "\n" for line in lines), encoding="utf-8")

    def _ssh_lines(self) -> list[tuple[str, ...]]:
        if self.place.sshd:
            words = self.place.sshd.ssh()
            return [("cmd_ssh", shutil.which(words[0]) or words[0]), ("ssh_args", shlex.join(words[1:]))]
        if self.place.transport != "fakessh":
            return []
        link = self.place.folder / "ssh"  # rsync breaks its remote shell at blanks, of which the checkout's path may have some
        link.symlink_to(common.FAKESSH)
        return [("cmd_ssh", str(link))]

    def _empty_caches(self) -> None:
        self.place.settle()
        if self.cold:
            work("sync")
            Path("/proc/sys/vm/drop_caches").write_text("3\n", encoding="ascii")

    def run_ours(self) -> Timed:
        """Runs a night of btrkeep; the older of the two days is deleted first, as rsnapshot does, and its space is free
        at the end.
        """
        backups = sorted(path for path in (self.place.pool / "hosts" / HOST).glob("20*"))
        oldest, disk = shlex.quote(str(backups[0])), shlex.quote(str(self.place.disk))
        run = shlex.join(common.ours(self.place, "run", HOST, "--json"))
        gone = f'until [ -z "$(btrfs subvolume list -d {disk})" ]; do sleep 0.02; done'
        self._empty_caches()
        done = timed(("sh", "-c", f"btrfs -q subvolume delete {oldest} && btrfs filesystem sync {disk} && {run} && {gone}"))
        (result,) = json.loads(done.stdout)
        assert result["outcome"] == "complete", result
        return done

    def run_rsnapshot(self) -> Timed:
        """Runs a night of rsnapshot, including the removal of its oldest day."""
        disk = shlex.quote(str(self.place.disk))
        self._empty_caches()
        return timed(("sh", "-c", f"rsnapshot -c {shlex.quote(str(self.conf))} alpha && btrfs filesystem sync {disk}"))


def measure(options: argparse.Namespace, place: Bed) -> dict[str, object]:
    """Measures warm and cold nights."""
    tree = Tree(place.hosts / "files", options.files, options.bytes // options.files, per_folder=options.per_folder, seed=3)
    place.configure({HOST: tree.top})
    sides = TwoDays(place, tree, options.rsync_args)
    sides.configure()
    for _ in range(2):
        timed(common.ours(place, "run", HOST))
        sides.run_rsnapshot()
        time.sleep(1.1)
        tree.change(options.changed)
    measured: dict[str, object] = {"nights": options.nights, "sync_first": 0}
    for cache in CACHES if options.cache == "both" else (options.cache,):
        sides.cold = cache == "cold"
        measured[f"{cache} cache"] = _nights(options, sides, cache).summary(0.35)
    data = place.newest(HOST) / "data"
    work("diff", "-r", "--no-dereference", data, sides.root / "alpha.0" / HOST, timeout=1000)
    return measured


def _nights(options: argparse.Namespace, sides: TwoDays, cache: str) -> Sides:
    both_sides = Sides("ours", "rsnapshot")
    for night in range(options.nights + 1):
        time.sleep(1.1)  # rsnapshot's rsync compares whole seconds: of the same one it would miss a change that keeps the size
        sides.tree.change(options.changed)
        sides.place.settle()
        quiet = common.wait_for_quiet(options)
        mine, theirs = common.alternate(night, sides.run_ours, sides.run_rsnapshot)
        line = f"{cache} night {night}: ours {mine.seconds:.2f} s, rsnapshot {theirs.seconds:.2f} s"
        common.say(f"{line}; {common.noise(quiet, mine, theirs)}")
        if night:
            both_sides.pairs.append((mine.seconds, theirs.seconds))
    return both_sides


def main() -> None:
    """Runs the command line."""
    words = common.parser(__doc__ or "", nights=5)
    words.add_argument("--files", type=int, default=55_566)
    words.add_argument("--bytes", type=common.size, default=common.size("753MB"), help="size of all files together")
    words.add_argument("--changed", type=int, default=600, help="files that change every day")
    words.add_argument("--per-folder", type=int, default=40)
    words.add_argument("--rsync-args", default="", help="rsnapshot's rsync_short_args, such as -aHAX; Debian's are -a")
    words.add_argument("--cache", choices=(*CACHES, "both"), default="both")
    options = words.parse_args()
    if not shutil.which("rsnapshot"):
        sys.exit("no benchmark: rsnapshot is not installed (Debian's package is called rsnapshot)")
    with bed(options, "10GB", "5GB") as place:
        measured = measure(options, place)
        common.report(options, f"one host of {options.files} files, {options.changed} changed, two days kept", measured)


if __name__ == "__main__":
    main()
