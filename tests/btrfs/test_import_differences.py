"""What differs between two trees of an old history is copied as it is there; rsync and find are the truth."""

import os
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import pytest

from backupd.run.importing.tree_links import FolderDigests, look_at
from tests.beds import manifest, work
from tests.beds.everything import everything
from tests.beds.nights import Nights
from tests.beds.old_trees import data, dated, differing, imported

pytestmark = [pytest.mark.btrfs, pytest.mark.root, pytest.mark.timeout(240)]


@pytest.fixture
def nights(make_btrfs: Callable[..., Path]) -> Nights:
    return Nights(make_btrfs(size="900M"))


def test_what_a_later_tree_brings_has_all_its_attributes(nights: Nights, ext4: Path) -> None:
    """It is copied into a copy of the tree before: into folders with default ACLs, over names of another kind."""

    def fill(source: Path, number: int) -> None:
        shared = source / "shared"
        if number == 0:
            shared.mkdir()
            work("setfacl", "-m", "d:u:1234:rwx", "-m", "u:1234:r", shared)
            (source / "kind").symlink_to("nowhere")
            (source / "dead").write_text("x")
        if number == 1:
            everything(source / "all")
            (shared / "none").write_text("without an ACL")
            work("setfacl", "-b", shared / "none")
            (shared / "inner").mkdir(mode=0o2755)
            (source / "kind").unlink()
            os.mkfifo(source / "kind")
            (source / "dead").unlink()
            (source / "dead").symlink_to("kind")
        if number == 2:
            everything(shared / "again")
            (source / "kind").unlink()
            (source / "kind").write_bytes(bytes(1 << 20) + b"x")
            os.link(source / "kind", shared / "kind too")
            work("setcap", "cap_net_raw+ep", source / "kind")
            (source / "holes").touch()
            os.truncate(source / "holes", 8 << 20)

    root = dated(ext4, 3, fill)
    imported(nights, "tree", root, "--host", "old1", "--verify", "all")
    for number, name in enumerate(nights.names("old1")):
        tree, copy = root / f"2026-03-{number + 1:02}", data(nights, "old1", name)
        assert differing(tree, copy) == ""
        assert manifest(copy) == manifest(tree)
    newest = data(nights, "old1", nights.names("old1")[-1])
    assert (newest / "holes").stat().st_blocks == 0
    assert (newest / "kind").stat().st_blocks <= 8  # a run of zeros is a hole, too
    assert (newest / "kind").stat().st_ino == (newest / "shared/kind too").stat().st_ino


def test_of_the_tree_before_only_the_folders_are_read_that_are_not_as_they_were(tmp_path: Path) -> None:
    """The others are known from when it was looked at itself: here they are gone since."""
    first, second = tmp_path / "1", tmp_path / "2"
    for folder in ("same", "same/deep", "other", "touched"):
        (first / folder).mkdir(parents=True)
        (first / folder / "file").write_text(folder)
    work("cp", "-al", first, second)
    (second / "other/new").write_text("new")
    os.utime(second / "touched", ns=(1, 1))
    known = look_at(first, None, lambda: True).digests
    work("rm", "-r", first / "same/deep")
    os.utime(first / "same", ns=(2, 2))
    found = look_at(second, first, lambda: True, known)
    assert (sorted(found.changed), found.gone, sorted(found.folders)) == ([b"other/new"], [], [b"other", b"touched"])
    without = look_at(second, first, lambda: True)
    assert {b"same", b"same/deep"} <= set(without.folders)


def test_a_digest_is_found_among_those_that_begin_like_it() -> None:
    every = [blake2b(b"%d" % (number % 3), digest_size=8).digest() + number.to_bytes(8, "little") for number in range(100)]
    digests = FolderDigests()
    assert not digests.has(every[0])
    for one in every[:50]:
        digests.add(one)
    digests.sort()
    assert [digests.has(one) for one in every] == [True] * 50 + [False] * 50
