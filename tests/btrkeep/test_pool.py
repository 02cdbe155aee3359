"""Pools on real btrfs: what makes a pool, subvolumes, room, locks; compared with btrfs-progs, findmnt and other processes."""

import errno
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from btrkeep.errors import Exit, PoolUnusable, UsageError
from btrkeep.pool.allocation import read_room
from btrkeep.pool.marker import Pool, create_pool, open_pool
from btrkeep.pool.mounts import mount_options, statfs_type
from btrkeep.pool.subvolume import commit, create, delete, describe, set_read_only, snapshot
from tests.beds import TOP, work
from tests.beds import btrfs as beds
from tests.beds.anyone import readable

NOW = datetime(2026, 11, 20, 22, 0, 3, tzinfo=UTC)
MIB = 1 << 20


def make(path: Path) -> Pool:
    return create_pool(path, rehearsal=False, now=NOW)


def filesystem_of(path: Path) -> str:
    """Returns the UUID of a mounted btrfs, from findmnt."""
    return work("findmnt", "-n", "-o", "UUID", "--target", path).stdout.split()[0]


def shown(path: Path) -> dict[str, str]:
    """Returns the output of `btrfs subvolume show`, by its own titles."""
    lines = work("btrfs", "subvolume", "show", path).stdout.splitlines()
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def listed(path: Path) -> set[str]:
    """Returns the ids of all subvolumes of the filesystem, without the deleted ones that the cleaner has not reached yet."""
    return {line.split()[1] for line in work("btrfs", "subvolume", "list", path).stdout.splitlines()}


# What makes a pool


@pytest.fixture
def pool(shared_btrfs: Path) -> Pool:
    return make(shared_btrfs / "pool")


def test_a_new_pool_is_a_subvolume_that_no_other_user_may_enter(shared_btrfs: Path) -> None:
    made = make(shared_btrfs / "pool")
    assert shown(made.path)["UUID"]
    assert work("stat", "-c", "%a", made.path, made.path / ".btrkeep", made.hosts, made.locks).stdout.split() == ["700"] * 4
    marker = json.loads((made.path / ".btrkeep" / "pool.json").read_text(encoding="utf-8"))
    assert marker == {
        "format": 1, "id": made.id, "filesystem": filesystem_of(made.path), "rehearsal": False, "created": "2026-11-20T22:00:03Z",
    }  # fmt: skip
    assert str(uuid.UUID(made.id)) == made.id


def test_a_pool_opens_as_it_was_made(shared_btrfs: Path) -> None:
    for rehearsal in (False, True):
        made = create_pool(shared_btrfs / f"pool{rehearsal}", rehearsal=rehearsal, now=NOW)
        assert open_pool(made.path) == made
        assert made.rehearsal is rehearsal


def test_an_empty_folder_or_filesystem_becomes_a_pool_where_it_is(shared_btrfs: Path, btrfs_mount: Path) -> None:
    folder = shared_btrfs / "folder"
    folder.mkdir(mode=0o755)
    inode = folder.stat().st_ino
    for path in (folder, btrfs_mount):
        assert open_pool(make(path).path).path == path
        assert path.stat().st_mode & 0o777 == 0o700
    assert folder.stat().st_ino == inode


def test_a_pool_that_is_reached_through_a_symlink_is_that_pool(pool: Pool, shared_btrfs: Path) -> None:
    (shared_btrfs / "link").symlink_to("pool")
    assert open_pool(shared_btrfs / "link").id == pool.id
    (shared_btrfs / "to be").symlink_to("folder")
    (shared_btrfs / "folder").mkdir()
    made = make(shared_btrfs / "to be")
    assert open_pool(shared_btrfs / "folder").id == made.id


def test_what_is_not_empty_is_not_made_a_pool(shared_btrfs: Path) -> None:
    (shared_btrfs / "full" / "something").mkdir(parents=True)
    with pytest.raises(UsageError, match="not empty") as caught:
        make(shared_btrfs / "full")
    assert "pool" in caught.value.hint
    assert [path.name for path in (shared_btrfs / "full").iterdir()] == ["something"]


