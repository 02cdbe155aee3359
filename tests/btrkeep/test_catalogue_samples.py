"""Samples and jobs in the catalogue, compared with sqlite3: which samples are kept, and the size after ten years."""

import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from backupd.observe.sampling import STEPS, merge_samples, thin_samples
from btrkeep.catalogue import Catalogue, CatalogueBusy, FreeSpaceScore, Sample
from btrkeep.catalogue.model_pool import SpaceType, join_activities, read_space_name, space_name, split_activities
from tests.backupd.made_samples import FILESYSTEM, GIB, START, every_five_minutes, sample

UTC_ZONE = ZoneInfo("UTC")
NOW = datetime(2026, 11, 20, 22, 0, tzinfo=UTC)


def ask(folder: Path, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(folder / "catalogue.sqlite")) as connection:
        return connection.execute(statement).fetchall()


COUNTERS = {"boot": "b", "clock": 7.5, "devices": {"sda:1": [1, 2, 3, 4, 5]}, "pressure": {"io some": 9}}


def test_a_sample_comes_back_as_it_went_in_and_can_be_read_with_sqlite3(catalogue: Catalogue, tmp_path: Path) -> None:
    score = {"score": 17.25, "scored": NOW - timedelta(hours=1)}
    full_sample = sample(NOW, **score, seconds=300.5, read=1 << 60, activity="scrub", pressure={"io some": 1.25}, counters=COUNTERS)
    full_sample = replace(full_sample, spaces={"data raid1": [1, 2, 2000]}, devices={"1": [5, 4, 0, 1, 0, 0, 0]})
    assert catalogue.newest_sample(FILESYSTEM) is None
    assert catalogue.add_sample(FILESYSTEM, lambda before: full_sample if before is None else sample(NOW)) == full_sample
    assert catalogue.newest_sample(FILESYSTEM) == replace(full_sample, id=1)
    assert catalogue.newest_sample("another") is None
    assert ask(tmp_path, "SELECT taken, span, allocated, spaces, read FROM sample") == [
        ("2026-11-20T22:00:00.000000Z", "raw", full_sample.allocated, '{"data raid1":[1,2,2000]}', 1 << 60)
    ]


def test_what_is_made_is_made_of_the_sample_that_was_kept_last_whatever_the_clock_said(catalogue: Catalogue) -> None:
    before: list[Sample | None] = []

    def next_one(taken: datetime) -> None:
        def make(last: Sample | None) -> Sample:
            before.append(last)
            return sample(taken)

        catalogue.add_sample(FILESYSTEM, make)

    for moment in (NOW, NOW - timedelta(days=1), NOW + timedelta(minutes=5)):
        next_one(moment)
    assert [sample.taken if sample else None for sample in before] == [None, NOW, NOW - timedelta(days=1)]
    assert [sample.taken for sample in catalogue.samples(FILESYSTEM)] == sorted(
        [NOW, NOW - timedelta(days=1), NOW + timedelta(minutes=5)]
    )
    assert [sample.taken for sample in catalogue.samples(FILESYSTEM, NOW, NOW + timedelta(minutes=5))] == [NOW]
    assert catalogue.oldest_sample(FILESYSTEM, "raw") == NOW - timedelta(days=1)
    assert catalogue.oldest_sample(FILESYSTEM, "hour") is None


