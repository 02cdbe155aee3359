"""`backupd verify --against-source` with a time limit, and its records of a backup; with a real rsync, and slow ssh programs."""

import json
import os
import shlex
import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backupd.rsync.comparing import ContentVerdict, Reader, judged
from tests.beds.badssh import FAKESSH
from tests.beds.nights import Nights
from tests.beds.watch import rows

pytestmark = [pytest.mark.btrfs]
FILES = 600


@pytest.fixture
def nights(shared_btrfs: Path, tree: Path) -> Nights:
    nights = Nights(shared_btrfs, "--rehearsal")
    (tree / "file").write_bytes(b"as it was")
    nights.host("web", tree)
    return nights


def compared(nights: Nights, *words: str, status: int = 0) -> dict[str, Any]:
    done = nights.backupd("verify", "--against-source", "web", *words, "--json", check=False)
    assert done.returncode == status, done.stderr
    (answer,) = json.loads(done.stdout)["hosts"]
    return dict(answer)


def comparisons(nights: Nights) -> dict[str, Any]:
    return dict(json.loads((nights.pool / "hosts/web/compared.json").read_text()))


def connections(nights: Nights, *commands: str) -> None:
    """Sets an action before each further connection; the connections after those are made at once."""
    script, count = nights.top / "counting", nights.top / "count"
    count.write_text("")
    cases = "".join(f"{number}) {command} ;;\n" for number, command in enumerate(commands, 1))
    script.write_text(
        f"#!/bin/sh\necho >>{shlex.quote(str(count))}\ncase $(wc -l <{shlex.quote(str(count))}) in\n{cases}esac\n"
        f'exec {shlex.quote(str(FAKESSH))} "$@"\n'
    )
    script.chmod(0o755)
    nights.settings("ssh", command=str(script))


@pytest.mark.slow
def test_a_folder_that_became_a_symlink_says_nothing_of_the_files_below(nights: Nights, tree: Path) -> None:
    """rsync follows it if a file is requested by name. Differences below real folders are still found."""
    for name in ("a", "a/b", "a/b/c", "a/b/d", "x", "x/y", "elsewhere", "elsewhere/c", "elsewhere/y"):
        (tree / name).mkdir()
    for path in ("a/b/c/file", "a/b/d/file", "x/y/file"):
        (tree / path).write_bytes(b"as it was")
    for path in ("elsewhere/c/file", "elsewhere/y/file"):
        (tree / path).write_bytes(b"another's")
    for path in ("a/b/c/file", "a/b/d/file", "x/y/file", "elsewhere/c/file", "elsewhere/y/file", "file"):
        os.utime(tree / path, (1000, 1000))
    nights.run("web")
    for path in ("a/b/d/file", "file"):
        (tree / path).write_bytes(b"is other.")
        os.utime(tree / path, (1000, 1000))
    (tree / "a/b/c").rename(tree / "gone")
    (tree / "a/b/c").symlink_to("../../elsewhere/c")
    (tree / "x").rename(tree / "gone too")
    (tree / "x").symlink_to("elsewhere")
    answer = compared(nights, status=1)
    assert answer["differs"] == [f"{tree}/a/b/d/file", f"{tree}/file"]
    assert (answer["files"], answer["alike"], answer["changed"]) == (6, 2, 2)


@pytest.mark.slow
def test_time_ends_what_is_being_compared_and_the_next_one_goes_on_from_there(nights: Nights, tree: Path) -> None:
    for number in range(FILES - 1):
        (tree / f"{number}").write_bytes(b"as it was")
    nights.run("web")
    connections(nights, "sleep 2", "sleep 200")
    begun = time.monotonic()
    answer = compared(nights, "--time", "3s")
    assert time.monotonic() - begun < 100
    assert (answer["is_whole"], answer["alike"], answer["passed_over"]) == (False, 250, 0)
    order = sorted(os.fsencode(path) for path in tree.iterdir())
    assert comparisons(nights)["next"] == {"1": {"slice": 0, "after": os.fsdecode(order[249])}}
    answer = compared(nights, "--time", "50s")
    assert (answer["is_whole"], answer["alike"]) == (True, FILES - 250)
    assert comparisons(nights)["next"] == {"1": {"slice": 1, "after": None}}


@pytest.mark.slow
def test_what_never_fits_in_the_time_is_passed_over_and_the_rest_is_compared(nights: Nights, tree: Path) -> None:
    for number in range(FILES - 1):
        (tree / f"{number}").write_bytes(b"as it was")
    nights.run("web")
    connections(nights, "sleep 60")
    answer = compared(nights, "--time", "1s")
    assert (answer["is_whole"], answer["files"], answer["passed_over"]) == (False, 0, 250)
    answer = compared(nights)
    assert (answer["is_whole"], answer["alike"], answer["passed_over"]) == (True, FILES - 250, 0)
    assert compared(nights)["alike"] == FILES