def test_a_pool_is_not_made_twice(pool: Pool) -> None:
    with pytest.raises(UsageError, match="already"):
        make(pool.path)
    assert open_pool(pool.path) == pool


def test_a_pool_that_was_being_made_when_the_power_went_is_made_again(shared_btrfs: Path) -> None:
    (shared_btrfs / "half" / ".btrkeep" / "locks").mkdir(parents=True)
    (shared_btrfs / "half" / "hosts").mkdir()
    (shared_btrfs / "half" / ".btrkeep" / "pool.json.new").write_text('{"form', encoding="utf-8")
    with pytest.raises(PoolUnusable, match="missing"):
        open_pool(shared_btrfs / "half")
    made = make(shared_btrfs / "half")
    assert open_pool(made.path) == made


def test_on_another_filesystem_than_btrfs_nothing_is_made(tmp_path: Path) -> None:
    assert work("stat", "-f", "-c", "%T", tmp_path).stdout.strip() != "btrfs"
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "new", tmp_path / "folder"):
        with pytest.raises(PoolUnusable, match="not on a btrfs"):
            make(path)
    assert not (tmp_path / "new").exists()
    assert not list((tmp_path / "folder").iterdir())


@pytest.mark.parametrize("path", ["missing/pool", "file", "file/pool"])
def test_a_pool_has_a_folder_to_stand_in(shared_btrfs: Path, path: str) -> None:
    (shared_btrfs / "file").touch()
    with pytest.raises(UsageError, match="not a folder"):
        make(shared_btrfs / path)


# Refused pools


def refused(path: Path, match: str) -> PoolUnusable:
    with pytest.raises(PoolUnusable, match=match) as caught:
        open_pool(path)
    assert caught.value.exit_code is Exit.UNUSABLE
    assert caught.value.hint
    return caught.value


def test_a_pool_that_is_not_mounted_is_no_pool(make_btrfs: Callable[..., Path]) -> None:
    """Otherwise backups would fill the root disk."""
    mount = make_btrfs(size="128M")
    made = make(mount)
    [device] = beds.devices_of(mount)
    beds.unmount(mount)
    refused(mount, "not a pool")
    refused(mount / "missing", "not a pool")
    work("mount", device, mount)
    assert open_pool(mount) == made


def test_a_marker_that_was_copied_to_another_filesystem_makes_no_pool(pool: Pool, tmp_path: Path, btrfs_mount: Path) -> None:
    shutil.copytree(pool.path / ".btrkeep", tmp_path / ".btrkeep")
    refused(tmp_path, "is not on a btrfs, but")
    shutil.copytree(pool.path / ".btrkeep", btrfs_mount / ".btrkeep")
    error = refused(btrfs_mount, filesystem_of(btrfs_mount))
    assert pool.filesystem in error.message
    assert "copied" in error.hint


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'"x"', b"{}", b"\xff\xfe", b'{"format": 1}', b'{"format": "1"}'])
def test_a_damaged_marker_is_to_be_restored_and_not_made_anew(pool: Pool, content: bytes) -> None:
    (pool.path / ".btrkeep" / "pool.json").write_bytes(content)
    assert "restore" in refused(pool.path, "pool.json").hint
    (pool.path / ".btrkeep" / "pool.json").unlink()
    (pool.path / ".btrkeep" / "pool.json").mkdir()
    assert "restore" in refused(pool.path, "pool.json").hint


@pytest.mark.parametrize("others", [True, False], ids=["the same fields", "other fields"])
def test_a_newer_format_is_left_to_the_newer_program(pool: Pool, others: bool) -> None:
    marker = pool.path / ".btrkeep" / "pool.json"
    fields = json.loads(marker.read_text(encoding="utf-8")) if others else {}
    marker.write_text(json.dumps({**fields, "format": 2}), encoding="utf-8")
    assert "format 2" in refused(pool.path, "this program reads 1").message


