"""The data on the pool's pages, compared with our own commands and SQLite on the same catalogue."""

import json
import re
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET
from zoneinfo import ZoneInfo

import pytest

from bench import site_history
from btrkeep.catalogue import Catalogue, PastRuns, Sample
from btrkeep.charts import day as day_charts
from btrkeep.charts import trend as trend_charts
from btrkeep.decisions.trend import FullForecast, range_ahead, year_before
from btrkeep.serving.viewer import AnswerSize
from btrkeep.units import format_size, format_time, parse_time
from tests.backupd.made_samples import sample
from tests.beds import btrfs, work
from tests.beds.cli import TOP
from tests.beds.made_catalogue import shared_site
from tests.beds.nights import Nights
from web import log
from web.jobs.data import jobs, night_view, parse_id, requested_job
from web.log import log_page, wanted_runs
from web.pool.balance import balances, one_balance, sums
from web.pool.data import both_forecasts, day_view, outlooks, parse_day, part_of_day, pool_now, trend, trend_context
from web.pool.expiry import expiries
from web.pool.scores import scores

BERLIN = ZoneInfo("Europe/Berlin")
Made = tuple[Catalogue, sqlite3.Connection, datetime]


@dataclass
class Bed:
    """A real pool whose catalogue has a year of samples, expiries and balances that are invented."""

    nights: Nights
    filesystem: str
    now: datetime
    catalogue: Catalogue

    def says(self, *words: str) -> Any:
        return json.loads(self.nights.backupd(*words, "--json").stdout)


@pytest.fixture(scope="module")
def bed(_shared_mount: Path) -> Iterator[Bed]:
    """A bed filled by bench/site_history.py, which does not depend on the pages."""
    top = _shared_mount / "pool-data"
    work("btrfs", "-q", "subvolume", "create", top)
    try:
        nights = Nights(top)
        nights.settings("pool", zone="Europe/Berlin")
        filesystem = json.loads((nights.pool / ".btrkeep" / "pool.json").read_text())["filesystem"]
        now = datetime.now(UTC).replace(microsecond=0)
        with Catalogue.open(nights.state) as catalogue, pytest.MonkeyPatch.context() as patch:
            patch.setattr(site_history, "FILESYSTEM", filesystem)
            site_history.fill(catalogue, now, ())
        with Catalogue.open_readonly(nights.state) as catalogue:
            yield Bed(nights, filesystem, now, catalogue)
    finally:
        btrfs.delete_subvolume(top, _shared_mount)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """Yields the catalogue of a generated site of 40 hosts, the same file opened in SQLite, and the site's present time."""
    site = shared_site(tmp_path_factory)
    with Catalogue.open_readonly(site.state) as catalogue:
        plain = sqlite3.connect(f"file:{site.state / 'catalogue.sqlite'}?mode=ro", uri=True)
        yield catalogue, plain, site.now
        plain.close()


@pytest.mark.parametrize("days", [7, 180])
def test_the_trend_is_that_of_the_command(bed: Bed, days: int) -> None:
    answer = bed.says("trend", "--days", str(days))
    result = trend(bed.catalogue, bed.filesystem, parse_time(answer["since"]) + timedelta(days=days), days)
    # The command's clock has fractions of a second, its JSON has none: the start of a step, and so a point, may differ by that.
    fields = {point["taken"]: point for point in answer["points"]}
    ours = {format_time(point.taken): point for point in result.points}
    both = fields.keys() & ours.keys()
    assert len(both) >= len(fields) - 2 > 10
    for name in ("size", "allocated", "used", "unallocated", "metadata_share", "orphans"):
        assert [getattr(ours[at], name) for at in both] == [fields[at][name] for at in both]


def test_the_outlook_is_the_forecast_of_the_command(bed: Bed) -> None:
    answer = bed.says("forecast")
    for outlook in outlooks(bed.catalogue, bed.filesystem, bed.now):
        result = answer[outlook.what]
        assert result["now"] == outlook.now
        assert outlook.per_day == pytest.approx(result["per_day"], rel=0.02)
        assert outlook.usual
        assert abs(outlook.usual - parse_time(result["full"])) < timedelta(days=30)


