"""Compares the import of a history of hard links with one `cp -a` of its unique data: time, bytes of the pool, memory.

    python -m bench.import_ [--files 20000] [--kib 30] [--days 30] [--names 0] [--rounds 3]

The history is made by `rsync --link-dest` on ext4: each day one file in a hundred is new. The pool is a btrfs on the same kind
of disk. `cp -a` copies each file of the history once, under one name. With --names the memory of an import of that many empty
files is measured as well. All times are until all is on the disk.

The third program is the minimum of an import (`least`): it lists every tree with `find`, makes a snapshot for each, and copies the
new files of the day into it with `cp -a`; it gets their names as input. "The engine cp" is the same without `find`, together with
the dry run of our import: the minimum of an import that reads and compares as ours does, and lets cp copy.
"""

import argparse
import os
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.common import Timed, ext4, own_folder, plain_parser, report, say, spread, timed, wait_for_quiet
from tests.beds import btrfs, session, work
from tests.beds.nights import Nights

TIME, BYTES, MEMORY = 1.3, 1.05, 300
"""The limits: the time and the bytes as multiples of those of cp; MB for ten million names."""


def main() -> None:
    """Runs the command line."""
    made = plain_parser(__doc__.splitlines()[0] if __doc__ else "")
    made.add_argument("--files", type=int, default=20_000)
    made.add_argument("--kib", type=int, default=30, help="size of each file in KiB")
    made.add_argument("--days", type=int, default=30)
    made.add_argument("--names", type=int, default=0, help="number of empty files for the measurement of memory; 0: leave it out")
    made.add_argument("--rounds", type=int, default=3)
    options = made.parse_args()
    with own_folder(options) as folder:
        report(options, "Import of an old history", _measure(options, folder))


def _measure(options: argparse.Namespace, folder: Path) -> Mapping[str, object]:
    size = options.files * options.kib // 1024 * 2 + 2048
    with ext4(folder, size) as old:
        root = _history(old, options)
        once, script = _once(root, old / "once"), _least(root, folder / "least", reads=True)
        copying = _least(root, folder / "copying", reads=False)
        ratios, least, bytes_, quiet = list[float](), list[float](), list[float](), list[bool]()
        sides = ("import", "cp", "least", "dry run", "copying")
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        cpu: dict[str, list[float]] = {name: [] for name in sides}
        work(sys.executable, "-m", "backupd", "import", "--help")  # else the first measured import compiles its modules
        for number in range(options.rounds):
            pool, copy, path, by_cp = Nights(_fresh(size)), _fresh(size), _fresh(size), _fresh(size)
            quiet.append(wait_for_quiet(options))
            commands = {
                "dry run": (*_import(pool, root), "--dry-run"),
                "import": _import(pool, root),
                "cp": _copy(once, copy),
                "least": ("sh", str(script), str(path)),
                "copying": ("sh", str(copying), str(by_cp)),
            }
            for name in commands if number % 2 else ("dry run", *reversed([*commands][1:])):  # before the import there is all to do
                target = {"cp": copy, "least": path, "copying": by_cp}.get(name, pool.top)
                for filesystem in (old, target):  # a sync of all filesystems may wait for others' work
                    work("sync", "-f", filesystem)
                Path("/proc/sys/vm/drop_caches").write_text("3")
                done = _until_on_disk(commands[name], target)
                seconds[name].append(done.seconds)
                cpu[name].append(done.cpu)
            ratios.append(seconds["import"][-1] / seconds["cp"][-1])
            least.append(seconds["least"][-1] / seconds["cp"][-1])
            bytes_.append(_used(pool.top) / _used_there(root))
            say(", ".join(f"{name} {durations[-1]:.2f} s" for name, durations in seconds.items()) + f", bytes {bytes_[-1]:.3f}")
            for top in (pool.top, copy, path, by_cp):
                session.remove(top.parent)
        results: dict[str, object] = {
            "seconds": {name: spread(durations) for name, durations in seconds.items()},
            "ratios": {
                "import to cp": {**spread(ratios), "limit": TIME},
                "CPU, import to cp": spread([ours / theirs for ours, theirs in zip(cpu["import"], cpu["cp"], strict=True)]),
                "CPU, the least to cp": spread([ours / theirs for ours, theirs in zip(cpu["least"], cpu["cp"], strict=True)]),
                "CPU, the engine cp to cp": spread(
                    [(ours + by_cp) / cp for ours, by_cp, cp in zip(cpu["dry run"], cpu["copying"], cpu["cp"], strict=True)]
                ),
                "the least to cp": spread(least),
                "bytes of the pool to those there": {**spread(bytes_), "limit": BYTES},
            },
            "quiet": all(quiet),
        }
        if options.names:
            shutil.rmtree(root)
            results["memory, MiB"] = _memory(old, options.names, Nights(_fresh(size)))
        return results


