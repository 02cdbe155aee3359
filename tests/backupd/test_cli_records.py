"""`accept`, `log` and `rebuild`: facts about backups that were recorded later, and where they are stored."""

import json
import os
import shlex
import sqlite3
from contextlib import closing
from datetime import datetime
from typing import Any

import pytest

from tests.beds import work
from tests.beds.badssh import FAKESSH
from tests.beds.nights import Nights


@pytest.fixture
def shrunk(nights: Nights) -> Nights:
    """web has a complete backup and then a suspect one, because most of its files are missing."""
    for number in range(10):
        (nights.source / f"file{number}").write_text("x" * 100)
    nights.host("web", nights.source)
    nights.run("web")
    for number in range(8):
        (nights.source / f"file{number}").unlink()
    nights.run("web", status=1)
    return nights


def rows(nights: Nights, query: str) -> list[Any]:
    with closing(sqlite3.connect(nights.state / "catalogue.sqlite")) as database:
        return database.execute(query).fetchall()


def test_an_accepted_backup_counts_as_complete_and_the_next_grows_from_it(shrunk: Nights) -> None:
    first, second = shrunk.names("web")
    record = (shrunk.backup("web", second) / "backup.json").read_bytes()
    assert shrunk.status("web")["state"] == "suspect"
    done = json.loads(shrunk.backupd("accept", "web", second, "--why", "spring cleaning", "--json").stdout)
    assert (done["host"], done["name"], done["state"], done["why"]) == ("web", second, "complete", "spring cleaning")
    notes = json.loads((shrunk.pool / "hosts" / "web" / "notes.json").read_text())
    assert notes["backups"][second]["accepted"] == {"at": done["at"], "why": "spring cleaning", "by": "root"}
    assert (shrunk.backup("web", second) / "backup.json").read_bytes() == record  # the backup itself is final
    assert rows(shrunk, f"SELECT state FROM backup WHERE name = '{second}'") == [("complete",)]
    status = shrunk.status("web")
    assert (status["state"], status["error"]) == ("ok", None)
    named = datetime.strptime(second, "%Y-%m-%dT%H%M%S%z")  # a second later when both began within one
    assert 0 <= (named - datetime.fromisoformat(status["last_complete"])).total_seconds() <= 1
    assert [entry["name"] for entry in shrunk.listed("web") if entry["state"] == "complete"] == [second, first]
    shrunk.run("web")
    assert shrunk.grew_from("web") == second


def test_without_acceptance_the_next_backup_grows_from_the_last_complete_one(shrunk: Nights) -> None:
    first, _ = shrunk.names("web")
    shrunk.run("web", status=1)
    assert shrunk.grew_from("web") == first


def test_why_a_backup_is_suspect_is_kept_as_data_and_not_lost_with_the_catalogue(shrunk: Nights) -> None:
    second, path = shrunk.names("web")[1], str(shrunk.source)
    because = {"code": "fewer-bytes", "path": path, "before": 1000, "after": 200, "limit": 0.5}
    record = json.loads((shrunk.backup("web", second) / "backup.json").read_text())
    assert record["cause"] == record["paths"][0]["cause"] == because
    words = f"{path}: bytes went from 0.98 KiB to 200 B: 80% less, the limit is 50%"
    assert [json.loads(cause) for (cause,) in rows(shrunk, "SELECT cause FROM run WHERE outcome = 'suspect'")] == [because]
    for _ in range(2):
        assert [json.loads(cause) for (cause,) in rows(shrunk, "SELECT cause FROM backup WHERE state = 'suspect'")] == [because]
        assert rows(shrunk, "SELECT error FROM backup WHERE cause IS NOT NULL") == [(words,)], "for who reads the table by hand"
        (shrunk.state / "catalogue.sqlite").unlink()
        shrunk.backupd("rebuild")


def test_of_stored_codes_the_words_are_made_and_words_alone_are_shown_as_they_are(shrunk: Nights) -> None:
    with closing(sqlite3.connect(shrunk.state / "catalogue.sqlite")) as database, database:
        assert database.execute("SELECT DISTINCT meaning FROM run").fetchall() == [("complete",)]
        words = "UPDATE backup SET error = ?, cause = ? WHERE state = 'suspect'"
        database.execute(words, ("a sentence", None))
        database.commit()
        assert shrunk.status("web")["error"] == shrunk.listed("web")[0]["error"] == "a sentence"
        database.execute(words, ("a sentence", '{"code": "from-next-year", "number": 1}'))
        database.commit()
        assert shrunk.status("web")["error"] == shrunk.listed("web")[0]["error"] == "a sentence"
        database.execute(words, ("a sentence", '{"code": "deadline", "path": "/srv"}'))
        database.commit()
        assert shrunk.status("web")["error"] == shrunk.listed("web")[0]["error"] == "/srv: the deadline has passed"
        for stored, exit_code, shown in (("connection-broke", 12, "the connection broke"), ("other words", 12, "other words")):
            database.execute("UPDATE run SET meaning = ?, exit_code = ?", (stored, exit_code))
            database.commit()
            assert {row["meaning"] for row in shrunk.json("log", "web")} == {shown}
            assert f"rsync 12: {shown}" in shrunk.backupd("log", "web").stdout


def test_a_hook_that_fails_after_a_suspect_backup_is_told_beside_why_it_is_suspect(shrunk: Nights) -> None:
    (shrunk.source / "file8").unlink()
    shrunk.host("web", shrunk.source, after=["/bin/false"])
    shrunk.run("web", status=1)
    answer = shrunk.json("log", "web")[0]["error"]
    assert answer.endswith("; hook after failed (exit status 1)")
    assert f"{shrunk.source}: bytes went from " in answer