def test_a_day_is_that_of_the_command(bed: Bed) -> None:
    day = (bed.now - timedelta(days=2)).astimezone(BERLIN).date()
    answer = bed.says("day", day.isoformat())
    result = day_view(bed.catalogue, bed.filesystem, BERLIN, bed.now, day)
    assert (format_time(result.start), format_time(result.end)) == (answer["since"], answer["until"])
    assert [(phase.kind, format_time(phase.start), format_time(phase.end)) for phase in result.phases] == [
        (phase["job"], phase["start"], phase["end"]) for phase in answer["phases"]
    ]
    assert [
        (phase_sum.kind or None, phase_sum.read, phase_sum.written, phase_sum.data, phase_sum.metadata) for phase_sum in result.sums
    ] == [tuple(row[name] for name in ("job", "read", "written", "data", "metadata")) for row in answer["sums"]]
    slots = [slot for slot in result.slots if slot.read is not None]
    assert [round(slot.written or 0) for slot in slots] == [slot["written"] for slot in answer["slots"]]


def test_balances_are_those_that_the_balancer_tells_of(bed: Bed) -> None:
    words = ("history", "--config", bed.nights.config, "--days", "400", "--json")
    done = work(sys.executable, "-m", "balancer", *words, cwd=TOP)
    answer = json.loads(done.stdout)
    runs = balances(bed.catalogue, bed.filesystem, bed.now)
    value = answer["balances"][::-1]
    assert [run.id for run in runs] == [row["id"] for row in value]
    for name in ("moved", "written", "gained", "block_groups", "policy", "budget", "failed"):
        assert [getattr(run, name) for run in runs] == [row[name] for row in value]
    assert runs[0].amplification == pytest.approx(value[0]["written"] / value[0]["moved"])
    whole = sums(runs)
    assert whole.amplification == pytest.approx(sum(row["written"] for row in value) / sum(row["moved"] for row in value))
    result = one_balance(bed.catalogue, bed.filesystem, runs[0].id, bed.now)
    assert result
    assert [(step.vaddr, step.written, step.estimate_written, step.outcome) for step in result.steps] == [
        tuple(step[name] for name in ("vaddr", "written", "estimate_written", "outcome")) for step in value[0]["steps"]
    ]
    done_steps = [step for step in value[0]["steps"] if step["outcome"] == "done"]
    assert result.accuracy.written == pytest.approx(
        sum(step["written"] for step in done_steps) / sum(step["estimate_written"] for step in done_steps)
    )
    assert one_balance(bed.catalogue, "another filesystem", runs[0].id, bed.now) is None
    looks = scores(bed.catalogue, bed.filesystem, bed.now, 365)
    assert looks.newest
    newest = answer["scores"][-1]
    assert (looks.newest.score, looks.newest.bad, looks.newest.fragments) == (newest["score"], newest["bad"], newest["fragments"])
    assert [(size.least, size.extents, size.bytes) for size in looks.sizes] == [
        (row["at_least"], row["extents"], row["bytes"]) for row in newest["histogram"]
    ]


def test_what_is_not_known_to_have_been_written_does_not_lower_the_amplification(bed: Bed) -> None:
    balance = balances(bed.catalogue, bed.filesystem, bed.now)[0]
    balance_run, unknown = replace(balance, moved=100, written=1000), replace(balance, moved=900, written=None, amplification=None)
    assert sums([balance_run, unknown]).amplification == 10
    assert sums([balance_run, unknown]).moved == 1000
    assert sums([unknown]).amplification is None


def test_the_pool_now_is_the_sample_that_was_kept_last(bed: Bed) -> None:
    plain = sqlite3.connect(f"file:{bed.nights.state / 'catalogue.sqlite'}?mode=ro", uri=True)
    row = plain.execute(
        "select size, allocated, used, options, spaces from sample where span='raw' order by id desc limit 1"
    ).fetchone()
    plain.close()
    result = pool_now(bed.catalogue, bed.filesystem)
    assert result
    assert (result.size, result.allocated, result.used, result.options) == row[:4]
    assert {space.name: [space.allocated, space.used, round(space.copies * 1000)] for space in result.spaces} == json.loads(row[4])
    assert pool_now(bed.catalogue, "another") is None


