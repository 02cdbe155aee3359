"""The use of space on a real pool, compared with `btrfs filesystem du` and the trees dumped by `btrfs inspect-internal`."""

import fcntl
import os
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backupd.observe.usage import Amount, BackupUse, by_extents, by_sampling, by_writing, listed
from btrkeep.catalogue import Catalogue
from btrkeep.pool.marker import open_pool
from btrkeep.treescan.links import Owners
from tests.beds import btrfs, session, shares, work
from tests.beds.nights import Nights

pytestmark = [pytest.mark.btrfs, pytest.mark.root]
MIB = 1 << 20


@pytest.fixture(scope="module")
def pool() -> Iterator[Nights]:
    """web1 has four backups of a changing 12 MB, one of them suspect, web2 one of 6 MB that another subvolume shares half of."""
    point = btrfs.make(size="1100M")
    nights = Nights(point)
    web1, web2 = nights.source / "web1", nights.source / "web2"
    for folder in (web1, web2):
        folder.mkdir()
    for number in range(12):
        (web1 / f"{number}").write_bytes(os.urandom(MIB))
    for number in range(6):
        (web2 / f"{number}").write_bytes(os.urandom(MIB))
    nights.host("web1", web1)
    nights.host("web2", web2)
    nights.run("web1", "web2")
    for night in range(2):
        (web1 / f"{night}").write_bytes(os.urandom(2 * MIB))
        with (web1 / "9").open("r+b") as file:
            file.seek(night * 256 * 1024)
            file.write(os.urandom(256 * 1024))
        nights.run("web1")
    for number in range(4, 12):
        (web1 / f"{number}").unlink()
    nights.run("web1", status=1)
    work("btrfs", "-q", "subvolume", "create", point / "mine")
    for number in range(3):
        work("cp", "--reflink=always", nights.data("web2", web2 / str(number)), point / "mine")
    (point / "mine" / "own").write_bytes(os.urandom(4 * MIB))
    work("btrfs", "filesystem", "sync", point)
    yield nights
    assert session.remove(point.parent) == []


def uses(pool: Nights, host: str | None = None) -> list[BackupUse]:
    with Catalogue.open(pool.state) as catalogue:
        return listed(catalogue, host)


def du(pool: Nights, host: str, name: str | None) -> int:
    return shares(pool.backup(host, str(name)) / "data").exclusive


def dumped(pool: Nights, subvolume_id: int) -> dict[int, int]:
    """Returns the extents of a subvolume, address to length, from the dump of its tree."""
    (loop,) = btrfs.devices_of(pool.top)
    text = work("btrfs", "inspect-internal", "dump-tree", "-t", str(subvolume_id), loop).stdout
    matches = re.findall(r"extent data disk byte (\d+) nr (\d+)", text)
    return {int(vaddr): int(length) for vaddr, length in matches if int(vaddr)}


def subvolume_id_of(path: Path) -> int:
    return int(work("btrfs", "inspect-internal", "rootid", path).stdout)


def test_what_is_exclusive_to_a_backup_is_what_btrfs_filesystem_du_says(pool: Nights) -> None:
    use = by_extents(open_pool(pool.pool), uses(pool, "web1"), 60)
    assert use.complete
    assert len(use.backups) == 4
    numbers = [backup.measured.exclusive.bytes for backup in use.backups if backup.measured]
    assert sum(numbers) > MIB
    # du counts the pieces that files refer to; a partly overwritten extent still exists completely
    for backup_use, ours in zip(use.backups, numbers, strict=True):
        extents = dumped(pool, backup_use.subvolume_id or 0)
        elsewhere = {vaddr for other in use.backups if other != backup_use for vaddr in dumped(pool, other.subvolume_id or 0)}
        assert ours == sum(length for vaddr, length in extents.items() if vaddr not in elsewhere)
        assert abs(ours - du(pool, "web1", backup_use.name)) <= MIB


