"""Differences between two trees, compared with `diff -rq` for data, and find for everything else."""

import os
import random
import re
import resource
import subprocess
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from backupd.files.backup_differences import TEXT_LIMIT, DifferenceTotals, NoText, PathDifference, compare, text_difference
from backupd.files.tree import Tree
from tests.beds import work
from tests.beds.leftout import needs_program
from tests.beds.opens import watched

Sides = tuple[Path, Path]


@pytest.fixture
def sides(tmp_path: Path) -> Sides:
    """The folders `data` of two backups."""
    for name in ("one", "two"):
        (tmp_path / name / "data").mkdir(parents=True)
    return tmp_path / "one" / "data", tmp_path / "two" / "data"


def differences(sides: Sides, path: bytes = b"/", content: bool = False) -> list[PathDifference]:
    with Tree(sides[0].parent) as before, Tree(sides[1].parent) as after:
        return list(compare(before, after, path, content))


def words(sides: Sides, path: bytes = b"/", content: bool = False) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {os.fsdecode(difference.path): (difference.what, difference.fields) for difference in differences(sides, path, content)}


def both(sides: Sides, name: str, text: str = "same", mtime: int = 1_600_000_000) -> None:
    for side in sides:
        (side / name).parent.mkdir(parents=True, exist_ok=True)
        (side / name).write_text(text)
        os.utime(side / name, (mtime, mtime))


# --- one at a time


def test_nothing_differs_between_copies(sides: Sides) -> None:
    both(sides, "etc/passwd")
    os.mkfifo(sides[0] / "fifo")
    (sides[0] / "link").symlink_to("etc")
    work("rm", "-rf", sides[1])
    work("cp", "-a", sides[0], sides[1])
    assert differences(sides, content=True) == []


CHANGES: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "size": (lambda path: path.write_text("longer than before"), ("size", "mtime", "content")),
    "mtime": (lambda path: os.utime(path, ns=(0, 1_600_000_000_000_000_001)), ("mtime",)),
    "mode": (lambda path: path.chmod(0o4755), ("mode",)),
    "owner": (lambda path: os.chown(path, 12, 34), ("owner",)),
    "xattrs": (lambda path: os.setxattr(path, "user.note", b"x"), ("xattrs",)),
    "acl": (lambda path: work("setfacl", "-m", "u:1234:r", path), ("xattrs",)),
}


@pytest.mark.root
@pytest.mark.parametrize("change", CHANGES)
def test_each_change_is_told_by_its_name(sides: Sides, change: str) -> None:
    both(sides, "etc/passwd")
    for side in sides:
        (side / "etc" / "passwd").chmod(0o644)
    act, fields = CHANGES[change]
    act(sides[1] / "etc" / "passwd")
    assert words(sides) == {"/etc/passwd": ("changed", fields)}


def test_what_rsync_takes_for_unchanged_is_read_only_when_asked_for(sides: Sides) -> None:
    both(sides, "etc/passwd", "x" * 5000)
    (sides[1] / "etc" / "passwd").write_text("y" * 5000)
    os.utime(sides[1] / "etc" / "passwd", (1_600_000_000, 1_600_000_000))
    with watched(sides[0] / "etc" / "passwd") as opens:
        assert words(sides) == {}
        assert opens.count() == 0
        assert words(sides, content=True) == {"/etc/passwd": ("changed", ("content",))}
        assert opens.count() > 0


def test_a_folder_that_became_a_file_is_another_kind_and_what_was_in_it_went(sides: Sides) -> None:
    (sides[0] / "a" / "b").mkdir(parents=True)
    (sides[0] / "a" / "b" / "c").touch()
    (sides[1] / "a").touch()
    assert words(sides) == {"/a": ("kind", ("kind",)), "/a/b": ("removed", ()), "/a/b/c": ("removed", ())}
    assert words((sides[1], sides[0])) == {"/a": ("kind", ("kind",)), "/a/b": ("added", ()), "/a/b/c": ("added", ())}


def test_the_time_of_a_folder_is_not_a_difference_but_its_mode_is(sides: Sides) -> None:
    for number, side in enumerate(sides):
        (side / "a").mkdir()
        os.utime(side / "a", (number, number))
    assert words(sides) == {}
    (sides[1] / "a").chmod(0o700)
    assert words(sides) == {"/a": ("changed", ("mode",))}


def test_symlinks_and_devices_are_compared_by_what_they_say(sides: Sides) -> None:
    for number, side in enumerate(sides):
        (side / "link").symlink_to(f"/target{number}")
        os.utime(side / "link", (5, 5), follow_symlinks=False)
        if os.geteuid() == 0:
            os.mknod(side / "node", 0o020600, os.makedev(1, 3 + 2 * number))
            os.utime(side / "node", (5, 5))
    expected = {"/link": ("changed", ("target",))}
    assert words(sides) == (expected | {"/node": ("changed", ("device",))} if os.geteuid() == 0 else expected)


