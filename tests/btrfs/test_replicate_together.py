"""Several backups of a host received together: by one program, with one sync for all, and each is complete or missing."""

import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from tests.beds import TOP, work
from tests.beds.two_pools import TwoPools, shown

pytestmark = pytest.mark.btrfs

NOW = "2026-03-20T12:00:00Z"


def test_what_comes_together_is_on_the_disk_by_one_sync_before_any_of_it_has_its_name(two: TwoPools, tmp_path: Path) -> None:
    names = [two.night(f"2026-03-0{day}T22:00:00Z", str(day)) for day in (1, 2, 3)]
    words = ("--config", two.second.config, "replicate", "--now", NOW)
    work(sys.executable, "-m", "tests.beds.kill_at", f"list:{tmp_path}/seen", "any", "any", "0", *words, cwd=TOP)
    wanted = ("stream received", "filesystem synced", "snapshot made", "received part deleted")
    seen = [line for line in (tmp_path / "seen").read_text().splitlines() if line.startswith("after ")]
    seen = [line.removeprefix("after ") for line in seen if line.removeprefix("after ") in wanted]
    assert seen == ["stream received"] * 3 + ["filesystem synced"] + ["snapshot made"] * 3 + ["received part deleted"]
    assert two.names(two.second.pool) == names
    for name in names:
        assert two.differences(name) == ""
        assert shown(two.second.pool / "hosts/web1" / name)["Received UUID"] == shown(two.first.pool / "hosts/web1" / name)["UUID"]


@pytest.mark.parametrize(("end", "why"), [("flip", "crc"), ("cut", "connection ended in the middle")])
def test_a_stream_that_does_not_come_whole_costs_none_that_came_before_it(two: TwoPools, end: str, why: str) -> None:
    first, second = two.night("2026-03-01T22:00:00Z", "a"), two.night("2026-03-02T22:00:00Z", "b")
    (two.source / "large").write_bytes(os.urandom(3_000_000))
    third = two.night("2026-03-03T22:00:00Z", "c")
    two.over_ssh(f'"$@" | python3 -c "$RELAY" {end} 2000000')
    (answer,) = two.fetch(status=1)
    assert [fetched_backup["backup"] for fetched_backup in answer["fetched"]] == [first, second]
    assert why in json.dumps(answer["failed"])
    assert two.names(two.second.pool) == [first, second]
    assert not (two.second.pool / "hosts/web1/.receiving").exists()
    assert two.differences(second) == ""
    two.over_ssh('"$@"')
    assert [(fetched_backup["backup"], fetched_backup["parent"]) for fetched_backup in two.fetch()[0]["fetched"]] == [
        (third, second)
    ]
    assert two.differences(third) == ""


@pytest.mark.parametrize(("deed", "named"), [("written", 0), ("../../stolen", 1), ("../taken", 0)])
def test_a_stream_that_would_change_the_one_before_it_makes_no_backup_of_anything_else(
    two: TwoPools, deed: str, named: int
) -> None:
    """The previous backup has no name yet, and the cell can write to it. It gets its name if it is complete at the end, or not at
    all.
    """
    two.over_ssh(f"exec {shlex.quote(sys.executable)} -m tests.beds.hostile_pool spoils-the-first {deed}")
    (answer,) = two.fetch(status=1)
    assert len(answer["fetched"]) == named
    assert [failure["host"] for failure in answer["failed"]] == ["web1"]
    folder = two.second.pool / "hosts/web1"
    names = ["2026-03-01T220000Z"][:named]
    assert two.names(two.second.pool) == names
    assert {path.name for path in folder.iterdir()} == {*names, *(["latest", "seals.json"] if named else []), "notes.json"}
    for name in names:
        assert json.loads((folder / name / "backup.json").read_text())["name"] == name
