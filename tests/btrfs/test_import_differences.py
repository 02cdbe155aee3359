"""Differences between two trees of an old history are copied exactly; compared with rsync and find."""

import os
from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import pytest

from backupd.run.importing.copying import FileMatch, copy_tree
from backupd.run.importing.target_names import remove_names
from backupd.run.importing.tree_links import scan_links, superfluous
from backupd.run.importing.tree_walk import FolderDigests
from tests.beds import manifest, work
from tests.beds.everything import everything
from tests.beds.nights import Nights
from tests.beds.old_trees import data, dated, differing, imported

pytestmark = [pytest.mark.btrfs, pytest.mark.root, pytest.mark.timeout(240)]


@pytest.fixture
def nights(make_btrfs: Callable[..., Path]) -> Nights:
    return Nights(make_btrfs(size="900M"))


def test_what_a_later_tree_brings_has_all_its_attributes(nights: Nights, ext4: Path) -> None:
    """It is copied into a copy of the tree before: into folders with default ACLs, over names of another type."""

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
    answer = imported(nights, "tree", root, "--host", "old1", "--verify", "all")
    assert sum(backup["bytes"] for backup in answer["backups"]) < 8 << 20  # only written data, without holes
    for number, name in enumerate(nights.names("old1")):
        tree, copy = root / f"2026-03-{number + 1:02}", data(nights, "old1", name)
        assert differing(tree, copy) == ""
        assert manifest(copy) == manifest(tree)
    newest = data(nights, "old1", nights.names("old1")[-1])
    assert (newest / "holes").stat().st_blocks == 0
    assert (newest / "kind").stat().st_blocks <= 8  # a run of zeros is a hole, too
    assert (newest / "kind").stat().st_ino == (newest / "shared/kind too").stat().st_ino


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("same", [FileMatch.SIZE_AND_TIME, FileMatch.CONTENT])
def test_what_another_import_has_made_becomes_what_the_tree_is(nights: Nights, ext4: Path, same: FileMatch, delta: bool) -> None:
    """Over everything that a tree can contain: names of other types, with other attributes, too many, too few, of the same size and
    time.
    """
    tree, copy = ext4 / "tree", nights.top / "copy"
    everything(tree / "all")
    (tree / "large").write_bytes(os.urandom(1 << 20))
    (tree / "was folder").write_text("file")
    (tree / "was file").mkdir()
    (tree / "was link").mkdir()
    (tree / "link").symlink_to("large")
    for name in ("kept", "deceives", "grew", "shrank", "ours"):
        (tree / name).write_text(name * 1000)
    work("rsync", "-aAX", f"{tree}/", f"{copy}/")
    for name in ("was folder", "link", "all/owners_and_modes/mode4755"):
        (copy / name).unlink(missing_ok=True)
    (copy / "was folder/in it").mkdir(parents=True)
    (copy / "was file").rmdir()
    (copy / "was file").write_text("file")
    (copy / "was link").rmdir()
    (copy / "was link").symlink_to(ext4)
    (copy / "link").symlink_to("elsewhere")
    (copy / "too many/in it").mkdir(parents=True)
    (copy / "all/too many").write_text("x")
    (copy / "grew").write_text("g")
    (copy / "shrank").write_text("s" * 9000)
    (copy / "deceives").write_text("DECEIVES" * 1000)
    os.utime(copy / "deceives", ns=(0, (tree / "deceives").stat().st_mtime_ns))
    os.setxattr(copy / "ours", "user.ours", b"1")
    (copy / "ours").chmod(0o600)
    with (copy / "large").open("r+b") as file:
        file.seek(300_000)
        file.write(bytes(5000))
    kept = (copy / "kept").stat()
    links = replace(scan_links(tree, None, lambda: True), alike=[b"deceives"], groups=[])
    count, here = (os.open(folder, os.O_RDONLY) for folder in (tree, copy))
    try:
        remove_names(copy, superfluous(count, here, links.digests, lambda: True))
        done = copy_tree(count, here, links, lambda: True, same, delta=delta)
    finally:
        os.close(count)
        os.close(here)
    assert (
        work("rsync", "-n", "-aAXc", "--numeric-ids", "--modify-window=-1", "--delete", "-i", f"{tree}/", f"{copy}/").stdout == ""
    )
    assert ((copy / "kept").stat().st_ino, (copy / "kept").stat().st_ctime_ns) == (kept.st_ino, kept.st_ctime_ns)
    assert not delta or done.written < 100_000
    assert {path.name for path in ext4.iterdir()} <= {"tree", "lost+found"}


