"""The hard link guard on a real btrfs, with the real rsync, compared by manifests."""

import os
import shlex
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from backupd.repo import hardlinks
from backupd.repo.hardlinks import split_hard_links
from btrkeep.errors import PoolUnusable
from btrkeep.treescan import linked_inodes
from tests.beds import Entry, differences, exclusive_bytes, manifest, work
from tests.beds.btrfs import remount
from tests.beds.cancelling import CancelledWhen

RSYNC = (
    *("rsync", "-aHAX", "--numeric-ids", "--relative", "--inplace", "--no-whole-file"),
    *("--delete-delay", "--delete-excluded", "--modify-window=-1"),
)
Change = Callable[[Path], None]
NO_DATA = 16384  # bytes: less than a handful of blocks


@pytest.fixture
def source(shared_btrfs: Path) -> Path:
    """Two pairs of linked files, four names of a third, and one without links."""
    source = shared_btrfs / "source"
    (source / "etc").mkdir(parents=True)
    for name, others in (("a", ["b"]), ("c", ["etc/d"]), ("e", ["f", "etc/g", "etc/h"]), ("alone", [])):
        (source / name).write_text(f"content of {name}\n" * 3000)
        for other in others:
            (source / other).hardlink_to(source / name)
    return source


def pull(fakessh: Path, source: Path, backup: Path) -> None:
    work(*RSYNC, "-e", shlex.quote(str(fakessh)), f"host:{source}/./", backup / "data/")


def first_backup(fakessh: Path, source: Path) -> Path:
    backup = source.with_name("first")
    work("btrfs", "-q", "subvolume", "create", backup)
    pull(fakessh, source, backup)
    assert differences(manifest(source), manifest(backup / "data")) == []
    return backup


def snapshot(backup: Path, name: str = ".working") -> Path:
    work("btrfs", "-q", "subvolume", "snapshot", backup, backup.with_name(name))
    return backup.with_name(name)


def unlinked(names: dict[bytes, Entry]) -> dict[bytes, Entry]:
    """Makes the same tree with a separate inode for each name."""
    return {name: replace(entry, links=(name,) if entry.links else ()) for name, entry in names.items()}


def top_names(backup: Path) -> list[str]:
    return [entry.name for entry in backup.iterdir()]


def changed_copy(*command: str) -> Change:
    """Changes a file with several links like a package manager or an editor: a changed copy is renamed over one name."""

    def change(source: Path) -> None:
        work("cp", "-p", source / "a", source / "n")
        work(*command, source / "n")
        work("mv", source / "n", source / "a")

    return change


def written_anew(source: Path) -> None:
    (source / "n").write_text("new content\n")
    work("mv", source / "n", source / "a")


BROKEN_LINKS = {
    "content": written_anew,
    "mode": changed_copy("chmod", "600"),
    "owner": changed_copy("chown", "1234:5678"),
    "ACL": changed_copy("setfacl", "-m", "u:1234:rwx"),
    "xattr": changed_copy("setfattr", "-n", "user.origin", "-v", "elsewhere"),
    "file capability": changed_copy("setcap", "cap_net_raw+ep"),
    "mtime": changed_copy("touch", "-d", "2001-02-03 04:05:06.789"),
}


@pytest.mark.parametrize("change", BROKEN_LINKS.values(), ids=BROKEN_LINKS.keys())
def test_a_link_broken_at_the_source_comes_back_right_and_the_others_stay_links(
    source: Path, fakessh: Path, change: Change
) -> None:
    working = snapshot(first_backup(fakessh, source))
    change(source)
    split_hard_links(working)
    pull(fakessh, source, working)
    assert differences(manifest(source), manifest(working / "data")) == []
    assert (source / "c").stat().st_nlink == 2  # so the comparison of links above compared some


@pytest.mark.parametrize("change", BROKEN_LINKS.values(), ids=BROKEN_LINKS.keys())
def test_without_the_split_a_name_of_a_broken_link_is_silently_wrong(source: Path, fakessh: Path, change: Change) -> None:
    """The hazard itself. If an rsync handles this correctly, the guard can be removed."""
    working = snapshot(first_backup(fakessh, source))
    change(source)
    pull(fakessh, source, working)
    assert differences(manifest(source), manifest(working / "data")) != []


