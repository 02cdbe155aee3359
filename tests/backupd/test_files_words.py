"""An entry in JSON and as text, with any name and any time that a host may give it."""

import json
import os
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from backupd.files.entry_words import entry_object, mode_words, shown, time_words
from backupd.files.listing import listing, page
from backupd.files.tree import Entry, Tree
from tests.beds import work

FILE = Entry(b"/etc/passwd", "file", 1234, 4096, 0o644, 0, 42, 1_700_000_000_123_456_789, 257, 1, 40)
HOSTILE = [b"new\nline", b"\x1b]0;title\x07", b"\xff\xfe", b"\xe2\x80\xae\xe2\x80\xaeexe.txt", b"<script>", b"a\rb", b"x" * 255]


def test_json_says_all_of_an_entry() -> None:
    assert entry_object(FILE) == {
        "name": "passwd",
        "path": "/etc/passwd",
        "kind": "file",
        "size": 1234,
        "allocated": 4096,
        "mode": "0644",
        "uid": 0,
        "gid": 42,
        "mtime": "2023-11-14T22:13:20Z",
        "mtime_ns": 1_700_000_000_123_456_789,
        "inode": 257,
        "links": 1,
        "target": None,
        "device": None,
    }
    assert entry_object(replace(FILE, kind="symlink", target=b"../x\xff"))["target"] == "../x\udcff"
    assert entry_object(replace(FILE, kind="block device", rdev=os.makedev(8, 17)))["device"] == "8:17"
    assert entry_object(replace(FILE, path=b"/"))["name"] == "/"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_comes_through_json_as_it_is_and_is_safe_to_show(name: bytes) -> None:
    dumps = json.dumps(entry_object(replace(FILE, path=b"/" + name)))
    assert dumps.isascii()
    assert os.fsencode(json.loads(dumps)["name"]) == name
    assert shown(name).isprintable()


@pytest.mark.parametrize(
    ("seconds", "output"),
    [(0, "1970-01-01T00:00:00Z"), (-1, "1969-12-31T23:59:59Z"), (253402300800, None), (2**62, None), (-(2**62), None)],
)
def test_a_time_that_no_calendar_has_is_told_as_a_number(seconds: int, output: str | None) -> None:
    entry = replace(FILE, mtime=seconds * 10**9)
    assert (entry_object(entry)["mtime"], entry_object(entry)["mtime_ns"]) == (output, seconds * 10**9)
    assert time_words(entry.mtime) == (output or f"{seconds} s")


@pytest.mark.parametrize("mode", [0o644, 0o4755, 0o2711, 0o1777, 0o4644, 0])
def test_a_mode_reads_as_in_ls(tmp_path: Path, mode: int) -> None:
    (tmp_path / "x").touch()
    (tmp_path / "x").chmod(mode)
    assert work("ls", "-ld", tmp_path / "x").stdout[:10] == mode_words(replace(FILE, mode=mode))
    (tmp_path / "x").unlink()
    (tmp_path / "x").mkdir()
    (tmp_path / "x").chmod(mode)
    assert work("ls", "-ld", tmp_path / "x").stdout[:10] == mode_words(replace(FILE, kind="folder", mode=mode))
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == mode


# --- lists


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "backup" / "data"
    folder.mkdir(parents=True)
    return folder


def test_folders_come_first_and_then_names_in_the_order_of_their_bytes(data: Path) -> None:
    for name in (b"b", b"B", b"\xff", b"\xc3\xa4", b"a b"):
        Path(os.fsdecode(os.fsencode(data) + b"/" + name)).touch()
    for folder in ("z", "y"):
        (data / folder).mkdir()
    (data / "x").symlink_to("z")
    with Tree(data.parent) as tree:
        names = [entry.name for entry in listing(tree, b"/")]
        assert names == [b"y", b"z", b"B", b"a b", b"b", b"x", b"\xc3\xa4", b"\xff"]
        assert [entry.path for entry in listing(tree, b"/b")] == [b"/b"]
        assert listing(tree, b"/z") == []


def test_pages_put_together_are_the_whole_list(data: Path) -> None:
    for number in range(57):
        (data / f"f{number}").touch()
        (data / f"d{number}").mkdir()
    with Tree(data.parent) as tree:
        whole = listing(tree, b"/")
        pages = [page(tree, b"/", offset, 20) for offset in range(0, 140, 20)]
        assert [entry for page in pages for entry in page.entries] == whole
        assert {page.total for page in pages} == {114}
        assert (page(tree, b"/f0").total, [entry.path for entry in page(tree, b"/f0").entries]) == (1, [b"/f0"])
    assert subprocess.run(["find", data, "-mindepth", "1"], capture_output=True, check=True).stdout.count(b"\n") == 114