def test_a_host_has_on_disk_what_its_trees_refer_to_each_extent_once(pool: Nights) -> None:
    use = by_extents(open_pool(pool.pool), uses(pool), 60)
    for host in use.hosts:
        every: dict[int, int] = {}
        for backup in use.backups:
            if backup.host == host.host:
                every |= dumped(pool, backup.subvolume_id or 0)
        assert host.measured
        assert host.measured.referenced.bytes == sum(every.values())


def test_a_backup_without_neighbours_is_exact_to_the_byte(pool: Nights) -> None:
    (backup_use,) = by_extents(open_pool(pool.pool), uses(pool, "web2"), 60).backups
    assert backup_use.measured
    assert backup_use.measured.referenced.bytes == 6 * MIB == shares(pool.backup("web2") / "data").total


def inside(amount: Amount, truth: int, slack: float) -> bool:
    """Checks that the value is within the interval, widened on both sides by `slack` of its width, so that chance fails the test
    once in many thousands of runs.
    """
    wide = (amount.high - amount.low) * slack
    return amount.low - wide <= truth <= amount.high + wide


def test_random_places_find_what_du_finds(pool: Nights) -> None:
    opened = open_pool(pool.pool)
    exact = by_extents(opened, uses(pool), 60)
    use = by_sampling(opened, uses(pool), 20, random.Random(7))
    assert use.draws >= 10_000
    truth = {host.host: host.measured.referenced.bytes for host in exact.hosts if host.measured}
    for host in use.hosts:
        assert host.measured
        assert inside(host.measured.referenced, truth[host.host], 0.6), host
        shared = 3 * MIB if host.host == "web2" else 0  # referenced by the other subvolume too
        assert inside(host.measured.exclusive, truth[host.host] - shared, 0.6), host
    for quick_use, backup_use in zip(use.backups, exact.backups, strict=True):
        assert quick_use.measured
        assert backup_use.measured
        assert inside(quick_use.measured.referenced, backup_use.measured.referenced.bytes, 0.6), quick_use
        if quick_use.host == "web1":
            assert inside(quick_use.measured.exclusive, backup_use.measured.exclusive.bytes, 0.6), quick_use
    of_backups = {vaddr for backup in use.backups for vaddr in dumped(pool, backup.subvolume_id or 0)}
    of_others = dumped(pool, 5) | dumped(pool, subvolume_id_of(pool.top / "mine"))  # the sources are in the top-level subvolume
    reserve = (pool.pool / ".btrkeep" / "reserve").stat().st_blocks * 512  # allocated, and never written
    assert use.others
    assert inside(use.others, reserve + sum(length for vaddr, length in of_others.items() if vaddr not in of_backups), 0.6)


