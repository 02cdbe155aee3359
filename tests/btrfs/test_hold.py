"""`hold`, `release` and `unexpire`: the contents of notes.json and SQLite afterwards, and the remains of a kill.

One pool for all; each test has a host of its own.
"""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.beds import work
from tests.beds.history import TIME, every, make_histories, moment, notes_of, write_down
from tests.beds.nights import Nights
from tests.beds.watch import killed, rows
from tests.beds.work import error_and_hint

pytestmark = [pytest.mark.btrfs]
LAST = moment("2026-11-20 03:00")
SOON = (datetime.now(UTC) - timedelta(hours=1)).strftime(TIME)  # when a backup was marked that still has most of its grace
HOSTS = [f"host{number:03}" for number in range(48)]
_unused = iter(HOSTS)


@pytest.fixture(scope="module")
def pool(module_btrfs: Path) -> Nights:
    nights = Nights(module_btrfs)
    make_histories(nights, HOSTS, every(1, 3, LAST), {2: "suspect"})
    return nights


@pytest.fixture
def host(pool: Nights) -> str:
    """A host that is no longer configured, with two complete backups and then a suspect one."""
    return next(_unused)


def fails(pool: Nights, *words: str, status: int) -> tuple[str, str]:
    return error_and_hint(pool.backupd(*words, check=False), status)


def row(pool: Nights, host: str, name: str) -> tuple[Any, ...]:
    held = "held_why || coalesce(' until ' || held_until, '')"
    (result,) = rows(pool, f"select state, {held}, expired from backup where host = '{host}' and name = '{name}'")
    return result


def mark(pool: Nights, host: str, name: str, state: str = "expired") -> None:
    """Makes the results of an expiry: the note, and the row."""
    write_down(pool, host, backups={name: {"expired": {"at": SOON, "why": "no rule keeps it"}}})
    at = f"{SOON[:-1]}.000000Z"
    database = pool.state / "catalogue.sqlite"
    work("sqlite3", database, f"update backup set state='{state}', expired='{at}' where host='{host}' and name='{name}'")


def test_a_hold_is_in_the_notes_and_in_the_row(pool: Nights, host: str) -> None:
    first, *_ = pool.names(host)
    answer = json.loads(pool.backupd("hold", host, first, "--why", "the audit", "--json").stdout)
    assert answer == {
        "host": host,
        "name": first,
        "state": "complete",
        "at": answer["at"],
        "until": None,
        "why": "the audit",
        "unexpired": False,
    }
    assert notes_of(pool, host)["backups"] == {
        first: {"hold": {"at": answer["at"], "until": None, "why": "the audit", "by": "root"}}
    }
    assert row(pool, host, first) == ("complete", "the audit", None)
    assert pool.backupd("hold", host, first).stdout == f"{host} {first} is held\n"  # another one takes its place
    assert notes_of(pool, host)["backups"][first]["hold"]["why"] == ""


def test_a_day_is_midnight_of_the_pools_zone_and_a_time_is_that_time(pool: Nights, host: str) -> None:
    pool.settings("pool", zone="Pacific/Auckland")  # 13 hours ahead in their summer
    try:
        output = pool.backupd("hold", host, "latest", "--until", "2099-01-01").stdout
        assert output.endswith(" is held until 2099-01-01T00:00:00+13:00\n")
        assert notes_of(pool, host)["backups"][pool.names(host)[1]]["hold"]["until"] == "2098-12-31T11:00:00Z"
        output = pool.backupd("hold", host, "latest", "--until", "2099-01-01T06:00:00+02:00").stdout
        assert output.endswith(" is held until 2099-01-01T17:00:00+13:00\n")
        assert row(pool, host, pool.names(host)[1])[1] == " until 2099-01-01T04:00:00.000000Z"
    finally:
        pool.settings("pool", zone="UTC")


