"""The disk cannot read one backup: the use of the host's good backups, and the commands that name the bad one."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from btrkeep.catalogue import WHOLE
from tests.beds.faults import damage, damage_metadata, leaves
from tests.beds.nights import Nights
from tests.beds.two_pools import TwoPools
from tests.beds.work import work

pytestmark = [pytest.mark.btrfs, pytest.mark.root]


def with_one_unreadable(make_btrfs: Callable[..., Path]) -> tuple[Nights, str, str, str]:
    """Three backups of web, all metadata of the second's own damaged, its folder among it; two hosts with a backup."""
    nights = Nights(make_btrfs(size="300M", mkfs=("-m", "single")))
    web = nights.source / "web"
    web.mkdir()
    nights.host("web", web)
    nights.host("zeus", nights.source)
    for word in ("one", "two", "three"):
        for number in range(300):
            (web / f"file-{number:06}").write_text(f"{word} {number}")
        nights.run("web")
    nights.run("zeus")
    first, second, third = nights.names("web")
    by_name = {name: leaves(nights.backup("web", name), nights.top) for name in (first, second, third)}
    damage_metadata(nights.top, *(leaf for leaf in by_name[second] if leaf not in (*by_name[first], *by_name[third])))
    with pytest.raises(OSError, match="Input/output"):
        (nights.backup("web", second) / "backup.json").read_bytes()
    return nights, first, second, third


def test_the_good_backups_of_its_host_can_be_worked_with(make_btrfs: Callable[..., Path]) -> None:
    nights, first, second, third = with_one_unreadable(make_btrfs)

    def output_of(*words: str, status: int = 0) -> str:
        done = nights.backupd(*words, check=False)
        assert (done.returncode, "Traceback" in done.stderr) == (status, False), (words, done.stdout, done.stderr)
        return done.stdout + done.stderr

    for _ in range(2):  # the second time after a rebuild: nothing identifies the unreadable one
        assert "is held" in output_of("hold", "web", "latest", "--why", "court")
        output_of("release", "web", third)
        assert "not suspect" in output_of("accept", "web", third, status=1)
        output_of("delete", f"web@{first}", "--why", "a test")
        assert "is held" in output_of("unexpire", "web", first)
        output_of("release", "web", first)
        for command in ("hold", "release"):
            assert f"web {second} itself cannot be read" in output_of(command, "web", second)
        for command in ("accept", "unexpire"):
            done = nights.backupd(command, "web", second, check=False)
            assert (done.returncode, f"web {second}" in done.stderr, "Traceback" in done.stderr) == (1, True, False), done
        output_of("usage", "web", "--method", "extents")
        assert second in output_of("rebuild", status=1)
        assert second in output_of("retention", "explain", "web", status=1)
    output_of("delete", f"web@{first}", "--why", "a test", "--now-without-grace")
    assert f"web {second} cannot be read, so it is kept" in output_of("expire")
    work("btrfs", "subvolume", "sync", nights.top)
    assert nights.names("web") == [second, third]
    assert nights.run("web")["web"]["outcome"] == "complete"


def damage_record(nights: Nights, backup: Path) -> None:
    """Makes only backup.json unreadable."""
    record = backup / "backup.json"
    damage(nights.top, record.read_bytes())
    with pytest.raises(OSError, match="Input/output"):
        record.read_bytes()