@pytest.mark.root
def test_who_may_not_read_the_marker_is_told_so(pool: Pool) -> None:
    """As a user without rights, in a separate process."""
    code = f"""
        import pathlib
        from btrkeep.errors import PoolUnusable
        from btrkeep.pool.marker import open_pool
        try:
            open_pool(pathlib.Path({str(pool.path)!r}))
        except PoolUnusable as error:
            print(error.hint)
    """
    words = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", readable().python, "-c", textwrap.dedent(code))
    (pool.path / ".btrkeep" / "pool.json").chmod(0)
    assert work(*words, cwd=readable().top).stdout.startswith("root has no CAP_DAC_READ_SEARCH here")


# Subvolumes


def test_a_subvolume_is_described_as_btrfs_shows_it(shared_btrfs: Path) -> None:
    create(shared_btrfs / "origin")
    (shared_btrfs / "origin" / "file").write_text("content", encoding="utf-8")
    snapshot(shared_btrfs / "origin", shared_btrfs / "copy")
    set_read_only(shared_btrfs / "copy")
    for name in ("origin", "copy"):
        subvolume, by_name = describe(shared_btrfs / name), shown(shared_btrfs / name)
        assert subvolume
        assert (str(subvolume.id), subvolume.uuid, subvolume.parent_uuid or "-", str(subvolume.generation)) == (
            by_name["Subvolume ID"], by_name["UUID"], by_name["Parent UUID"], by_name["Generation"],
        )  # fmt: skip
        assert subvolume.read_only == ("readonly" in by_name["Flags"])
        assert str(subvolume.created) == by_name["Gen at creation"]


def test_a_snapshot_holds_what_its_origin_held_and_leaves_it_alone(shared_btrfs: Path) -> None:
    create(shared_btrfs / "origin")
    (shared_btrfs / "origin" / "file").write_bytes(os.urandom(MIB))
    (shared_btrfs / "origin" / "unwritten").write_text("not yet on disk", encoding="utf-8")
    snapshot(shared_btrfs / "origin", shared_btrfs / "copy")
    assert work("diff", "-r", shared_btrfs / "origin", shared_btrfs / "copy").stdout == ""
    (shared_btrfs / "copy" / "file").write_text("changed", encoding="utf-8")
    assert (shared_btrfs / "origin" / "file").stat().st_size == MIB


CHANGE_AND_ASK = """
import os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
while True:
    os.pwrite(file, b"x", 0)
    os.fstat(file)
"""


@pytest.mark.parametrize("busy", [False, True])
def test_what_changes_in_a_snapshot_is_dated_later_than_what_had_changed_in_its_source(
    make_btrfs: Callable[..., Path], busy: bool
) -> None:
    """The test reads no time before the end, as open() does: since Linux 6.13 a file whose time was read gets a finer time. Other
    programs read times all the time on a busy machine, and no later change may have an earlier time than those.
    """
    top = make_btrfs(size="128M", options="nobarrier")  # a snapshot takes less than a tick
    folders = [top / str(number) for number in range(100)]
    create(folders[0])
    (folders[0] / "file").write_text("0000")
    with ExitStack() as others:
        for number in range(2 if busy else 0):
            words = [sys.executable, "-c", CHANGE_AND_ASK, str(top / f"other{number}")]
            others.callback(others.enter_context(subprocess.Popen(words)).kill)
        for source, folder in itertools.pairwise(folders):
            snapshot(source, folder)
            file = os.open(folder / "file", os.O_WRONLY)
            os.pwrite(file, folder.name.encode(), 0)
            os.close(file)
    times = [(folder / "file").stat().st_ctime_ns for folder in folders]
    assert times == sorted(set(times))


def test_only_the_root_folder_of_a_subvolume_is_one(shared_btrfs: Path) -> None:
    create(shared_btrfs / "sub")
    (shared_btrfs / "sub" / "folder").mkdir()
    (shared_btrfs / "file").touch()
    (shared_btrfs / "link").symlink_to("sub")
    os.mkfifo(shared_btrfs / "fifo")
    for name in ("sub/folder", "file", "link", "fifo", "missing", "file/inner"):
        assert describe(shared_btrfs / name) is None
    assert describe(shared_btrfs / "sub")


