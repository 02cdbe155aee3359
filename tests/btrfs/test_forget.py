"""`forget`: which hosts are accepted, the record, and how it is undone. `expire` does the rest."""

import json
import os
import pty
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.beds import TOP, work
from tests.beds.cli import BACKUPD
from tests.beds.history import TIME, every, make_histories, moment, notes_of, write_down
from tests.beds.nights import Nights
from tests.beds.watch import killed, rows

pytestmark = [pytest.mark.btrfs]
LAST = moment("2026-11-20 03:00")
SOON = (datetime.now(UTC) - timedelta(hours=1)).strftime(TIME)
HOSTS = [f"host{number:03}" for number in range(14)]
_unused = iter(HOSTS)


@pytest.fixture(scope="module")
def pool(module_btrfs: Path) -> Nights:
    """Hosts that are no longer configured, with three backups each."""
    nights = Nights(module_btrfs)
    make_histories(nights, HOSTS, every(1, 3, LAST))
    return nights


@pytest.fixture
def host() -> str:
    return next(_unused)


def fails(pool: Nights, *words: str, status: int) -> tuple[str, str]:
    done = pool.backupd(*words, check=False)
    assert done.returncode == status, done.stderr
    error, hint = done.stderr.splitlines()[-2:]
    return error.removeprefix("error: "), hint.removeprefix("hint: ")


def typed(pool: Nights, text: str, *words: str) -> tuple[int, str]:
    """Returns the output of the command at a terminal where `text` is typed, and its exit status."""
    ours, theirs = pty.openpty()
    argv = [*BACKUPD, "--config", str(pool.config), *words]
    env = {**os.environ, "PYTHONPATH": str(TOP), "NO_COLOR": "1"}
    with subprocess.Popen(argv, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, text=True) as process:
        os.write(ours, text.encode())
        output, _ = process.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    return process.returncode, output


def test_a_host_that_left_is_forgotten_in_its_notes_and_its_backups_stay_for_now(pool: Nights, host: str) -> None:
    names = pool.names(host)
    assert (
        pool.backupd("forget", host, "--dry-run").stdout
        == f"{host} has 3 backups, {names[0]} to {names[-1]}: all of them would expire\n"
    )
    tried = json.loads(pool.backupd("forget", host, "--dry-run", "--json").stdout)
    assert (tried["dry_run"], tried["forgotten"], tried["backups"]) == (True, None, names)
    assert not (pool.pool / "hosts" / host / "notes.json").exists()
    lines = pool.backupd("forget", host, "--yes").stdout.splitlines()
    assert lines[0] == f"{host} has 3 backups, {names[0]} to {names[-1]}"  # of unknown size
    assert "`backupd expire` marks its backups and deletes them 1d later" in lines[1]
    assert lines[2] == f"until then `backupd forget {host} --undo` undoes that"
    written = notes_of(pool, host)
    assert abs(datetime.now(UTC) - datetime.fromisoformat(written["forgotten"]["at"])) < timedelta(minutes=1)
    assert written["backups"] == {}
    assert pool.names(host) == names
    assert rows(pool, f"select distinct state from backup where host = '{host}'") == [("complete",)]
    again = json.loads(pool.backupd("forget", host, "--yes", "--json").stdout)
    assert again == {
        "dry_run": False,
        "host": host,
        "forgotten": written["forgotten"]["at"],
        "backups": names,
        "newest_bytes": None,
        "new_bytes": None,
    }


def test_sizes_are_told_as_far_as_they_are_known(pool: Nights, host: str) -> None:
    update = f"update backup set bytes = 3145728, new_bytes = 1048576 where host = '{host}'"
    work("sqlite3", pool.state / "catalogue.sqlite", update)
    output = pool.backupd("forget", host, "--yes").stdout.splitlines()[0]
    assert output.endswith("; the newest has 3.00 MiB, rsync wrote 3.00 MiB of data for all of them")


def test_undo_takes_it_back_and_revives_what_expired_because_of_it(pool: Nights, host: str) -> None:
    first, second, third = pool.names(host)
    marks = {
        first: {"expired": {"at": SOON, "why": "host forgotten", "rules": ["forgotten"]}},
        second: {"expired": {"at": SOON, "why": "no rule keeps it", "rules": None}},
        third: {"accepted": {"at": SOON, "why": "x"}, "expired": {"at": SOON, "why": "host forgotten", "rules": ["forgotten"]}},
    }
    write_down(pool, host, forgotten={"at": SOON}, backups=marks)
    database = pool.state / "catalogue.sqlite"
    work("sqlite3", database, f"update backup set state = 'expired', expired = '{SOON}' where host = '{host}'")
    work("sqlite3", database, f"update backup set state = 'deleting' where host = '{host}' and name = '{third}'")
    answer = json.loads(pool.backupd("forget", host, "--undo", "--json").stdout)
    assert answer == {"dry_run": False, "host": host, "forgotten": None, "backups": [first, second, third], "unexpired": [first]}
    written = notes_of(pool, host)
    assert "forgotten" not in written
    assert written["backups"] == {second: marks[second], third: marks[third]}
    states = rows(pool, f"select name, state from backup where host = '{host}' order by name")
    assert states == [(first, "complete"), (second, "expired"), (third, "deleting")]
    assert fails(pool, "forget", host, "--undo", status=1)[0] == f"{host} is not forgotten"


