"""One side of bench.scan in a process of its own.

    python -m bench.scan_side SIDE MOUNTPOINT REPEATS

prints JSON: `wall` and `cpu`, seconds of each repeat inside the process, after all imports; `rss`, the most memory it ever held,
in bytes; `found`, the figures by which sides that do the same can be compared.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from contextlib import closing, redirect_stdout
from pathlib import Path
from typing import Any

Side = Callable[[], Any]
SCRIPT = Path("/usr/share/doc/python3-btrfs/examples/show_free_space_fragmentation.py")


def reading(point: str) -> Side:
    """Our side: reads the arrays only."""
    from btrkeep.treescan.block_groups import chunks
    from btrkeep.treescan.free_space import free_space

    def read() -> list[int]:
        with closing(_Opened(point)) as opened:
            chunk, count = chunks(opened.fd), 0
            for batch in free_space(opened.fd):
                count += len(batch.vaddr)
            return [len(chunk.vaddr), count]

    return read


def scoring(point: str) -> Side:
    """Our side: reads, and computes used bytes, fragments and score of each data block group."""
    from balancer.survey import survey

    def score() -> list[int]:
        with closing(_Opened(point)) as opened:
            groups = survey(opened.fd).groups
            return [len(groups.vaddr), int(groups.fragments.sum()), int(groups.used.sum())]

    return score


def example(point: str) -> Side:
    """Runs the loop of python-btrfs's examples/show_free_space_fragmentation.py, which skips block groups that are 90 % used."""
    import math

    import btrfs

    def score() -> list[int]:
        count = fragments = used = 0
        with btrfs.FileSystem(point) as filesystem, Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
            list(filesystem.free_space_extents(0, 0))
            for chunk in filesystem.chunks():
                if not chunk.type & btrfs.BLOCK_GROUP_DATA:
                    continue
                group = filesystem.block_group(chunk.vaddr, chunk.length)
                count, used = count + 1, used + group.used
                if group.used_pct >= 90:
                    continue
                half_width, shift = (math.log2(group.length) - 11) / 2, (math.log2(group.length) + 11) / 2
                number_found, total = 0, 0.0
                for extent in filesystem.free_space_extents(group.vaddr, group.vaddr + group.length - 1):
                    number_found += 1
                    total += 1 - abs((math.log2(extent.length) - shift) / half_width)
                fragments += number_found
                print(
                    "vaddr", chunk.vaddr, chunk.length, "used_pct", group.used_pct, "fragments", number_found, "score", int(total)
                )
        return [count, fragments, used]

    return score


def script(point: str) -> Side:
    """Runs that script as Debian has it (python3-btrfs, which btrfs-heatmap needs), in this process."""
    import runpy

    import btrfs  # noqa: F401  its import is not measured

    def run() -> None:
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
            sys.argv = [str(SCRIPT), point]
            runpy.run_path(str(SCRIPT))

    return run


class _Opened:
    def __init__(self, point: str) -> None:
        self.fd = os.open(point, os.O_RDONLY)

    def close(self) -> None:
        os.close(self.fd)


SIDES: dict[str, Callable[[str], Side]] = {"reading": reading, "scoring": scoring, "example": example, "script": script}


def main(side: str, point: str, repeats: int) -> None:
    """Runs the side that many times and prints the times."""
    run = SIDES[side](point)
    wall, cpu, result = [], [], None
    for _ in range(repeats):
        begun, used = time.perf_counter(), time.process_time()
        result = run()
        wall.append(time.perf_counter() - begun)
        cpu.append(time.process_time() - used)
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"wall": wall, "cpu": cpu, "rss": rss, "found": result}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
