"""backup.json and the catalogue: rsync's numbers, versions, times and the base, compared with find, rsync and btrfs."""

import os
import re
import sqlite3
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.beds import work
from tests.beds.nights import Nights

LARGE = 2_000_000


@pytest.fixture
def tree(nights: Nights) -> Path:
    tree = nights.source / "srv"
    (tree / "folder").mkdir(parents=True)
    (tree / "large").write_bytes(os.urandom(LARGE))
    (tree / "folder" / "small").write_text("small")
    (tree / "link").symlink_to("nowhere")
    (tree / "empty").touch()
    return tree


def counted(tree: Path, kind: str = "") -> list[int]:
    """Returns sizes of the names below `tree` and of `tree` itself, by find."""
    words = ["-type", kind] if kind else []
    return [int(size) for size in work("find", tree, *words, "-printf", "%s\\n").stdout.split()]


def above(tree: Path) -> int:
    """Returns the number of folders above `tree`, which rsync counts as well."""
    return len(tree.parts) - 2


def row(nights: Nights, query: str) -> dict[str, Any]:
    """Returns the newest row, directly from the catalogue's file."""
    path = nights.state / "catalogue.sqlite"
    with sqlite3.connect(path) as connection:
        connection.row_factory = sqlite3.Row
        return dict(connection.execute(query).fetchone())


def test_the_numbers_are_those_of_the_source_and_of_what_was_sent(nights: Nights, tree: Path) -> None:
    nights.host("web", tree)
    nights.run("web")
    (path,) = nights.record("web")["paths"]
    numbers = path["numbers"]
    assert numbers["files"] == len(counted(tree)) + above(tree)
    assert numbers["regular"] == len(counted(tree, "f"))
    assert numbers["bytes"] == sum(counted(tree, "f")) + sum(counted(tree, "l"))
    assert (numbers["literal"], numbers["matched"], numbers["transferred"]) == (sum(counted(tree, "f")), 0, 3)

    with (tree / "large").open("r+b") as file:
        file.write(os.urandom(100_000))
    (tree / "empty").unlink()
    nights.run("web")
    (path,) = nights.record("web")["paths"]
    numbers = path["numbers"]
    assert (numbers["transferred"], numbers["transferred_bytes"], numbers["deleted"]) == (1, LARGE, 1)
    assert 100_000 <= numbers["literal"] <= 110_000
    assert numbers["literal"] + numbers["matched"] == LARGE
    assert numbers["received"] >= numbers["literal"]
    assert nights.record("web")["totals"] == {key: numbers[key] for key in ("files", "bytes", "literal", "matched", "received")}


def test_list_log_and_the_catalogue_tell_what_the_record_tells(nights: Nights, tree: Path) -> None:
    nights.host("web", tree)
    nights.run("web")
    (tree / "new").write_bytes(os.urandom(5000))
    nights.run("web")
    record, listed, log = nights.record("web"), nights.listed("web")[0], nights.json("log", "web")[0]
    totals = record["totals"]
    files = len(work("find", nights.data("web", tree), "-type", "f").stdout.splitlines())
    assert (listed["files"], listed["bytes"], listed["new_bytes"]) == (files, totals["bytes"], 5000)
    assert Path(listed["path"]) == nights.backup("web")
    assert (log["literal_bytes"], log["matched_bytes"], log["received_bytes"]) == (5000, totals["matched"], totals["received"])
    assert (log["exit_code"], log["meaning"], log["outcome"], log["backup"]) == (0, "complete", "complete", record["name"])
    stored = row(nights, "SELECT * FROM backup ORDER BY name DESC")
    assert (stored["files"], stored["bytes"], stored["new_bytes"], stored["state"]) == (
        *(files, totals["bytes"], 5000, "complete"),
    )


def test_versions_and_the_protocol_are_those_that_the_programs_say(nights: Nights, tree: Path) -> None:
    nights.host("web", tree)
    nights.host("old", tree, rsync_path="rsync --protocol=31")
    nights.run()
    match = re.search(r"version (\S+)\s+protocol version (\d+)", work("rsync", "--version").stdout)
    assert match
    for host, protocol in (("web", int(match[2])), ("old", 31)):
        record, log = nights.record(host), nights.json("log", host)[0]
        assert record["rsync_version"] == log["rsync_version"] == match[1]
        assert record["protocol"] == log["protocol"] == protocol


def test_times_are_those_of_the_clock_and_durations_fit_them(nights: Nights, tree: Path) -> None:
    nights.host("web", tree)
    nights.in_the_middle(1_000_000, "sleep 1.2")
    before = time.time()
    nights.run("web")
    after = time.time()
    record = nights.record("web")
    started, finished = (datetime.fromisoformat(record[key]).timestamp() for key in ("started", "finished"))
    assert before - 1 <= started <= finished <= after + 1
    assert record["name"] == nights.names("web")[0] == datetime.fromtimestamp(started, UTC).strftime("%Y-%m-%dT%H%M%SZ")
    assert 1.2 <= record["duration"] <= after - before
    assert 1.2 <= record["seconds"]["rsync"] <= record["duration"]
    assert 1.2 <= record["paths"][0]["seconds"] <= record["duration"]
    assert nights.listed("web")[0]["duration"] == pytest.approx(record["duration"], abs=0.5)