def test_a_path_that_only_one_side_has_and_one_that_none_has(sides: Sides) -> None:
    (sides[1] / "new" / "x").mkdir(parents=True)
    assert words(sides, b"/new") == {"/new": ("added", ()), "/new/x": ("added", ())}
    assert words((sides[1], sides[0]), b"/new/x") == {"/new/x": ("removed", ())}
    with pytest.raises(FileNotFoundError):
        differences(sides, b"/none")


def test_no_fifo_is_opened_and_no_symlink_followed(sides: Sides, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    for side in sides:
        os.mkfifo(side / "fifo")
        (side / "way").symlink_to(tmp_path / "outside")
    with watched(sides[0] / "fifo", sides[1] / "fifo", tmp_path / "outside" / "secret") as opens:
        assert {difference.path for difference in differences(sides, content=True)} <= {b"/fifo", b"/way"}
        with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
            differences(sides, b"/way/secret")
        assert opens.count() == 0


# --- whole trees


def grow(folder: Path, chance: random.Random, depth: int = 0) -> None:
    """Makes a tree of files, folders and symlinks with names that are hard to sort: some are the beginning of others."""
    for name in chance.sample(["a", "a.b", "a b", "aa", "B", "ä", "b", "-x", "a-"], 5):
        kind = chance.choice("ffdl")
        if kind == "d" and depth < 3:
            (folder / name).mkdir()
            grow(folder / name, chance, depth + 1)
        elif kind == "l":
            (folder / name).symlink_to(chance.choice(["x", "y"]))
        else:
            (folder / name).write_text(chance.choice(["one", "two", "three"]))
            os.utime(folder / name, (1, 1))


def by_diff(sides: Sides) -> set[tuple[str, str]]:
    """Returns the result of diff: (path, added|removed|changed|kind)."""
    done = work("diff", "-rq", "--no-dereference", *sides, check=False).stdout.splitlines()
    facts = set()
    for line in done:
        if only := re.fullmatch(r"Only in (.+?): (.+)", line):
            side = next(side for side in sides if only[1] == str(side) or only[1].startswith(f"{side}/"))
            facts.add((f"{only[1].removeprefix(str(side))}/{only[2]}", "removed" if side == sides[0] else "added"))
        elif differs := re.fullmatch(rf"(?:Files|Symbolic links) {sides[0]}(.+) and {sides[1]}.+ differ", line):
            facts.add((differs[1], "changed"))
        else:
            kind = re.fullmatch(rf"File {sides[0]}(.+) is an? .+ while file {sides[1]}.+ is an? .+", line)
            assert kind, line
            facts.add((kind[1], "kind"))
    return facts


@pytest.mark.parametrize("seed", range(12))
def test_whole_trees_differ_as_diff_says(sides: Sides, seed: int) -> None:
    for number, side in enumerate(sides):
        grow(side, random.Random(seed * 2 + number))
    mine = differences(sides, content=True)
    tops = {difference.path for difference in mine if difference.what != "changed"}
    inside = {difference.path for difference in mine if any(difference.path.startswith(top + b"/") for top in tops)}
    facts = {
        (os.fsdecode(difference.path), difference.what)
        for difference in mine
        if difference.path not in inside
        and not (difference.what == "changed" and not {"content", "target", "size"} & set(difference.fields))
    }
    assert facts == by_diff(sides)
    assert len(facts) > 3
    sizes = [work("find", side, "-mindepth", "1").stdout.count("\n") for side in sides]
    assert (
        sizes[0] + sum(difference.what == "added" for difference in mine) - sum(difference.what == "removed" for difference in mine)
        == sizes[1]
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_comparison_continues_behind_each_path(sides: Sides, seed: int) -> None:
    for number, side in enumerate(sides):
        grow(side, random.Random(seed * 2 + number))
    with Tree(sides[0].parent) as before, Tree(sides[1].parent) as after:
        passed = list[bytes]()
        whole = list(compare(before, after, b"/", passed=passed.append))
        assert {difference.path for difference in whole} <= set(passed)
        for number, since in enumerate(passed):
            rest = list[bytes]()
            left = list(compare(before, after, b"/", since=since, passed=rest.append))
            assert rest == passed[number + 1 :]
            assert left == [difference for difference in whole if difference.path in rest]


def test_the_sum_is_that_of_find(sides: Sides) -> None:
    for number, side in enumerate(sides):
        grow(side, random.Random(40 + number))
    total = DifferenceTotals()
    for difference in differences(sides):
        total.take(difference)
    names = [set(work("find", ".", "-mindepth", "1", cwd=side).stdout.splitlines()) for side in sides]
    assert (total.added, total.removed) == (len(names[1] - names[0]), len(names[0] - names[1]))
    sizes = [
        sum(map(int, work("find", *sorted(texts), "-maxdepth", "0", "-type", "f", "-printf", "%s\\n", cwd=side).stdout.split()))
        for texts, side in zip((names[1] - names[0], names[0] - names[1]), reversed(sides), strict=True)
    ]
    assert [total.added_bytes, total.removed_bytes] == sizes


@pytest.mark.slow
def test_folders_nested_deeper_than_descriptors_and_calls_go_are_compared(sides: Sides) -> None:
    depth, old = 1100, Path.cwd()
    for side in sides:
        try:
            os.chdir(side)
            for _ in range(depth):
                Path("d").mkdir()
                os.chdir("d")
            Path("end").write_text(side.parent.name)
        finally:
            os.chdir(old)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (250, hard))
    try:
        assert [difference.path for difference in differences(sides, content=True)] == [b"/d" * depth + b"/end"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for side in sides:
            work("rm", "-rf", side / "d")


@pytest.mark.slow
def test_memory_is_for_one_folder_not_for_all_that_differs(sides: Sides) -> None:
    for folder in range(20):
        (sides[1] / f"{folder}").mkdir()
        for number in range(100):
            (sides[1] / f"{folder}" / f"{number}").touch()
    with Tree(sides[0].parent) as before, Tree(sides[1].parent) as after:
        tracemalloc.start()
        count = sum(1 for _ in compare(before, after, b"/"))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert count == 20 * 101
    assert peak < 200_000  # all differences at once are several times that


@pytest.mark.root
def test_what_is_mounted_in_one_backup_is_compared_in_neither(sides: Sides) -> None:
    both(sides, "mnt/same")
    both(sides, "name")
    work("mount", "-t", "tmpfs", "none", sides[0] / "mnt")
    try:
        (sides[0] / "mnt" / "other").write_text("of the mount")
        assert [name for name in words(sides) if name.startswith("/mnt/")] == []
        assert [name for name in words((sides[1], sides[0])) if name.startswith("/mnt/")] == []
        for before, after in (sides, (sides[1], sides[0])):
            with Tree(before.parent) as old, Tree(after.parent) as new:
                (mounted,) = [difference for difference in compare(old, new, b"/") if difference.path == b"/mnt"]
                assert "mount" in mounted.fields, "nobody is told that what is below was not compared"
                assert list(compare(old, new, b"/", since=b"/mnt")) == []
    finally:
        work("umount", sides[0] / "mnt")


# --- text


def lines(sides: Sides, limit: int = TEXT_LIMIT) -> list[str]:
    with Tree(sides[0].parent) as before, Tree(sides[1].parent) as after:
        return text_difference(before, after, b"/file", limit)


@needs_program("patch")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"a\nb\nc\n", b"a\nB\nc\n"),
        (b"", b"a\n"),
        (b"one\ntwo\n", b""),
        (b"a\n" * 30 + b"x\n" + b"b\n" * 30, b"a\n" * 30 + b"y\n" + b"b\n" * 30),
        (b"latin \xe4\n", b"latin \xf6\n"),
        (b"cr\r\nlf\r\n", b"cr\r\nlf\n"),
    ],
)
def test_the_lines_that_differ_turn_the_old_file_into_the_new_one(sides: Sides, tmp_path: Path, old: bytes, new: bytes) -> None:
    """Checked by patch."""
    (sides[0] / "file").write_bytes(old)
    (sides[1] / "file").write_bytes(new)
    text = "".join(f"{line}\n" for line in lines(sides))
    patched = tmp_path / "patched"
    patched.write_bytes(old)
    subprocess.run(["patch", "-s", "--binary", patched], input=os.fsencode(text), check=True)
    assert (patched.read_bytes() if patched.exists() else b"") == new


