"""`backupd restore` that is stopped, killed, fills the disk or gets a forbidden destination."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from backupd.files import plain_files, spool, writing
from backupd.files.destination import Destination, PlaceOccupied
from backupd.files.new_folders import STAGING, Staging, make_folder
from backupd.files.restore_types import RestoreProgress, RestoreRequest
from backupd.files.to_folder import LocalRestore
from backupd.files.tree import Tree
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import OperatorError
from btrkeep.process.progress import Cancelled
from tests.beds import differences, manifest, work
from tests.beds.anyone import NOBODY
from tests.beds.everything import write
from tests.beds.faults import failing_disk
from tests.beds.nights import Nights
from tests.beds.watch import wait_for
from tests.beds.within import Within, restore
from tests.beds.work import error_and_hint

pytestmark = [pytest.mark.root, pytest.mark.btrfs]


@pytest.fixture
def nights(shared_btrfs: Path) -> Nights:
    return Within(shared_btrfs)


def big(nights: Nights, files: int = 40) -> Path:
    top = nights.source / "big"
    for number in range(files):
        write(top / f"folder{number % 4}" / f"file{number}").write_bytes(os.urandom(1_000_000))
    nights.host("web1", top)
    nights.run("web1")
    return top


def names_in(folder: Path, pattern: str = "*") -> int:
    """Returns the number of names below a folder that match, by `find`, which ignores files that disappear while it runs."""
    return work("find", folder, "-mindepth", "1", "-name", pattern, check=False).stdout.count("\n")


def test_killed_in_the_middle_it_goes_on_and_nothing_is_left_behind(
    nights: Nights, tmp_path: Path, backupd_running: Callable[..., "subprocess.Popen[str]"]
) -> None:
    """Killed three times, at any moment."""
    top, out = big(nights), tmp_path / "out"
    words = ("--config", nights.config, "restore", "web1", top, "--to", out)
    for _ in range(3):
        process = backupd_running(*words)
        before = names_in(out)
        while process.poll() is None and names_in(out) < before + 4:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        for path in out.rglob("file*"):  # a file with its final name is complete
            assert path.stat().st_size == 1_000_000
    nights.backupd(*words[2:])
    assert differences(manifest(top), manifest(out / "big")) == []


def test_a_leftover_of_a_killed_run_is_taken_away_and_a_backed_up_name_like_it_stays(nights: Nights) -> None:
    top, out = nights.source / "www", nights.top / "out"
    write(top / ".btrkeep-restore-1234", "of the host")
    nights.host("web1", top)
    nights.run("web1")
    write(out / "www" / ".btrkeep-restore-5678", "half")
    restore(nights, "web1", top, "--to", out)
    assert {path.name for path in (out / "www").iterdir()} == {".btrkeep-restore-1234"}
    assert restore(nights, "web1", top, "--to", out)["new"]["count"] == 0


def test_a_leftover_beside_the_restored_paths_is_taken_away_but_not_an_unfinished_tar(nights: Nights) -> None:
    top, out = nights.source / ".btrkeep-restore-1234", nights.top / "out"
    write(top / "file", "of the host")
    write(nights.source / "image", "of the host too")
    nights.host("web1", top, nights.source / "image")
    nights.run("web1")
    leftover, tar = out / ".btrkeep-restore-5678", out / ".btrkeep-tar-5678"
    write(tar, "another command writes it")
    for paths in ((top, nights.source / "image"), (nights.source / "image",)):
        write(leftover, "half")
        restore(nights, "web1", *paths, "--to", out)
        assert not leftover.exists()
    assert {path.name for path in out.iterdir()} == {".btrkeep-restore-1234", "image", tar.name}


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 143)])
def test_a_signal_ends_it_well(
    nights: Nights, tmp_path: Path, number: int, status: int, backupd_running: Callable[..., "subprocess.Popen[str]"]
) -> None:
    top, out = big(nights), tmp_path / "out"
    process = backupd_running("--config", nights.config, "restore", "web1", top, "--to", out)
    while not names_in(out, "file*"):
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(number)
    _, output = process.communicate(timeout=60)
    assert process.returncode == status
    assert "the same command continues" in output
    assert not list(out.rglob(".btrkeep-restore-*"))


def test_a_full_filesystem_ends_it_with_whole_files_only_and_it_can_go_on(nights: Nights, tmp_path: Path) -> None:
    """A filesystem that reports free space and then has none: another program filled it."""
    top, point = big(nights), tmp_path / "small"
    point.mkdir()
    work("mount", "-t", "tmpfs", "-o", "size=60M", "tmpfs", point)
    try:
        with Tree(nights.backup("web1")) as tree:
            request = RestoreRequest("web1", "", (os.fsencode(top),), str(point / "out"))
            doing = LocalRestore(tree, request, reflinks=False)
            preview = doing.preview()
            (point / "filler").write_bytes(bytes(45_000_000))
            with pytest.raises(OperatorError, match="No space left"):
                doing.run(preview)
            assert {path.stat().st_size for path in (point / "out").rglob("*") if path.is_file()} == {1_000_000}
            (point / "filler").unlink()
            again = LocalRestore(tree, request, reflinks=False)
            done = again.run(again.preview())
        assert done.counts["same"].number > 3
        assert differences(manifest(top), manifest(point / "out" / "big")) == []
    finally:
        work("umount", point)


@pytest.mark.parametrize("of_file", [True, False])
def test_what_a_killed_restore_left_takes_no_space_from_the_next_one(nights: Nights, tmp_path: Path, of_file: bool) -> None:
    top, point = nights.source / "images", tmp_path / "small"
    write(top / "image").write_bytes(os.urandom(12_000_000))
    nights.host("web1", top)
    nights.run("web1")
    point.mkdir()
    work("mount", "-t", "tmpfs", "-o", "size=20M", "tmpfs", point)
    try:
        out = point / "out"
        write((out if of_file else out / "images") / ".btrkeep-restore-5678").write_bytes(bytes(10_000_000))
        restore(nights, "web1", top / "image" if of_file else top, "--to", out)
        assert {path.name for path in out.rglob("*")} - {"images"} == {"image"}
    finally:
        work("umount", point)


def test_a_full_filesystem_is_reported_with_the_number_of_all_names_that_were_restored(nights: Nights, tmp_path: Path) -> None:
    """Several processes have restored some of them at that moment. There is room for bytes, so the restore begins."""
    top, point = nights.source / "many", tmp_path / "small"
    for number in range(1200):
        write(top / f"folder{number % 20}" / f"file{number}", "content")
    nights.host("web1", top)
    nights.run("web1")
    point.mkdir()
    work("mount", "-t", "tmpfs", "-o", "size=60M,nr_inodes=800", "tmpfs", point)
    try:
        error = Nights.backupd(nights, "restore", "web1", top, "--to", point / "out", check=False).stderr
        restored = names_in(point / "out")
        assert restored > 700
        assert f"No space left on device; {restored} names had been restored" in error
    finally:
        work("umount", point)


def test_the_pool_beneath_the_destination_is_never_written_to_nor_dressed(nights: Nights) -> None:
    """A backup of this machine, restored to its original place: that contains the pool's mount point."""
    write(nights.source / "pool" / "hosts" / "web1" / "notes.json", "{}")
    (nights.source / "empty" / "pool").mkdir(parents=True)
    write(nights.source / "empty" / "beside")
    nights.host("web1", nights.source)
    nights.run("web1")
    before = manifest(nights.pool / "hosts")
    mode = nights.pool.stat().st_mode
    output = restore(nights, "web1", nights.source / "pool", "--to", nights.top, "--overwrite=all", status=1)["stderr"]
    assert "pool/hosts: it is in the pool" in output
    done = restore(
        nights, "web1", nights.source / "empty" / "pool", nights.source / "empty" / "beside", "--to", nights.top, "--overwrite=all"
    )
    assert [sample["place"] for sample in done["kept"]["samples"]] == [str(nights.pool)]
    assert (nights.top / "beside").exists()
    assert (nights.pool.stat().st_mode, differences(before, manifest(nights.pool / "hosts"))) == (mode, [])