def test_a_busy_catalogue_is_waited_for_as_long_as_was_said_and_nothing_is_changed(catalogue: Catalogue, tmp_path: Path) -> None:
    catalogue.wait_at_most(0.2)
    with closing(sqlite3.connect(tmp_path / "catalogue.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        begun = time.monotonic()
        with pytest.raises(CatalogueBusy):
            catalogue.add_sample(FILESYSTEM, lambda _: sample(NOW))
        assert time.monotonic() - begun < 25
        assert catalogue.samples(FILESYSTEM) == []
        other.execute("ROLLBACK")
    catalogue.add_sample(FILESYSTEM, lambda _: sample(NOW))
    assert ask(tmp_path, "SELECT count(*) FROM sample") == [(1,)]


SUMS = "SELECT sum(written), sum(read), round(sum(seconds), 3), max(taken), min(taken) FROM sample"


@pytest.mark.slow
def test_old_samples_become_hours_and_days_and_no_byte_is_lost(catalogue: Catalogue, tmp_path: Path) -> None:
    count = 288 * 16
    catalogue.replace_samples([], every_five_minutes(count))
    before = ask(tmp_path, SUMS)
    now = START + timedelta(days=16)
    for _ in range(4):
        thin_samples(catalogue, FILESYSTEM, now, UTC_ZONE)
    spans = dict(ask(tmp_path, "SELECT span, count(*) FROM sample GROUP BY span"))
    assert (spans["hour"], spans["raw"]) == (48, 14 * 288 + 1)  # the first of its hour is taken five minutes into it
    after = ask(tmp_path, SUMS)
    assert after[0][:4] == before[0][:4]
    thin_samples(catalogue, FILESYSTEM, now, UTC_ZONE)
    assert ask(tmp_path, SUMS) == after
    for _ in range(4):
        thin_samples(catalogue, FILESYSTEM, now + timedelta(days=365), UTC_ZONE)
    assert ask(tmp_path, "SELECT DISTINCT span FROM sample WHERE taken < '2026-06-03'") == [("day",)]
    assert ask(tmp_path, SUMS)[0][:3] == before[0][:3]


def test_what_is_made_of_old_samples_is_never_taken_for_the_newest(catalogue: Catalogue, tmp_path: Path) -> None:
    """Otherwise the next sample's counters could not be compared, and from the third week on no rate would be known."""
    taken = START
    while taken < START + timedelta(days=16):
        catalogue.add_sample(FILESYSTEM, lambda _: sample(taken, counters=COUNTERS))  # noqa: B023  called at once
        taken += timedelta(hours=6)
    last = catalogue.newest_sample(FILESYSTEM)
    thin_samples(catalogue, FILESYSTEM, taken, UTC_ZONE)
    [(newest_row,)] = ask(tmp_path, "SELECT span FROM sample ORDER BY id DESC LIMIT 1")
    assert newest_row == "hour"
    assert catalogue.newest_sample(FILESYSTEM) == last
    catalogue.add_sample(FILESYSTEM, lambda before: sample(taken) if before == last else sample(taken, read=-1))
    assert ask(tmp_path, "SELECT count(*) FROM sample WHERE read < 0") == [(0,)]


@pytest.mark.slow
def test_samples_of_ten_years_with_twelve_devices_stay_below_100_mb(catalogue: Catalogue, tmp_path: Path) -> None:
    """The rows have realistic sizes: a raw row has the counters of all devices, and the product's own code makes the rows of hours
    and days.
    """
    devices = {str(number): (18 << 40, 17 << 40, 0, 12, 0, 3, 0) for number in range(1, 13)}
    kinds = ("cpu some", "io some", "io full", "memory some", "memory full")
    counters = {
        "boot": "5d4d090c-417e-422e-804a-f44c40726eb8",
        "clock": 27671.847617421,
        "devices": {f"sd{letter}1:15124": [1733587, 218217176576, 28394610, 611018660864, 2170176] for letter in "abcdefghijkl"},
        "pressure": dict.fromkeys(kinds, 8138401147),
    }
    waits = dict.fromkeys(kinds, 12.345)
    options = "rw,noatime,compress=zstd:3,nossd,space_cache=v2,commit=120,subvolid=5,subvol=/"
    answer: dict[str, Any] = {
        "devices": devices,
        "counters": counters,
        "pressure": waits,
        "options": options,
        "score": 97412.618,
        "scored": NOW,
    }
    raw = every_five_minutes(14 * 288, **answer)
    hours = merge_samples(raw, STEPS[0], UTC_ZONE)
    days = merge_samples(hours, STEPS[1], UTC_ZONE)
    catalogue.replace_samples([], [replace(hours[0], taken=START + timedelta(hours=number)) for number in range(351 * 24)])
    catalogue.replace_samples([], [replace(days[0], taken=START - timedelta(days=number)) for number in range(9 * 366)])
    catalogue.replace_samples([], [replace(each, taken=each.taken + timedelta(days=351)) for each in raw])
    catalogue.close()
    size = (tmp_path / "catalogue.sqlite").stat().st_size
    assert ask(tmp_path, "SELECT count(*) FROM sample")[0][0] > 15_000
    assert 10e6 < size < 50e6  # half of what the catalogue may have; runs and backups need some too


def test_the_newest_score_is_the_one_that_was_kept_last_whatever_the_clock_said(catalogue: Catalogue) -> None:
    assert catalogue.newest_score(FILESYSTEM) is None
    for hours in (2, 5, 1):
        catalogue.add_score(FreeSpaceScore(FILESYSTEM, NOW + timedelta(hours=hours), 1, GIB, 5, 6, 7, float(hours), 0, 8, 9, ()))
    newest = catalogue.newest_score(FILESYSTEM)
    assert newest is not None
    assert newest.score == 1.0


def test_jobs_are_those_that_ran_at_any_time_between(catalogue: Catalogue) -> None:
    def at(hours: float) -> datetime:
        return NOW + timedelta(hours=hours)

    for start, end in ((-3, -2), (-1, 0.5), (0.2, 0.4), (0.9, None), (1.5, 2)):
        run = catalogue.start_run("web1", at(start), 7, "99", night=True)
        if end is not None:
            catalogue.finish_run(run, finished=at(end), outcome="complete", literal_bytes=1000)
    expiry = catalogue.start_expiry(at(0.6), 8, None)
    catalogue.update_expiry(expiry, updated=at(0.7))
    for filesystem in (FILESYSTEM, "another"):
        balance = catalogue.start_balance(filesystem, "/srv", at(0.5), 9, None, policy="benefit", budget=None, moved=50)
        catalogue.finish_balance(balance, finished=at(0.8), outcome="done")
    jobs = catalogue.jobs(FILESYSTEM, NOW, at(1))
    assert [(job.kind, job.started, job.finished, job.data) for job in jobs] == [
        ("backup", at(-1), at(0.5), 1000),
        ("backup", at(0.2), at(0.4), 1000),
        ("balance", at(0.5), at(0.8), 50),
        ("expire", at(0.6), None, 0),
        ("backup", at(0.9), None, None),
    ]
    assert [(job.pid, job.pid_started, job.updated) for job in jobs[3:]] == [(8, None, at(0.7)), (7, "99", None)]


def test_activities_and_types_of_block_groups_are_read_back_from_the_text_that_is_stored() -> None:
    assert join_activities(("balance paused", "scrub")) == "balance paused, scrub"
    for activities in ((), ("scrub",), ("balance paused", "scrub")):
        assert split_activities(join_activities(activities)) == activities
    assert space_name(SpaceType("data", "raid1")) == "data raid1"
    assert read_space_name("metadata raid1c3") == SpaceType("metadata", "raid1c3")
    for damaged in ("", "data", "data single more"):
        with pytest.raises(ValueError, match="unpack"):
            read_space_name(damaged)
