"""The timelapse in a real browser: slider, buttons and keys; without JavaScript, the links."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.beds.browser import Noticed, visit
from tests.beds.dashboard import Dashboard


def _enter(context: BrowserContext, site: Dashboard) -> None:
    name, _, value = site.cookie.partition("=")
    context.add_cookies([{"name": name, "value": value, "url": site.url}])


@pytest.fixture
def film(site: Dashboard, browser: Browser) -> Iterator[tuple[Page, Noticed, list[str]]]:
    """The page at its newest moment, and the ids of all moments, oldest first."""
    with visit(browser, site.url) as (page, noticed):
        _enter(page.context, site)
        page.goto("/pool/timelapse")
        ids = page.locator(".frames li").evaluate_all("all => all.map(one => one.dataset.id)")
        yield page, noticed, ids
        noticed.nothing()


def test_the_slider_shows_the_moment_that_it_stands_at_and_the_address_names_it(film: tuple[Page, Noticed, list[str]]) -> None:
    page, _, ids = film
    image = page.locator("figure.timelapse > img")
    newest = image.get_attribute("src")
    page.locator("input[type=range]").fill("1")
    expect(image).to_have_attribute("src", re.compile(re.escape(ids[1])))
    expect(page.locator(".count")).to_have_text(f"2 of {len(ids)}")
    page.wait_for_url(f"**picture={ids[1]}**")
    page.locator("input[type=range]").press("ArrowRight")
    expect(page.locator(".count")).to_have_text(f"3 of {len(ids)}")
    page.wait_for_url(f"**picture={ids[2]}**")
    page.reload()
    expect(page.locator(".count")).to_have_text(f"3 of {len(ids)}")
    assert image.get_attribute("src") != newest
    assert image.evaluate("one => one.naturalWidth") == 1024


def test_it_plays_to_its_end_and_steps_stop_it(film: tuple[Page, Noticed, list[str]]) -> None:
    page, _, ids = film
    page.get_by_role("button", name="Play").click()  # at the end: from the beginning
    expect(page.locator(".count")).to_have_text(f"{len(ids)} of {len(ids)}", timeout=20_000)
    expect(page.locator(".play")).to_have_text("Play")
    page.get_by_role("button", name="Earlier").click()
    expect(page.locator(".count")).to_have_text(f"{len(ids) - 1} of {len(ids)}")
    page.get_by_role("button", name="Later").press("Enter")
    expect(page.locator(".count")).to_have_text(f"{len(ids)} of {len(ids)}")


def test_without_javascript_links_lead_through_all_moments(site: Dashboard, browser: Browser) -> None:
    with visit(browser, site.url, java_script_enabled=False) as (page, _):
        _enter(page.context, site)
        page.goto("/pool/timelapse")
        expect(page.locator("input[type=range]")).to_be_hidden()
        count = int(page.locator(".count").inner_text().split()[-1])
        for place in reversed(range(1, count)):
            page.locator("a[rel=prev]").click()
            expect(page.locator(".count")).to_have_text(f"{place} of {count}")
        expect(page.locator("a[rel=prev]")).to_have_count(0)
        assert count > 2
