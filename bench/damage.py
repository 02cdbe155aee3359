"""From damaged addresses to every file in every backup: by btrkeep, and by `btrfs inspect-internal logical-resolve` one by one.

    python -m bench.damage [--hosts 100] [--backups 32] [--files 10] [--rounds 3]

Each host has some files of one extent, and each of its backups is a snapshot that shares them. Nothing is damaged: the
question is which files refer to an address. btrkeep runs as a whole process, which opens the filesystem and gets the ids of the
backups' subvolumes. btrfs-progs prints inodes and subvolumes, and paths only in subvolumes that are mounted separately, so it has
less to do. Both have to print the same inodes.

Each side runs twice in each round: "cold" right after all caches were dropped, and "warm" after one run of the same that is not
measured. Beside the seconds is the processor time, which other work on the machine changes less; for btrfs-progs without the
cost of starting it from this script. The verdict: the lower ratio of the medians of the seconds.
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

from bench.common import own_folder, plain_parser, timed, wait_for_quiet
from btrkeep.pool.subvolume import describe, snapshot
from tests.beds import btrfs, work

LIMIT = 20.0
"""The target: at least this many times faster."""
_SIZE = 64 << 10
_THEIRS = re.compile(r"^inode (\d+) subvol (\S+) could not be accessed: not mounted$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Measurement:
    """(seconds, seconds of processor time) of each round with these caches."""

    caches: str
    ours: list[tuple[float, float]]
    theirs: list[tuple[float, float]]

    @property
    def ratio(self) -> float:
        """Returns how many times faster our side is."""
        return _median(self.theirs, 0) / _median(self.ours, 0)

    @property
    def cpu_ratio(self) -> float:
        """Returns the same in processor time."""
        return _median(self.theirs, 1) / _median(self.ours, 1)


def _median(times: Sequence[tuple[float, float]], which: int) -> float:
    return statistics.median(row[which] for row in times)


def main(words: Sequence[str] | None = None) -> int:
    """Prints the report; returns 1 if our side is slower than agreed, or named a wrong file."""
    made = plain_parser(__doc__ or "")
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    for name, default in (("hosts", 100), ("backups", 32), ("files", 10), ("rounds", 3)):
        made.add_argument(f"--{name}", type=int, default=default)
    options = made.parse_args(words)
    with own_folder(options) as folder:
        bed = _Bed(options, folder)
        measurements = [Measurement(caches, [], []) for caches in ("cold", "warm")]
        for _ in range(options.rounds):
            wait_for_quiet(options)
            for row in measurements:
                for side, times in ((bed.ours, row.ours), (bed.theirs, row.theirs)):
                    (_drop_caches if row.caches == "cold" else side)()
                    times.append(side())
    _print_results(measurements, bed, options)
    return 0 if bed.same and min(measurement.ratio for measurement in measurements) >= LIMIT else 1


def _drop_caches() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


class _Bed:
    """The filesystem, and both sides. `names`: the number of names that both printed; `same`: whether they were always the same."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._top = btrfs.make(f"{max(4, options.hosts * options.backups // 10_000)}G", options="noatime")
        asked = _fill(options, self._top)
        self.vaddrs, self._note = asked["vaddrs"], folder / "asked.json"
        self._note.write_text(json.dumps(asked))
        self._ours, self.names, self.same = set[tuple[str, int]](), 0, True

    def ours(self) -> tuple[float, float]:
        """Returns seconds and CPU seconds of one whole process."""
        done = timed((sys.executable, "-m", "bench.damage_resolved", str(self._top), str(self._note)))
        self._ours = {_subvolume_and_inode(self._top, path) for path in json.loads(done.stdout)}
        return done.seconds, done.cpu

    def theirs(self) -> tuple[float, float]:
        """Returns the same of one process for each address."""
        begun, used, named = time.perf_counter(), os.times(), set[tuple[str, int]]()
        for vaddr in self.vaddrs:
            shown = work("btrfs", "inspect-internal", "logical-resolve", "-s", str(4 << 20), str(vaddr), self._top)
            named.update((subvolume, int(inode)) for inode, subvolume in _THEIRS.findall(shown.stdout))
        seconds, after = time.perf_counter() - begun, os.times()
        self.names, self.same = len(named), self.same and named == self._ours
        cpu = after.children_user + after.children_system - used.children_user - used.children_system
        return seconds, cpu


def _subvolume_and_inode(top: Path, path: str) -> tuple[str, int]:
    return "/".join(path.split("/")[:2]), (top / path).stat().st_ino


def _fill(options: argparse.Namespace, top: Path) -> dict[str, list[object]]:
    """Returns the addresses, and the subvolume id, host and name of each backup."""
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
            subvolume = describe(path)
            assert subvolume
            backups.append((subvolume.id, host.name, path.name))
    work("btrfs", "filesystem", "sync", top)
    vaddrs: list[object] = []
    for number in range(options.hosts):
        for file in range(options.files):
            shown = work("filefrag", "-v", "-b1", top / f"host{number}/backup0/data/srv/file{file}").stdout
            row = next(line for line in shown.splitlines() if line.strip().startswith("0:"))
            vaddrs.append(int(row.split()[3].rstrip(".:")))
    return {"vaddrs": vaddrs, "backups": backups}


def _print_results(measurements: Sequence[Measurement], bed: _Bed, options: argparse.Namespace) -> None:
    if options.json:
        rows = [
            {**asdict(measurement), "ratio": measurement.ratio, "cpu_ratio": measurement.cpu_ratio} for measurement in measurements
        ]
        sys.stdout.write(json.dumps({"told": rows, "addresses": len(bed.vaddrs), "names": bed.names, "same": bed.same}) + "\n")
        return
    for measurement in measurements:
        for side, times in (("ours", measurement.ours), ("theirs", measurement.theirs)):
            seconds = [each for each, _ in times]
            words = f"{statistics.median(seconds):.2f} s [{min(seconds):.2f} - {max(seconds):.2f}], CPU {_median(times, 1):.2f} s"
            sys.stdout.write(f"{measurement.caches}, {side}: {words}\n")
        sys.stdout.write(
            f"{measurement.caches}: {measurement.ratio:.1f} times faster, {measurement.cpu_ratio:.1f} in processor time; "
            f"{LIMIT:.0f} were agreed\n"
        )
    sys.stdout.write(f"{len(bed.vaddrs)} addresses, {bed.names} names, the same: {bed.same}\n")


if __name__ == "__main__":
    sys.exit(main())
