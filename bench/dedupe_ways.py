"""Ways to share equal data among backups, beside each other on the same data: what each saves and costs.

    python -m bench.dedupe_ways [--source /usr/share] [--hosts 4] [--mib 200] [--nights 8]

Each host has the same files; of those of every further host some are moved, some are copied to a second path, some have changed
in their middle, and some are its own. The ways begin with the same filesystem (its image is copied): `share_with` by paths,
duperemove, an index of whole files by size and SHA-256 over all names, and bees if it is installed. Then each host gets snapshots,
and the ways that can share old data run again over all of them. Bytes are those of `btrfs filesystem df`, after a sync; memory is
the largest process's.
"""

import argparse
import hashlib
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from bench.common import own_folder, plain_parser, report, say, timed
from btrkeep.fs.reflink import shared_pieces
from tests.beds import btrfs, session, work

_MEMORY = "import resource,subprocess,sys;s=subprocess.call(sys.argv[1:],stdout=subprocess.DEVNULL);"
_MEMORY += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss);sys.exit(s)"


def main() -> None:
    """Runs the command line."""
    made = plain_parser(__doc__.splitlines()[0] if __doc__ else "")
    made.add_argument("--source", type=Path, default=Path("/usr/share"))
    made.add_argument("--hosts", type=int, default=4)
    made.add_argument("--mib", type=int, default=200, help="MiB of files of each host")
    made.add_argument("--nights", type=int, nargs="+", default=[0, 8], help="snapshots that each host has")
    made.add_argument("--ways", default="share_with,duperemove,duperemove-nofiemap,duperemove-4k,index,bees")
    made.add_argument("--smallest", type=int, default=4, help="KiB of the smallest file that the index considers")
    made.add_argument("--one", choices=("share_with", "index"), help=argparse.SUPPRESS)
    made.add_argument("--at", type=Path, help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.one:  # in a process of its own, for its memory
        _OURS[options.one](options.at, options.smallest << 10)
        return
    with own_folder(options) as folder:
        report(options, "Ways to share equal data", _measure(options, folder))


def _measure(options: argparse.Namespace, folder: Path) -> Mapping[str, object]:
    results: dict[str, object] = {}
    for nights in options.nights:
        for way in options.ways.split(","):
            if way == "bees" and not shutil.which("bees"):
                results["bees"] = "not measured: Debian bookworm has no package of it"
                continue
            if way == "share_with" and nights:
                continue  # it shares what one run wrote, before there is a snapshot of it
            point = btrfs.make(f"{options.mib * options.hosts * 3 + 1024}M", options="noatime")
            _hosts(options, point)
            for number in range(nights):
                for host in sorted(point.glob("host?")):
                    work("btrfs", "subvolume", "snapshot", "-r", host, point / f"{host.name}-{number}")
            os.sync()
            Path("/proc/sys/vm/drop_caches").write_text("3")
            results[f"{way}, {nights} snapshots of each"] = _shared_by(way, point, folder, options.smallest)
            say(f"{way}, {nights}: {results[f'{way}, {nights} snapshots of each']}")
            session.remove(point.parent)
    return results


def _shared_by(way: str, point: Path, folder: Path, smallest: int) -> str:
    data, metadata = _used(point)
    hashes = folder / "hashes"
    hashes.unlink(missing_ok=True)
    if way.startswith("duperemove"):
        more = {"duperemove": [], "duperemove-nofiemap": ["--dedupe-options=nofiemap"], "duperemove-4k": ["-b", "4096"]}[way]
        command = ["duperemove", "-d", "-r", "-A", "-q", *more, f"--hashfile={hashes}", *map(str, sorted(point.glob("host*")))]
    else:
        command = [sys.executable, "-m", "bench.dedupe_ways", "--one", way, "--at", str(point), f"--smallest={smallest}"]
    done = timed([sys.executable, "-c", _MEMORY, *command])
    after, metadata_after = _used(point)
    return (
        f"{(data - after) / data:.1%} of {data >> 20} MiB of data saved in {done.seconds:.1f} s ({done.cpu:.1f} s of CPU), "
        f"metadata {(metadata_after - metadata) / 1024:+.0f} KiB of {metadata >> 10}, {int(done.stdout) / 1024:.0f} MiB of memory, "
        f"hash file {hashes.stat().st_size >> 10 if hashes.exists() else 0} KiB"
    )


def _hosts(options: argparse.Namespace, point: Path) -> None:
    chosen, size = [], 0
    for path in sorted(path for path in options.source.rglob("*") if path.is_file() and not path.is_symlink()):
        if size > options.mib << 20:
            break
        chosen.append(path)
        size += path.stat().st_size
    for number in range(options.hosts):
        host, chance = point / f"host{number}", random.Random(number)
        work("btrfs", "subvolume", "create", host)
        for path in chosen:
            _as_on(host / path.relative_to(options.source), path, chance if number else None)


def _as_on(to: Path, path: Path, chance: random.Random | None) -> None:
    """Writes a file of a further host: of 100 files 5 are moved, 5 copied, 5 changed, 5 are its own, and 80 are the same."""
    kind = chance.randrange(20) if chance else 19
    content = bytearray(path.read_bytes())
    if kind == 0:
        to = to.with_name(f"moved {to.name}")
    elif kind == 2 and content and chance:
        content[len(content) // 2] ^= 255
    elif kind == 3 and chance:
        content = bytearray(chance.randbytes(len(content)))
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_bytes(content)
    if kind == 1:
        to.with_name(f"copied {to.name}").write_bytes(content)


def _used(point: Path) -> tuple[int, int]:
    work("btrfs", "filesystem", "sync", point)
    lines = work("btrfs", "filesystem", "df", "-b", point).stdout.splitlines()
    return tuple(sum(int(line.split("used=")[1]) for line in lines if line.startswith(kind)) for kind in ("Data", "Metadata"))  # type: ignore[return-value]


def _files(top: Path, smallest: int) -> Iterator[tuple[Path, int]]:
    for folder, _, names in os.walk(top):
        for name in names:
            status = (path := Path(folder, name)).lstat()
            if status.st_size >= smallest:
                yield path, status.st_size


def _share(source: Path, destination: Path, size: int) -> int:
    with source.open("rb") as old, destination.open("rb") as new:
        return sum(shared_pieces(old.fileno(), new.fileno(), size))


def _by_paths(point: Path, smallest: int) -> None:
    """Shares like `share_with` after rsync: with the same path of the first host."""
    first, *others = sorted(point.glob("host?"))
    for host in others:
        for path, size in _files(host, smallest):
            original = first / path.relative_to(host)
            if original.is_file() and original.stat().st_size == size:
                _share(original, path, size)


def _by_index(point: Path, smallest: int) -> None:
    """Shares whole files by size, then by SHA-256, over all names in all subvolumes."""
    sizes: dict[int, list[Path]] = {}
    for top in sorted(point.glob("host*")):
        for path, size in _files(top, smallest):
            sizes.setdefault(size, []).append(path)
    for size, paths in sizes.items():
        first_by_digest: dict[bytes, Path] = {}
        for path in paths if len(paths) > 1 else ():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").digest()
            if digest in first_by_digest:
                _share(first_by_digest[digest], path, size)
            first_by_digest.setdefault(digest, path)


_OURS: Mapping[str, Callable[[Path, int], None]] = {"share_with": _by_paths, "index": _by_index}


if __name__ == "__main__":
    main()
