"""A filesystem with a block group tree."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.beds import btrfs, session


@pytest.fixture
def with_block_group_tree() -> Iterator[Path]:
    """See tests/beds/btrfs.py."""
    point = btrfs.make_with_block_group_tree()
    yield point
    assert session.remove(point.parent) == []
