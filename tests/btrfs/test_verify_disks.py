"""`backupd verify` on failing disks: one copy of two, and metadata. `find`, `sha256sum` and the damaged place are the truth."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds.faults import damage, damage_metadata, leaves
from tests.beds.nights import Nights
from tests.beds.watch import rows
from tests.beds.work import work
from tests.btrfs.test_verify import verify

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
    work("btrfs", "scrub", "start", "-B", nights.top)  # mends what was read from the good copy alone
    damage(nights.top, contents["file4"][8192:16384], devices=(0, 1))
    (done,) = verify(nights, status=1)["backups"]
    assert (done["damaged"], done["compared"]) == ([f"{tree}/file4"], 5)
    assert rows(nights, "select path, start from damage") == [(f"{tree}/file4", 8192)]


def test_a_file_with_many_names_is_read_once_and_is_damaged_under_each(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = Nights(make_btrfs(size="300M"))
    nights.tables["verify"] = {"new_files": "none"}
    content = os.urandom(20_000)
    for name, what in (("good", os.urandom(20_000)), ("bad", content)):
        (tree / name).mkdir()
        (tree / name / "0").write_bytes(what)
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


def unreadable(data: Path) -> tuple[set[str], int]:
    """Returns the paths on the host that `find` cannot list or stat, or `sha256sum` cannot read, and how many files it read."""
    listed = work("env", "LC_ALL=C", "find", data, "-printf", "%s %l\n", check=False)
    summed = work("env", "LC_ALL=C", "find", data, "-type", "f", "-exec", "sha256sum", "{}", "+", check=False)
    failed = re.finditer(rf"(?:find|sha256sum): '?{data}([^':]*)'?: Input/output error", listed.stderr + summed.stderr)
    return {found[1] for found in failed}, summed.stdout.count("\n")


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