def test_a_backup_is_named_to_accept_as_it_is_to_delete(shrunk: Nights) -> None:
    _, second = shrunk.names("web")
    assert shrunk.backupd("accept", f"web@{second}").stdout == f"web {second} now counts as complete\n"
    assert shrunk.backupd("hold", f"web@{second}").stdout == f"web {second} is held\n"
    assert shrunk.backupd("release", f"web@{second}", check=False).returncode == 0
    done = shrunk.backupd("accept", "web@", check=False)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "error: missing argument 'NAME'")


def test_latest_names_the_newest_suspect_one(shrunk: Nights) -> None:
    shrunk.run("web", status=1)
    newest = shrunk.names("web")[-1]
    assert shrunk.backupd("accept", "web", "latest").stdout == f"web {newest} now counts as complete\n"
    assert [entry["state"] for entry in shrunk.listed("web")] == ["complete", "suspect", "complete"]


@pytest.mark.parametrize(
    ("words", "status", "error"),
    [
        (["web", "2020-01-01T000000Z"], 2, "web has no backup 2020-01-01T000000Z"),
        (["web", "../../x"], 2, "web has no backup ../../x"),
        (["wbe", "latest"], 2, "there is no host wbe"),
    ],
)
def test_what_cannot_be_accepted_is_told_and_nothing_is_written(shrunk: Nights, words: list[str], status: int, error: str) -> None:
    done = shrunk.backupd("accept", *words, check=False)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith(f"error: {error}\nhint: ")
    assert not (shrunk.pool / "hosts" / "web" / "notes.json").exists()


def test_a_complete_backup_needs_no_acceptance(shrunk: Nights) -> None:
    first, _ = shrunk.names("web")
    done = shrunk.backupd("accept", "web", first, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"web {first} is complete, not suspect" in done.stderr


def test_rebuild_brings_backups_and_acceptance_back_and_keeps_the_history(shrunk: Nights) -> None:
    shrunk.backupd("accept", "web", "latest")
    before = shrunk.json("list"), shrunk.json("log")
    with closing(sqlite3.connect(shrunk.state / "catalogue.sqlite")) as database:
        database.execute("DELETE FROM backup")
        database.commit()
    assert shrunk.json("list") == []
    answer = json.loads(shrunk.backupd("rebuild", "--json").stdout)
    assert answer.pop("history")["trouble"] is None
    assert answer == {"backups": 2, "trouble": [], "locked": [], "set_aside": None}
    for entry in (*before[0], *(after := shrunk.json("list"))):
        entry.pop("duration")
    assert after == before[0]
    assert shrunk.json("log") == before[1]


def test_a_lost_catalogue_without_a_copy_loses_the_history_and_nothing_else(shrunk: Nights) -> None:
    before = shrunk.json("list")
    (shrunk.pool / ".btrkeep" / "history.jsonl.gz").unlink()
    for path in shrunk.state.iterdir():
        path.unlink()
    shrunk.backupd("rebuild")
    assert [entry["name"] for entry in shrunk.json("list")] == [entry["name"] for entry in before]
    assert shrunk.json("log") == []
    assert shrunk.backupd("log").stdout == "no runs yet\n"


def test_rebuild_leaves_alone_what_is_not_ours_says_so_and_ends_with_1(shrunk: Nights) -> None:
    name = shrunk.names("web")[0]
    copy = shrunk.backup("web").parent / "2020-01-01T000000Z"
    work("btrfs", "subvolume", "snapshot", shrunk.backup("web", name), copy)
    done = shrunk.backupd("rebuild", check=False)
    assert done.returncode == 1
    assert "skipped: web/2020-01-01T000000Z: not a backup of btrkeep" in done.stdout
    assert "the catalogue now has 2 backups" in done.stdout
    assert copy.is_dir()


def test_log_shows_rsyncs_status_its_meaning_and_its_last_lines(nights: Nights) -> None:
    nights.host("web", nights.source, nights.source.parent / "missing")
    nights.run("web", status=1)
    (run,) = nights.json("log", "web")
    assert (run["outcome"], run["exit_code"]) == ("failed", 23)
    assert any("missing" in line and "No such file or directory" in line for line in run["last_lines"])
    text = nights.backupd("log").stdout
    assert "rsync 23: some files could not be transferred" in text
    assert any(line.startswith("    | ") and "No such file or directory" in line for line in text.splitlines())


def test_log_shows_so_many_of_the_newest_runs(nights: Nights) -> None:
    nights.host("web", nights.source)
    names = []
    for _ in range(3):
        nights.run("web")
        names.append(nights.names("web")[-1])
    assert [run["backup"] for run in nights.json("log", "-n", "2")] == names[:0:-1]
    assert len(nights.backupd("log", "-n", "1").stdout.splitlines()) == 1


def test_a_run_that_was_killed_is_told_as_killed(nights: Nights, backupd_running: Any, badssh: Any) -> None:
    (nights.source / "big").write_bytes(os.urandom(1 << 20))
    nights.host("web", nights.source)
    nights.settings("ssh", command=str(badssh("hangs", 300_000)))
    process = backupd_running("--config", nights.config, "run", "web")
    while not nights.json("log"):
        assert process.poll() is None
    assert nights.json("log")[0]["outcome"] == "running"
    process.kill()
    process.wait()
    assert nights.json("log")[0]["outcome"] == "killed"
    nights.settings("ssh", command=shlex.quote(str(FAKESSH)))
    nights.run("web")  # also ends leftover processes
    assert [run["outcome"] for run in nights.json("log")] == ["complete", "killed"]
