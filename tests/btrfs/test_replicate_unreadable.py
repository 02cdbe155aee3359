"""Replication of damaged data: damage that a copy inherits from its parent, unreadable parents, and backups that cannot be sent.

The test finds the real damage by reading the files, independently of the program.
"""

import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from backupd.replicate.naming import inherited_damages
from backupd.repo.verification_files import replace_damaged
from btrkeep.catalogue import Damage
from btrkeep.pool.marker import open_pool
from btrkeep.units import parse_time
from tests.beds.faults import damage, damage_metadata, leaves
from tests.beds.nights import Nights
from tests.beds.two_pools import TwoPools
from tests.beds.watch import rows
from tests.beds.work import work

pytestmark = [pytest.mark.btrfs, pytest.mark.root]
MIB = 1 << 20


def at(day: int, hour: int = 22) -> str:
    return f"2026-03-{day:02}T{hour:02}:00:00Z"


def unreadable(two: TwoPools, name: str) -> list[str]:
    """Returns the files of a copy that the disk cannot read."""
    bad = []
    for path in sorted(two.second.data("web1", two.source, name).rglob("*")):
        try:
            if path.is_file():
                path.read_bytes()
        except OSError:
            bad.append("/" + str(path.relative_to(two.second.backup("web1", name) / "data")))
    return bad


def damaged_by_copy(two: TwoPools) -> dict[str, list[str]]:
    """Returns the files that are known to be damaged, by copy."""
    by_name: dict[str, list[str]] = {}
    for name, path in rows(two.second, "select name, path from damage order by path"):
        by_name.setdefault(name, []).append(path)
    return by_name


def with_a_damaged_copy(make_btrfs: Callable[..., Path]) -> TwoPools:
    """One copy with one file that is known to be damaged."""
    two = TwoPools(make_btrfs(size="300M"), make_btrfs(size="300M"))
    content = os.urandom(MIB)
    (two.source / "database").write_bytes(content)
    (two.source / "other").write_bytes(os.urandom(MIB))
    two.night(at(1), "a")
    two.fetch(now=at(1, 23))
    damage(two.second.top, content[:4096])
    assert two.second.backupd("verify", "--now", at(2, 1), check=False).returncode == 1
    return two


def test_a_copy_inherits_the_damage_of_its_parent_and_both_are_fetched_again(make_btrfs: Callable[..., Path]) -> None:
    two = with_a_damaged_copy(make_btrfs)
    path = str(two.source / "database")
    two.night(at(2), "b")
    two.fetch(now=at(2, 23))
    first, second = two.names(two.second.pool)
    assert damaged_by_copy(two) == {first: [path], second: [path]}
    assert (unreadable(two, first), unreadable(two, second)) == ([path], [path])
    two.second.backupd("rebuild", "--now", at(3, 1))
    assert damaged_by_copy(two) == {first: [path], second: [path]}
    again = two.fetch("office", "--damaged", now=at(3, 2))[0]
    assert [(fetched_backup["backup"], fetched_backup["parent"]) for fetched_backup in again["fetched"]] == [
        (first, None),
        (second, first),
    ]
    assert (damaged_by_copy(two), unreadable(two, first), unreadable(two, second)) == ({}, [], [])


def test_damage_stays_known_until_the_copy_that_came_again_was_read(make_btrfs: Callable[..., Path]) -> None:
    """The parent of the refetched backup has the same damage, which was not detected."""
    two = with_a_damaged_copy(make_btrfs)
    path = str(two.source / "database")
    two.night(at(2), "b")
    two.fetch(now=at(2, 23))
    first, second = two.names(two.second.pool)
    folder = two.second.pool / "hosts/web1"
    answer = json.loads((folder / "damaged.json").read_text())
    del answer["backups"][second]
    (folder / "damaged.json").write_text(json.dumps(answer))
    with closing(sqlite3.connect(two.second.state / "catalogue.sqlite")) as connection:
        connection.execute("delete from damage where name = ?", (second,))
        connection.commit()
    result = two.fetch("office", "--damaged", status=1, now=at(3, 2))[0]
    assert [(fetched_backup["backup"], fetched_backup["parent"]) for fetched_backup in result["fetched"]] == [(first, second)]
    assert "--damaged` again" in result["failed"][0]["error"]
    assert damaged_by_copy(two) == {first: [path], second: [path]}
    two.fetch("office", "--damaged", now=at(3, 3))
    assert (damaged_by_copy(two), unreadable(two, first), unreadable(two, second)) == ({}, [], [])


