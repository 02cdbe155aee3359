"""Pages that stay open: without this an administrator reads yesterday's list, and "3 minutes ago" of a time that is a day ago."""

import re
from datetime import UTC, datetime, timedelta

from playwright.sync_api import Browser, expect

from tests.beds.browser import enter, visit
from tests.beds.dashboard import Dashboard
from web.filters import relative

CLOCK = re.compile(r"updated \d\d:\d\d:\d\d")
HOST = "/hosts/web0000.example.org"


def test_hosts_and_a_host_refresh_themselves_and_say_when(site: Dashboard, browser: Browser) -> None:
    with visit(browser, site.url) as (page, noticed):
        enter(page, site.url, site.cookie)
        page.clock.install()
        for address, changed, parts in (("/hosts?state=ok", "#list tbody th a", 3), (HOST, "#state h1", 4)):
            page.goto(address)
            before = page.locator(changed).first.inner_text()
            expect(page.locator("[data-part]")).to_have_count(parts - 1)
            page.evaluate(f"document.querySelector('{changed}').textContent = 'yesterday'")
            page.evaluate("document.querySelector('.updated').textContent = document.querySelector('#as-of').textContent = 'old'")
            page.clock.run_for(16_000)
            expect(page.locator(changed).first).to_have_text(before)
            expect(page.locator(".updated")).to_have_text(CLOCK)
            expect(page.locator("#as-of")).to_contain_text("As of")
        noticed.nothing()


def test_a_wide_table_stays_where_it_was_scrolled_and_a_selection_is_kept(site: Dashboard, browser: Browser) -> None:
    with visit(browser, site.url, viewport={"width": 500, "height": 900}) as (page, _):
        enter(page, site.url, site.cookie)
        page.clock.install()
        page.goto(HOST)
        calendar = page.get_by_role("region", name="Calendar of backups")
        calendar.evaluate("box => { box.scrollLeft = 77; box.querySelector('th').textContent = 'old'; }")
        page.clock.run_for(16_000)
        expect(calendar.locator("th").first).to_have_text("Month")
        assert calendar.evaluate("box => box.scrollLeft") == 77
        page.goto("/hosts")
        page.evaluate("document.querySelector('#list').insertAdjacentHTML('beforeend', '<input type=checkbox checked id=chosen>')")
        page.clock.run_for(31_000)
        expect(page.locator("#as-of")).to_contain_text("As of")
        expect(page.locator("#chosen")).to_be_checked()


def test_relative_times_grow_on_a_page_that_is_not_refreshed(site: Dashboard, browser: Browser) -> None:
    """The expected words are those of the server (`relative`), at the moment to which the browser's clock was moved."""
    with visit(browser, site.url) as (page, noticed):
        enter(page, site.url, site.cookie)
        page.clock.install()
        page.goto("/jobs")
        times = page.locator("time[data-ago]")
        assert times.count() > 5
        loaded = datetime.fromisoformat(page.locator("body").get_attribute("data-now") or "")
        for seconds in (60, 3 * 3600, 86_400):
            page.clock.fast_forward(seconds * 1000)
            loaded += timedelta(seconds=seconds)
            for place in range(5):
                moment = datetime.fromisoformat(times.nth(place).get_attribute("datetime") or "").astimezone(UTC)
                possible = {relative(moment, loaded + timedelta(seconds=late)) for late in (-31, 0, 5)}
                text = times.nth(place).inner_text()
                assert any(text.endswith(words) for words in possible), (text, possible)
        noticed.nothing()
