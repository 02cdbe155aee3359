"""Small problems that a new user of the dashboard found."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from flask.testing import FlaskClient

from btrkeep.catalogue import Catalogue, FreeSpaceScore, Sample
from btrkeep.charts.frame import number_scale
from btrkeep.charts.svg import IN_PAGE
from btrkeep.config import HostConfig
from btrkeep.serving.viewer import Viewer
from tests.beds.made_catalogue import made_catalogue
from tests.web.made import DAY, EVENING, FILESYSTEM, NOW, backup, client, run, write
from web.app import page_of
from web.dashboard_settings import Settings
from web.files.data import Which, one_before
from web.files.page import backup_day, local_time
from web.hosts.data import every_row
from web.hosts.host import host_page
from web.pool.data import USUAL, Trend, pool_now, shortest_span, trend
from web.pool.page import Bar, bar_chart
from web.source import Caches, RequestContext

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("path", "page"),
    [
        ("/", "overview"),
        ("/overview/night", "overview"),
        ("/hosts/web1", "hosts"),
        ("/files/web1/versions", "hosts"),
        ("/restore/web1", "hosts"),
        ("/pool/balance", "pool"),
        ("/account", "account"),
        ("/poolish", "poolish"),
    ],
)
def test_every_page_belongs_to_one_entry_of_the_navigation(path: str, page: str) -> None:
    assert page_of(path) == page


@pytest.mark.slow
def test_the_navigation_marks_where_one_is_on_pages_of_errors_too(tmp_path: Path) -> None:
    write(tmp_path, [HostConfig("web1")], [backup("web1", EVENING)]).close()
    visitor = client(tmp_path)
    for path in ("/hosts", "/hosts/nobody", "/files/web1", "/restore/web1?path=/etc", "/files/nobody"):
        entries = r'<a href="([^"]+)" aria-current="page">(?:Overview|Hosts|Pool|Jobs|Log|Doctor)<'
        marked = re.findall(entries, visitor.get(path).text)
        assert marked == ["/hosts"], path


@pytest.mark.slow
def test_while_the_root_service_is_away_a_page_says_so_and_can_be_tried_again(tmp_path: Path) -> None:
    write(tmp_path, [HostConfig("web1")], [backup("web1", EVENING)]).close()
    answer = client(tmp_path).get("/files/web1?path=%2Fcaf%E9")
    assert answer.status_code == 503
    assert '<a href="">Try again</a>' in answer.text  # the same address, whatever bytes are in it
    assert '<a href="">' not in client(tmp_path).get("/nowhere").text


def test_two_backups_of_a_minute_do_not_look_the_same() -> None:
    assert backup_day("2026-11-20T220003Z", BERLIN) != backup_day("2026-11-20T220041Z", BERLIN)


def test_two_backups_of_the_hour_that_comes_twice_do_not_look_the_same() -> None:
    summer, winter = datetime(2026, 10, 25, 0, 30, tzinfo=UTC), datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    assert [local_time(moment, BERLIN) for moment in (summer, winter)] == ["2026-10-25 02:30:00 CEST", "2026-10-25 02:30:00 CET"]
    assert local_time(winter + timedelta(hours=2), BERLIN) == "2026-10-25 04:30:00"


def test_two_backups_are_compared_when_nothing_else_is_said_the_last_with_the_one_before() -> None:
    whiches = [Which(name, state, NOW) for name, state in (("c", "suspect"), ("b", "complete"), ("a", "complete"))]
    assert [one_before(whiches, name) for name in ("latest", "c", "b", "a", "x")] == ["a", "b", "a", "a", "x"]
    assert one_before([], "latest") == "latest"


def sample(taken: datetime, **more: Any) -> Sample:
    values = {"size": 10 << 40, "allocated": 8 << 40, "used": 6 << 40, "orphans": 3, "score": None, "scored": None}
    rest = {"options": "", "activity": "", "seconds": 0.0, "read": 0, "written": 0}
    peaks = {"peak_read": 0.0, "peak_written": 0.0, "pressure": {}}
    return Sample(FILESYSTEM, taken, "raw", spaces={}, devices={}, **{**values, **rest, **peaks, **more})


def add(catalogue: Catalogue, sample: Sample) -> None:
    catalogue.add_sample(FILESYSTEM, lambda _: sample)


@pytest.mark.parametrize(
    ("history", "days"),
    [
        (timedelta(minutes=3), 1),
        (timedelta(hours=30), 7),
        (timedelta(days=6), 7),
        (timedelta(days=20), 30),
        (timedelta(days=100), 180),
        (timedelta(days=900), 180),
    ],
)
def test_charts_begin_with_the_shortest_span_that_holds_the_history(tmp_path: Path, history: timedelta, days: int) -> None:
    with Catalogue.open(tmp_path) as catalogue:
        for part in range(11):
            add(catalogue, sample(NOW - history * part / 10))

        def of(span: int) -> Trend:
            return trend(catalogue, FILESYSTEM, NOW, span)

        assert shortest_span(of) == days


def test_without_any_history_the_span_is_the_usual_one(tmp_path: Path) -> None:
    with Catalogue.open(tmp_path) as catalogue:
        assert shortest_span(lambda days: trend(catalogue, FILESYSTEM, NOW, days)) == USUAL


def test_a_chart_of_three_bars_is_narrow() -> None:
    def width(count: int) -> int:
        drawn = bar_chart("x", [Bar("1", 1.0)] * count, number_scale(1), "value")
        bars = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', drawn)
        return max(round(float(x) + float(wide)) for x, wide in bars)

    assert width(3) < IN_PAGE.width / 2 < IN_PAGE.width - 40 < width(30) < IN_PAGE.width


def test_the_score_of_the_pool_is_the_last_one_of_any_program(tmp_path: Path) -> None:
    with Catalogue.open(tmp_path) as catalogue:
        catalogue.add_sample(FILESYSTEM, lambda _: sample(NOW, score=1139.0, scored=NOW - DAY))
        result = pool_now(catalogue, FILESYSTEM)
        assert result
        assert result.score == 1139
        catalogue.add_score(FreeSpaceScore(FILESYSTEM, NOW, 1, 100, 60, 5, 33, 22.0, 0, 9, 8, ()))
        result = pool_now(catalogue, FILESYSTEM)
        assert result
        assert (result.score, result.scored) == (22, NOW)


@pytest.mark.slow
def test_what_has_expired_on_the_made_up_site_is_what_its_retention_lets_go(tmp_path: Path) -> None:
    """Otherwise every host's page there, and every picture of one in the manual, would advise to ask the pool."""
    made = made_catalogue(tmp_path / "state", 12, hostile=False)
    source = RequestContext(Settings("main", made.state, made.state, made.state), Caches())
    pages = [host_page(source, Viewer("a", "viewer"), row.host) for row in every_row(source)]
    source.close()
    assert sum(backup_row.state == "expired" for page in pages if page for backup_row in page.backups) > 0
    assert [page.row.host for page in pages if page and page.in_doubt] == []