@pytest.mark.slow
def test_expiries_are_those_of_the_catalogue_with_what_each_deletion_took(
    made: Made,
) -> None:
    catalogue, plain, now = made
    rows = plain.execute("select id, deleted, marked, written_bytes from expiry order by id desc limit 60").fetchall()
    expiry_runs = expiries(catalogue, now)
    assert [(expiry_run.id, expiry_run.deleted, expiry_run.marked, expiry_run.written) for expiry_run in expiry_runs] == rows
    assert [expiry_run.written_each for expiry_run in expiry_runs if expiry_run.deleted] == [
        row[3] / row[1] for row in rows if row[1]
    ]


def test_nights_add_up_to_the_runs_of_the_catalogue(made: Made) -> None:
    """All runs of the invented site have the same process number, as after a year of boots: nights are distinguished by time."""
    catalogue, plain, _now = made
    nights = catalogue.nights()
    count, new = plain.execute("select count(*), sum(literal_bytes) from run where night").fetchone()
    assert sum(night.runs for night in nights) == count
    assert sum(night.literal_bytes for night in nights) == new
    assert [night.first_run for night in nights] == sorted((night.first_run for night in nights), reverse=True)
    for night in nights[1:4]:
        rows = plain.execute(
            "select outcome, count(*), max(finished) from run where night and id between ? and ? group by outcome",
            (night.first_run, night.last_run),
        ).fetchall()
        assert night.outcomes == {outcome or "": count for outcome, count, _ in rows}
        assert night.finished
        assert night.finished - night.started < timedelta(hours=12)
    days = [night.started.date() for night in nights[1:]]  # the newest runs now: shortly after midnight it began on the same day
    assert len(days) == len(set(days))
    assert [catalogue.night(night.first_run) for night in nights] == nights
    assert catalogue.night(nights[1].first_run + 1) is None
    assert catalogue.night(10**9) is None