@pytest.mark.parametrize(
    ("until", "error"),
    [
        ("2020-01-01", "--until 2020-01-01T00:00:00Z is in the past"),
        ("2026-11-20T00:00:00Z", "is in the past"),
        ("0001-01-01", "is in the past"),
        ("tomorrow", "'tomorrow' is not a date: write it like 2027-01-01"),
        ("2099-02-30", "'2099-02-30' is not a date"),
        ("20990101", "'20990101' is not a date"),
        ("2020-01-01T06:00:00", "--until 2020-01-01T06:00:00Z is in the past"),
        ("0001-01-01T00:00:00+05:00", "is not a date"),
    ],
)
def test_an_end_that_is_past_or_none_is_refused(pool: Nights, host: str, until: str, error: str) -> None:
    failure_text = fails(pool, "hold", host, "latest", "--until", until, status=2)
    assert error in failure_text[0]
    assert not (pool.pool / "hosts" / host / "notes.json").exists()


def test_latest_is_the_newest_that_fits_the_command(pool: Nights, host: str) -> None:
    first, second, suspect = pool.names(host)
    assert second in pool.backupd("hold", host, "latest").stdout
    assert suspect in pool.backupd("hold", host, suspect).stdout
    assert suspect in pool.backupd("release", host, "latest").stdout
    assert second in pool.backupd("release", host, "latest").stdout
    assert fails(pool, "release", host, "latest", status=2)[0] == f"{host} has no held backup"
    assert fails(pool, "unexpire", host, "latest", status=2)[0] == f"{host} has no expired backup"
    mark(pool, host, first)
    assert first in pool.backupd("unexpire", host, "latest").stdout


def test_a_release_takes_the_hold_away_and_nothing_else(pool: Nights, host: str) -> None:
    first, second, suspect = pool.names(host)
    pool.backupd("accept", host, suspect)
    pool.backupd("hold", host, suspect, "--until", "2099-01-01", "--why", "x")
    pool.backupd("hold", host, first)
    before = notes_of(pool, host)["backups"]
    answer = json.loads(pool.backupd("release", host, suspect, "--json").stdout)
    assert answer == {"host": host, "name": suspect, "state": "complete", "released": {"until": "2099-01-01T00:00:00Z", "why": "x"}}
    assert notes_of(pool, host)["backups"] == {first: before[first], suspect: {"accepted": before[suspect]["accepted"]}}
    assert row(pool, host, suspect) == ("complete", None, None)
    assert fails(pool, "release", host, second, status=1) == (
        f"{host} {second} is not held",
        f"`backupd list {host}` shows the held backups",
    )


def test_holding_an_expired_backup_takes_the_mark_off_and_says_so(pool: Nights, host: str) -> None:
    first, *_ = pool.names(host)
    mark(pool, host, first)
    lines = pool.backupd("hold", host, first).stdout.splitlines()
    assert lines == [f"{host} {first} is held", "it had expired, and is kept again"]
    assert list(notes_of(pool, host)["backups"][first]) == ["hold"]
    assert row(pool, host, first) == ("complete", "", None)


def test_unexpire_takes_an_expired_backup_back_for_30_days(pool: Nights, host: str) -> None:
    first, second, _ = pool.names(host)
    mark(pool, host, first)
    answer = json.loads(pool.backupd("unexpire", host, first, "--json").stdout)
    at, until = datetime.fromisoformat(answer["at"]), datetime.fromisoformat(answer["until"])
    assert until - at == timedelta(days=30)
    assert notes_of(pool, host)["backups"] == {
        first: {"hold": {**{key: answer[key] for key in ("at", "until", "why")}, "by": "root"}}
    }
    assert row(pool, host, first) == ("complete", f"kept again with unexpire until {answer['until'][:-1]}.000000Z", None)
    error, hint = fails(pool, "unexpire", host, first, status=1)
    assert error == f"{host} {first} has not expired"
    assert hint == f"`backupd hold {host} {first}` keeps it from expiring"
    assert fails(pool, "unexpire", host, second, status=1)[0] == f"{host} {second} has not expired"


