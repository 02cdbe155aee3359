"""Folders, symlinks and hard links are restored as quickly as plain files, and as safely as one by one."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from backupd.files.batched_walk import PlainFolders, Walked, walk_batched
from backupd.files.conflict_policy import LinkPlacer
from backupd.files.destination import PREFIX, Destination
from backupd.files.group_writer import link_names
from backupd.files.new_folders import make_folder
from backupd.files.placing import Visit
from backupd.files.restore_types import RestoreProgress, RestoreRequest
from backupd.files.to_folder import LocalRestore
from backupd.files.tree import Tree
from backupd.files.walking import PlainFile, PlainFiles, WalkEntry, walk, walk_grouped
from backupd.files.writing import Writer
from tests.beds import differences, manifest, work
from tests.beds.everything import write
from tests.beds.nights import Nights
from tests.beds.random_tree import random_tree
from tests.beds.within import Within, restore

pytestmark = [pytest.mark.root, pytest.mark.btrfs]


@pytest.fixture
def nights(shared_btrfs: Path) -> Nights:
    return Within(shared_btrfs)


@pytest.mark.parametrize("seed", range(4))
def test_a_random_tree_comes_back_in_groups_and_one_by_one(nights: Nights, tmp_path: Path, seed: int) -> None:
    top, quick, one_by_one, again = nights.source / "tree", tmp_path / "quick", tmp_path / "single", tmp_path / "again"
    random_tree(top, seed)
    nights.host("web1", top)
    nights.run("web1")
    wanted = manifest(top)
    first = restore(nights, "web1", top, "--to", quick, "--privileged")
    assert differences(wanted, manifest(quick / "tree")) == []
    work("cp", "-r", "--attributes-only", "--no-preserve=all", top, tmp_path / "skeleton", check=False)
    work("find", tmp_path / "skeleton", "-not", "-type", "d", "-delete")
    for folder in [path for path in (tmp_path / "skeleton").rglob("*") if path.is_dir()] + [tmp_path / "skeleton"]:
        write(folder / "in the way")  # no folder is fresh
    one_by_one.mkdir()
    work("mv", tmp_path / "skeleton", one_by_one / "tree")
    restore(nights, "web1", top, "--to", one_by_one, "--privileged", "--overwrite=all")
    work("find", one_by_one, "-name", "in the way", "-delete")
    for name, entry in wanted.items():  # the times of folders, which we have just changed
        if entry.kind == "d":
            os.utime(one_by_one / "tree" / os.fsdecode(name), ns=(0, (top / os.fsdecode(name)).stat().st_mtime_ns))
    assert differences(wanted, manifest(one_by_one / "tree")) == []
    seen = restore(nights, "web1", top, "--to", again, "--dry-run")
    done = restore(nights, "web1", top, "--to", again)
    for left_out in (seen["left_out"], done["left_out"]):
        for count in left_out.values():  # groups are done in any order
            count["samples"].sort(key=lambda sample: sample["place"])
    assert seen["left_out"] == done["left_out"]
    assert first["new"]["count"] - done["new"]["count"] == seen["left_out"]["devices"]["count"]
    assert restore(nights, "web1", top, "--to", again)["new"]["count"] == 0


def test_a_restore_that_is_killed_among_folders_and_links_goes_on(
    nights: Nights, tmp_path: Path, backupd_running: Callable[..., "subprocess.Popen[str]"]
) -> None:
    top, out = nights.source / "tree", tmp_path / "out"
    for seed in range(4):
        random_tree(top / f"{seed}", seed)
    nights.host("web1", top)
    nights.run("web1")
    words = ("--config", nights.config, "restore", "web1", top, "--to", out, "--privileged")
    for _ in range(3):
        process = backupd_running(*words)
        before = len(work("find", out, check=False).stdout)
        while process.poll() is None and len(work("find", out, check=False).stdout) <= before:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
    restore(nights, *words[3:])
    assert differences(manifest(top), manifest(out / "tree")) == []
    assert not list(out.rglob(".btrkeep-restore-*"))


def test_names_of_a_file_that_grants_privileges_stay_names_of_one_file(nights: Nights, tmp_path: Path) -> None:
    top, out = nights.source / "links", tmp_path / "out"
    path = write(top / "a" / "program")
    work("setcap", "cap_net_raw+ep", path)
    for number in range(100):
        os.link(path, top / "a" / f"link{number}")
    (top / "b").mkdir()
    os.link(path, top / "b" / "link")
    nights.host("web1", top)
    nights.run("web1")
    seen = restore(nights, "web1", top, "--to", out, "--dry-run")["left_out"]
    assert restore(nights, "web1", top, "--to", out)["left_out"] == seen
    assert seen["capabilities"]["count"] == 102
    assert (out / "links" / "b" / "link").stat().st_nlink == 102


def test_a_further_name_is_no_name_of_what_came_into_the_place_of_the_first(tmp_path: Path) -> None:
    links, files = LinkPlacer(), [PlainFile(b"further", 4, 4096, 0o644, 0, 0, 0, inode=7, links=2)]
    first = write(tmp_path / "a" / "first", "ours")
    (tmp_path / "b").mkdir()
    links.place(7, 2, (b"a", b"first"), first.stat().st_ino)
    write(tmp_path / "theirs", "secret").rename(first)
    with Destination(tmp_path, make=True) as to:
        assert link_names(to, (b"b",), files, links) == files
        first.unlink()
        first.symlink_to("/etc/passwd")  # it may get the number that is free now
        assert link_names(to, (b"b",), files, links) == files
    assert not list((tmp_path / "b").iterdir())


def test_further_names_whose_folder_was_moved_away_are_given_back(tmp_path: Path) -> None:
    """Restored one by one, each is reported; an error here would end the whole restore."""
    links, files = LinkPlacer(), [PlainFile(b"further", 4, 4096, 0o644, 0, 0, 0, inode=7, links=2)]
    links.place(7, 2, (b"first",), write(tmp_path / "first", "ours").stat().st_ino)
    with Destination(tmp_path, make=True) as to:
        assert link_names(to, (b"moved away",), files, links) == files


def test_a_further_name_takes_nothing_from_what_came_there_meanwhile(nights: Nights, tmp_path: Path) -> None:
    top, out = nights.source / "links", tmp_path / "out"
    for number in range(200):
        path = write(top / f"file{number:03}", f"{number}")
        os.link(path, top / f"file{number:03}-again")
    nights.host("web1", top)
    nights.run("web1")
    first, last = out / "links" / "file000", out / "links" / "file199-again"

    def come(progress: RestoreProgress) -> None:
        if progress.phase == "writing" and first.exists() and not last.exists():
            write(last, "theirs")

    with Tree(nights.backup("web1")) as tree:
        doing = LocalRestore(tree, RestoreRequest("web1", "", (os.fsencode(top),), str(out)), reflinks=False, tell=come)
        done = doing.run(doing.preview())
    assert last.read_text() == "theirs"
    assert [place for place, _ in done.problems.samples] == [os.fsencode(last)]


def _change_link(out: Path) -> None:
    (out / "link").unlink()
    (out / "link").symlink_to("elsewhere")
    os.utime(out / "link", ns=(0, 10**18), follow_symlinks=False)


def _change_further(out: Path) -> None:
    """Writes another file with the same content."""
    work("cp", "-a", out / "file", out / "copy")
    (out / "copy").rename(out / "further")


@pytest.mark.parametrize(
    ("change", "name", "why"),
    [
        (_change_link, "link", "differs: target"),
        (_change_further, "further", "differs: hard link"),
        (lambda out: (out / "folder").chmod(0o777), "folder", "differs: mode"),
        (lambda out: os.setxattr(out / "folder", "user.new", b"1"), "folder", "differs: attributes"),
    ],
)
def test_a_name_that_changes_before_the_comparison_is_reported(
    nights: Nights, tmp_path: Path, change: Callable[[Path], None], name: str, why: str
) -> None:
    top, out = nights.source / "tree", tmp_path / "out"
    write(top / "file", "text")
    os.link(top / "file", top / "further")
    (top / "link").symlink_to("file")
    os.utime(top / "link", ns=(0, 10**18), follow_symlinks=False)
    write(top / "folder" / "inside")
    nights.host("web1", top)
    nights.run("web1")

    def act(progress: RestoreProgress) -> None:
        if progress.phase == "syncing":
            before = (out / "tree").stat()
            change(out / "tree")
            os.utime(out / "tree", ns=(0, before.st_mtime_ns))

    with Tree(nights.backup("web1")) as tree:
        doing = LocalRestore(tree, RestoreRequest("web1", "", (os.fsencode(top),), str(out)), reflinks=False, tell=act)
        done = doing.run(doing.preview())
    assert (os.fsencode(out / "tree" / name), why) in done.differences.samples
    assert {place for place, _ in done.differences.samples} <= {os.fsencode(out / "tree" / each) for each in (name, "file")}


def test_a_folder_takes_the_name_of_nothing_and_leaves_nothing_behind(tmp_path: Path) -> None:
    write(tmp_path / "source" / "folder" / "inside")
    write(tmp_path / "to" / "folder", "theirs")
    sides = [os.open(tmp_path / name, os.O_RDONLY) for name in ("source", "to")]
    with Tree.of_folder(tmp_path / "source") as tree:
        made = make_folder(sides[0], b"folder", tree.stat(b"/folder"), sides[1], {}, privileged=True)
    for fd in sides:
        os.close(fd)
    assert made is None
    assert [(path.name, path.read_text()) for path in (tmp_path / "to").iterdir()] == [("folder", "theirs")]


@pytest.mark.parametrize("way", ["in a group", "by itself"])
def test_a_folder_that_another_user_moves_to_the_name_of_a_new_one_does_not_get_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The owner of the parent folder can do that, also with a folder of root's; it would then belong to that user."""
    (tmp_path / "source" / "theirs").mkdir(parents=True)
    os.chown(tmp_path / "source" / "theirs", 1000, 1000)
    write(tmp_path / "to" / "of root" / "secret").parent.chmod(0o700)
    os.chown(tmp_path / "to", 1000, 1000)
    mkdir = os.mkdir

    def made_and_swapped(name: bytes, mode: int, *, dir_fd: int) -> None:
        mkdir(name, mode, dir_fd=dir_fd)
        os.rename(b"of root", name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", made_and_swapped)
    with Tree.of_folder(tmp_path / "source") as tree, Destination(tmp_path / "to", make=False) as to, tree.folder(b"/") as source:
        entry = tree.stat(b"/theirs")
        if way == "in a group":
            assert make_folder(source, b"theirs", entry, to.folder(()), {}, privileged=True) is None
        else:
            with pytest.raises(OSError, match="another file has replaced it"):
                Writer(to, lambda _: None).make(Visit(entry, source, b"theirs", (b"theirs",), left=False), None)
    (held,) = (tmp_path / "to").iterdir()
    assert ([path.name for path in held.iterdir()], held.stat().st_uid) == (["secret"], 0)


def test_a_walk_without_links_keeps_the_order_of_names_and_has_only_files_with_one_name(tmp_path: Path) -> None:
    random_tree(tmp_path / "tree", 7, names=600)
    names, grouped = list[bytes](), list[bytes]()
    with Tree.of_folder(tmp_path / "tree") as tree:
        wanted = [entry.entry.path for entry in walk(tree, b"/") if not entry.left]
        for visit in walk_grouped(tree, b"/"):
            if isinstance(visit, PlainFiles):
                assert all(file.links == 1 and not file.is_symlink for file in visit.files)
                grouped += [visit.above + b"/" + file.name for file in visit.files]
                names += grouped[-len(visit.files) :]
            elif not visit.left:
                names.append(visit.entry.path)
    assert names == wanted
    assert grouped


def test_a_grouped_walk_gives_each_name_once_and_a_folder_around_its_names(tmp_path: Path) -> None:
    random_tree(tmp_path / "tree", 7, names=600)
    names, inside = list[bytes](), [b""]
    with Tree.of_folder(tmp_path / "tree") as tree:
        for visit in walk_batched(tree, b"/"):
            if isinstance(visit, PlainFolders):
                assert visit.above == inside[-1].rstrip(b"/")
                for folder in visit.folders:
                    path = visit.above + b"/" + folder.name
                    names += [path, *(path + b"/" + file.name for file in folder.files)]
            elif isinstance(visit, PlainFiles):
                assert visit.above == inside[-1].rstrip(b"/")
                names += [visit.above + b"/" + file.name for file in visit.files]
            elif visit.left:
                assert inside.pop() == visit.entry.path
            else:
                assert visit.entry.path.rpartition(b"/")[0] == inside[-1].rstrip(b"/")
                names.append(visit.entry.path)
                if visit.entry.kind == "folder":
                    inside.append(visit.entry.path)
    wanted = work("find", ".", "-print0", cwd=tmp_path / "tree").stdout.split("\0")[:-1]
    assert sorted(names) == sorted(os.fsencode("/" + name[2:]) for name in wanted)


@pytest.mark.parametrize("walked", [walk_batched, walk_grouped])
def test_a_file_that_is_mounted_is_in_no_group(tmp_path: Path, walked: Callable[[Tree, bytes], Iterable[Walked]]) -> None:
    write(tmp_path / "mounted")
    write(tmp_path / "other")
    work("mount", "--bind", "/proc/version", tmp_path / "mounted")
    try:
        with Tree.of_folder(tmp_path) as tree:
            walk_entries = list(walked(tree, b"/"))
    finally:
        work("umount", tmp_path / "mounted")
    groups = [visit for visit in walk_entries if isinstance(visit, PlainFiles)]
    assert [file.name for group in groups for file in group.files] == [b"other"]
    assert b"/mounted" in [visit.entry.path for visit in walk_entries if isinstance(visit, WalkEntry)]


@pytest.mark.parametrize("name", ["small", "large", "folder/inside"])
def test_what_is_mounted_on_a_file_meanwhile_is_never_taken_for_the_backup(nights: Nights, tmp_path: Path, name: str) -> None:
    top, out = nights.source / "tree", tmp_path / "out"
    for file in ("small", "large", "folder/inside", "other"):
        write(top / file, file * (1 << 19 if file == "large" else 1))
    nights.host("web1", top)
    nights.run("web1")
    at = nights.data("web1", top / name)
    theirs = write(tmp_path / "theirs", "theirs")
    try:
        with Tree(nights.backup("web1")) as tree:
            doing = LocalRestore(tree, RestoreRequest("web1", "", (os.fsencode(top),), str(out)), reflinks=False)
            preview = doing.preview()
            work("mount", "--bind", theirs, at)
            done = doing.run(preview)
    finally:
        work("umount", at)
    assert f"{name}: " in done.failure
    assert "another filesystem is mounted there" in done.failure
    assert sorted(file.name for file in out.rglob("*") if file.is_file()) == sorted(
        {"small", "large", "inside", "other"} - {at.name}
    )


def test_a_leftover_folder_of_a_killed_restore_is_deleted(nights: Nights, tmp_path: Path) -> None:
    top, out = nights.source / "tree", tmp_path / "out"
    write(top / "folder" / "inside")
    nights.host("web1", top)
    nights.run("web1")
    (out / "tree" / f"{PREFIX.decode()}0-folder0").mkdir(parents=True)
    restore(nights, "web1", top, "--to", out, "--overwrite=all")
    assert differences(manifest(top), manifest(out / "tree")) == []


def test_equal_inode_numbers_of_two_filesystems_make_no_hard_link(nights: Nights, tmp_path: Path) -> None:
    """The destination has another filesystem below it, and each has its own inode numbers."""
    top, out = nights.source / "srv", tmp_path / "out"
    write(top / "a", "of the backup")
    (top / "m").mkdir()
    os.link(top / "a", top / "m" / "b")
    nights.host("web1", top)
    nights.run("web1")
    out.mkdir()
    inner = out / "srv" / "m"
    work("mount", "-t", "tmpfs", "-o", "mode=700", "outer", out)
    try:
        inner.mkdir(parents=True)
        work("mount", "-t", "tmpfs", "inner", inner)
        try:
            shutil.copy2(top / "a", out / "srv" / "a")
            wanted = (out / "srv" / "a").stat()
            for number in range(100):
                write(inner / "b", "of the others")
                if (inner / "b").stat().st_ino == wanted.st_ino:
                    break
                (inner / "b").rename(inner / f"other{number}")
            os.utime(inner / "b", ns=(0, wanted.st_mtime_ns))
            for folder in ("m", ""):
                shutil.copystat(top / folder, out / "srv" / folder)
            alike = [path.stat() for path in (out / "srv" / "a", inner / "b")]
            assert len({(status.st_ino, status.st_size, status.st_mtime_ns) for status in alike}) == 1
            assert "differs: hard link" in restore(nights, "web1", top, "--to", out, status=1)["stderr"]
            done = restore(nights, "web1", top, "--to", out, "--overwrite=never", status=0)
            assert done["kept"]["count"] == 1, done
        finally:
            work("umount", inner)
    finally:
        work("umount", out)


@pytest.mark.parametrize("content", [True, False])
@pytest.mark.parametrize("change", ["content", "mode"])
def test_a_changed_file_with_several_names_is_reported_with_each(
    nights: Nights, tmp_path: Path, change: str, content: bool
) -> None:
    top, out = nights.source / "srv", tmp_path / "out"
    for name in ("a", "b", "m/c"):
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, "of the backup") if name == "a" else os.link(top / "a", path)
    nights.host("web1", top)
    nights.run("web1")
    with Tree(nights.backup("web1")) as tree:
        request = RestoreRequest("web1", "", (os.fsencode(top),), str(out), content=content)
        doing = LocalRestore(tree, request, reflinks=False, tell=lambda progress: _spoil(progress, out / "srv" / "a", change))
        done = doing.run(doing.preview())
    places = {os.fsdecode(place) for place, _ in done.differences.samples}
    named = {str(out / "srv" / name) for name in ("a", "b", "m/c")}
    assert places == (named if content or change == "mode" else set())


