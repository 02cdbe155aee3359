"""Nights of tens of thousands of hosts: the time per host to choose the next one does not grow with their number."""

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from backupd.rsync.command import rsync_version
from backupd.rsync.confined import Confinement
from backupd.run.host_order import PlannedHost
from backupd.run.host_run import HostRun
from backupd.run.night import NightRunner
from backupd.run.run_context import HostResult, RunContext
from btrkeep.catalogue import Catalogue
from btrkeep.clock import Clock
from btrkeep.config import HostConfig, load
from btrkeep.config.values import parse_window
from btrkeep.decisions.host_state import host_status
from btrkeep.pool.marker import Pool
from btrkeep.process.progress import ProgressSinks

NOON, NIGHT = datetime(2026, 11, 25, 12, tzinfo=UTC), parse_window("22:00-06:00")


@pytest.fixture
def context(tmp_path: Path) -> Iterator[RunContext]:
    (tmp_path / "main.toml").write_text(f'[pool]\npath = "{tmp_path}"\nstate = "{tmp_path}"\n')
    config, pool = load(file=tmp_path / "main.toml"), Pool(tmp_path, "1", "11111111-2222-4333-8444-555555555555", False)
    with Catalogue.open(tmp_path) as catalogue:
        yield RunContext(config, pool, catalogue, Clock(NOON), rsync_version(), ProgressSinks(), False, Confinement())


def night(context: RunContext, hosts: int) -> tuple[list[HostResult], float]:
    """Returns the results of hosts whose windows have closed before their turn, and the CPU seconds of the night."""
    names = (f"host{number:05}" for number in range(hosts))
    planned = [PlannedHost(HostConfig(name, paths=("/srv",), window=NIGHT), True, "due", bound=True) for name in names]
    begun = time.process_time()
    return asyncio.run(NightRunner(context, planned).run()), time.process_time() - begun


@pytest.mark.slow
def test_four_times_as_many_hosts_take_four_times_as_long(context: RunContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the two commits for each host, which take milliseconds and would hide the rest."""
    monkeypatch.setattr(HostRun, "skip", lambda *_: None)
    results, few = night(context, 5_000)
    assert [result.host for result in results] == [f"host{number:05}" for number in range(5_000)]
    assert {result.outcome for result in results} == {"skipped"}
    assert night(context, 20_000)[1] < 8 * few


def test_a_host_whose_window_closed_before_its_turn_has_that_reason_in_status_unless_its_last_run_failed(
    context: RunContext,
) -> None:
    before = NOON - timedelta(days=1)
    run = context.catalogue.start_run("host00001", before, 1, "1", False)
    context.catalogue.finish_run(run, finished=before, outcome="failed", error="no route to the host")
    night(context, 2)
    facts = context.catalogue.host_facts(NOON)
    statuses = [host_status(HostConfig(name, window=NIGHT), facts[name], ZoneInfo("UTC"), NOON) for name in sorted(facts)]
    assert [status.warnings for status in statuses] == [("the last run skipped it: the window 22:00-06:00 has closed",), ()]
    assert (facts["host00001"].last_run_outcome, facts["host00001"].last_run_error) == ("failed", "no route to the host")
