"""The pages of the pool, jobs, log and doctor of an invented site: complete, linkable, and without errors for any request."""

import gzip
import io
import json
import re
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from PIL import Image

from btrkeep.units import format_time, parse_time
from tests.beds.made_catalogue import shared_site
from tests.web.made import client
from web.service_client import ServiceAnswer, answers

PAGES = (
    "/pool", "/pool?days=7", "/pool/day", "/pool/day?date=2020-02-29", "/pool/score", "/pool/score?days=30", "/pool/heatmap",
    "/pool/heatmap?sort=physical&curve=snake&colour=score", "/pool/timelapse", "/pool/timelapse?colour=age", "/pool/blockgroups",
    "/pool/blockgroups?order=vaddr&offset=100", "/pool/balance", "/pool/expiry", "/pool/expiry?days=7", "/jobs",
    "/jobs?days=366&kind=expire&kind=balance", "/log", "/log?outcome=failed", "/log?host=web0000.example.org&since=2026-01-01",
    "/doctor",
)  # fmt: skip
HUGE = "9" * 40


@dataclass
class Bed:
    """Three users who see the same site; `customer` sees the hosts web*."""

    state: Path
    operator: FlaskClient
    viewer: FlaskClient
    customer: FlaskClient

    def rows(self, query: str) -> list[Any]:
        plain = sqlite3.connect(f"file:{self.state / 'catalogue.sqlite'}?mode=ro", uri=True)
        try:
            return plain.execute(query).fetchall()
        finally:
            plain.close()


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Bed:
    state = shared_site(tmp_path_factory).state
    people = [client(state), client(state, "viewer"), client(state, "viewer", ("web*",))]
    return Bed(state, *people)


