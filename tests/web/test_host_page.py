"""A host's page: its content for each kind of user, and the message for an unknown host."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from btrkeep.config import HostConfig, Retention
from btrkeep.config.values import parse_window
from btrkeep.decisions.calendar_strip import GOES, HELD, KINDS
from btrkeep.units import backup_name
from tests.web.made import BERLIN, DAY, EVENING, NOW, backup, client, run, token, write
from web.hosts.backup_rows import Mark, calendar
from web.source import RequestContext

NIGHTS = [EVENING - number * DAY for number in range(20)]


@pytest.fixture(autouse=True)
def _morning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RequestContext, "now", NOW)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("host") / "state"
    policy = Retention(daily=14, weekly=12, monthly=12, min_keep=3, grace=86400.0)
    hosts = [
        HostConfig(
            "web1",
            "front",
            "root@web1",
            paths=("/etc", "/srv/<b>"),
            window=parse_window("22:00-06:00"),
            retention=policy,
            quota=5 << 30,
        ),
        HostConfig("web2", retention=policy),
        HostConfig("db1", retention=policy, enabled=False, optional=True),
        HostConfig("web3", retention=policy, fault='main.d/web3.toml:3: host.web3.group = "x": there is no such group'),
    ]
    backups = [backup("web1", started, bytes=(100 - place) << 20) for place, started in enumerate(NIGHTS)]
    backups[3] = replace(backups[3], held_why="the audit")
    backups[4] = replace(backups[4], held_until=datetime(2026, 12, 31, 23, tzinfo=UTC), held_why="the year")
    backups += [backup("web1", EVENING + timedelta(hours=3), "partial", base=backup_name(EVENING)), backup("old1", EVENING)]
    backups += [
        backup("web3", EVENING),
        backup("web2", EVENING - DAY),
        backup("web2", EVENING, "suspect", warnings=("too few files", "<i>")),
    ]
    runs = [run("web1", started) for started in reversed(NIGHTS)]
    output = (*(f"line {number} of rsync" for number in range(20)), "ssh: connect to host web1 port 22: Connection refused")
    output = (*output, "rsync error: unexplained error (code 255)")
    runs.append(
        run("web1", EVENING + timedelta(hours=3), "partial", exit_code=255, meaning="ssh could not connect", last_lines=output)
    )
    runs += [run("ghost1", EVENING, "failed"), run("web3", EVENING)]
    with write(path, hosts, backups, runs) as catalogue:
        catalogue.set_fact("alive", '{"web1":3221225472}')
    return path


@pytest.fixture(scope="module")
def olga(state: Path) -> FlaskClient:
    return client(state)


def words(page: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", page.partition('id="main"')[2]).replace("&#39;", "'").split())


def test_a_host_that_is_left_out_is_not_said_to_have_had_a_bad_run(olga: FlaskClient) -> None:
    page = olga.get("/hosts/web3").text
    assert "not backed up until its configuration is corrected; the newest complete backup began 11h ago" in words(page)
    assert "its configuration has a mistake: `backupd check` shows it" in words(page)
    assert "The newest run" not in words(page)
    assert "web3.toml" not in page


def test_the_head_says_how_it_is_and_what_is_set(olga: FlaskClient) -> None:
    shown = words(olga.get("/hosts/web1").text)
    assert "The newest run made no complete backup; the newest complete backup began 11h ago. Next due Sat 21 Nov 22:00" in shown
    assert "daily 14, weekly 12, monthly 12; min_keep 3, grace 1d" in shown
    assert "Its backups use 3.00 GiB of space." in shown
    assert "of space" not in words(olga.get("/hosts/web2").text)
    settings = words(olga.get("/hosts/web1?tab=settings").text)
    for term in ("Quota 5 GiB", "root@web1", "22:00-06:00", "/etc", "/srv/&lt;b&gt;"):
        assert term in settings


def test_each_backup_says_why_it_is_kept_and_how_it_is_held(olga: FlaskClient) -> None:
    page = olga.get("/hosts/web1").text
    rows = {name: words('id="main"' + row) for name, row in re.findall(r'<tr id="b-([^"]+)">(.*?)</tr>', page, re.DOTALL)}
    assert len(rows) == 20
    newest = rows[backup_name(EVENING)]
    assert "newest complete, min_keep 1 of 3, base of the run in progress" in newest
    assert "daily 1 of 14" in newest
    assert "held: the audit" in rows[backup_name(NIGHTS[3])]
    assert "Release" in rows[backup_name(NIGHTS[3])]
    local = "held until 1 Jan 2027 00:00: the year"
    assert local in rows[backup_name(NIGHTS[4])], "in the zone of the page's other times"
    assert local in words(olga.get(f"/hosts/web1/release?backup={backup_name(NIGHTS[4])}").text)
    assert "held until 2026-12-31T23:00:00Z: the year" in olga.get("/api/v1/hosts/web1").text
    gone = rows[backup_name(NIGHTS[15])]
    assert "expires Sun 22 Nov 09:00 : no rule keeps it" in gone, "in the zone of the page's other times"
    assert "(.working)" in page


def test_the_runs_have_their_exit_status_meaning_and_last_lines(olga: FlaskClient) -> None:
    shown = words(olga.get("/hosts/web1?tab=runs").text)
    assert "rsync 255: ssh could not connect" in shown
    assert "Connection refused rsync error: unexplained error (code 255)" in shown


def test_the_reason_the_last_ten_lines_and_the_action_are_above_the_tabs(olga: FlaskClient) -> None:
    for tab in ("", "?tab=trends", "?tab=runs", "?tab=settings"):
        above, tabs, _ = olga.get(f"/hosts/web1{tab}").text.partition('<nav class="tabs"')
        assert tabs
        assert "line 12 of rsync line 13 of rsync" in words(above), "the last ten"
        assert "line 11 of rsync" not in words(above)
        reason, output, action = (above.index(text) for text in ('class="note bad said"', "<pre", 'href="/hosts/web1/run"'))
        assert reason < output < action
    healthy = olga.get("/hosts/web3").text.partition('<nav class="tabs"')[0]
    assert "<pre" not in healthy, "its last run is complete"


def test_a_suspect_backup_is_accepted_from_the_head_of_its_host(olga: FlaskClient, state: Path) -> None:
    accept = f'href="/hosts/web2/accept?backup={backup_name(EVENING)}"'
    above = olga.get("/hosts/web2?tab=settings").text.partition('<nav class="tabs"')[0]
    assert accept in above
    assert "Accept" not in olga.get("/hosts/web1").text.partition('<nav class="tabs"')[0]
    assert "Accept" not in client(state, "viewer").get("/hosts/web2").text


def test_each_tab_has_an_address_and_only_its_own_content(olga: FlaskClient) -> None:
    contents = {"backups": 'class="calendar"', "trends": 'class="plots"', "runs": '<ol class="runs">', "settings": "22:00-06:00"}
    for tab in contents:
        address = "/hosts/web1" if tab == "backups" else f"/hosts/web1?tab={tab}"
        page = olga.get(address).text
        assert re.findall(r'<a href="([^"]*)" aria-current="page">(\w+)</a></li>', page)[-1] == (address, tab.capitalize())
        body = page.partition('<nav class="tabs"')[2]
        assert [name for name, text in contents.items() if text in body] == [tab]
    assert olga.get("/hosts/web1?tab=<b>").text.count('class="calendar"') == 1


def test_a_link_to_a_backup_leads_to_the_tab_that_lists_it(olga: FlaskClient) -> None:
    links = set(re.findall(r'made <a href="([^"]+)"', olga.get("/hosts/web1?tab=runs").text))
    assert f"/hosts/web1#b-{backup_name(EVENING)}" in links
    assert all(link.startswith("/hosts/web1#b-") for link in links)


def test_charts_tell_their_numbers_in_words(olga: FlaskClient) -> None:
    page = olga.get("/hosts/web1?tab=trends").text
    assert (
        "Size of 20 backups from 2026-11-01 to 2026-11-20: 81.0 MiB at first, 100 MiB now, 81.0 MiB at least, 100 MiB at most."
        in page
    )
    assert "Duration of each run, 20 runs from 2026-11-01 to 2026-11-20: 10m usually" in page
    assert re.findall(r"<circle [^>]*><title>2026-11-(\d\d): (\d+).0 MiB, \w+</title></circle>", page)[0] == ("01", "81")


def test_links_lead_to_the_files(olga: FlaskClient) -> None:
    page = olga.get("/hosts/web1").text
    assert f'href="/files/web1?path=%2F&amp;backup={backup_name(EVENING)}"' in page
    assert 'href="/files/web1/compare"' in page
    for address in set(re.findall(r'href="(/files/web1[^"]*)"', page)):
        assert olga.get(address.replace("&amp;", "&")).status_code in (200, 503), address  # 503: no root service runs here


def test_a_host_that_is_not_configured_any_more_says_so(olga: FlaskClient) -> None:
    shown = words(olga.get("/hosts/old1").text)
    assert "This host is not configured: nothing is backed up, and its backups are kept" in shown
    assert "no retention policy" in shown
    assert "Run now" not in shown


def test_a_host_that_was_only_tried_has_a_page(olga: FlaskClient) -> None:
    assert "There is no backup of this host yet." in words(olga.get("/hosts/ghost1").text)
    assert "failed for a reason" in words(olga.get("/hosts/ghost1?tab=runs").text)


def test_a_host_that_was_never_tried_has_a_page(olga: FlaskClient) -> None:
    shown = words(olga.get("/hosts/db1").text)
    assert "There is no complete backup yet, and it is not enabled, so nothing is due." in shown
    assert "There is no run of this host yet." in words(olga.get("/hosts/db1?tab=runs").text)


def test_an_unknown_host_is_not_found_and_near_names_are_named(olga: FlaskClient) -> None:
    answer = olga.get("/hosts/wbe1")
    assert answer.status_code == 404
    assert '<a href="/hosts/web1">web1</a>' in answer.text
    odd = olga.get("/hosts/%3Cscript%3Ealert(1)%3C%2Fscript%3E")
    assert odd.status_code == 404
    assert "<script>alert" not in odd.text


@pytest.mark.slow
def test_who_may_not_see_a_host_learns_nothing_of_it(state: Path) -> None:
    limited = client(state, "viewer", ("db*",))
    for path in ("/hosts/web1", "/hosts/old1"):
        answer, unknown = limited.get(path), limited.get("/hosts/xyz1")
        assert answer.status_code == unknown.status_code == 404
        assert words(answer.text).replace(path[7:], "NAME") == words(unknown.text).replace("xyz1", "NAME")
    assert "web1" not in limited.get("/hosts/web2").text.replace("/hosts/web2", "")
    for path in ("/hosts/web1/running", "/hosts/web1/run"):
        assert limited.get(path).status_code in (403, 404)
    assert limited.get("/hosts/db1").status_code == 200


@pytest.mark.slow
def test_only_operators_are_offered_and_given_what_changes_something(state: Path) -> None:
    viewer = client(state, "viewer")
    page = viewer.get("/hosts/web2").text
    assert not re.search("Run now|Accept|Hold<", page)
    csrf = token(viewer.get("/account").text)
    for verb in ("run", "hold", "release", "accept"):
        assert viewer.get(f"/hosts/web2/{verb}?backup={backup_name(EVENING)}").status_code == 403
        assert viewer.post(f"/hosts/web2/{verb}", data={"csrf_token": csrf, "backup": backup_name(EVENING)}).status_code == 403


def test_each_question_says_what_will_happen(olga: FlaskClient) -> None:
    newest, kept = backup_name(EVENING), backup_name(NIGHTS[3])
    assert "even outside its window" in words(olga.get("/hosts/web1/run").text)
    assert "A held backup does not expire" in words(olga.get(f"/hosts/web1/hold?backup={newest}").text)
    assert "From now on the retention applies again" in words(olga.get(f"/hosts/web1/release?backup={kept}").text)
    assert "Once accepted, it counts as complete" in words(olga.get(f"/hosts/web2/accept?backup={newest}").text)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/hosts/web1/accept?backup=" + backup_name(EVENING), 409),
        ("/hosts/web1/release?backup=" + backup_name(EVENING), 409),
        ("/hosts/web1/hold?backup=" + backup_name(NIGHTS[3]), 409),
        ("/hosts/web1/hold?backup=2020-01-01T000000Z", 404),
        ("/hosts/web1/hold", 404),
        ("/hosts/nobody/run", 404),
        ("/hosts/web1/delete", 404),
    ],
)
def test_what_does_not_fit_is_not_asked(olga: FlaskClient, path: str, status: int) -> None:
    assert olga.get(path).status_code == status


def test_without_the_forms_token_or_without_the_root_service_nothing_is_done(olga: FlaskClient) -> None:
    assert olga.post("/hosts/web1/run").status_code == 400
    csrf = token(olga.get("/hosts/web1/run").text)
    assert olga.post("/hosts/web1/run", data={"csrf_token": csrf}).status_code == 503
    assert olga.post("/hosts/web1/hold", data={"csrf_token": csrf, "backup": "../x"}).status_code == 400
    bad = {"csrf_token": csrf, "backup": backup_name(EVENING), "until": "tomorrow"}
    assert olga.post("/hosts/web1/hold", data=bad).status_code == 400


def test_a_calendar_shows_of_each_day_what_lasts_longest_and_tells_of_gaps() -> None:
    today, letters = NOW.astimezone(BERLIN).date(), {kind.letter: kind for kind in KINDS}
    marks = [Mark(today, letters["d"], "c"), Mark(today, HELD, "d"), Mark(today - timedelta(days=1), GOES, "b")]
    marks.append(Mark(today.replace(month=8, day=15), letters["W"], "a"))
    result = calendar(marks, today)
    assert [(month.month, month.skipped) for month in result.months] == [("2026-11", 0), ("2026-09", 2), ("2026-08", 0)]
    cells = {cell.day: cell for month in result.months for cell in month.cells}
    assert (cells["2026-11-21"].letter, cells["2026-11-21"].names) == ("H", ("c", "d"))
    assert (cells["2026-11-20"].letter, cells["2026-11-22"].letter, cells["2026-08-14"].letter) == ("x", "", "")
    assert [letter for letter, _, _ in result.legend] == ["H", "W", "d", "x", "."]
    assert calendar([], today).months == ()
