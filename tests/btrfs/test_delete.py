"""`delete` and `expire HOST --skip-grace`: the answers of btrfs, notes.json and SQLite afterwards, and the remains of a kill.

One pool for all; each test has hosts of its own, and a time of its own, because no clock may go back.
"""

import fcntl
import json
import os
import shutil
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.beds import work
from tests.beds.expiries import LAST, NOW, Expiries, at, dump, fingerprint
from tests.beds.history import every, make_histories, notes_of, write_down
from tests.beds.watch import killed, rows

pytestmark = [pytest.mark.btrfs]
HOSTS = [f"host{number:02}" for number in range(40)]
_unused, _turns = iter(HOSTS), count()


@pytest.fixture(scope="module")
def pool(module_btrfs: Path) -> Expiries:
    pool = Expiries(module_btrfs)
    make_histories(pool, HOSTS, every(1, 4, LAST), {3: "suspect"})
    return pool


@pytest.fixture
def host(pool: Expiries) -> str:
    """A host with three complete backups, which the policy keeps, and then a suspect one."""
    name = next(_unused)
    pool.host(name, pool.source)
    return name


@pytest.fixture
def now() -> datetime:
    return NOW + timedelta(days=10 * next(_turns))


def latest(pool: Expiries, host: str) -> str | None:
    link = pool.pool / "hosts" / host / "latest"
    return str(link.readlink()) if link.is_symlink() else None


def row(pool: Expiries, host: str, name: str) -> str | None:
    actual_rows = rows(pool, f"select state from backup where host = '{host}' and name = '{name}'")
    return actual_rows[0][0] if actual_rows else None


def fails(pool: Expiries, *words: str, status: int = 1) -> str:
    done = pool.backupd(*words, check=False)
    assert done.returncode == status, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_deleted_backup_expires_with_its_reason_although_a_rule_keeps_it_and_goes_after_its_grace(
    pool: Expiries, host: str, now: datetime
) -> None:
    first, second, third, suspect = pool.names(host)
    output = pool.backupd("delete", f"{host}@{third}", f"{host}@{suspect}", "--reason", "private files", *at(now)).stdout
    assert f"{host} {third} has expired" in output
    assert f"the next backup of {host} is based on {second}" in output
    assert pool.marked(host) == [third, suspect]
    assert (row(pool, host, third), row(pool, host, suspect)) == ("expired", "expired")
    assert latest(pool, host) == second
    assert next(line for line in pool.backupd("list", host, *at(now)).stdout.splitlines() if third in line).endswith(
        "deleted by hand: private files"
    )
    explained = {row["name"]: row for row in json.loads(pool.backupd("retention", "explain", host, "--json", *at(now)).stdout)}
    assert explained[third]["reasons"] == ["deleted by hand: private files"]
    assert [explained[name]["keep"] for name in (first, second, third, suspect)] == [True, True, False, False]
    assert pool.expire(now + timedelta(hours=23), host)["revived"] == 0
    assert pool.left(host) == [first, second, third, suspect]
    assert pool.expire(now + timedelta(days=1), host)["deleted"] == 2
    assert pool.left(host) == [first, second]
    assert row(pool, host, third) is None
    assert {name: request["why"] for name, request in notes_of(pool, host)["deleted"].items()} == {
        third: "private files",
        suspect: "private files",
    }
    assert pool.consistent() == []


def test_what_had_expired_before_is_said_to_have_and_gets_the_new_reason(pool: Expiries, host: str, now: datetime) -> None:
    third = pool.names(host)[2]
    words = ("delete", f"{host}@{third}", "--why")
    assert " has expired: " in pool.backupd(*words, "one", *at(now)).stdout
    later = now + timedelta(hours=1)
    assert " had expired already: " in pool.backupd(*words, "two", "--dry-run", *at(later)).stdout
    assert " had expired already: " in pool.backupd(*words, "two", *at(later)).stdout
    explained = {row["name"]: row for row in json.loads(pool.backupd("retention", "explain", host, "--json", *at(later)).stdout)}
    assert explained[third]["reasons"] == ["deleted by hand: two"]