def test_the_comparison_of_one_large_file_says_how_far_it_is_and_can_be_stopped(nights: Nights, tmp_path: Path) -> None:
    write(nights.source / "large").write_bytes(os.urandom(6_000_000))
    nights.host("web1", nights.source)
    nights.run("web1")
    sizes: list[int] = []

    def stop(progress: RestoreProgress) -> None:
        if progress.phase == "comparing" and progress.size:
            sizes.append(progress.size)
            if len(sizes) > 2:
                raise Cancelled

    with Tree(nights.backup("web1")) as tree:
        request = RestoreRequest("web1", "", (os.fsencode(nights.source / "large"),), str(tmp_path / "out"))
        with pytest.raises(Cancelled):
            LocalRestore(tree, request, reflinks=False, tell=stop).run(LocalRestore(tree, request, reflinks=False).preview())
    assert sizes == [1 << 20, 2 << 20, 3 << 20]
    assert (tmp_path / "out" / "large").stat().st_size == 6_000_000


def test_folders_that_a_full_filesystem_has_in_part_are_counted_too(nights: Nights, tmp_path: Path) -> None:
    top, point = nights.source / "tree", tmp_path / "small"
    for number in range(400):
        write(top / f"{number // 2}" / f"file{number % 2}", "t" * 5000)
    nights.host("web1", top)
    nights.run("web1")
    point.mkdir()
    work("mount", "-t", "tmpfs", "-o", "size=1250000,mode=700", "tmpfs", point)
    try:
        with Tree(nights.backup("web1")) as tree:
            doing = LocalRestore(tree, RestoreRequest("web1", "", (os.fsencode(top),), str(point)), reflinks=False)
            preview = doing.preview()
            preview.free = None  # otherwise it does not start
            with pytest.raises(OperatorError) as ended:
                doing.run(preview)
        assert f"No space left on device; {len(list(point.rglob('*')))} names had been restored" in str(ended.value)
    finally:
        work("umount", point)