def test_a_night_that_is_not_among_the_runs_as_a_whole_is_left_out(made: Made) -> None:
    catalogue, _, _ = made
    whole = catalogue.nights()
    few = catalogue.nights(whole[0].runs + whole[1].runs + whole[2].runs // 2)
    assert few == whole[:2]


@pytest.mark.parametrize(
    ("wanted", "where"),
    [
        (PastRuns(), "1"),
        (PastRuns(outcomes=("failed",)), "outcome='failed'"),
        (PastRuns(outcomes=("",)), "outcome is null"),
        (PastRuns(outcomes=("failed", "")), "(outcome='failed' or outcome is null)"),
        (PastRuns(hosts={"web0000.example.org"}), "host='web0000.example.org'"),
        (PastRuns(hosts={"web0000.example.org", "lab0004.example.org"}), "host in ('web0000.example.org','lab0004.example.org')"),
        (PastRuns(hosts=set()), "0"),
        (PastRuns(before=100), "id<100"),
        (PastRuns(ids=(5, 9), night=True), "id between 5 and 9 and night"),
        (PastRuns(night=False), "not night"),
        (PastRuns(process=(1, None)), "pid=1 and pid_started is null"),
    ],
)
def test_runs_are_filtered_as_sqlite_filters_them(made: Made, wanted: PastRuns, where: str) -> None:
    catalogue, plain, _ = made
    rows = plain.execute(f"select id from run where {where} order by id desc limit 50").fetchall()
    assert [run.id for run in catalogue.past_runs(wanted, 50)] == [row[0] for row in rows]


def test_pages_of_the_log_follow_each_other_without_a_gap(made: Made) -> None:
    catalogue, plain, now = made
    seen, before = list[int](), None
    while True:
        page = log_page(catalogue, wanted_runs(None, None, "failed", None, before), now, 2)
        seen += [run.id for run in page.runs]
        before = page.older
        if before is None:
            break
    assert seen == [row[0] for row in plain.execute("select id from run where outcome='failed' order by id desc")]
    assert len(seen) > 4


def test_a_page_of_the_log_ends_where_its_bytes_do_and_the_next_goes_on(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue, plain, now = made
    monkeypatch.setattr(log, "AnswerSize", lambda: AnswerSize(100))
    seen, before, pages = list[int](), None, 0
    while pages == 0 or before is not None:
        page = log_page(catalogue, wanted_runs(None, None, "failed", None, before), now, 500)
        seen += [run.id for run in page.runs]
        before, pages = page.older, pages + 1
        assert len(page.runs) == 1 or sum(len(line) for run in page.runs for line in run.last_lines) <= 100
    assert seen == [row[0] for row in plain.execute("select id from run where outcome='failed' order by id desc")]
    assert pages > 2


def test_who_is_limited_to_hosts_gets_no_run_of_another_host_whatever_is_asked_for() -> None:
    assert wanted_runs({"web1"}, "db1", None, None, None).hosts == set()
    assert wanted_runs({"web1"}, "web1", None, None, None).hosts == {"web1"}
    assert wanted_runs({"web1"}, None, None, None, None).hosts == {"web1"}
    assert wanted_runs(frozenset(), None, None, None, None).hosts == frozenset()
    assert wanted_runs(None, None, None, None, None).hosts is None


def test_jobs_are_all_that_ran_newest_first_and_each_has_its_page(made: Made) -> None:
    catalogue, plain, now = made
    job_rows = jobs(catalogue, site_history.FILESYSTEM, now, 14, (), 1.0)
    assert [row.started for row in job_rows] == sorted((row.started for row in job_rows), reverse=True)
    since = format_time(now - timedelta(days=14))
    expected = {f"expire-{id_}" for (id_,) in plain.execute("select id from expiry where started>=?", (since,))}
    expected |= {f"balance-{id_}" for (id_,) in plain.execute("select id from balance where started>=?", (since,))}
    assert expected <= {row.id for row in job_rows}
    assert {row.kind for row in jobs(catalogue, site_history.FILESYSTEM, now, 14, ("expire",), 1.0)} == {"expire"}
    assert all(row.id is None or parse_id(row.id) for row in job_rows)
    night = next(row for row in job_rows if row.kind == "night" and row.finished)
    assert night.id
    view = night_view(catalogue, parse_id(night.id)[1], now, None, 1.0)  # type: ignore[index]  # it is one
    assert view
    assert {run.outcome for run in view.poor.runs} <= {"failed", "suspect", "partial"}
    assert len(view.poor.runs) == sum(count for outcome, count in view.outcomes.items() if outcome not in ("complete", "skipped"))


def test_a_name_of_a_job_that_is_none_of_the_catalogue_is_none() -> None:
    for text in (
        "",
        "night",
        "night-",
        "night--1",
        "night-1x",
        "expire-99999999999999999999",
        "20261121T210000Z-0a1b2c3d",
        "../night-1",
    ):
        assert parse_id(text) is None


def test_what_the_root_service_says_of_a_job_may_lack_anything() -> None:
    assert requested_job({}).state == ""
    odd = requested_job(
        {"job": 7, "lines": "no list", "arguments": [], "exit": "1", "started": None, "verb": "restore", "host": "web1"}
    )
    assert (odd.lines, odd.exit, odd.title) == ((), None, "restore of web1")


def test_a_day_that_is_none_is_refused() -> None:
    assert parse_day("") is None
    for text in ("2026-13-01", "yesterday", "0001-01-01", "9999-12-31", "2026-11-20T00:00", "2026-W47-5\n"):
        with pytest.raises(ValueError):
            parse_day(text)


SVG = "{http://www.w3.org/2000/svg}"


def drawing(chart: str) -> ET.Element:
    return ET.fromstring(f'<div xmlns="{SVG[1:-1]}">{chart}</div>')[0]


@pytest.mark.parametrize("name", trend_charts.NAMES)
def test_a_chart_is_well_formed_and_needs_no_style(bed: Bed, name: str) -> None:
    result = trend(bed.catalogue, bed.filesystem, bed.now, 180)
    chart = trend_charts.trend_chart(name, result, BERLIN)
    tree = drawing(chart)
    width = float((tree.get("viewBox") or "").split()[2])
    assert "style" not in chart
    assert max(float(text.get("x", "0")) for text in tree.iter(f"{SVG}text")) <= width
    assert str(result.points[-1].size // 2**40) in trend_charts.words("allocated", result)


def test_each_place_of_a_chart_has_its_time_and_values_in_words(bed: Bed) -> None:
    result = trend(bed.catalogue, bed.filesystem, bed.now, 7)
    tree = drawing(trend_charts.trend_chart("allocated", result, BERLIN))
    rows = [line.split("|") for line in tree.attrib["data-rows"].split(";")]
    assert tree.attrib["data-names"].split("|") == ["used", "allocated", "size of the devices"]
    assert [row[1:] for row in rows] == [
        [f"{point.taken.astimezone(BERLIN):%Y-%m-%d %H:%M}", *map(format_size, (point.used, point.allocated, point.size))]
        for point in result.points
    ]
    places = [float(row[0]) for row in rows]
    assert places == sorted(places)


def test_a_chart_of_half_a_year_has_its_limit_its_forecast_and_the_level_of_a_year_before(bed: Bed) -> None:
    """The forecast ends above what is used now, and nothing is drawn beyond the size of the devices."""
    result = trend(bed.catalogue, bed.filesystem, bed.now, 180)
    used = both_forecasts(bed.catalogue, bed.filesystem, bed.now)[1]
    context = trend_context(bed.catalogue, bed.filesystem, result, 0.9, used)
    tree = drawing(trend_charts.trend_chart("allocated", result, BERLIN, context))
    words = [text.text for text in tree.iter(f"{SVG}text")]
    assert "limit 90%" in words
    assert "forecast of used" in words
    last = tree.attrib["data-rows"].split(";")[-1].split("|")
    assert last[1] > f"{bed.now.astimezone(BERLIN):%Y-%m-%d %H:%M}"
    assert re.fullmatch(r"[\d.]+ TiB \([\d.]+ TiB to [\d.]+ TiB\)", last[-1])
    assert isinstance(used, FullForecast)
    assert range_ahead(used, bed.now, used.now, [bed.now + timedelta(days=3650)]) == [(float(used.size),) * 3]


def test_the_level_of_a_year_before_is_that_of_the_last_sample_until_then() -> None:
    start = datetime(2025, 6, 1, tzinfo=UTC)
    samples = [sample(start + timedelta(days=day), used=day) for day in (0, 1, 2, 9)]
    asked = [start + timedelta(days=365 + day, hours=3) for day in (-1, 0, 1, 5, 9)]
    assert year_before(samples, asked) == [None, 0, 1, None, 9]


def test_where_samples_are_missing_the_line_has_a_gap_and_the_day_says_so(bed: Bed, tmp_path: Path) -> None:
    start = datetime(2026, 6, 1, tzinfo=UTC)
    with Catalogue.open(tmp_path / "state") as catalogue:
        for day in (0, 1, 2, 3, 10, 11, 12):
            daily = sample(start + timedelta(days=day), filesystem="x", orphans=day)
            _keep(catalogue, daily)
        result = trend(catalogue, "x", start + timedelta(days=13), 30)
    drawn = drawing(trend_charts.trend_chart("unused", result, BERLIN))
    assert len(list(drawn[0].iter(f"{SVG}path"))) == 2
    empty = day_view(bed.catalogue, bed.filesystem, BERLIN, bed.now, (bed.now - timedelta(days=3000)).date())
    assert not empty.has_samples
    assert "no samples" in day_charts.words("written", empty, BERLIN)
    assert "no samples" in day_charts.day_chart("written", empty, BERLIN)


def _keep(catalogue: Catalogue, sample: Sample) -> None:
    catalogue.add_sample(sample.filesystem, lambda _: sample)


def test_of_what_waited_between_two_points_the_most_is_shown(tmp_path: Path) -> None:
    start = datetime(2026, 6, 1, tzinfo=UTC)
    with Catalogue.open(tmp_path / "state") as catalogue:
        for minute, orphans in ((0, 0), (5, 90), (10, 100), (15, 0), (65, 7)):
            taken = sample(start + timedelta(minutes=minute), filesystem="x", orphans=orphans)
            _keep(catalogue, taken)
        result = trend(catalogue, "x", start + timedelta(days=7), 7)
    assert [(point.orphans, point.most_orphans) for point in result.points] == [(0, 100), (7, 7)]


def test_a_part_of_a_day_has_its_slots_and_the_whole_days_totals(bed: Bed) -> None:
    whole = day_view(bed.catalogue, bed.filesystem, BERLIN, bed.now, None)
    since, until = whole.start + timedelta(hours=2, minutes=1), whole.start + timedelta(hours=3)
    part = part_of_day(whole, since, until)
    assert (part.start, part.end) == (whole.start + timedelta(hours=2), until)
    assert part.slots == whole.slots[24:36]
    assert all(part.start <= phase.start < phase.end <= part.end for phase in part.phases)
    assert part.sums == whole.sums
    assert part_of_day(whole, whole.end, whole.end + timedelta(hours=1)) == whole