def test_the_base_and_the_own_subvolume_are_those_that_btrfs_names(nights: Nights, tree: Path) -> None:
    nights.host("web", tree)
    nights.run("web")
    first = nights.record("web")
    assert (first["base"], first["base_uuid"]) == (None, None)
    assert nights.subvolume("web")["UUID"] == first["uuid"]
    nights.run("web")
    second, shown = nights.record("web"), nights.subvolume("web")
    assert second["base"] == first["name"]
    assert (shown["UUID"], shown["Parent UUID"], shown["Flags"]) == (second["uuid"], first["uuid"], "readonly")
    assert second["base_uuid"] == first["uuid"]
    stored = row(nights, "SELECT * FROM backup ORDER BY name DESC")
    assert (stored["base"], stored["uuid"], stored["subvolume_id"]) == (
        *(first["name"], second["uuid"], int(shown["Subvolume ID"])),
    )


def test_the_numbers_of_several_paths_add_up_and_each_path_keeps_its_own(nights: Nights, tree: Path) -> None:
    other = nights.source / "other"
    other.mkdir()
    (other / "file").write_bytes(b"x" * 777)
    nights.host("web", tree, other)
    nights.run("web")
    record = nights.record("web")
    answer, two = record["paths"]
    assert (answer["path"], two["path"]) == (str(tree), str(other))
    assert (two["numbers"]["bytes"], two["numbers"]["literal"]) == (777, 777)
    assert record["totals"]["literal"] == answer["numbers"]["literal"] + 777
    assert record["totals"]["files"] == answer["numbers"]["files"] + two["numbers"]["files"]


def test_what_several_attempts_brought_is_added_up(nights: Nights, tree: Path) -> None:
    (tree / "larger").write_bytes(os.urandom(8_000_000))
    nights.host("web", tree, attempts=2)
    nights.in_the_middle(5_000_000, end=f"dies-once:{nights.top}/once")
    (result,) = nights.night("web")
    assert (result.outcome, result.attempts) == ("complete", 2)
    record = nights.record("web")
    assert record["attempts"] == 2
    whole = sum(counted(tree, "f"))
    assert record["totals"]["bytes"] == whole + sum(counted(tree, "l"))
    # Of the interrupted attempt only rsync's progress is known, printed once a second.
    assert whole * 0.5 <= record["totals"]["literal"] <= whole * 1.5
    assert nights.differences("web", tree) == []


def test_a_partial_backup_is_listed_with_what_has_arrived_and_its_record_says_why(nights: Nights, tree: Path) -> None:
    (tree / "larger").write_bytes(os.urandom(8_000_000))
    nights.host("web", tree, bandwidth="2MB")  # rsync prints its progress once a second
    nights.in_the_middle(5_000_000, end="dies")
    nights.run("web", status=1)
    listed = nights.listed("web")[0]
    assert (listed["name"], listed["state"]) == (None, "partial")
    assert 2_000_000 <= listed["new_bytes"] <= 10_000_000
    record = nights.record("web", ".working")
    assert record["error"] == listed["error"]
    assert record["paths"][0]["outcome"] == "unfinished"
    log = nights.json("log", "web")[0]
    assert (log["outcome"], log["exit_code"] != 0, bool(log["last_lines"])) == ("partial", True, True)


def test_log_shows_the_last_lines_of_the_path_that_failed(nights: Nights, tree: Path) -> None:
    nights.host("web", nights.source / "a-missing", tree)
    nights.run("web", status=1)
    log = nights.json("log", "web")[0]
    assert log["exit_code"] == 23
    assert any("a-missing" in line for line in log["last_lines"])
    assert "a-missing" in nights.backupd("log", "web").stdout


def test_a_catalogue_made_again_from_the_pool_is_the_same(nights: Nights, tree: Path) -> None:
    nights.host("web", tree, nights.source / "missing")
    nights.run("web", status=1)
    nights.host("web", tree)
    nights.run("web")
    work("sh", "-c", f"rm {tree}/large {tree}/folder/small")
    nights.run("web", status=1)
    nights.in_the_middle(1, end="dies")
    (tree / "more").write_bytes(os.urandom(500_000))
    nights.in_the_middle(200_000, end="dies")
    nights.run("web", status=1)
    before = nights.json("list")
    assert sorted(each["state"] for each in before) == ["complete", "failed", "partial", "suspect"]
    work("rm", "-r", nights.state)
    nights.backupd("rebuild")
    assert without_seconds(nights.json("list")) == without_seconds(before)


def without_seconds(backups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The row has the duration in milliseconds, which was unknown when the record was written."""
    return [{key: value for key, value in each.items() if key not in ("duration", "finished")} for each in backups]
