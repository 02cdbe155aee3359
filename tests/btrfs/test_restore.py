"""`backupd restore` to a folder: the result equals the backup, and nothing else there changes."""

import errno
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backupd.files import batched_walk, writing
from backupd.files.destination import PlaceOccupied, put
from backupd.files.restore_types import RestoreProgress, RestoreRequest
from backupd.files.to_folder import LocalRestore
from backupd.files.tree import Tree, names_in, read_entry
from btrkeep.fs.file_data import copy_run
from btrkeep.process.progress import Cancelled
from tests.beds import TOP, btrfs, differences, exclusive_bytes, manifest, work
from tests.beds.everything import everything, write
from tests.beds.nights import Nights
from tests.beds.within import Within, restore

pytestmark = [pytest.mark.root, pytest.mark.btrfs]


PROGRAM = f"env PYTHONPATH={shlex.quote(str(TOP))} {shlex.quote(sys.executable)} -m backupd"


@pytest.fixture(scope="module")
def backed_up(_shared_mount: Path) -> Iterator[Nights]:
    """A host web1 with everything that a tree can contain, backed up once. Tests of this module only read it."""
    top = Path(tempfile.mkdtemp(prefix="restore-", dir=_shared_mount)) / "top"
    work("btrfs", "-q", "subvolume", "create", top)
    nights = Within(top)
    nights.host("web1", everything(nights.source / "srv"))
    assert nights.run("web1")["web1"]["outcome"] == "complete"
    yield nights
    btrfs.delete_subvolume(top, _shared_mount)
    top.parent.rmdir()


@pytest.fixture
def nights(shared_btrfs: Path) -> Nights:
    return Within(shared_btrfs)


@pytest.fixture
def out(backed_up: Nights) -> Path:
    """A folder beside the pool, on its btrfs; it does not exist yet."""
    return Path(tempfile.mkdtemp(dir=backed_up.top)) / "out"


@pytest.fixture
def ext4(tmp_path: Path) -> Path:
    """A folder on a filesystem that shares nothing with the pool."""
    return tmp_path / "restored"


def test_on_the_same_btrfs_all_comes_back_and_no_data_is_copied(backed_up: Nights, out: Path) -> None:
    srv = backed_up.source / "srv"
    done = restore(backed_up, "web1", srv, "--to", out, "--privileged")
    assert differences(manifest(srv, blocks=True), manifest(out / "srv", blocks=True)) == []
    assert (done["good"], done["copied_bytes"], done["differences"]["count"]) == (True, 0, 0)
    assert done["reflinked_bytes"] > 20_000_000


def test_on_another_filesystem_all_comes_back_and_is_compared(backed_up: Nights, ext4: Path) -> None:
    """A time of 1901, which ext4 cannot store, is reported as the only difference."""
    srv = backed_up.source / "srv"
    done = restore(backed_up, "web1", srv, "--to", ext4, "--privileged", status=1)
    (line,) = differences(manifest(srv), manifest(ext4 / "srv"))
    assert line.startswith("b'times/1901': mtime")
    assert (ext4 / "srv" / "contents" / "sparse").stat().st_blocks * 512 < 200_000
    ((difference,), problems) = (done["differences"]["samples"], done["problems"]["count"])
    assert difference == {"place": str(ext4 / "srv" / "times" / "1901"), "why": "differs: time"}
    assert (problems, done["reflinked_bytes"]) == (0, 0)
    assert done["compared_bytes"] == done["copied_bytes"] > 400_000


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("contents/below",), {"below", "below/and-again"}),
        (("contents/below/and-again", "contents/empty"), {"and-again", "empty"}),
        (("contents/below", "contents/below/and-again", "contents/below/"), {"below", "below/and-again"}),
    ],
)
def test_a_path_gets_its_last_name_as_cp_has_it(backed_up: Nights, out: Path, words: tuple[str, ...], wanted: set[str]) -> None:
    srv = backed_up.source / "srv"
    restore(backed_up, "web1", *(f"{srv}/{word}" for word in words), "--to", out)
    assert {os.fsdecode(name) for name in manifest(out)} - {""} == wanted


