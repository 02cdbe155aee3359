"""Entries that expiry must not touch: foreign and unreadable ones, and changes between plan and deletion."""

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.beds import differences, manifest, work
from tests.beds.expiries import LATER, NOW, Expiries, at
from tests.beds.hidden_changes import hide_changes
from tests.beds.two_pools import TwoPools
from tests.beds.watch import ended, held_at, killed, rows, subvolumes

OLDER = "2026-01-01T220000Z"


@pytest.fixture
def pool(shared_btrfs: Path) -> Expiries:
    return Expiries(shared_btrfs)


def writable(path: Path) -> None:
    work("btrfs", "-q", "property", "set", "-f", "-ts", path, "ro", "false")


def read_only(path: Path) -> None:
    work("btrfs", "-q", "property", "set", "-ts", path, "ro", "true")
    hide_changes(path.parent)


def snapshot(pool: Expiries, name: str, *options: str) -> Path:
    path = pool.pool / "hosts" / "web" / name
    work("btrfs", "-q", "subvolume", "snapshot", *options, pool.backup("web", pool.left("web")[0]), path)
    return path


def symlink_to_a_backup(pool: Expiries, name: str) -> None:
    outside = pool.top / "outside"
    work("btrfs", "-q", "subvolume", "snapshot", "-r", pool.backup("web", pool.left("web")[0]), outside)
    (pool.pool / "hosts" / "web" / name).symlink_to(outside)


def own_subvolume(pool: Expiries, name: str) -> None:
    path = pool.pool / "hosts" / "web" / name
    work("btrfs", "-q", "subvolume", "create", path)
    (path / "backup.json").write_text("{}")
    read_only(path)


FOREIGN: dict[str, Callable[[Expiries, str], object]] = {
    "a read-only snapshot of a backup": lambda pool, name: snapshot(pool, name, "-r"),
    "a writable snapshot of a backup": snapshot,
    "a symlink to a snapshot elsewhere": symlink_to_a_backup,
    "a subvolume of somebody's": own_subvolume,
    "a copy of a backup": lambda pool, name: shutil.copytree(
        pool.backup("web", pool.left("web")[0]), pool.pool / "hosts" / "web" / name
    ),
    "a file": lambda pool, name: (pool.pool / "hosts" / "web" / name).write_text("mine"),
}


def identity_of(path: Path) -> object:
    status = path.lstat()
    inside = sorted(manifest(path.resolve()).items()) if path.is_dir() else None
    return (status.st_ino, status.st_mode, path.readlink() if path.is_symlink() else None, inside)


@pytest.mark.parametrize("subject", FOREIGN)
def test_what_is_not_ours_stays_although_notes_and_rows_say_that_it_has_expired(pool: Expiries, subject: str) -> None:
    """The worst case: everything except the entry itself looks like a backup of this pool that expired long ago."""
    names = pool.history("web", 5)
    FOREIGN[subject](pool, OLDER)
    path = pool.pool / "hosts" / "web" / OLDER
    before = identity_of(path)
    pool.expire()
    notes = pool.notes("web")
    notes["backups"][OLDER] = {"expired": {"at": "2026-01-02T00:00:00Z", "why": "no rule keeps it"}}
    (pool.pool / "hosts" / "web" / "notes.json").write_text(json.dumps(notes))
    with closing(sqlite3.connect(pool.state / "catalogue.sqlite")) as connection, connection:
        values = ("web", OLDER, f"hosts/web/{OLDER}", "deleting", "2026-01-01T22:00:00.000000Z", "complete")
        number = subvolumes(pool).get(f"hosts/web/{OLDER}", 256)
        columns = "host, name, path, state, started, outcome, subvolume_id, uuid"
        connection.execute(f"insert into backup ({columns}) values (?, ?, ?, ?, ?, ?, ?, 'x')", (*values, number))
    pool.backupd("expire", *at(LATER), check=False)
    assert identity_of(path) == before
    assert [name for name in pool.left("web") if name != OLDER] == names[2:]


def test_a_nested_subvolume_is_refused_with_a_message_and_the_rest_goes_on(pool: Expiries) -> None:
    names = pool.history("web", 5)
    pool.expire()
    first = pool.backup("web", names[0])
    writable(first)
    work("btrfs", "-q", "subvolume", "create", first / "data" / "mine")
    (first / "data" / "mine" / "file").write_text("mine")
    read_only(first)
    done = pool.expire(LATER, status=1)
    assert [problem for problem in done["problems"] if names[0] in problem and "does not belong to btrkeep" in problem]
    assert done["deleted"] == 1
    assert (first / "data" / "mine" / "file").read_text() == "mine"
    assert pool.states("web")[names[0]] == "expired"
    assert pool.left("web") == [names[0], *names[2:]]


