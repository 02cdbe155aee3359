"""The bulk reader of trees, compared with find(1)."""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct

import pytest

from btrkeep.treescan import BUFFER_SIZE, FolderPaths, LinkedInode, linked_inodes, written_bytes, written_files
from btrkeep.treescan.changed import written_sizes
from tests.beds import work

SMALLEST_BUFFER = 16384 + 32  # the largest item of a leaf, and its header
HEADER = Struct("=QQQLL")
INODE = Struct("=QQQQQLLLL104x")  # generation, transid, size, nbytes, block_group, nlink, uid, gid, mode


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def scanned(path: Path, buffer_size: int = BUFFER_SIZE) -> list[LinkedInode]:
    work("btrfs", "filesystem", "sync", path)
    with opened(path) as fd:
        return list(linked_inodes(fd, buffer_size))


def names_by_find(path: Path) -> Counter[tuple[int, int, bytes]]:
    """Returns (inode, links, path) of every name of a linked file, according to find."""
    done = work("find", path, "-links", "+1", "!", "-type", "d", "-printf", "%i %n %P\\0")
    rows = (row.split(b" ", 2) for row in os.fsencode(done.stdout).split(b"\0")[:-1])
    return Counter((int(ino), int(links), name) for ino, links, name in rows)


def named(path: Path, inodes: list[LinkedInode]) -> Counter[tuple[int, int, bytes]]:
    with opened(path) as fd:
        paths = FolderPaths(fd)
        return Counter(
            (each.ino, each.nlink, b"/".join((*paths.of(folder), name))) for each in inodes for folder, name in each.names
        )


def fill(top: Path, folders: int = 40, files: int = 25) -> None:
    for number in range(folders):
        folder = top / f"folder{number}" / "inner"
        folder.mkdir(parents=True)
        for each in range(files):
            (folder / f"file{each}").write_bytes(b"x" * (each * 400))
        (folder / "linked").hardlink_to(folder / "file1")
        (top / f"elsewhere{number}").hardlink_to(folder / "file7")


@pytest.mark.parametrize("buffer_size", [SMALLEST_BUFFER, SMALLEST_BUFFER + 1001, 65536, BUFFER_SIZE])
def test_every_linked_inode_is_found_with_all_its_names_wherever_a_buffer_ends(shared_btrfs: Path, buffer_size: int) -> None:
    fill(shared_btrfs)
    assert named(shared_btrfs, scanned(shared_btrfs, buffer_size)) == names_by_find(shared_btrfs) != Counter()


def test_linked_symlinks_fifos_sockets_and_devices_are_found_and_folders_are_not(shared_btrfs: Path) -> None:
    (shared_btrfs / "folder" / "inner").mkdir(parents=True)
    (shared_btrfs / "symlink").symlink_to("/etc/passwd")
    os.mkfifo(shared_btrfs / "fifo")
    os.mknod(shared_btrfs / "device", 0o020600, os.makedev(1, 3))
    os.mknod(shared_btrfs / "socket", 0o140600)
    for name in ("symlink", "fifo", "device", "socket"):
        os.link(shared_btrfs / name, shared_btrfs / "folder" / name, follow_symlinks=False)
    assert named(shared_btrfs, scanned(shared_btrfs)) == names_by_find(shared_btrfs)
    assert len(names_by_find(shared_btrfs)) == 8


def test_names_with_newlines_and_bytes_that_are_no_utf8_come_as_they_are(shared_btrfs: Path) -> None:
    names = [b"new\nline", b"\xff\xfe", b"-rf", b" ", b"x" * 255]
    (shared_btrfs / "one").touch()
    for name in names:
        os.link(shared_btrfs / "one", os.fsencode(shared_btrfs) + b"/" + name)
    [inode] = scanned(shared_btrfs)
    assert sorted(name for _, name in inode.names) == sorted([*names, b"one"])