def test_no_lines_of_equal_files_and_all_of_one_that_came(sides: Sides) -> None:
    (sides[1] / "file").write_text("a\nb\n")
    assert lines(sides)[-2:] == ["+a", "+b"]
    (sides[0] / "file").write_text("a\nb\n")
    assert lines(sides) == []


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x7fELF\0\0", "binary"),
        (b"x" * 2000, "more than the limit of 1.00 KiB"),
        (b"\n" * 1000, None),
    ],
)
def test_what_is_no_short_text_is_said(sides: Sides, data: bytes, why: str | None) -> None:
    (sides[0] / "file").write_text("text")
    (sides[1] / "file").write_bytes(data)
    if why is None:
        assert lines(sides, limit=1024)
        return
    with pytest.raises(NoText, match=why):
        lines(sides, limit=1024)


def test_too_many_lines_are_said_and_a_folder_has_none(sides: Sides) -> None:
    (sides[0] / "file").write_text("\n" * 5001)
    with pytest.raises(NoText, match=r"5,002 lines"):
        lines(sides)
    (sides[0] / "file").unlink()
    (sides[0] / "file").mkdir()
    with pytest.raises(NoText, match="is a folder"):
        lines(sides)


@pytest.mark.parametrize("kind", ["repeated", "shuffled", "alternating"])
def test_text_made_to_cost_time_does_not(sides: Sides, kind: str) -> None:
    chance = random.Random(1)
    for side in sides:
        names = [f"{number % 97}" if kind == "repeated" else f"{number // 2}" for number in range(4999)]
        if kind == "alternating":
            names = [f"{number % 2}{chance.randrange(120)}" for number in range(4999)]
        chance.shuffle(names)
        (side / "file").write_text("\n".join(names))
    begun = time.process_time()
    assert lines(sides)
    assert time.process_time() - begun < 5
