"""A filesystem with a block group tree."""

import os
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.beds import TOP, session, work
from tests.beds.shapes import MIB

IMAGE = TOP / "tests" / "btrfs" / "golden" / "block-group-tree.img.tar.xz"


@pytest.fixture
def with_block_group_tree() -> Iterator[Path]:
    """From an image that mkfs.btrfs 6.14 made: that of Debian 12 cannot (tests/btrfs/test_treescan_trees.py says more)."""
    if not Path("/sys/fs/btrfs/features/block_group_tree").exists():
        pytest.skip("this kernel knows no block group tree")
    bed = Path(tempfile.mkdtemp(prefix="btrfs-", dir=session.folder(1 << 30)))
    with tarfile.open(IMAGE) as archive:
        archive.extractall(bed)
    image, point = bed / "block-group-tree.img", bed / "mnt"
    os.truncate(image, 700 * MIB)
    point.mkdir()
    try:
        work("mount", "-o", "loop", image, point)
        work("btrfs", "-q", "filesystem", "resize", "max", point)
        yield point
    finally:
        assert session.remove(bed) == []