def test_a_backup_whose_record_alone_cannot_be_read_can_be_deleted(make_btrfs: Callable[..., Path]) -> None:
    nights = Nights(make_btrfs(size="300M"))
    work("mount", "-o", "remount,max_inline=0", nights.top)  # backup.json has an extent of its own
    nights.host("web", nights.source)
    for number in range(3):
        (nights.source / "file").write_text(f"{number}")
        nights.run("web")
    first, second, third = nights.names("web")
    damage_record(nights, nights.backup("web", second))
    nights.backupd("delete", f"web@{second}", "--why", "damaged")
    assert {row["name"]: row["state"] for row in nights.listed("web")}[second] == "expired"
    nights.backupd("unexpire", "web", second)
    assert "is held" in nights.backupd("delete", f"web@{second}", check=False).stderr
    nights.backupd("release", "web", second)
    nights.backupd("delete", f"web@{first}", f"web@{third}", "--force")
    assert "no complete backup" in nights.backupd("delete", f"web@{second}", "--dry-run", check=False).stderr
    nights.backupd("unexpire", "web", first)
    for path in nights.state.glob("catalogue.sqlite*"):  # only its place and its seal identify it
        path.unlink()
    nights.backupd("rebuild", check=False)
    nights.backupd("delete", f"web@{second}", "--why", "damaged")
    nights.backupd("expire")
    assert second in nights.names("web")  # its grace
    nights.backupd("delete", f"web@{second}", "--now-without-grace")
    work("btrfs", "subvolume", "sync", nights.top)
    assert second not in nights.names("web")


def test_without_a_seal_a_backup_whose_record_cannot_be_read_is_left_alone(make_btrfs: Callable[..., Path]) -> None:
    """It may be a snapshot that a user has put there."""
    nights = Nights(make_btrfs(size="300M"))
    work("mount", "-o", "remount,max_inline=0", nights.top)  # backup.json has an extent of its own
    nights.host("web", nights.source)
    for number in range(2):
        (nights.source / "file").write_text(f"{number}")
        nights.run("web")
    first, second = nights.names("web")
    snapshot = nights.backup("web", "2020-01-01T000000Z")
    work("btrfs", "subvolume", "snapshot", "-r", nights.backup("web", first), snapshot)
    damage_record(nights, nights.backup("web", first))
    done = nights.backupd("delete", f"web@{snapshot.name}", "--now-without-grace", "--force", check=False)
    assert (done.returncode, "is not deleted" in done.stderr) == (1, True), done.stderr
    assert nights.names("web") == [snapshot.name, first, second]


def test_repair_names_what_is_damaged_as_a_whole(make_btrfs: Callable[..., Path]) -> None:
    nights, _, second, _ = with_one_unreadable(make_btrfs)
    assert nights.backupd("verify", check=False).returncode == 1
    done = nights.backupd("repair", "--yes", check=False)
    assert (done.returncode, second in done.stdout, "nothing is known" in done.stdout) == (1, True, False), done.stdout
    (plan,) = json.loads(nights.backupd("repair", "--dry-run", "--json", check=False).stdout)["backups"]
    assert (plan["name"], [file["path"] for file in plan["files"]]) == (second, [WHOLE])


def test_an_import_does_not_hand_known_damage_on(make_btrfs: Callable[..., Path], tmp_path: Path) -> None:
    nights = Nights(make_btrfs(size="300M"))
    old, contents = tmp_path / "old", [os.urandom(300_000) for _ in range(2)]  # not on the pool's filesystem
    (old / "2026-01-01").mkdir(parents=True)
    for number, content in enumerate(contents):
        (old / "2026-01-01" / f"database{number}").write_bytes(content)
    os.link(old / "2026-01-01/database0", old / "2026-01-01/linked")
    words = ("import", "tree", str(old), "--host", "attic", "--verify", "none")
    nights.backupd(*words)
    damage(nights.top, contents[0][:4096])
    assert nights.backupd("verify", "attic", check=False).returncode == 1
    for day in (2, 3):
        work("cp", "-al", old / f"2026-01-0{day - 1}", old / f"2026-01-0{day}")
        (old / f"2026-01-0{day}" / "note").write_text(f"{day}")
    nights.backupd(*words)
    for name in nights.names("attic")[1:]:
        data = nights.backup("attic", name) / "data"
        assert [(data / f"database{number}").read_bytes() for number in range(2)] == contents
        assert (data / "linked").stat().st_ino == (data / "database0").stat().st_ino
    assert nights.backupd("verify", "attic", check=False).returncode == 1
    answer = json.loads(nights.backupd("damaged", "--json", check=False).stdout)
    assert {name for row in answer for name in row["backups"]} == {nights.names("attic")[0]}