def _spoil(progress: RestoreProgress, path: Path, change: str) -> None:
    """Changes a file between the writing and the comparison."""
    if progress.phase == "syncing":
        status = path.stat()
        if change == "mode":
            path.chmod(0o600 if status.st_mode & 0o777 != 0o600 else 0o640)
        else:
            path.write_text("by the others")
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("content", [True, False])
def test_attributes_that_come_or_go_before_the_comparison_are_reported(nights: Nights, tmp_path: Path, content: bool) -> None:
    top, out = nights.source / "tree", tmp_path / "out" / "tree"
    for name in ("a", "b", "c"):
        write(top / name / "file", "text")
        (top / name / "link").symlink_to("file")
        os.link(write(top / "links" / name), top / "links" / f"{name}-further")
        (top / "empty" / name).mkdir(parents=True)
    dressed = [Path("b"), Path("c/file"), Path("empty/b"), Path("links/c")]
    bare = [Path("a"), Path("a/file"), Path("a/link"), Path("empty/a"), Path("empty/c"), Path("links/a")]
    for path in dressed:
        os.setxattr(top / path, "user.words", b"1")
    nights.host("web1", top)
    nights.run("web1")

    def act(progress: RestoreProgress) -> None:
        if progress.phase == "syncing":
            for path in bare:
                os.setxattr(out / path, "trusted.new", b"1", follow_symlinks=False)
            for path in dressed:
                os.removexattr(out / path, "user.words")

    with Tree(nights.backup("web1")) as tree:
        request = RestoreRequest("web1", "", (os.fsencode(top),), str(out.parent), content=content)
        doing = LocalRestore(tree, request, reflinks=False, tell=act)
        done = doing.run(doing.preview())
    further = [Path("links/a-further"), Path("links/c-further")]
    assert {place for place, _ in done.differences.samples} == {os.fsencode(out / path) for path in (*bare, *dressed, *further)}
    assert {why for _, why in done.differences.samples} == {"differs: attributes"}


