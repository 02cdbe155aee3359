"""A host's strip of nights: the meaning of each cell, and its text for screen readers."""

from datetime import UTC, datetime, time, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from btrkeep.catalogue import BackupOutcome, HostRuns
from btrkeep.config import Window
from btrkeep.units import backup_name
from web.hosts.charts import strip_paths
from web.hosts.nights import HostNight, KnownPeriod, boundaries, strip, words

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
WINDOW = Window(time(22), time(6))
BEGINS = boundaries(WINDOW, BERLIN, NOW, 5)  # the evenings of the 16th to the 20th
EVENINGS = [datetime(2026, 11, day, 21, 30, tzinfo=UTC) for day in range(16, 21)]


def tried(night: int, outcome: str | None, hours: float = 0, run_id: int = 1) -> HostRuns:
    started = EVENINGS[night] + timedelta(hours=hours)
    name = backup_name(started) if outcome in ("complete", "suspect") else None
    return HostRuns("a", run_id, started, started, outcome, name, None, 1, 1, "1", True)


def outcomes(*runs: HostRuns, state: str = "complete", outcome: str | None = "complete") -> dict[str, BackupOutcome]:
    return {str(run.backup): BackupOutcome("a", str(run.backup), state, outcome) for run in runs}


def shown(
    *runs: HostRuns, by_name: dict[str, BackupOutcome] | None = None, alive: frozenset[int] = frozenset()
) -> tuple[HostNight, ...]:
    return strip(BEGINS, BERLIN, runs, by_name or {}, alive)


def test_each_night_has_its_day_and_the_best_of_its_runs() -> None:
    runs = [tried(0, "complete"), tried(1, "failed"), tried(1, "complete", 5), tried(2, "failed"), tried(4, "skipped")]
    host_nights = shown(*runs)
    assert [night.day for night in host_nights] == ["2026-11-16", "2026-11-17", "2026-11-18", "2026-11-19", "2026-11-20"]
    assert [night.outcome for night in host_nights] == ["complete", "complete", "failed", "none", "skipped"]


def test_what_was_run_in_the_afternoon_belongs_to_the_night_before() -> None:
    assert [night.outcome for night in shown(tried(1, "complete", 16))] == ["none", "complete", "none", "none", "none"]
    assert [night.outcome for night in shown(tried(1, "complete", 24))] == ["none", "none", "complete", "none", "none"]


def test_a_complete_backup_is_told_apart_by_what_became_of_it() -> None:
    kept, marked, deleted = tried(0, "complete"), tried(1, "complete"), tried(2, "complete")
    host_nights = shown(kept, marked, deleted, by_name={**outcomes(kept), **outcomes(marked, state="expired")})
    assert [(night.outcome, night.now) for night in host_nights[:3]] == [
        ("complete", "kept"),
        ("complete", "expired"),
        ("complete", "gone"),
    ]


def test_a_suspect_backup_that_was_accepted_is_complete() -> None:
    run = tried(0, "suspect")
    assert shown(run, by_name=outcomes(run, state="suspect", outcome="suspect"))[0].outcome == "suspect"
    assert shown(run, by_name=outcomes(run, outcome="complete"))[0].outcome == "complete"
    assert shown(run)[0].outcome == "suspect"


def test_a_run_without_an_end_is_running_or_was_broken_off() -> None:
    run = tried(4, None, run_id=9)
    assert shown(run, alive=frozenset({9}))[4].outcome == "running"
    assert shown(run)[4].outcome == "partial"


def test_in_words_the_nights_that_were_not_well_are_named() -> None:
    runs = [tried(0, "complete"), tried(1, "failed"), tried(2, "complete"), tried(3, "suspect")]
    assert words(shown(*runs)) == "the last 5 nights: 2 complete, 1 suspect (Thu 19 Nov), 1 failed (Tue 17 Nov), 1 without a run"


def test_before_a_host_was_there_it_had_no_nights() -> None:
    run = tried(3, "complete")
    host_nights = strip(
        BEGINS, BERLIN, [run], outcomes(run), frozenset(), KnownPeriod(run.started - timedelta(hours=1), window=WINDOW)
    )
    assert [night.outcome for night in host_nights] == ["before", "before", "before", "complete", "none"]
    assert words(host_nights) == "all 2 nights: 1 complete, 1 without a run"
    assert (
        words(strip(BEGINS, BERLIN, (), {}, frozenset(), KnownPeriod(EVENINGS[4], window=WINDOW)))
        == "the only night so far: 1 without a run"
    )
    assert strip_paths(host_nights[:3])[0][1] == ""


def test_what_a_lost_catalogue_knew_is_not_known_and_a_backup_tells_of_its_night() -> None:
    made, later = tried(1, "complete"), tried(3, "failed")
    suspect = tried(2, "suspect")
    by_name = {**outcomes(made, state="expired"), **outcomes(suspect, state="suspect", outcome="suspect")}
    past = KnownPeriod(EVENINGS[1], [(BEGINS[0], EVENINGS[2])], WINDOW)
    host_nights = strip(BEGINS, BERLIN, [later], by_name, frozenset(), past)
    assert [(night.outcome, night.now) for night in host_nights] == [
        ("before", None),
        ("complete", "expired"),
        ("suspect", "kept"),
        ("failed", None),
        ("none", None),
    ]
    assert host_nights[1].backup == made.backup
    lost = strip(BEGINS, BERLIN, [later], {}, frozenset(), past)
    assert [night.outcome for night in lost] == ["before", "unknown", "unknown", "failed", "none"]
    assert words(lost) == "all 4 nights: 1 failed (Thu 19 Nov), 1 without a run, 2 not known"


def test_a_strip_has_a_path_for_each_kind_and_a_cell_for_each_night() -> None:
    kept, gone = tried(0, "complete"), tried(1, "complete")
    paths = dict(strip_paths(shown(kept, gone, tried(2, "failed"), by_name=outcomes(kept))))
    assert set(paths) == {"complete", "past", "failed", "none"}
    assert (paths["complete"].count("M"), paths["failed"].count("M"), paths["none"].count("M")) == (
        1,
        2,
        2,
    )  # failed is split in two


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/St_Johns", "Pacific/Apia"])
def test_thirty_nights_follow_each_other_in_every_zone(zone: str) -> None:
    host_nights = strip(boundaries(None, ZoneInfo(zone), NOW), ZoneInfo(zone), (), {}, frozenset())
    days = [datetime.fromisoformat(night.day) for night in host_nights]
    assert len(days) == 30
    assert {later - day for day, later in pairwise(days)} == {timedelta(days=1)}
