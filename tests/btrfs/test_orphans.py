"""Deleted subvolumes that wait, and the one being dropped; compared with btrfs-progs, which reads the device."""

import errno
import importlib
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import btrfs
import pytest
from btrfs import ctree

from btrkeep.pool.orphans import (
    Drop,
    Key,
    branches,
    dead_roots,
    key_text,
    orphan_items,
    parse_node,
    passed,
    queued,
    wait_for,
)
from tests.beds import cleaner, work
from tests.beds.btrfs import devices_of

MODULE = importlib.import_module("btrkeep.pool.orphans")
pytestmark = [pytest.mark.btrfs, pytest.mark.root]


def orphans(path: Path) -> list[int]:
    return [dead.id for dead in dead_roots(path)]


def dropping(path: Path) -> Drop | None:
    return next((dead.drop for dead in dead_roots(path) if dead.drop), None)


@pytest.fixture
def still(make_btrfs: Callable[..., Path]) -> Iterator[cleaner.Still]:
    """Makes filesystems on which nothing wakes the cleaner unless a test does."""
    filesystems = cleaner.Still(make_btrfs)
    yield filesystems
    filesystems.settle()


def is_dropped(point: Path, subvolume_id: int) -> bool:
    """Returns True if it is dropped within 20 seconds. One commit may wake the cleaner a moment too early, so there are more."""
    deadline = time.monotonic() + 60
    while not (gone := wait_for(point, subvolume_id, 0.3)) and time.monotonic() < deadline:
        work("btrfs", "filesystem", "sync", point)
    return gone


def test_a_deleted_subvolume_is_an_orphan_at_once_and_btrfs_progs_agree_after_the_commit(still: cleaner.Still) -> None:
    point = still()
    snapshots = cleaner.diverged(point, 4, files=40)
    ids = cleaner.ids_of(snapshots)
    work("btrfs", "filesystem", "sync", point)
    assert orphans(point) == []
    assert dropping(point) is None
    cleaner.delete(snapshots[1:2])
    assert orphans(snapshots[0] / "file0") == ids[1:2]  # any path on the filesystem will do
    with cleaner.held(snapshots[2:]):
        assert orphans(point)[-2:] == ids[2:]
        assert is_dropped(point, ids[1])
        work("btrfs", "filesystem", "sync", point)
        assert orphans(point) == ids[2:] == cleaner.listed_as_deleted(point) == cleaner.root_tree(point).orphans
    assert cleaner.is_gone(point)
    assert orphans(point) == []


def test_a_drop_stopped_in_its_middle_has_the_key_and_level_that_are_on_the_disk(still: cleaner.Still) -> None:
    point = still()
    cleaner.delete(cleaner.diverged(point, 12, files=12_000, changes=300))
    with cleaner.stopped(point) as truth:
        drop = dropping(point)
        assert orphans(point) == truth.orphans == cleaner.listed_as_deleted(point)
        assert drop is not None
        assert drop.drop_progress is not None
        assert truth.drops == {drop.root: (key_text(drop.drop_progress), drop.level)}
        in_hand = {dead.id: dead for dead in dead_roots(point)}[drop.root]
        keys = branches(point, in_hand)
        assert keys is not None
        assert [key_text(key) for key in keys] == cleaner.node_keys(point, truth.nodes[drop.root])
        with pytest.raises(FileNotFoundError), btrfs.FileSystem(str(point)) as filesystem:  # why the node is read by ourselves
            list(btrfs.ioctl.search_v2(filesystem.fd, drop.root))
    assert cleaner.is_gone(point)


