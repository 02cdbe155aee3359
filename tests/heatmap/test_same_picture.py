"""Pictures of real filesystems of every shape, compared with the pictures that the installed peer draws at the same moment."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.beds import work
from tests.beds.shapes import MIB, SHAPES, Read, settled, take_turns
from tests.heatmap.program import DEBIANS_PYTHON, PEER, Drew, Words, ours, peer

pytestmark = [pytest.mark.btrfs, pytest.mark.root, pytest.mark.skipif(not PEER.exists(), reason="btrfs-heatmap is not installed")]
DATA, SYSTEM, METADATA = 1, 2, 4
OVERVIEWS: list[Words] = [
    (),
    ("--sort", "virtual"),
    ("--order", "6", "--size", "6"),
    ("--order", "6", "--size", "6", "--sort", "virtual"),
    ("--order", "5", "--size", "7", "--curve", "snake"),
    ("--order", "5", "--size", "5", "--curve", "snake", "--sort", "virtual"),
    ("--order", "7", "--size", "7", "--curve", "linear"),
    ("--order", "0", "--size", "0"),
    ("--order", "1", "--size", "2", "--curve", "linear", "--sort", "virtual"),
    ("--size", "1"),
]
OF_BLOCK_GROUPS: list[Words] = [
    ("--size", "6"),
    ("--order", "7", "--size", "7", "--curve", "linear"),
    ("--order", "5", "--size", "5", "--curve", "snake"),
]


def fill(point: Path) -> None:
    """Writes some of everything: files, reflinks, a snapshot whose source changed, pieces with holes between them."""
    volume = point / "volume"
    work("btrfs", "-q", "subvolume", "create", volume)
    for number in range(120):
        (volume / f"file{number:03}").write_bytes(os.urandom(300 if number % 3 else 9000))
    work("cp", "--reflink=always", volume / "file000", volume / "copy")
    work("btrfs", "-q", "subvolume", "snapshot", "-r", volume, point / "snapshot")
    for number in range(0, 120, 40):
        (volume / f"file{number:03}").write_bytes(os.urandom(9000))
    take_turns(point, "fine", [3, 1, 4, 1, 5, 9, 2, 6], 5 * MIB)
    take_turns(point, "coarse", [700, 90, 1300], 120 * MIB)


def groups(read: Read) -> dict[str, list[int]]:
    """Returns the addresses of the block groups of each kind, by python-btrfs."""
    by_name: dict[str, list[int]] = {}
    for group in read.theirs.block_groups():
        kind = {DATA: "data", SYSTEM: "system", METADATA: "metadata", DATA | METADATA: "mixed"}[group.flags & 7]
        by_name.setdefault(kind, []).append(group.vaddr)
    return by_name


def wishes(read: Read) -> list[Words]:
    ways = zip(groups(read).values(), OF_BLOCK_GROUPS, strict=False)
    chosen = [("--blockgroup", str(addresses[0]), *way) for addresses, way in ways]
    chosen += [("--blockgroup", str(addresses[-1]), "--size", "6") for addresses in groups(read).values()]
    return [(*words, str(read.point)) for words in (*OVERVIEWS, *chosen)]


def see_the_same(read: Read, folder: Path, python: str = DEBIANS_PYTHON) -> list[Drew]:
    asked = wishes(read)
    theirs = peer(asked, folder / "theirs", python)
    for words, drew in zip(asked, theirs, strict=True):
        mine = ours(words, folder / "ours.png")
        assert drew.failed == "", words
        assert mine.output == drew.output
        assert drew.image is not None
        assert mine.image is not None
        assert mine.image.shape == drew.image.shape
        assert (mine.image == drew.image).all(), f"{words}: {np.argwhere((mine.image != drew.image).any(2))[:5].tolist()}"
    return theirs


@pytest.mark.parametrize("name", SHAPES)
def test_every_picture_of_a_filesystem_is_the_peers(make_btrfs: Callable[..., Path], tmp_path: Path, name: str) -> None:
    shape = SHAPES[name]
    point = make_btrfs(size=shape.size, devices=shape.devices, mkfs=shape.mkfs, options=shape.options)
    fill(point)
    with settled(point) as read:
        assert {"system", "mixed"} <= {*groups(read)} if name == "mixed" else {"data", "metadata", "system"} == {*groups(read)}
        theirs = see_the_same(read, tmp_path)
    assert len({drew.image.tobytes() for drew in theirs if drew.image is not None}) > 10  # otherwise it proves little


def test_where_there_is_a_block_group_tree_it_is_what_the_peer_draws_with_a_newer_python_btrfs(
    with_block_group_tree: Path, tmp_path: Path
) -> None:
    """With Debian's library the peer looks for block groups that do not exist: it draws black, or crashes."""
    fill(with_block_group_tree)
    with settled(with_block_group_tree) as read:
        see_the_same(read, tmp_path, sys.executable)
        vaddr = str(groups(read)["data"][0])
        plain, drew = peer([(str(read.point),), ("--blockgroup", vaddr, str(read.point))], tmp_path / "debian")
    assert plain.image is not None
    assert not plain.image.any()
    assert f"No block group at vaddr {vaddr}" in drew.failed


@pytest.mark.parametrize(("size", "mkfs"), [("16M", ("--mixed",)), ("109M", ()), ("110M", ("-m", "single"))], ids=str)
def test_the_picture_of_a_tiny_filesystem_is_the_peers(
    make_btrfs: Callable[..., Path], tmp_path: Path, size: str, mkfs: tuple[str, ...]
) -> None:
    point = make_btrfs(size=size, mkfs=mkfs)
    (point / "file").write_bytes(os.urandom(300_000))
    with settled(point) as read:
        see_the_same(read, tmp_path)


def test_devices_that_came_and_went_and_were_resized_are_where_the_peer_has_them(
    make_btrfs: Callable[..., Path], tmp_path: Path
) -> None:
    """Numbers 1 and 3 remain, each with another size, and a pixel is not a whole number of sectors."""
    point = make_btrfs(size="600M", devices=3, mkfs=("-d", "single", "-m", "raid1"))
    fill(point)
    work("btrfs", "device", "remove", "2", point)
    work("btrfs", "-q", "filesystem", "resize", "3:-37M", point)
    work("btrfs", "-q", "filesystem", "resize", "1:-12k", point)
    with settled(point) as read:
        assert [(device.devid, device.total_bytes % (1 << 20)) for device in read.theirs.devices()] == [
            (1, (1 << 20) - 12288),
            (3, 0),
        ]
        see_the_same(read, tmp_path)
