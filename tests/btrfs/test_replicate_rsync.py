"""A second pool that fetches by rsync (`engine = "rsync"`): what is there is the same by independent programs, and can go on."""

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds import TOP, differences, manifest, work
from tests.beds.two_pools import TwoPools, shown

pytestmark = pytest.mark.btrfs


@pytest.fixture
def two(make_btrfs: Callable[..., Path]) -> TwoPools:
    return TwoPools(make_btrfs(), make_btrfs(), engine="rsync")


def make_strange(source: Path) -> None:
    """What a copy has to bring besides plain files."""
    (source / "odd \n name *[x]'\"\\").write_text("x")
    os.mkfifo(source / "pipe")
    os.mknod(source / "node", 0o20600, os.makedev(1, 3))
    (source / "symlink").symlink_to("../nowhere")
    (source / "one").write_text("linked")
    os.link(source / "one", source / "other")
    with (source / "sparse").open("wb") as file:
        file.truncate(64 << 20)
        file.seek(32 << 20)
        file.write(b"x" * 5000)
    os.setxattr(source / "one", "user.note", b"\x00\xff")
    os.setxattr(source / "one", "trusted.note", b"t")
    work("setfacl", "-m", "u:1234:r,g:4321:rw", source / "sparse")
    os.chown(source / "sparse", 1234, 4321)
    (source / "folder").mkdir(mode=0o2750)
    (source / "folder/inside").write_text("y" * 100)


def backup(two: TwoPools, name: str, *, second: bool = True) -> Path:
    return (two.second if second else two.first).pool / "hosts/web1" / name


def require_same(two: TwoPools, *names: str) -> None:
    for name in names:
        assert two.differences(name) == ""
        here, there = backup(two, name), backup(two, name, second=False)
        assert differences(manifest(there), manifest(here)) == []
        assert shown(here)["Received UUID"] == shown(there)["UUID"]
        assert shown(here)["Flags"] == "readonly"


def test_nights_by_rsync_are_the_same_share_what_did_not_change_and_keep_links_as_they_are(two: TwoPools) -> None:
    make_strange(two.source)
    (two.source / "large").write_bytes(os.urandom(20 << 20))
    first = two.night("2026-03-01T22:00:00Z", "a")
    assert [one["parent"] for one in two.fetch()[0]["fetched"]] == [None]
    require_same(two, first)
    with (two.source / "large").open("r+b") as file:
        file.seek(5 << 20)
        file.write(b"changed" * 100)
    (two.source / "other").unlink()  # the link is broken: what is new of one name must not become the other's
    (two.source / "other").write_text("LINKED")
    os.utime(two.source / "other", ns=((two.source / "one").stat().st_atime_ns, (two.source / "one").stat().st_mtime_ns + 1))
    os.link(two.source / "large", two.source / "large-too")
    (two.source / "folder/inside").unlink()
    (two.source / "folder").rmdir()
    (two.source / "folder").write_text("a file now")
    with (two.source / "new sparse").open("wb") as file:
        file.truncate(4 << 20)
        file.write(b"z")
    second = two.night("2026-03-02T22:00:00Z", "b")
    (told,) = two.fetch()
    assert [(one["backup"], one["parent"]) for one in told["fetched"]] == [(second, first)]
    assert told["bytes"] < 5 << 20  # the zeros of the new file, and little of the twenty million
    require_same(two, first, second)
    assert work("du", "-s", "--block-size=1", backup(two, second) / f"data{two.source}/new sparse").stdout.split()[0] == "4096"
    own = work("btrfs", "filesystem", "du", "-s", "--raw", backup(two, second)).stdout.splitlines()[1].split()
    assert int(own[1]) < 2 << 20  # exclusive, of more than twenty million
    assert two.fetch()[0]["planned"] == 0
    assert json.loads(two.second.backupd("rebuild", "--json").stdout)["backups"] == 2
    third = two.night("2026-03-03T22:00:00Z", "c")
    assert [(one["backup"], one["parent"]) for one in two.fetch()[0]["fetched"]] == [(third, second)]
    require_same(two, third)
    assert backup(two, "latest").readlink() == Path(third)
