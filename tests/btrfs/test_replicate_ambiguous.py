"""Several subvolumes of one filesystem that are copies of the same backup: `btrfs receive` finds its parent only by that mark.

rsync, which is independent of btrkeep, compares the received data with the source; `btrfs subvolume show` names the parent.
"""

import json
import os
import shlex
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from tests.beds import work
from tests.beds.faults import damage
from tests.beds.nights import Nights
from tests.beds.two_pools import TwoPools, shown
from tests.beds.watch import rows

pytestmark = pytest.mark.btrfs
NOW = ("--now", "2026-03-20T12:00:00Z")
MIB = 1 << 20


def other_pool(two: TwoPools, source: Path, top: Path) -> Nights:
    """Makes another pool, below `top`, which fetches from the pool at `source`."""
    top.mkdir()
    other = Nights(top, "--rehearsal")
    other.tables["replica.office"] = {"from": str(source)}
    other.write()
    return other


def fetched(pool: Nights, *words: str) -> list[str]:
    """Fetches; returns the names of the fetched backups."""
    done = pool.backupd("replicate", "--json", *words, *NOW, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [fetched_backup["backup"] for row in json.loads(done.stdout) for fetched_backup in row["fetched"]]


def require_same(two: TwoPools, pool: Nights, names: list[str]) -> None:
    """Requires that the pool has exactly these backups, each with the same content as in the first pool, each a copy that is not
    writable.
    """
    assert pool.names("web1") == names
    for name in names:
        path, other = two.first.backup("web1", name), pool.backup("web1", name)
        assert work("rsync", "-n", "-aHAXc", "--delete", "-i", f"{path}/", f"{other}/").stdout == "", name
        here = shown(other)
        origin = shown(path)
        assert here["Received UUID"] in (origin["UUID"], origin["Received UUID"])
        assert here["Flags"] == "readonly"
    assert not (pool.pool / "hosts/web1/.receiving").exists()


def change_links(two: TwoPools, day: int) -> None:
    """On each further day one of two names of a file becomes a separate file, with the same content and time, and the other is
    deleted: the backup has the extents of the older file in a new one, so a stream of differences refers to its parent.
    """
    for name, other in (("a", "b"), ("b", "a")):
        if day == 1:
            for number in (2, 3):
                (two.source / f"{name}-{number}{other}").write_bytes(os.urandom(MIB))
                os.link(two.source / f"{name}-{number}{other}", two.source / f"{other}-{number}{other}")
        else:
            file = two.source / f"{other}-{day}{other}"
            shutil.copy2(file, two.source / "new")
            (two.source / "new").rename(file)
            (two.source / f"{name}-{day}{other}").unlink()


def require_clones(older: Path, newer: Path) -> None:
    """The stream of differences between the two names the older one more than once: where it begins, and where it clones."""
    stream, file = older.parents[2] / "stream", shlex.quote
    work("bash", "-c", f"btrfs send -q -p {file(str(older))} {file(str(newer))} > {file(str(stream))}")
    assert stream.read_bytes().count(UUID(shown(older)["Received UUID"]).bytes) > 1
    stream.unlink()


@pytest.mark.parametrize("together", [False, True], ids=["one a time", "together"])
def test_two_pools_on_one_filesystem_fetch_the_same_host(two: TwoPools, together: bool) -> None:
    other = other_pool(two, two.first.pool, two.second.top / "other")
    names = list[str]()
    for day in (1, 2, 3):
        change_links(two, day)
        names.append(two.night(f"2026-03-0{day}T22:00:00Z", str(day)))
        if not together:
            assert fetched(two.second) == [names[-1]]
            assert fetched(other) == [names[-1]]
    assert fetched(two.second) + fetched(other) == ([*names, *names] if together else [])
    for pool in (two.second, other):
        require_same(two, pool, names)


@pytest.mark.parametrize("together", [False, True], ids=["one a time", "together"])
def test_a_pool_fetches_from_another_one_on_the_same_filesystem_that_has_fetched_itself(two: TwoPools, together: bool) -> None:
    third = other_pool(two, two.second.pool, two.second.top / "third")
    names = list[str]()
    for day in (1, 2, 3):
        change_links(two, day)
        names.append(two.night(f"2026-03-0{day}T22:00:00Z", str(day)))
        if not together:
            assert fetched(two.second) + fetched(third) == [names[-1]] * 2
    assert fetched(two.second) + fetched(third) == ([*names, *names] if together else [])
    for pool in (two.second, third):
        require_same(two, pool, names)


def test_what_a_user_keeps_of_a_damaged_copy_is_no_parent_of_later_ones(make_btrfs: Callable[..., Path]) -> None:
    """It is beside the copies and as old as the damaged one, so `btrfs receive` finds it before the refetched one."""
    two = TwoPools(make_btrfs(size="300M"), make_btrfs(size="300M"))
    content = os.urandom(MIB)
    (two.source / "large").write_bytes(content)
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    kept = two.second.pool / "hosts/web1/kept"
    work("btrfs", "subvolume", "snapshot", "-r", two.second.backup("web1", first), kept)
    damage(two.second.top, content[4096:8192])
    assert two.second.backupd("verify", *NOW, check=False).returncode == 1
    assert fetched(two.second, "office", "--damaged") == [first]
    assert rows(two.second, "select * from damage") == []
    second = two.night("2026-03-02T22:00:00Z", "b")
    assert fetched(two.second) == [second]
    require_same(two, two.second, [first, second])


def test_a_changed_snapshot_of_a_copy_is_no_parent(two: TwoPools) -> None:
    """No kernel is needed that keeps the mark of a copy on a changed subvolume: any subvolume can be given one."""
    change_links(two, 1)
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    copy = two.second.backup("web1", first)
    other = two.second.top / "other"
    work("btrfs", "subvolume", "snapshot", copy, other)
    (other / "data/spoilt").write_text("not of this host")
    mark(other, shown(copy)["Received UUID"])
    work("btrfs", "property", "set", "-f", other, "ro", "true")
    again = two.second.top / "again"  # of two marks, the older one is found first
    work("btrfs", "subvolume", "snapshot", "-r", copy, again)
    work("btrfs", "subvolume", "delete", copy)
    work("btrfs", "subvolume", "snapshot", "-r", again, copy)
    change_links(two, 2)
    second = two.night("2026-03-02T22:00:00Z", "b")
    assert fetched(two.second) == [second]
    require_same(two, two.second, [first, second])


def test_another_copy_that_appears_meanwhile_makes_no_backup_of_what_is_put_upon_it(two: TwoPools) -> None:
    """For example by another pool that fetches the same host at the same moment. Here the other copy is visible in the cell.

    A `btrfs receive` that waits first calls the real one.
    """
    names = [two.night(f"2026-03-0{day}T22:00:00Z", str(day)) for day in (1, 2)]
    host = two.second.pool / "hosts/web1"
    host.mkdir()
    waits = 'cd "${!#}/.."; while [ ! -e go-on ] && [ $SECONDS -lt 30 ]; do :; done; exec ./btrfs "$@"'
    with two.replicating(host / "btrfs", waits) as fetching:  # where the cell sees it
        two.wait_for_streams(2)
        time.sleep(1)
        work("btrfs", "subvolume", "create", host / "other")
        work("cp", "-a", f"{two.first.backup('web1', names[0])}/.", host / "other")
        (host / "other/data/spoilt").write_text("not of this host")
        mark(host / "other", shown(two.first.backup("web1", names[0]))["UUID"])
        (host / "go-on").touch()
        output = fetching.communicate(timeout=60)[1]
    assert fetching.returncode == 1, output
    assert "web1" in output
    require_same(two, two.second, names[:1])
    assert fetched(two.second) == names[1:]
    require_same(two, two.second, names)


def mark(path: Path, uuid: str) -> None:
    """Gives a writable subvolume the mark of a copy, by the kernel's ioctl."""
    program = (
        "import fcntl, os, sys, uuid; fd = os.open(sys.argv[1], os.O_RDONLY)\n"
        "fcntl.ioctl(fd, 0xC0C89425, uuid.UUID(sys.argv[2]).bytes + bytes(184))"
    )
    work("python3", "-c", program, path, uuid)


@pytest.mark.parametrize("same", [False, True], ids=["two filesystems", "one filesystem"])
def test_the_way_back_takes_differences_that_refer_to_what_was_made_here(make_btrfs: Callable[..., Path], same: bool) -> None:
    """The parent is an original here, which no mark of a copy finds, and one on the same filesystem finds the other pool's copy."""
    top = make_btrfs()
    if same:
        for name in ("one", "other"):
            (top / name).mkdir()
    two = TwoPools(top / "one", top / "other") if same else TwoPools(top, make_btrfs())
    change_links(two, 1)
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    two.second.backupd("promote", "web1", "--yes")
    two.second.host("web1", two.source)
    two.first.tables["replica.back"] = {"from": str(two.second.pool)}
    two.first.write()
    change_links(two, 2)
    two.second.backupd("run", "web1", "--now", "2026-03-02T22:00:00Z")
    two.first.backupd("demote", "back", "web1", "--yes")
    names = two.second.names("web1")
    require_clones(*(two.second.backup("web1", name) for name in names))
    assert fetched(two.first) == names[1:]
    assert two.first.names("web1") == names
    assert [two.differences(name) for name in names] == ["", ""]
    assert shown(two.first.backup("web1", names[1]))["Received UUID"] == shown(two.second.backup("web1", names[1]))["UUID"]
    assert names[0] == first
