"""A base that the disk does not give back any more: the host becomes complete again, and the pool's errors are told."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds.faults import damage
from tests.beds.nights import Nights

KIB = 1 << 10
MIB = 1 << 20


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Sources that lie on another filesystem than the pool."""
    tree = tmp_path / "srv"
    tree.mkdir()
    return tree


@pytest.mark.btrfs
@pytest.mark.parametrize("inplace", ["always", "never"])
@pytest.mark.parametrize("place", [MIB + 100, 0], ids=["there", "elsewhere"])
def test_a_changed_file_whose_base_cannot_be_read_any_more_is_whole_in_the_next_backup(
    make_btrfs: Callable[..., Path], tree: Path, inplace: str, place: int
) -> None:
    """rsync takes zeros for what it cannot read, so what it sends does not match them, and all of it comes from the host."""
    nights = Nights(make_btrfs(size="300M"))
    content = bytearray(os.urandom(2 * MIB))
    (tree / "database").write_bytes(content)
    nights.host("web", tree, inplace=inplace)
    nights.run("web")
    damage(nights.top, bytes(content[MIB : MIB + 4 * KIB]))
    with pytest.raises(OSError, match="Input/output error"):
        (nights.data("web", tree) / "database").read_bytes()
    content[place : place + 100] = os.urandom(100)
    (tree / "database").write_bytes(content)
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert nights.differences("web", tree) == []
    assert "corruption errors" in nights.backupd("status").stdout
    assert nights.run("web")["web"]["outcome"] == "complete"
