"""`backupd verify` on disks that fail it: one copy of two, and metadata. `find` and the damaged place are the truth."""

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

pytestmark = [pytest.mark.btrfs, pytest.mark.root, pytest.mark.timeout(180)]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Sources that lie on another filesystem than the pool."""
    tree = tmp_path / "srv"
    tree.mkdir()
    return tree


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


def unreadable(data: Path) -> set[str]:
    """Paths on the host that `find` cannot list or look at."""
    done = work("env", "LC_ALL=C", "find", data, "-printf", "%s %l\n", check=False)
    return {found[1] for found in re.finditer(rf"find: '?{data}([^']*)'?: Input/output error", done.stderr)}


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
    there = leaves(backup, nights.top)
    damage_metadata(nights.top, there[len(there) // 8], there[len(there) // 2], there[-3])
    truth = unreadable(backup / "data")
    assert truth  # which of names and folders are hit depends on where the leaves are
    (done,) = verify(nights, status=1)["backups"]
    assert done["state"] == "damaged"
    assert {path for (path,) in rows(nights, "select path from damage")} == truth
    readable = work("env", "LC_ALL=C", "find", backup / "data", "-type", "f", "-printf", "%s\\n", check=False).stdout.count("\n")
    assert done["read"] == readable < files
    (again,) = verify(nights, status=1)["backups"]
    assert again["damages"] == len(truth)
