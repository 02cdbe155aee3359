"""Histories on filesystems whose inode numbers do not identify files: a real one of FUSE, and overlayfs."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.beds import nbd, work
from tests.beds.nights import Nights
from tests.beds.old_trees import data, differing, imported

pytestmark = [pytest.mark.btrfs, pytest.mark.root]


@pytest.fixture
def nights(make_btrfs: Callable[..., Path]) -> Nights:
    return Nights(make_btrfs(size="400M"))


@pytest.fixture
def mounts() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def overlay(stack: ExitStack, place: Path, *options: str) -> Path:
    """A folder of two layers that are filesystems of their own, in which the same inode numbers occur."""
    lower, upper, shown = (place / name for name in ("lower", "upper", "dated"))
    for path in (lower, upper, shown):
        path.mkdir()
    for path in (lower, upper):
        work("mount", "-t", "tmpfs", "none", path)
        stack.callback(work, "umount", path)
    tree = lower / "2026-03-01"
    tree.mkdir()
    for number in range(30):
        (tree / f"low{number}").write_text(f"low {number}")
    for name in ("up", "work"):
        (upper / name).mkdir()
    layers = f"lowerdir={lower},upperdir={upper}/up,workdir={upper}/work"
    work("mount", "-t", "overlay", "overlay", "-o", ",".join((layers, *options)), shown)
    stack.callback(work, "umount", shown)
    for number in range(30):
        (shown / "2026-03-01" / f"up{number}").write_text(f"upper {number}")
    return shown


def is_refused(nights: Nights, root: Path, *words: str) -> None:
    answer = imported(nights, "tree", root, "--host", "old1", "--verify", "none", status=1)
    assert not (nights.pool / "hosts/old1/latest").exists()
    for dry in ((), ("--dry-run",)):
        done = nights.backupd("import", "tree", root, "--host", "old1", *dry, check=False)
        assert done.returncode == 1
        output = " ".join(done.stderr.split())
        for word in (*words, "2026-03-01", "rsync -aHAX"):
            assert word in output, f"{word!r} is not in {output!r}"
        assert "exchanged" not in output
        assert "rotated" not in output
    assert words[0] in answer["failed"]["old1"]


def test_files_of_two_layers_with_the_same_inode_number_are_not_taken_for_hard_links(
    nights: Nights, tmp_path: Path, mounts: ExitStack
) -> None:
    """Two files of two filesystems in one listing: otherwise one would get the other's content."""
    is_refused(nights, overlay(mounts, tmp_path, "xino=off"), "another filesystem than its folder", "overlay")


def test_an_overlay_whose_numbers_tell_the_layers_apart_is_imported(nights: Nights, tmp_path: Path, mounts: ExitStack) -> None:
    root = overlay(mounts, tmp_path, "xino=on")
    if (root / "2026-03-01/up0").stat().st_dev != root.stat().st_dev:
        pytest.skip("this kernel's tmpfs leaves no room in its inode numbers")
    imported(nights, "tree", root, "--host", "old1", "--verify", "none")
    [name] = nights.names("old1")
    assert differing(root / "2026-03-01", data(nights, "old1", name)) == ""


def test_an_overlay_of_several_subvolumes_is_refused_for_each_has_the_same_numbers(
    nights: Nights, make_btrfs: Callable[..., Path], tmp_path: Path, mounts: ExitStack
) -> None:
    """overlayfs treats them as one filesystem. A file of the second day would get the content of the first day's."""
    disk, shown = make_btrfs(size="300M"), tmp_path / "dated"
    for name in ("one", "the:other", "top"):
        work("btrfs", "subvolume", "create", disk / name)
    for layer, day in (("one", "2026-03-01"), ("the:other", "2026-03-02")):
        (disk / layer / day).mkdir()
        for number in range(5):
            (disk / layer / day / f"{number}").write_text(f"{layer} {number}")
    for name in ("top/up", "top/work"):
        (disk / name).mkdir()
    shown.mkdir()
    for lower in (f"{disk}/one:{disk}/the\\:other", f"{disk}/one"):
        layers = f"lowerdir={lower},upperdir={disk}/top/up,workdir={disk}/top/work"
        work("mount", "-t", "overlay", "overlay", "-o", layers, shown)
        try:
            is_refused(nights, shown, "several btrfs subvolumes")
        finally:
            work("umount", shown)
    work("btrfs", "subvolume", "create", disk / "one/2026-03-01/inner")  # overlayfs does not see subvolumes in a layer
    for number in range(5):
        (disk / "one/2026-03-01/inner" / f"{number}").write_text(f"inner {number}")
    (disk / "one/up").mkdir()
    (disk / "one/work").mkdir()
    work("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={disk}/one,upperdir={disk}/one/up,workdir={disk}/one/work", shown)
    mounts.callback(work, "umount", shown)
    is_refused(nights, shown, "not hard links")


@pytest.mark.skipif(bool(nbd.why_not()), reason=f"left out: a filesystem of FUSE ({nbd.why_not()})")
def test_fuse_without_inode_numbers_is_said_to_be_that(nights: Nights, tmp_path: Path, mounts: ExitStack) -> None:
    """libfuse gives all names the same number in a listing, and an invented one when they are read."""
    tree = tmp_path / "dated" / "2026-03-01"
    tree.mkdir(parents=True)
    words = ("nbdfuse", f"{tree}/", "--command", "nbdkit", "-s", "memory", "64K")
    server = mounts.enter_context(subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    mounts.callback(server.terminate)
    nbd.wait_for((tree / "nbd").exists)
    mounts.callback(work, "umount", "--lazy", tree)
    is_refused(nights, tree.parent, "different inode numbers", "cannot be recognised on this filesystem (fuse)")
