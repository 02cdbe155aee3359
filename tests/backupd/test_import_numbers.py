"""Inodes and digests of folders are sorted by Python or, if they are many, by NumPy: with the same result."""

import random
from array import array

import pytest

from backupd.run.importing import tree_links, tree_walk
from backupd.run.importing.tree_walk import FolderDigests


@pytest.fixture(params=["few", "many"], autouse=True)
def sorter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "many":
        for module in (tree_links, tree_walk):
            monkeypatch.setattr(module, "FEW", 0)


def test_inodes_that_come_twice_are_found() -> None:
    chance, inodes = random.Random(1), tree_links._Inodes()
    assert inodes.twice() == set()
    numbers = [chance.getrandbits(63) for _ in range(1000)]
    inodes.add(array("Q", numbers))
    assert inodes.twice() == set()
    inodes.add(array("Q", [*numbers[:7], *numbers[5:9], (1 << 64) - 1, (1 << 64) - 1]))
    assert inodes.twice() == {*numbers[:9], (1 << 64) - 1}


def test_a_digest_is_found_if_it_was_added() -> None:
    chance, digests = random.Random(1), FolderDigests()
    digests.sort()
    first, same_beginning = chance.randbytes(16), [b"begin..." + chance.randbytes(8) for _ in range(3)]
    assert not digests.has(first)
    added = [first, *same_beginning[:2], *(chance.randbytes(16) for _ in range(500)), bytes(16), b"\xff" * 16]
    for digest in added:
        digests.add(digest)
    digests.sort()
    assert all(map(digests.has, added))
    assert not any(map(digests.has, [same_beginning[2], first[:8] + bytes(8), chance.randbytes(16)]))