@pytest.mark.alone  # the kernel must not finish before it is observed
def test_the_queue_shrinks_to_nothing_and_a_progress_only_grows(still: cleaner.Still) -> None:
    point = still(size="3G")
    snapshots = cleaner.diverged(point, 50, files=8000, changes=250)
    ids = cleaner.ids_of(snapshots)
    cleaner.delete(snapshots)
    assert orphans(point) == ids
    lengths, progress = [len(ids)], dict[int, Key]()
    work("btrfs", "filesystem", "sync", point)
    while waiting := orphans(point):
        listed = cleaner.listed_as_deleted(point)
        after = orphans(point)
        assert set(after) <= set(listed) <= set(waiting) <= set(ids)
        if lengths[-1] == len(after):
            work("btrfs", "filesystem", "sync", point)
        lengths.append(len(after))
        if (drop := dropping(point)) and drop.drop_progress:
            assert progress.get(drop.root, (0, 0, 0)) <= drop.drop_progress
            progress[drop.root] = drop.drop_progress
    assert lengths == sorted(lengths, reverse=True)
    assert len(set(lengths)) > 5, "it was over before it was looked at"
    assert len(progress) > 3
    work("btrfs", "filesystem", "sync", point)
    assert cleaner.root_tree(point).orphans == []


def test_many_orphans_are_read_over_several_buffers(still: cleaner.Still, monkeypatch: pytest.MonkeyPatch) -> None:
    point = still()
    paths = [point / f"s{number}" for number in range(150)]
    for path in paths:
        work("btrfs", "subvolume", "create", path)
    with cleaner.held(paths):
        truth = cleaner.root_tree(point).orphans
        assert len(truth) == 150
        assert orphans(point) == truth
        monkeypatch.setattr(MODULE, "_MANY_ITEMS", 32 * 7)  # seven orphans fit
        assert orphans(point) == truth


