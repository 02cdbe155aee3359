"""Files and restore in a real browser: scripts, names of downloads, and what works without scripts and a mouse."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.beds.browser import PHONE, Noticed, visit
from tests.beds.dashboard import ADMIN, OPERATOR, Dashboard, own_folder
from tests.web.files_visit import files, source_of, visitor

pytestmark = [pytest.mark.btrfs, pytest.mark.root]


@contextmanager
def olga(browser: Browser, shop: Dashboard, who: str = OPERATOR, **wishes: Any) -> Iterator[tuple[Page, Noticed]]:
    name, _, value = visitor(shop, who).cookie.partition("=")
    with visit(browser, shop.url, **wishes) as (page, noticed):
        page.context.add_cookies([{"name": name, "value": value, "url": shop.url}])
        yield page, noticed


def test_no_name_runs_and_every_one_can_be_clicked(browser: Browser, shop: Dashboard) -> None:
    folder = files("shop", source_of(shop) + b"/names")
    with olga(browser, shop) as (page, noticed):
        page.goto(folder)
        count = page.locator("table.files tbody tr").count()
        for number in range(count):
            page.locator("table.files tbody th a").nth(number).click()
            page.locator("h2:has-text('Versions')").wait_for()
            assert page.locator("h2:has-text('Versions')").count() == 1
            assert "content of" in page.locator("pre.text").inner_text()
            page.goto(folder)
        assert not page.evaluate("window.pwned")
        noticed.nothing()


def test_a_browser_stores_a_download_under_the_name_that_it_has(browser: Browser, shop: Dashboard, tmp_path: Path) -> None:
    with olga(browser, shop, accept_downloads=True) as (page, noticed):
        for name, wanted in ((b"/prices.txt", "prices.txt"), (b"/names/<img src=x onerror=window.pwned=1>.txt", None)):
            page.goto(files("shop", source_of(shop) + name))
            with page.expect_download() as begun:
                page.click("a.button:has-text('Download')")
            begun.value.save_as(tmp_path / "it")
            assert (tmp_path / "it").read_bytes().startswith((b"black tea", b"content of"))
            assert wanted in (None, begun.value.suggested_filename)
            assert not set(begun.value.suggested_filename) & set("<>/\\\n")
        noticed.nothing()


def test_a_restore_takes_no_script_and_no_mouse(browser: Browser, shop: Dashboard) -> None:
    with own_folder() as folder, olga(browser, shop, ADMIN, java_script_enabled=False, viewport=PHONE) as (page, _):
        page.goto(files("shop", source_of(shop)))
        box = page.get_by_label("Select prices.txt", exact=True)
        box.focus()
        page.keyboard.press("Space")
        assert box.is_checked()
        press(page, "Restore selected…")
        page.get_by_label("Into a folder on shop:").focus()
        page.keyboard.press("Space")
        page.get_by_label("Folder on shop", exact=True).fill(str(folder / "back"))
        press(page, "Preview")
        assert page.get_by_role("heading", level=1).inner_text() == "What would happen on shop"
        assert "1 name" in page.locator("p.said").inner_text()
        press(page, "Restore now")
        assert "/jobs/" in page.url
        for _ in range(100):
            if (folder / "back" / "prices.txt").exists() and "done" in page.locator("main").inner_text():
                break
            page.wait_for_timeout(100)
            page.reload()
        assert (folder / "back" / "prices.txt").read_text().startswith("black tea 4.80")


def press(page: Page, name: str) -> None:
    """Presses a button with the keyboard."""
    page.get_by_role("button", name=name).focus()
    with page.expect_navigation():
        page.keyboard.press("Enter")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_is_wider_than_a_telephone(browser: Browser, shop: Dashboard, scheme: str) -> None:
    source = source_of(shop)
    deep = source + b"/" + b"no-such-name-that-is-rather-long" * 6
    addresses = (
        *(files("shop", source), files("shop", source + b"/names"), files("shop", source + b"/prices.txt"), files("shop", deep)),
        *(files("shop", source + b"/prices.txt", "/versions"), files("shop", source, "/compare", before="2026")),
        *(files("shop", source, backup="2020-01-01"), f"/restore/shop?path={source.decode()}"),
    )
    with olga(browser, shop, viewport=PHONE, color_scheme=scheme) as (page, noticed):
        for address in addresses:
            page.goto(address)
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], address
            assert page.locator("h1").count() == 1
        assert [line for line in noticed.errors if "404" not in line] == []
        assert not noticed.violations


def test_a_choice_of_a_backup_works_with_the_keyboard(browser: Browser, shop: Dashboard) -> None:
    assert shop.nights
    first = shop.nights.names("shop")[0]
    with olga(browser, shop) as (page, noticed):
        page.goto(files("shop", source_of(shop) + b"/names/caf\xe9.txt"))
        page.get_by_label("Backup").select_option(first)
        press(page, "Show")
        assert f"backup={first}" in page.url
        assert "caf%E9.txt" in page.url
        noticed.nothing()
