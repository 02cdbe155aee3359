"""`backupd dedupe`: equal files of backups share their data, and nothing else changes; judged by btrfs, sha256sum and rsync."""

import fcntl
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.beds import exclusive_bytes, manifest, work
from tests.beds.nights import Nights
from tests.beds.watch import killed

pytestmark = [pytest.mark.btrfs, pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(240)]
MIB = 1 << 20
SMALL = ("--min-size", "64KiB")


@pytest.fixture
def nights(make_btrfs: Callable[..., Path]) -> Nights:
    """Two hosts of a group, which have one file under different names, and each another one twice; two nights."""
    nights = Nights(make_btrfs(size="600M"))
    nights.settings("backup", confine="never")
    content, twice = os.urandom(MIB), os.urandom(MIB // 2)
    for host in ("web1", "web2"):
        tree = nights.source / host
        (tree / "lib").mkdir(parents=True)
        (tree / "lib" / f"of {host}").write_bytes(content)
        (tree / "once").write_bytes(twice)
        (tree / "again\n").write_bytes(twice)
        (tree / "alone").write_bytes(os.urandom(MIB))
        nights.host(host, tree, address=None, group="g")
    nights.tables["group.g"] = {"inplace": "always"}
    nights.write()
    nights.run()
    for host in ("web1", "web2"):
        (nights.source / host / "new").write_text("new")
    nights.run()
    return nights


def deduped(nights: Nights, *words: str) -> Any:
    return json.loads(nights.backupd("dedupe", *words, "--json").stdout)


def looks(nights: Nights) -> dict[str, tuple[Any, dict[str, str]]]:
    """Of each backup its files, and what `btrfs subvolume show` says but for the generation."""
    found = {}
    for host in ("web1", "web2"):
        for name in nights.names(host):
            shown = {title: value for title, value in nights.subvolume(host, name).items() if title != "Generation"}
            found[f"{host} {name}"] = (manifest(nights.backup(host, name)), shown)
    return found


def files(nights: Nights, pattern: str) -> list[Path]:
    return sorted(path for path in (nights.pool / "hosts").glob(f"web?/20*/data/**/{pattern}") if not path.parent.is_symlink())


def addresses(paths: list[Path]) -> set[str]:
    """Where their first extents lie."""
    return {re.search(r"^ +0: .*?: +(\d+)\.\.", work("filefrag", "-v", path).stdout, re.MULTILINE)[1] for path in paths}  # type: ignore[index]


def test_a_host_whose_file_ends_in_a_hole_keeps_no_others_from_sharing(nights: Nights) -> None:
    """The digest leaves zeros out, so its file, which is met first, has the same one."""
    content = (nights.source / "web1/lib/of web1").read_bytes()
    for name in ("a1", "a2"):
        (nights.source / "web1" / name).write_bytes(content + bytes(MIB))
    nights.run()
    deduped(nights, *SMALL)
    assert len(addresses(files(nights, "of web?"))) == 1


def test_equal_files_share_whatever_they_are_called_and_nothing_else_changes(nights: Nights) -> None:
    before = looks(nights)
    assert len(addresses(files(nights, "of web?"))) == 2
    planned = deduped(nights, "--dry-run", *SMALL)
    assert planned["unread_bytes"] == 2 * (MIB + MIB // 2 + MIB // 2 + MIB)  # each once, however many snapshots have it
    assert looks(nights) == before
    told = deduped(nights, *SMALL)
    assert (told["is_whole"], told["read_bytes"]) == (True, planned["unread_bytes"])
    assert told["shared_bytes"] == 2 * (MIB + MIB // 2 * 3)  # in both nights
    assert MIB + MIB // 2 * 3 <= told["data_before"] - told["data_after"] <= 2 * MIB + MIB // 2 * 3
    assert len(files(nights, "of web?")) == 4
    assert len(addresses(files(nights, "of web?"))) == 1
    assert len(addresses(files(nights, "once") + files(nights, "again*"))) == 1
    assert looks(nights) == before
    for host in ("web1", "web2"):
        assert nights.differences(host, nights.source / host) == []
    nights.backupd("verify")
    assert deduped(nights, *SMALL)["shared_bytes"] == 0  # and reads nothing again
    assert deduped(nights, "--dry-run", *SMALL)["unread_bytes"] == 0
    nights.run()
    assert {nights.grew_from(host) for host in ("web1", "web2")} == {nights.names("web1")[-2], nights.names("web2")[-2]}
    assert nights.differences("web2", nights.source / "web2") == []


def test_hosts_of_other_groups_share_only_when_that_is_allowed(nights: Nights) -> None:
    for host in ("web1", "web2"):
        nights.host(host, nights.source / host, address=None)
    told = deduped(nights, *SMALL)
    assert told["shared_bytes"] == 2 * 2 * (MIB // 2)  # within each
    assert len(addresses(files(nights, "of web?"))) == 2
    for host in ("web1", "web2"):
        nights.host(host, nights.source / host, address=None, share_across_groups=True)
    deduped(nights, *SMALL)
    assert len(addresses(files(nights, "of web?"))) == 1


def test_a_difference_sent_to_an_older_replica_gives_the_same_content(nights: Nights, make_btrfs: Callable[..., Path]) -> None:
    other = make_btrfs(size="300M")
    first, second = nights.names("web2")

    def send(*words: str | Path) -> None:
        work("sh", "-c", 'btrfs send -q "$@" | btrfs receive -q "$0"', other, *words)

    send(nights.backup("web2", first))
    deduped(nights, *SMALL)
    send("-p", nights.backup("web2", first), nights.backup("web2", second))
    assert manifest(other / second) == manifest(nights.backup("web2", second))


def test_what_others_work_with_is_left(nights: Nights) -> None:
    newest = nights.backup("web1")
    fd = os.open(newest, os.O_RDONLY | os.O_DIRECTORY)
    lock = os.open(nights.pool / ".btrkeep" / "locks" / "host-web2", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = deduped(nights, *SMALL)
    finally:
        os.close(fd)
        os.close(lock)
    left = {(one["host"], one["name"]): one.get("left") for one in told["backups"]}
    assert left["web1", newest.name] == "it is being read"
    assert left["web1", nights.names("web1")[0]] is None
    assert all("at work" in str(why) for (host, _), why in left.items() if host == "web2")


def test_a_night_makes_it_wait_and_a_verify_keeps_it_out(nights: Nights) -> None:
    for name in ("night", "verify"):
        lock = os.open(nights.pool / ".btrkeep" / "locks" / name, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = nights.backupd("dedupe", "--time", "2s", "--json", *SMALL, check=False)
        finally:
            os.close(lock)
        assert done.returncode == (0 if name == "night" else 3), done.stderr
        if name == "night":
            told = json.loads(done.stdout)
            assert (told["is_whole"], told["shared_bytes"]) == (False, 0)


def test_killed_after_any_file_the_next_one_does_the_rest(nights: Nights) -> None:
    before = looks(nights)
    for when, count in (("before", 1), ("after", 1), ("after", 2)):
        killed(nights, when, "file shared", "dedupe", *SMALL, count=count)
        assert looks(nights) == before
    deduped(nights, *SMALL)
    assert len(addresses(files(nights, "of web?"))) == 1
    assert looks(nights) == before
    assert exclusive_bytes(files(nights, "of web?")[0]) == 0


def test_by_default_small_files_of_many_backups_are_left_for_they_cost_more(nights: Nights) -> None:
    for host in ("web1", "web2"):
        for name in ("a", "b"):
            (nights.source / host / name).write_bytes(b"x" * (80 << 10))
    nights.run()  # three backups: 96 KiB
    deduped(nights)
    assert len(addresses(files(nights, "of web?"))) == 1
    assert len(addresses(files(nights, "a"))) == 2


def test_a_copy_of_another_pool_stays_one(nights: Nights, make_btrfs: Callable[..., Path]) -> None:
    other = Nights(make_btrfs(size="300M"))
    folder = other.pool / "hosts" / "web1"
    folder.mkdir(parents=True)
    for name in nights.names("web1"):
        work("sh", "-c", 'btrfs send -q "$1" | btrfs receive -q "$0"', other.top, nights.backup("web1", name))
        work("btrfs", "subvolume", "snapshot", "-r", other.top / name, folder / name)  # as `replicate` does it
    assert {one["state"] for one in json.loads(other.backupd("list", "web1", "--json").stdout)} <= {"complete"}
    told = deduped(other, *SMALL)
    assert {one["left"] for one in told["backups"]} == {"it is a copy of another pool's, which would count as changed"}
    assert len(told["backups"]) == 2