@pytest.mark.slow
def test_a_path_of_thousands_of_characters_does_not_push_the_others_off_the_page(tmp_path: Path) -> None:
    made = made_catalogue(tmp_path / "state", 40)
    with Catalogue.open(made.state) as catalogue:
        first = catalogue.progress()[0]
        catalogue.put_progress(_with(first, path="/srv/" + "x" * 3000, share=2.5))
    text = client(made.state).get("/overview/running").text
    assert "x" * 500 not in text
    assert 'value="1.000"' in text
    assert "100% of the files" in text


def _with(answer: Any, **changes: Any) -> Any:
    from dataclasses import replace

    return replace(answer, **changes)


@pytest.fixture
def visitor(tmp_path: Path) -> FlaskClient:
    write(tmp_path, [HostConfig("web1", paths=("/x",))], [backup("web1", EVENING)], [run("web1", EVENING)]).close()
    return client(tmp_path)


class ByName:
    """An agent whose folder is too large to be sorted."""

    def ask(self, verb: str, **_: Any) -> Any:
        numbers = dict.fromkeys(("size", "allocated", "uid", "gid", "mtime_ns", "inode", "links"), 0)
        entry = {"path": "/x", "name": "x", "kind": "folder", "mode": "0755", "mtime": None, "target": None, **numbers}
        which = {"name": "2026-11-20T210000Z", "state": "complete", "started": "2026-11-20T21:00:00Z"}
        if verb == "versions":
            return {"path": "/x", "by_content": False, "versions": [], "gone": [], "backups": []}
        order = {"sort": "name", "descending": False}
        return {"backup": which, "path": "/x", "entry": entry, "entries": [], "total": 10_000_000, **order}


def test_a_table_that_could_not_be_sorted_says_so(visitor: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("web.files.page.root_service", ByName)
    page = visitor.get("/files/web1?path=/x&sort=-time").text
    assert "too many names to sort them by time" in page
    assert re.findall(r'aria-sort="(\w+)"[^>]*><a [^>]*>([A-Z]\w+)<', page) == [("ascending", "Name")]
    assert "too many names" not in visitor.get("/files/web1?path=/x").text