def test_another_copy_without_damage_is_the_parent(make_btrfs: Callable[..., Path]) -> None:
    two = TwoPools(make_btrfs(size="300M"), make_btrfs(size="300M"))
    two.night(at(1), "a")
    content = os.urandom(MIB)
    (two.source / "database").write_bytes(content)
    two.night(at(2), "b")
    two.fetch(now=at(2, 23))
    damage(two.second.top, content[:4096])
    assert two.second.backupd("verify", "--now", at(3, 1), check=False).returncode == 1
    two.night(at(3), "c")
    (fetched,) = two.fetch(now=at(3, 23))[0]["fetched"]
    first, second, third = two.names(two.second.pool)
    assert fetched["parent"] == first
    assert (list(damaged_by_copy(two)), unreadable(two, third)) == ([second], [])


def test_only_what_shares_the_damaged_part_inherits_it(make_btrfs: Callable[..., Path]) -> None:
    nights = Nights(make_btrfs(size="300M"))
    names = ("same", "touched", "longer", "begin", "end", "rewritten", "renamed", "deleted", "replaced")
    for name in names:
        (nights.source / name).write_bytes(os.urandom(200_000))
    nights.host("web", nights.source)
    nights.run("web")
    (backup,) = nights.names("web")
    pool, new = open_pool(nights.pool), nights.top / "new"
    work("btrfs", "subvolume", "snapshot", nights.backup("web", backup), new)
    data = new / "data" / str(nights.source).strip("/")
    (data / "touched").chmod(0o600)
    with (data / "longer").open("ab") as file:
        file.write(os.urandom(50_000))
    for name, place in (("begin", 0), ("end", 100_000), ("rewritten", 0)):
        with (data / name).open("r+b") as file:
            file.seek(place)
            file.write(os.urandom(200_000 if name == "rewritten" else 20_000))
    (data / "renamed").rename(data / "elsewhere")
    os.link(data / "elsewhere", data / "linked")
    (data / "deleted").unlink()
    (data / "replaced").unlink()
    (data / "replaced").write_bytes(os.urandom(200_000))
    work("btrfs", "filesystem", "sync", nights.top)
    damages = [
        Damage("web", backup, str(nights.source / name), 8192, 4096 if name in ("begin", "end") else 0, "scrub", parse_time(at(1)))
        for name in names
    ]
    replace_damaged(pool, "web", backup, damages)
    inherited = {
        Path(inherited_damage.path).name for inherited_damage in inherited_damages(pool, "web", backup, "2026-03-09T000000Z", new)
    }
    # the rest of a partly overwritten extent is still in use, so `begin` cannot be derived from the files that share the place
    assert inherited - {"begin"} == {"same", "touched", "longer", "end", "elsewhere", "linked"}


