"""A base that can no longer be read: the host becomes complete again, and the pool's errors are reported."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from btrkeep.catalogue import Catalogue, Damage
from tests.beds import work
from tests.beds.faults import damage
from tests.beds.nights import Nights
from tests.beds.watch import killed, rows

KIB = 1 << 10
MIB = 1 << 20


@pytest.mark.btrfs
@pytest.mark.parametrize("inplace", ["always", "never"])
@pytest.mark.parametrize("place", [MIB + 100, 0], ids=["there", "elsewhere"])
def test_a_changed_file_whose_base_cannot_be_read_any_more_is_whole_in_the_next_backup(
    make_btrfs: Callable[..., Path], tree: Path, inplace: str, place: int
) -> None:
    """rsync uses zeros for data that it cannot read, so the host's data does not match, and the host sends all of it."""
    nights = Nights(make_btrfs(size="300M"))
    content = bytearray(os.urandom(2 * MIB))
    (tree / "database").write_bytes(content)
    nights.host("web", tree, inplace=inplace)
    nights.run("web")
    damage(nights.top, bytes(content[MIB : MIB + 4 * KIB]))
    with pytest.raises(OSError, match="Input/output error"):
        (nights.data("web", tree) / "database").read_bytes()
    content[place : place + 100] = os.urandom(100)
    (tree / "database").write_bytes(content)
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert nights.differences("web", tree) == []
    assert "corruption errors" in nights.backupd("status").stdout
    assert nights.run("web")["web"]["outcome"] == "complete"


@pytest.mark.btrfs
@pytest.mark.parametrize("state", ["lost", "older"])
def test_damage_that_the_catalogue_has_forgotten_is_fetched_again_all_the_same(
    make_btrfs: Callable[..., Path], tree: Path, state: str
) -> None:
    """The state folder is lost, or an older one is restored: the pool has the record of the damage."""
    nights = Nights(make_btrfs(size="300M"))
    content = os.urandom(MIB)
    (tree / "database").write_bytes(content)
    nights.host("web", tree)
    nights.run("web")
    kept = nights.state.with_name("kept")
    shutil.copytree(nights.state, kept)
    damage(nights.top, content[: 4 * KIB])
    assert nights.backupd("verify", check=False).returncode == 1
    (before,) = rows(nights, "select name, path from damage")
    shutil.rmtree(nights.state)
    if state == "older":
        kept.rename(nights.state)
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert (nights.data("web", tree) / "database").read_bytes() == content
    assert rows(nights, "select name, path from damage") == [before]


@pytest.mark.btrfs
def test_damage_that_verify_found_in_another_backup_is_known_of_the_base_after_the_catalogue_is_lost(
    make_btrfs: Callable[..., Path], tree: Path
) -> None:
    nights = Nights(make_btrfs(size="300M"))
    content = os.urandom(MIB)
    (tree / "database").write_bytes(content)
    nights.host("web", tree)
    for number in range(2):
        (tree / "log").write_text(f"{number}")
        nights.run("web")
    first, second = nights.names("web")
    damage(nights.top, content[: 4 * KIB])
    assert nights.backupd("verify", f"web@{first}", check=False).returncode == 1
    before = rows(nights, "select name, path from damage order by name")
    assert before == [(name, f"{tree}/database") for name in (first, second)]
    shutil.rmtree(nights.state)
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert (nights.data("web", tree) / "database").read_bytes() == content
    assert rows(nights, "select name, path from damage order by name") == before


@pytest.mark.btrfs
def test_what_is_damaged_in_the_base_is_fetched_again(make_btrfs: Callable[..., Path], tree: Path) -> None:
    """Otherwise rsync keeps it: its time and size are the host's. Undamaged data stays shared with the base."""
    nights = Nights(make_btrfs(size="300M"))
    content, name = os.urandom(MIB), os.fsdecode(b"caf\xe9\nx")
    (tree / name).write_bytes(content)
    (tree / "linked").hardlink_to(tree / name)
    (tree / "other").write_bytes(os.urandom(MIB))
    nights.host("web", tree)
    nights.run("web")
    (first,) = nights.names("web")
    damage(nights.top, content[: 4 * KIB])
    now = datetime(2026, 11, 20, 22, 0, tzinfo=UTC)
    damages = [Damage("web", first, f"{tree}/{text}", 0, 0, "verify", now) for text in (name, "linked", "gone", "gone/too")]
    with Catalogue.open(nights.state) as catalogue:
        catalogue.put_damages([*damages, replace(damages[0], path=f"{tree}/other", fate="mended")])
    killed(nights, "after", "damaged files removed", "run", "web")
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert nights.differences("web", tree) == []
    second = nights.names("web")[1]
    inodes = [(nights.data("web", tree, name) / "other").stat().st_ino for name in (first, second)]
    assert inodes[0] == inodes[1]
    with pytest.raises(OSError, match="Input/output error"):
        (nights.data("web", tree, first) / name).read_bytes()
    fetched = (nights.data("web", tree, second) / name).stat().st_ino
    nights.run("web")
    assert (nights.data("web", tree, nights.names("web")[2]) / name).stat().st_ino == fetched


@pytest.mark.btrfs
def test_backups_of_a_newer_version_are_neither_passed_over_nor_touched(make_btrfs: Callable[..., Path], tree: Path) -> None:
    """An administrator has gone back to an earlier btrkeep: fetching the whole host again would fill the pool without a message."""
    nights = Nights(make_btrfs(size="300M"))
    nights.host("web", tree)
    for _ in range(2):
        nights.run("web")
    old, newest = nights.names("web")
    record = nights.pool / "hosts/web" / newest / "backup.json"
    work("btrfs", "property", "set", "-f", record.parent, "ro", "false")
    content = record.read_text().replace('"format": 1', '"format": 2')
    record.write_text(content)
    work("btrfs", "property", "set", record.parent, "ro", "true")
    answer = nights.run("web", status=1)["web"]
    assert (answer["outcome"], answer["name"]) == ("failed", None), answer
    assert "backup.json was written by a newer btrkeep: it has format 2, this program reads 1" in answer["error"]
    assert "would run" in nights.backupd("run", "web", "--dry-run").stdout
    assert nights.names("web") == [old, newest]
    assert record.read_text() == content