def test_an_inode_with_thousands_of_names_in_one_folder_has_them_all(shared_btrfs: Path) -> None:
    """One INODE_REF cannot hold all the names: the rest are INODE_EXTREF items."""
    (shared_btrfs / "one").touch()
    (shared_btrfs / "other").mkdir()
    for number in range(3000):
        folder = shared_btrfs / "other" if number % 2 else shared_btrfs
        (folder / f"{number:04}{'n' * 100}").hardlink_to(shared_btrfs / "one")
    assert named(shared_btrfs, scanned(shared_btrfs, SMALLEST_BUFFER)) == names_by_find(shared_btrfs)
    dumped = work("btrfs", "inspect-internal", "dump-tree", "-t", subvolume_id(shared_btrfs), device(shared_btrfs)).stdout
    assert "INODE_EXTREF" in dumped  # otherwise this test proves nothing


def test_a_folder_deeper_than_a_path_can_be_long_has_its_path(shared_btrfs: Path) -> None:
    fd = os.open(shared_btrfs, os.O_RDONLY)
    for _ in range(50):
        os.mkdir("d" * 200, dir_fd=fd)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(os.open("one", os.O_CREAT, dir_fd=fd))
    os.link("one", "two", src_dir_fd=fd, dst_dir_fd=fd)
    os.close(fd)
    assert named(shared_btrfs, scanned(shared_btrfs)) == names_by_find(shared_btrfs)


def test_a_file_whose_content_looks_like_items_of_the_tree_changes_nothing(shared_btrfs: Path) -> None:
    """Inline data is in the tree. Here it contains headers and INODE_ITEMs with many links: of distant numbers, and of
    real ones.
    """
    fill(shared_btrfs, folders=3)
    expected = names_by_find(shared_btrfs)
    for number, objectid in enumerate([257, 300, 2**40, 2**64 - 300]):
        item = HEADER.pack(7, objectid, 0, 1, 160) + INODE.pack(7, 7, 9, 9, 0, 5, 0, 0, 0o100644)
        for shift in range(8):
            (shared_btrfs / f"hostile{number}-{shift}").write_bytes((b"\0" * shift + item * 12)[:2000])
    work("btrfs", "filesystem", "sync", shared_btrfs)
    dumped = work("filefrag", "-v", shared_btrfs / "hostile0-0").stdout
    assert "inline" in dumped  # otherwise this test proves nothing
    for buffer_size in (SMALLEST_BUFFER, 20000, BUFFER_SIZE):
        assert named(shared_btrfs, scanned(shared_btrfs, buffer_size)) == expected


def test_a_deleted_file_that_is_still_open_is_not_linked(shared_btrfs: Path) -> None:
    with (shared_btrfs / "file").open("wb"):
        (shared_btrfs / "file").unlink()
        assert scanned(shared_btrfs) == []


def test_since_a_generation_what_was_linked_later_is_found_and_most_of_the_rest_passed_over(shared_btrfs: Path) -> None:
    fill(shared_btrfs / "old", folders=200)
    before = names_by_find(shared_btrfs)
    snapshot = shared_btrfs / "snapshot"
    work("btrfs", "filesystem", "sync", shared_btrfs)
    work("btrfs", "-q", "subvolume", "snapshot", shared_btrfs, snapshot)
    fill(snapshot / "new", folders=3)
    for number in range(0, 200, 50):  # their inodes' items are amid those of others
        (snapshot / f"another name {number}").hardlink_to(snapshot / "old" / f"folder{number}" / "inner" / "file9")
    work("btrfs", "filesystem", "sync", snapshot)
    with opened(snapshot) as fd:
        by_name = {each.ino: each for each in linked_inodes(fd, since=created(snapshot))}
    linked = {ino for ino, _, _ in names_by_find(snapshot) - before}  # read afterwards: reading a folder changes its access time
    assert len(linked) == 2 * 3 + 4
    assert linked <= by_name.keys()
    assert len(by_name) < len(before) / 8
    new_names = {name for each in by_name.values() for folder, name in each.names if folder == 256}
    assert {f"another name {number}".encode() for number in range(0, 200, 50)} <= new_names