def test_an_orphan_without_a_root_of_its_own_is_no_subvolume(still: cleaner.Still, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inodes of the free space cache v1 are orphans in the root tree for a millisecond: too short to observe reliably."""
    point = still()
    [held] = cleaner.diverged(point, 1, files=4)
    [number] = cleaner.ids_of([held])
    with (held / "file0").open():
        cleaner.delete([held])
        assert (orphans(point), orphan_items(point)) == ([number], [number])
        search = MODULE.search_v2

        def with_another(fd: int, tree: int, first: ctree.Key, *words: Any, **more: Any) -> Iterator[tuple[Any, Any]]:
            yield from search(fd, tree, first, *words, **more)
            if first.type == ctree.ORPHAN_ITEM_KEY:
                yield SimpleNamespace(offset=number + 1000), b""

        monkeypatch.setattr(MODULE, "search_v2", with_another)
        assert (orphans(point), orphan_items(point)) == ([number], [number, number + 1000])


def test_one_with_an_open_file_waits_outside_of_the_cleaners_list(still: cleaner.Still) -> None:
    point = still()
    held, free = cleaner.diverged(point, 2, files=40)
    ids = cleaner.ids_of([held, free])
    with (held / "file0").open():
        cleaner.delete([held, free])
        assert orphans(point) == ids
        work("btrfs", "filesystem", "sync", point)
        assert is_dropped(point, ids[1])
        assert not wait_for(point, ids[0], 0.5)
        assert cleaner.listed_as_deleted(point) == ids[:1]
        assert queued(point) in (0, None)  # None: the kernel has no such wait
    work("btrfs", "filesystem", "sync", point)
    assert is_dropped(point, ids[0])


def test_the_wait_ends_in_time_and_at_once_for_what_never_was(still: cleaner.Still) -> None:
    point = still()
    snapshots = cleaner.diverged(point, 1, files=40)
    cleaner.delete(snapshots)
    [orphan] = orphans(point)
    begun = time.monotonic()
    assert not wait_for(point, orphan, 0.3)
    assert 0.3 <= time.monotonic() - begun < 20
    assert wait_for(point, 99_999, 100)
    assert time.monotonic() - begun < 50


def test_the_kernel_is_asked_for_its_own_wait(btrfs_mount: Path, tmp_path: Path) -> None:
    release = re.match(r"(\d+)\.(\d+)", platform.release())
    assert release is not None
    assert (queued(btrfs_mount) is not None) == ((int(release[1]), int(release[2])) >= (6, 13))
    assert queued(tmp_path) is None  # an ioctl that is not there, as on older kernels


def test_what_the_cleaner_has_not_begun_is_all_in_its_list(still: cleaner.Still) -> None:
    point = still()
    if queued(point) is None:
        pytest.skip("the kernel has no BTRFS_IOC_SUBVOL_SYNC_WAIT")
    cleaner.delete(cleaner.diverged(point, 3, files=40))
    assert queued(point) == 3 == len(orphans(point))


def test_without_the_capability_nothing_is_told(btrfs_mount: Path) -> None:
    code = f"from btrkeep.pool.orphans import dead_roots; from pathlib import Path; dead_roots(Path({str(btrfs_mount)!r}))"
    done = work(
        "setpriv", "--bounding-set=-sys_admin", sys.executable, "-c", code, check=False, env={"PYTHONPATH": str(Path.cwd())}
    )
    assert "PermissionError" in done.stderr


def test_what_is_no_btrfs_has_no_orphans(tmp_path: Path) -> None:
    with pytest.raises(OSError, check=lambda error: error.errno == errno.ENOTTY):
        orphans(tmp_path)


@pytest.mark.parametrize(
    ("profile", "devices"), [("single", 1), ("dup", 1), ("raid1", 2), ("raid0", 3), ("raid10", 4), ("raid1c3", 3)]
)
def test_the_root_node_is_found_wherever_its_profile_puts_it(still: cleaner.Still, profile: str, devices: int) -> None:
    point = still(size="512M", devices=devices, mkfs=("-m", profile, "-d", "single"))
    snapshots = cleaner.diverged(point, 6, files=600, changes=30)
    with cleaner.held(snapshots):
        truth, result = cleaner.root_tree(point), dead_roots(point)
        assert len(result) == 6
        for dead in result:
            keys = branches(point, dead)
            assert keys is not None
            assert [key_text(key) for key in keys] == cleaner.node_keys(point, truth.nodes[dead.id])


def test_parity_and_single_leaves_have_no_known_branches(still: cleaner.Still) -> None:
    point = still(size="512M", devices=3, mkfs=("-m", "raid5", "-d", "single"))
    snapshots = [*cleaner.diverged(point, 1, files=600), *cleaner.diverged(point, 1, files=3)]
    with cleaner.held(snapshots):
        large, small = dead_roots(point)
        assert (large.height, small.height) == (1, 0)
        assert branches(point, large) is None
        assert branches(point, small) is None


def node_of(point: Path, bytenr: int) -> bytes:
    """The node at that address, read from the image by where btrfs-map-logical finds it."""
    output = work("btrfs-map-logical", "-l", str(bytenr), devices_of(point)[0]).stdout
    match = re.search(r"physical (\d+) device", output)
    assert match is not None, output
    with (point.parent / "disk0").open("rb") as image:
        return os.pread(image.fileno(), 16384, int(match[1]))


def test_a_node_of_another_tree_is_not_believed(still: cleaner.Still) -> None:
    point = still()
    with cleaner.held(cleaner.diverged(point, 1, files=600)):
        [dead] = dead_roots(point)
        node = node_of(point, dead.bytenr)
        keys = parse_node(node, dead)
        assert keys == branches(point, dead)
    changed = {48: "bytenr", 80: "generation", 88: "owner", 100: "level"}
    for offset in changed:
        other = bytearray(node)
        other[offset] ^= 0x40
        assert parse_node(bytes(other), dead) is None, changed[offset]
    assert parse_node(node[:500], dead) is None
    assert parse_node(b"", dead) is None


def test_branches_behind_a_key_are_those_before_the_one_it_lies_in() -> None:
    keys = [(256, 1, 0), (300, 108, 0), (300, 108, 4096), (400, 1, 0)]
    asked = [(256, 1, 0), (256, 12, 5), (300, 108, 0), (300, 108, 4095), (300, 108, 4096)]
    assert [passed(keys, key) for key in asked] == [0, 0, 1, 1, 2]
    assert passed(keys, (500, 1, 0)) == 3
    assert passed(keys, (1, 1, 0)) == 0