def test_the_kernel_names_every_subvolume_that_shares_an_extent(pool: Nights) -> None:
    backups = uses(pool)
    trees = {backup.subvolume_id: dumped(pool, backup.subvolume_id or 0) for backup in backups}
    mine = subvolume_id_of(pool.top / "mine")
    trees[mine] = dumped(pool, mine)
    fd = os.open(pool.top, os.O_RDONLY)
    try:
        owners = Owners(fd)
        for vaddr, length in sorted({extent for tree in trees.values() for extent in tree.items()}):
            numbers = owners.of(vaddr + length // 2)  # of a small extent it is still in its only block
            assert numbers is not None
            assert numbers & set(trees) == {root for root, tree in trees.items() if vaddr in tree}
        free = max(vaddr for tree in trees.values() for vaddr in tree) + 60 * MIB
        assert owners.of(free) is None
    finally:
        os.close(fd)


def test_an_extent_with_more_references_than_the_first_buffer_holds_is_answered_whole(make_btrfs: Callable[..., Path]) -> None:
    point = make_btrfs(size="256M")
    folders = [point / name for name in "abc"]
    for folder in folders:
        work("btrfs", "-q", "subvolume", "create", folder)
    (point / "one").write_bytes(os.urandom(4096 * 2))
    with (point / "one").open("rb") as source:
        for number in range(6000):  # the first buffer holds 2,700: it cannot have met all three
            with (folders[number % 3] / f"copy{number}").open("wb") as copy:
                fcntl.ioctl(copy.fileno(), 0x40049409, source.fileno())  # FICLONE
    work("btrfs", "filesystem", "sync", point)
    roots = frozenset(map(subvolume_id_of, folders)) | {5}
    output = work("filefrag", "-v", "-b4096", point / "one").stdout
    start = re.search(r"^\s+0:\s+0\.\.\s+\d+:\s+(\d+)", output, re.MULTILINE)
    assert start
    fd = os.open(point, os.O_RDONLY)
    try:
        assert Owners(fd).of(int(start[1]) * 4096) == roots
    finally:
        os.close(fd)


def test_compressed_data_counts_as_it_lies_on_the_disk(make_btrfs: Callable[..., Path]) -> None:
    point = make_btrfs(size="700M", options="compress=zstd:1")
    nights = Nights(point)
    source = nights.source / "logs"
    source.mkdir()
    (source / "log").write_bytes(b"the same line, again and again\n" * 200_000)
    nights.host("web1", source)
    nights.run("web1")
    (backup_use,) = by_extents(open_pool(nights.pool), uses(nights), 60).backups
    assert backup_use.measured
    assert backup_use.measured.referenced.bytes == sum(dumped(nights, backup_use.subvolume_id or 0).values()) < backup_use.size / 10  # type: ignore[operator]


def test_when_the_time_is_over_it_says_so_and_claims_nothing(pool: Nights) -> None:
    use = by_extents(open_pool(pool.pool), uses(pool), 0)
    assert not use.complete
    assert {backup.measured for backup in use.backups} == {None}


def test_a_backup_that_has_gone_meanwhile_is_named(pool: Nights) -> None:
    backups = uses(pool, "web2")
    gone = replace(backups[0], path="hosts/web2/2020-01-01T000000Z")
    use = by_extents(open_pool(pool.pool), [gone, *backups], 60)
    assert list(use.unread) == [gone.path]
    assert use.backups[1].measured


def test_without_measuring_it_is_what_rsync_wrote(pool: Nights) -> None:
    use = by_writing(uses(pool))
    for host in use.hosts:
        names = pool.names(host.host)
        assert host.written == sum(pool.record(host.host, name)["totals"]["literal"] for name in names)
        assert (host.backups, host.measured) == (len(names), None)


def usage(pool: Nights, *words: str) -> Any:
    return pool.json("usage", *words)


def test_the_command_samples_the_pool_and_compares_the_extents_of_a_host(pool: Nights) -> None:
    result = usage(pool, "--time", "2s")
    assert (result["method"], result["backups"]) == ("sampled", [])
    assert [host["host"] for host in result["hosts"]] == ["web1", "web2"]
    assert result["draws"] > 100
    answer = usage(pool, "web1")
    assert (answer["method"], answer["complete"], [host["host"] for host in answer["hosts"]]) == ("extents", True, ["web1"])
    assert [backup["name"] for backup in answer["backups"]] == pool.names("web1")
    assert [set(backup["exclusive"]) for backup in answer["backups"]] == [{"bytes", "low", "high"}] * 4
    sampled = usage(pool, "web2", "--method", "sampled", "--time", "2s")
    assert [host["host"] for host in sampled["hosts"]] == ["web2"]
    assert sampled["hosts"][0]["exclusive"]["high"] > sampled["hosts"][0]["exclusive"]["low"]


def test_the_text_says_how_it_was_measured(pool: Nights) -> None:
    assert "random places" in pool.backupd("usage", "--time", "1s").stdout
    text = pool.backupd("usage", "web1").stdout
    assert "all extents were read in" in text
    assert "all backups together" in text
    assert "nothing was measured" in pool.backupd("usage", "--method", "written").stdout
    assert "allow more with --time" in pool.backupd("usage", "web1", "--time", "0s").stdout
    wrong = pool.backupd("usage", "--time", "soon", check=False)
    assert (wrong.returncode, "not a duration" in wrong.stderr) == (2, True)
