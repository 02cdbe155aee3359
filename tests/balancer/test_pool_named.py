"""A pool's name stands for its mount point, and missing options have the values of its [balance]."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from balancer.choose import FLOORS
from balancer.cli.plan_and_run import settings_of
from balancer.run_types import RoomFloor, RunSettings
from btrkeep.cli import arguments
from btrkeep.config import BalanceSettings
from btrkeep.config.values import parse_min_free
from btrkeep.units import local_time
from tests.balancer.program import balancer
from tests.beds import work
from tests.beds.nights import Nights

GIB = 1 << 30


def settings(
    balance: BalanceSettings | None, budget: Any = None, seconds: Any = None, policy: str | None = None, **more: Any
) -> RunSettings:
    return settings_of(balance, budget=budget, time=seconds, policy=policy, **more)


def test_without_a_pool_there_is_no_limit_but_what_is_usual() -> None:
    assert settings(None) == RunSettings(floors=FLOORS["benefit"])


def test_a_pool_that_says_nothing_has_a_small_budget_and_little_time() -> None:
    assert settings(BalanceSettings()) == RunSettings(floors=FLOORS["benefit"], budget=20 * GIB, time=7200.0)


def test_what_a_pool_says_holds_where_no_option_is_given() -> None:
    balance_settings = BalanceSettings(5 * GIB, None, "usage", parse_min_free("3%"), True, None)
    assert settings(balance_settings) == RunSettings(
        "usage", FLOORS["usage"], 5 * GIB, None, min_unallocated=RoomFloor(1 << 62, 0.03), only_to_expiry=True, max_pressure=None
    )
    sized = settings(BalanceSettings(min_unallocated=parse_min_free("30GiB")))
    assert sized.min_unallocated == RoomFloor(30 * GIB, 1.0)


def test_options_win_and_none_lifts_a_limit() -> None:
    balance_settings = BalanceSettings(5 * GIB, 60.0, "usage", parse_min_free("3%"), True, 0.1)
    run_settings = settings(balance_settings, GIB, 30.0, "score", min_unallocated=7 * GIB, yield_to_backups=False, max_pressure=0.9)
    assert (run_settings.budget, run_settings.time, run_settings.policy, run_settings.max_pressure) == (GIB, 30.0, "score", 0.9)
    assert (run_settings.min_unallocated, run_settings.yield_to_backups) == (RoomFloor(7 * GIB, 1.0), False)
    run_settings = settings(balance_settings, "none", "none", None, max_pressure="none")
    assert (run_settings.budget, run_settings.time, run_settings.policy, run_settings.max_pressure) == (None, None, "usage", None)


@pytest.fixture
def nights(shared_btrfs: Path) -> Nights:
    bed = Nights(shared_btrfs)
    bed.tables["balance"] = {"budget": "3GiB", "time": "7m", "policy": "score"}
    bed.write()
    return bed


@pytest.mark.btrfs
@pytest.mark.root
def test_every_command_finds_the_filesystem_by_the_pool(nights: Nights) -> None:
    uuid = work("findmnt", "-no", "UUID", "-T", nights.pool).stdout.strip()
    named = ("--config", nights.config, "--json")
    assert json.loads(balancer("score", *named).stdout)["filesystem"] == uuid
    balancer("score", "--record", *named)
    assert len(json.loads(balancer("history", *named).stdout)["scores"]) == 1
    plan = json.loads(balancer("plan", *named).stdout)
    assert (plan["filesystem"], plan["budget"], plan["time"], plan["policy"]) == (uuid, 3 * GIB, 420.0, "score")
    plan = json.loads(balancer("run", "--dry-run", "--budget", "1GiB", "--time", "none", *named).stdout)
    assert (plan["budget"], plan["time"], plan["policy"]) == (GIB, None, "score")


@pytest.mark.btrfs
@pytest.mark.root
def test_a_time_of_day_is_one_of_the_pools_zone(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    nights.settings("pool", zone="Pacific/Kiritimati")
    plan = json.loads(balancer("run", "--dry-run", "--until", "06:00", "--config", nights.config, "--json").stdout)
    assert plan["until"].endswith("T16:00:00Z"), "that zone is always 14 hours ahead"
    uuid = work("findmnt", "-no", "UUID", "-T", nights.pool).stdout.strip()
    moment = datetime(2026, 11, 29, 12, tzinfo=UTC)
    monkeypatch.setattr(arguments, "_FOLDER", nights.top)
    arguments.show_times_of_pool_on("00000000-0000-0000-0000-000000000000")
    assert local_time(moment) == "2026-11-29T12:00:00Z", "no pool of ours is on that one"
    arguments.show_times_of_pool_on(uuid)
    assert local_time(moment) == "2026-11-30T02:00:00+14:00"


@pytest.mark.btrfs
@pytest.mark.root
def test_with_both_the_configuration_holds_as_well_and_without_it_does_not(nights: Nights) -> None:
    with_pool = json.loads(balancer("plan", nights.top, "--config", nights.config, "--json").stdout)
    assert (with_pool["budget"], with_pool["policy"]) == (3 * GIB, "score")
    without = json.loads(balancer("plan", nights.top, "--json").stdout)
    assert (without["budget"], without["policy"]) == (None, "benefit")


@pytest.mark.btrfs
@pytest.mark.root
def test_a_pool_that_is_not_there_and_a_name_that_is_none_are_refused(nights: Nights) -> None:
    for command in ("score", "plan", "run", "history"):
        done = balancer(command, check=False)
        assert (done.returncode, "missing argument 'MOUNTPOINT'" in done.stderr) == (2, True), command
    nights.settings("pool", path=str(nights.top / "elsewhere"))
    done = balancer("run", "--config", nights.config, check=False)
    assert (done.returncode, "elsewhere" in done.stderr) == (4, True)
    assert balancer("run", "--pool", "", check=False).returncode == 2
