"""Search for names in a backup, and folders that are shown as one. Without them a user clicks through each folder of a path, finds
a file only if he knows where it was, and takes a search that stopped for one that found everything.
"""

import os
import subprocess
import time
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backupd.files.listing import only_folders, page
from backupd.files.name_search import name_filter, search
from backupd.files.sameness import TimeBudgetUsedUp, steady
from backupd.files.suggestions import path_in
from backupd.files.tree import Entry, Tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    inside = tmp_path / "data"
    for folder in ("srv/shop/Invoices/2026", "srv/shop/img", "etc", "a/b/c", "a2/b", "empty"):
        (inside / folder).mkdir(parents=True)
    for file in ("srv/shop/Invoices/2026/invoice 07.pdf", "srv/shop/img/invoice.png", "etc/passwd", "a/b/c/x", "a/b/c/y", "a2/b/f"):
        (inside / file).write_text(file)
    (inside / "srv" / os.fsdecode(b"caf\xe9.txt")).touch()
    (inside / "etc" / "link").symlink_to("/srv/shop/Invoices")
    return Tree(tmp_path)


def everything(_entry: Entry) -> bool:
    return True


@pytest.mark.parametrize("text", ["invoice", "INVOICE", "o", ".p", "*.p*", "invoice*", "?????*.png", "passwd", "x", "nothing"])
def test_a_search_returns_the_names_that_find_returns(tree: Tree, tmp_path: Path, text: str) -> None:
    pattern = text if set(text) & set("*?") else f"*{text}*"
    done = subprocess.run(["find", tmp_path / "data", "-mindepth", "1", "-iname", pattern, "-printf", "/%P\n"], capture_output=True)
    result = search(tree, b"/", name_filter(text), everything, steady)
    assert sorted(entry.path for entry in result.entries) == sorted(done.stdout.splitlines())
    names = subprocess.run(["find", tmp_path / "data", "-mindepth", "1", "-printf", "x"], capture_output=True).stdout
    assert (result.scanned, result.stopped, result.unreadable) == (len(names), "", 0)


def test_a_name_that_is_not_utf8_is_found_by_the_escape_that_is_shown(tree: Tree) -> None:
    for text in (r"caf\xe9", r"CAF\XE9.TXT", "caf?xe9*", ".txt"):
        assert [entry.path for entry in search(tree, b"/", name_filter(text), everything, steady).entries] == [b"/srv/caf\xe9.txt"]


def test_a_search_that_stops_says_why(tree: Tree) -> None:
    left = iter([True, True])
    result = search(tree, b"/", name_filter("i"), lambda _entry: next(left, False), steady)
    assert (len(result.entries), result.stopped) == (2, "results")
    ticks = iter(range(3))

    def pulse() -> None:
        if next(ticks, None) is None:
            raise TimeBudgetUsedUp

    late = search(tree, b"/", name_filter("passwd"), everything, pulse)
    assert (late.scanned, late.stopped) == (3, "time")


@given(st.text("ab*?", max_size=8), st.text("ab", max_size=8))
def test_wildcards_match_as_those_of_a_shell(text: str, name: str) -> None:
    pattern = text if set(text) & set("*?") else f"*{text}*"
    assert name_filter(text)(name.encode()) == fnmatchcase(name, pattern)


def test_no_text_keeps_the_service_busy_with_one_name() -> None:
    """A regular expression with 50 repetitions would take longer than the machine exists."""
    began = time.process_time()
    assert not name_filter("*a" * 50 + "*b")(b"a" * 255)
    assert time.process_time() - began < 1


@pytest.mark.parametrize("text", ["b", "*b", r"caf\xe9.txt"])
def test_many_names_that_are_slow_to_compare_end_with_the_time_of_the_request(tree: Tree, text: str) -> None:
    """A million names of 255 bytes that are not UTF-8 take minutes of processor time, also after the client has left."""

    def pulse() -> None:
        raise TimeBudgetUsedUp

    with pytest.raises(TimeBudgetUsedUp):
        page(tree, b"/srv", 0, 10, matches=name_filter(text, pulse))
    with pytest.raises(TimeBudgetUsedUp):
        path_in(tree, rb"/srv/caf\xe9.txt", pulse)


def test_folders_with_a_single_folder_are_one_row(tree: Tree) -> None:
    folders = [b"/a", b"/a2", b"/srv", b"/etc", b"/empty"]
    assert dict(zip(folders, only_folders(tree, folders), strict=True)) == {
        b"/a": b"b/c",
        b"/a2": b"b",
        b"/srv": b"",
        b"/etc": b"",
        b"/empty": b"",
    }


def test_a_filtered_folder_has_pages_of_its_matches_alone(tree: Tree) -> None:
    result = page(tree, b"/", 1, 1, matches=name_filter("a"))
    assert ([entry.name for entry in result.entries], result.total) == ([b"a2"], 2)
