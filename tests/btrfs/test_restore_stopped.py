"""`backupd restore` that is stopped, killed, runs into a full disk or is to write where it must not."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from backupd.files.restore_types import RestoreProgress, RestoreRequest
from backupd.files.to_folder import LocalRestore
from backupd.files.tree import Tree
from btrkeep.errors import OperatorError
from btrkeep.process.cancellation import Cancelled
from tests.beds import differences, manifest, work
from tests.beds.everything import write
from tests.beds.nights import Nights
from tests.beds.within import Within, restore

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
    """How many names match below a folder, by `find`: what is being made there may go while it looks."""
    return work("find", folder, "-mindepth", "1", "-name", pattern, check=False).stdout.count("\n")


def test_killed_in_the_middle_it_goes_on_and_nothing_is_left_behind(
    nights: Nights, tmp_path: Path, backupd_running: Callable[..., "subprocess.Popen[str]"]
) -> None:
    """Killed wherever it is, three times."""
    top, out = big(nights), tmp_path / "out"
    words = ("--config", nights.config, "restore", "web1", top, "--to", out)
    for _ in range(3):
        process = backupd_running(*words)
        before = names_in(out)
        while process.poll() is None and names_in(out) < before + 4:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        for path in out.rglob("file*"):  # whatever has its name is whole
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
    _, said = process.communicate(timeout=30)
    assert process.returncode == status
    assert "the same command continues" in said
    assert not list(out.rglob(".btrkeep-restore-*"))


def test_a_full_filesystem_ends_it_with_whole_files_only_and_it_can_go_on(nights: Nights, tmp_path: Path) -> None:
    """A filesystem that says it has room and then has none: somebody else filled it."""
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
    """A backup of this machine, given back to where it was: the pool's mount point is in it."""
    write(nights.source / "pool" / "hosts" / "web1" / "notes.json", "{}")
    (nights.source / "empty" / "pool").mkdir(parents=True)
    write(nights.source / "empty" / "beside")
    nights.host("web1", nights.source)
    nights.run("web1")
    before = manifest(nights.pool / "hosts")
    mode = nights.pool.stat().st_mode
    said = restore(nights, "web1", nights.source / "pool", "--to", nights.top, "--overwrite=all", status=1)["stderr"]
    assert "pool/hosts: it is in the pool" in said
    done = restore(
        nights, "web1", nights.source / "empty" / "pool", nights.source / "empty" / "beside", "--to", nights.top, "--overwrite=all"
    )
    assert [one["place"] for one in done["kept"]["samples"]] == [str(nights.pool)]
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
            preview.free = None  # else it does not begin
            with pytest.raises(OperatorError) as ended:
                doing.run(preview)
        assert f"No space left on device; {len(list(point.rglob('*')))} names had been restored" in str(ended.value)
    finally:
        work("umount", point)