def test_links_that_still_hold_are_links_again_and_share_their_data_with_the_base(source: Path, fakessh: Path) -> None:
    for number in range(50):
        (source / f"big{number}").write_bytes(os.urandom(200_000))
        (source / f"etc/big{number}").hardlink_to(source / f"big{number}")
    first = first_backup(fakessh, source)
    working = snapshot(first)
    result = split_hard_links(working)
    assert (result.inodes, result.names) == (53, 55)
    assert exclusive_bytes(working) <= NO_DATA
    pull(fakessh, source, working)
    assert differences(manifest(source), manifest(working / "data")) == []
    assert exclusive_bytes(working) <= NO_DATA


def hostile_tree(data: Path) -> None:
    """Links of every kind of inode, odd names, and symlinks that lead out of the backup."""
    victim = data.parent.parent / "victim"
    victim.mkdir()
    (victim / "a").write_text("not in the backup\n")
    folder = data / "folder\nwith newline"
    folder.mkdir(parents=True)
    (data / "leads out").symlink_to(victim)
    (data / "absolute").symlink_to("/etc/passwd")
    (data / "plain").write_text("plain\n" * 5000)
    (data / "empty").touch()
    (data / "setuid").write_text("#!/bin/sh\n")
    os.mkfifo(data / "fifo", 0o640)
    os.mknod(data / "socket", stat.S_IFSOCK | 0o755)
    os.mknod(data / "device", stat.S_IFBLK | 0o660, os.makedev(7, 300))
    for name in ("leads out", "absolute", "plain", "empty", "setuid", "fifo", "socket", "device"):
        os.lchown(data / name, 1001, 1002)
        for other in (b"\xff\xfe " + name.encode(), name.encode() + b"\n2"):
            os.link(data / name, os.fsencode(folder) + b"/" + other, follow_symlinks=False)
    (data / "setuid").chmod(0o6755)
    work("setcap", "cap_net_raw,cap_chown+ep", data / "setuid")
    work("setfacl", "-m", "u:1001:r,g:1002:rw,m::rw", data / "plain")
    work("setfacl", "-m", "u:1001:rw", data / "fifo")
    work("setfacl", "-d", "-m", "u:1003:rwx", folder)  # new entries inherit it
    for name in ("plain", "absolute", "fifo", "device"):
        work("setfattr", "-h", "-n", "trusted.kept", "-v", name, data / name)
        work("touch", "-h", "-d", "2002-03-04 05:06:07.123456789", data / name)
    work("touch", "-d", "2003-03-03 03:03:03.303030303", folder)
    folder.chmod(0o2775)


def test_every_kind_of_file_keeps_all_it_has_and_nothing_outside_is_touched(shared_btrfs: Path) -> None:
    base = shared_btrfs / "base"
    work("btrfs", "-q", "subvolume", "create", base)
    hostile_tree(base / "data")
    working = snapshot(base)
    outside = manifest(shared_btrfs / "victim")
    result = split_hard_links(working)
    assert (result.inodes, result.names) == (8, 16)
    assert differences(unlinked(manifest(base / "data")), manifest(working / "data")) == []
    assert work("find", working, "-links", "+1", "!", "-type", "d").stdout == ""
    assert top_names(working) == ["data"]
    assert differences(outside, manifest(shared_btrfs / "victim")) == []


def test_what_is_not_in_data_is_left_alone(shared_btrfs: Path) -> None:
    (shared_btrfs / "data").mkdir()
    (shared_btrfs / "beside").mkdir()
    (shared_btrfs / "outside").touch()
    (shared_btrfs / "beside" / "data").hardlink_to(shared_btrfs / "outside")
    (shared_btrfs / "data" / "inside").hardlink_to(shared_btrfs / "outside")
    work("btrfs", "filesystem", "sync", shared_btrfs)
    assert split_hard_links(shared_btrfs).names == 1
    assert work("find", shared_btrfs, "-type", "f", "-links", "2", "-printf", "%P\n").stdout.split() == ["beside/data", "outside"]


