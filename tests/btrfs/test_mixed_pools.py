"""Pools with their own hosts and copies of another pool's, in both directions, and hosts that change sides."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds.nights import Nights
from tests.beds.two_pools import TwoPools

pytestmark = pytest.mark.btrfs
NOW = ("--now", "2026-03-20T12:00:00Z")


def own(nights: Nights, host: str) -> None:
    source = nights.source / host
    source.mkdir()
    (source / "file").write_text(host)
    nights.host(host, source)
    nights.backupd("run", host, "--now", "2026-03-01T22:00:00Z")


@pytest.fixture
def both(make_btrfs: Callable[..., Path]) -> TwoPools:
    """The first pool has web1 and alone1, the second one db1; each fetches from the other, the second one only web1."""
    made = TwoPools(make_btrfs(), make_btrfs(), hosts=["web*"])
    made.night("2026-03-01T22:00:00Z", "a")
    own(made.first, "alone1")
    own(made.second, "db1")
    made.first.tables["replica.back"] = {"from": str(made.second.pool)}
    made.first.write()
    made.fetch()
    made.first.backupd("replicate", "back", *NOW)
    return made


def copies(nights: Nights) -> dict[str, str]:
    """Returns the hosts that the pool itself lists as copies, with their replicas."""
    text = {path.parent.name: json.loads(path.read_text()).get("replica") for path in nights.pool.glob("hosts/*/notes.json")}
    return {host: mark["name"] for host, mark in text.items() if mark}


def test_demote_leaves_the_hosts_alone_that_the_other_pool_does_not_back_up(both: TwoPools) -> None:
    both.second.backupd("promote", "*", "--yes")
    both.second.host("web1", both.source)
    both.second.backupd("run", "web1", "--now", "2026-03-05T22:00:00Z")
    answer = json.loads(both.first.backupd("demote", "back", "*", "--dry-run", "--json", *NOW).stdout)
    assert (answer["hosts"], list(answer["stay"])) == (["web1"], ["alone1"])
    output = both.first.backupd("demote", "back", "*", "--yes", *NOW).stdout
    assert "alone1 is not demoted: the other pool has no backup of it" in " ".join(output.split())
    assert copies(both.first) == {"web1": "back", "db1": "back"}
    assert copies(both.second) == {}
    refused = both.first.backupd("demote", "back", "alone1", "web1", "--yes", *NOW, check=False)
    assert (refused.returncode != 0, copies(both.first)) == (True, {"web1": "back", "db1": "back"})
    done = json.loads(both.first.backupd("replicate", "back", "--json", *NOW).stdout)[0]
    assert [fetched_backup["host"] for fetched_backup in done["fetched"]] == ["web1"]
    both.second.backupd("demote", "office", "*", "--yes", *NOW, check=False)  # each is fetched by the first one, or is not wanted
    assert copies(both.second) == {}


def test_promote_takes_the_hosts_of_one_replica_alone(both: TwoPools, make_btrfs: Callable[..., Path]) -> None:
    lab = Nights(make_btrfs(), "--rehearsal")
    own(lab, "lab1")
    both.second.tables["replica.lab"] = {"from": str(lab.pool)}
    both.second.write()
    both.second.backupd("replicate", "lab", *NOW)
    assert copies(both.second) == {"web1": "office", "lab1": "lab"}
    both.second.backupd("promote", "*", "--replica", "office", "--yes")
    assert copies(both.second) == {"lab1": "lab"}
    refused = both.second.backupd("promote", "*", "--replica", "nowhere", "--yes", check=False)
    assert (refused.returncode, copies(both.second)) == (2, {"lab1": "lab"})


def test_a_copy_of_a_third_pool_is_not_reported_as_not_backed_up(both: TwoPools, make_btrfs: Callable[..., Path]) -> None:
    """The second pool fetches lab1 from the lab, and the first one from the second: then the second does not wait for the first."""
    lab = Nights(make_btrfs(), "--rehearsal")
    own(lab, "lab1")
    both.second.tables["replica.lab"] = {"from": str(lab.pool)}
    both.second.tables["replica.office"] |= {"hosts": ["*"]}
    both.second.write()
    both.second.backupd("replicate", "lab", *NOW)
    both.first.backupd("replicate", "back", *NOW)
    assert copies(both.first) == {"db1": "back", "lab1": "back"}
    assert both.fetch("office")[0]["failed"] == []
    assert copies(both.second) == {"web1": "office", "alone1": "office", "lab1": "lab"}


def test_what_the_other_pool_fetches_from_here_does_not_count_as_a_host_of_the_copy(both: TwoPools) -> None:
    (answer,) = both.first.json("status", *NOW)["copies"]
    assert (answer["replica"], answer["hosts"]) == ("back", 1)
