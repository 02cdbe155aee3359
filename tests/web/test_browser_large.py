"""A real browser on the dashboard of 3,000 hosts with 34 backups each, normally of a tenth of them.

It is compared with the made data, and with sqlite3 on the catalogue.
"""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.beds import work
from tests.beds.browser import enter, visit
from tests.beds.dashboard import Dashboard, made_site
from tests.beds.made_catalogue import made_catalogue

BACKUPS = 34
POOL_PAGES = ("", "/day", "/score", "/heatmap", "/balance", "/expiry")

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module", params=[pytest.param(300, id="a tenth"), pytest.param(3000, id="whole", marks=pytest.mark.long)])
def large(request: pytest.FixtureRequest, no_leftovers: None) -> Iterator[Dashboard]:
    with made_site(lambda state: made_catalogue(state, request.param, copies=True)) as web:
        yield web


def query_catalogue(web: Dashboard, statement: str) -> list[str]:
    assert web.made
    return work("sqlite3", web.made.state / "catalogue.sqlite", statement).stdout.split()


def test_every_page_opens_and_the_hosts_are_found_filtered_and_sorted(large: Dashboard, browser: Browser) -> None:
    assert large.made
    hosts = sorted((*large.made.hosts, *large.made.fetched))
    output = hosts[123]
    with visit(browser, large.url) as (page, noticed):
        enter(page, large.url, large.cookie)
        for path in ("/", *(f"/pool{name}" for name in POOL_PAGES), "/copies", "/jobs", "/log"):
            answer = page.goto(path)
            assert answer is not None
            assert answer.status == 200, path
        page.goto("/hosts")
        rows = page.locator("table.hosts tbody tr")
        expect(rows).to_have_count(100)
        expect(page.locator("main")).to_contain_text(f"{len(hosts):,} hosts")
        page.goto(f"/hosts?sort=host&page={len(hosts) // 100 + 1}")
        expect(rows).to_have_count(len(hosts) % 100)
        expect(rows.last).to_contain_text(hosts[-1])
        page.get_by_role("searchbox").fill(output)
        page.get_by_role("button", name="Search").click()
        expect(rows).to_have_count(1)
        rows.first.get_by_role("link", name=output).click()
        expect(page.get_by_role("heading", level=1)).to_contain_text(output)
        kept = query_catalogue(large, f"SELECT name FROM backup WHERE host = '{output}' AND name IS NOT NULL")
        assert len(kept) == BACKUPS
        assert set(kept) <= set(re.findall(r"2\d{3}-\d\d-\d\dT\d{6}Z", page.content()))
        noticed.nothing()
