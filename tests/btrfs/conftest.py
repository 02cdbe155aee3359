"""Fixtures for tests of whole nights."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.beds import session, work
from tests.beds.balancing import checked_bed, fragmented
from tests.beds.nights import Nights
from tests.beds.two_pools import TwoPools


@pytest.fixture
def nights(shared_btrfs: Path) -> Nights:
    """A pool, its configuration and a folder for sources, on the filesystem that all tests of the session share."""
    return Nights(shared_btrfs)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """An empty folder for sources that are on another filesystem than the pool."""
    tree = tmp_path / "srv"
    tree.mkdir()
    return tree


@pytest.fixture
def two(make_btrfs: Callable[..., Path]) -> TwoPools:
    """A pool, and a second one on another filesystem that fetches from it."""
    return TwoPools(make_btrfs(), make_btrfs())


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every user can reach, for hosts that are not backed up as root."""
    path = Path(tempfile.mkdtemp(prefix="public-", dir=session.folder()))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def ext4(tmp_path: Path) -> Iterator[Path]:
    """A filesystem with hard links and no snapshots."""
    image, point = tmp_path / "ext4", tmp_path / "old"
    with image.open("wb") as file:
        file.truncate(512 << 20)
    work("mkfs.ext4", "-q", image)
    point.mkdir()
    work("mount", "-o", "loop", image, point)
    yield point
    work("umount", point)


@pytest.fixture(scope="module")
def whole_bed(no_leftovers: None) -> Iterator[Path]:
    """A filesystem that the btrfs program checks after all tests that use it."""
    with checked_bed() as point:
        yield point


@pytest.fixture
def bed(whole_bed: Path) -> Path:
    """A filesystem that is worth balancing, whatever the tests before did."""
    return fragmented(whole_bed)