def test_parents_keeps_whole_paths_and_the_folders_above_look_as_they_did(nights: Nights) -> None:
    out, contents = nights.top / "out", nights.source / "srv" / "contents"
    write(contents / "below" / "inside")
    write(contents / "empty", "")
    write(contents / "other")
    os.chown(contents, 5, 6)
    nights.host("web1", nights.source / "srv")
    nights.run("web1")
    restore(nights, "web1", contents / "below", contents / "empty", "--to", out, "--parents")
    present = out / str(contents).strip("/")
    assert {path.name for path in present.iterdir()} == {"below", "empty"}
    for real, copy in ((contents, present), (contents.parent, present.parent)):
        (was, now) = (path.stat() for path in (real, copy))
        assert (was.st_uid, was.st_gid, was.st_mode, was.st_mtime_ns) == (now.st_uid, now.st_gid, now.st_mode, now.st_mtime_ns)


def test_what_is_in_the_root_goes_into_the_folder_itself(backed_up: Nights, out: Path) -> None:
    data = backed_up.backup("web1") / "data"
    restore(backed_up, "web1", "/", "--to", out, "--privileged")
    assert differences(manifest(data), manifest(out)) == []


def test_two_paths_with_one_last_name_are_refused(backed_up: Nights, out: Path) -> None:
    srv = backed_up.source / "srv"
    paths = (srv / "attributes" / "folder", srv / "times" / "folder")
    output = restore(backed_up, "web1", *paths, "--to", out, status=2)["stderr"]
    assert "would both become folder" in output
    assert "--parents" in output
    assert not (out).exists()


# --- what already exists


def test_nothing_is_written_when_anything_is_in_the_way(backed_up: Nights, out: Path) -> None:
    srv = backed_up.source / "srv"
    write(out / "contents" / "binary", "mine")
    before = manifest(out)
    output = restore(backed_up, "web1", srv / "contents", "--to", out, status=1)["stderr"]
    assert f"{out}/contents/binary: differs: " in output
    assert "--overwrite" in output
    assert differences(before, manifest(out)) == []


def test_never_keeps_what_is_there_and_restores_the_rest(backed_up: Nights, out: Path) -> None:
    contents = backed_up.source / "srv" / "contents"
    write(out / "contents" / "binary", "mine")
    write(out / "contents" / "other", "not of the backup")
    done = restore(backed_up, "web1", contents, "--to", out, "--overwrite=never")
    assert (out / "contents" / "binary").read_text() == "mine"
    assert (out / "contents" / "other").read_text() == "not of the backup"
    wanted, by_name = manifest(contents), manifest(out / "contents")
    for both in (wanted, by_name):
        for name in (b"", b"binary", b"other"):
            both.pop(name, None)
    assert differences(wanted, by_name) == []
    assert done["kept"]["samples"][0]["place"] == f"{out}/contents/binary"


def test_older_overwrites_what_is_older_than_the_backups(backed_up: Nights, out: Path) -> None:
    contents = backed_up.source / "srv" / "contents"
    for name in ("binary", "empty"):
        write(out / "contents" / name, "mine")
    os.utime(out / "contents" / "binary", ns=(0, 10**18))
    done = restore(backed_up, "web1", contents / "binary", contents / "empty", "--to", out / "contents", "--overwrite=older")
    assert (out / "contents" / "binary").read_bytes() == (contents / "binary").read_bytes()
    assert (out / "contents" / "empty").read_text() == "mine"
    assert (done["overwritten"]["count"], done["kept"]["count"]) == (1, 1)


def test_all_makes_everything_as_it_was_and_deletes_nothing(backed_up: Nights, out: Path) -> None:
    srv = backed_up.source / "srv"
    restore(backed_up, "web1", srv, "--to", out, "--privileged")
    write(out / "srv" / "contents" / "other", "not of the backup")
    write(out / "srv" / "contents" / "binary", "mine")
    (out / "srv" / "contents" / "again").unlink()
    write(out / "srv" / "contents" / "again", "linked", 0o600)
    (out / "srv" / "special" / "up").unlink()
    (out / "srv" / "special" / "up").symlink_to("/etc")
    (out / "srv" / "owners_and_modes" / "closed").chmod(0o755)
    work("setfattr", "-x", "user.text", out / "srv" / "attributes" / "xattr")
    done = restore(backed_up, "web1", srv, "--to", out, "--overwrite=all", "--privileged")
    by_name = manifest(out / "srv")
    assert by_name.pop(b"contents/other").size == 17
    assert differences(manifest(srv), by_name) == []
    assert done["overwritten"]["count"] == 6  # three of them are names of one file
    assert Path("/etc").is_dir()


