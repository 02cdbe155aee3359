"""A source pool records when another pool last fetched from it: a disk that is absent too long raises its alarm here."""

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from btrkeep.units import format_time, parse_time
from tests.beds import work
from tests.beds.nights import Nights
from tests.beds.two_pools import NOW, TwoPools

pytestmark = [pytest.mark.btrfs]


@pytest.fixture
def two(make_btrfs: Callable[..., Path]) -> TwoPools:
    made = TwoPools(make_btrfs(size="300M"), make_btrfs(size="300M"))
    made.first.tables["fetched_by.office"] = {"max_age": "10d"}
    made.first.write()
    made.night("2026-03-01T22:00:00Z", "a")
    return made


def days_later(days: float) -> str:
    return format_time(parse_time(NOW) + timedelta(days=days))


def copies(two: TwoPools, days: float) -> list[dict[str, Any]]:
    answer: list[dict[str, Any]] = json.loads(two.first.backupd("status", "--json", "--now", days_later(days)).stdout)["copies"]
    return answer


def fetched_on(two: TwoPools, days: float) -> str:
    """Returns the day, in the status of that many days later: the clock of a rehearsal advances."""
    return str(copies(two, days)[0]["fetched_at"])[:10]


def alarms(two: TwoPools, days: float) -> list[str]:
    answer = json.loads(two.first.backupd("notify", "--dry-run", "--json", "--now", days_later(days), check=False).stdout)
    return [alarm["text"] for alarm in answer["alarms"] if alarm["subject"] == "fetched_by office"]


def test_it_is_late_when_no_pool_has_fetched_for_longer_than_max_age(two: TwoPools) -> None:
    two.fetch()  # from the folder: the sender has no configuration
    two.first.backupd("sample")
    assert [(copy["replica"], copy["kind"], copy["state"], copy["hosts"]) for copy in copies(two, 9)] == [
        ("office", "fetched_by", "ok", 1)
    ]
    assert copies(two, 11)[0]["state"] == "late"
    assert alarms(two, 9) == []
    (text,) = alarms(two, 11)  # the fetch began some seconds after the time from which days are counted, on a busy machine a minute
    assert text in ("fetched_by office: not fetched for 11d", "fetched_by office: not fetched for 10d 23h")
    output = two.first.backupd("metrics", "--now", days_later(11)).stdout
    assert 'btrkeep_replica_state{pool="main",replica="office",state="late"} 1.0' in output
    assert "btrkeep_replica_last_fetch_bytes" not in "".join(line for line in output.splitlines() if 'replica="office"' in line)


def test_a_fetch_of_which_nothing_is_new_counts_and_so_does_one_by_ssh(two: TwoPools) -> None:
    """In a rehearsal the time is that of the command on the other server."""
    two.over_ssh('"$@"')
    two.fetch()
    assert fetched_on(two, 1) == NOW[:10]
    assert two.fetch(now=days_later(3))[0]["planned"] == 0
    assert fetched_on(two, 4) == days_later(3)[:10]


def test_one_of_which_every_host_failed_does_not_count(two: TwoPools) -> None:
    two.over_ssh('"$@"')
    two.fetch()
    name = two.night("2026-03-02T22:00:00Z", "b")
    in_its_way = two.second.pool / "hosts/web1" / name
    in_its_way.mkdir()
    assert two.fetch(now=days_later(3), status=1)[0]["fetched"] == []
    assert fetched_on(two, 4) == NOW[:10]
    in_its_way.rmdir()
    assert len(two.fetch(now=days_later(3))[0]["fetched"]) == 1
    assert fetched_on(two, 4) == days_later(3)[:10]


def test_a_demotion_does_not_count(two: TwoPools) -> None:
    two.over_ssh('"$@"')
    two.fetch()
    two.second.backupd("promote", "web1", "--yes", "--now", days_later(1))
    two.second.backupd("demote", "office", "web1", "--yes", "--now", days_later(3))
    assert fetched_on(two, 4) == NOW[:10]


def test_the_other_servers_clock_is_not_believed(nights: Nights) -> None:
    """The owner of the key could suppress the alarm for years."""
    nights.tables["fetched_by.office"] = {}
    nights.write()
    asked = {"verb": "common", "replica": "office", "hosts": {}, "fetch": {"now": "2020-01-01T00:00:00Z"}}
    words = [sys.executable, "-m", "backupd", "--config", str(nights.config), "send-only"]
    before = format_time(datetime.now(UTC))
    work(*words, input=f"{json.dumps(asked)}\n")
    answer = json.loads((nights.pool / ".btrkeep/common/office.json").read_text())
    assert before <= answer["told"] <= format_time(datetime.now(UTC))


def test_a_first_fetch_is_waited_for(two: TwoPools) -> None:
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
    assert (refused.returncode, "already has this name" in refused.stdout) == (1, True), refused.stdout + refused.stderr