def test_holes_preallocation_and_nocow_stay_as_they_are(shared_btrfs: Path) -> None:
    data = shared_btrfs / "base" / "data"
    work("btrfs", "-q", "subvolume", "create", data.parent)
    data.mkdir()
    work("truncate", "-s", "8M", data / "sparse")
    work("dd", "if=/dev/urandom", f"of={data / 'sparse'}", "bs=1M", "count=1", "seek=3", "conv=notrunc", "status=none")
    work("fallocate", "-l", "3M", data / "preallocated")
    (data / "nocow").touch()
    work("chattr", "+C", data / "nocow")
    (data / "nocow").write_bytes(os.urandom(300_000))
    for name in ("sparse", "preallocated", "nocow"):
        (data / f"{name}2").hardlink_to(data / name)
    working = snapshot(data.parent)
    assert split_hard_links(working).names == 3
    assert differences(unlinked(manifest(data, blocks=True)), manifest(working / "data", blocks=True)) == []
    for name in ("nocow", "nocow2"):
        assert "C" in work("lsattr", working / "data" / name).stdout.split()[0]
    assert "unwritten" in work("filefrag", "-v", working / "data" / "preallocated2").stdout
    assert exclusive_bytes(working) <= NO_DATA


def test_data_that_cannot_be_shared_is_copied_with_its_holes(make_btrfs: Callable[..., Path]) -> None:
    """Some files have checksums, new ones have none: the mount option changed."""
    point = make_btrfs(size="512M")
    work("btrfs", "-q", "subvolume", "create", point / "base")
    data = point / "base" / "data"
    data.mkdir()
    for name in ("one", "hole only"):
        work("truncate", "-s", "8M", data / name)
        (data / f"{name}2").hardlink_to(data / name)
    for place in (0, 3, 6):
        work("dd", "if=/dev/urandom", f"of={data / 'one'}", "bs=1M", "count=1", f"seek={place}", "conv=notrunc", "status=none")
    working = snapshot(data.parent)
    remount(point, "nodatasum")
    assert split_hard_links(working).names == 2
    work("btrfs", "filesystem", "sync", point)
    assert differences(unlinked(manifest(data, blocks=True)), manifest(working / "data", blocks=True)) == []
    assert exclusive_bytes(working) == 3 << 20  # so it was copied


def test_thousands_of_names_in_many_deep_folders_are_split(shared_btrfs: Path) -> None:
    """More folders than are kept open, one deeper than a path can be long, and more names of one inode than INODE_REFs hold."""
    data = shared_btrfs / "data"
    for number in range(150):
        folder = data / str(number) / "inner"
        folder.mkdir(parents=True)
        for each in range(20):
            (folder / f"{each}{'n' * 100}").hardlink_to(data / "one") if number or each else (data / "one").write_text("one")
    fd = os.open(data, os.O_RDONLY)
    for _ in range(50):
        os.mkdir("d" * 200, dir_fd=fd)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.link(data / "one", "deep", dst_dir_fd=fd)
    os.close(fd)
    for folder in [data, *data.glob("*/inner")]:
        work("touch", "-d", "2004-04-04 04:04:04.4", folder)
    work("btrfs", "filesystem", "sync", shared_btrfs)
    assert split_hard_links(shared_btrfs).names == 150 * 20
    assert work("find", data, "-links", "+1", "!", "-type", "d").stdout == ""
    assert len(work("find", data, "-type", "f", "-size", "3c").stdout.splitlines()) == 150 * 20 + 1
    assert work("find", data, "-maxdepth", "2", "-name", "inner", "-newermt", "2004-04-05").stdout == ""


def test_an_acl_that_the_top_of_the_backup_hands_down_reaches_no_copy(shared_btrfs: Path) -> None:
    (shared_btrfs / "data").mkdir()
    (shared_btrfs / "data" / "one").touch()
    (shared_btrfs / "data" / "two").hardlink_to(shared_btrfs / "data" / "one")
    work("setfacl", "-d", "-m", "u:1003:rwx", shared_btrfs)
    before = manifest(shared_btrfs / "data")
    work("btrfs", "filesystem", "sync", shared_btrfs)
    assert split_hard_links(shared_btrfs).names == 1
    assert differences(unlinked(before), manifest(shared_btrfs / "data")) == []


def test_a_second_split_has_nothing_to_do(source: Path, fakessh: Path) -> None:
    working = snapshot(first_backup(fakessh, source))
    assert split_hard_links(working).names == 5
    before = work("find", working, "-printf", "%P %i %T@ %C@\\n").stdout
    work("btrfs", "filesystem", "sync", working)
    result = split_hard_links(working)
    assert (result.inodes, result.names) == (0, 0)
    assert work("find", working, "-mindepth", "1", "-printf", "%P %i %T@ %C@\\n").stdout == before.split("\n", 1)[1]