def test_of_the_tree_before_only_the_folders_are_read_that_are_not_as_they_were(tmp_path: Path) -> None:
    """The unchanged folders are known from the scan of the earlier tree: here their files were deleted since then."""
    first, second = tmp_path / "1", tmp_path / "2"
    for folder in ("same", "same/deep", "other", "touched"):
        (first / folder).mkdir(parents=True)
        (first / folder / "file").write_text(folder)
    work("cp", "-al", first, second)
    (second / "other/new").write_text("new")
    os.utime(second / "touched", ns=(1, 1))
    folder_digests = scan_links(first, None, lambda: True).digests
    work("rm", "-r", first / "same/deep")
    os.utime(first / "same", ns=(2, 2))
    tree_links = scan_links(second, first, lambda: True, folder_digests)
    assert (sorted(tree_links.changed), tree_links.gone, sorted(tree_links.folders)) == ([b"other/new"], [], [b"other", b"touched"])
    without = scan_links(second, first, lambda: True)
    assert {b"same", b"same/deep"} <= set(without.folders)


def test_a_digest_is_found_among_those_that_begin_like_it() -> None:
    every = [blake2b(b"%d" % (number % 3), digest_size=8).digest() + number.to_bytes(8, "little") for number in range(100)]
    digests = FolderDigests()
    assert not digests.has(every[0])
    for name in every[:50]:
        digests.add(name)
    digests.sort()
    assert [digests.has(name) for name in every] == [True] * 50 + [False] * 50


@pytest.mark.parametrize("delta", [False, True])
def test_what_cannot_be_read_of_the_backup_before_is_made_anew(make_btrfs: Callable[..., Path], ext4: Path, delta: bool) -> None:
    """Otherwise one bad sector of the pool would end each import into the host."""
    top, tree = make_btrfs(size="300M", mkfs=("-d", "single")), ext4 / "tree"
    tree.mkdir()
    content = os.urandom(300_000)
    for place in (tree / "file", top / "copy/file"):
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(content)
        os.utime(place, (1, 1))
    spoil(top, content[200_704 : 200_704 + 4096])
    with pytest.raises(OSError, match="Input/output"):
        (top / "copy/file").read_bytes()
    links = scan_links(tree, None, lambda: True)
    count, here = (os.open(folder, os.O_RDONLY) for folder in (tree, top / "copy"))
    try:
        copy_tree(count, here, links, lambda: True, FileMatch.CONTENT, delta=delta)
    finally:
        os.close(count)
        os.close(here)
    assert differing(tree, top / "copy") == ""


@pytest.mark.parametrize("size", [100_000, 300_000])
def test_an_unreadable_file_of_the_tree_is_named_with_its_side(make_btrfs: Callable[..., Path], ext4: Path, size: int) -> None:
    top, target = make_btrfs(size="300M", mkfs=("-d", "single")), ext4 / "target"
    (top / "tree").mkdir()
    target.mkdir()
    content = os.urandom(size)
    (top / "tree/file").write_bytes(content)
    spoil(top, content[8192:12288])
    links = scan_links(top / "tree", None, lambda: True)
    source, here = (os.open(folder, os.O_RDONLY) for folder in (top / "tree", target))
    try:
        with pytest.raises(OSError, match="it cannot be read in the tree: Input/output error: 'file'"):
            copy_tree(source, here, links, lambda: True)
    finally:
        os.close(source)
        os.close(here)


def spoil(top: Path, content: bytes) -> None:
    """Overwrites the data with that content on the disk."""
    work("btrfs", "filesystem", "sync", top)
    device = work("findmnt", "-n", "-o", "SOURCE", "-T", top).stdout.strip().partition("[")[0]
    with Path(device).open("r+b") as disk:
        data = disk.read()
        disk.seek(data.index(content))
        disk.write(bytes(len(content)))
        disk.flush()
        os.fsync(disk.fileno())
    Path("/proc/sys/vm/drop_caches").write_text("3")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("same", [FileMatch.NONE, FileMatch.CONTENT])
def test_holes_of_terabytes_are_not_read(nights: Nights, ext4: Path, same: FileMatch, delta: bool) -> None:
    """Like lastlog, or made by an attacker so that the import never ends."""
    tree, copy = ext4 / "tree", nights.top / "copy"
    for place, size in ((tree / "same", 12 << 40), (copy / "same", 12 << 40), (tree / "grew", 12 << 40), (copy / "grew", 5000)):
        place.parent.mkdir(exist_ok=True)
        with place.open("wb") as file:
            file.write(b"begin")
            file.truncate(size)
            file.seek(size - 5000)
            file.write(b"end of " + place.parts[-2].encode())
    with (copy / "same").open("r+b") as file:  # where the tree has a hole
        file.seek(6 << 40)
        file.write(b"stray")
    links = scan_links(tree, None, lambda: True)
    count, here = (os.open(folder, os.O_RDONLY) for folder in (tree, copy))
    try:
        copy_tree(count, here, links, lambda: True, same, delta=delta)
    finally:
        os.close(count)
        os.close(here)
    for name in ("same", "grew"):
        assert (copy / name).stat().st_size == 12 << 40
        assert (copy / name).stat().st_blocks < 1000
        with (copy / name).open("rb") as file:
            assert file.read(6) == b"begin\0"
            file.seek(6 << 40)
            assert file.read(5) == bytes(5)
            file.seek((12 << 40) - 5000)
            assert file.read() == b"end of tree" + bytes(5000 - 11)