def test_folders_that_go_to_one_place_together_are_all_there(nights: Nights, tmp_path: Path) -> None:
    """More folders than one batch has, some with files and some without."""
    top, out = nights.source / "tree", tmp_path / "out"
    for number in range(150):
        (top / f"{number:03}").mkdir(parents=True)
        for file in range(number % 4):
            write(top / f"{number:03}" / f"file{file}", "text" * file)
        (top / f"{number:03}").chmod(0o700 + number % 8)
        os.utime(top / f"{number:03}", ns=(0, 10**18 + number))
    nights.host("web1", top)
    nights.run("web1")

    with Tree(nights.backup("web1")) as tree:
        doing = LocalRestore(tree, RestoreRequest("web1", "", (os.fsencode(top),), str(out)), reflinks=False)
        done = doing.run(doing.preview())
    assert done.good
    assert differences(manifest(top), manifest(out / "tree")) == []
    assert done.counts["new"].number == 1 + 150 + sum(number % 4 for number in range(150))


def test_folders_that_are_given_back_together_do_not_change_the_time_of_the_folder_above(nights: Nights, tmp_path: Path) -> None:
    """Another filesystem refuses their compression. Files of each are still being copied when the next one is made."""
    top, out = nights.source / "tree", tmp_path / "out"
    for number in range(50):
        write(top / "above" / f"{number:02}" / "file", "t" * 70_000)
        work("btrfs", "property", "set", top / "above" / f"{number:02}", "compression", "zstd")
    for name in ("above", ""):
        os.utime(top / name, ns=(0, 10**18 + 7))
    nights.host("web1", top)
    nights.run("web1")
    with Tree(nights.backup("web1")) as tree:
        doing = LocalRestore(tree, RestoreRequest("web1", "", (os.fsencode(top),), str(out)), reflinks=False)
        done = doing.run(doing.preview())
    assert done.differences.samples == []
    assert (out / "tree" / "above").stat().st_mtime_ns == 10**18 + 7
