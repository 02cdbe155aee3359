"""A demoted host that is still configured: its messages, a night, and how long it remains a copy."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds import TOP
from tests.beds.two_pools import TwoPools
from tests.beds.work import work

pytestmark = pytest.mark.btrfs
NOW = ("--now", "2026-03-20T12:00:00Z")


@pytest.fixture
def demoted(make_btrfs: Callable[..., Path]) -> TwoPools:
    """The second pool backs web1 up now; the first one still has it configured, and fetches it as `back`."""
    made = TwoPools(make_btrfs(), make_btrfs())
    made.night("2026-03-20T10:00:00Z", "a")
    made.fetch()
    made.second.backupd("promote", "web1", "--yes")
    made.second.host("web1", made.source)
    made.first.tables["replica.back"] = {"from": str(made.second.pool)}
    made.first.write()
    output = made.first.backupd("demote", "back", "web1", "--yes", *NOW).stdout
    assert "not backed up here again until" in " ".join(output.split())
    return made


def mark(made: TwoPools) -> object:
    notes = made.first.pool / "hosts/web1/notes.json"
    return json.loads(notes.read_text()).get("replica") if notes.exists() else None


def test_it_is_said_to_be_a_copy_at_once(demoted: TwoPools) -> None:
    (answer,) = demoted.first.json("status", *NOW)["hosts"]
    assert (answer["state"], answer["next_due"], answer["error"]) == ("copy", None, None)
    shown = " ".join(demoted.first.backupd("status", *NOW).stdout.split())
    assert "web1 copy" in shown
    assert "1 host: 1 copy" in shown
    assert "copy" in demoted.first.backupd("status", "web1", *NOW).stdout
    assert ("replica back", "note", True) in checked(demoted)
    del demoted.first.tables["replica.back"]
    demoted.first.write()
    assert ("replica back", "warning", True) in checked(demoted)  # it is neither fetched nor backed up


def checked(made: TwoPools) -> list[tuple[str, str, bool]]:
    """Returns the subjects of the findings of `check` with that level, and whether they name the host."""
    answer = json.loads(made.first.backupd("check", "--json", check=False).stdout)
    return [(row["subject"], row["level"], "web1" in row["message"]) for row in answer]


def test_a_night_says_it_and_does_not_fail(demoted: TwoPools) -> None:
    later = ("--now", "2026-03-22T23:00:00Z")  # due long since
    (planned,) = demoted.first.json("run", "--dry-run", *later)
    assert (planned["runs"], "replica back" in planned["reason"]) == (False, True)
    for words in ((), ("--all",)):
        done = demoted.first.backupd("run", *words, *later, check=False)
        output = " ".join((done.stdout + done.stderr).split())
        assert (done.returncode, "not backed up here: web1 (" in output) == (0, True), output
    assert demoted.first.json("status", *later)["hosts"][0]["state"] == "copy"
    named = demoted.first.backupd("run", "web1", *later, check=False)  # an explicit request that is not fulfilled is a failure
    assert (named.returncode, "replica back" in " ".join(named.stdout.split())) == (1, True), named.stdout
    assert demoted.first.json("status", *later)["hosts"][0]["state"] == "copy"
    assert not (demoted.first.pool / "hosts/web1/.working").exists()


def test_a_night_without_the_catalogue_says_it_as_well(demoted: TwoPools) -> None:
    shutil.rmtree(demoted.first.state)
    done = demoted.first.backupd("run", "--now", "2026-03-22T23:00:00Z", check=False)
    output = " ".join((done.stdout + done.stderr).split())
    assert (done.returncode, "web1: skipped" in output, "replica back" in output) == (0, True, True), output
    shutil.rmtree(demoted.first.state)
    demoted.first.backupd("rebuild")
    assert demoted.first.json("status", *NOW)["hosts"][0]["state"] == "copy"


def test_promote_takes_it_back(demoted: TwoPools) -> None:
    demoted.first.backupd("promote", "web1", "--yes")
    assert demoted.first.json("status", *NOW)["hosts"][0]["state"] == "ok"
    assert demoted.first.run("web1")["web1"]["outcome"] == "complete"


@pytest.mark.parametrize("then", ["night", "fetch that fails"])
def test_it_stays_a_copy_when_its_last_backup_here_is_gone(demoted: TwoPools, then: str) -> None:
    (name,) = demoted.names(demoted.first.pool)
    work("btrfs", "subvolume", "delete", demoted.first.pool / "hosts/web1" / name)
    demoted.first.backupd("rebuild")
    if then == "night":
        demoted.first.backupd("run", "web1", "--now", "2026-03-22T23:00:00Z", check=False)
    else:
        away = demoted.second.pool / "hosts/web1" / name  # its record cannot be what it was when it was listed
        work("btrfs", "property", "set", "-f", away, "ro", "false")
        (away / "backup.json").write_text("{}")
        demoted.first.backupd("replicate", "back", *NOW, check=False)
    assert mark(demoted)
    assert demoted.names(demoted.first.pool) == []


def test_more_hosts_are_demoted_than_files_may_be_open(make_btrfs: Callable[..., Path]) -> None:
    """The usual limit of open files is 1,024; it checks all hosts, with all of them locked, before it changes one."""
    made = TwoPools(make_btrfs(), make_btrfs())
    for number in range(60):
        made.first.host(f"copy{number}", made.source)
    made.first.backupd("run", "--now", "2026-03-20T10:00:00Z")
    made.fetch()
    made.second.backupd("promote", "*", "--yes")
    made.first.tables["replica.back"] = {"from": str(made.second.pool)}
    made.first.write()
    limited = ("bash", "-c", 'ulimit -S -n 50; exec "$@"', "-", sys.executable, "-m", "backupd", "--config", made.first.config)
    done = work(*limited, "demote", "back", "*", "--yes", *NOW, cwd=TOP)
    notes = [json.loads(path.read_text()) for path in made.first.pool.glob("hosts/*/notes.json")]
    assert sum("replica" in note for note in notes) == 61, done