def test_a_deletion_is_taken_back_by_unexpire(pool: Expiries, host: str, now: datetime) -> None:
    third = pool.names(host)[2]
    pool.backupd("delete", f"{host}@latest", *at(now))
    assert pool.marked(host) == [third]
    pool.backupd("unexpire", host, third, *at(now))
    assert (pool.marked(host), row(pool, host, third), latest(pool, host)) == ([], "complete", third)
    assert len(pool.left(host)) == 4
    pool.expire(now + timedelta(days=2), host, "--skip-grace")
    assert len(pool.left(host)) == 4


def test_without_grace_it_is_gone_at_once_and_nothing_else_is(pool: Expiries, host: str, now: datetime) -> None:
    names = pool.names(host)
    answer = json.loads(
        pool.backupd("delete", f"{host}@{names[2]}", f"{host}@{names[0]}", "--now-without-grace", "--json", *at(now)).stdout
    )
    assert [(backup["name"], backup["deleted"]) for backup in answer["backups"]] == [(names[2], True), (names[0], True)]
    assert pool.left(host) == [names[1], names[3]]
    assert {latest(pool, host), *(backup["next_base"] for backup in answer["backups"])} == {names[1]}
    assert pool.notes(host)["backups"] == {}
    assert pool.consistent() == []


REFUSED = [
    "held",
    "last",
    "last but one",
    "unreadable",
    "unknown",
    "beginning",
    "no name",
    "no host",
    "forgotten",
    "base",
    "together",
]


@pytest.mark.parametrize("why", REFUSED)
def test_what_has_to_stay_is_refused_and_nothing_is_changed(pool: Expiries, host: str, now: datetime, why: str) -> None:
    first, second, third, _ = pool.names(host)
    words, status, output = [f"{host}@{first}"], 1, ""
    if why == "held":
        write_down(pool, host, backups={first: {"hold": {"at": "2026-03-01T00:00:00Z", "until": None, "why": "court"}}})
        output = f"{host} {first} is held"
    elif why == "last":
        words, output = [f"{host}@{name}" for name in (first, second, third)], f"no complete backup of {host} would be left"
    elif why == "last but one":  # the others have expired already
        pool.backupd("delete", f"{host}@{second}", f"{host}@{third}", *at(now))
        output = f"no complete backup of {host} would be left"
    elif why == "unreadable":
        text = spoil(pool, host, first)
        output = f"{host} {first} is not deleted"
    elif why == "unknown":
        words, status, output = [f"{host}@{first}", f"{host}@{first[:-2]}9Z"], 2, "did you mean"
    elif why == "beginning":
        words, status, output = [f"{host}@{first[:10]}"], 2, f"{host} has no backup {first[:10]}"
    elif why == "no name":
        words, status, output = [host], 2, "is not a backup"
    elif why == "no host":
        words, status, output = [f"{host}x@{first}"], 2, f"there is no host {host}x"
    elif why == "forgotten":
        write_down(pool, host, forgotten={"at": "2026-03-01T00:00:00Z"})
        output = "is forgotten"
    elif why == "base":
        unfinished(pool, host, second)
        words, output = [f"{host}@{second}"], f"`backupd discard {host}`"
    elif why == "together":  # all or none, even of several hosts
        other = next(_unused)
        words, output = [f"{host}@{first}", *(f"{other}@{name}" for name in (first, second, third))], "would be left"
    before = fingerprint(pool.pool / "hosts" / host)
    for more in ((), ("--now-without-grace",), ("--dry-run",)):
        assert output in fails(pool, "delete", *words, *more, *at(now), status=status)
    assert fingerprint(pool.pool / "hosts" / host) == before
    assert row(pool, host, first) == "complete"
    shutil.rmtree(pool.backup(host, ".working"), ignore_errors=True)
    if why == "unreadable":
        spoil(pool, host, first, text)


def spoil(pool: Expiries, host: str, name: str, record: str = "{") -> str:
    """Makes the record of a backup unreadable; returns the old one."""
    path = pool.backup(host, name)
    before = (path / "backup.json").read_text()
    work("btrfs", "property", "set", "-f", "-ts", path, "ro", "false")
    (path / "backup.json").write_text(record)
    work("btrfs", "property", "set", "-ts", path, "ro", "true")
    return before


