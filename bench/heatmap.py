"""Compares btrfs-heatmap with knorrie's, as whole processes, on a filesystem of 42 TiB; and checks that both draw the same.

The filesystem is that of bench.scan, which takes less than 2 GB of disk. `--filesystem` measures one that is mounted already,
to which no program may write during that time. The peer is the Debian package btrfs-heatmap, run by Debian's Python.

    python -m bench.heatmap [--filesystem MOUNTPOINT] [--image-dir DIR] [--repeats N]
"""

import argparse
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bench.common import Sides, alternate, own_folder, report, say, spread, timed, wait_for_quiet
from bench.scan import filesystem, parser_with_filesystem
from heatmap.state_reader import read_state

PEER = "/usr/bin/btrfs-heatmap"
OURS = (sys.executable, "-m", "heatmap")


@dataclass(slots=True)
class Case:
    """A picture; `limit` is the maximum share of the peer's time."""

    words: tuple[str, ...]
    limit: float | None
    sides: Sides = field(default_factory=lambda: Sides("ours", "peer"))
    sizes: tuple[int, int] = (0, 0)


def main() -> None:
    """Builds, measures and prints."""
    made = parser_with_filesystem(__doc__ or "")
    made.add_argument("--repeats", type=int, default=7, help="measured pairs of each picture, after an unmeasured one")
    options = made.parse_args()
    if not Path(PEER).exists():
        raise SystemExit(f"no benchmark: {PEER} is missing (apt-get install btrfs-heatmap)")
    with own_folder(options) as folder:
        report(options, "heatmap", measure(options, filesystem(options), folder))


def measure(options: argparse.Namespace, point: Path, folder: Path) -> dict[str, Any]:
    """Draws each picture in pairs; the order of the two sides alternates."""
    all_cases = cases(point)
    for number in range(options.repeats + 1):
        for name, case in all_cases.items():
            quiet = wait_for_quiet(options)
            pair = _pair(case, point, folder, number)
            if number:
                case.sides.pairs.append(pair)
            say(f"{number} {name}: ours {pair[0]:.2f} s, peer {pair[1]:.2f} s{'' if quiet else '; not quiet'}")
    sizes = {name: {"ours / peer": spread([case.sizes[0] / case.sizes[1]])} for name, case in all_cases.items()}
    return {
        **{f"{name}: seconds": case.sides.summary(case.limit) for name, case in all_cases.items()},
        **{f"{name}: size of the file": ratio for name, ratio in sizes.items()},
    }


def cases(point: Path) -> dict[str, Case]:
    """Returns the pictures: the whole filesystem, and one block group of each kind."""
    fd = os.open(point, os.O_RDONLY)
    try:
        state = read_state(fd, scores=True)
    finally:
        os.close(fd)
    assert state.score is not None
    score = np.nan_to_num(state.score, nan=-1)
    bad = np.flatnonzero(score > np.median(score[score > 0]))
    worst, middling = (state.bg_vaddr[bad[np.argsort(score[bad])[place]]] for place in (-1, len(bad) // 2))
    metadata = state.bg_vaddr[np.flatnonzero(state.bg_flags & np.uint64(4))[0]]
    return {
        "default": Case((), 1 / 2.5),
        "by virtual address": Case(("--sort", "virtual"), 1 / 2.5),
        "order 10, size 12": Case(("--order", "10", "--size", "12"), 1 / 3),
        "order 12, size 12": Case(("--order", "12", "--size", "12"), 1 / 8),
        "the most fragmented block group": Case(("--blockgroup", str(worst)), 1),
        "a fragmented block group": Case(("--blockgroup", str(middling)), 1),
        "a metadata block group": Case(("--blockgroup", str(metadata)), None),
    }


def _pair(case: Case, point: Path, folder: Path, number: int) -> tuple[float, float]:
    ours, theirs = folder / "ours.png", folder / "peer.png"
    ours_timed, theirs_timed = alternate(
        number,
        lambda: timed((*OURS, "-q", *case.words, "-o", str(ours), str(point))),
        lambda: timed((PEER, "-q", *case.words, "-o", str(theirs), str(point))),
    )
    if not (_pixels(ours) == _pixels(theirs)).all():
        raise SystemExit(f"the pictures differ: {case.words}")
    case.sizes = ours.stat().st_size, theirs.stat().st_size
    return ours_timed.seconds, theirs_timed.seconds


def _pixels(path: Path) -> Any:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


if __name__ == "__main__":
    main()