def plain(page: str) -> str:
    """Returns the text of a page, without its markup."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", page)))


@pytest.mark.parametrize("path", PAGES)
def test_every_page_answers_an_operator_and_a_viewer_and_is_free_of_foreign_markup(bed: Bed, path: str) -> None:
    answer = bed.viewer.get(path)
    assert answer.status_code == 200, plain(answer.text)[:500]
    page = answer.text
    assert "<img src=x" not in page
    assert "<script>" not in page
    assert not re.search(r"\sstyle\s*=|\son\w+\s*=\s*[\"']", page)
    assert all(re.search(r'\salt="[^"]', image) for image in re.findall(r"<img\b[^>]*>", page))
    assert len(re.findall("<h1>", page)) == 1


@pytest.mark.slow
def test_all_links_of_the_pages_lead_somewhere(bed: Bed) -> None:
    """If links differ only in their numbers, the test follows only one of them."""
    links: dict[str, str] = {}
    for path in PAGES:
        page = bed.viewer.get(path).text
        for link in re.findall(r'(?:href|src|srcset|data-map)="(/(?:pool|jobs|log|doctor)[^"#]*)', page):
            links.setdefault(re.sub(r"\d+", "0", link.partition("&amp;")[0]), unescape(link))
    assert len(links) > 30
    assert {link: status for link in links.values() if (status := bed.viewer.get(link).status_code) not in (200, 302)} == {}


@pytest.mark.parametrize("path", [path for path in PAGES if path.startswith(("/pool", "/doctor"))])
def test_who_is_limited_to_hosts_sees_nothing_of_the_pool_as_a_whole(bed: Bed, path: str) -> None:
    assert bed.customer.get(path).status_code == 403


def test_who_is_limited_to_hosts_sees_their_runs_alone(bed: Bed) -> None:
    others = [host for (host,) in bed.rows("select distinct host from run") if not host.startswith("web")]
    own = [host for (host,) in bed.rows("select distinct host from run") if host.startswith("web")]
    assert others
    for path in ("/jobs", "/jobs?days=366", "/log", "/log?outcome=failed", f"/log?host={others[0]}", "/log?host=database"):
        text = bed.customer.get(path).text
        for typed in (f'value="{others[0]}"', f"host={others[0]}") if "host=" in path else ():  # in the field and in links
            text = text.replace(typed, "")
        assert [host for host in others if host in text] == []
    assert own[0] in bed.customer.get(f"/log?host={own[0]}").text
    [[theirs]] = bed.rows(f"select max(id) from run where host='{others[0]}'")
    [[mine]] = bed.rows(f"select max(id) from run where host='{own[0]}'")
    night = bed.rows("select min(id) from run where night")[0][0]
    assert bed.customer.get(f"/log/{mine}").status_code == 200
    for path in (f"/log/{theirs}", f"/jobs/night-{night}", "/jobs/expire-1", "/jobs/balance-1", "/pool/picture.png"):
        assert bed.customer.get(path).status_code in (403, 404)


@pytest.mark.parametrize(
    "path",
    [
        "/pool/heatmap?picture=../../../etc/passwd", "/pool/heatmap/..%2f..%2fetc%2fpasswd.png", "/pool/heatmap/x.json",
        "/pool/timelapse?picture=<script>", "/pool/blockgroups?picture=fsid.heatmap", "/pool/blockgroup/none",
        "/pool/blockgroup/-1",
        f"/pool/blockgroup/{HUGE}", "/pool/blockgroup/0xzz", "/pool/blockgroup/1e3", "/pool/blockgroup/1/extents.pngx",
        "/pool/blockgroup/x/extents.png", f"/pool/balance/{HUGE}", "/pool/balance/x", f"/log/{HUGE}", "/log/-1",
        f"/jobs/night-{HUGE[:15]}", "/jobs/expire-999999",
        "/pool/blockgroup/\u0661",
    ],
)  # fmt: skip
def test_what_is_not_there_is_said_to_be_not_there(bed: Bed, path: str) -> None:
    answer = bed.operator.get(path)
    assert answer.status_code == 404
    assert "root:x:0" not in answer.text


@pytest.mark.parametrize("path", ["/pool/day?date=2026-02-30", "/pool/day?date=<b>", "/log?since=never"])
def test_a_date_that_is_none_is_refused_with_words(bed: Bed, path: str) -> None:
    answer = bed.operator.get(path)
    assert answer.status_code == 400
    assert "write the date like" in answer.text or "write it like" in answer.text


@pytest.mark.parametrize(
    "path",
    [
        f"/pool?days={HUGE}", "/pool?days=-1", "/pool?days=x", f"/pool/blockgroups?offset={HUGE}&order=<b>", f"/log?before={HUGE}",
        "/log?outcome=<script>alert(1)</script>", "/log?host=%3Cimg%20src%3Dx%3E", "/jobs?kind=x&days=x", f"/jobs?days={HUGE}",
        f"/pool?from={HUGE}&until={HUGE}", "/pool?from=1&until=x", f"/pool/day?from=0&until={HUGE}", f"/pool?from=-1&until={HUGE}",
        f"/pool/heatmap?size={HUGE}&sort=x&curve=x&colour=x", "/log?host=%00", "/log?host=%ff",
    ],
)  # fmt: skip
def test_numbers_and_choices_that_are_none_are_as_if_they_were_not_there(bed: Bed, path: str) -> None:
    answer = bed.operator.get(path)
    assert answer.status_code == 200
    assert "<img src=x>" not in answer.text
    assert "<script>alert" not in answer.text


@pytest.mark.slow
def test_a_picture_is_no_larger_than_it_may_be_and_is_sent_once(bed: Bed) -> None:
    for wish, edge in (("", 1024), (f"?size={HUGE}", 2048), ("?size=0", 64), ("?size=8&sort=physical&colour=score", 256)):
        answer = bed.operator.get(f"/pool/picture.png{wish}")
        with Image.open(io.BytesIO(answer.data)) as image:
            assert image.size == (edge, edge)
    again = bed.operator.get("/pool/picture.png", headers={"If-None-Match": bed.operator.get("/pool/picture.png").headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")


def test_the_map_of_a_picture_is_json_for_who_cannot_unpack_it_too(bed: Bed) -> None:
    path = re.search(r'data-map="([^"]+)', bed.operator.get("/pool/heatmap").text)
    assert path
    answer = bed.operator.get(unescape(path[1]))
    assert answer.json
    assert answer.json["size"] == 10
    packed = bed.operator.get(unescape(path[1]), headers={"Accept-Encoding": "gzip"})
    assert packed.headers["Content-Encoding"] == "gzip"
    assert json.loads(gzip.decompress(packed.data)) == answer.json
    assert len(packed.data) < len(answer.data) / 2


def test_pages_lead_from_moment_to_moment_without_a_script(bed: Bed) -> None:
    seen, path = [], "/pool/timelapse"
    while path:
        page = bed.operator.get(path).text
        seen += re.findall(r"(\d+) of (\d+)</span>", page)
        back = re.search(r'rel="prev" href="([^"]+)"', page)
        path = unescape(back[1]) if back else ""
    count = len(list((bed.state / "pictures").glob("*.heatmap")))
    assert seen == [(str(number), str(count)) for number in range(count, 0, -1)]


def test_pages_of_the_log_lead_to_older_ones_with_the_filter_kept(bed: Bed) -> None:
    page = bed.operator.get("/log?outcome=complete").text
    older = re.search(r'rel="next" href="([^"]+)"', page)
    assert older
    assert "outcome=complete" in unescape(older[1])
    first, second = (set(re.findall(r'href="/log/(\d+)"', text)) for text in (page, bed.operator.get(unescape(older[1])).text))
    assert len(first) == 50
    assert first.isdisjoint(second)
    assert min(map(int, first)) > max(map(int, second))


def test_a_run_shows_what_rsync_said_to_the_letter_and_harmlessly(bed: Bed) -> None:
    [answer, *_] = bed.rows("select id, exit_code, meaning, error from run where error like '%script%' or meaning like '%script%'")
    page = bed.operator.get(f"/log/{answer[0]}").text
    assert re.search(rf"rsync {answer[1]}: .*transferred \(code {answer[1]}\)", plain(page))
    assert "&lt;script&gt;" in page
    assert "<script>" not in page


def test_a_host_whose_name_is_only_remembered_in_part_is_offered(bed: Bed) -> None:
    assert "/log?host=mail0002.example.org" in bed.operator.get("/log?host=mail0002").text


def test_a_chosen_part_of_the_time_is_shown_and_can_be_left(bed: Bed) -> None:
    [[newest]] = bed.rows("select max(taken) from sample")
    until = parse_time(newest)
    words = {"from": int(until.timestamp()) - 7200, "until": int(until.timestamp())}
    for path, back in (("/pool", "/pool"), ("/pool/day", "/pool/day"), ("/pool/score", "/pool/score")):
        page = bed.operator.get(path, query_string=words).text
        assert f'<a href="{back}">Show everything</a>' in page, path
        assert "Show everything" not in bed.operator.get(path).text
    rows = re.findall(r'data-rows="([^"]*)"', bed.operator.get("/pool", query_string=words).text)
    shown = [line.split("|")[1] for line in rows[0].split(";")]
    taken = bed.rows(f"select taken from sample where taken >= '{format_time(until - timedelta(hours=2))[:19]}'")
    assert len(shown) == len(taken) > 20, "each sample of five minutes"


def test_a_lane_of_a_day_leads_to_the_job_that_ran_then(bed: Bed) -> None:
    page = bed.operator.get("/pool/day").text
    lanes = dict(re.findall(r'<a href="(/jobs/at[^"]*)" aria-label="(\w+), ', page))
    assert {"expire", "balance"} <= set(lanes.values())
    jobs = set()
    for address, kind in lanes.items():
        answer = bed.operator.get(unescape(address))
        assert answer.status_code == 302
        assert re.match(rf"/jobs/{'night' if kind == 'backup' else kind}-\d+$|/jobs\?", answer.location), (kind, answer.location)
        jobs |= {kind} if answer.location.startswith(f"/jobs/{kind}-") else set()
    assert {"expire", "balance"} & jobs, lanes  # which jobs are within the day depends on the hour in which the site was made
    assert bed.operator.get(f"/jobs/at?kind=x&from={HUGE}&until=-").status_code == 302
    assert bed.customer.get(f"/jobs/at?kind=expire&from=0&until={HUGE}").location.startswith("/jobs?")


def test_without_the_root_service_the_pages_say_so_and_the_rest_is_there(bed: Bed) -> None:
    page = bed.operator.get("/jobs").text
    assert "cannot be listed now" in plain(page)
    assert "Everything that ran" in page
    assert bed.operator.get("/jobs/20261121T210000Z-0a1b2c3d").status_code == 503
    assert bed.operator.get("/pool/blockgroup/0/extents.png").status_code == 502


def test_what_asks_the_root_service_wants_a_form_of_this_site(bed: Bed) -> None:
    for path in ("/doctor", "/pool/balance/plan"):
        assert bed.operator.post(path).status_code == 400
        assert bed.customer.post(path).status_code in (400, 403)
    assert bed.operator.get("/pool/balance/plan").status_code == 405


def test_findings_are_told_the_worst_first_with_commands_as_text(bed: Bed) -> None:
    note = {"name": "mount-nossd", "severity": "note", "what": "mounted with ssd", "why": "holes"}
    error = {"name": "state-<b>", "severity": "error", "what": "errors & <script>", "commands": ["a 'b' && c"], "fixable": True}
    rows = [note, error]
    app = bed.operator.application
    with app.app_context():
        actual_answers = answers()
    blind = [{"name": "clock", "why": "a service may not <ask>"}]
    answer = {
        "filesystem": "x",
        "checks": ["mount-nossd", "state-<b>", "layers", "clock"],
        "findings": rows,
        "not_looked_at": blind,
    }
    actual_answers._results.get("doctor", lambda: ServiceAnswer(datetime.now(UTC), answer))
    try:
        page = bed.operator.get("/doctor").text
    finally:
        actual_answers._results.drop()
    assert page.index("errors &amp; &lt;script&gt;") < page.index("mounted with ssd")
    assert "a &#39;b&#39; &amp;&amp; c" in page
    assert "<script>" not in page
    assert "4 checks: 1 error, 1 note; 1 not checked." in plain(page)
    assert "clock: a service may not &lt;ask&gt;" in page
    assert "1 check passed" in plain(page)
    assert "<li>clock</li>" not in page, "it is not among those that passed"