@pytest.mark.parametrize("name", ["plain", "a b", "tab\t", "\udcff\udcfe", "x" * 255])
def test_names_are_bytes(shared_btrfs: Path, name: str) -> None:
    create(shared_btrfs / name)
    subvolume = describe(shared_btrfs / name)
    assert subvolume
    assert str(subvolume.id) in listed(shared_btrfs)


def test_what_is_read_only_cannot_be_written_also_not_by_root(shared_btrfs: Path) -> None:
    create(shared_btrfs / "sub")
    set_read_only(shared_btrfs / "sub")
    assert work("btrfs", "property", "get", "-ts", shared_btrfs / "sub", "ro").stdout.strip() == "ro=true"
    with pytest.raises(OSError, match=os.strerror(errno.EROFS)):
        (shared_btrfs / "sub" / "file").touch()
    set_read_only(shared_btrfs / "sub")  # once more does no harm


def test_a_subvolume_is_deleted_by_its_id_even_if_another_one_has_its_name(shared_btrfs: Path) -> None:
    create(shared_btrfs / "name")
    doomed = describe(shared_btrfs / "name")
    assert doomed
    set_read_only(shared_btrfs / "name")
    (shared_btrfs / "name").rename(shared_btrfs / "moved")
    create(shared_btrfs / "name")
    innocent = describe(shared_btrfs / "name")
    assert innocent
    (shared_btrfs / "elsewhere").mkdir()
    with pytest.raises(FileNotFoundError):
        delete(shared_btrfs / "elsewhere", doomed.id)
    delete(shared_btrfs, doomed.id)
    assert not (shared_btrfs / "moved").exists()
    assert describe(shared_btrfs / "name") == innocent
    assert str(doomed.id) not in listed(shared_btrfs)
    with pytest.raises(FileNotFoundError):
        delete(shared_btrfs, doomed.id)


def test_neither_a_name_that_is_taken_nor_a_folder_that_is_missing_is_overwritten(shared_btrfs: Path) -> None:
    create(shared_btrfs / "sub")
    for act in (lambda path: create(path), lambda path: snapshot(shared_btrfs / "sub", path)):
        with pytest.raises(FileExistsError):
            act(shared_btrfs / "sub")
        with pytest.raises(FileNotFoundError):
            act(shared_btrfs / "missing" / "sub")


def test_a_symlink_is_never_followed_to_what_is_made_read_only_or_snapshotted(shared_btrfs: Path) -> None:
    create(shared_btrfs / "victim")
    (shared_btrfs / "link").symlink_to("victim")
    with pytest.raises(OSError, match=os.strerror(errno.ENOTDIR)):
        set_read_only(shared_btrfs / "link")
    with pytest.raises(OSError, match=os.strerror(errno.ENOTDIR)):
        snapshot(shared_btrfs / "link", shared_btrfs / "copy")
    subvolume = describe(shared_btrfs / "victim")
    assert subvolume
    assert not subvolume.read_only


def committed_generation(image: Path) -> int:
    """Returns the generation of the superblock on the disk."""
    return int(re.findall(r"^generation\s+(\d+)$", work("btrfs", "inspect-internal", "dump-super", image).stdout, re.MULTILINE)[0])


def test_a_commit_brings_everything_to_the_disk(make_btrfs: Callable[..., Path]) -> None:
    point = make_btrfs(size="128M", options="commit=300")
    image, marks = point.parent / "disk0", [f"mark-{uuid.uuid4()}" for _ in range(2)]
    create(point / "sub")
    (point / "file").write_text(marks[0] * 1000, encoding="utf-8")
    (point / "sub" / "file").write_text(marks[1] * 1000, encoding="utf-8")
    before = committed_generation(image)  # the kernel may have written the data by itself, but commits nothing for 300 seconds
    commit(point / "sub")  # the whole filesystem, not the subvolume alone
    assert committed_generation(image) > before
    assert all(work("grep", "-a", "-o", mark, image).stdout.count(mark) >= 1000 for mark in marks)


