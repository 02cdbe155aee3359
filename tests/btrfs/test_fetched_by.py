"""A pool that is fetched from knows for how long nobody has fetched: a disk that stays away raises its alarm here."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from btrkeep.units import format_time
from tests.beds.two_pools import TwoPools

pytestmark = [pytest.mark.btrfs]


@pytest.fixture
def two(make_btrfs: Callable[..., Path]) -> TwoPools:
    made = TwoPools(make_btrfs(size="300M"), make_btrfs(size="300M"))
    made.first.tables["fetched_by.office"] = {"max_age": "10d"}
    made.first.write()
    made.night("2026-03-01T22:00:00Z", "a")
    return made


def days_from_now(days: float) -> str:
    return format_time(datetime.now(UTC) + timedelta(days=days))


def copies(two: TwoPools, days: float) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(two.first.backupd("status", "--json", "--now", days_from_now(days)).stdout)["copies"]
    return found


def alarms(two: TwoPools, days: float) -> list[str]:
    said = json.loads(two.first.backupd("notify", "--dry-run", "--json", "--now", days_from_now(days), check=False).stdout)
    return [one["text"] for one in said["alarms"] if one["subject"] == "fetched_by office"]


def test_it_is_late_when_nobody_has_fetched_for_longer_than_max_age(two: TwoPools) -> None:
    two.fetch()  # from the folder: the side that answers knows no configuration
    two.first.backupd("sample")
    assert [(one["replica"], one["kind"], one["state"], one["hosts"]) for one in copies(two, 9)] == [
        ("office", "fetched_by", "ok", 1)
    ]
    assert copies(two, 11)[0]["state"] == "late"
    assert alarms(two, 9) == []
    assert alarms(two, 11) == ["fetched_by office: not fetched for 11d"]
    said = two.first.backupd("metrics", "--now", days_from_now(11)).stdout
    assert 'btrkeep_replica_state{pool="main",replica="office",state="late"} 1.0' in said
    assert "btrkeep_replica_last_fetch_bytes" not in "".join(line for line in said.splitlines() if 'replica="office"' in line)


def test_a_fetch_of_which_nothing_is_new_counts_and_so_does_one_by_ssh(two: TwoPools) -> None:
    two.over_ssh('"$@"')
    two.fetch()
    first = copies(two, 1)[0]["fetched_at"]
    before = datetime.now(UTC)
    while format_time(datetime.now(UTC)) == format_time(before):
        pass
    assert two.fetch()[0]["planned"] == 0
    assert copies(two, 1)[0]["fetched_at"] > first


def test_one_that_nobody_has_fetched_yet_is_waited_for(two: TwoPools) -> None:
    assert copies(two, 0)[0]["state"] == "never"
    assert alarms(two, 0) == []


def test_a_new_name_of_a_host_does_not_count_as_fetched(two: TwoPools) -> None:
    two.over_ssh('"$@"')
    two.fetch()
    before = copies(two, 1)[0]["fetched_at"]
    two.first.backupd("rename", "web1", "web2", "--yes")
    two.first.backupd("sample")
    assert copies(two, 1)[0]["fetched_at"] == before


def test_without_the_section_nothing_is_said_of_it(two: TwoPools) -> None:
    two.fetch()
    two.first.backupd("sample")
    del two.first.tables["fetched_by.office"]
    two.first.write()
    assert copies(two, 11) == []


def test_a_name_is_that_of_one_copy(two: TwoPools) -> None:
    two.first.tables["replica.office"] = {"from": "/srv/other"}
    two.first.write()
    refused = two.first.backupd("status", check=False)
    assert (refused.returncode, "has that name already" in refused.stderr) == (2, True), refused.stderr