def _no_space(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_leftover_that_cannot_be_deleted_is_reported_and_the_next_restore_deletes_it(
    nights: Nights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a btrfs that has no space for the deletion."""
    top, out = nights.source / "www", tmp_path / "out"
    write(top / "file", "text")
    nights.host("web1", top)
    nights.run("web1")
    leftovers = [write(folder / ".btrkeep-restore-5678", "half") for folder in (out, out / "www")]
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", _no_space)
        done = restore(nights, "web1", top, "--to", out, status=1)
    why = "could not delete this temporary file of the restore: No space left on device"
    assert done["problems"]["samples"] == [{"place": str(path), "why": why} for path in leftovers]
    assert (out / "www" / "file").read_text() == "text"
    assert restore(nights, "web1", top, "--to", out)["good"]
    assert not any(path.exists() for path in leftovers)


@pytest.mark.parametrize("is_nameless", [True, False])
def test_an_unfinished_file_that_cannot_be_deleted_is_reported(
    nights: Nights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_nameless: bool
) -> None:
    """In a group and alone, if another file appears in its place."""
    top, out = nights.source / "www", tmp_path / "out"
    write(top / "small", "text")
    write(top / "large").write_bytes(bytes(3_000_000))
    (top / "link").symlink_to("small")
    nights.host("web1", top)
    nights.run("web1")
    (out / "www").mkdir(parents=True)  # so there is no staging folder
    opened = os.open

    def named(path: Any, flags: int, *words: Any, **keys: Any) -> int:
        if not is_nameless and flags & os.O_TMPFILE == os.O_TMPFILE and path != spool.folder():  # otherwise its files would stay
            raise OSError(errno.EOPNOTSUPP, "")
        return opened(path, flags, *words, **keys)

    def taken(*_: Any) -> None:
        raise PlaceOccupied(errno.EEXIST, "a file has appeared there")

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", _no_space)
        patch.setattr(os, "open", named)
        patch.setattr(plain_files, "rename_to_nothing", taken)
        patch.setattr(writing, "put", taken)
        done = restore(nights, "web1", top, "--to", out, status=1)
    left = {str(path) for path in (out / "www").glob(".btrkeep-restore-*")}
    assert len(left) == (3 if is_nameless else 5)  # a symlink and a large file always have a name; twice: in a group, by itself
    assert {problem["place"] for problem in done["problems"]["samples"] if "No space left" in problem["why"]} == left
    assert restore(nights, "web1", top, "--to", out)["good"]
    assert differences(manifest(top), manifest(out / "www")) == []


def test_a_folder_that_is_not_made_and_cannot_be_deleted_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "source" / "folder" / "inside")
    write(tmp_path / "to" / "folder", "theirs")
    to, undeleted = os.open(tmp_path / "to", os.O_RDONLY), dict[bytes, str]()
    with ClosingFd(to), Tree.of_folder(tmp_path / "source") as tree, tree.folder(b"/") as source:
        monkeypatch.setattr(os, "rmdir", _no_space)
        assert make_folder(source, b"folder", tree.stat(b"/folder"), to, undeleted, privileged=True) is None
    (left,) = {path.name for path in (tmp_path / "to").iterdir()} - {"folder"}
    assert undeleted == {os.fsencode(left): "No space left on device"}


def test_an_unfinished_tar_that_cannot_be_deleted_is_named(nights: Nights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top, point = big(nights, 4), tmp_path / "small"
    point.mkdir()
    work("mount", "-t", "tmpfs", "-o", "size=2M", "tmpfs", point)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", _no_space)
            error = nights.backupd("restore", "web1", top, "--tar", point / "big.tar", check=False).stderr
        (left,) = point.iterdir()
        assert f"and start again; delete the temporary file {left.name} beside the tar: btrkeep could not delete it" in error
    finally:
        work("umount", point)


def test_without_root_folders_of_any_mode_leave_nothing_in_the_staging_folder(public_folder: Path) -> None:
    source, to = public_folder / "source", public_folder / "to"
    for folder, files in (("empty", 0), ("full", 2)):
        (source / folder).mkdir(parents=True)
        for number in range(files):
            write(source / folder / f"file{number}", "text")
        (source / folder).chmod(0o500)
    for name, mode in (("77-1", 0), ("77-2", 0o500), ("77-3", 0)):
        write(to / os.fsdecode(STAGING) / name / "unfinished")
        if name == "77-3":
            (to / os.fsdecode(STAGING) / name / "unfinished").unlink()
        (to / os.fsdecode(STAGING) / name).chmod(mode)
    (to / os.fsdecode(STAGING)).chmod(0o700)
    work("chown", "-R", f"{NOBODY}:{NOBODY}", public_folder)
    with _as_nobody():
        with Destination(to, make=False) as destination, Staging(destination, ()) as staging:
            assert staging.fd is not None
        assert not (to / os.fsdecode(STAGING)).exists()
        with Tree.of_folder(source) as tree:
            request = RestoreRequest("web1", "", (b"/",), str(to))
            done = LocalRestore(tree, request, reflinks=False).run(LocalRestore(tree, request, reflinks=False).preview())
    assert [place for place, _ in done.problems.samples if place == os.fsencode(to / os.fsdecode(STAGING))] == []
    assert not (to / os.fsdecode(STAGING)).exists()


def test_without_root_a_folder_that_its_owner_may_not_write_to_gets_its_files(public_folder: Path) -> None:
    source, to = public_folder / "source", public_folder / "to"
    for folder in ("closed/deep", "closed/deep/closed too", "open/closed", "empty"):
        (source / folder).mkdir(parents=True, exist_ok=True)
        for name in ("first", "second") if folder != "empty" else ():
            write(source / folder / name, "text")
    (source / "closed/link").symlink_to("first")
    for folder in ("closed", "closed/deep", "closed/deep/closed too", "open/closed", "empty"):
        (source / folder).chmod(0o555)
    work("chown", "-R", f"{NOBODY}:{NOBODY}", public_folder)
    to.mkdir()
    os.chown(to, NOBODY, NOBODY)
    with _as_nobody(), Tree.of_folder(source) as tree:
        request = RestoreRequest("web1", "", (b"/",), str(to))
        done = LocalRestore(tree, request, reflinks=False).run(LocalRestore(tree, request, reflinks=False).preview())
    assert (done.problems.number, done.differences.number) == (0, 0), (done.problems.samples, done.differences.samples)
    within = [line for line in differences(manifest(source), manifest(to)) if not line.startswith("b'':")]
    assert within == []


@contextmanager
def _as_nobody() -> Iterator[None]:
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def test_a_host_that_hangs_amid_the_files_is_not_waited_for_without_end(nights: Nights) -> None:
    """Its rsync gets the first files and nothing further. Then the same command restores the rest."""
    top = big(nights, 8)
    before = manifest(top)
    shutil.rmtree(top / "folder0")
    hangs = '{ head -c 500000; cat >/dev/null; } | rsync "$@"'
    script = f'#!/bin/sh\ncase "${{2%%e.*}}" in *n*) ;; *r*) {hangs}; exit ;; esac\nexec rsync "$@"\n'
    (stuck := write(nights.source / "stuck", script)).chmod(0o755)
    nights.host("web1", top, rsync_path=str(stuck), stall="2s")
    ended = Nights.backupd(nights, "restore", "web1", top / "folder0", "--to-host", check=False)
    assert (ended.returncode, "no progress for 2.0s" in ended.stderr, "Traceback" in ended.stderr) == (1, True, False), ended
    assert not list((top / "folder0").glob("file*"))
    nights.host("web1", top)
    Nights.backupd(nights, "restore", "web1", top / "folder0", "--overwrite=never", "--to-host")
    assert [line for line in differences(before, manifest(top)) if not line.startswith("b'': mtime")] == []


def test_a_btrfs_without_space_for_metadata_keeps_whole_files_only_and_the_restore_goes_on(
    nights: Nights, make_btrfs: Callable[..., Path]
) -> None:
    """Contents as small as these are metadata there: statvfs has free space, so the restore begins."""
    top, point = nights.source / "tree", make_btrfs(size="128M", mkfs=("-m", "single"), options="noatime")
    for number in range(4000):
        write(top / f"{number // 20}" / f"file{number:04}").write_bytes(b"%04d" % number * 500)
    nights.host("web1", top)
    nights.run("web1")
    fillers = _filled_with_data(point)
    ended = Nights.backupd(nights, "restore", "web1", top, "--to", point / "out", check=False)
    if os.statvfs(point).f_flag & os.ST_RDONLY:
        pytest.skip("left out: without room for metadata (this kernel ends read-only when it is filled)")
    assert (ended.returncode, "No space left on device" in ended.stderr, "Traceback" in ended.stderr) == (1, True, False), ended
    restored = [path for path in (point / "out" / "tree").rglob("file*") if path.is_file()]
    assert 100 < len(restored) < 4000
    assert {path for path in restored if path.read_bytes() != path.name[4:].encode() * 500} == set()
    for filler in fillers:
        filler.unlink()
    wait_for(lambda: _unallocated(point) > 40 << 20, why="the kernel kept what data no longer needs", pause=0.5)
    restore(nights, "web1", top, "--to", point / "out")
    assert differences(manifest(top), manifest(point / "out" / "tree")) == []
    assert not list((point / "out").glob(".btrkeep*"))


def _unallocated(point: Path) -> int:
    work("btrfs", "filesystem", "sync", point)
    (number,) = re.findall(r"Device unallocated:\s+(\d+)", work("btrfs", "filesystem", "usage", "-b", point).stdout)
    return int(number)


def _filled_with_data(point: Path) -> list[Path]:
    """Gives all unallocated space to data, and frees half of it again. Returns the files that keep it so."""
    fillers = list[Path]()
    with suppress(OSError):
        while True:
            fillers.append(point / f"filler{len(fillers)}")
            with fillers[-1].open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, 1 << 20)
    for filler in fillers[1::2]:
        filler.unlink()
    work("btrfs", "filesystem", "sync", point)
    return fillers[::2]


def test_a_filesystem_that_does_not_take_a_tar_is_not_taken_for_an_unreadable_backup(nights: Nights, tmp_path: Path) -> None:
    top = big(nights, 1)
    with failing_disk() as disk:
        disk.fail()
        done = nights.backupd("restore", "web1", top, "--tar", disk.point / "out.tar", check=False)
        assert error_and_hint(done, 1)[0] == "the tar is incomplete: it cannot be written: Input/output error"
        assert not list(disk.point.iterdir())
        disk.flag.unlink()
        work("mount", "-o", "remount,ro", disk.point)
        done = nights.backupd("restore", "web1", top, "--tar", disk.point / "out.tar", check=False)
        assert error_and_hint(done, 1) == ("the tar is incomplete: Read-only file system", "write the tar to another filesystem")


def test_a_restore_whose_data_the_disk_did_not_take_has_failed_and_the_next_one_names_them(nights: Nights) -> None:
    """Other processes write most of them."""
    top = nights.source / "many"
    for number in range(600):
        write(top / f"folder{number % 2}" / f"file{number}").write_bytes(os.urandom(5000))
    nights.host("web1", top)
    nights.run("web1")
    with failing_disk() as disk:
        out = disk.point / "out"
        words = ("restore", "--json", "web1", top, "--to", out)
        disk.fail()
        done = Nights.backupd(nights, *words, check=False)
        assert error_and_hint(done, 1)[0] == f"{out}: Input/output error"
        assert disk.failed_writes() > 0
        disk.flag.unlink()
        done = Nights.backupd(nights, *words, check=False)
        assert done.returncode == 1
        assert json.loads(done.stdout)["differences"]["count"] > 0
        assert json.loads(Nights.backupd(nights, *words, "--overwrite=all").stdout)["good"]
        disk.read_again()
        assert differences(manifest(top), manifest(out / "many")) == []


def test_a_full_filesystem_is_not_taken_for_one_that_cannot_store_an_attribute(nights: Nights, ext4: Path) -> None:
    """An attribute needs a block, an empty file does not."""
    top, filler = nights.source / "many", ext4 / "filler"
    for number in range(100):
        os.setxattr(write(top / f"file{number}", ""), "user.long", os.urandom(300))
    nights.host("web1", top)
    nights.run("web1")
    device = Path(work("findmnt", "--noheadings", "--output", "SOURCE", ext4).stdout.strip()).name
    Path(f"/sys/fs/ext4/{device}/reserved_clusters").write_text("0")
    status = os.statvfs(ext4)
    with filler.open("ab") as file, suppress(OSError):
        os.posix_fallocate(file.fileno(), 0, status.f_bfree * status.f_frsize * 9 // 10)
        while True:
            os.write(file.fileno(), bytes(1 << 20))
    os.truncate(filler, filler.stat().st_size - 40 * status.f_frsize)
    work("sync", "-f", ext4)
    ended = Nights.backupd(nights, "restore", "--json", "web1", top, "--to", ext4 / "out", check=False)
    assert "No space left on device" in error_and_hint(ended, 1)[0], ended
    filler.unlink()
    restore(nights, "web1", top, "--to", ext4 / "out")
    assert differences(manifest(top), manifest(ext4 / "out" / "many")) == []
