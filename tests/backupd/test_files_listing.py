"""Pages of a folder in every order, compared with find and sort."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backupd.files import listing
from backupd.files.listing import page
from backupd.files.tree import Tree

READ: dict[str, Callable[[bytes], Any]] = {
    "size": int,
    "mode": lambda text: int(text, 8),
    "mtime": lambda text: int(text.replace(b".", b"")[:-1]),  # find prints tenths of nanoseconds
    "name": bytes,
}
FIELDS = {"size": "%s", "mode": "%m", "mtime": "%T@", "name": "%f"}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    inside = tmp_path / "data"
    inside.mkdir()
    for number in range(60):
        file = inside / f"{number * 37 % 60:02}"
        file.write_bytes(b"x" * (number * 7919 % 997))
        os.utime(file, ns=(0, number * 104_729 % 10_007 * 10**9))
        file.chmod(0o400 + number % 64 * 8 + number)
    for number in range(3):
        (inside / f"3{number}folder").mkdir()
    (inside / "link").symlink_to("/etc/passwd")
    (inside / os.fsdecode(b"caf\xe9")).touch()
    return Tree(tmp_path)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("sort", sorted(FIELDS))
def test_a_page_is_what_find_and_sort_say(tree: Tree, tmp_path: Path, sort: str, descending: bool) -> None:
    done = subprocess.run(
        ["find", tmp_path / "data", "-mindepth", "1", "-printf", f"%y\t{FIELDS[sort]}\n"], capture_output=True, check=True
    ).stdout.splitlines()
    kinds_and_keys = [line.split(b"\t") for line in done]
    keys = sorted((READ[sort](key) for _, key in kinds_and_keys), reverse=descending)
    if sort == "name" and not descending:
        folders = sorted(key for kind, key in kinds_and_keys if kind == b"d")
        keys = [*folders, *(key for key in keys if key not in folders)]
    result = page(tree, b"/", 10, 25, sort, descending)
    assert [getattr(entry, sort) for entry in result.entries] == keys[10:35]
    assert (result.total, result.sort, result.descending) == (len(done), sort, descending)


def test_all_pages_together_have_each_name_once_in_every_order(tree: Tree) -> None:
    for sort in listing.SORTS:
        names = [entry.name for start in range(0, 70, 7) for entry in page(tree, b"/", start, 7, sort, True).entries]
        assert sorted(names) == tree.names(b"/")


def test_a_folder_with_too_many_names_comes_by_name_and_says_so(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MOST_SORTED", 64)
    result = page(tree, b"/", 0, 4, "size", True)
    assert (result.sort, result.descending, [entry.name for entry in result.entries]) == (
        "name",
        False,
        [b"30folder", b"31folder", b"32folder", b"00"],
    )