def test_one_that_is_stamped_in_the_future_is_no_other_that_stays(pool: Expiries, host: str, now: datetime) -> None:
    *complete, _ = pool.names(host)
    early = LAST - timedelta(days=2, hours=1)  # the first one was made, and the others have a wrong clock's stamps
    failure_text = fails(pool, "delete", f"{host}@{complete[0]}", "--now-without-grace", *at(early))
    assert f"no complete backup of {host} would be left" in failure_text
    assert len(pool.left(host)) == 4


def unfinished(pool: Expiries, host: str, base: str) -> Path:
    """Makes the remains of a stopped run: a writable snapshot of its base, with its own record."""
    path = pool.backup(host, ".working")
    work("btrfs", "subvolume", "snapshot", pool.backup(host, base), path)
    shown = work("btrfs", "subvolume", "show", path).stdout
    uuid = next(line.split()[1] for line in shown.splitlines() if line.strip().startswith("UUID:"))
    fields: dict[str, Any] = {**pool.record(host, base), "state": "partial", "name": None, "uuid": uuid, "base": base}
    (path / "backup.json").write_text(json.dumps(fields))
    return path


def test_the_last_complete_one_goes_by_force_and_then_there_is_no_latest(pool: Expiries, host: str, now: datetime) -> None:
    *complete, suspect = pool.names(host)
    words = [f"{host}@{name}" for name in complete]
    output = pool.backupd("delete", *words, "--force", *at(now)).stdout
    assert f"{host} then has no complete backup" in output
    assert latest(pool, host) is None
    error = fails(pool, "browse", f"{host}@latest", *at(now), status=2)
    assert f"{host} has no complete backup" in error
    pool.expire(now + timedelta(days=1), host)
    assert pool.left(host) == [suspect]
    assert pool.consistent() == []


def test_a_backup_that_became_the_last_complete_one_after_it_was_asked_for_stays(pool: Expiries, host: str, now: datetime) -> None:
    first, second, third, _ = pool.names(host)
    pool.backupd("delete", f"{host}@{second}", f"{host}@{third}", *at(now))
    work("btrfs", "subvolume", "delete", pool.backup(host, first))  # by hand
    pool.expire(now + timedelta(days=2), host)
    assert {second, third} & set(pool.left(host)) >= {third}
    assert row(pool, host, third) == "complete"
    assert latest(pool, host) == third


def test_one_that_is_restored_from_is_not_deleted_at_once(pool: Expiries, host: str, now: datetime) -> None:
    first = pool.names(host)[0]
    fd = os.open(pool.backup(host, first), os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)  # as a restore holds it
        assert "is being restored from" in fails(pool, "delete", f"{host}@{first}", "--now-without-grace", *at(now))
        assert pool.marked(host) == []
    finally:
        os.close(fd)


def test_a_host_that_is_worked_on_and_an_expiry_under_way_are_left_alone(pool: Expiries, host: str, now: datetime) -> None:
    first = pool.names(host)[0]
    for name, more in ((f"host-{host}", ()), ("expire", ("--now-without-grace",))):
        with (pool.pool / ".btrkeep" / "locks" / name).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            assert "the lock is held" in fails(pool, "delete", f"{host}@{first}", *more, *at(now), status=3)
    assert pool.marked(host) == []


def test_a_rehearsal_says_it_all_and_changes_nothing(pool: Expiries, host: str, now: datetime) -> None:
    third = pool.names(host)[2]
    before, catalogue = fingerprint(pool.pool), dump(pool)
    output = pool.backupd("delete", f"{host}@{third}", "--dry-run", *at(now)).stdout
    assert f"{host} {third} would expire" in output
    at_once = pool.backupd("delete", f"{host}@{third}", "--now-without-grace", "--dry-run", *at(now)).stdout
    assert f"{host} {third} would be deleted at once" in at_once
    assert fingerprint(pool.pool) == before
    assert dump(pool) == catalogue


