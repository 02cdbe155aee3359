"""Paths of many inodes of a subvolume, looked up together, compared with `find`."""

import os
from collections import defaultdict
from pathlib import Path

import pytest

from btrkeep.pool.subvolume import describe
from btrkeep.treescan.links import InodeNames
from tests.beds.work import work

pytestmark = [pytest.mark.btrfs, pytest.mark.root]


def by_find(top: Path) -> dict[int, list[bytes]]:
    by_name: dict[int, list[bytes]] = defaultdict(list)
    for line in os.fsencode(work("find", top, "-mindepth", "1", "-printf", r"%i %P\n").stdout).splitlines():
        ino, _, path = line.partition(b" ")
        by_name[int(ino)].append(path)
    return {ino: sorted(paths) for ino, paths in by_name.items()}


def filled(top: Path) -> None:
    """Near and far inodes, a fragmented file whose extents fill a buffer, and one whose names do."""
    (top / "data/srv/deep/deeper").mkdir(parents=True)
    for name in ("a", "deep/b", "deep/deeper/c"):
        (top / "data/srv" / name).write_bytes(os.urandom(5000))
    with (top / "data/fragmented").open("wb") as file:
        for number in range(2500):
            os.pwrite(file.fileno(), b"x", number * 8192)
    (top / "data/behind").touch()
    (top / "data/links").mkdir()
    for number in range(900):
        os.link(top / "data/behind", top / "data/links" / f"{number:0200}")
    for number in range(100):
        (top / f"data/between{number}").touch()
    (top / "data/last").touch()


def test_many_inodes_have_the_paths_that_find_tells(shared_btrfs: Path) -> None:
    top = shared_btrfs / "subvolume"
    work("btrfs", "subvolume", "create", top)
    filled(top)
    gone = os.open(top / "data/gone", os.O_CREAT)
    ino_of_gone = os.fstat(gone).st_ino
    os.close(gone)
    (top / "data/gone").unlink()
    work("btrfs", "filesystem", "sync", top)
    truth, subvolume = by_find(top), describe(top)
    assert subvolume
    fd = os.open(shared_btrfs, os.O_RDONLY)
    try:
        names = InodeNames(fd)
        few = [ino for ino, paths in truth.items() if not any(b"between" in path for path in paths)]
        for wanted in (truth, few, few[::2], few[-1:], [*few, ino_of_gone]):
            by_name = names.of_many(subvolume.id, wanted)
            assert {ino: sorted(paths) for ino, paths in by_name.items() if paths} == {
                ino: truth[ino] for ino in wanted if ino in truth
            }
        assert names.of_many(1 << 40, truth) == {}
        assert {ino: sorted(names.of(subvolume.id, ino)) for ino in few} == {ino: truth[ino] for ino in few}
    finally:
        os.close(fd)


def test_snapshots_that_differ_in_a_name_have_each_its_own(shared_btrfs: Path) -> None:
    """Successive requests for the same inodes, where everything is equal, or one name differs, or the folder above."""
    first, alike, renamed, moved, linked = (shared_btrfs / f"s{number}" for number in range(5))
    work("btrfs", "subvolume", "create", first)
    (first / "data/srv/far").mkdir(parents=True)
    for number in range(200):
        (first / f"data/srv/{number:03}").write_bytes(os.urandom(100))
    (first / "data/srv/far/last").touch()
    for path in (alike, renamed, moved, linked):
        work("btrfs", "subvolume", "snapshot", first, path)
    (renamed / "data/srv/050").rename(renamed / "data/srv/5x0")
    (moved / "data/srv").rename(moved / "data/vrs")
    os.link(linked / "data/srv/050", linked / "data/srv/far/other")
    work("btrfs", "filesystem", "sync", shared_btrfs)
    fd = os.open(shared_btrfs, os.O_RDONLY)
    try:
        names = InodeNames(fd)
        few = [(first / "data/srv" / name).stat().st_ino for name in ("049", "050", "051", "far/last")]
        for top in (first, alike, renamed, first, moved, alike, linked, moved, renamed):
            truth, subvolume = by_find(top), describe(top)
            assert subvolume
            for wanted in (few, few[1:2], list(truth)):
                by_name = names.of_many(subvolume.id, wanted)
                assert {ino: sorted(paths) for ino, paths in by_name.items()} == {ino: truth[ino] for ino in wanted}, (top, wanted)
    finally:
        os.close(fd)