def test_a_base_of_which_not_all_damage_is_named_is_passed_over(make_btrfs: Callable[..., Path], tree: Path) -> None:
    """damaged.json lists a limited number of places; beyond the limit it also lists the backup as a whole."""
    nights = Nights(make_btrfs(size="300M"))
    nights.host("web", tree)
    contents = [os.urandom(100_000) for _ in range(2)]
    (tree / "same").write_text("same")
    nights.run("web")
    for number, content in enumerate(contents):
        (tree / f"large{number}").write_bytes(content)
    nights.run("web")
    first, second = nights.names("web")
    damage(nights.top, *(content[:4096] for content in contents))
    assert nights.backupd("verify", check=False).returncode == 1
    folder = nights.pool / "hosts/web"
    recorded = json.loads((folder / "damaged.json").read_text())
    recorded["backups"][second] = [{**recorded["backups"][second][0], "path": WHOLE}, recorded["backups"][second][0]]
    for path in folder.glob("*.json"):
        if path.name != "notes.json":
            path.unlink()
    (folder / "damaged.json").write_text(json.dumps(recorded))
    for path in nights.state.glob("catalogue.sqlite*"):
        path.unlink()
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert (nights.record("web")["base"], nights.record("web")["unread_bases"]) == (first, [second])
    assert nights.differences("web", tree) == []


def test_a_host_with_an_unreadable_backup_can_be_demoted(make_btrfs: Callable[..., Path]) -> None:
    two = TwoPools(make_btrfs(), make_btrfs())
    work("mount", "-o", "remount,max_inline=0", two.first.top)
    first, second = (two.night(f"2026-03-{day}T10:00:00Z", str(day)) for day in (18, 19))
    two.fetch()
    two.second.backupd("promote", "web1", "--yes")
    two.first.tables["replica.back"] = {"from": str(two.second.pool)}
    two.first.write()
    damage_record(two.first, two.first.backup("web1", first))
    done = two.first.backupd("demote", "back", "web1", "--yes", "--now", "2026-03-20T12:00:00Z")
    assert f"{first} cannot be read, so it is skipped" in " ".join(done.stderr.split())
    notes = json.loads((two.first.pool / "hosts/web1/notes.json").read_text())
    assert notes["replica"]["name"] == "back"
    two.second.host("web1", two.source)
    (two.source / "changed").write_text("20" * 5000)
    two.second.backupd("run", "web1", "--now", "2026-03-20T13:00:00Z")
    done = two.first.backupd("replicate", "--json", "--now", "2026-03-20T14:00:00Z")
    assert [fetched["parent"] for fetched in json.loads(done.stdout)[0]["fetched"]] == [second]


@pytest.mark.parametrize("place", [0, 1])
def test_an_import_goes_on_beside_an_unreadable_backup(make_btrfs: Callable[..., Path], tmp_path: Path, place: int) -> None:
    nights = Nights(make_btrfs(size="300M"))
    work("mount", "-o", "remount,max_inline=0", nights.top)
    old = tmp_path / "old"
    words = ("import", "tree", str(old), "--host", "attic", "--verify", "none")
    for day in (1, 2):
        (old / f"2026-01-0{day}").mkdir(parents=True)
        (old / f"2026-01-0{day}/note").write_text(f"{day}")
        nights.backupd(*words)
    damage_record(nights, nights.backup("attic", nights.names("attic")[place]))
    work("cp", "-al", old / "2026-01-02", old / "2026-01-03")
    done = nights.backupd(*words, check=False)
    assert "Traceback" not in done.stderr
    assert nights.names("attic")[-1] == "2026-01-03T000000Z", done.stdout + done.stderr
    assert (nights.backup("attic", "2026-01-03T000000Z") / "data/note").read_text() == "2"
