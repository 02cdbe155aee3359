"""The cost of simple quotas: nights and deletions on two filesystems that are otherwise equal, in pairs.

    python -m bench.quotas [--hosts 100] [--json]

CPU time is that of all processes of a night, without the kernel's own threads. A deletion is that of all backups but the newest of
each host, from the command until the kernel has dropped the last one. Enabling is that of a filesystem with that many subvolumes,
and memory is the growth of the kernel's slabs of sysfs and of such sizes during it.
"""

import argparse
import os
import time
from pathlib import Path

from bench import common
from bench.common import Bed, Timed, timed
from bench.trees import Tree, forest
from btrkeep.pool.orphans import orphan_items
from tests.beds import TOP, btrfs, work


def night(place: Bed) -> Timed:
    """Runs a night of all hosts."""
    place.settle()
    return timed(common.ours(place, "run", "--all", "--json"))


def deletion(place: Bed) -> float:
    """Returns the seconds until all backups but the newest of each host are deleted and dropped."""
    place.settle()
    names = {
        host: sorted(path.name for path in host.iterdir() if path.name[:2] == "20") for host in (place.pool / "hosts").iterdir()
    }
    old = [f"{host.name}@{name}" for host, all_names in names.items() for name in all_names[:-1]]
    begun = time.perf_counter()
    timed(common.ours(place, "delete", *old, "--now-without-grace"))
    place.settle()
    while orphan_items(place.disk):
        time.sleep(0.02)
    return time.perf_counter() - begun


def enabling(disk: Path, count: int) -> dict[str, float]:
    """Enables simple quotas for that many subvolumes."""
    source = disk / "many"
    source.mkdir()
    work("btrfs", "subvolume", "create", source / "first")
    for number in range(count):
        work("btrfs", "subvolume", "snapshot", source / "first", source / f"{number}")
    work("btrfs", "filesystem", "sync", disk)
    before, begun = _slabs(), time.perf_counter()
    btrfs.simple_quotas(disk)
    seconds = time.perf_counter() - begun
    grown = (_slabs() - before) / count / 1024
    return {f"switched on for {count} subvolumes, seconds": round(seconds, 3), "kernel memory for each, KiB": round(grown, 2)}


def balance(disk: Path) -> str:
    """Returns how a balance changes the byte counts of two subvolumes that were written in turn, with gaps between them."""
    parts = {"first": 3 << 20, "gap": 1 << 20, "second": 1 << 20}
    ids = {}
    for name in parts:
        work("btrfs", "subvolume", "create", disk / name)
        ids[name] = f"0/{work('btrfs', 'inspect-internal', 'rootid', disk / name).stdout.strip()}"
    for turn in range(20):
        for place, name in enumerate((*parts, "gap")):
            (disk / name / f"{turn}-{place}").write_bytes(os.urandom(parts[name]))
            work("btrfs", "filesystem", "sync", disk)
    for path in (disk / "gap").iterdir():
        path.unlink()
    before = _numbers(disk)
    work("btrfs", "balance", "start", "-d", disk)
    after = _numbers(disk)
    return ", ".join(f"{name}: {before[ids[name]] >> 20} MiB, afterwards {after[ids[name]] >> 20}" for name in ("first", "second"))


def _numbers(disk: Path) -> dict[str, int]:
    work("btrfs", "filesystem", "sync", disk)
    lines = work("btrfs", "qgroup", "show", "--raw", disk).stdout.splitlines()[2:]
    return {line.split()[0]: int(line.split()[1]) for line in lines}


def _slabs() -> int:
    """Returns the kernel's bytes in objects of sysfs, and in objects of the sizes of a group."""
    rows = (line.split() for line in Path("/proc/slabinfo").read_text().splitlines()[2:])
    return sum(int(row[1]) * int(row[3]) for row in rows if row[0].startswith(("kernfs", "kmalloc")))


def measure(options: argparse.Namespace, counted: Bed, plain: Bed, third: Path, trees: dict[str, Tree]) -> dict[str, object]:
    """Measures all nights; the first night is not counted."""
    for place in (counted, plain):
        place.configure({host: tree.top for host, tree in trees.items()})
    work(*common.ours(counted, "quota", "enable", "--yes"), cwd=TOP)
    pairs = list[tuple[Timed, Timed]]()
    for number in range(options.nights + 1):
        for tree in trees.values():
            tree.change(max(1, options.files // 50))
        quiet = common.wait_for_quiet(options)
        pair = common.alternate(number, lambda: night(counted), lambda: night(plain))
        common.say(f"night {number}: {pair[0].seconds:.1f} s, without {pair[1].seconds:.1f} s; {common.noise(quiet, *pair)}")
        if number:
            pairs.append(pair)
    common.wait_for_quiet(options)
    deleted = common.alternate(0, lambda: deletion(counted), lambda: deletion(plain))
    seconds, cpu = common.Sides("with", "without"), common.Sides("with", "without")
    seconds.pairs = [(with_quotas.seconds, without.seconds) for with_quotas, without in pairs]
    cpu.pairs = [(with_quotas.cpu, without.cpu) for with_quotas, without in pairs]
    return {
        "a night, seconds": seconds.summary(None),
        "a night, CPU seconds": cpu.summary(None),
        "deletion, seconds with and without": [round(seconds_taken, 2) for seconds_taken in deleted],
        **enabling(plain.disk, options.subvolumes),
        "a balance with gaps between two subvolumes' extents": balance(third),
    }


def main() -> None:
    """Runs the command line."""
    words = common.parser(__doc__ or "", nights=5)
    words.add_argument("--hosts", type=int, default=100)
    words.add_argument("--files", type=int, default=200, help="files of each host; 2 %% of them change every night")
    words.add_argument("--mean", type=common.size, default=common.size("16KiB"), help="mean size of a file")
    words.add_argument("--subvolumes", type=int, default=2000, help="subvolumes of the filesystem on which quotas are enabled")
    options = words.parse_args()
    with common.own_folder(options) as folder:
        hosts, disks = btrfs.make("5G"), [btrfs.make("10G", options="noatime") for _ in range(2)]
        third = btrfs.make("1G")
        btrfs.simple_quotas(third)
        counted, plain = (Bed(disk, hosts, folder / str(number), "fakessh", None) for number, disk in enumerate(disks))
        for place in (counted, plain):
            place.folder.mkdir()
        trees = dict(forest(hosts, options.hosts, options.files, options.mean, per_folder=50))
        common.report(options, f"{options.hosts} hosts, 2 % changed", measure(options, counted, plain, third, trees))


if __name__ == "__main__":
    main()