@pytest.mark.parametrize("damage", ["", '{"format": 99}'])
def test_a_backup_whose_record_cannot_be_read_stays_and_is_named(pool: Expiries, damage: str) -> None:
    names = pool.history("web", 5)
    pool.expire()
    first = pool.backup("web", names[0])
    writable(first)
    (first / "backup.json").write_text(damage)
    read_only(first)
    done = pool.expire(LATER, status=1)
    assert [problem for problem in done["problems"] if names[0] in problem]
    assert pool.left("web") == [names[0], *names[2:]]


def test_a_backup_that_was_made_writable_stays(pool: Expiries) -> None:
    names = pool.history("web", 5)
    pool.expire()
    writable(pool.backup("web", names[0]))
    pool.expire(LATER)
    assert pool.left("web") == [names[0], *names[2:]]


@pytest.mark.parametrize(
    "damage", ["", "{", '{"format": 99, "backups": {}}', "[]", '{"format": 1, "backups": {"x": {"expired": 1}}}']
)
def test_a_host_whose_notes_cannot_be_read_loses_nothing_and_is_named(pool: Expiries, damage: str) -> None:
    names = pool.history("web", 5)
    others = pool.history("other", 5)
    pool.expire()
    (pool.pool / "hosts" / "web" / "notes.json").write_text(damage)
    for when in (NOW, LATER):
        done = pool.expire(when, status=1)
        assert "notes.json" in done["left_out"]["web"]
    assert pool.left("web") == names
    assert pool.left("other") == others[2:]
    assert (pool.pool / "hosts" / "web" / "notes.json").read_text() == damage


def test_a_folder_that_was_renamed_stays_and_comes_back_unmarked(pool: Expiries) -> None:
    names = pool.history("web", 5)
    pool.expire()
    folder = pool.pool / "hosts" / "web"
    (folder / names[0]).rename(folder / "keep-this")
    pool.expire(LATER)
    assert (folder / "keep-this" / "backup.json").exists()
    (folder / "keep-this").rename(folder / names[0])
    pool.expire(LATER)
    assert pool.left("web") == [names[0], *names[2:]]
    assert pool.marked("web") == [names[0]]


def test_backups_that_changed_their_names_with_each_other_stay(pool: Expiries) -> None:
    names = pool.history("web", 5)
    pool.expire()
    folder = pool.pool / "hosts" / "web"
    numbers = {subvolumes(pool)[f"hosts/web/{name}"] for name in names}
    (folder / names[0]).rename(folder / "aside")
    (folder / names[4]).rename(folder / names[0])
    (folder / "aside").rename(folder / names[4])
    pool.expire(LATER)
    kept = subvolumes(pool)
    assert {kept[f"hosts/web/{name}"] for name in (names[0], *names[2:])} <= numbers
    assert names[0] in pool.left("web")
    assert names[4] in pool.left("web")


def test_the_hosts_folder_may_not_be_a_symlink(pool: Expiries) -> None:
    names = pool.history("web", 5)
    pool.expire()
    folder = pool.pool / "hosts" / "web"
    elsewhere = pool.pool / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    pool.expire(LATER)
    assert len([path for path in subvolumes_anywhere(pool) if path.startswith("elsewhere/")]) == len(names)


def subvolumes_anywhere(pool: Expiries) -> list[str]:
    lines = work("btrfs", "subvolume", "list", pool.pool).stdout.splitlines()
    return [line.split(" path ", 1)[1].rpartition("pool/")[2] for line in lines]


# --- between the plan and the act


@pytest.mark.parametrize("words", [("unexpire",), ("hold",)])
def test_a_backup_that_is_taken_back_between_the_plan_and_the_act_stays(pool: Expiries, words: tuple[str, ...]) -> None:
    names = pool.history("web", 5)
    pool.expire()
    with held_at(pool, "before", "balance lock taken", "expire", "--json", *at(LATER)) as process:
        pool.backupd(*words, "web", names[0], *at(NOW))
    status, out, _ = ended(process)
    assert status == 0
    assert json.loads(out)["deleted"] == 1
    assert pool.left("web") == [names[0], *names[2:]]
    assert pool.marked("web") == []
    assert pool.consistent() == []


def test_a_newer_backup_that_turns_out_damaged_between_plan_and_act_keeps_the_older_one(pool: Expiries) -> None:
    pool.settings("retention", daily=1)
    names = pool.history("web", 2)
    with held_at(pool, "before", "host lock taken", "expire", "--json", *at(NOW)) as process:
        newest = pool.backup("web", names[1])
        writable(newest)
        (newest / "backup.json").write_text("{")
        read_only(newest)
    ended(process)
    assert pool.marked("web") == []
    assert pool.left("web") == names


