"""The writes of a second night: only changed data. And holes: of a first copy, and of a sparse file that is added later."""

import os
from pathlib import Path

import pytest

from tests.beds import exclusive_bytes, shares, work
from tests.beds.nights import Nights

MIB = 1 << 20
BLOCK = 4096


@pytest.fixture
def tree(nights: Nights) -> Path:
    tree = nights.source / "srv"
    tree.mkdir()
    return tree


def image(path: Path, size: int = 64 * MIB, data: int = 16 * MIB, *, sparse: bool) -> None:
    """An image with data at the start, in the middle and at the end; the rest is zeros: written, or never written."""
    with path.open("wb") as file:
        if sparse:
            file.truncate(size)
        else:
            file.write(bytes(size))
        for at in (0, size // 2, size - data // 4):
            file.seek(at)
            file.write(os.urandom(data // 2 if at == size // 2 else data // 4))


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def allocated(path: Path) -> int:
    """Returns the bytes on disk, after a sync."""
    work("btrfs", "filesystem", "sync", path.parent)
    return int(work("stat", "-c", "%b", path).stdout) * 512


@pytest.mark.parametrize("address", ["web", None], ids=["over the network", "on this machine"])
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
def test_a_second_night_stores_only_what_changed_of_an_image(nights: Nights, tree: Path, address: str | None, sparse: bool) -> None:
    image(tree / "image", sparse=sparse)
    nights.host("web", tree, address=address)
    nights.run("web")
    assert nights.differences("web", tree) == []
    assert allocated(nights.data("web", tree) / "image") == pytest.approx(16 * MIB, abs=4 * BLOCK)

    overwrite(tree / "image", 34 * MIB + 1234, os.urandom(MIB))  # in data; with --sparse blocks beside it are rewritten
    assert nights.run("web")["web"]["new_bytes"] == pytest.approx(MIB, rel=0.03)
    assert nights.differences("web", tree) == []
    assert exclusive_bytes(nights.data("web", tree)) <= MIB + 2 * BLOCK
    assert shares(nights.data("web", tree)).set_shared >= 15 * MIB - 2 * BLOCK

    overwrite(tree / "image", 20 * MIB, os.urandom(MIB // 2))  # in a hole of the backup
    overwrite(tree / "image", 61 * MIB, bytes(MIB // 2))  # data becomes zeros
    nights.run("web")
    assert nights.differences("web", tree) == []
    assert exclusive_bytes(nights.data("web", tree)) <= MIB + 2 * BLOCK


def test_a_night_without_changes_stores_nothing(nights: Nights, tree: Path) -> None:
    image(tree / "image", size=8 * MIB, data=4 * MIB, sparse=True)
    nights.host("web", tree)
    nights.run("web")
    nights.run("web")
    assert exclusive_bytes(nights.data("web", tree)) == 0


def test_a_sparse_file_keeps_its_holes_in_a_first_copy_and_in_a_later_night(nights: Nights, tree: Path) -> None:
    image(tree / "first", sparse=True)
    nights.host("web", tree)
    nights.run("web")
    image(tree / "second", sparse=True)
    (tree / "third").mkdir()
    image(tree / "third" / "only-holes", data=0, sparse=True)
    nights.run("web")
    assert nights.differences("web", tree) == []
    for name in ("first", "second", "third/only-holes"):
        assert allocated(nights.data("web", tree) / name) == pytest.approx(allocated(tree / name), abs=4 * BLOCK), name


def test_a_new_sparse_file_with_links_and_an_odd_name_has_its_holes_in_a_later_night(nights: Nights, tree: Path) -> None:
    nights.host("web", tree)
    (tree / "small").write_text("there is always one file\n")
    nights.run("web")
    odd = os.fsencode(tree) + b"/odd \xff\n\\#123 name"
    image(Path(os.fsdecode(odd)), sparse=True)
    os.link(odd, tree / "linked")
    nights.run("web")
    assert nights.differences("web", tree) == []
    assert allocated(nights.data("web", tree) / "linked") == pytest.approx(16 * MIB, abs=4 * BLOCK)


@pytest.mark.parametrize("inplace", ["large", "never"])
def test_other_ways_of_writing_keep_the_content_and_the_holes_of_new_files(nights: Nights, tree: Path, inplace: str) -> None:
    image(tree / "image", size=16 * MIB, data=4 * MIB, sparse=True)
    (tree / "small").write_bytes(os.urandom(100_000))
    nights.host("web", tree, inplace=inplace)
    nights.run("web")
    overwrite(tree / "image", 0, os.urandom(MIB))
    overwrite(tree / "small", 0, os.urandom(5000))
    image(tree / "new", size=16 * MIB, data=4 * MIB, sparse=True)
    nights.run("web")
    assert nights.differences("web", tree) == []
    assert allocated(nights.data("web", tree) / "new") == pytest.approx(4 * MIB, abs=4 * BLOCK)
    kept = shares(nights.data("web", tree)).set_shared
    assert (kept >= 3 * MIB) == (inplace == "large")


def test_a_large_file_with_inplace_large_is_written_in_place_and_a_small_one_is_not(nights: Nights, tree: Path) -> None:
    (tree / "large").write_bytes(os.urandom(4 * MIB))
    (tree / "small").write_bytes(os.urandom(MIB // 2))
    nights.host("web", tree, inplace="large")
    nights.run("web")
    for name in ("large", "small"):
        overwrite(tree / name, 0, os.urandom(BLOCK))
    nights.run("web")
    assert nights.differences("web", tree) == []
    assert exclusive_bytes(nights.data("web", tree)) == MIB // 2 + BLOCK


def test_a_file_rewritten_in_the_same_second_at_the_same_size_is_fetched(nights: Nights, tree: Path) -> None:
    for name, text in (("first", "one"), ("second", "two")):
        (tree / name).write_text(text)
        work("touch", "-d", "2026-11-20 10:00:00.100000000", tree / name)
    nights.host("web", tree)
    nights.run("web")
    (tree / "first").write_text("eno")
    work("touch", "-d", "2026-11-20 10:00:00.100000001", tree / "first")
    assert nights.run("web")["web"]["new_bytes"] == 3  # and not the other one
    assert (nights.data("web", tree) / "first").read_text() == "eno"
    assert nights.differences("web", tree) == []
