"""The output of `btrfs inspect-internal dump-tree` of a filesystem's trees, as numbers."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.beds.btrfs import devices_of
from tests.beds.work import work

TREES = {"ROOT_TREE": 1, "EXTENT_TREE": 2, "CHUNK_TREE": 3, "DEV_TREE": 4, "FS_TREE": 5, "CSUM_TREE": 7, "QUOTA_TREE": 8}
TREES |= {"UUID_TREE": 9, "FREE_SPACE_TREE": 10, "BLOCK_GROUP_TREE": 11, "DATA_RELOC_TREE": 2**64 - 9}
FLAGS = {"single": 0, "DATA": 1, "SYSTEM": 2, "METADATA": 4, "RAID0": 8, "RAID1": 16, "DUP": 32, "RAID10": 64, "RAID5": 128}
FLAGS |= {"RAID6": 256, "RAID1C3": 512, "RAID1C4": 1024}
_ITEM = re.compile(r"\titem \d+ key \((\S+) (\S+) (\S+)\) itemoff \d+ itemsize \d+\n((?:\t\t.*\n)*)")
_STRIPE = re.compile(r"stripe \d+ devid (\d+) offset (\d+)")
_EXTENT = re.compile(r"refs (\d+) gen (\d+) flags (\S+)\n")
_OWNER = re.compile(r"(?:tree block|extent data) backref root (\S+)")


def items(point: Path, tree: int, *kinds: str) -> Iterator[tuple[str, str, str, str]]:
    """Yields (objectid, type, offset, the lines below) of items of these types. Commit before."""
    devices = devices_of(point)
    work("blockdev", "--flushbufs", *devices)  # drop data cached by an earlier dump
    text = work("btrfs", "inspect-internal", "dump-tree", "-t", str(tree), devices[0]).stdout
    return (
        (found_match[1], found_match[2], found_match[3], found_match[4])
        for found_match in _ITEM.finditer(text)
        if found_match[2] in kinds
    )


def flags(words: str) -> int:
    return sum(FLAGS[word] for word in words.split("|"))


def _number(text: str, subject: str) -> int:
    match = re.search(rf"\b{subject} (\d+)", text)
    assert match, text
    return int(match[1])


def chunks(point: Path) -> list[tuple[int, int, int, tuple[tuple[int, int], ...]]]:
    """Returns (vaddr, length, type, ((devid, paddr) of each stripe))."""
    numbers = []
    for _, _, vaddr, text in items(point, 3, "CHUNK_ITEM"):
        kind = re.search(r" type (\S+)", text)
        assert kind
        stripes = tuple((int(devid), int(paddr)) for devid, paddr in _STRIPE.findall(text))
        numbers.append((int(vaddr), _number(text, "length"), flags(kind[1]), stripes))
    return numbers


def device_extents(point: Path) -> list[tuple[int, int, int, int]]:
    """Returns (devid, paddr, vaddr, length)."""
    actual_items = items(point, 4, "DEV_EXTENT")
    return [
        (int(devid), int(paddr), _number(text, "chunk_offset"), _number(text, "length")) for devid, _, paddr, text in actual_items
    ]


def block_groups(point: Path, tree: int) -> list[tuple[int, int, int, int]]:
    """Returns (vaddr, length, used, flags), from the extent tree (2) or the block group tree (11)."""
    actual_items = items(point, tree, "BLOCK_GROUP_ITEM")
    return [(int(vaddr), int(length), _number(text, "used"), flags(text.split()[-1])) for vaddr, _, length, text in actual_items]


def free_space_infos(point: Path) -> dict[int, tuple[int, int, bool]]:
    """Returns by vaddr of the block group: its length, its free extents as the kernel counts them, joined, and whether it has
    bitmaps.
    """
    by_name = {}
    for vaddr, _, length, text in items(point, 10, "FREE_SPACE_INFO"):
        by_name[int(vaddr)] = int(length), _number(text, "extent count"), bool(_number(text, "flags") & 1)
    return by_name


def bitmaps(point: Path) -> list[tuple[int, int]]:
    """Returns (vaddr, bytes covered)."""
    return [(int(vaddr), int(length)) for vaddr, _, length, _ in items(point, 10, "FREE_SPACE_BITMAP")]


def extents(point: Path, node: int) -> list[tuple[int, int, int, int, bool, int]]:
    """Returns (vaddr, length, refs, generation, whether it is a tree block, owner of the first reference or 0)."""
    numbers = []
    for vaddr, kind, offset, text in items(point, 2, "EXTENT_ITEM", "METADATA_ITEM"):
        match, references = _EXTENT.search(text), [line for line in text.splitlines() if " backref " in line]
        assert match
        is_tree_block = "TREE_BLOCK" in match[3].split("|")
        named = _OWNER.search(references[0]) if references else None
        owner = (TREES.get(named[1]) or int(named[1])) if named else 0
        length = node if kind == "METADATA_ITEM" else int(offset)
        numbers.append((int(vaddr), length, int(match[1]), int(match[2]), is_tree_block, owner))
    return numbers
