"""`rename`: the backups of a host under another name, for btrfs, SQLite and the next run; and kills in the middle."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from backupd.repo.read_lock import lock_for_reading
from tests.beds import TOP, btrfs, differences, exclusive_bytes, manifest, work
from tests.beds.history import every, make_history, moment, notes_of, write_down
from tests.beds.nights import Nights
from tests.beds.watch import disagreements, killed, rows, subvolumes
from tests.beds.work import error_and_hint

pytestmark = [pytest.mark.btrfs]
MIB = 1 << 20
NOW = "2026-11-20T22:00:00Z"


@pytest.fixture(scope="module")
def pool(module_btrfs: Path) -> Nights:
    """A pool whose hosts have one backup of a MiB of data each; tests use unused ones."""
    nights = Nights(module_btrfs)
    (nights.source / "image").write_bytes(os.urandom(MIB))
    nights.settings("backup", concurrency=4)
    for host in HOSTS:
        nights.host(host, nights.source)
    nights.run()
    return nights


HOSTS = [f"old{number:02}" for number in range(28)]
_unused = iter(HOSTS)


@pytest.fixture
def old() -> str:
    return next(_unused)


@pytest.fixture
def new(old: str) -> str:
    return old.replace("old", "new")


def configure_new(pool: Nights, old: str, new: str) -> None:
    pool.tables["host"][new] = pool.tables["host"].pop(old)
    pool.write()


def fails(pool: Nights, *words: str, status: int) -> tuple[str, str]:
    return error_and_hint(pool.backupd(*words, check=False), status)


def table(pool: Nights, host: str) -> tuple[int, int]:
    """Returns how many backups and runs the catalogue has of a host."""
    (backups,) = rows(pool, f"select count(*) from backup where host = '{host}'")
    (runs,) = rows(pool, f"select count(*) from run where host = '{host}'")
    return backups[0], runs[0]


def test_everything_works_with_the_new_name_and_the_next_backup_grows_from_the_old_ones(pool: Nights, old: str, new: str) -> None:
    (name,) = pool.names(old)
    count, record = subvolumes(pool)[f"hosts/{old}/{name}"], (pool.backup(old, name) / "backup.json").read_bytes()
    would = pool.backupd("rename", old, new, "--dry-run").stdout.splitlines()
    assert would[0] == f"1 backup of {old} would belong to {new}"
    assert (pool.names(old), (pool.pool / "hosts" / new).exists()) == ([name], False)
    lines = pool.backupd("rename", old, new, "--yes").stdout.splitlines()
    assert lines[1:] == would[1:]
    assert lines[0] == f"1 backup of {old} now belongs to {new}"
    assert f"change [host.{old}] to [host.{new}] in {pool.config}" in lines[1]
    assert not (pool.pool / "hosts" / old).exists()
    assert subvolumes(pool)[f"hosts/{new}/{name}"] == count  # the same subvolume, which was never written
    assert (pool.backup(new, name) / "backup.json").read_bytes() == record
    assert notes_of(pool, new)["was"] == [old]
    assert (table(pool, old), table(pool, new)) == ((0, 0), (1, 1))
    assert disagreements(pool) == []

    configure_new(pool, old, new)
    with (pool.source / "image").open("r+b") as file:
        file.seek(MIB // 2)
        file.write(os.urandom(4096))
    assert pool.run(new)[new]["outcome"] == "complete"
    second = pool.names(new)[-1]
    assert pool.grew_from(new) == name
    assert exclusive_bytes(pool.data(new, pool.source, second)) <= 3 * 4096
    assert pool.record(new, second)["host"] == new
    assert pool.record(new, second)["base"] == name
    assert pool.differences(new, pool.source) == []

    assert [row["name"] for row in pool.json("list", new)] == [name, second]
    assert pool.json("list", new)[0]["path"] == str(pool.backup(new, name))
    assert pool.status(new)["state"] == "ok"
    assert [run["backup"] for run in pool.json("log", new)] == [second, name]
    assert pool.json("hold", new, name)["name"] == name
    assert [row["name"] for row in pool.json("retention", "explain", new)] == [name, second]
    before = rows(pool, f"select name, path, state, subvolume_id, held_until, held_why from backup where host = '{new}'")
    pool.backupd("rebuild", check=False)
    assert rows(pool, f"select name, path, state, subvolume_id, held_until, held_why from backup where host = '{new}'") == before
    work(
        "sqlite3",
        pool.state / "catalogue.sqlite",
        f"pragma foreign_keys = on; delete from backup where host = '{new}' and name = '{name}'",
    )
    pool.run(new)  # reconciles first
    assert table(pool, new)[0] == 3
    assert disagreements(pool) == []
    assert fails(pool, "list", old, status=2)[0] == f"there is no host {old}"


def test_a_suspect_backup_is_accepted_under_the_new_name(pool: Nights, old: str, new: str) -> None:
    many = pool.top / f"{old}-files"
    many.mkdir()
    for number in range(10):
        (many / str(number)).write_text("x" * 1000)
    pool.host(old, many)
    pool.run(old)
    for number in range(9):
        (many / str(number)).unlink()
    pool.run(old, status=1)
    pool.backupd("rename", old, new, "--yes")
    configure_new(pool, old, new)
    suspect = pool.names(new)[-1]
    assert pool.json("accept", new, "latest")["name"] == suspect
    pool.run(new)
    assert pool.grew_from(new) == suspect


def test_a_partial_run_is_continued_under_the_new_name(pool: Nights, old: str, new: str) -> None:
    source = pool.top / f"{old}-files"
    source.mkdir()
    for number in range(6):
        (source / f"{number}").write_bytes(os.urandom(MIB // 2))
    pool.host(old, source)
    ssh = pool.tables["ssh"]["command"]
    pool.in_the_middle(MIB, "kill -9 $PPID")
    assert pool.run(old, status=1)[old]["outcome"] == "partial"
    pool.settings("ssh", command=ssh)
    kept = subvolumes(pool)[f"hosts/{old}/.working"]
    pool.backupd("rename", old, new, "--yes")
    assert disagreements(pool) == []
    configure_new(pool, old, new)
    assert pool.run(new)[new]["outcome"] == "complete"
    assert subvolumes(pool)[f"hosts/{new}/{pool.names(new)[-1]}"] == kept
    assert pool.differences(new, source) == []


def test_a_partial_run_that_does_not_fit_any_more_is_discarded_under_the_new_name(pool: Nights, old: str, new: str) -> None:
    (pool.source / "more").write_bytes(os.urandom(MIB))
    ssh = pool.tables["ssh"]["command"]
    pool.in_the_middle(MIB // 2, "kill -9 $PPID")
    assert pool.run(old, status=1)[old]["outcome"] == "partial"
    pool.settings("ssh", command=ssh)
    kept = subvolumes(pool)[f"hosts/{old}/.working"]
    pool.backupd("rename", old, new, "--yes")
    configure_new(pool, old, new)
    pool.host(new, pool.source, exclude=["/nothing"])
    assert pool.run(new)[new]["outcome"] == "complete"
    assert subvolumes(pool)[f"hosts/{new}/{pool.names(new)[-1]}"] != kept


def test_a_finished_backup_that_lacks_its_name_gets_it_under_the_new_one(pool: Nights, old: str, new: str) -> None:
    killed(pool, "after", "subvolume made read-only", "run", old)
    name = pool.record(old, ".working")["name"]
    pool.backupd("rename", old, new, "--yes")
    configure_new(pool, old, new)
    pool.run(new)
    assert name in pool.names(new)
    assert len(pool.names(new)) == 3
    assert disagreements(pool) == []
    assert rows(pool, f"select count(*) from backup where host = '{old}'") == [(0,)]


def test_a_host_is_renamed_again_and_back(pool: Nights, old: str, new: str) -> None:
    (name,) = pool.names(old)
    pool.backupd("hold", old, name, "--why", "stays")
    for before, after in ((old, new), (new, f"{new}-b"), (f"{new}-b", old)):
        pool.backupd("rename", before, after, "--yes")
        assert pool.names(after) == [name]
        assert [row["name"] for row in pool.json("list", after)] == [name]
        assert pool.json("list", after)[0]["held"] == {"until": None, "why": "stays"}
    pool.backupd("rebuild", check=False)
    assert table(pool, old)[0] == 1
    assert pool.run(old)[old]["outcome"] == "complete"
    assert pool.grew_from(old) == name
    assert set(notes_of(pool, old)["was"]) >= {new, f"{new}-b"}


def test_a_new_host_of_the_old_name_has_nothing_to_do_with_it(pool: Nights, old: str, new: str) -> None:
    pool.backupd("rename", old, new, "--yes")
    assert pool.run(old)[old]["outcome"] == "complete"
    assert pool.subvolume(old)["Parent UUID"] == "-"
    assert len(pool.names(old)) == len(pool.names(new)) == 1
    copy = pool.backup(new, "2020-01-01T000000Z")  # a user's copy of another host's backup is no backup of this one
    work("btrfs", "subvolume", "snapshot", "-r", pool.backup(old), copy)
    assert [row["name"] for row in pool.json("list", new)] == pool.names(new)[1:]
    assert fails(pool, "rename", old, new, "--yes", status=1)[0] == f"{new} has backups already"
    btrfs.delete_subvolume(copy, pool.top.parents[0])


STEPS = [
    ("before", "notes.json replaced", False),
    ("after", "notes.json replaced", False),
    ("before", "filesystem committed", True),
    ("after", "filesystem committed", True),
    ("after", "rows of the host renamed", True),
]


@pytest.mark.parametrize(("when", "step", "moved"), STEPS)
def test_a_rename_killed_at_a_step_leaves_one_name_or_the_other_and_given_again_is_done(
    pool: Nights, old: str, new: str, when: str, step: str, moved: bool
) -> None:
    (name,) = pool.names(old)
    before = manifest(pool.backup(old, name))
    killed(pool, when, step, "rename", old, new, "--yes")
    output, gone = (new, old) if moved else (old, new)
    assert pool.names(output) == [name]
    assert not (pool.pool / "hosts" / gone).exists()
    if not moved:  # nothing has changed yet, and a run with the old name continues
        assert pool.run(old)[old]["outcome"] == "complete"
        assert pool.grew_from(old) == name
    pool.backupd("rename", old, new, "--yes")
    assert pool.names(new)[0] == name
    assert notes_of(pool, new)["was"] == [old]
    assert differences(before, manifest(pool.backup(new, name))) == []
    assert disagreements(pool) == []
    assert table(pool, old) == (0, 0)
    assert table(pool, new) == ((1, 1) if moved else (2, 2))
    assert pool.backupd("rename", old, new, "--yes").returncode == 0  # and once more


def test_a_run_between_a_killed_rename_and_its_end_finds_the_backups_under_the_new_name(pool: Nights, old: str, new: str) -> None:
    (name,) = pool.names(old)
    killed(pool, "before", "rows of the host renamed", "rename", old, new, "--yes")
    configure_new(pool, old, new)
    assert pool.run(new)[new]["outcome"] == "complete"
    assert pool.grew_from(new) == name
    assert table(pool, old)[0] == 0
    pool.backupd("rename", old, new, "--yes")
    assert disagreements(pool) == []
    assert [row["name"] for row in pool.json("list", new)] == pool.names(new)


def test_damage_is_not_forgotten_by_a_rename_that_was_killed_before_the_catalogue_followed(
    pool: Nights, old: str, new: str
) -> None:
    (name,) = pool.names(old)
    path = str(pool.source / "image")
    record = {"begun": NOW, "at": NOW, "read": 1, "compared": 0, "bytes": 0, "whole": NOW, "damages": 1, "damaged": [path]}
    verified = pool.pool / "hosts" / old / "verified.json"
    verified.write_text(json.dumps({"format": 1, "backups": {name: record}}))
    killed(pool, "before", "rows of the host renamed", "rename", old, new, "--yes")
    pool.backupd("expire")  # meets a host with another name
    pool.backupd("rename", old, new, "--yes")
    assert rows(pool, f"select name, path from damage where host = '{new}'") == [(name, path)]
    assert rows(pool, f"select name, read from verification where host = '{new}'") == [(name, 1)]


STEP = "folder of the host renamed"


@pytest.mark.parametrize(("when", "step"), [("before", STEP), ("after", STEP), ("after", "rows of the host renamed"), ("", "")])
def test_a_backup_in_doubt_since_a_crash_stays_so_under_whichever_name_it_has(
    pool: Nights, old: str, new: str, when: str, step: str
) -> None:
    (name,) = pool.names(old)
    boot = pool.pool / ".btrkeep/boot.json"
    boot.write_text(json.dumps(json.loads(boot.read_text()) | {"unread": [[old, name]]}))

    def in_doubt() -> list[list[str]]:
        return list(json.loads(boot.read_text())["unread"])

    if when:
        killed(pool, when, step, "rename", old, new, "--yes")
        text = old if (when, step) == ("before", STEP) else new
        assert pool.names(text) == [name]
        assert [text, name] in in_doubt()
    pool.backupd("rename", old, new, "--yes")
    assert in_doubt() == [[new, name]]
    configure_new(pool, old, new)
    assert f"{old} {name}" not in (output := pool.backupd("run", new).stdout)
    assert "1 backup written just before a crash of this server" in output
    assert in_doubt() == []


def test_no_backup_in_doubt_is_renamed_while_it_is_being_read(pool: Nights, old: str, new: str) -> None:
    (name,) = pool.names(old)
    boot = pool.pool / ".btrkeep/boot.json"
    answer = json.loads(boot.read_text())
    with (pool.pool / ".btrkeep/locks/verify").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        boot.write_text(json.dumps(answer | {"unread": [[old, name]]}))
        assert pool.backupd("rename", old, new, "--yes", check=False).returncode == 3
        boot.write_text(json.dumps(answer | {"unread": [["another", name]]}))
        pool.backupd("rename", old, new, "--yes")
    boot.write_text(json.dumps(answer))
    assert pool.names(new) == [name]


def test_what_cannot_be_renamed_is_refused_and_nothing_changes(pool: Nights, old: str, new: str) -> None:
    other = next(host for host in HOSTS if host != old and (pool.pool / "hosts" / host).exists())
    before = subvolumes(pool)
    assert fails(pool, "rename", old, other, "--yes", status=1)[0] == f"{other} has backups already"
    assert fails(pool, "rename", old, old, "--yes", status=2)[0] == f"{old} has that name already"
    for wrong in ("../x", ".hidden", "-x", "a b", "", "x" * 201, "a/b", "x\n"):
        error, hint = fails(pool, "rename", "--yes", "--", old, wrong, status=2)
        assert "cannot be a host's name" in error
        assert hint
    assert fails(pool, "rename", "odl", new, "--yes", status=2)[0] == "there is no host odl"
    assert fails(pool, "rename", old, new, status=2) == (
        "there is no terminal to ask for confirmation",
        "add --yes if you are sure",
    )
    pool.host("fresh", pool.source)
    assert fails(pool, "rename", "fresh", new, "--yes", status=1)[0] == "fresh has no backup in the pool"
    (pool.pool / "hosts" / new).mkdir()
    (pool.pool / "hosts" / new / "file").write_text("somebody's")
    assert "exists already" in fails(pool, "rename", old, new, "--yes", status=1)[0]
    (pool.pool / "hosts" / new / "file").unlink()
    for name in (f"host-{old}", f"host-{new}", "night", "expire"):
        lock = pool.pool / ".btrkeep" / "locks" / name
        with subprocess.Popen(["flock", lock, "cat"], stdin=subprocess.PIPE) as holder:
            work("timeout", "20", "sh", "-c", f"while flock -n {lock} true; do sleep 0.02; done")
            assert fails(pool, "rename", old, new, "--yes", status=3)[0].startswith(f"{name}: the lock is held")
            holder.communicate()
    assert subvolumes(pool) == before
    assert not (pool.pool / "hosts" / old / "notes.json").exists()
    del pool.tables["host"]["fresh"]
    answer = json.loads(pool.backupd("rename", old, new, "--yes", "--json").stdout)  # an empty folder does not matter
    assert (answer["host"], answer["was"], answer["backups"], len(answer["todo"])) == (new, old, 1, 1)


def test_a_host_that_is_restored_from_keeps_its_name_until_that_is_over(pool: Nights, old: str, new: str) -> None:
    (name,) = pool.names(old)
    before = subvolumes(pool)
    with lock_for_reading(pool.backup(old, name)):
        failure_text = fails(pool, "rename", old, new, "--yes", status=1)
    assert failure_text == (f"{old}@{name} is being restored from", "wait until the restore has ended")
    assert subvolumes(pool) == before
    pool.backupd("rename", old, new, "--yes")
    assert pool.names(new) == [name]


@pytest.mark.parametrize("limit", ["-Sn", "-n"])
def test_a_host_with_more_backups_than_files_may_be_open_is_not_renamed_while_one_is_restored_from(
    pool: Nights, limit: str
) -> None:
    host = f"many{limit}"
    names = make_history(pool, host, every(1, 70, moment("2026-11-01 22:00")))
    words = ("bash", "-c", f'ulimit {limit} 60; exec "$@"', "-", sys.executable, "-m", "backupd", "--config", pool.config)
    with lock_for_reading(pool.backup(host, names[-1])):
        refused = work(*words, "rename", host, f"new{limit}", "--yes", check=False, cwd=TOP)
    assert refused.returncode == 1, refused
    assert ("more backups than" if limit == "-n" else f"{names[-1]} is being restored from") in refused.stderr
    assert pool.names(host) == names
    done = work(*words, "rename", host, f"new{limit}", "--yes", check=False, cwd=TOP)
    assert done.returncode == (limit == "-n"), done


def test_what_a_killed_run_left_outside_the_hosts_folder_goes(pool: Nights, old: str, new: str) -> None:
    killed(pool, "after", "snapshot made", "run", old)
    assert any(path.startswith(f".btrkeep/new/{old}/") for path in subvolumes(pool))
    pool.backupd("rename", old, new, "--yes")
    assert not any(f"new/{old}" in path for path in subvolumes(pool))
    assert not (pool.pool / ".btrkeep" / "new" / old).exists()


def test_a_name_that_the_notes_do_not_know_makes_no_backup_ours(pool: Nights, old: str, new: str) -> None:
    """Only a recorded alias makes backups ours."""
    pool.backupd("rename", old, new, "--yes")
    write_down(pool, new, was=["somebody"])
    done = pool.backupd("rebuild", check=False)
    assert done.returncode == 1
    assert f"skipped: {new}/" in done.stdout
    assert table(pool, new)[0] == 0
    write_down(pool, new, was=["somebody", old])
    pool.backupd("rebuild", check=False)
    assert table(pool, new)[0] == 1


def history(pool: Nights, host: str) -> list[str]:
    """Returns the backups that the runs of a host have made, oldest first."""
    return [run["backup"] for run in reversed(pool.json("log", host))]


def test_a_second_rename_keeps_the_history_of_all_names(pool: Nights, old: str, new: str) -> None:
    last = f"{new}-c"
    (first,) = pool.names(old)
    pool.backupd("rename", old, new, "--yes")
    configure_new(pool, old, new)
    pool.run(new)
    pool.backupd("rename", new, last, "--yes")
    configure_new(pool, new, last)
    pool.run(last)
    names = pool.names(last)
    assert (names[0], len(names)) == (first, 3)
    for _ in range(2):
        assert history(pool, last) == names
        assert [backup["name"] for backup in pool.json("list", last)] == names
        assert (table(pool, old), table(pool, new)) == ((0, 0), (0, 0))
        pool.backupd("rebuild", check=False)
    assert set(notes_of(pool, last)["was"]) == {old, new}


def test_a_new_host_of_a_former_name_is_renamed_too_and_both_keep_their_histories(pool: Nights, old: str, new: str) -> None:
    other = f"{new}-c"
    pool.backupd("rename", old, new, "--yes")
    pool.run(old)  # another machine has got the name
    pool.backupd("rename", old, other, "--yes")
    for _ in range(2):
        for host in (new, other):
            assert (history(pool, host), len(pool.names(host))) == (pool.names(host), 1)
        assert table(pool, old) == (0, 0)
        pool.backupd("rebuild", check=False)
    pool.backupd("rename", new, old, "--yes")  # and the first one gets its name back
    assert history(pool, old) == pool.names(old)


def test_a_name_that_a_forgotten_host_had_brings_no_loss_of_history(pool: Nights, old: str, new: str) -> None:
    """The runs of the forgotten one are still there, so the catalogue knows both names."""
    pool.host(new, pool.source)
    pool.run(new)
    gone = pool.names(new)
    del pool.tables["host"][new]
    pool.write()
    pool.backupd("forget", new, "--yes")
    pool.backupd("expire", new, "--skip-grace", check=False)
    assert not (pool.pool / "hosts" / new).exists() or pool.names(new) == []
    names = pool.names(old)
    pool.backupd("rename", old, new, "--yes")
    assert pool.names(new) == names
    assert sorted(history(pool, new)) == sorted([*gone, *names])
    assert table(pool, old) == (0, 0)
