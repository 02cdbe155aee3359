"""A telephone, and a wide screen: without these rules a list is 25,000 pixels long, and the menu takes the first screen."""

import pytest
from playwright.sync_api import Browser, expect

from tests.beds.browser import PHONE, enter, visit
from tests.beds.dashboard import Dashboard
from tests.web.test_browser import PAGES

ANDROID = "Mozilla/5.0 (Linux; Android 14; Pixel 8) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/128.0 Mobile Safari/537.36"
LONGEST = 6000  # pixels


def test_no_page_is_long_and_the_menu_is_one_bar(site: Dashboard, browser: Browser) -> None:
    long, bars = {}, set()
    with visit(browser, site.url, viewport=PHONE, user_agent=ANDROID, has_touch=True) as (page, noticed):
        enter(page, site.url, site.cookie)
        for path in PAGES:
            page.goto(path)
            if (height := page.evaluate("document.documentElement.scrollHeight")) > LONGEST:
                long[path] = height
            bars.add(page.evaluate("new Set([...document.querySelectorAll('.main-nav li')].map(e => e.offsetTop)).size"))
        noticed.nothing()
    assert long == {}
    assert bars == {1}


def test_a_host_has_two_lines_and_nothing_that_is_empty(site: Dashboard, browser: Browser) -> None:
    with visit(browser, site.url, viewport=PHONE, user_agent=ANDROID) as (page, _):
        enter(page, site.url, site.cookie)
        page.goto("/hosts?state=ok")
        rows = page.locator("table.hosts tbody tr")
        expect(rows).to_have_count(25)
        cells = rows.evaluate_all("rows => rows.map(row => [...row.cells].filter(cell => cell.offsetHeight).length)")
        assert set(cells) == {3}, "the name, its state, and one line of words"
        assert min(rows.evaluate_all("rows => rows.map(row => row.offsetHeight)")) < 70
        for address in ("/hosts?state=never", "/copies", "/jobs"):
            page.goto(address)
            texts = page.locator(".blocks td:visible").all_inner_texts()
            assert [text for text in texts if text.strip() in ("", "-")] == [], address
        page.goto("/hosts?page=2&sort=host")
        expect(rows).to_have_count(25)


def test_a_laptop_has_a_hundred_hosts_on_a_page(site: Dashboard, browser: Browser) -> None:
    with visit(browser, site.url) as (page, _):
        enter(page, site.url, site.cookie)
        page.goto("/hosts")
        expect(page.locator("table.hosts tbody tr")).to_have_count(100)


@pytest.mark.parametrize("width", [1280, 1920])
def test_header_content_and_footer_have_one_edge(site: Dashboard, browser: Browser, width: int) -> None:
    with visit(browser, site.url, viewport={"width": width, "height": 900}) as (page, _):
        enter(page, site.url, site.cookie)
        page.goto("/hosts")
        left = page.evaluate(
            "['.brand', 'main h1', '.bottom p'].map(name => document.querySelector(name).getBoundingClientRect().x)"
        )
        assert max(left) - min(left) < 1, left
        right = page.evaluate("['.me', 'main .wide'].map(name => document.querySelector(name).getBoundingClientRect().right)")
        assert max(right) - min(right) < 1, right


def test_a_wide_table_keeps_its_cells_without_a_value_in_their_columns(site: Dashboard, browser: Browser) -> None:
    with visit(browser, site.url) as (page, _):
        enter(page, site.url, site.cookie)
        page.goto("/hosts?state=never")
        heads = page.locator("table.hosts thead th").count()
        cells = page.locator("table.hosts tbody tr").evaluate_all("rows => rows.map(row => row.cells.length)")
        assert set(cells) == {heads}
        expect(page.locator('td[data-label="Complete"]').first).to_have_text("-")