@pytest.mark.parametrize("overwrite", ["--overwrite=all", "--overwrite=older", "--overwrite=never", "--compare=content"])
def test_a_folder_never_takes_the_place_of_a_file_nor_the_other_way_round(backed_up: Nights, out: Path, overwrite: str) -> None:
    srv = backed_up.source / "srv"
    write(out / "contents" / "below", "a file where a folder was")
    write(out / "contents" / "binary" / "inside", "a folder where a file was")
    before = manifest(out)
    output = restore(backed_up, "web1", srv / "contents", "--to", out, overwrite, status=1)["stderr"]
    assert f"{out}/contents/below: it is a file there and a folder in the backup" in output
    assert f"{out}/contents/binary: it is a folder there and a file in the backup" in output
    assert differences(before, manifest(out)) == []


def test_a_symlink_in_the_place_of_a_folder_is_never_followed(backed_up: Nights, out: Path, tmp_path: Path) -> None:
    srv = backed_up.source / "srv"
    out.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (out / "contents").symlink_to(tmp_path / "elsewhere")
    output = restore(backed_up, "web1", srv / "contents", "--to", out, "--overwrite=all", status=1)["stderr"]
    assert f"{out}/contents: it is a symlink there and a folder in the backup" in output
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_symlink_that_is_swapped_in_while_it_restores_leads_nowhere(backed_up: Nights, out: Path) -> None:
    """A user who may write to the destination replaces a new folder by a symlink."""
    outside = out.parent / "outside"
    outside.mkdir()
    path = os.fsencode(backed_up.source / "srv" / "contents")
    with Tree(backed_up.backup("web1")) as tree:
        request = RestoreRequest("web1", "", (path,), str(out))
        doing = LocalRestore(tree, request, reflinks=True)
        preview = doing.preview()

        def swap(progress: Any) -> None:
            below = out / "contents" / "below"
            if progress.place.endswith(b"/below") and (below / "and-again").exists() and not below.is_symlink():
                (out / "contents" / "below").rename(out / "moved")
                (out / "contents" / "below").symlink_to(outside)

        doing._tell = swap
        done = doing.run(preview)
    assert list(outside.iterdir()) == []
    assert not done.good
    assert any(b"below" in place for place, _ in (*done.problems.samples, *done.differences.samples))


def test_a_name_is_given_only_where_nothing_is_or_what_was_looked_at(tmp_path: Path) -> None:
    """Another user may act between the check and the rename."""
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        (tmp_path / "name").write_text("theirs")
        entry = read_entry(folder, b"name", b"/name")
        (tmp_path / "new").write_text("ours")
        with pytest.raises(PlaceOccupied):
            put(folder, b"new", b"name", None)
        (tmp_path / "other").write_text("theirs, changed")
        (tmp_path / "other").rename(tmp_path / "name")
        with pytest.raises(PlaceOccupied):
            put(folder, b"new", b"name", entry)
        assert (tmp_path / "name").read_text() == "theirs, changed"
        put(folder, b"new", b"name", read_entry(folder, b"name", b"/name"))
        assert (tmp_path / "name").read_text() == "ours"
    finally:
        os.close(folder)


def test_what_comes_there_after_the_look_is_not_overwritten(backed_up: Nights, out: Path) -> None:
    path = os.fsencode(backed_up.source / "srv" / "contents")
    with Tree(backed_up.backup("web1")) as tree:
        request = RestoreRequest("web1", "", (path,), str(out))
        doing = LocalRestore(tree, request, reflinks=True)
        preview = doing.preview()
        write(out / "contents" / "binary", "came meanwhile")
        done = doing.run(preview)
    assert (out / "contents" / "binary").read_text() == "came meanwhile"
    assert [place for place, _ in done.problems.samples] == [os.fsencode(out / "contents" / "binary")]


# --- stopped, killed, full


def test_run_again_everything_is_passed_over(backed_up: Nights, out: Path) -> None:
    srv = backed_up.source / "srv"
    restore(backed_up, "web1", srv, "--to", out)
    before = manifest(out, blocks=True)
    inodes = {path: path.lstat().st_ctime_ns for path in (out / "srv").rglob("*")}
    again = restore(backed_up, "web1", srv, "--to", out)
    assert differences(before, manifest(out, blocks=True)) == []
    assert {path: path.lstat().st_ctime_ns for path in inodes} == inodes
    assert (again["new"]["count"], again["overwritten"]["count"]) == (0, 0)


