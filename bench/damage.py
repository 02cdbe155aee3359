"""From damaged addresses to every file in every backup: ours, and `btrfs inspect-internal logical-resolve` one by one.

    python -m bench.damage [--hosts 100] [--backups 32] [--files 10] [--rounds 3]

Each host has some files of one extent, and each of its backups is a snapshot that shares them. Nothing is spoilt: the question is
what refers to an address. Ours is a whole process, which opens the filesystem and is told the backups by the ids of their
subvolumes. The program names inodes and subvolumes, and no path in those that are not mounted by themselves: it has less to do.
Both sides have to come to the same inodes. The verdict: the ratio of the medians.
"""

import argparse
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from backupd.actions.damaged import Resolver
from bench.common import own_folder, plain_parser, timed, wait_for_quiet
from btrkeep.pool.subvolume import describe, opened, snapshot
from tests.beds import btrfs, work

LIMIT = 20.0
"""Agreed: at least so many times faster."""
_SIZE = 64 << 10
_THEIRS = re.compile(r"^inode (\d+) subvol (\S+) could not be accessed: not mounted$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Told:
    """Seconds of each round, and what was named in the last."""

    ours: list[float]
    theirs: list[float]
    ratio: float
    same: bool
    addresses: int
    names: int


def main(words: Sequence[str] | None = None) -> int:
    """Prints the report; 1 if ours is slower than agreed, or named something else."""
    made = plain_parser(__doc__ or "")
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    for name, default in (("hosts", 100), ("backups", 32), ("files", 10), ("rounds", 3)):
        made.add_argument(f"--{name}", type=int, default=default)
    made.add_argument("--resolve", nargs=2, metavar=("MOUNT", "FILE"), help=argparse.SUPPRESS)
    options = made.parse_args(words)
    if options.resolve:
        return _resolve(Path(options.resolve[0]), Path(options.resolve[1]))
    with own_folder(options) as folder:
        told = _measured(options, folder)
    _say(told, options)
    return 0 if told.same and told.ratio >= LIMIT else 1


def _measured(options: argparse.Namespace, folder: Path) -> Told:
    top = btrfs.make(f"{max(4, options.hosts * options.backups // 10_000)}G", options="noatime")
    asked = _fill(options, top)
    note = folder / "asked.json"
    note.write_text(json.dumps(asked))
    ours, theirs, same = [], [], True
    for _ in range(options.rounds):
        wait_for_quiet(options)
        done = timed((sys.executable, "-m", "bench.damage", "--resolve", str(top), str(note)))
        ours.append(done.seconds)
        begun, named = time.perf_counter(), set[tuple[str, int]]()
        for vaddr in asked["vaddrs"]:
            shown = work("btrfs", "inspect-internal", "logical-resolve", "-s", str(4 << 20), str(vaddr), top)
            named.update((subvolume, int(inode)) for inode, subvolume in _THEIRS.findall(shown.stdout))
        theirs.append(time.perf_counter() - begun)
        same = same and {_subvolume_and_inode(top, path) for path in json.loads(done.stdout)} == named
    ratio = statistics.median(theirs) / statistics.median(ours)
    return Told(ours, theirs, ratio, same, len(asked["vaddrs"]), len(named))


def _subvolume_and_inode(top: Path, path: str) -> tuple[str, int]:
    return "/".join(path.split("/")[:2]), (top / path).stat().st_ino


def _fill(options: argparse.Namespace, top: Path) -> dict[str, list[object]]:
    """(addresses; subvolume id, host and name of each backup)."""
    backups: list[object] = []
    for number in range(options.hosts):
        host = top / f"host{number}"
        host.mkdir()
        first = host / "backup0"
        work("btrfs", "subvolume", "create", first)
        (first / "data/srv").mkdir(parents=True)
        for file in range(options.files):
            (first / "data/srv" / f"file{file}").write_bytes(os.urandom(_SIZE))
        work("btrfs", "filesystem", "sync", top)
        for backup in range(1, options.backups):
            snapshot(first, host / f"backup{backup}", read_only=True)
        for path in host.iterdir():
            found = describe(path)
            assert found
            backups.append((found.id, host.name, path.name))
    work("btrfs", "filesystem", "sync", top)
    vaddrs: list[object] = []
    for number in range(options.hosts):
        for file in range(options.files):
            shown = work("filefrag", "-v", "-b1", top / f"host{number}/backup0/data/srv/file{file}").stdout
            row = next(line for line in shown.splitlines() if line.strip().startswith("0:"))
            vaddrs.append(int(row.split()[3].rstrip(".:")))
    return {"vaddrs": vaddrs, "backups": backups}


def _resolve(top: Path, note: Path) -> int:
    """Prints the names, as the other side has them."""
    asked = json.loads(note.read_text())
    with opened(top) as fd:
        resolver = Resolver(fd, {id_: (host, name) for id_, host, name in asked["backups"]})
        found = [one for vaddr in asked["vaddrs"] for one in resolver.places(vaddr) or ()]
    print(json.dumps([f"{one.host}/{one.name}/data{os.fsdecode(one.path)}" for one in found]))
    return 0


def _say(told: Told, options: argparse.Namespace) -> None:
    if options.json:
        sys.stdout.write(json.dumps(asdict(told)) + "\n")
        return
    for side, seconds in (("ours", told.ours), ("theirs", told.theirs)):
        sys.stdout.write(f"{side}: {statistics.median(seconds):.2f} s [{min(seconds):.2f} - {max(seconds):.2f}]\n")
    named = f"{told.addresses} addresses, {told.names} names, the same: {told.same}"
    sys.stdout.write(f"{named}; {told.ratio:.1f} times faster\n")


if __name__ == "__main__":
    sys.exit(main())
