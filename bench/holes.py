"""How fragmented the metadata of an unmounted btrfs is, by what `btrfs inspect-internal dump-tree` prints of its extent tree."""

import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_NODE = re.compile(r"\s*item \d+ key \((\d+) (METADATA_ITEM|EXTENT_ITEM) (\d+)\)")
_GROUP = re.compile(r"\s*item \d+ key \((\d+) BLOCK_GROUP_ITEM (\d+)\)")
_FLAGS = re.compile(r"\s*block group used \d+ chunk_objectid \d+ flags (\S+)")
CLUSTER = 2 << 20  # what the allocator looks for with ssd; with nossd it is 64 KiB (fetch_cluster_info in fs/btrfs/extent-tree.c)


@dataclass(frozen=True, slots=True)
class Holes:
    """Metadata block groups, in bytes without the second copy: their length, the used bytes, the number of holes between.

    `small`: the free space in holes too small for a cluster of 2 MiB.
    """

    length: int
    used: int
    count: int
    small: int

    @property
    def in_words(self) -> str:
        """Formats it for a report."""
        free = self.length - self.used
        share = f"{self.small / free:.0%} of it in holes below 2 MiB" if free else "none free"
        return f"{self.length >> 20} MiB, {self.used / self.length:.0%} used; free in {self.count:,} pieces, {share}"


def holes(image: Path, nodesize: int = 16384) -> Holes:
    """Returns the holes of the filesystem in that image."""
    argv = ["btrfs", "inspect-internal", "dump-tree", "-t", "extent", str(image)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, encoding="utf-8", errors="replace") as process:
        assert process.stdout is not None
        holes_in_tree = parse(process.stdout, nodesize)
    assert process.returncode == 0
    return holes_in_tree


def parse(lines: Iterable[str], nodesize: int) -> Holes:
    """Parses the lines of dump-tree."""
    nodes: list[int] = []
    groups: list[tuple[int, int]] = []
    group = (0, 0)
    for line in lines:
        if match := _NODE.match(line):
            if match[2] == "METADATA_ITEM":  # of an EXTENT_ITEM only old filesystems make a tree block: without skinny metadata
                nodes.append(int(match[1]))
        elif match := _GROUP.match(line):
            group = int(match[1]), int(match[2])
        elif (match := _FLAGS.match(line)) and match[1].startswith("METADATA"):
            groups.append(group)
    free = list(_free(sorted(nodes), groups, nodesize))
    length, used = sum(length for _, length in groups), len(nodes) * nodesize
    return Holes(length, used, len(free), sum(size for size in free if size < CLUSTER))


def _free(nodes: list[int], groups: Iterable[tuple[int, int]], nodesize: int) -> Iterator[int]:
    for start, length in groups:
        at = start
        for node in (node for node in nodes if start <= node < start + length):
            if node > at:
                yield node - at
            at = node + nodesize
        if start + length > at:
            yield start + length - at
