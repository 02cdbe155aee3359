"""Tables as CSV: without it a report of all hosts is typed by hand, and a hostile name runs as a formula in a spreadsheet."""

import csv
import io
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from flask import Response
from werkzeug.test import TestResponse

import web.app
from btrkeep.config import HostConfig
from tests.web.made import DAY, EVENING, NOW, backup, client, run, write
from web.csv_tables import as_csv, harmless, tables_of
from web.request_values import is_csv
from web.source import RequestContext


@pytest.fixture(autouse=True)
def _morning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RequestContext, "now", NOW)


def rows(response: TestResponse) -> list[dict[str, str]]:
    assert response.status_code == 200
    assert response.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    return list(csv.DictReader(io.StringIO(response.data.decode("utf-8-sig"))))


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """120 hosts, more than a page has; the first failed for a reason that is a formula."""
    names = [f"host{number:03}" for number in range(119)] + ["mine1"]
    hosts = [HostConfig(name, group="=1+1", paths=("/srv",)) for name in names]
    bad = run("host000", EVENING, "failed", error='=HYPERLINK("http://x","' + "long " * 9 + '")')
    write(tmp_path / "state", hosts, [backup(name, EVENING - DAY) for name in names], [bad]).close()
    return tmp_path / "state"


def test_a_list_is_downloaded_with_all_its_rows_and_with_numbers_for_programs(state: Path) -> None:
    browser = client(state)
    page = browser.get("/hosts?sort=host").text
    assert '<a href="?sort=host&amp;csv=1" download>Hosts</a>' in page
    assert "host119" not in page
    response = browser.get("/hosts?sort=host&csv=1")
    assert response.headers["Content-Disposition"] == 'attachment; filename="btrkeep-main-hosts-1.csv"'
    table = rows(response)
    assert [row["Host"] for row in table] == [*(f"host{number:03}" for number in range(119)), "mine1"]
    first = table[0]
    assert (first["State"], first["Size"], first["New in last backup"]) == ("failing", str(2 << 30), str(5 << 20))
    assert first["Last complete"] == (EVENING - DAY).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert first["Group"] == "'=1+1"
    assert first["Remark"].startswith("'=HYPERLINK(")


def test_the_list_of_proofs_is_downloaded_with_all_its_rows(state: Path) -> None:
    assert len(rows(client(state).get("/proof?csv=2"))) == 120


def test_a_filter_of_the_page_is_one_of_the_file(state: Path) -> None:
    assert [row["Host"] for row in rows(client(state).get("/hosts?state=failing&csv=1"))] == ["host000"]


def test_a_limited_user_downloads_own_hosts_alone(state: Path) -> None:
    mine = client(state, "viewer", ("mine*",))
    assert [row["Host"] for row in rows(mine.get("/hosts?csv=1"))] == ["mine1"]
    for address in ("/pool?csv=1", "/proof?csv=1", "/log?csv=1", "/jobs?csv=1", "/hosts?q=host&csv=1"):
        assert b"host000" not in mine.get(address).data, address
    assert mine.get("/hosts/host000?csv=1").status_code == 404
    assert client(state).get("/hosts/host000?csv=1").status_code == 200


@pytest.mark.parametrize("wanted", ["0", "7", "-1", "x", "9" * 400, "²"])
def test_a_table_that_is_not_there_is_an_error_and_no_page(state: Path, wanted: str) -> None:
    response = client(state).get("/hosts", query_string={"csv": wanted})
    assert (response.status_code, response.mimetype) == (404, "text/plain")


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("=1+1", "'=1+1"),
        ("+49 30 1", "'+49 30 1"),
        ("-rm -rf", "'-rm -rf"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("-12.5", "-12.5"),
        ("+3", "+3"),
        ("-1+1|cmd", "'-1+1|cmd"),
        ("12", "12"),
        ("a;=1+1", "a;'=1+1"),  # where a comma is the decimal sign, a spreadsheet divides lines at semicolons
        ('a; "@SUM(A1)";b', 'a;\' "@SUM(A1)";b'),
        ("", ""),
    ],
)
def test_no_cell_is_a_formula(cell: str, written: str) -> None:
    assert harmless(cell) == written


def test_tables_have_the_name_of_their_region_caption_or_heading() -> None:
    html = (
        '<h2 id="a">First &amp; <b>last</b></h2><p></p><table><tr></tr></table>'
        '<div class="wide" aria-label="Hosts"><table class="x"></table></div><table aria-label="Own"><caption>No</caption></table>'
        "<table><caption>Said</caption></table>"
    )
    assert tables_of(html) == ["First &amp; last", "Hosts", "Own", "Said"]


def test_every_table_of_a_hosts_page_can_be_downloaded(state: Path) -> None:
    browser = client(state)
    (row,) = rows(browser.get("/hosts/mine1?csv=2"))
    assert row["Backup"].startswith((EVENING - DAY).strftime("%Y-%m-%dT%H:%M:%SZ"))
    assert (row["Took"], row["Files"], row["Size"]) == (str(timedelta(minutes=10).total_seconds()), "1000", str(2 << 30))
    assert "Actions" not in row


def test_one_table_is_made_at_a_time_and_pages_do_not_wait(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of 3,000 hosts takes seconds of a processor: a script that asks for many of them would stop the pages."""
    monkeypatch.setattr("web.csv_tables._WAITS", 0.05)
    browser, meanwhile = client(state), list[Any]()
    written, others = as_csv, browser.application.test_client()

    def slow(response: Response, name: str) -> Response:
        if is_csv() and not meanwhile:
            meanwhile.append(response)  # before the requests, which come here too
            meanwhile.extend(others.get(address) for address in ("/hosts?csv=1", "/hosts"))
        return written(response, name)

    monkeypatch.setattr(web.app, "as_csv", slow)
    cookie = browser.get_cookie("btrkeep")
    assert cookie
    others.set_cookie("btrkeep", cookie.value)
    assert browser.get("/hosts?csv=1").status_code == 200
    _, refused, page = meanwhile
    assert (refused.status_code, refused.headers["Retry-After"], page.status_code) == (503, "10", 200)
    assert browser.get("/hosts?csv=1").status_code == 200
