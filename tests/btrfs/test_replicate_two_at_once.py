"""Two replicas of one pool that include the same host, and fetch for the first time at the same moment: one of them gets it."""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from btrkeep.pool.locks import take_lock
from tests.beds import TOP, work
from tests.beds.two_pools import TwoPools
from tests.beds.watch import wait_for

pytestmark = [pytest.mark.btrfs, pytest.mark.slow]
NOW = ("--now", "2026-03-20T12:00:00Z")


def both_at_once(two: TwoPools, *names: str) -> dict[str, str]:
    """Returns the output of two processes, one for each replica. Both have planned before either starts: until then both wait for a
    night.
    """
    words = [sys.executable, "-m", "backupd", "--config", str(two.second.config), "replicate", *NOW]
    by_name = {name: two.second.top / f"said-{name}" for name in names}
    with ExitStack() as held, take_lock(two.second.pool / ".btrkeep/locks/night", "a night of a test", "2026-03-20T12:00:00Z"):
        for name in names:
            out = held.enter_context(by_name[name].open("w"))
            held.callback(subprocess.Popen([*words, name], cwd=TOP, stdout=out, stderr=out).wait, 60)
        wait_for(lambda: all("waits: " in by_name[name].read_text() for name in names), 60, "somebody did not wait")
    assert not any("Traceback" in by_name[name].read_text() for name in names)
    return {name: by_name[name].read_text() for name in names}


def mark(two: TwoPools) -> str:
    return str(json.loads((two.second.pool / "hosts/web1/notes.json").read_text())["replica"]["name"])


def test_of_two_replicas_of_one_pool_the_first_has_the_host_and_the_other_says_so(two: TwoPools) -> None:
    name = two.night("2026-03-01T22:00:00Z", "a")
    two.second.tables["replica.branch"] = {"from": str(two.first.pool)}
    two.second.write()
    by_name = both_at_once(two, "office", "branch")
    (has,) = [name for name in by_name if f"{name}: 1 backup fetched" in by_name[name]]
    (other,) = {"office", "branch"} - {has}
    assert "error: web1" in by_name[other]
    assert mark(two) == has
    assert two.names(two.second.pool) == [name]
    assert two.differences(name) == ""
    assert f"the replica {has} has it too" in json.dumps(two.fetch(other, status=1))
    assert two.fetch(has)[0]["planned"] == 0
    assert mark(two) == has


def test_of_two_first_servers_with_a_host_of_the_same_name_the_first_has_it(two: TwoPools, make_btrfs: Callable[..., Path]) -> None:
    two.night("2026-03-01T22:00:00Z", "a")
    other = TwoPools(make_btrfs(), make_btrfs())
    other.night("2026-03-01T22:00:00Z", "of another machine")
    two.second.tables["replica.branch"] = {"from": str(other.first.pool)}
    two.second.write()
    by_name = both_at_once(two, "office", "branch")
    (has,) = [name for name in by_name if f"{name}: 1 backup fetched" in by_name[name]]
    assert sum("error: web1" in name for name in by_name.values()) == 1
    assert mark(two) == has
    origin = two if has == "office" else other
    (name,) = two.names(two.second.pool)
    path, copy = (pool.pool / "hosts/web1" / name for pool in (origin.first, two.second))
    assert work("rsync", "-n", "-aHAXc", "--delete", "-i", f"{path}/", f"{copy}/").stdout == ""


def test_a_replica_that_has_another_name_now_keeps_its_hosts(two: TwoPools) -> None:
    two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    two.second.tables["replica.branch"] = two.second.tables.pop("replica.office")
    two.second.write()
    name = two.night("2026-03-02T22:00:00Z", "b")
    assert [fetched_backup["backup"] for fetched_backup in two.fetch()[0]["fetched"]] == [name]
    assert mark(two) == "branch"
