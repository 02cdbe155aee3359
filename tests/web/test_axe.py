"""axe-core finds nothing on any page, in light and in dark, on a laptop and on a telephone."""

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser

from tests.beds.browser import LAPTOP, PHONE, enter, visit
from tests.beds.dashboard import Dashboard
from tests.web.test_browser import PAGES, folder_of

MORE = (
    "/log/1",
    "/pool/blockgroups?order=free",
    "/jobs/expire-3",
    "/pool/balance/3",
    "/doctor",
    "/nothing",
    "/login",
    "/hosts/nobody",
    "/hosts/-/actions?action=hold&all=1&q=web00",
    "/hosts/-/actions?action=disable&all=1&state=failing",
    "/overview/silence?problem=room",
)
EVERYTHING = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
LOOKS = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}
"""All that another look can change; everything takes three times as long."""
ROOM = {"type": "rule", "values": ["scrollable-region-focusable", "target-size", "color-contrast"]}
BOTH = {"type": "rule", "values": sorted({*LOOKS["values"], *ROOM["values"]})}


@pytest.mark.takes(50)
@pytest.mark.parametrize(
    ("scheme", "size", "rules"),
    [
        ("light", LAPTOP, EVERYTHING),
        ("dark", PHONE, BOTH),
        pytest.param("dark", LAPTOP, LOOKS, marks=pytest.mark.long),
        pytest.param("light", PHONE, ROOM, marks=pytest.mark.long),
    ],
)
def test_axe_is_content_with_the_site(site: Dashboard, browser: Browser, scheme: str, size: Any, rules: Any) -> None:
    assert axe_findings(site, browser, (*PAGES, *MORE), scheme, size, rules) == []


@pytest.mark.parametrize(("scheme", "rules"), [("light", EVERYTHING), ("dark", LOOKS)], ids=["light", "dark"])
def test_axe_is_content_with_the_files(shop: Dashboard, browser: Browser, scheme: str, rules: Any) -> None:
    assert shop.nights
    folder, first = folder_of(shop), shop.nights.names("shop")[0]
    prices = folder.replace("/files/shop?", "/files/shop/{}?") + "/prices.txt"
    pages = (
        folder,
        f"{folder}/names",
        f"{folder}/prices.txt",
        prices.format("versions"),
        f"{prices.format('compare')}&before={first}",
    )
    restore = f"/restore/shop?path={shop.nights.source}/prices.txt"
    assert (
        axe_findings(shop, browser, (*pages, restore, f"/hosts/shop/hold?backup={first}", "/hosts/shop/run"), scheme, LAPTOP, rules)
        == []
    )


def axe_findings(web: Dashboard, browser: Browser, paths: tuple[str, ...], scheme: str, size: Any, rules: Any) -> list[str]:
    """Returns the findings of axe about each page, a line for each rule."""
    lines = []
    with visit(browser, web.url, color_scheme=scheme, viewport=size) as (page, _):
        enter(page, web.url, web.cookie)
        for path in paths:
            if path == "/login":
                page.context.clear_cookies()
            page.goto(path)
            if path == "/login":
                enter(page, web.url, web.cookie)
            for violation in Axe().run(page, options={"resultTypes": ["violations"], "runOnly": rules}).response["violations"]:
                places = "; ".join(node["html"][:200] for node in violation["nodes"][:2])
                lines.append(f"{path} {violation['id']} x{len(violation['nodes'])}: {violation['help']}: {places}")
    return lines