WAITS = """
    import pathlib, subprocess, sys, threading, time
    from btrkeep.pool.subvolume import create, delete, describe, snapshot
    top = pathlib.Path(sys.argv[1])
    call = {"create": lambda: create(top / "new"), "snapshot": lambda: snapshot(top / "origin", top / "new"),
            "delete": lambda: delete(top, int(sys.argv[3]))}[sys.argv[2]]
    waiting = threading.Thread(target=call)
    waiting.start()
    time.sleep(0.2)  # in which the other thread has come to its call
    print("still waits" if waiting.is_alive() else "did not wait")
    subprocess.run(["fsfreeze", "--unfreeze", sys.argv[1]], check=True)
    waiting.join()
"""


@pytest.mark.parametrize("subject", ["create", "snapshot", "delete"])
def test_who_waits_for_the_filesystem_does_not_keep_other_threads_waiting(btrfs_mount: Path, subject: str) -> None:
    create(btrfs_mount / "origin")
    origin = describe(btrfs_mount / "origin")
    assert origin is not None
    work("fsfreeze", "--freeze", btrfs_mount)
    thaw = threading.Timer(100, subprocess.run, [("fsfreeze", "--unfreeze", btrfs_mount)], {"capture_output": True})
    thaw.start()  # in case the other process cannot: not even a signal ends a process that waits for a frozen filesystem
    begun = time.monotonic()
    done = work(sys.executable, "-c", textwrap.dedent(WAITS), btrfs_mount, subject, str(origin.id), cwd=TOP, check=False)
    thaw.cancel()
    assert time.monotonic() - begun < 90
    assert (done.stdout, done.stderr, done.returncode) == ("still waits\n", "", 0)
    assert (describe(btrfs_mount / "new") is not None) == (subject != "delete")
    assert (describe(btrfs_mount / "origin") is None) == (subject == "delete")


# Room


def usage(point: Path) -> dict[str, int]:
    """Returns the overall numbers of `btrfs filesystem usage -b`, and size minus used for each kind of block group."""
    output = work("btrfs", "filesystem", "usage", "-b", point).stdout
    answer = {key.strip(): int(number) for key, number in re.findall(r"^    ([^:\n]+):\s+(\d+)", output, re.MULTILINE)}
    for kind, size, used in re.findall(r"^(\w+),\w+: Size:(\d+), Used:(\d+)", output, re.MULTILINE):
        answer[kind] = answer.get(kind, 0) + int(size) - int(used)
    return answer


PROFILES: dict[str, dict[str, Any]] = {
    "single": {"size": "2G", "mkfs": ("-dsingle", "-mdup")},
    "two devices": {"size": "1G", "devices": 2, "mkfs": ("-draid1", "-mraid1")},
    "mixed": {"size": "256M", "mkfs": ("--mixed",)},
}


@pytest.mark.parametrize("profile", PROFILES)
def test_the_room_is_what_btrfs_filesystem_usage_counts(make_btrfs: Callable[..., Path], profile: str) -> None:
    point = make_btrfs(**PROFILES[profile])
    for size in (0, 30 * MIB):
        (point / "file").write_bytes(os.urandom(size))
        commit(point)
        room, by_name = read_room(point), usage(point)
        copies = 2 if profile == "two devices" else 1
        data = by_name.get("Data", 0) + by_name.get("Data+Metadata", 0)
        slack = by_name["Device size"] // 20  # the kernel's reserve for metadata, and parts too small for a block group
        assert abs(room.total - by_name["Device size"] / copies) <= slack
        assert abs(room.available - by_name["Free (estimated)"]) <= slack
        if profile != "mixed":
            assert room.free == data
            assert abs(room.unallocated - by_name["Device unallocated"] / copies) <= slack
            assert abs(room.metadata_free - (by_name["Metadata"] - by_name["Global reserve"])) <= MIB
    counted = os.statvfs(point)
    assert room.available == counted.f_bavail * counted.f_frsize