def killed_after(steps: int, working: Path) -> bool:
    """Splits in a process that is killed at that step (each opening, ioctl, rename, ...); returns whether it got that far."""
    child = os.fork()
    if not child:
        left = iter(range(steps))

        def step(*event: object) -> None:
            if next(left, None) is None:
                signal.raise_signal(signal.SIGKILL)

        try:
            sys.addaudithook(step)
            split_hard_links(working)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_killed_at_any_step_and_called_again_it_ends_right(shared_btrfs: Path) -> None:
    base = shared_btrfs / "base"
    work("btrfs", "-q", "subvolume", "create", base)
    (base / "data" / "folder").mkdir(parents=True)
    (base / "data" / "one").write_text("one\n" * 5000)
    (base / "data" / "folder" / "two").hardlink_to(base / "data" / "one")
    work("setfattr", "-n", "user.kept", "-v", "1", base / "data" / "one")
    (base / "data" / "link").symlink_to("one")
    os.link(base / "data" / "link", base / "data" / "folder" / "link", follow_symlinks=False)
    wanted = without_folder_times(unlinked(manifest(base / "data")))
    steps, leftovers = 0, 0
    while True:
        working = snapshot(base, f"killed{steps}")
        killed = killed_after(steps, working)
        leftovers += len(top_names(working)) - 1
        work("btrfs", "filesystem", "sync", working)
        split_hard_links(working)
        assert differences(wanted, without_folder_times(manifest(working / "data"))) == [], f"killed at step {steps}"
        assert top_names(working) == ["data"]
        if not killed:
            break
        steps += 1
    assert steps > 20
    assert leftovers > 3  # so it was killed between making a copy and renaming it


def without_folder_times(names: dict[bytes, Entry]) -> dict[bytes, Entry]:
    """Returns the entries without times of folders: a killed process cannot restore them; rsync does."""
    return {name: replace(entry, mtime=0 if entry.kind == "d" else entry.mtime) for name, entry in names.items()}


def test_names_that_were_deleted_or_replaced_are_no_error(shared_btrfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search may be outdated: here it read all names before one was removed and another replaced by a new file."""
    data = shared_btrfs / "data"
    (data / "gone").mkdir(parents=True)
    (data / "one").touch()
    for name in ("two", "three", "four", "gone/five"):
        (data / name).hardlink_to(data / "one")
    work("btrfs", "filesystem", "sync", shared_btrfs)
    with opened(shared_btrfs) as root:
        seen = list(linked_inodes(root))
    work("rm", "-r", data / "two", data / "three", data / "gone")
    (data / "three").write_text("new")
    (data / "three too").hardlink_to(data / "three")
    work("btrfs", "filesystem", "sync", shared_btrfs)
    monkeypatch.setattr(hardlinks, "linked_inodes", lambda _, **_since: iter(seen))
    assert split_hard_links(shared_btrfs).names == 1
    linked = work("find", shared_btrfs, "-links", "+1", "!", "-type", "d", "-printf", "%f\n").stdout.splitlines()
    assert sorted(linked) == ["three", "three too"]


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY)
    yield fd
    os.close(fd)


def test_a_read_only_backup_is_an_unusable_pool_and_not_a_traceback(source: Path, fakessh: Path) -> None:
    first = first_backup(fakessh, source)
    work("btrfs", "property", "set", "-ts", first, "ro", "true")
    with pytest.raises(PoolUnusable):
        split_hard_links(first)


def test_a_split_that_is_stopped_ends_at_the_next_name_and_can_be_repeated(fakessh: Path, source: Path) -> None:
    working = snapshot(first_backup(fakessh, source))
    before = unlinked(manifest(working / "data"))
    asked = iter((False, False, True))
    assert split_hard_links(working, cancelled=CancelledWhen(lambda: next(asked))).names == 1
    assert not (working / ".split").exists()
    linked = work("find", working / "data", "-type", "f", "-links", "+1").stdout.splitlines()
    assert len(linked) == 6
    split_hard_links(working)
    assert differences(before, manifest(working / "data")) == []