def test_the_folder_that_was_made_for_everything_looks_as_it_did_also_when_it_took_two_runs(backed_up: Nights, out: Path) -> None:
    def stop(progress: RestoreProgress) -> None:
        if progress.phase == "writing" and progress.files > 20:
            raise Cancelled

    with Tree(backed_up.backup("web1")) as tree:
        request = RestoreRequest("web1", "", (b"/",), str(out), privileged=True)
        with pytest.raises(Cancelled):
            LocalRestore(tree, request, reflinks=True, tell=stop).run(LocalRestore(tree, request, reflinks=True).preview())
    assert out.exists()
    restore(backed_up, "web1", "/", "--to", out, "--privileged")
    assert differences(manifest(backed_up.backup("web1") / "data"), manifest(out)) == []


def test_too_little_room_is_seen_before_anything_is_written(backed_up: Nights, tmp_path: Path) -> None:
    work("mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", tmp_path)
    try:
        output = restore(backed_up, "web1", backed_up.source / "srv" / "contents", "--to", tmp_path / "out", status=1)["stderr"]
        assert "are needed" in output
        assert list(tmp_path.iterdir()) == []
    finally:
        work("umount", tmp_path)


# --- where not to, what not from


def test_the_pool_and_the_catalogue_are_never_restored_into(backed_up: Nights, tmp_path: Path) -> None:
    (tmp_path / "way-in").symlink_to(backed_up.pool)
    path = backed_up.source / "srv" / "contents"
    for to in (backed_up.pool, backed_up.pool / "hosts", tmp_path / "way-in" / "new", backed_up.state, backed_up.state / "x"):
        output = restore(backed_up, "web1", path, "--to", to, status=2)["stderr"]
        assert "among the backups" in output or "catalogue" in output


def test_a_path_is_never_looked_for_behind_a_symlink_of_the_backup(backed_up: Nights, out: Path) -> None:
    special = backed_up.source / "srv" / "special"
    output = restore(backed_up, "web1", f"{special}/up/etc/passwd", "--to", out, status=2)["stderr"]
    assert "symlink" in output
    output = restore(backed_up, "web1", f"{special}/../special", "--to", out, status=2)["stderr"]
    assert ".." in output


def test_a_wrong_path_names_the_nearest_and_nothing_is_made(backed_up: Nights, out: Path) -> None:
    srv = backed_up.source / "srv"
    output = restore(backed_up, "web1", srv / "contents" / "binry", "--to", out, status=2)["stderr"]
    assert f"{srv}/contents/binary" in output
    assert not (out).exists()


