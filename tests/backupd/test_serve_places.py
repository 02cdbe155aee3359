"""The share of the root service that one user may take: previews in progress, and backups that wait."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backupd.serve.cli.run_job import carry_out
from backupd.serve.jobs import JobStore, ServeJob, new_id
from backupd.serve.start_job import FOR_OTHERS, IN_ALL, PER_ASKER, PREVIEWS, _require_free, _unfinished, require_waiting_slot
from btrkeep.clock import Clock
from btrkeep.pool.marker import Pool
from btrkeep.process.proc import start_time
from btrkeep.serving.protocol import RequestRefused

NOW = datetime(2026, 11, 21, 21, 0, tzinfo=UTC)


@pytest.fixture
def jobs(tmp_path: Path) -> JobStore:
    return JobStore(tmp_path)


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    return Pool(tmp_path, "1", "11111111-2222-4333-8444-555555555555", False)


def job(host: str, who: str, **changed: Any) -> ServeJob:
    return replace(ServeJob(new_id(NOW), "run", host, who, "2026-11-21T21:00:00Z", {}), **changed)


def preview(jobs: JobStore, pool: Pool, host: str, who: str) -> None:
    _require_free(pool, _unfinished(jobs, "preview", NOW), "preview", host, who)
    jobs.put(job(host, who, verb="preview", called=NOW.isoformat()))


def refused_as_busy(jobs: JobStore, pool: Pool, host: str, who: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        _require_free(pool, _unfinished(jobs, "preview", NOW), "preview", host, who)
    assert refused.value.kind == "busy"


def test_previews_are_few_at_a_time_also_for_different_users(jobs: JobStore, pool: Pool) -> None:
    for number in range(PREVIEWS):
        preview(jobs, pool, f"web{number}", f"user{number}")
    refused_as_busy(jobs, pool, "web9", "bob")
    _require_free(pool, _unfinished(jobs, "restore", NOW), "restore", "web1", "bob")
    later = NOW + timedelta(minutes=11)
    _require_free(pool, _unfinished(jobs, "preview", later), "preview", "web9", "bob")  # they were never started


def test_a_host_is_asked_for_one_preview_at_a_time_and_others_go_on(jobs: JobStore, pool: Pool) -> None:
    preview(jobs, pool, "liar", "carol")
    refused_as_busy(jobs, pool, "liar", "carol")
    refused_as_busy(jobs, pool, "liar", "olga")
    preview(jobs, pool, "web1", "olga")


def test_one_asker_leaves_room_for_the_previews_of_others(jobs: JobStore, pool: Pool) -> None:
    preview(jobs, pool, "liar1", "carol")
    preview(jobs, pool, "liar2", "carol")
    refused_as_busy(jobs, pool, "liar3", "carol")
    preview(jobs, pool, "web1", "olga")


@pytest.mark.slow
def test_a_request_over_its_time_limit_is_ended_with_all_its_processes(jobs: JobStore, tmp_path: Path) -> None:
    pid, within = tmp_path / "pid", 0.5
    script = f"trap '' TERM; sleep 6000 & echo $! > {pid}.new; mv {pid}.new {pid}; echo begun >&2; wait; wait"
    while not pid.exists():  # on a busy machine it may start late
        within *= 2
        endless = job("liar", "carol", verb="preview")
        jobs.put(endless)
        words = ("bash", "-c", script)
        code = carry_out(endless, jobs, words, Clock(), lambda _: None, speaks_json=True, within=within, grace=0.5)
    result = jobs.get(endless.id, NOW)
    assert (result.state, result.exit, result.error) == ("failed", code, f"the job took longer than {within}s, and was stopped")
    assert start_time(int(pid.read_text())) is None, "it is there, and no zombie"


def test_what_ends_in_time_is_not_ended(jobs: JobStore) -> None:
    short = job("web1", "olga", verb="preview")
    jobs.put(short)
    assert carry_out(short, jobs, ("echo", "[1]"), Clock(), lambda _: None, speaks_json=True, within=60.0) == 0
    assert jobs.get(short.id, NOW).result == [1]


# --- backups that wait


def waiting(askers: Iterable[str]) -> list[ServeJob]:
    return [job(f"host{number}", who) for number, who in enumerate(askers)]


def busy(serve_jobs: list[ServeJob], who: str) -> None:
    with pytest.raises(RequestRefused, match="wait for a slot") as refused:
        require_waiting_slot(serve_jobs, who)
    assert refused.value.kind == "busy"


def test_too_many_requests_at_once_are_refused_as_busy() -> None:
    mine = waiting(["alice"] * PER_ASKER)
    require_waiting_slot(mine[1:], "alice")
    require_waiting_slot(mine, "bob")
    require_waiting_slot([replace(job, called=NOW.isoformat()) for job in waiting(map(str, range(IN_ALL)))], "alice")
    busy(mine, "alice")
    busy(waiting(map(str, range(IN_ALL))), "bob")


def test_a_few_greedy_users_leave_slots_for_users_without_a_waiting_request() -> None:
    greedy = waiting(f"greedy{number % 5}" for number in range(IN_ALL - FOR_OTHERS))
    busy(greedy, "greedy0")
    require_waiting_slot(greedy, "bob")
    busy([*greedy, *waiting(["bob"])], "bob")
    require_waiting_slot([*greedy, *waiting(["bob"])], "olga")


def test_requests_of_one_user_push_out_no_results_of_another(jobs: JobStore) -> None:
    """The many requests are newer."""
    before = {new_id(NOW - timedelta(minutes=1)) for _ in range(3)}
    for job_id in before:
        jobs.put(job("web1", "bob", id=job_id, state="done"))
    for number in range(60):
        jobs.put(job("web1", "alice", id=new_id(NOW + timedelta(seconds=number)), verb="preview", state="done"))
    for number in range(260):
        jobs.put(job("web1", "alice", id=new_id(NOW + timedelta(seconds=number)), state="failed"))
    jobs.thin(NOW + timedelta(minutes=5))
    kept = list(jobs.all(NOW))
    assert before <= {job.id for job in kept}
    assert [sum(job.who == "alice" and job.verb == verb for job in kept) for verb in ("preview", "run")] == [50, 250]
    newest = max(moment.id for moment in kept if moment.who == "alice" and moment.verb == "run")
    assert jobs.get(newest, NOW).state == "failed"
