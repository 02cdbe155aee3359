"""The search box and saved views: without them each host, job and filter is several clicks away, each day again."""

import re
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from btrkeep.config import HostConfig
from tests.web.made import DAY, EVENING, NOW, backup, client, run, token, write
from web.source import RequestContext


@pytest.fixture(autouse=True)
def _morning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RequestContext, "now", NOW)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    names = [f"web{number:02}" for number in range(30)] + ["database", "secret1"]
    hosts = [HostConfig(name, group="front office" if name.startswith("web") else None, paths=("/srv",)) for name in names]
    runs = [run("database", EVENING, "failed", night=False), run("secret1", EVENING, night=False)]
    write(tmp_path / "state", hosts, [backup(name, EVENING - DAY) for name in names], runs).close()
    return tmp_path / "state"


def found(page: str) -> list[str]:
    """Returns the addresses of the matches."""
    main = page[page.index('id="main"') : page.index('id="saved"')]
    return re.findall(r'<a href="([^"]+)"', main)


def test_the_box_is_on_every_page_and_finds_hosts_groups_pages_and_jobs(state: Path) -> None:
    browser = client(state)
    for address in ("/", "/hosts", "/account", "/search"):
        assert '<form class="find" action="/search">' in browser.get(address).text, address
    assert "/hosts?group=front+office" in found(browser.get("/search?q=OFFICE").text)
    hosts = found(browser.get("/search?q=web").text)
    assert hosts[:2] == ["/hosts/web00", "/hosts/web01"]
    assert "/hosts?q=web" in hosts, "the others"
    assert found(browser.get("/search?q=heatm").text) == ["/pool/heatmap"]
    jobs = found(browser.get("/search?q=backup+of+data").text)
    assert len(jobs) == 1
    assert jobs[0].startswith("/jobs/backup-")
    assert "No host, group, job or page matches" in browser.get("/search?q=%3Cb%3E").text


def test_the_name_of_a_host_leads_to_its_page(state: Path) -> None:
    assert client(state).get("/search?q=+database+").location == "/hosts/database"


def test_a_host_and_a_path_lead_to_the_file(state: Path) -> None:
    assert client(state).get("/search?q=web01:/srv/a%20b").location == "/files/web01?typed=/srv/a+b"
    assert client(state, hosts=("db*",)).get("/search?q=web01:/srv/a").status_code == 200


def test_a_limited_user_finds_nothing_of_others(state: Path) -> None:
    mine = client(state, "viewer", ("web*",))
    assert mine.get("/search?q=secret1").status_code == 200, "no address says that it exists"
    for word in ("secret", "backup", "front", "pool", "heatmap", "doctor", "e"):
        page = mine.get("/search", query_string={"q": word}).text
        assert not {address for address in found(page) if "secret" in address or "database" in address or "/pool" in address}, word
        assert "secret1" not in page


def save(browser: FlaskClient, name: str, address: str) -> int:
    form = {"csrf_token": token(browser.get("/hosts").text), "name": name, "address": address}
    return browser.post("/saved", data=form).status_code


def links(browser: FlaskClient) -> dict[str, str]:
    page = browser.get("/hosts").text
    return {name: address for address, name in re.findall(r'<li><a href="([^"]+)">([^<]+)</a>\s*<form', page)}


def test_a_view_is_saved_for_its_user_alone_shown_and_removed(state: Path) -> None:
    browser, other = client(state), client(state, "viewer")
    assert 'name="address" value="/hosts?state=failing&amp;sort=-size"' in browser.get("/hosts?state=failing&sort=-size").text
    assert save(browser, "My <b> failing", "/hosts?state=failing&sort=-size") == 303
    try:
        assert links(browser) == {"My &lt;b&gt; failing": "/hosts?state=failing&amp;sort=-size"}
        assert links(other) == {}
        assert save(browser, "My <b> failing", "/hosts?state=late") == 303
        assert links(browser) == {"My &lt;b&gt; failing": "/hosts?state=late"}, "the newer one"
    finally:
        form = {"csrf_token": token(browser.get("/hosts").text), "name": "My <b> failing", "address": "/hosts"}
        assert browser.post("/saved/remove", data=form).location == "/hosts"
    assert links(browser) == {}


@pytest.mark.parametrize("address", ["https://evil.example", "//evil.example", "/\\evil", "javascript:alert(1)"])
def test_a_saved_view_never_leaves_this_site(state: Path, address: str) -> None:
    browser = client(state)
    assert save(browser, "elsewhere", address) == 303
    assert links(browser).pop("elsewhere") == "/"
    browser.post("/saved/remove", data={"csrf_token": token(browser.get("/hosts").text), "name": "elsewhere"})


def test_views_are_limited_in_number_and_length_and_need_the_forms_token(state: Path) -> None:
    browser = client(state)
    assert save(browser, "x" * 61, "/hosts") == 400
    assert save(browser, " ", "/hosts") == 400
    assert save(browser, "long", "/hosts?q=" + "x" * 400) >= 400
    assert browser.post("/saved", data={"name": "a", "address": "/hosts"}).status_code == 400
    statuses = [save(browser, f"view {number}", "/hosts") for number in range(31)]
    page = token(browser.get("/hosts").text)
    for number in range(31):
        browser.post("/saved/remove", data={"csrf_token": page, "name": f"view {number}"})
    assert statuses[:30] == [303] * 30
    assert statuses[30] >= 400
