"""Reading and scoring a filesystem of 42 TiB: in the process, as whole processes, and against a C loop that only reads.

The filesystem is real, and takes less than 2 GB of disk: fallocate(2) reserves extents without writing them. Its block groups are
full, or have some 1,200 free extents each (items of the free space tree), or many more (bitmaps). `--filesystem` measures one that
is mounted already instead.

    python -m bench.scan [--filesystem MOUNTPOINT] [--image-dir DIR] [--repeats N]
"""

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.common import own_folder, plain_parser, report, say, spread, timed, wait_for_quiet
from bench.scan_side import SCRIPT
from tests.beds import TOP, btrfs, work

GIB, TIB, SECTOR = 1 << 30, 1 << 40, 4096
_DEVICES = 3  # files of ext4 end at 16 TiB
_PART = 8 * GIB  # of a pair of files that take turns
_OURS = ("-m", "balancer", "score")
_SIDE = ("-m", "bench.scan_side")


def parser_with_filesystem(doc: str) -> argparse.ArgumentParser:
    """Returns a parser with the options of a bench on `filesystem`; its description is the first line of `doc`."""
    made = plain_parser(doc.split("\n", 1)[0])
    made.add_argument("--filesystem", type=Path, help="a mounted btrfs; without it one is built")
    made.add_argument("--tib", type=float, default=42, help="size of the filesystem in TiB")
    made.add_argument("--solid-tib", type=float, default=34, help="how much of it is full")
    made.add_argument("--extents-gib", type=int, default=272, help="how much is in pieces of up to 0.8 MiB, every other one free")
    made.add_argument("--bitmaps-gib", type=int, default=72, help="how much is in pieces of up to 100 KiB, every other one free")
    return made


def filesystem(options: argparse.Namespace) -> Path:
    """Returns the mount point of the filesystem, which is built unless one was given."""
    if options.filesystem:
        return Path(options.filesystem)
    size = f"{int(options.tib * 1024 / _DEVICES)}G"
    point = btrfs.make(size, _DEVICES, ("-K", "-d", "single", "-m", "dup"), "noatime,nodiscard,commit=300")
    build(point, options)
    return point


def main() -> None:
    """Builds, measures and prints."""
    made = parser_with_filesystem(__doc__ or "")
    made.add_argument("--repeats", type=int, default=7, help="measured runs of each side, after an unmeasured one")
    made.add_argument("--only-build", action="store_true", help="print the result of the build and wait for Ctrl-C")
    options = made.parse_args()
    with own_folder(options) as folder:
        point = filesystem(options)
        if options.only_build:
            say(f"{point}")
            time.sleep(1e6)
        loop = folder / "scan_loop"
        work("cc", "-O2", "-o", loop, TOP / "bench" / "scan_loop.c")
        report(options, "scan", measure(options, point, loop))


def build(point: Path, options: argparse.Namespace) -> None:
    """Fills a new filesystem: the pieces first, because for each of them the kernel searches all full block groups."""
    begun = time.monotonic()
    rng = random.Random(42)
    take_turns(point, "extents", options.extents_gib * GIB, rng, 211)
    take_turns(point, "bitmaps", options.bitmaps_gib * GIB, rng, 25)
    for number in range(int(options.solid_tib * 4)):
        with (point / f"solid{number}").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, TIB // 4)
    for path in point.glob("*-gone"):  # only now, else they would be filled
        path.unlink()
    work("btrfs", "filesystem", "sync", point, timeout=1800)
    say(f"built in {time.monotonic() - begun:.0f} s")