def test_a_backup_that_is_replaced_in_the_last_moment_stays(pool: Expiries) -> None:
    names = pool.history("web", 5)
    pool.expire()
    with held_at(pool, "after", "backups marked as deleting", "expire", "--json", *at(LATER)) as process:
        first = pool.backup("web", names[0])
        first.rename(first.with_name("moved"))
        work("btrfs", "-q", "subvolume", "snapshot", "-r", first.with_name("moved"), first)
        before = manifest(first)
    status, out, _ = ended(process)
    assert status == 1
    assert [problem for problem in json.loads(out)["problems"] if names[0] in problem]
    assert differences(before, manifest(first)) == []
    assert first.with_name("moved").exists()


def test_a_killed_run_that_was_about_to_delete_what_is_held_afterwards_does_not(pool: Expiries) -> None:
    """The catalogue has `deleting`, the pool's notes have a hold: the pool is authoritative."""
    names = pool.history("web", 5)
    pool.expire()
    killed(pool, "before", "subvolume deleted", "expire", *at(LATER))
    assert pool.states("web")[names[0]] == "deleting"
    path = pool.pool / "hosts" / "web" / "notes.json"
    notes = pool.notes("web")
    notes["backups"][names[0]]["hold"] = {"at": "2026-03-21T00:00:00Z", "until": None, "why": "audit"}
    path.write_text(json.dumps(notes))
    pool.expire(LATER)
    assert pool.left("web") == [names[0], *names[2:]]
    assert pool.states("web")[names[0]] == "complete"


def test_backups_of_a_renamed_host_are_ours_as_before(pool: Expiries) -> None:
    names = pool.history("web", 5)
    del pool.tables["host"]["web"]
    pool.host("web2", pool.source)
    pool.backupd("rename", "web", "web2", "--yes", *at(NOW))
    pool.expire_twice()
    assert pool.left("web2") == names[2:]
    assert pool.consistent() == []


def test_a_lost_catalogue_costs_no_hold_and_no_backup(pool: Expiries) -> None:
    names = pool.history("web", 6)
    pool.backupd("hold", "web", names[0], *at(NOW))
    pool.expire()
    shutil.rmtree(pool.state)
    done = pool.expire(NOW)
    assert (done["marked"], done["deleted"]) == (0, 0)
    assert pool.marked("web") == names[1:3]
    pool.expire(LATER)
    assert pool.left("web") == [names[0], *names[3:]]
    assert pool.consistent() == []


def test_what_is_deleted_is_deleted_by_its_number_and_nothing_of_the_pool_is_followed_out_of_it(pool: Expiries) -> None:
    """Everything on the filesystem except the marked backups still exists afterwards, by number and path."""
    names = pool.history("web", 5)
    pool.expire()
    before = dict(line.split(" path ", 1)[::-1] for line in work("btrfs", "subvolume", "list", pool.top).stdout.splitlines())
    pool.expire(LATER)
    after = dict(line.split(" path ", 1)[::-1] for line in work("btrfs", "subvolume", "list", pool.top).stdout.splitlines())
    gone = {path for path in before if path not in after}
    assert {os.path.basename(path) for path in gone} == set(names[:2])  # noqa: PTH119
    assert not after.keys() - before.keys()
    assert rows(pool, "select count(*) from backup") == [(3,)]


def test_what_is_mounted_in_the_place_of_a_backup_has_no_other_deleted_by_its_number(make_btrfs: Callable[..., Path]) -> None:
    """For example the copy of a replica, because the backup itself is damaged. Another filesystem may use the same subvolume
    numbers.
    """
    two = TwoPools(make_btrfs(), make_btrfs())
    first, *_ = names = [two.night(f"2026-03-0{day}T22:00:00Z", str(day)) for day in (1, 2)]
    two.fetch()
    for number in range(20):
        work("btrfs", "-q", "subvolume", "create", two.first.top / f"own{number}")
    everything = work("btrfs", "subvolume", "list", two.first.top).stdout
    assert f"ID {two.second.subvolume('web1', first)['Subvolume ID']} " in everything
    work("mount", "--bind", two.second.backup("web1", first), two.first.backup("web1", first))
    try:
        words = ("delete", f"web1@{first}", "--now-without-grace", "--now", "2026-03-20T12:00:00Z")
        assert two.first.backupd(*words, check=False).returncode != 0
    finally:
        work("umount", two.first.backup("web1", first))
    assert [" ".join(line.split()[::8]) for line in work("btrfs", "subvolume", "list", two.first.top).stdout.splitlines()] == [
        " ".join(line.split()[::8]) for line in everything.splitlines()
    ]
    assert two.names(two.second.pool) == names
