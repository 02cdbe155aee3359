"""A copy equals its backup, whatever the content: compared by rsync and by a manifest."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds import differences, manifest, work
from tests.beds.hidden_changes import hide_changes
from tests.beds.nights import Nights
from tests.beds.two_pools import TwoPools, shown
from tests.beds.watch import checkpoints, killed

pytestmark = [pytest.mark.btrfs, pytest.mark.root]


def make_strange(source: Path) -> None:
    """Makes entries other than plain files, which a copy must contain."""
    (source / "odd \n name *[x]'\"\\").write_text("x")
    (source / os.fsdecode(b"no \xff utf-8")).write_text("x")
    os.mkfifo(source / "pipe")
    os.mknod(source / "node", 0o20600, os.makedev(1, 3))
    (source / "symlink").symlink_to("../nowhere")
    (source / "first name").write_text("linked")
    os.link(source / "first name", source / "second name")
    with (source / "sparse").open("wb") as file:
        file.truncate(8 << 20)
        file.seek(4 << 20)
        file.write(b"x" * 5000)
    os.setxattr(source / "first name", "user.note", b"\x00\xff")
    os.setxattr(source / "first name", "trusted.note", b"t")
    work("setfacl", "-m", "u:1234:r,g:4321:rw", source / "sparse")
    os.chown(source / "sparse", 1234, 4321)
    (source / "folder").mkdir(mode=0o2750)
    (source / "folder/inside").write_text("y" * 100)


def require_same(two: TwoPools, *names: str) -> None:
    """Compares the copies with the backups, and with the mark that btrfs gives a received subvolume."""
    for name in names:
        assert two.differences(name) == ""
        here, path = two.second.backup("web1", name), two.first.backup("web1", name)
        assert differences(manifest(path), manifest(here)) == []
        assert shown(here)["Received UUID"] == shown(path)["UUID"]
        assert shown(here)["Flags"] == "readonly"


def parents(rows: list[dict[str, list[dict[str, str | None]]]]) -> list[tuple[str | None, str | None]]:
    """Returns each fetched backup with the parent of its difference."""
    return [(fetched["backup"], fetched["parent"]) for fetched in rows[0]["fetched"]]


def change_strange(source: Path) -> None:
    """Changes a part of the large file, breaks a hard link, makes another one, and replaces a folder by a file."""
    with (source / "large").open("r+b") as file:
        file.seek(3 << 20)
        file.write(b"changed" * 100)
    times = (source / "first name").stat()
    (source / "second name").unlink()
    (source / "second name").write_text("LINKED")
    os.utime(source / "second name", ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    os.link(source / "large", source / "large too")
    (source / "folder/inside").unlink()
    (source / "folder").rmdir()
    (source / "folder").write_text("a file now")
    with (source / "new sparse").open("wb") as file:
        file.truncate(8 << 20)
        file.write(b"z")


def test_a_copy_and_the_copy_of_a_copy_are_the_same_and_share_what_did_not_change(
    two: TwoPools, make_btrfs: Callable[..., Path]
) -> None:
    """While something is mounted in the backup: a copy has the files below the mount, not the mounted ones."""
    make_strange(two.source)
    (two.source / "large").write_bytes(os.urandom(6 << 20))
    (two.source / "mounted over").mkdir()
    (two.source / "mounted over/file").write_text("of the backup")
    third = Nights(make_btrfs(), "--rehearsal")
    third.tables["replica.second"] = {"from": str(two.second.pool)}
    third.write()
    first = two.night("2026-03-01T22:00:00Z", "a")
    place = two.first.data("web1", two.source, first) / "mounted over"
    work("mount", "-t", "tmpfs", "tmpfs", place)
    try:
        (place / "stranger").write_text("not of the backup")
        assert parents(two.fetch()) == [(first, None)]
    finally:
        work("umount", place)
    require_same(two, first)
    change_strange(two.source)
    second = two.night("2026-03-02T22:00:00Z", "b")
    fetched = two.fetch()
    assert parents(fetched) == [(second, first)]
    assert fetched[0]["bytes"] < 2 << 20  # out of six million in the large file, and eight million zeros
    require_same(two, first, second)
    for name, size in (("sparse", 1 << 20), ("new sparse", 4096)):
        allocated = work("du", "--block-size=1", two.second.data("web1", two.source, second) / name).stdout.split()[0]
        assert int(allocated) <= size
    exclusive = (
        work("btrfs", "filesystem", "du", "-s", "--raw", two.second.backup("web1", second)).stdout.splitlines()[1].split()[1]
    )
    assert int(exclusive) < 2 << 20
    third.backupd("replicate", "--now", "2026-03-20T12:00:00Z")
    for name in (first, second):
        assert differences(manifest(two.first.backup("web1", name)), manifest(third.backup("web1", name))) == []


def test_a_file_that_changed_under_the_same_size_and_time_is_changed_in_the_copy_too(two: TwoPools) -> None:
    """As after a night that compares checksums, and after a repair."""
    (two.source / "quiet").write_text("before")
    (two.source / "quiet and large").write_bytes(b"x" * 200_000)
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    second = two.night("2026-03-02T22:00:00Z", "b")
    backup, data = two.first.backup("web1", second), two.first.data("web1", two.source, second)
    work("btrfs", "property", "set", backup, "ro", "false")
    for name, content in (("quiet", b"behind"), ("quiet and large", b"y" * 200_000)):
        times = (data / name).stat()
        assert times.st_size == len(content)
        (data / name).write_bytes(content)
        os.utime(data / name, ns=(times.st_atime_ns, times.st_mtime_ns))
    work("btrfs", "property", "set", backup, "ro", "true")
    hide_changes(backup.parent)
    assert parents(two.fetch()) == [(second, first)]
    require_same(two, first, second)
    assert (two.second.data("web1", two.source, second) / "quiet").read_text() == "behind"


def test_a_backup_that_did_not_grow_from_the_common_one_is_copied_as_it_is(two: TwoPools) -> None:
    """As after `backupd import`: two backups of the first pool that are no snapshots of each other."""
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    second = two.night("2026-03-02T22:00:00Z", "b")
    backup = two.first.backup("web1", second)
    other = backup.with_name("other")
    work("btrfs", "subvolume", "create", other)
    work("cp", "-a", f"{backup}/.", other)
    record = json.loads((other / "backup.json").read_text())
    (other / "backup.json").write_text(json.dumps({**record, "uuid": shown(other)["UUID"]}))
    quiet = other / f"data{two.source}/new-2026-03-01"
    times = quiet.stat()
    quiet.write_text("x")
    os.utime(quiet, ns=(times.st_atime_ns, times.st_mtime_ns))
    work("btrfs", "property", "set", other, "ro", "true")
    work("btrfs", "subvolume", "delete", backup)
    other.rename(backup)
    two.first.backupd("rebuild")
    assert [fetched for fetched, _ in parents(two.fetch())] == [second]
    require_same(two, first, second)
    assert (two.second.data("web1", two.source, second) / "new-2026-03-01").read_text() == "x"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_replication_that_is_killed_anywhere_costs_no_backup(two: TwoPools) -> None:
    """At each checkpoint; the next replication removes the remains, and fetches the backup."""
    words = ("replicate", "--now", "2026-05-20T12:00:00Z")
    names = [two.night("2026-03-01T22:00:00Z", "a")]
    two.second.backupd(*words)  # the first fetch of a host passes more of them
    names.append(two.night("2026-03-01T23:00:00Z", "b"))
    number = len(checkpoints(two.second, *words))
    assert number > 15
    for count in range(1, number + 1):
        names.append(two.night(f"2026-03-{count // 24 + 2:02}T{count % 24:02}:00:00Z", str(count)))
        killed(two.second, "any", "any", *words, count=count)
        two.second.backupd(*words)
        require_same(two, names[-1])
        assert not (two.second.pool / "hosts/web1/.receiving").exists()
    assert two.names(two.second.pool) == names
