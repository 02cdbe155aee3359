"""Folders with few plain files are completed in a folder that only root can access, and then moved to their place."""

import errno
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from backupd.files import new_folders
from backupd.files.batched_walk import PlainFolder, PlainFolders, RepeatedWalk
from backupd.files.destination import Destination, rename_to_nothing
from backupd.files.new_folders import STAGING as NAME
from backupd.files.new_folders import FolderCopier, Staging, compare_folders
from backupd.files.plain_files import BatchResult
from backupd.files.restore_types import RestoreProgress, RestoreRequest
from backupd.files.to_folder import LocalRestore
from backupd.files.tree import Tree
from backupd.files.walking import LONG
from tests.beds import differences, manifest, work
from tests.beds.everything import write
from tests.beds.nights import Nights
from tests.beds.within import Within, restore

pytestmark = [pytest.mark.root, pytest.mark.btrfs]

STAGING = os.fsdecode(NAME)


@pytest.fixture
def nights(shared_btrfs: Path) -> Nights:
    return Within(shared_btrfs)


def _folder(path: Path, files: int = 5) -> Path:
    """Makes a folder with files, symlinks, owners, modes, attributes, an ACL and times."""
    for number in range(files):
        file = write(path / f"file{number}", "text" * number)
        os.chown(file, 1000 * (number % 2), 2000)
        file.chmod((0o644, 0o600, 0o7, 0o1640, 0)[number % 5])
        os.utime(file, ns=(0, 10**18 + number))
        link = path / f"link{number}"
        link.symlink_to(f"../file{number}")
        os.lchown(link, 0, number)
        os.utime(link, ns=(0, 10**18 - number), follow_symlinks=False)
    os.setxattr(path / "file0", "user.words", b"some words")
    os.setxattr(path / "link0", "trusted.words", b"more words", follow_symlinks=False)
    work("setfacl", "-m", "u:1234:rw", path / "file1")
    work("setfacl", "-d", "-m", "u:1234:rwx", path)
    os.setxattr(path, "user.words", b"of a folder")
    os.chown(path, 1000, 2000)
    path.chmod(0o2751)
    os.utime(path, ns=(0, 10**18 + 77))
    return path


@contextmanager
def _opened(tmp_path: Path) -> Iterator[tuple[int, int, int]]:
    """Opens the folders staging, source and to."""
    fds = list[int]()
    try:
        for name in ("staging", "source", "to"):
            (tmp_path / name).mkdir(exist_ok=True)
            fds.append(os.open(tmp_path / name, os.O_RDONLY | os.O_DIRECTORY))
        yield fds[0], fds[1], fds[2]
    finally:
        for fd in fds:
            os.close(fd)


def _plain_folder(top: Path, name: str) -> PlainFolder:
    with Tree.of_folder(top) as tree:
        walks = RepeatedWalk()
        list(walks.walk(tree, b"/"))
        (group,) = [visit for visit in walks.walk(tree, b"/") if isinstance(visit, PlainFolders)]
        (folder,) = group.folders
        assert folder.name == os.fsencode(name)
        return folder


def _copied(tmp_path: Path, *, privileged: bool = True) -> BatchResult:
    """Copies tmp_path/source/folder to tmp_path/to/folder."""
    folder = _plain_folder(tmp_path / "source", "folder")
    with _opened(tmp_path) as fds:
        (done,) = FolderCopier(fds[0], reflinks=False, privileged=privileged).copy(fds[1], fds[2], [folder])
    assert not list((tmp_path / "staging").iterdir())
    return done


def test_a_folder_is_copied_with_all_that_is_in_it(tmp_path: Path) -> None:
    source = _folder(tmp_path / "source" / "folder")
    assert _copied(tmp_path).is_folder_done
    assert differences(manifest(source), manifest(tmp_path / "to" / "folder")) == []


def test_a_folder_takes_the_name_of_nothing(tmp_path: Path) -> None:
    _folder(tmp_path / "source" / "folder")
    write(tmp_path / "to" / "folder", "theirs")
    done = _copied(tmp_path)
    assert (done.is_folder_done, len(done.left_over)) == (False, 10)
    assert (tmp_path / "to" / "folder").read_text() == "theirs"


def test_an_empty_folder_of_that_name_is_not_replaced_either(tmp_path: Path) -> None:
    _folder(tmp_path / "source" / "folder")
    (tmp_path / "to" / "folder").mkdir(parents=True)
    assert not _copied(tmp_path).is_folder_done
    assert not list((tmp_path / "to" / "folder").iterdir())