def test_a_parent_with_unreadable_metadata_is_skipped_although_the_damage_was_unknown(make_btrfs: Callable[..., Path]) -> None:
    two = TwoPools(make_btrfs(size="300M"), make_btrfs(size="300M", mkfs=("-m", "single")))

    def fill(word: str) -> None:
        for number in range(500):
            (two.source / f"file-{number:06}").write_text(f"{word} {number}")

    for day in (1, 2):
        fill(f"day {day}")
        two.night(at(day), str(day))
        two.fetch(now=at(day, 23))
    first, second = two.names(two.second.pool)
    old, new = (leaves(two.second.backup("web1", name), two.second.top) for name in (first, second))
    own = [leaf for leaf in new if leaf not in old]
    damage_metadata(two.second.top, own[len(own) // 2])
    for day in (3, 4):
        fill(f"day {day}")
        two.night(at(day), str(day))
    answer = two.fetch(now=at(4, 23))[0]
    third, fourth = two.names(two.second.pool)[2:]
    assert [(fetched_backup["backup"], fetched_backup["parent"]) for fetched_backup in answer["fetched"]] == [
        (third, first),
        (fourth, third),
    ]
    assert [two.differences(name) for name in (first, third, fourth)] == ["", "", ""]
    assert damaged_by_copy(two) == {second: ["/"]}
    fill("day 5")
    two.night(at(5), "5")
    assert [fetched_backup["parent"] for fetched_backup in two.fetch(now=at(5, 23))[0]["fetched"]] == [fourth]


@pytest.mark.parametrize(
    ("subject", "way"),
    [("data", "ssh"), ("metadata", "ssh"), ("metadata", "folder")],
)
def test_a_backup_that_cannot_be_sent_keeps_no_newer_one_back(make_btrfs: Callable[..., Path], subject: str, way: str) -> None:
    """A pool in a folder has no catalogue here."""
    two = TwoPools(make_btrfs(size="300M", mkfs=("-m", "single")), make_btrfs(size="300M"))
    for day in (1, 2, 3):
        for number in range(300):
            (two.source / f"file-{number:06}").write_text(f"day {day} {number}")
        (two.source / "database").write_bytes(content := os.urandom(MIB))
        if day == 2:
            damaged = content
        two.night(at(day), str(day))
        if day == 1:
            two.fetch(now=at(1, 23))
    if way == "ssh":
        two.over_ssh('exec "$@" --replica office')
    first, second, third = two.names(two.first.pool)
    if subject == "data":
        damage(two.first.top, damaged[:4096])
    else:
        by_name = {name: leaves(two.first.backup("web1", name), two.first.top) for name in (first, second, third)}
        damage_metadata(two.first.top, *(leaf for leaf in by_name[second] if leaf not in (*by_name[first], *by_name[third])))
    answer = two.fetch(status=1, now=at(3, 23))[0]
    assert two.names(two.second.pool) == [first, third]
    assert [(fetched_backup["backup"], fetched_backup["parent"]) for fetched_backup in answer["fetched"]] == [(third, first)]
    assert two.differences(third) == ""
    (failed,) = answer["failed"]
    hint = "run `backupd verify web1`"
    assert f"web1@{second} cannot be sent: Input/output error; {hint}" in failed["error"]
    (copy,) = two.second.json("status", "--now", at(4, 1))["copies"]
    assert second in json.dumps(copy)


def test_a_backup_of_which_nothing_can_be_read_is_named_after_a_rebuild_too_and_can_be_given_up(
    make_btrfs: Callable[..., Path],
) -> None:
    """The other pool's hint, `backupd delete`, was refused, and after `rebuild` the backup was no longer listed."""
    two = TwoPools(make_btrfs(size="300M", mkfs=("-m", "single")), make_btrfs(size="300M"))
    two.over_ssh('exec "$@" --replica office')
    for day in (1, 2, 3):
        for number in range(300):
            (two.source / f"file-{number:06}").write_text(f"day {day} {number}")
        two.night(at(day), str(day))
    first, second, third = two.names(two.first.pool)
    by_name = {name: leaves(two.first.backup("web1", name), two.first.top) for name in (first, second, third)}
    damage_metadata(two.first.top, *(leaf for leaf in by_name[second] if leaf not in (*by_name[first], *by_name[third])))
    assert two.first.backupd("rebuild", "--now", at(4, 1), check=False).returncode == 1
    assert [
        damage["path"] for damage in json.loads(two.first.backupd("damaged", "--json", "--now", at(4, 1), check=False).stdout)
    ] == ["/"]
    (failed,) = two.fetch(status=1, now=at(4, 2))[0]["failed"]
    command = f"backupd delete web1@{second} --why damaged"
    assert command in failed["error"]
    refused = two.first.backupd(*command.split()[1:], "--now-without-grace", "--now", at(4, 3), check=False)
    assert (refused.returncode, "would make the pool read-only" in refused.stderr) == (1, True), refused
    done = two.first.backupd(*command.split()[1:], "--now", at(4, 3))
    assert f"web1 {second} is abandoned: no other pool fetches it" in done.stdout
    assert "unexpire" not in done.stdout
    assert two.fetch(now=at(4, 4))[0]["failed"] == []
    two.first.backupd("expire", "--now", at(20), check=False)
    assert two.names(two.first.pool) == [first, second, third]
    assert work("findmnt", "-no", "OPTIONS", two.first.top).stdout.startswith("rw")
    two.night(at(21), "d")
    assert two.fetch(now=at(21, 23))[0]["failed"] == []