def test_what_was_written_wrongly_is_found_by_the_comparison(
    backed_up: Nights, ext4: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoiling(source: int, copy: int, start: int, end: int) -> Iterator[int]:
        yield from copy_run(source, copy, start, end)
        os.pwrite(copy, bytes([os.pread(copy, 1, end - 1)[0] ^ 1]), end - 1)

    monkeypatch.setattr(writing, "copy_run", spoiling)
    path = os.fsencode(backed_up.source / "srv" / "contents" / "binary")
    with Tree(backed_up.backup("web1")) as tree:
        for content, wanted in ((True, 1), (False, 0)):
            request = RestoreRequest("web1", "", (path,), str(ext4 / str(wanted)), content=content)
            ext4.mkdir(exist_ok=True)
            again = LocalRestore(tree, request, reflinks=False)
            done = again.run(again.preview())
            assert done.differences.number == wanted


def test_a_reflink_shares_every_extent_and_only_then_counts_as_the_same(backed_up: Nights, out: Path) -> None:
    binary = backed_up.source / "srv" / "contents" / "binary"
    restore(backed_up, "web1", binary, "--to", out)
    work("btrfs", "filesystem", "sync", backed_up.top)
    assert exclusive_bytes(out / "binary") == 0
    with (out / "binary").open("r+b") as file:
        file.write(b"changed")
    os.utime(out / "binary", ns=(0, binary.stat().st_mtime_ns))
    again = restore(backed_up, "web1", binary, "--to", out, status=1)
    assert [sample["why"] for sample in again["differences"]["samples"]] == ["differs: content"]


def test_a_folder_or_name_that_cannot_be_read_is_told_and_all_else_comes_back(
    backed_up: Nights, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a failing disk."""
    contents = backed_up.source / "srv" / "contents"

    def names(folder: int) -> Iterator[bytes]:
        if Path(f"/proc/self/fd/{folder}").readlink().name == "below":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return names_in(folder)

    look = os.stat

    def looked(path: Any, **options: Any) -> os.stat_result:
        if path == b"binary":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return look(path, **options)

    monkeypatch.setattr(batched_walk, "names_in", names)
    monkeypatch.setattr(os, "stat", looked)
    with Tree(backed_up.backup("web1")) as tree:
        request = RestoreRequest("web1", "", (os.fsencode(contents),), str(out))
        again = LocalRestore(tree, request, reflinks=True)
        done = again.run(again.preview())
    assert sorted(os.fsdecode(place) for place, _ in done.problems.samples) == [f"{out}/contents/below", f"{out}/contents/binary"]
    assert {why for _, why in done.problems.samples} == {"it cannot be read in the backup: Input/output error"}
    monkeypatch.undo()  # the manifest is made in this process
    wanted = manifest(contents)
    for name in [name for name in wanted if name == b"binary" or name.startswith(b"below/")]:
        wanted.pop(name)
    by_name = manifest(out / "contents")
    assert set(wanted) == set(by_name)
    assert (done.good, done.differences.number) == (False, 0)


# --- dry runs, tar, words


def test_a_dry_run_says_all_of_it_and_changes_nothing(backed_up: Nights, out: Path) -> None:
    contents = backed_up.source / "srv" / "contents"
    write(out / "contents" / "binary", "mine")
    before = manifest(out)
    seen = restore(backed_up, "web1", contents, "--to", out, "--dry-run", status=1)
    assert (seen["possible"], seen["refused"]["count"]) == (False, 1)
    assert seen["places"] == [{"path": str(contents), "place": f"{out}/contents"}]
    files = work("find", contents, "-type", "f").stdout.splitlines()
    assert (seen["files"], seen["folders"]) == (len(files), len(work("find", contents, "-type", "d").stdout.splitlines()))
    assert seen["bytes"] == sum(Path(file).stat().st_size for file in files)
    plain = backed_up.backupd("restore", "web1", contents, "--to", out, "--dry-run", "--overwrite=never").stdout
    assert f"{contents} -> {out}/contents" in plain
    assert "kept" in plain
    assert differences(before, manifest(out)) == []
    assert not restore(backed_up, "web1", contents, "--to", out.parent / "new", "--dry-run")["refused"]["count"]
    assert not (out.parent / "new").exists()


def test_a_tar_goes_to_a_file_whole_or_not_at_all_and_to_a_pipe(backed_up: Nights, out: Path, tmp_path: Path) -> None:
    below, tar = backed_up.source / "srv" / "contents" / "below", tmp_path / "out.tar"
    restore(backed_up, "web1", below, "--tar", tar)
    names = work("tar", "-tf", tar).stdout.splitlines()
    assert names == [f"{str(below)[1:]}/", f"{str(below)[1:]}/and-again"]
    assert tar.stat().st_mode & 0o777 == 0o600
    assert "already exists" in restore(backed_up, "web1", below, "--tar", tar, status=2)["stderr"]
    restore(backed_up, "web1", below, "--tar", tar, "--overwrite=all")
    assert [path.name for path in tmp_path.iterdir()] == ["out.tar"]
    piped = work("sh", "-c", f"{PROGRAM} --config {backed_up.config} restore web1 {below} --tar - | tar -tf -")
    assert piped.stdout.splitlines() == names
    full = work("sh", "-c", f"{PROGRAM} --config {backed_up.config} restore web1 {below} --tar /dev/full", check=False)
    assert (full.returncode, "already exists" in full.stderr) == (2, True)
    full = work("sh", "-c", f"{PROGRAM} --config {backed_up.config} restore web1 {below} --tar - >/dev/full", check=False)
    assert full.returncode == 1
    assert "the tar is incomplete" in full.stderr


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (("web1", "/"), "no destination given"),
        (("web1", "--to", "/tmp"), "name a path"),
        (("web1", "/", "--to", "/tmp", "--tar", "x"), "one destination"),
        (("web1", "/", "--to", ""), "is empty"),
        (("web1", "--to-host", "/etc", "/srv"), "names no machine"),
        (("web1", "/", "--to-host=root@host"), "expected [USER@]HOST:DIR"),
        (("web1", "/", "--to-host=host::module"), "expected [USER@]HOST:DIR"),
        (("nobody", "/", "--to", "/tmp/x"), "there is no host nobody"),
        (("web1", "/", "--to", "/no/such/folder"), "/no/such is not a folder"),
    ],
)
def test_wrong_words_are_told_in_one_line_and_a_hint(backed_up: Nights, words: tuple[str, ...], output: str) -> None:
    done = backed_up.backupd("restore", *words, check=False)
    assert done.returncode == 2, done.stderr
    assert output in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr
