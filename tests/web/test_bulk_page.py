"""Actions for many hosts at once. Without this, an operator with 91 failing hosts opens 91 pages, or confirms something other than
what the page before it showed.
"""

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from btrkeep.config import HostConfig
from btrkeep.units import backup_name
from tests.beds.browser import enter, visit
from tests.beds.dashboard import Dashboard
from tests.beds.nights import Nights
from tests.beds.serving import Service, serving
from tests.beds.watch import wait_for
from tests.web.made import EVENING, NOW, backup, client, login_of, run, token, write


@pytest.fixture
def state(tmp_path: Path) -> Path:
    hosts = [HostConfig(name, address=name, paths=("/srv",)) for name in ("web1", "web2", "web3", "db1", "off1")]
    hosts[-1] = HostConfig("off1", address="off1", paths=("/srv",), enabled=False)
    backups = [backup("web1", EVENING), backup("web3", EVENING, "suspect"), backup("db1", EVENING), backup("gone1", EVENING)]
    runs = [run("web1", EVENING + timedelta(hours=1), "failed"), run("web2", EVENING, "failed"), run("web3", EVENING, "suspect")]
    write(tmp_path / "state", hosts, backups, runs).close()
    return tmp_path / "state"


def targets(page: str) -> list[str]:
    """Returns what the form of the page requests."""
    return [part.partition('"')[0] for part in page.split('name="target" value="')[1:]]


def test_the_list_has_a_selection_for_operators_alone(state: Path) -> None:
    assert 'name="host" value="web1"' in client(state).get("/hosts").text
    assert 'name="host" value=' not in client(state, "viewer").get("/hosts").text
    assert client(state, "viewer").get("/hosts/-/actions?action=run&all=1").status_code == 403


def test_the_page_before_it_shows_for_each_host_what_happens_or_why_not(state: Path) -> None:
    olga = client(state)
    page = olga.get("/hosts/-/actions?action=run&host=web1&host=off1&host=gone1").text
    assert sorted(targets(page)) == ["off1", "web1"]
    assert "nothing: not configured here" in page
    assert "nightly runs skip this host" in page
    name = backup_name(EVENING)
    assert sorted(targets(olga.get("/hosts/-/actions?action=hold&all=1&q=web").text)) == [f"web1@{name}"]
    page = olga.get("/hosts/-/actions?action=accept&all=1").text
    assert targets(page) == [f"web3@{name}"]
    assert page.count("nothing: has no suspect backup") == 5


def test_all_that_match_the_filter_are_meant_even_if_some_are_ticked(state: Path) -> None:
    page = client(state).get("/hosts/-/actions?action=run&all=on&host=db1&state=failing").text
    assert targets(page) == ["web1"]


def test_a_limited_user_reaches_his_own_hosts_alone_whatever_the_address_names(state: Path) -> None:
    carol = client(state, hosts=("web1",))
    for query in ("all=1", "host=db1&host=web1"):
        page = carol.get(f"/hosts/-/actions?action=run&{query}").text
        assert targets(page) == ["web1"]
        assert ">db1<" not in page
    assert "No host matches" in carol.get("/hosts/-/actions?action=run&host=db1").text


def test_ninety_one_hosts_are_run_again_from_the_overview_in_two_clicks(tmp_path: Path) -> None:
    names = [f"h{number:02}" for number in range(91)]
    hosts = [HostConfig(name, address=name, paths=("/srv",)) for name in names]
    failed = [run(name, NOW - timedelta(hours=8), "failed", error="could not connect") for name in names]
    write(tmp_path / "state", hosts, [backup(name, EVENING - timedelta(days=1)) for name in names], failed).close()
    olga = client(tmp_path / "state")
    overview = olga.get("/").text
    assert ">Run all 91</a>" in overview
    address = overview.split(">Run all 91</a>")[0].rpartition('href="')[2].partition('"')[0].replace("&amp;", "&")
    page = olga.get(address).text
    assert len(targets(page)) == 91
    assert "<button>Run now: 91 hosts</button>" in page


def test_of_thousands_of_hosts_as_many_are_listed_as_one_request_may_have(tmp_path: Path) -> None:
    hosts = [HostConfig(f"h{number:04}", address="h", paths=("/srv",)) for number in range(1200)]
    write(tmp_path / "state", hosts, [backup("h0001", EVENING)]).close()
    page = client(tmp_path / "state").get("/hosts/-/actions?action=run&all=1").text
    assert len(targets(page)) == 500
    assert "Only the first 500 of these hosts can be requested at once." in page
    page = client(tmp_path / "state").get("/hosts/-/actions?action=hold&all=1").text
    assert len(targets(page)) == 1
    assert "and 999 more hosts with which nothing happens" in page


@pytest.mark.parametrize("script", [True, False])
def test_hosts_are_selected_in_a_browser_with_and_without_javascript(site: Dashboard, browser: Browser, script: bool) -> None:
    with visit(browser, site.url, java_script_enabled=script) as (page, noticed):
        enter(page, site.url, site.cookie)
        page.goto("/hosts?state=failing")
        boxes = page.locator('input[name="host"]')
        count = boxes.count()
        assert count == 3
        if script:
            page.get_by_label("this page").check()
            assert [box.is_checked() for box in boxes.all()] == [True] * count
            boxes.first.uncheck()
        else:
            expect(page.get_by_label("this page")).to_be_hidden()
            for box in boxes.all()[1:]:
                box.check()
        page.get_by_role("button", name="Preview").click()
        expect(page).to_have_url(re.compile("/hosts/-/actions.*action=run"))
        expect(page.locator('input[name="target"]')).to_have_count(count - 1)
        noticed.nothing()


@pytest.fixture
def service(shared_btrfs: Path) -> Iterator[tuple[Nights, Service]]:
    nights = Nights(shared_btrfs)
    (nights.source / "file").write_text("text\n")
    for host in ("web1", "web2"):
        nights.host(host, nights.source)
    nights.backupd("check", check=False)  # publishes the configuration
    with serving(nights.config, "--login", login_of()) as result:
        yield nights, result


@pytest.mark.btrfs
@pytest.mark.slow
def test_what_was_confirmed_is_done_and_each_host_has_its_result(service: tuple[Nights, Service]) -> None:
    nights, result = service
    olga = client(nights.state, socket=result.socket)
    page = olga.get("/hosts/-/actions?action=run&all=1").text
    form = {"csrf_token": token(page), "target": targets(page)}
    assert olga.post("/hosts/-/run", data={"target": targets(page)}).status_code == 400  # without the token of the form
    done = olga.post("/hosts/-/run", data=form).text
    assert "Run now: 2 of 2 hosts" in done
    wait_for(lambda: all(job["state"] == "done" for job in result.agent().ask("jobs")))
    assert [len(nights.names(host)) for host in ("web1", "web2")] == [1, 1]
    again = olga.post("/hosts/-/run", data=form).text
    assert "Run now: 0 of 2 hosts" in again
    assert "the next one may be requested from" in again
    assert olga.post("/hosts/-/run", data={"csrf_token": token(page)}).status_code == 400