def test_the_room_shrinks_by_what_is_written_and_comes_back(btrfs_mount: Path) -> None:
    before = read_room(btrfs_mount)
    (btrfs_mount / "file").write_bytes(os.urandom(200 * MIB))
    commit(btrfs_mount)
    during = read_room(btrfs_mount)
    assert 200 * MIB <= before.available - during.available < 230 * MIB
    assert during.total == before.total
    (btrfs_mount / "file").unlink()
    commit(btrfs_mount)
    assert abs(read_room(btrfs_mount).available - before.available) < 30 * MIB


def test_the_room_is_that_of_the_filesystem_wherever_on_it_one_asks(shared_btrfs: Path) -> None:
    create(shared_btrfs / "sub")
    (shared_btrfs / "link").symlink_to("sub")
    assert read_room(shared_btrfs / "sub").total == read_room(shared_btrfs).total == read_room(shared_btrfs / "link").total


# How it is mounted


def test_mount_options_are_those_that_findmnt_sees(make_btrfs: Callable[..., Path]) -> None:
    point = make_btrfs(size="128M", options="noatime,compress=zstd:3")
    (point / "inner").mkdir()
    create(point / "sub")
    for remount in ("nossd", "ssd", "ssd_spread", "ro", "rw"):
        beds.remount(point, remount)
        lines = set(work("findmnt", "-n", "-o", "OPTIONS", "--target", point).stdout.strip().split(","))
        for path in (point, point / "inner", point / "sub"):
            assert lines <= mount_options(path)
        assert ("ro" in mount_options(point)) is (remount == "ro")
        assert statfs_type(point / "sub") == "btrfs"


def test_the_mount_is_the_nearest_above_and_the_last_one_put_there(make_btrfs: Callable[..., Path], tmp_path: Path) -> None:
    point = make_btrfs(size="128M")
    inner = point / "with blank\tand \\"
    inner.mkdir()
    assert statfs_type(inner) == "btrfs"
    work("mount", "-t", "tmpfs", "-o", "size=1m,noexec", "bed", inner)
    try:
        assert statfs_type(inner) == "tmpfs"
        assert {"noexec", "size=1024k"} <= mount_options(inner)
        (inner / "deeper").mkdir()
        assert statfs_type(inner / "deeper") == "tmpfs"
        work("mount", "-t", "tmpfs", "-o", "size=2m", "bed", inner)
        hidden = mount_options(inner)
        work("umount", inner)
        assert "size=2048k" in hidden
        assert "noexec" not in hidden
        assert statfs_type(point) == "btrfs"
        (tmp_path / "link").symlink_to(point)
        assert statfs_type(tmp_path / "link") == "btrfs"
        assert statfs_type(tmp_path / "link" / inner.name) == "tmpfs"
    finally:
        work("umount", inner)
    assert statfs_type(inner) == "btrfs"


def test_a_folder_whose_name_only_begins_like_a_mount_point_is_not_on_it(make_btrfs: Callable[..., Path]) -> None:
    point = make_btrfs(size="128M")
    beside = point.with_name(point.name + "-beside")
    beside.mkdir()
    assert statfs_type(beside) != "btrfs" or work("stat", "-f", "-c", "%T", beside).stdout.strip() == "btrfs"


def test_the_room_is_without_what_waits_in_memory_or_for_a_commit(btrfs_mount: Path) -> None:
    before = read_room(btrfs_mount).available
    (btrfs_mount / "file").write_bytes(os.urandom(64 * MIB))
    with (btrfs_mount / "other").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 64 * MIB)
    assert before - read_room(btrfs_mount).available >= 128 * MIB
    commit(btrfs_mount)
    counted = os.statvfs(btrfs_mount)
    assert read_room(btrfs_mount).available == counted.f_bavail * counted.f_frsize