def take_turns(point: Path, name: str, total: int, rng: random.Random, largest: int) -> None:
    """Writes pairs of files in turn, in pieces of 1 to `largest` sectors; then one file of each pair is deleted."""
    for part in range(-(-total // _PART)):
        names = [point / f"{name}{part}-{which}" for which in ("kept", "gone")]
        files = [os.open(path, os.O_CREAT | os.O_RDWR) for path in names]
        ends = [0, 0]
        while sum(ends) < min(_PART, total - part * _PART):
            for which in (0, 1):
                length = rng.randint(1, largest) * SECTOR
                os.posix_fallocate(files[which], ends[which], length)
                ends[which] += length
        for file in files:
            os.close(file)
        say(f"{name}: {(part + 1) * _PART // GIB} GiB")


def measure(options: argparse.Namespace, point: Path, loop: Path) -> dict[str, Any]:
    """Runs all sides in turn, so that other work of the machine affects all of them."""
    sides: dict[str, list[dict[str, Any]]] = {"reading": [], "scoring": [], "example": [], "script": []}
    rows: list[list[float]] = []
    whole: dict[str, list[tuple[float, float]]] = {"table": [], "json": [], "example": []}
    if not SCRIPT.exists():
        raise SystemExit(f"{SCRIPT} is missing: apt-get install python3-btrfs")
    for number in range(options.repeats + 1):
        quiet = wait_for_quiet(options)
        for side, runs_of_side in sides.items():
            runs_of_side.append(_side(side, point))
        rows.append(_loop(loop, point))
        whole["table"].append(_whole(*_OURS, str(point)))
        whole["json"].append(_whole(*_OURS, str(point), "--json"))
        whole["example"].append(_whole(str(SCRIPT), str(point)))
        say(f"{number}: {'quiet' if quiet else 'not quiet'}")
    sides = {side: rounds[1:] for side, rounds in sides.items()}
    rows, whole = rows[1:], {side: rounds[1:] for side, rounds in whole.items()}
    same = {key: [each["found"] for each in rounds] for key, rounds in sides.items()}
    if any(first[0] != second[0] for first, second in zip(same["scoring"], same["example"], strict=True)):
        raise SystemExit(f"both sides saw other block groups: {same}")
    return {**_facts(same, rows), **_figures(sides, rows, whole)}


def _side(side: str, point: Path) -> dict[str, Any]:
    """Returns the third of three times in one process, for both."""
    result: dict[str, Any] = json.loads(timed((sys.executable, *_SIDE, side, str(point), "3")).stdout)
    return {**result, "wall": result["wall"][-1], "cpu": result["cpu"][-1]}


def _loop(loop: Path, point: Path) -> list[float]:
    return [float(word) for word in timed((str(loop), str(point), "3")).stdout.splitlines()[-1].split()]


def _whole(*words: str) -> tuple[float, float]:
    done = timed((sys.executable, *words))
    return done.seconds, done.cpu


def _facts(block_groups: dict[str, list[list[int]]], rows: Sequence[Sequence[float]]) -> dict[str, Any]:
    chunks, items, groups = (int(number) for number in rows[-1][4:])
    return {
        "chunks": chunks,
        "free space items, extents and bitmaps": items - chunks,
        "free extents": block_groups["reading"][-1][1],
        "data block groups": groups,
    }


def _figures(
    sides: dict[str, list[dict[str, Any]]], rows: Sequence[Sequence[float]], whole: dict[str, list[tuple[float, float]]]
) -> dict[str, Any]:
    """Returns milliseconds of wall clock and CPU; ratios are those of the same turn."""
    figures: dict[str, Any] = {}
    for at, kind in enumerate(("wall", "cpu")):
        read, scored, theirs, loop = ([each[kind] for each in sides[side]] for side in ("reading", "scoring", "script", "example"))
        items = [row[2 if kind == "wall" else 0] for row in rows]
        with_groups = [extents + row[3 if kind == "wall" else 1] for extents, row in zip(items, rows, strict=True)]
        table, listed, example = ([each[at] for each in whole[side]] for side in ("table", "json", "example"))
        figures[f"{kind}: milliseconds in the process"] = {
            "C: chunks and free space": _ms(items),
            "C: and each block group": _ms(with_groups),
            "ours, reading": _ms(read),
            "ours, reading and scoring": _ms(scored),
            "python-btrfs's example": _ms(theirs),
            "its loop, written again in a function": _ms(loop),
        }
        figures[f"{kind}: milliseconds, whole processes"] = {
            "ours, score": _ms(table),
            "ours, score --json, which lists every block group": _ms(listed),
            "python-btrfs's example": _ms(example),
        }
        figures[f"{kind}: ratios"] = {
            "example / scoring (25 or more)": _ratios(theirs, scored),
            "its loop, written again / scoring": _ratios(loop, scored),
            "example / score, whole (10 or more)": _ratios(example, table),
            "example / score --json, whole (10 or more)": _ratios(example, listed),
            "reading / C": {**_ratios(read, with_groups), "limit": 3},
            "reading / C without block groups": {**_ratios(read, items), "limit": 3},
        }
    figures["memory, MB"] = {
        "ours, reading and scoring": {**spread([each["rss"] / 1e6 for each in sides["scoring"]]), "limit": 200}
    }
    return figures


def _ms(seconds: Sequence[float]) -> dict[str, float]:
    return spread([each * 1000 for each in seconds])


def _ratios(first: Sequence[float], second: Sequence[float]) -> dict[str, float]:
    ratios = spread([numerator / denominator for numerator, denominator in zip(first, second, strict=True)])
    return {**ratios, "of_medians": statistics.median(first) / statistics.median(second)}


if __name__ == "__main__":
    main()
