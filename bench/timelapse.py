"""A year of daily states of a filesystem of 42 TiB becomes a timelapse: `python -m bench.timelapse` from the top folder.

The states are made, recorded and then drawn by the installed program, as a separate process; its time and memory are printed.
Neither root nor btrfs is needed.
"""

import json
import os
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from bench.common import plain_parser, timed, wait_for_quiet
from btrkeep.units import format_size
from heatmap.recorded import save
from tests.heatmap.states import TIB, Pool

LIMITS = {".gif": (60.0, 500 << 20)}
"""Seconds and bytes for 365 frames of 1024 x 1024 pixels, as they were agreed."""


def record(folder: Path, frames: int, tib: int) -> int:
    """Records that many days; returns the bytes of the largest file."""
    pool = Pool((tib * TIB // 2, tib * TIB // 4), filled=0.9)
    for number in range(frames):
        if number == frames // 2:
            pool.grow(tib * TIB // 4)
        state = pool.state(generations=False)
        save(state, str(folder / f"{number:04}.heatmap"))
        pool.day()
    return max(path.stat().st_size for path in folder.iterdir())


def measured(folder: Path, output: Path, colour: str) -> dict[str, Any]:
    """Measures one run of the program."""
    command = (
        sys.executable,
        "-m",
        "heatmap",
        "timelapse",
        str(folder),
        "-o",
        str(output),
        "--colour",
        colour,
        "--size",
        "10",
        "-q",
    )
    run = timed(command)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
    with Image.open(output) as image:
        frames, size = getattr(image, "n_frames", 1), image.size
    return {
        "format": output.suffix[1:],
        "colour": colour,
        "frames": frames,
        "pixels": size,
        "seconds": run.seconds,
        "cpu": run.cpu,
        "others": run.others,
        "peak_memory_so_far": peak,
        "bytes": output.stat().st_size,
    }


def main() -> None:
    """Makes the states, runs the program and prints time and memory; exit status 1: over the limit."""
    parser = plain_parser(__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=365, help="days")
    parser.add_argument("--tib", type=int, default=42, help="final size of the filesystem in TiB")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory(dir=options.image_dir) as name:
        folder = Path(name, "states")
        folder.mkdir()
        largest = record(folder, options.frames, options.tib)
        wait_for_quiet(options)
        runs = [
            measured(folder, Path(name, f"out.{form}"), colour)
            for form, colour in (("gif", "usage"), ("gif", "score"), ("webp", "usage"))
        ]
    over = [run for run in runs if run["format"] == "gif" and not _within(run)]
    if options.json:
        print(json.dumps({"largest_state": largest, "runs": runs}, indent=2))
    else:
        print(f"the largest recorded state has {format_size(largest)}")
        for run in runs:
            print(
                f"{run['format']:5} by {run['colour']}: {run['frames']} frames of {run['pixels'][0]} x {run['pixels'][1]},"
                f" {run['seconds']:.1f} s ({run['cpu']:.1f} s of CPU; others {run['others']:.1f} s),"
                f" {format_size(run['peak_memory_so_far'])} of memory, {format_size(run['bytes'])} written"
            )
    sys.exit(1 if over else 0)


def _within(run: dict[str, Any]) -> bool:
    seconds, memory = LIMITS[".gif"]
    return bool(run["seconds"] < seconds and run["peak_memory_so_far"] < memory)


if __name__ == "__main__":
    main()