def test_a_file_that_is_given_back_leaves_nothing_in_the_folder(tmp_path: Path) -> None:
    source = _folder(tmp_path / "source" / "folder")
    work("setcap", "cap_net_raw+ep", source / "file3")
    done = _copied(tmp_path, privileged=False)
    assert (done.is_folder_done, list(done.left_over)) == (True, [3])
    assert sorted(path.name for path in (tmp_path / "to" / "folder").iterdir()) == sorted(
        path.name for path in source.iterdir() if path.name != "file3"
    )


@pytest.mark.parametrize("files", [0, 2])
def test_ctrl_c_while_a_folder_gets_its_place_ends_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int) -> None:
    def interrupted(*place: Any) -> None:
        rename_to_nothing(*place)
        raise KeyboardInterrupt

    (tmp_path / "source" / "folder").mkdir(parents=True)
    for number in range(files):
        write(tmp_path / "source" / "folder" / f"file{number}", "text")
    monkeypatch.setattr(new_folders, "rename_to_nothing", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _copied(tmp_path)
    assert [path.name for path in (tmp_path / "to").iterdir()] == ["folder"]


def test_a_name_that_is_taken_in_the_folder_is_given_back_and_what_has_it_stays(tmp_path: Path) -> None:
    """As where File and file are one name (ext4 with casefold): the second finds the first in its place."""
    source = tmp_path / "source" / "folder"
    write(source / "file", "text")
    (source / "link").symlink_to("file")
    folder = _plain_folder(tmp_path / "source", "folder")
    with _opened(tmp_path) as fds:
        (done,) = FolderCopier(fds[0], reflinks=False, privileged=True).copy(
            fds[1], fds[2], [folder._replace(files=folder.files * 2)]
        )
    assert done.left_over == [2, 3]
    assert (tmp_path / "to" / "folder" / "file").read_text() == "text"
    assert (tmp_path / "to" / "folder" / "link").readlink() == Path("file")


def test_a_file_that_was_changed_since_the_walk_is_given_back(tmp_path: Path) -> None:
    source = _folder(tmp_path / "source" / "folder")
    folder = _plain_folder(tmp_path / "source", "folder")
    write(source / "file4", "longer than before, and so no file of a backup")
    with _opened(tmp_path) as fds:
        (done,) = FolderCopier(fds[0], reflinks=False, privileged=True).copy(fds[1], fds[2], [folder])
    assert [folder.files[number].name for number in done.left_over] == [b"file4"]
    assert not (tmp_path / "to" / "folder" / "file4").exists()


@pytest.mark.parametrize("content", [True, False])
@pytest.mark.parametrize(
    ("change", "is_folder_done", "left_over"),
    [
        (lambda _: None, True, []),
        (lambda folder: folder.chmod(0o700), False, []),
        (lambda folder: (folder / "file2").chmod(0o640), True, [b"file2"]),
        (lambda folder: (folder / "link2").unlink(), True, [b"link2"]),
        (lambda folder: folder.rename(folder.with_name("moved")), False, None),
        (lambda folder: (folder.rename(folder.with_name("moved")), folder.symlink_to("moved")), False, None),
    ],
)
def test_a_folder_is_compared_by_its_name(
    tmp_path: Path, content: bool, change: Callable[[Path], Any], is_folder_done: bool, left_over: list[bytes] | None
) -> None:
    source = _folder(tmp_path / "source" / "folder")
    os.removexattr(source / "link0", "trusted.words", follow_symlinks=False)  # a symlink with attributes is given back
    os.removexattr(source, "user.words")
    work("setfacl", "-k", source)
    os.utime(source, ns=(0, 10**18 + 77))
    work("cp", "-a", tmp_path / "source", tmp_path / "to")
    change(tmp_path / "to" / "folder")
    if left_over:
        os.utime(tmp_path / "to" / "folder", ns=(0, 10**18 + 77))
    folder = _plain_folder(tmp_path / "source", "folder")
    with _opened(tmp_path) as (_, ours, theirs):
        (done,) = compare_folders(ours, theirs, [folder], reflinks=False, privileged=True, content=content)
    assert done.is_folder_done == is_folder_done
    wanted = [file.name for file in folder.files] if left_over is None else left_over
    assert [folder.files[number].name for number in done.left_over] == wanted


def _staged(to: Path) -> bool:
    """Returns True if a restore to this folder makes a staging folder. It is gone afterwards."""
    with Destination(to, make=False) as destination, Staging(destination, ()) as staging:
        is_made = staging.fd is not None
        if is_made:
            status = (to / STAGING).stat()
            assert (status.st_mode & 0o7777, status.st_uid) == (0o700, os.geteuid())
            write(to / STAGING / "1-1" / "unfinished")
    assert not is_made or not (to / STAGING).exists()
    return is_made


def test_a_staging_folder_is_made_in_an_empty_destination_of_root_alone(tmp_path: Path) -> None:
    to = tmp_path / "to"
    to.mkdir()
    assert _staged(to)
    to.chmod(0o777)
    assert not _staged(to)
    to.chmod(0o755)
    os.chown(to, 1000, 0)
    assert not _staged(to)
    os.chown(to, 0, 1000)
    to.chmod(0o2755)
    assert not _staged(to)
    os.chown(to, 0, 0)
    to.chmod(0o755)
    work("setfacl", "-d", "-m", "u:1234:rwx", to)
    assert not _staged(to)
    work("setfacl", "-b", to)
    (to / "lost+found").mkdir()
    assert _staged(to)
    write(to / "theirs")
    assert not _staged(to)


def test_what_a_killed_restore_left_is_deleted_and_what_is_not_its_stays(tmp_path: Path) -> None:
    to = tmp_path / "to"
    write(to / STAGING / "77-1" / "unfinished")
    (to / STAGING / "77-1" / "link").symlink_to("/etc/passwd")
    (to / STAGING).chmod(0o700)
    with Destination(to, make=False) as destination, Staging(destination, {NAME}):
        pass
    assert (to / STAGING / "77-1" / "unfinished").exists()  # a backup has that name
    to.chmod(0o777)
    assert not _staged(to)
    assert (to / STAGING / "77-1" / "unfinished").exists()  # another user may have moved it there
    to.chmod(0o755)
    for mode, owner in ((0o755, 0), (0o700, 1000)):
        (to / STAGING).chmod(mode)
        os.chown(to / STAGING, owner, 0)
        assert not _staged(to)
        assert (to / STAGING / "77-1" / "unfinished").exists()
    os.chown(to / STAGING, 0, 0)
    assert _staged(to)
    assert not (to / STAGING).exists()


def test_a_staging_folder_that_cannot_be_deleted_is_reported(nights: Nights, tmp_path: Path) -> None:
    top, out = nights.source / "tree", tmp_path / "out"
    write(top / "folder" / "file")
    nights.host("web1", top)
    nights.run("web1")

    def hold(progress: RestoreProgress) -> None:
        if (out / STAGING).exists() and progress.phase == "writing":
            work("chattr", "+i", out / STAGING)

    try:
        with Tree(nights.backup("web1")) as tree:
            doing = LocalRestore(tree, RestoreRequest("web1", "", (os.fsencode(top),), str(out)), reflinks=False, tell=hold)
            done = doing.run(doing.preview())
        why = "could not delete this temporary folder of the restore: Operation not permitted"
        assert done.problems.samples == [(os.fsencode(out / STAGING), why)]
    finally:
        work("chattr", "-i", out / STAGING)
    assert differences(manifest(top), manifest(out / "tree")) == []
    (out / STAGING).rmdir()


def test_an_unfinished_file_that_cannot_be_deleted_keeps_its_folder_from_its_place(
    nights: Nights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a btrfs that has no space for the deletion: it would have its final name, and not be whole."""
    top, out = nights.source / "tree", tmp_path / "out"
    for name in ("granting", "plain"):
        write(top / "folder" / name, "text")
    (top / "folder" / "link").symlink_to("plain")
    work("setcap", "cap_net_raw+ep", top / "folder" / "granting")
    nights.host("web1", top)
    nights.run("web1")
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", _fails_with_no_space)
        done = restore(nights, "web1", top, "--to", out, status=1)
    why = "could not delete this temporary folder of the restore: No space left on device"
    assert done["problems"]["samples"] == [{"place": str(out / STAGING), "why": why}], done
    work("setcap", "-r", top / "folder" / "granting")
    assert differences(manifest(top), manifest(out / "tree")) == []
    assert restore(nights, "web1", top, "--to", out)["good"]
    assert not (out / STAGING).exists()


def test_a_symlink_that_is_no_folder_of_the_walk_is_given_back(tmp_path: Path) -> None:
    """A backup is read-only, so this takes a broken filesystem; nothing is made of it without a look at each name."""
    source = tmp_path / "source" / "folder"
    source.mkdir(parents=True)
    folder = _plain_folder(tmp_path / "source", "folder")
    source.rmdir()
    source.symlink_to(tmp_path)
    with _opened(tmp_path) as fds:
        (done,) = FolderCopier(fds[0], reflinks=False, privileged=True).copy(fds[1], fds[2], [folder])
    assert (done.is_folder_done, list((tmp_path / "to").iterdir())) == (False, [])


def _fails_with_no_space(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_files_in_a_folder_get_the_compression_that_it_has(nights: Nights) -> None:
    top, out = nights.source / "tree", nights.top / "out"
    write(top / "folder" / "file", "text" * 10_000)
    work("btrfs", "property", "set", top / "folder", "compression", "zstd")
    nights.host("web1", top)
    nights.run("web1")
    assert os.listxattr(nights.data("web1", top / "folder")) == ["btrfs.compression"]
    assert os.listxattr(nights.data("web1", top / "folder/file")) == []
    with Tree(nights.backup("web1")) as tree:  # data are copied, as to another btrfs
        doing = LocalRestore(tree, RestoreRequest("web1", "", (os.fsencode(top),), str(out)), reflinks=False)
        assert doing.run(doing.preview()).good
    for name in ("folder", "folder/file"):
        assert os.getxattr(out / "tree" / name, "btrfs.compression") == b"zstd"


def test_a_file_that_is_restored_by_itself_does_not_change_the_time_of_its_folder(nights: Nights, tmp_path: Path) -> None:
    top, out = nights.source / "tree", tmp_path / "out"
    for name in ("a", "b"):
        folder = _folder(top / name, 12)
        work("setcap", "cap_net_raw+ep", folder / "file3")
        os.utime(folder, ns=(0, 10**18 + 5))
    os.utime(top, ns=(0, 10**18 + 6))
    nights.host("web1", top)
    nights.run("web1")
    done = restore(nights, "web1", top, "--to", out)
    assert done["left_out"]["capabilities"]["count"] == 2
    for name in ("a", "b"):
        os.removexattr(top / name / "file3", "security.capability")
    assert differences(manifest(top), manifest(out / "tree")) == []
    assert not (out / STAGING).exists()


@pytest.mark.parametrize("privileged", [True, False])
def test_all_of_a_backup_is_restored_by_whole_folders_too(nights: Nights, tmp_path: Path, privileged: bool) -> None:
    top, out = nights.source / "tree", tmp_path / "out"
    for number in range(10):
        _folder(top / f"{number}", 10)
    nights.host("web1", top)
    nights.run("web1")
    staged = set[bool]()

    def look(progress: RestoreProgress) -> None:
        if progress.phase == "writing" and list(out.rglob("file3")):
            staged.add((out / STAGING).exists())

    with Tree(nights.backup("web1")) as tree:
        request = RestoreRequest("web1", "", (b"/",), str(out), privileged=privileged)
        doing = LocalRestore(tree, request, reflinks=False, tell=look)
        assert doing.run(doing.preview()).good
    assert staged == {True}
    assert differences(manifest(top), manifest(out / str(top).lstrip("/"))) == []
    assert not (out / STAGING).exists()
    if privileged:
        data = nights.data("web1", Path("/"))
        assert out.stat().st_mtime_ns == data.stat().st_mtime_ns


def test_a_backup_may_have_a_folder_with_the_name_of_the_staging_folder(nights: Nights, tmp_path: Path) -> None:
    top, out = nights.source / STAGING, tmp_path / "out"
    for number in range(3):
        _folder(top / f"{number}")
    top.chmod(0o700)
    nights.host("web1", top)
    nights.run("web1")
    for _ in range(2):
        restore(nights, "web1", top, "--to", out, "--privileged")
        assert differences(manifest(top), manifest(out / STAGING)) == []


@pytest.mark.parametrize("phase", ["looking", "begun", "comparing"])
def test_what_is_mounted_on_a_folder_meanwhile_is_never_taken_for_the_backup(nights: Nights, tmp_path: Path, phase: str) -> None:
    top, out = nights.source / "tree", tmp_path / "out"
    for number in range(3):
        write(top / f"folder{number}" / "file", "ours")
        os.utime(top / f"folder{number}" / "file", ns=(0, 5))
    nights.host("web1", top)
    nights.run("web1")
    at = nights.data("web1", top / "folder1")

    def mount(progress: RestoreProgress) -> None:
        if progress.phase == phase and not at.is_mount():
            work("mount", "-t", "tmpfs", "none", at)
            write(at / "file", "more")
            os.utime(at / "file", ns=(0, 5))

    try:
        with Tree(nights.backup("web1")) as tree:
            doing = LocalRestore(tree, RestoreRequest("web1", "", (os.fsencode(top),), str(out)), reflinks=False, tell=mount)
            preview = doing.preview()
            doing.progress.phase = "begun"
            mount(doing.progress)
            done = doing.run(preview)
    finally:
        work("umount", at)
    assert not done.good
    assert "folder1: it cannot be read in the backup: another filesystem is mounted there" in done.failure
    assert {file.read_text() for file in out.rglob("file")} == {"ours"}


def test_a_folder_that_comes_there_meanwhile_keeps_what_is_in_it(nights: Nights, tmp_path: Path) -> None:
    top, out = nights.source / "tree", tmp_path / "out"
    for number in range(160):
        _folder(top / f"folder{number:03d}", 10)
    nights.host("web1", top)
    nights.run("web1")
    theirs = out / "tree" / "folder159" / "file1"

    def come(progress: RestoreProgress) -> None:
        if progress.phase == "writing" and theirs.parent.parent.exists() and not theirs.exists():
            write(theirs, "theirs")

    with Tree(nights.backup("web1")) as tree:
        doing = LocalRestore(tree, RestoreRequest("web1", "", (os.fsencode(top),), str(out)), reflinks=False, tell=come)
        done = doing.run(doing.preview())
    assert theirs.read_text() == "theirs"
    assert [place for place, _ in done.problems.samples] == [os.fsencode(theirs)]
    assert len(list((out / "tree").rglob("*"))) == 160 * 21


def test_the_longest_names_of_many_folders_go_to_other_processes_too(tmp_path: Path) -> None:
    top, out = tmp_path / "source" / "tree", tmp_path / "out"
    for number in range(100):
        folder = top / f"{number:03}{'f' * 252}"
        folder.mkdir(parents=True)
        for count in range(156 if number % 40 == 39 else number % 2):
            (folder / f"{count:03}{'n' * 252}").touch()
        for count in range(100 if number % 40 == 39 else number % 2):
            (folder / f"{count:03}{'l' * 252}").symlink_to("t" * LONG)
    with Tree.of_folder(tmp_path / "source") as tree:
        doing = LocalRestore(tree, RestoreRequest("web1", "", (b"/tree",), str(out)), reflinks=False)
        assert doing.run(doing.preview()).good
    assert differences(manifest(top), manifest(out / "tree")) == []


@pytest.mark.parametrize("symlinks", [1, 100, 300])
@pytest.mark.parametrize("length", [1, LONG, LONG + 1, 4000])
def test_a_symlink_is_restored_and_compared_however_long_its_target_is(tmp_path: Path, symlinks: int, length: int) -> None:
    """One file, and some in folders; folders with more files than are moved as a unit are copied in groups."""
    top, out = tmp_path / "source" / "tree", tmp_path / "out"
    for number in range(symlinks):
        link = top / "folder" / f"link{number}"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"{number % 10}" * length)
        os.utime(link, ns=(0, 10**18), follow_symlinks=False)
    changed = out / "tree" / "folder" / f"link{symlinks - 1}"

    def change(progress: RestoreProgress) -> None:
        if progress.phase == "syncing":
            restored, before = changed.readlink(), changed.parent.stat()
            changed.unlink()
            changed.symlink_to(str(restored)[:-1] + "/")
            os.utime(changed, ns=(0, 10**18), follow_symlinks=False)
            os.utime(changed.parent, ns=(0, before.st_mtime_ns))

    for tell, wanted in ((lambda _: None, []), (change, [(os.fsencode(changed), "differs: target")])):
        with Tree.of_folder(tmp_path / "source") as tree:
            doing = LocalRestore(tree, RestoreRequest("web1", "", (b"/tree",), str(out)), reflinks=False, tell=tell)
            assert doing.run(doing.preview()).differences.samples == wanted
        if not wanted:
            assert differences(manifest(top), manifest(out / "tree")) == []
            shutil.rmtree(out)


def test_killed_while_folders_are_made_whole_it_goes_on(
    nights: Nights, tmp_path: Path, backupd_running: Callable[..., Any]
) -> None:
    top, out = nights.source / "tree", tmp_path / "out"
    for number in range(60):
        for count in range(100):
            write(top / f"folder{number:02d}/file{count:03d}", f"{number} {count}" * 300)
    nights.host("web1", top)
    nights.run("web1")
    words = ("--config", nights.config, "restore", "web1", top, "--to", out)
    process = backupd_running(*words)
    while process.poll() is None and not list((out / STAGING).glob("*/*")):
        time.sleep(0.001)
    beside = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(signal.SIGKILL)
    process.wait()
    while any(Path("/proc", pid, "cwd").exists() for pid in beside):  # these end when they see that
        time.sleep(0.01)
    for folder in out.glob("tree/folder*"):  # whole, or not there
        assert len(list(folder.iterdir())) == 100
    restore(nights, *words[3:])
    assert differences(manifest(top), manifest(out / "tree")) == []
    assert not list(out.rglob(".btrkeep-restore-*"))