def test_names_of_an_inode_that_is_passed_over_are_not_taken_for_another_s(shared_btrfs: Path) -> None:
    """Between two new leaves, old leaves are missing, so the next name may belong to any inode."""
    for number in range(6000):  # names and inline data of many lengths, so that leaves are split anywhere
        (shared_btrfs / f"{number:05}{'n' * (number * 37 % 150)}").touch()
    for number, path in enumerate(sorted(shared_btrfs.iterdir())):
        path.write_bytes(b"x" * (number * 101 % 900))
    snapshot = shared_btrfs / "snapshot"
    work("btrfs", "filesystem", "sync", shared_btrfs)
    work("btrfs", "-q", "subvolume", "snapshot", shared_btrfs, snapshot)
    names = sorted(snapshot.iterdir())
    for path in names[::60]:
        path.with_name(path.name[:5] + "second").hardlink_to(path)
    work("btrfs", "filesystem", "sync", snapshot)
    with opened(snapshot) as fd:
        later = list(linked_inodes(fd, since=created(snapshot)))
        truth = {(ino, name) for ino, _, name in names_by_find(snapshot)}
        numbers = {(each.ino, name) for each in later for _, name in each.names}
    assert numbers <= truth
    assert {ino for ino, _ in truth} == {each.ino for each in later}


def test_a_subvolume_inside_is_not_searched(shared_btrfs: Path) -> None:
    work("btrfs", "-q", "subvolume", "create", shared_btrfs / "inner")
    (shared_btrfs / "inner" / "one").touch()
    (shared_btrfs / "inner" / "two").hardlink_to(shared_btrfs / "inner" / "one")
    assert scanned(shared_btrfs) == []
    assert len(scanned(shared_btrfs / "inner")) == 1


def test_a_folder_that_is_not_there_is_said(shared_btrfs: Path) -> None:
    with opened(shared_btrfs) as fd, pytest.raises(FileNotFoundError):
        FolderPaths(fd).of(99999)


def created(path: Path) -> int:
    """Returns the generation in which a subvolume was made, according to btrfs."""
    output = work("btrfs", "subvolume", "show", path).stdout
    return int(next(line.split(":")[1] for line in output.splitlines() if line.strip().startswith("Gen at creation")))


def subvolume_id(path: Path) -> str:
    return work("btrfs", "inspect-internal", "rootid", path).stdout.strip()


def device(path: Path) -> str:
    return work("findmnt", "-n", "-o", "SOURCE", "--target", path).stdout.split("[")[0].strip()


@pytest.mark.parametrize("buffer_size", [SMALLEST_BUFFER, BUFFER_SIZE])
def test_the_files_that_were_written_since_a_snapshot_are_those_that_were_written(shared_btrfs: Path, buffer_size: int) -> None:
    first, second = shared_btrfs / "first", shared_btrfs / "second"
    work("btrfs", "-q", "subvolume", "create", first)
    for number in range(600):
        (first / f"file{number:03}").write_bytes(os.urandom(8192))
    work("btrfs", "-q", "subvolume", "snapshot", first, second)
    for number in range(0, 600, 7):
        (second / f"file{number:03}").write_bytes(os.urandom(8192))
    with (second / "file001").open("r+b") as file:
        file.write(os.urandom(4096))
    (second / "pieces").write_bytes(b"")
    for place in range(0, 64, 2):
        with (second / "pieces").open("r+b") as file:
            file.seek(place * 4096)
            file.write(os.urandom(4096))
            os.fsync(file.fileno())
    work("cp", "--reflink=always", second / "file002", second / "clone")
    work("fallocate", "-l", "1M", second / "preallocated")
    work("btrfs", "filesystem", "sync", shared_btrfs)
    with opened(second) as fd:
        since = created(second)
        numbers = [(second / f"file{number:03}").stat().st_ino for number in range(0, 600, 7)]
        assert list(written_files(fd, since, 8192, buffer_size=buffer_size)) == sorted(
            [*numbers, (second / "pieces").stat().st_ino]
        )
        assert list(written_files(fd, since, 65536, buffer_size=buffer_size)) == [(second / "pieces").stat().st_ino]
        sizes = {
            **dict.fromkeys(numbers, 8192),
            (second / "file001").stat().st_ino: 4096,
            (second / "pieces").stat().st_ino: 32 * 4096,
        }
        assert dict(written_sizes(fd, since, buffer_size=buffer_size)) == sizes
        assert written_bytes(fd, since, buffer_size=buffer_size) == len(numbers) * 8192 + 4096 + 32 * 4096
    with opened(first) as fd:
        assert written_bytes(fd, created(first) - 1, buffer_size=buffer_size) == 600 * 8192
