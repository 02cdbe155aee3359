"""The layout of pages, measured by a real browser: the first screen of a telephone, which parts scroll, whether texts fit."""

import io
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from PIL import Image, ImageStat
from playwright.sync_api import Browser, Locator, Page

from backupd.observe.graph_pictures import TrendData, day_picture, trend_picture
from bench.make_site import ZONE
from btrkeep.charts.day import day_chart
from btrkeep.decisions.day_phases import DayData, Phase, PhaseSum, Slot
from btrkeep.decisions.trend import Point
from tests.beds.browser import LAPTOP, PHONE, enter, visit
from tests.beds.dashboard import Dashboard
from tests.beds.geometry import layout_problems
from web.pool.data import DayView

HOST = "/hosts/web0000.example.org"
EDGE = 8  # pixels
LONGEST_TIMES = """
    for (const [label, words] of [["Complete", "59 minutes ago"], ["Next due", "in 59 minutes"]])
        for (const cell of document.querySelectorAll(`td[data-label="${label}"]`)) cell.textContent = words;"""
"""As at the time of day at which they are longest."""
LEAST_SHARE = """[...document.querySelectorAll(".wide")].map(box => {
    const had = box.clientWidth;
    box.style.width = "10px";
    return box.scrollWidth / had;
})"""
"""Of its room what each table takes when everything in it that may be broken is."""


def looked_at(locator: Locator) -> "Image.Image":
    return Image.open(io.BytesIO(locator.screenshot())).convert("L")


def box_of(locator: Locator) -> Any:
    box = locator.bounding_box()
    assert box
    return box


@pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])
def test_the_calendar_shows_the_newest_days_on_a_telephone(site: Dashboard, browser: Browser, script: bool) -> None:
    with visit(browser, site.url, viewport=PHONE, java_script_enabled=script) as (page, _):
        enter(page, site.url, site.cookie)
        page.goto(HOST)
        calendar = page.locator(".calendar")
        around, months = box_of(page.get_by_role("region", name="Calendar of backups")), box_of(calendar.locator("tbody th").first)
        assert site.made
        today = site.made.now.astimezone(ZONE).date()
        for day in range(max(1, today.day - 5), today.day + 1):
            column = box_of(calendar.locator("thead th").nth(day))
            assert months["x"] + months["width"] - 1 <= column["x"], day
            assert column["x"] + column["width"] <= around["x"] + around["width"] + 1, day


def test_a_table_that_goes_on_has_a_shadow_at_that_edge_until_its_end_is_seen(site: Dashboard, browser: Browser) -> None:
    with visit(browser, site.url, viewport=PHONE) as (page, _):
        enter(page, site.url, site.cookie)
        page.goto("/pool/balance")
        table = page.get_by_role("region", name="Runs of balance")
        assert table.evaluate("e => e.scrollWidth - e.clientWidth") > 200

        def shade() -> float:
            """Returns the contrast of the edge with its surroundings, both in the gap above the heading's text."""
            image = looked_at(table)
            wide = image.width
            parts = [image.crop((wide - left, 3, wide - to, 8)) for left, to in ((EDGE, 2), (6 * EDGE, 5 * EDGE))]
            edge, beside = (float(ImageStat.Stat(part).mean[0]) for part in parts)
            return beside - edge

        assert shade() > 30
        table.evaluate("e => { e.scrollLeft = e.scrollWidth }")
        assert abs(shade()) < 8
        first = box_of(table.locator("tbody th").first)
        assert first["x"] >= 0, "the row's name is out of sight"


def test_names_are_whole_and_tables_fit_a_laptop(site: Dashboard, browser: Browser) -> None:
    with visit(browser, site.url, viewport=LAPTOP) as (page, _):
        enter(page, site.url, site.cookie)
        for path in ("/hosts", "/log", "/pool/expiry", HOST):
            page.goto(path)
            assert [problem for problem in layout_problems(page) if "example.org" in problem or "wide" in problem] == [], path
            page.evaluate(LONGEST_TIMES)
            takes = page.evaluate(LEAST_SHARE)
            assert takes
            assert max(takes) < 0.97, path  # another machine's letters are wider