def test_who_is_still_backed_up_cannot_be_forgotten(pool: Nights, host: str) -> None:
    pool.host(host, pool.source)
    error, hint = fails(pool, "forget", host, "--yes", status=2)
    assert error == f"{host} is still backed up"
    assert hint == f"`backupd host remove {host}` removes it from the configuration; then run `backupd forget {host}`"
    assert not (pool.pool / "hosts" / host / "notes.json").exists()
    pool.host(host, pool.source, enabled=False)
    pool.backupd("forget", host, "--yes")
    assert notes_of(pool, host)["forgotten"]
    del pool.tables["host"]


def test_held_backups_are_named_and_stand_in_the_way(pool: Nights, host: str) -> None:
    _, second, third = pool.names(host)
    pool.backupd("hold", host, second)
    pool.backupd("hold", host, third, "--until", "2099-01-01")
    error, hint = fails(pool, "forget", host, "--yes", status=1)
    assert error == f"2 backups of {host} are held: {second}, {third}"
    assert hint == f"`backupd release {host} {second}` ends a hold"
    assert "forgotten" not in notes_of(pool, host)
    notes = notes_of(pool, host)["backups"]
    notes[third]["hold"]["until"] = SOON  # an ended hold does not matter
    write_down(pool, host, backups=notes)
    pool.backupd("release", host, second)
    pool.backupd("forget", host, "--yes")
    assert notes_of(pool, host)["forgotten"]


def test_the_name_has_to_be_typed_on_a_terminal_and_yes_said_without_one(pool: Nights, host: str) -> None:
    path = pool.pool / "hosts" / host / "notes.json"
    assert fails(pool, "forget", host, status=2) == ("there is no terminal to ask for confirmation", "add --yes if you are sure")
    for wrong in ("yes\n", "\n", f"{host}x\n"):
        status, output = typed(pool, wrong, "forget", host)
        assert status == 1
        assert "nothing was changed" in output
    assert typed(pool, "\x04", "forget", host)[0] == 130
    assert not path.exists()
    status, output = typed(pool, f"{host}\n", "forget", host)
    assert status == 0, output
    assert f"{host} has 3 backups" in output
    assert notes_of(pool, host)["forgotten"]


def test_a_host_that_is_locked_or_unknown_or_has_nothing_is_refused(pool: Nights, host: str) -> None:
    lock = pool.pool / ".btrkeep" / "locks" / f"host-{host}"
    with subprocess.Popen(["flock", lock, "cat"], stdin=subprocess.PIPE) as holder:
        work("timeout", "20", "sh", "-c", f"while flock -n {lock} true; do sleep 0.02; done")
        assert fails(pool, "forget", host, "--yes", status=3)[0].startswith(f"host-{host}: the lock is held")
        assert fails(pool, "forget", host, "--undo", status=3)[0].startswith(f"host-{host}: the lock is held")
        holder.communicate()
    assert fails(pool, "forget", host[:-1], "--yes", status=2)[0] == f"there is no host {host[:-1]}"
    assert fails(pool, "forget", "..", "--yes", status=2)[0] == "there is no host .."
    assert not (pool.pool / "hosts" / host / "notes.json").exists()


def test_a_forgotten_host_is_not_backed_up_again_before_it_is_taken_back(pool: Nights, host: str) -> None:
    pool.backupd("forget", host, "--yes")
    pool.host(host, pool.source)
    result = pool.run(host, status=1)[host]
    assert result["outcome"] == "failed"
    assert f"`backupd forget {host} --undo`" in result["error"]
    assert len(pool.names(host)) == 3
    pool.backupd("forget", host, "--undo")
    assert pool.run(host)[host]["outcome"] == "complete"
    assert len(pool.names(host)) == 4
    del pool.tables["host"]
    pool.write()


def test_forgetting_and_taking_back_that_were_killed_are_done_when_given_again(pool: Nights, host: str) -> None:
    killed(pool, "before", "notes.json replaced", "forget", host, "--yes")
    assert not (pool.pool / "hosts" / host / "notes.json").exists()
    killed(pool, "after", "notes.json replaced", "forget", host, "--yes")
    at = notes_of(pool, host)["forgotten"]
    pool.backupd("forget", host, "--yes")
    assert notes_of(pool, host)["forgotten"] == at
    first, *_ = pool.names(host)
    write_down(
        pool, host, forgotten=at, backups={first: {"expired": {"at": SOON, "why": "host forgotten", "rules": ["forgotten"]}}}
    )
    killed(pool, "before", "notes.json replaced", "forget", host, "--undo")
    assert notes_of(pool, host)["forgotten"] == at
    pool.backupd("forget", host, "--undo")
    assert notes_of(pool, host) == {"format": 1, "backups": {}, "actions": notes_of(pool, host)["actions"]}