def _once(root: Path, folder: Path) -> Path:
    """Links each file of the history under one name into `folder`, with the folders of its tree; returns the folder."""
    seen_inodes = set[int]()
    for tree in sorted(root.iterdir()):
        for file in tree.rglob("*"):
            if file.is_file() and (inode := file.stat().st_ino) not in seen_inodes:
                seen_inodes.add(inode)
                path = folder / file.relative_to(root)
                path.parent.mkdir(parents=True, exist_ok=True)
                os.link(file, path)
    return folder


def _fresh(mib: int) -> Path:
    return btrfs.make(f"{mib + 2048}M", options="noatime")


def _history(old: Path, options: argparse.Namespace) -> Path:
    source, root, chance, before = old / "source", old / "dated", random.Random(1), None
    root.mkdir()
    for number in range(options.files):
        (folder := source / str(number % 500)).mkdir(parents=True, exist_ok=True)
        (folder / str(number)).write_bytes(chance.randbytes(options.kib << 10))
    for day in range(options.days):
        for number in range(day % 100, options.files, 100) if day else ():
            (source / str(number % 500) / str(number)).write_bytes(chance.randbytes(options.kib << 10))
        tree = root / f"2026-{1 + day // 28:02}-{1 + day % 28:02}"
        work("rsync", "-a", *((f"--link-dest={before}",) if before else ()), f"{source}/", f"{tree}/")
        before = tree
    shutil.rmtree(source)
    return root


def _import(pool: Nights, root: Path) -> tuple[str, ...]:
    words = (sys.executable, "-m", "backupd", "--config", str(pool.config))
    return (*words, "import", "tree", str(root), "--host", "old1", "--verify", "none")


def _copy(root: Path, to: Path) -> tuple[str, ...]:
    return ("cp", "-a", "--", str(root), str(to / "copy"))


def _least(root: Path, folder: Path, *, reads: bool) -> Path:
    """Returns a script of the minimum import, into the filesystem that is its argument; `reads`: it lists each tree."""
    folder.mkdir()
    lines, before, seen_inodes = ["set -e"], "", set[int]()
    for tree in sorted(root.iterdir()):
        files = [file for file in tree.rglob("*") if file.is_file()]
        new = [str(file.relative_to(tree)) for file in files if file.stat().st_ino not in seen_inodes]
        seen_inodes = {file.stat().st_ino for file in files}
        (folder / tree.name).write_text("".join(f"{name}\0" for name in new))
        made = f'btrfs -q subvolume snapshot "$1/{before}"' if before else "btrfs -q subvolume create"
        lines += [f"find {tree} -name nothing"] if reads else []
        lines += [f'{made} "$1/{tree.name}"', f"cd {tree}"]
        lines += [f'xargs -0 cp -a --parents --remove-destination -t "$1/{tree.name}" <{folder / tree.name}', 'sync -f "$1"']
        before = tree.name
    script = folder / "script"
    script.write_text("\n".join(lines) + "\n")
    return script


def _until_on_disk(command: Sequence[str], top: Path) -> Timed:
    return timed(("sh", "-c", '"$@" && sync -f "$0"', str(top), *command))


def _used(top: Path) -> int:
    work("btrfs", "filesystem", "sync", top)
    lines = work("btrfs", "filesystem", "df", "-b", top).stdout.splitlines()
    return sum(int(line.split("used=")[1]) for line in lines if line.startswith(("Data", "Metadata")))


def _used_there(root: Path) -> int:
    return int(work("du", "-s", "-B1", root).stdout.split()[0])


def _memory(old: Path, names: int, pool: Nights) -> Mapping[str, object]:
    """Returns the peak memory of the import's own processes, for two trees of that many empty files, all linked between the two."""
    first, second = old / "names" / "2026-01-01", old / "names" / "2026-01-02"
    for number in range(names):
        if number % 1000 == 0:
            (folder := first / str(number // 1000)).mkdir(parents=True)
        (folder / str(number)).touch()
    work("cp", "-al", first, second)
    words = (sys.executable, "-m", "backupd", "--config", str(pool.config), "import", "tree", str(old / "names"), "--host", "old2")
    subprocess.run([*words, "--verify", "none"], check=True, stdout=subprocess.DEVNULL)
    return {f"largest process, {names:,} names": spread([resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024])}


if __name__ == "__main__":
    main()