def test_the_page_before_an_action_is_no_wider_than_a_tablet(site: Dashboard, browser: Browser) -> None:
    with visit(browser, site.url, viewport={"width": 768, "height": 900}) as (page, _):
        enter(page, site.url, site.cookie)
        page.goto("/hosts/-/actions?action=run&all=1&state=problems")
        assert [problem for problem in layout_problems(page) if "wide" in problem or "sticks out" in problem] == []


def test_why_a_host_failed_and_run_now_are_on_the_first_screen_of_a_telephone(site: Dashboard, browser: Browser) -> None:
    with visit(browser, site.url, viewport=PHONE) as (page, _):
        enter(page, site.url, site.cookie)
        page.goto("/hosts/database0041.example.org")
        for part in (page.locator("pre.lines").first, page.get_by_role("link", name="Run now")):
            assert box_of(part)["y"] < PHONE["height"], part
        page.get_by_role("navigation", name="Pages of the host").get_by_role("link", name="Runs").click()
        assert "tab=runs" in page.url
        assert box_of(page.locator("ol.runs"))["y"] < 2 * PHONE["height"]


@pytest.mark.parametrize("width", [390, 768, 1280, 1920])
def test_charts_are_as_wide_as_their_page_and_their_letters_as_large(site: Dashboard, browser: Browser, width: int) -> None:
    with visit(browser, site.url, viewport={"width": width, "height": 900}) as (page, _):
        enter(page, site.url, site.cookie)
        for path in ("/pool", "/pool/day", "/"):
            page.goto(path)
            for chart in page.locator(".plot svg").all():
                locator = chart.evaluate(_WIDTHS)
                assert locator["own"] > locator["room"] - 2, (path, locator)
                assert 10 <= locator["letters"] <= 15, (path, locator)


_WIDTHS = """e => {
  const around = e.closest("main, figure, .pool-now > div"), style = getComputedStyle(around);
  const own = e.getBoundingClientRect().width, text = e.querySelector("text");
  const room = around.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  const letters = parseFloat(getComputedStyle(text).fontSize) * own / e.viewBox.baseVal.width;
  return {own, room, letters};
}"""


def test_the_labels_of_charts_are_whole(site: Dashboard, browser: Browser) -> None:
    cut = []
    with visit(browser, site.url, viewport=PHONE) as (page, _):
        enter(page, site.url, site.cookie)
        page.goto(f"{HOST}?tab=trends")
        cut += [problem for problem in layout_problems(page) if "outside" in problem]
        for address in ("/pool?days=1", "/pool?days=180", "/pool/score?days=180", "/pool/expiry?days=7"):
            page.goto(address)
            cut += [f"{address}: {text}" for text in _cut(page)]
        page.goto("about:blank")
        page.set_content(quiet_day())
        cut += _cut(page)
    assert cut == []


def quiet_day() -> str:
    """A day with jobs but without writes, so that the numbers at the axis are short."""
    start = datetime(2026, 6, 1, tzinfo=UTC)
    end = start + timedelta(days=1)
    slots, ran = (Slot(start, end, 300.0, 0.0, 0.0),), (Phase("balance", start, end),)
    day = DayView("2026-06-01", "2026-05-31", None, start, end, "UTC", slots, ran, (PhaseSum("", 1, 1, 0, 0, 0, None, None),))
    return day_chart("written", day, ZoneInfo("UTC"))