@pytest.mark.parametrize("command", ["hold", "unexpire"])
def test_what_is_being_deleted_cannot_be_kept(pool: Nights, host: str, command: str) -> None:
    first, *_ = pool.names(host)
    mark(pool, host, first, "deleting")
    before = notes_of(pool, host)
    assert fails(pool, command, host, first, status=1)[0] == f"{host} {first} is being deleted"
    assert notes_of(pool, host) == before
    assert row(pool, host, first)[0] == "deleting"


@pytest.mark.parametrize("command", ["hold", "unexpire"])
def test_nothing_of_a_forgotten_host_can_be_kept_before_that_is_taken_back(pool: Nights, host: str, command: str) -> None:
    first, *_ = pool.names(host)
    expired = {first: {"expired": {"at": SOON, "why": "host forgotten", "rules": ["forgotten"]}}}
    write_down(pool, host, forgotten={"at": SOON}, backups=expired)
    error, hint = fails(pool, command, host, first, status=1)
    assert "is forgotten" in error
    assert f"`backupd forget {host} --undo`" in hint
    assert notes_of(pool, host)["backups"] == expired


@pytest.mark.parametrize("command", ["hold", "release", "unexpire"])
def test_names_that_are_none_are_told_with_near_ones(pool: Nights, host: str, command: str) -> None:
    first, *_ = pool.names(host)
    assert fails(pool, command, host, first[:-2], status=2) == (f"{host} has no backup {first[:-2]}", f"did you mean {first}?")
    assert fails(pool, command, host, "../../x", status=2)[0] == f"{host} has no backup ../../x"
    assert fails(pool, command, host[:-1] + "x", "latest", status=2)[0] == f"there is no host {host[:-1]}x"
    assert fails(pool, command, "../hosts", "latest", status=2)[0] == "there is no host ../hosts"
    assert fails(pool, command, host, status=2)[0] == "missing argument 'NAME'"


def test_a_users_own_snapshot_is_not_held(pool: Nights, host: str) -> None:
    first, *_ = pool.names(host)
    copy = "2020-01-01T000000Z"
    work("btrfs", "subvolume", "snapshot", "-r", pool.backup(host, first), pool.backup(host, copy))
    assert fails(pool, "hold", host, copy, status=2)[0] == f"{host} has no backup {copy}"


def test_notes_that_cannot_be_read_are_not_written_over(pool: Nights, host: str) -> None:
    path = pool.pool / "hosts" / host / "notes.json"
    path.write_text("{")
    assert str(path) in fails(pool, "hold", host, "latest", status=1)[0]
    assert path.read_text() == "{"


def test_a_host_that_is_locked_is_left_alone(pool: Nights, host: str) -> None:
    lock = pool.pool / ".btrkeep" / "locks" / f"host-{host}"
    with subprocess.Popen(["flock", lock, "cat"], stdin=subprocess.PIPE) as holder:
        work("timeout", "20", "sh", "-c", f"while flock -n {lock} true; do sleep 0.02; done")
        for command in ("hold", "release", "unexpire"):
            assert fails(pool, command, host, "latest", status=3)[0].startswith(f"host-{host}: the lock is held")
        holder.communicate()


KILLS = [
    ("before", "notes.json replaced", False),
    ("after", "notes.json replaced", True),
    ("before", "backup row written", True),
    ("after", "backup row written", True),
]


@pytest.mark.parametrize(("when", "step", "written"), KILLS)
def test_a_hold_killed_at_a_step_is_there_or_not_and_given_again_is_done(
    pool: Nights, host: str, when: str, step: str, written: bool
) -> None:
    first, *_ = pool.names(host)
    mark(pool, host, first)
    killed(pool, when, step, "hold", host, first, "--why", "kept")
    note = notes_of(pool, host)["backups"][first]
    assert list(note) == (["hold"] if written else ["expired"])
    pool.backupd("hold", host, first, "--why", "kept")
    assert list(notes_of(pool, host)["backups"][first]) == ["hold"]
    assert row(pool, host, first) == ("complete", "kept", None)