@pytest.mark.slow
def test_shares_of_other_sizes_keep_each_its_own_place(nights: Nights, tree: Path) -> None:
    nights.run("web")
    for words in (("--sample", "50%"), (), ("--sample", "50%"), ("--sample", "50%")):
        compared(nights, *words)
    assert {slices: row["slice"] for slices, row in comparisons(nights)["next"].items()} == {"1": 1, "2": 3}


@pytest.mark.slow
def test_what_was_compared_with_the_host_is_known_of_the_backup_and_makes_it_not_whole(nights: Nights, tree: Path) -> None:
    """It relies on the host: it does not delay an alarm about unread data. A rebuild restores the pool's records."""
    nights.tables["verify"] = {"new_files": "none", "max_age": "10d"}
    nights.write()
    (tree / "other").write_bytes(b"as it was")
    nights.run("web")
    (name,) = nights.names("web")
    compared(nights)
    day = f"{datetime.now(UTC):%Y-%m-%d}"

    def verified_fields() -> dict[str, Any]:
        (answer,) = nights.json("list", "web")
        return dict(answer["verified"])

    for words in (("list", "web"), ("retention", "explain", "web")):
        shown = nights.backupd(*words).stdout.splitlines()
        assert [line.count(f"source {day}") for line in shown if name in line] == [1], words
    assert (verified_fields()["state"], verified_fields()["by"], verified_fields()["read"]) == ("in part", "source", 0)
    source = verified_fields()["source"]
    assert (source["files"], source["alike"], source["changed"], source["differing"]) == (2, 2, 0, 0)
    assert comparisons(nights)["backups"][name] == source | {"differs": []}
    later = ("--now", (datetime.now(UTC) + timedelta(days=70)).strftime("%Y-%m-%dT%H:%M:%SZ"))
    assert nights.json("status", *later)["verification"]["unverified"] == ["web"]
    (nights.state / "catalogue.sqlite").unlink()
    nights.backupd("rebuild")
    assert verified_fields()["source"] == source
    nights.backupd("verify", "web")
    assert (verified_fields()["state"], verified_fields()["by"], verified_fields()["source"]) == ("whole", "verify", source)


def test_a_rebuild_knows_nothing_of_backups_that_are_gone(nights: Nights) -> None:
    nights.run("web")
    nights.backupd("verify", "web")
    compared(nights)
    (name,) = nights.names("web")
    for record in ("verified.json", "compared.json"):
        file = nights.pool / "hosts/web" / record
        fields = json.loads(file.read_text())
        fields["backups"]["2020-01-01T000000Z"] = fields["backups"][name] | (
            {"damages": 1, "damaged": ["/srv/file"]} if record == "verified.json" else {}
        )
        file.write_text(json.dumps(fields))
    nights.backupd("rebuild")
    for table in ("damage", "verification", "comparison"):
        assert [row for (row,) in rows(nights, f"select name from {table}")] == [name] * (table != "damage"), table
    assert nights.json("status")["hosts"][0]["state"] == "ok"


@pytest.mark.slow
def test_a_host_that_fails_while_it_is_compared_costs_the_night_and_the_other_hosts_nothing(nights: Nights, tree: Path) -> None:
    nights.tables["verify"] = {"against_source": "100%"}
    nights.host("db", tree)
    script = nights.top / "failing"
    script.write_text(f'#!/bin/sh\ncase "$*" in *db*--sender\\ -n*) exit 255;; esac\nexec {shlex.quote(str(FAKESSH))} "$@"\n')
    script.chmod(0o755)
    nights.settings("ssh", command=str(script))
    done = nights.backupd("run", "--all")
    assert "db was not compared with its backup" in done.stdout
    assert {host: nights.json("list", host)[0]["state"] for host in ("db", "web")} == {"db": "complete", "web": "complete"}
    assert rows(nights, "select host, alike from comparison") == [("web", 1)]
    assert not (nights.pool / "hosts/db/compared.json").exists()


def test_what_a_host_has_printed_takes_back_nothing_that_was_said() -> None:
    """Its own output is mixed with rsync's lines, in any order."""
    differs, alike = b">fc........|9|a file", b".f         |9|a file"
    for lines in ((differs, alike), (alike, differs), (alike, differs, alike)):
        reader = Reader({b"a file"})
        reader.feed(b"\n".join((*lines, b"")))
        assert judged(reader.items[b"a file"]) is ContentVerdict.DIFFERS, lines


def test_a_comparison_goes_with_its_backup(nights: Nights) -> None:
    nights.run("web")
    compared(nights)
    (name,) = nights.names("web")
    with closing(sqlite3.connect(nights.state / "catalogue.sqlite")) as connection:
        assert connection.execute("SELECT name, alike FROM comparison").fetchall() == [(name, 1)]
    nights.backupd("rename", "web", "web9", "--yes")
    assert rows(nights, "select host from comparison") == [("web9",)]
    nights.backupd("rename", "web9", "web", "--yes")
    nights.backupd("delete", f"web@{name}", "--force", "--now-without-grace")
    assert rows(nights, "select host from comparison") == []
