"""Fixtures for tests of the command line: sites on a real btrfs."""

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.beds import btrfs
from tests.beds.nights import Nights


@pytest.fixture
def nights(shared_btrfs: Path) -> Nights:
    """A pool, its configuration and a folder for sources, on the filesystem that all tests of the session share."""
    return Nights(shared_btrfs)


@pytest.fixture(scope="module")
def site(_shared_mount: Path) -> Iterator[Nights]:
    """The same for all tests of a module that only read: web1 has two complete backups and then a suspect one, web2 one, new none.

    Modules that use it are marked `btrfs`.
    """
    top = Path(tempfile.mkdtemp(prefix="site-", dir=_shared_mount)) / "top"
    subprocess.run(["btrfs", "-q", "subvolume", "create", top], check=True)
    site = Nights(top)
    for name in ("web1", "web2"):
        folder = site.source / name
        folder.mkdir()
        for number in range(10):
            (folder / f"file{number}").write_text(f"{name} {number}\n" * 100)
        site.host(name, folder)
    site.host("new", site.source / "web1")
    site.run("web1", "web2")
    (site.source / "web1" / "file0").write_text("changed")
    site.run("web1")
    for number in range(8):
        (site.source / "web1" / f"file{number}").unlink()
    site.run("web1", status=1)
    yield site
    btrfs.delete_subvolume(top, _shared_mount)
    top.parent.rmdir()