def test_the_files_of_a_trend_and_of_a_day_are_whole_and_true_to_their_values(browser: Browser) -> None:
    """Read from the browser's pixels: of each 30 TiB allocated 20 are used. The background is white on any page."""
    start = datetime(2026, 6, 1, tzinfo=UTC)
    points = [Point(start + timedelta(days=day), 40 << 40, 30 << 40, 20 << 40, 0.01, 0, 9.5) for day in range(60)]
    trend = TrendData("/srv/backup" * 12, start, start + timedelta(days=60), ZONE, points)
    slots, ran = (Slot(start, start + timedelta(days=1), 9.0, 7e9, 0.0),), (Phase("balance", start, start + timedelta(hours=3)),)
    sums = (PhaseSum("", 1, 1, 0, 0, 0, None, None),)
    day = DayData("/srv/backup", start, start + timedelta(days=1), ZONE, slots, ran, sums)
    with browser.new_context(color_scheme="dark", viewport={"width": 960, "height": 800}) as context:
        page = context.new_page()
        cut = []
        for picture in (day_picture(day), trend_picture(trend)):
            page.set_content(f'<body style="margin:0;background:#000">{picture.decode()}</body>')
            cut += _cut(page)
        with Image.open(io.BytesIO(page.screenshot())) as image:
            rgb = image.convert("RGB")
    assert cut == []
    column = [rgb.getpixel((rgb.width // 2, y)) for y in range(330)]
    blue, orange = (sum(_is_near(colour, wanted) for colour in column) for wanted in ((0x40, 0x95, 0xC5), (0xEC, 0xB6, 0x40)))
    assert blue / (blue + orange) == pytest.approx(2 / 3, abs=0.03)  # lines between the areas have colours of their own
    assert rgb.getpixel((2, 2)) == (255, 255, 255)


def _is_near(colour: Any, wanted: tuple[int, int, int]) -> bool:
    return all(abs(part - other) <= 8 for part, other in zip(colour, wanted, strict=True))


def _cut(page: Page) -> list[str]:
    """Returns the drawing's labels that are not completely inside it."""
    result: list[str] = page.evaluate(
        "[...document.querySelectorAll('text')].filter(e => { const box = e.getBBox();"
        " return box.x < 0 || box.x + box.width > e.ownerSVGElement.viewBox.baseVal.width; }).map(e => e.textContent)"
    )
    return result


def test_the_tiles_of_the_overview_are_one_line_on_a_laptop(site: Dashboard, browser: Browser) -> None:
    with visit(browser, site.url, viewport=LAPTOP) as (page, _):
        enter(page, site.url, site.cookie)
        page.goto("/")
        tiles = [box_of(tile) for tile in page.locator(".counts li").all()]
        assert len(tiles) >= 9
        assert len({tile["y"] for tile in tiles}) == 1
        assert len({round(tile["width"]) for tile in tiles}) == 1


def test_without_javascript_no_text_asks_to_point_at_the_picture(site: Dashboard, browser: Browser) -> None:
    for script in (True, False):
        with visit(browser, site.url, java_script_enabled=script) as (page, _):
            enter(page, site.url, site.cookie)
            page.goto("/pool/heatmap")
            assert page.get_by_text("Point at the picture").is_visible() == script


def test_the_heatmap_of_a_dark_overview_does_not_blind(site: Dashboard, browser: Browser) -> None:
    light = {}
    for scheme in ("light", "dark"):
        with visit(browser, site.url, color_scheme=scheme) as (page, _):
            enter(page, site.url, site.cookie)
            page.goto("/")
            picture = looked_at(page.locator(".heat-small img"))
            light[scheme] = ImageStat.Stat(picture).mean[0], max(picture.tobytes())
    assert light["dark"][1] < 190 < light["light"][1]
    assert light["dark"][0] > 40, "it can still be seen"


def test_the_target_of_a_symlink_is_whole_on_a_tablet_and_its_row_fits(shop: Dashboard, browser: Browser) -> None:
    assert shop.nights
    with visit(browser, shop.url, viewport={"width": 768, "height": 900}) as (page, _):
        enter(page, shop.url, shop.cookie)
        page.goto(f"/files/shop?path={shop.nights.source}")
        target = page.get_by_text("../../../../../../../../etc")
        assert target.evaluate("e => e.getClientRects().length") == 1
        assert box_of(target)["height"] < 30, "one line"
        assert page.locator(".wide").first.evaluate("e => e.scrollWidth - e.clientWidth") == 0
