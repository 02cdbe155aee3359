"""`backupd verify` on failing disks: one of two copies, and metadata. Its findings are compared with `find`, `sha256sum` and the
damaged place.
"""

import hashlib
import os
import re
from collections.abc import Callable
from mmap import PROT_READ, mmap
from pathlib import Path

import pytest

from backupd.files.file_digest import read_file, read_small, small_buffer
from tests.beds.faults import damage, damage_in_use, damage_metadata, leaves
from tests.beds.nights import Nights
from tests.beds.watch import rows
from tests.beds.work import work
from tests.btrfs.test_verify import MIB, bytes_read, records, verify

pytestmark = [pytest.mark.btrfs, pytest.mark.root]


def test_a_file_with_one_good_copy_of_two_is_whole_and_one_without_is_damaged(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = Nights(make_btrfs(size="300M", devices=2, mkfs=("-d", "raid1", "-m", "raid1")))
    contents = {f"file{number}": os.urandom((1 << 20) + 5000) for number in range(6)}  # each read by a thread of its own
    for name, content in contents.items():
        (tree / name).write_bytes(content)
    nights.host("web", tree)
    nights.run("web")
    verify(nights)
    damage(nights.top, *(content[8192:16384] for content in contents.values()), devices=(1,))
    (done,) = verify(nights)["backups"]
    assert (done["state"], done["read"], done["compared"]) == ("whole", 6, 6)
    work("btrfs", "scrub", "start", "-B", nights.top)  # repairs the copy that was not read
    damage(nights.top, contents["file4"][8192:16384], devices=(0, 1))
    (done,) = verify(nights, status=1)["backups"]
    assert (done["damaged"], done["compared"]) == ([f"{tree}/file4"], 5)
    assert rows(nights, "select path, start from damage") == [(f"{tree}/file4", 8192)]


def test_a_file_with_many_names_is_read_once_and_is_damaged_under_each(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = Nights(make_btrfs(size="300M"))
    nights.tables["verify"] = {"new_files": "none"}
    content = os.urandom(20_000)
    for name, piece in (("good", os.urandom(20_000)), ("bad", content)):
        (tree / name).mkdir()
        (tree / name / "0").write_bytes(piece)
        for number in range(1, 100):
            os.link(tree / name / "0", tree / name / str(number))
    nights.host("web", tree)
    nights.run("web")
    (done,) = verify(nights)["backups"]
    assert (done["state"], done["read"]) == ("whole", 2)
    damage(nights.top, content[4096:8192])
    done = verify(nights, status=1)
    assert done["files"] == 2
    assert {path for (path,) in rows(nights, "select path from damage")} == {f"{tree}/bad/{number}" for number in range(100)}


@pytest.mark.parametrize("options", ["nodatasum", "noatime", "compress-force=zstd"])
def test_small_files_of_all_sizes_come_from_the_disk_and_damage_has_its_place(
    make_btrfs: Callable[..., Path], tree: Path, options: str
) -> None:
    """Inline, compressed, of odd sizes, and zeros: the digests equal those of sha256sum, and cached data does not hide the disk."""
    nights = Nights(make_btrfs(size="300M", options=options))
    nights.tables["verify"] = {"new_files": "none"}
    sizes = (0, 1, 2000, 4095, 4096, 4097, 65_536, 1_000_001, MIB - 1, MIB, MIB + 1)
    for size in sizes:
        (tree / str(size)).write_bytes((os.urandom(size // 16 + 1).hex() * 8)[:size].encode())
    (tree / "zeros").write_bytes(b"some" + bytes(50_000) + b"more")
    victim = b"text" * 32_768 + os.urandom(168_928)  # reading a partly compressed file may end before the damage
    (tree / "victim").write_bytes(victim)
    nights.host("web", tree)
    nights.run("web")
    assert verify(nights)["backups"][0]["read"] == len(sizes) + 2
    kept, data = records(nights, "web"), nights.data("web", tree)
    for size in sizes:
        assert kept[(data / str(size)).stat().st_ino] == hashlib.sha256((tree / str(size)).read_bytes()).digest()
    for path in data.iterdir():  # now in the page cache
        path.read_bytes()
    before = bytes_read(nights.top)
    (done,) = verify(nights)["backups"]
    assert bytes_read(nights.top) - before >= len(victim) + MIB  # compressed, the others take half of their 4 MiB
    assert (done["state"], done["compared"]) == ("whole", len(sizes) + 2)
    damage(nights.top, victim[200_704:204_800])
    (done,) = verify(nights, status=1)["backups"]
    assert (done["damaged"], done["compared"]) == ([f"{tree}/victim"], len(sizes) + 1)
    start = 0 if options == "nodatasum" else 200_704  # without checksums the place is unknown; random data is not compressed
    assert rows(nights, "select path, start from damage") == [(f"{tree}/victim", start)]


@pytest.mark.parametrize("options", ["nodatasum", "noatime"])
def test_a_small_file_that_a_program_has_mapped_is_read_from_the_disk(
    make_btrfs: Callable[..., Path], tree: Path, options: str
) -> None:
    """The kernel does not drop these pages on request: they still have the data from before the damage."""
    nights = Nights(make_btrfs(size="300M", options=options))
    victim = os.urandom(300_000)
    (tree / "victim").write_bytes(victim)
    nights.host("web", tree)
    nights.run("web")
    verify(nights)
    with (nights.data("web", tree) / "victim").open("rb") as file, mmap(file.fileno(), 0, prot=PROT_READ) as mapped:
        assert mapped[:] == victim
        damage_in_use(nights.top, victim[200_704:204_800])
        (done,) = verify(nights, status=1)["backups"]
        assert mapped[:] == victim
    assert done["damaged"] == [f"{tree}/victim"]
    start = 0 if options == "nodatasum" else 200_704
    assert rows(nights, "select path, start from damage") == [(f"{tree}/victim", start)]


def test_zeros_and_holes_are_alike_in_a_small_file_and_where_they_are_counts(shared_btrfs: Path) -> None:
    """A deduplicator may turn zeros into holes or holes into zeros. A file that is read as a large file has the same digest."""
    block, data = bytes(4096), os.urandom(4096)
    dense = data + 3 * block + data + b"more" + bytes(500)
    contents = {"dense": dense, "moved": data + block + data + 2 * block + b"more" + bytes(500), "cut": dense[:-1]}
    for name, content in contents.items():
        (shared_btrfs / name).write_bytes(content)
    (shared_btrfs / "sparse").write_bytes(dense)
    work("fallocate", "--punch-hole", "--offset", "4096", "--length", "12288", shared_btrfs / "sparse")
    work("sync", "-f", shared_btrfs)
    assert (shared_btrfs / "sparse").stat().st_blocks < (shared_btrfs / "dense").stat().st_blocks
    by_name, key, buffer = {}, bytes(24), small_buffer()
    for name in (*contents, "sparse"):
        path = shared_btrfs / name
        small = read_small(os.open(path, os.O_RDONLY | os.O_DIRECT), b"x", path.stat().st_size, key, buffer)
        large = read_file(os.open(path, os.O_RDONLY), b"x", path.stat().st_size, key, lambda: True)
        assert large is not None
        assert small.digest == large.digest
        assert small.plain == hashlib.sha256(path.read_bytes()).digest()
        by_name[name] = small.digest
    assert by_name["dense"] == by_name["sparse"]
    assert len(set(by_name.values())) == 3


def unreadable(data: Path) -> tuple[set[str], int]:
    """Returns the paths on the host that `find` cannot list or stat, or `sha256sum` cannot read, and how many files it read."""
    listed = work("env", "LC_ALL=C", "find", data, "-printf", "%s %l\n", check=False)
    summed = work("env", "LC_ALL=C", "find", data, "-type", "f", "-exec", "sha256sum", "{}", "+", check=False)
    failed = re.finditer(rf"(?:find|sha256sum): '?{data}([^':]*)'?: Input/output error", listed.stderr + summed.stderr)
    return {match[1] for match in failed}, summed.stdout.count("\n")


def test_names_and_folders_that_cannot_be_read_are_damaged_and_others_are_read(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = Nights(make_btrfs(size="300M", mkfs=("-m", "single")))
    for folder in ("listed", "unlisted"):
        (tree / folder).mkdir()
        for number in range(300):
            (tree / folder / f"{number:0100}").write_bytes(b"inline")
        for number in range(20):
            (tree / folder / f"link{number:0100}").symlink_to("x" * 100)
    (tree / "zz").write_bytes(os.urandom(9000))
    nights.host("web", tree)
    nights.run("web")
    backup, files = nights.backup("web"), 601
    (first,) = verify(nights)["backups"]
    assert (first["state"], first["read"]) == ("whole", files)
    below = backup / "data" / str(tree)[1:]
    index = leaves(backup, nights.top, f"{(below / 'unlisted').stat().st_ino} DIR_INDEX ")
    (inodes,) = leaves(backup, nights.top, f"{(below / 'listed' / f'{150:0100}').stat().st_ino} INODE_ITEM ")
    damage_metadata(nights.top, index[len(index) // 2], inodes, leaves(backup, nights.top)[-3])
    truth, readable = unreadable(backup / "data")
    assert f"{tree}/unlisted" in truth, truth
    assert f"{tree}/listed/{150:0100}" in truth, truth
    (done,) = verify(nights, status=1)["backups"]
    assert done["state"] == "damaged"
    assert {path for (path,) in rows(nights, "select path from damage")} == truth
    assert done["read"] == readable < files
    (again,) = verify(nights, status=1)["backups"]
    assert again["damages"] == len(truth)
