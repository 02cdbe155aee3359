"""The verification state of each backup in every output: after a scrub, a verify, and damage, on real disks."""

import json
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from btrkeep.units import backup_name
from tests.beds.faults import damage
from tests.beds.nights import Nights
from tests.beds.two_pools import TwoPools
from tests.beds.work import work

pytestmark = [pytest.mark.btrfs, pytest.mark.root]
MIB = 1 << 20


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Sources that lie on another filesystem than the pool."""
    tree = tmp_path / "srv"
    tree.mkdir()
    for name in ("file", "other"):
        (tree / name).write_bytes(os.urandom(MIB))
    return tree


@pytest.fixture
def nights(make_btrfs: Callable[..., Path], tree: Path) -> Nights:
    """A host with one backup, without checksums of the run."""
    nights = Nights(make_btrfs(size="400M"), "--rehearsal")
    nights.tables["verify"] = {"new_files": "none"}
    nights.host("web", tree)
    nights.run("web")
    return nights


def verified_states(nights: Nights) -> list[tuple[str, str] | None]:
    """(state, by) of each backup, oldest first."""
    answer = [row["verified"] for row in nights.json("list", "web")]
    return [(row["state"], row["by"]) if row else None for row in answer]


def status(nights: Nights) -> Any:
    (host,) = nights.json("status")["hosts"]
    return host["verified"]


def scrub(nights: Nights) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(nights.backupd("scrub", "--json", check=False).stdout)
    return answer


def a_second_passes(nights: Nights, host: str = "web") -> None:
    """Waits for the next second: btrfs reports the start of a scrub in whole seconds."""
    finished = max(datetime.fromisoformat(row["finished"]) for row in nights.json("list", host))
    while datetime.now(UTC) < finished + timedelta(seconds=1):
        work("sleep", "0.1")


def test_a_scrub_says_it_of_the_backups_that_were_there_when_it_began(nights: Nights) -> None:
    assert verified_states(nights) == [None]
    assert "never" in nights.backupd("list", "web").stdout
    assert status(nights) is None
    a_second_passes(nights)
    assert scrub(nights)["outcome"] == "finished"
    nights.run("web")
    assert verified_states(nights) == [("whole", "scrub"), None]
    began = work("env", "TZ=UTC", "btrfs", "scrub", "status", nights.top).stdout.split("Scrub started:")[1].splitlines()[0].strip()
    with closing(sqlite3.connect(nights.state / "catalogue.sqlite")) as connection:
        (fact,) = connection.execute("SELECT value FROM about WHERE name = 'scrub'").fetchone()
    noted = json.loads(fact)
    assert datetime.fromisoformat(noted["begun"]).strftime("%a %b %e %H:%M:%S %Y") == began
    assert noted["is_whole"] is True
    day = noted["finished"][:10]
    for words in (("list", "web"), ("retention", "explain", "web")):
        shown = nights.backupd(*words).stdout.splitlines()
        assert [line.count(f"scrub {day}") for line in shown if nights.names("web")[0] in line] == [1], words
        assert [line.count("never") for line in shown if nights.names("web")[1] in line] == [1], words
    assert status(nights) == noted["finished"]
    assert f"verified {day}" in " ".join(nights.backupd("status", "web").stdout.split())
    assert "btrkeep_host_last_verified_timestamp_seconds" in nights.backupd("metrics").stdout


def test_files_that_were_read_say_it_in_part_and_then_whole_also_after_a_rebuild(nights: Nights, tree: Path) -> None:
    for number in range(200):
        (tree / f"{number}").write_text(f"{number}")
    nights.run("web")
    newest = f"web@{nights.names('web')[1]}"
    nights.backupd("verify", newest, "--sample", "50%")
    assert verified_states(nights) == [None, ("in part", "verify")]
    nights.backupd("verify", newest)
    assert verified_states(nights) == [None, ("whole", "verify")]
    answer = nights.json("list", "web")[1]["verified"]
    assert (answer["read"], answer["compared"], answer["damaged"], answer["damages"]) == (202, 0, [], 0)
    (nights.state / "catalogue.sqlite").unlink()
    nights.backupd("rebuild")
    assert verified_states(nights) == [None, ("whole", "verify")]
    with closing(sqlite3.connect(nights.state / "catalogue.sqlite")) as connection:
        connection.execute("DELETE FROM verification")  # as after a kill
        connection.commit()
    assert verified_states(nights) == [None, None]
    nights.backupd("verify", newest, "--time", "0s")  # reads nothing, but updates the catalogue
    assert verified_states(nights) == [None, ("whole", "verify")]


def test_damage_counts_more_than_the_scrub_that_found_it_and_the_other_backups_are_whole(nights: Nights, tree: Path) -> None:
    content = (tree / "file").read_bytes()
    (tree / "file").unlink()
    nights.run("web")
    a_second_passes(nights)
    damage(nights.top, content[:8192])
    for _ in range(8):  # the kernel leaves out lines where other tests have it write many
        fields = scrub(nights)
        if not fields["unnamed"]:
            break
        time.sleep(5)
    assert [damaged_file["path"] for damaged_file in fields["damaged"]] == [f"{tree}/file"]
    assert verified_states(nights) == [("damaged", None), ("whole", "scrub")]
    first, second = (line for line in nights.backupd("list", "web").stdout.splitlines() if line.startswith("web"))
    assert "damaged" in first
    assert f"damaged: {tree}/file" in first
    assert "scrub 2" in second
    for words in (("status",), ("status", "web")):
        assert "damaged: web: 1 backup, up to 1 file in it" in nights.backupd(*words).stdout
    assert "verified backups: 1 whole, 1 damaged" in nights.backupd("status").stdout
    answer = nights.json("status")["verification"]
    assert answer["damaged"] == [{"host": "web", "backups": 1, "files": 1}]
    assert answer["states"] == {"never": 0, "in part": 0, "whole": 1, "in doubt": 0, "damaged": 1}


def test_a_scrub_whose_errors_have_not_all_a_name_says_nothing_of_the_backups_without_damage(nights: Nights, tree: Path) -> None:
    """The kernel names at most ten errors in five seconds."""
    content = (tree / "file").read_bytes()
    (tree / "file").unlink()
    nights.run("web")
    a_second_passes(nights)
    damage(nights.top, content[: 256 << 10])
    assert scrub(nights)["unnamed"] > 0
    assert verified_states(nights)[1] is None


def test_an_alarm_reports_data_not_read_for_long_after_a_first_verification_or_with_max_age(nights: Nights) -> None:
    later = ("--now", (datetime.now(UTC) + timedelta(days=70)).strftime("%Y-%m-%dT%H:%M:%SZ"))

    def unverified() -> Any:
        return nights.json("status", *later)["verification"]["unverified"]

    assert unverified() == []
    assert "verification" not in nights.backupd("notify", *later).stdout
    nights.tables["verify"] |= {"max_age": "10d"}
    nights.write()
    assert unverified() == ["web"]
    assert "verification: no backup of web was read for 10d" in nights.backupd("notify", *later).stdout
    assert "not verified for 10d" in nights.backupd("status", *later).stdout
    nights.backupd("verify", "web", *later)
    assert unverified() == []
    nights.backupd("notify", *later)
    with closing(sqlite3.connect(nights.state / "catalogue.sqlite")) as connection:
        standing = "SELECT count(*) FROM alarm WHERE subject = 'verification' AND recovered IS NULL"
        assert connection.execute(standing).fetchone() == (0,)


def test_a_copy_that_came_after_the_scrub_is_not_called_read_by_it(make_btrfs: Callable[..., Path]) -> None:
    """The backup was finished long before the scrub, but in another pool."""
    two = TwoPools(make_btrfs(), make_btrfs())
    two.night("2026-03-01T22:00:00Z", "a")
    assert scrub(two.second)["outcome"] == "finished"
    two.fetch()
    (copy,) = two.second.json("list", "web1")
    assert copy["verified"] is None
    a_second_passes(two.second, "web1")
    assert scrub(two.second)["outcome"] == "finished"
    (copy,) = two.second.json("list", "web1")
    assert (copy["verified"]["state"], copy["verified"]["by"]) == ("whole", "scrub")


def test_a_night_that_takes_the_name_of_a_deleted_backup_is_not_known_as_that_was(nights: Nights) -> None:
    """The clock was set back between the two backups. All names of these minutes count as names of existing backups."""
    now = datetime(2026, 3, 20, 22, 0, tzinfo=UTC)
    nights.backupd("verify")
    path = nights.pool / "hosts/web/verified.json"
    (answer,) = (fields := json.loads(path.read_text()))["backups"].values()
    for second in range(300):
        fields["backups"][backup_name(now + timedelta(seconds=second))] = answer
    path.write_text(json.dumps(fields))
    nights.night("web", now=now)
    name, last = nights.names("web")
    assert name.startswith("2026-03-20")
    (nights.state / "catalogue.sqlite").unlink()
    nights.backupd("rebuild")
    assert {row["name"]: row["verified"] and row["verified"]["state"] for row in nights.json("list", "web")} == {
        name: None,
        last: "whole",
    }