@pytest.mark.parametrize("command", ["release", "unexpire"])
def test_a_release_and_an_unexpire_killed_before_the_row_are_done_when_given_again(pool: Nights, host: str, command: str) -> None:
    first, *_ = pool.names(host)
    if command == "release":
        pool.backupd("hold", host, first)
    else:
        mark(pool, host, first)
    stale = row(pool, host, first)
    killed(pool, "after", "notes.json replaced", command, host, first)
    assert row(pool, host, first) == stale
    pool.backupd(command, host, first)
    state, held, expired = row(pool, host, first)
    assert (state, held is None, expired) == ("complete", command == "release", None)


def test_a_rebuild_brings_holds_and_marks_back(pool: Nights, host: str) -> None:
    first, second, _ = pool.names(host)
    mark(pool, host, first)
    notes = notes_of(pool, host)["backups"]
    write_down(pool, host, backups={**notes, second: {"hold": {"at": SOON, "until": None, "why": "x"}}})
    pool.backupd("rebuild", check=False)  # other tests leave foreign folders
    assert row(pool, host, first) == ("expired", None, f"{SOON[:-1]}.000000Z")
    assert row(pool, host, second) == ("complete", "x", None)


def test_list_shows_when_an_expired_backup_goes_and_what_is_held(pool: Nights, host: str) -> None:
    pool.host(host, pool.source)
    pool.tables["retention"] = {"daily": 7, "grace": "3d"}
    pool.write()
    try:
        first, second, suspect = pool.names(host)
        mark(pool, host, first)
        pool.backupd("hold", host, second, "--until", "2099-01-01", "--why", "the audit")
        goes = (datetime.fromisoformat(SOON) + timedelta(days=3)).strftime(TIME)
        lines = {line.split()[1]: line for line in pool.backupd("list", host).stdout.splitlines()}
        assert lines[first].split()[2] == "expired"
        assert lines[first].endswith(f"expires {goes}")
        assert lines[second].endswith("held until 2099-01-01T00:00:00Z: the audit")
        listed = {row["name"]: row for row in pool.json("list", host)}
        assert [listed[name]["expires"] for name in (first, second, suspect)] == [goes, None, None]
        assert listed[second]["held"] == {"until": "2099-01-01T00:00:00Z", "why": "the audit"}
        assert [listed[name]["held"] for name in (first, suspect)] == [None, None]
        notes = notes_of(pool, host)["backups"]
        notes[second]["hold"]["until"] = "2026-11-20T00:00:00Z"  # it has ended
        write_down(pool, host, backups=notes)
        assert "held" not in pool.backupd("list", host).stdout
        assert pool.json("list", host)[1]["held"] is None
    finally:
        del pool.tables["host"][host], pool.tables["retention"]
        pool.write()


def test_the_shell_completes_hosts_and_the_names_that_fit(pool: Nights, host: str) -> None:
    first, second, suspect = pool.names(host)
    mark(pool, host, first)
    pool.backupd("hold", host, second)

    def complete(*words: str) -> list[str]:
        line = ["backupd", "--config", str(pool.config), *words]
        env = {"_BACKUPD_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(line), "COMP_CWORD": str(len(line) - 1)}
        text = "import sys; sys.argv = ['backupd']; from backupd.cli import main; main()"
        done = work(sys.executable, "-c", text, env={**env, "PYTHONPATH": "."}, check=False, cwd=Path(__file__).parents[2])
        return [line.partition(",")[2] for line in done.stdout.splitlines()]

    assert host in complete("hold", "host")
    assert complete("hold", host, "2026") == [suspect, second, first]
    assert complete("hold", host, "") == [suspect, second, first, "latest"]
    assert complete("accept", host, "lat") == ["latest"]
    assert complete("release", host, "") == [second, "latest"]
    assert complete("unexpire", host, "") == [first, "latest"] or complete("unexpire", host, "") == ["latest"]
    assert complete("hold", "nobody", "") == ["latest"]