KILLS = [
    ("before", "notes.json staged", 1),
    ("after", "filesystem synced", 2),
    ("before", "backup row written", 2),
    ("before", "reserve made", 1),
    ("before", "subvolume deleted", 1),
    ("after", "subvolume deleted", 1),
    ("before", "rows of deleted backups dropped", 1),
    ("after", "rows of deleted backups dropped", 1),
]


@pytest.mark.parametrize(("when", "step", "number"), KILLS)
def test_a_deletion_at_once_killed_at_a_step_is_ended_by_the_next_expiry(
    pool: Expiries, host: str, now: datetime, when: str, step: str, number: int
) -> None:
    first, second, third, suspect = pool.names(host)
    words = ("delete", f"{host}@{third}", f"{host}@{first}", "--now-without-grace", "--reason", "x")
    killed(pool, when, step, *words, *at(now), count=number)
    assert {second, suspect} <= set(pool.left(host))
    pool.expire(now, host)  # at the same moment: no grace has ended
    is_written = (when, step) != ("before", "notes.json staged")
    assert pool.left(host) == ([second, suspect] if is_written else [first, second, third, suspect])
    assert latest(pool, host) == (second if is_written else third)
    assert sorted(pool.notes(host).get("deleted", {})) == ([first, third] if is_written else [])
    assert pool.consistent() == []


def test_a_deletion_killed_before_the_row_is_in_the_row_after_the_next_reconciling(
    pool: Expiries, host: str, now: datetime
) -> None:
    third = pool.names(host)[2]
    killed(pool, "after", "filesystem synced", "delete", f"{host}@{third}", *at(now), count=2)
    assert row(pool, host, third) == "complete"
    pool.expire(now, host)
    assert (row(pool, host, third), pool.marked(host), latest(pool, host)) == ("expired", [third], pool.names(host)[1])


def test_a_rebuild_brings_the_deletion_back(pool: Expiries, host: str, now: datetime) -> None:
    third = pool.names(host)[2]
    pool.backupd("delete", f"{host}@{third}", *at(now))
    (pool.pool / "hosts" / host / "latest").unlink()
    pool.backupd("rebuild", *at(now))
    assert (row(pool, host, third), latest(pool, host)) == ("expired", pool.names(host)[1])


# --- expire HOST, --skip-grace


def test_an_expiry_of_named_hosts_without_grace_deletes_what_no_rule_keeps_and_leaves_all_others_alone(
    pool: Expiries, host: str, now: datetime
) -> None:
    other = next(_unused)
    pool.host(other, pool.source)
    names = pool.names(host)
    pool.settings("retention", daily=1, min_keep=1)
    try:
        assert "--skip-grace needs the names of hosts" in fails(pool, "expire", "--skip-grace", *at(now), status=2)
        assert "there is no host" in fails(pool, "expire", f"{host}x", *at(now), status=2)
        plan = pool.expire(now, host, "--skip-grace", "--dry-run")
        assert {(step["host"], step["name"]) for step in plan["delete"]} == {(host, name) for name in names[:2]}
        assert pool.left(host) == names
        done = pool.expire(now, host, "--skip-grace")
        assert (done["marked"], done["deleted"], done["waiting_for_grace"]) == (2, 2, 0)
    finally:
        pool.settings("retention", daily=3, min_keep=1)
    assert (pool.left(host), pool.marked(host)) == (names[2:], [])
    assert (len(pool.left(other)), pool.marked(other)) == (4, [])
    assert pool.consistent() == []


def test_the_shell_completes_the_backups(pool: Expiries, host: str) -> None:
    import sys

    line = ["backupd", "--config", str(pool.config), "delete", f"{host}@2026"]
    env = {"_BACKUPD_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(line), "COMP_CWORD": str(len(line) - 1)}
    text = "import sys; sys.argv = ['backupd']; from backupd.cli import main; main()"
    done = work(sys.executable, "-c", text, env={**env, "PYTHONPATH": "."}, check=False, cwd=Path(__file__).parents[2])
    assert [line.partition(",")[2] for line in done.stdout.splitlines()] == [
        f"{host}@{name}" for name in reversed(pool.names(host))
    ]
