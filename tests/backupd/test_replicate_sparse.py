"""What the other pool announces of sparse files is not believed before it has been looked at."""

import os
from pathlib import Path
from typing import Any

import pytest

from backupd.replicate.sparse_files import SparseFile, as_json, lengthen, sparse_files_in
from btrkeep.process.cancellation import Cancellation

SIZE = 32 << 20


def test_an_announcement_is_read_back_with_any_name() -> None:
    files = (SparseFile((b"srv", b"\xff \n name"), SIZE), SparseFile((b"x",), 0))
    assert sparse_files_in(as_json(files)) == files


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "x",
        [3],
        [["srv/x"]],
        [["srv/x", "1"]],
        [["srv/x", -1]],
        [["srv/x", 1 << 60]],
        [["srv/x", True]],
        [[7, SIZE]],
        [["/etc/passwd", SIZE]],
        [["../x", SIZE]],
        [["srv/../../x", SIZE]],
        [["srv//x", SIZE]],
        [["srv/.", SIZE]],
        [["srv/\0", SIZE]],
        [["srv/\ud800", SIZE]],
        [["/".join("d" * 200), SIZE]],
    ],
)
def test_what_names_no_file_is_ignored(answer: object) -> None:
    assert sparse_files_in(answer) == ()


def test_only_missing_and_shorter_files_get_a_length(tmp_path: Path) -> None:
    outside, data = tmp_path / "outside", tmp_path / "backup" / "data"
    (data / "folder").mkdir(parents=True)
    outside.mkdir()
    (outside / "file").write_text("not ours")
    (data / "short").write_text("short")
    (data / "long").write_bytes(bytes(100))
    (data / "linked").write_text("linked")
    os.link(data / "linked", data / "other")
    os.mkfifo(data / "pipe")
    (data / "symlink").symlink_to(outside / "file")
    (data / "symlinked").symlink_to(outside)
    names = (
        "short",
        "long",
        "linked",
        "pipe",
        "symlink",
        "symlinked/file",
        "symlinked/new",
        "folder/new",
        "a/b/new",
        "short/below",
    )
    files = [SparseFile(tuple(os.fsencode(name).split(b"/")), 50) for name in names]
    assert lengthen(data.parent, files, Cancellation()) == [b"short", b"folder/new", b"a/b/new"]
    assert (data / "short").read_bytes() == b"short" + bytes(45)
    assert (data / "a/b/new").stat().st_size == 50
    assert [(file.name, file.read_text()) for file in outside.iterdir()] == [("file", "not ours")]
    assert (data / "linked").read_text() == "linked"


def test_a_device_is_not_even_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opened for writing, a watchdog in a backup starts, and a tape is rewound."""
    data, opened = tmp_path / "data", list[object]()
    data.mkdir()
    os.mkfifo(data / "pipe")
    really_open = os.open

    def noted_open(path: Any, *rest: Any, **where: Any) -> int:
        opened.append(path)
        return really_open(path, *rest, **where)

    monkeypatch.setattr(os, "open", noted_open)
    assert lengthen(tmp_path, [SparseFile((b"pipe",), SIZE), SparseFile((b"new",), SIZE)], Cancellation()) == [b"new"]
    assert b"new" in opened
    assert b"pipe" not in opened
