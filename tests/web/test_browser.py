"""Common tasks in a real browser: on the invented site, and on a real pool with its files."""

import hashlib
import re
import time
from pathlib import Path

from playwright.sync_api import Browser, Locator, Page, expect

from btrkeep.catalogue import Catalogue, Progress
from tests.beds.browser import PHONE, Noticed, enter, log_in, visit
from tests.beds.copied import copied
from tests.beds.dashboard import LATIN1, MARKUP, OPERATOR, PASSWORD, Dashboard

PAGES = (
    *(
        "/",
        "/hosts",
        "/hosts?state=failing",
        "/hosts/web0000.example.org",
        "/hosts/database0041.example.org",
        "/hosts/database0041.example.org?tab=runs",
        "/hosts/web0000.example.org?tab=trends",
        "/hosts/web0000.example.org?tab=settings",
        "/copies",
        "/proof",
        "/pool",
        "/pool/day",
    ),
    *(
        "/pool/score",
        "/pool/heatmap",
        "/pool/timelapse",
        "/pool/blockgroups",
        "/pool/balance",
        "/pool/expiry",
        "/jobs",
        "/log",
        "/account",
        "/search?q=web",
    ),
)


def folder_of(shop: Dashboard) -> str:
    assert shop.nights
    return f"/files/shop?path={shop.nights.source}"


def test_from_the_login_to_a_failing_host(site: Dashboard, browser: Browser) -> None:
    with visit(browser, site.url) as (page, noticed):
        page.goto("/hosts?state=failing")
        expect(page).to_have_url(re.compile(r"/login\?next="))
        log_in(page, OPERATOR, PASSWORD)
        expect(page).to_have_url(re.compile(r"/hosts\?state=failing$"))
        expect(page.locator("table.hosts tbody tr")).to_have_count(3)
        page.get_by_role("navigation").get_by_role("link", name="Overview").click()
        page.locator('main a[href="/hosts?state=ok"]').first.click()
        expect(page).to_have_url(re.compile("state=ok"))
        page.get_by_role("searchbox").fill("web 00")
        page.get_by_role("button", name="Search").click()
        rows = page.locator("table.hosts tbody tr")
        expect(rows.first).to_contain_text("web00")
        page.get_by_role("link", name="web0005.example.org").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("web0005.example.org")
        expect(page.locator("body")).to_contain_text("daily")
        noticed.nothing()


def test_each_line_of_the_problems_opens_as_many_hosts_as_it_counts(site: Dashboard, browser: Browser) -> None:
    """Causes of the invented site have hostile text in them, which goes through the address of the filter."""
    with visit(browser, site.url) as (page, noticed):
        enter(page, site.url, site.cookie)
        page.goto("/")
        lines = page.locator(".problem").filter(has=page.locator(".state-bad", has_text="failing")).filter(has_text="host")
        addresses = {}
        for line in lines.filter(has_not_text="copies").all():
            count = int(re.findall(r"\d+", line.locator(".cause").inner_text())[0])
            addresses[line.get_by_role("link", name="Open").get_attribute("href") or ""] = count
        assert sum(addresses.values()) == 3
        assert len(addresses) > 1
        for address, count in addresses.items():
            page.goto(address)
            expect(page.locator("table.hosts tbody tr")).to_have_count(count)
        noticed.nothing()


def test_a_host_with_damage_a_copy_behind_or_disabled_is_green_nowhere(site: Dashboard, browser: Browser) -> None:
    """The invented site has a damaged host, a disabled one, and a fetched one whose copy is a week old."""
    assert site.made
    behind = site.made.fetched[-1]
    with visit(browser, site.url) as (page, noticed):
        enter(page, site.url, site.cookie)
        page.goto("/hosts?state=ok")
        good = colour_of(page.locator("td .state-ok").first)
        for flag, badge, remark in (
            ("damaged", "damaged", "1 backup damaged"),
            ("disabled", "disabled", "not enabled: nightly runs skip it"),
            ("behind", "copy behind", re.compile(r"its copy in branch is [78]d")),
        ):
            page.goto("/")
            page.locator(f'.counts a[href="/hosts?state={flag}"]').click()
            row = page.locator("table.hosts tbody tr").filter(has_text=behind if flag == "behind" else "").first
            expect(row.locator("td.at-right")).to_contain_text(badge)
            expect(row.locator("td.remark")).to_contain_text(remark)
            assert good not in {colour_of(state) for state in row.locator(".state").all()}, flag
            row.get_by_role("link").first.click()
            assert good not in {colour_of(state) for state in page.locator("h1 .state").all()}, flag
            expect(page.locator("h1")).to_contain_text(badge)
            expect(page.locator(".note").first).to_be_visible()
        expect(page.locator("main")).to_contain_text("the copy of this host in branch is behind")
        noticed.nothing()


def test_the_list_of_hosts_begins_with_problems_in_one_line_each(site: Dashboard, browser: Browser) -> None:
    with visit(browser, site.url) as (page, noticed):
        enter(page, site.url, site.cookie)
        page.goto("/hosts?state=late")
        heights = [row.bounding_box() for row in page.locator("table.hosts tbody tr").all()]
        assert 1 < len(heights) < 5  # as many as the hour makes
        assert all(box and box["height"] < 40 for box in heights), heights
        page.get_by_role("link", name=re.compile("^Problems")).click()
        count = int(re.findall(r"\d+", page.get_by_role("link", name=re.compile("^Problems")).inner_text())[0])
        rows = page.locator("table.hosts tbody tr")
        expect(rows).to_have_count(count)
        expect(rows.first).to_contain_text("failing")
        expect(rows.last).to_contain_text("damaged")
        page.get_by_role("navigation", name="By cause").get_by_role(
            "link", name=f"{len(heights)} x no complete backup in time"
        ).click()
        expect(rows).to_have_count(len(heights))
        noticed.nothing()


def colour_of(locator: Locator) -> str:
    return str(locator.evaluate("e => getComputedStyle(e).color"))


def test_a_wrong_password_says_so_and_a_logout_ends_it(site: Dashboard, browser: Browser) -> None:
    with visit(browser, site.url) as (page, _):
        log_in(page, OPERATOR, "not the password")
        expect(page.get_by_role("alert")).to_contain_text("Wrong name or password")
        log_in(page, OPERATOR, PASSWORD)
        expect(page).to_have_url(f"{site.url}/")
        page.locator(".me summary").click()
        page.get_by_role("button", name="Log out").click()
        page.goto("/hosts")
        expect(page).to_have_url(re.compile("/login"))


def test_text_of_hosts_is_only_text(site: Dashboard, browser: Browser) -> None:
    """The made-up site has markup, template code and escapes in every place where text of a host can stand."""
    with visit(browser, site.url) as (page, noticed):
        enter(page, site.url, site.cookie)
        for path in PAGES:
            page.goto(path)  # until its load event, which follows those of its pictures, or their errors
            assert page.evaluate("window.pwned") is None, path
            assert "onerror" not in page.evaluate("[...document.querySelectorAll('*')].flatMap(e => e.getAttributeNames())"), path
        page.goto("/hosts/database0041.example.org")
        expect(page.locator("body")).to_contain_text("<img src=x onerror=window.pwned=1>")
        noticed.nothing()


def test_every_page_fits_a_telephone_a_small_one_and_a_laptop(site: Dashboard, browser: Browser) -> None:
    """Elements wider than the window, such as tables, scroll by themselves."""
    with visit(browser, site.url, viewport=PHONE, has_touch=True) as (page, noticed):
        enter(page, site.url, site.cookie)
        wide = {}
        for path in PAGES:
            page.goto(path)
            for width in (PHONE["width"], 320, 768, 1024, 1280):
                page.set_viewport_size({"width": width, "height": 800})
                if (answer := page.evaluate("document.documentElement.scrollWidth")) > width:
                    wide[path, width] = answer
        assert wide == {}
        noticed.nothing()


def test_the_whole_navigation_is_on_a_telephone(site: Dashboard, browser: Browser) -> None:
    with visit(browser, site.url, viewport=PHONE) as (page, _):
        enter(page, site.url, site.cookie)
        for width in (390, 320):
            page.set_viewport_size({"width": width, "height": 800})
            page.goto("/hosts")
            for name in ("Overview", "Hosts", "Pool", "Jobs", "Log", "Doctor"):
                link = page.get_by_role("navigation", name="Pages").get_by_role("link", name=name)
                if width == 320:  # the bar scrolls there
                    link.scroll_into_view_if_needed()
                box = link.bounding_box()
                assert box
                assert 0 <= box["x"] < box["x"] + box["width"] <= width, (name, width, box)
            cut = page.evaluate("[...document.querySelectorAll('.hosts td')].filter(e => e.scrollWidth > e.clientWidth + 1).length")
            assert cut == 0, width


def test_what_runs_moves_without_a_reload(site: Dashboard, browser: Browser) -> None:
    assert site.made
    host = site.made.running[0]
    with visit(browser, site.url) as (page, noticed), Catalogue.open(site.state) as catalogue:
        enter(page, site.url, site.cookie)
        page.goto("/")
        page.evaluate("window.same = true")
        before = next(progress for progress in catalogue.progress() if progress.host == host)
        try:
            catalogue.put_progress(_with(before, files_done=98_765, share=0.87))
            copied(site.state)  # as a run does, but not every second
            expect(page.locator("body")).to_contain_text("98,765", timeout=8000)
        finally:
            catalogue.put_progress(before)
        assert page.evaluate("window.same") is True
        noticed.nothing()


def test_a_page_that_stays_open_has_the_present_verdict_also_in_its_tab(site: Dashboard, browser: Browser) -> None:
    """Another verdict than the real one stands there at first, as on a page that was opened a day ago."""
    with visit(browser, site.url) as (page, noticed):
        enter(page, site.url, site.cookie)
        page.clock.install()
        page.goto("/")
        title, icon = page.title(), page.locator("link[rel=icon]").get_attribute("href")
        assert title.startswith("Needs attention")
        clock = re.compile(r"^updated \d\d:\d\d:\d\d$")
        expect(page.locator(".updated")).to_have_text(clock)
        page.evaluate("document.title = 'All is well'; document.querySelector('link[rel=icon]').href = '/static/icon.svg'")
        page.evaluate("for (const e of document.querySelectorAll('.updated, #pool-title')) e.textContent = 'yesterday'")
        page.clock.run_for(61_000)
        expect(page).to_have_title(title)
        expect(page.locator("link[rel=icon]")).to_have_attribute("href", icon or "")
        expect(page.locator("#pool-title")).to_have_text("Pool")
        expect(page.locator(".updated")).to_have_text(clock)
        noticed.nothing()


def _with(progress: Progress, **changes: object) -> Progress:
    from dataclasses import replace

    return replace(progress, **changes)  # type: ignore[arg-type]


def test_pages_work_without_javascript(site: Dashboard, browser: Browser) -> None:
    with visit(browser, site.url, java_script_enabled=False) as (page, _):
        log_in(page, OPERATOR, PASSWORD)
        page.goto("/hosts?q=mail")
        expect(page.locator("table.hosts tbody tr")).to_have_count(24)
        page.goto("/")
        expect(page.locator("body")).to_contain_text("complete")
        for path in ("/pool/heatmap", "/pool/timelapse"):  # the charts of /pool are in its HTML
            page.goto(path)
            images = page.locator("main img").all()
            assert images
            assert all(image.get_attribute("alt") for image in images), path


def test_by_keyboard_alone(site: Dashboard, browser: Browser) -> None:
    with visit(browser, site.url) as (page, _):
        page.goto("/login")
        expect(page.locator("#name")).to_be_focused()
        page.keyboard.type(OPERATOR)
        page.keyboard.press("Tab")
        page.keyboard.type(PASSWORD)
        page.keyboard.press("Enter")
        expect(page).to_have_url(f"{site.url}/")
        page.wait_for_load_state()  # a Tab before it may go to nothing, or leave the page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to content"
        _tab_to(page, "Hosts")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("Hosts")
        _tab_to(page, "database0001.example.org")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", "what has the focus is not seen"
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile("/hosts/database0001"))


def _tab_to(page: Page, words: str) -> None:
    page.wait_for_load_state()
    for _ in range(200):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.trim()") == words:
            return
    raise AssertionError(f"{words} is not reached by Tab")


def test_dark_is_dark_and_light_is_light(site: Dashboard, browser: Browser) -> None:
    shades = {}
    for scheme in ("light", "dark"):
        with visit(browser, site.url, color_scheme=scheme) as (page, _):
            page.goto("/login")
            colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
            shades[scheme] = sum(int(part) for part in re.findall(r"\d+", colour)[:3])
    assert shades["light"] > 600
    assert shades["dark"] < 150


def test_the_heatmap_says_what_is_under_the_pointer(site: Dashboard, browser: Browser) -> None:
    with visit(browser, site.url) as (page, noticed):
        enter(page, site.url, site.cookie)
        page.goto("/pool/heatmap")
        canvas = page.locator(".heatmap .canvas")
        canvas.hover(position={"x": 5, "y": 5})
        under = page.locator(".heatmap .under")
        expect(under).to_contain_text(re.compile(r"metadata|data"))
        link = under.get_by_role("link").first
        vaddr = re.search(r"/pool/blockgroup/(\d+)", link.get_attribute("href") or "")
        assert vaddr
        link.click()
        expect(page).to_have_url(re.compile(f"/pool/blockgroup/{vaddr[1]}"))
        expect(page.locator("body")).to_contain_text(vaddr[1])
        assert [
            error for error in noticed.errors if "502" not in error and "503" not in error
        ] == []  # extents are the root service's
        assert noticed.violations == []


def test_the_timelapse_goes_by_its_slider(site: Dashboard, browser: Browser) -> None:
    with visit(browser, site.url) as (page, noticed):
        enter(page, site.url, site.cookie)
        page.goto("/pool/timelapse")
        image, slider = page.locator(".timelapse img"), page.get_by_role("slider")
        newest = image.get_attribute("src")
        slider.fill("0")
        expect(image).not_to_have_attribute("src", newest or "")
        expect(page.locator(".count")).to_have_text("1 of 5")
        assert image.evaluate("async image => { await image.decode(); return image.naturalWidth }") > 100
        noticed.nothing()


def test_a_file_is_found_and_downloaded_as_it_was(shop: Dashboard, browser: Browser, tmp_path: Path) -> None:
    assert shop.nights
    with visit(browser, shop.url) as (page, noticed):
        enter(page, shop.url, shop.cookie)
        page.goto(folder_of(shop))
        page.get_by_role("link", name="large.bin", exact=True).click()
        with page.expect_download() as waiting:
            page.get_by_role("link", name=re.compile("^Download")).first.click()
        waiting.value.save_as(tmp_path / "it")
        assert _sum(tmp_path / "it") == _sum(shop.nights.source / "large.bin")
        assert waiting.value.suggested_filename == "large.bin"
        noticed.nothing()


def _sum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_hostile_names_are_shown_and_still_work(shop: Dashboard, browser: Browser, tmp_path: Path) -> None:
    with visit(browser, shop.url) as (page, noticed):
        enter(page, shop.url, shop.cookie)
        page.goto(f"{folder_of(shop)}/names")
        expect(page.get_by_role("link", name=MARKUP.decode(), exact=True)).to_be_visible()
        expect(page.get_by_role("link", name="caf\\xe9.txt")).to_be_visible()
        expect(page.get_by_role("link", name="two\\nlines.txt")).to_be_visible()
        for name, content in (("caf\\xe9.txt", LATIN1), (MARKUP.decode(), MARKUP)):
            page.goto(f"{folder_of(shop)}/names")
            page.get_by_role("link", name=name).click()
            with page.expect_download() as waiting:
                page.get_by_role("link", name=re.compile("^Download")).first.click()
            waiting.value.save_as(tmp_path / "it")
            assert (tmp_path / "it").read_bytes() == b"content of " + content
        assert page.evaluate("window.pwned") is None
        noticed.nothing()


def test_an_earlier_version_is_found_and_its_restore_previewed(shop: Dashboard, browser: Browser) -> None:
    assert shop.nights
    with visit(browser, shop.url) as (page, noticed):
        enter(page, shop.url, shop.cookie)
        page.goto(f"{folder_of(shop)}/prices.txt")
        expect(page.locator("body")).to_contain_text("black tea 4.80")
        page.get_by_role("link", name="Compare").last.click()
        expect(page.locator("body")).to_contain_text("black tea 2.80")
        expect(page.locator("body")).to_contain_text("black tea 3.80")
        page.go_back()
        page.get_by_role("link", name="Restore").last.click()
        expect(page).to_have_url(re.compile(f"backup={shop.nights.names('shop')[0]}"))
        expect(page.get_by_role("heading", level=1)).to_contain_text("Restore to shop")
        page.get_by_role("radio", name=re.compile("Original location")).check()
        page.get_by_role("button", name="Preview").click()
        expect(page.locator("main")).to_contain_text(
            re.compile("would be overwritten|would be refused|preview failed"), timeout=20_000
        )
        assert noticed.violations == []


def test_a_backup_is_held_and_released_by_clicks(shop: Dashboard, browser: Browser) -> None:
    assert shop.nights
    name = shop.nights.names("shop")[0]
    with visit(browser, shop.url) as (page, noticed):
        enter(page, shop.url, shop.cookie)
        page.goto(f"/hosts/shop/hold?backup={name}")
        page.locator("main input[name=why]").fill("for the audit <b>")
        page.locator("main form button").first.click()
        end = time.monotonic() + 60
        while "audit <b>" not in (shop.nights.pool / "hosts/shop/notes.json").read_text():
            assert time.monotonic() < end
            time.sleep(0.1)
        page.goto("/hosts/shop")
        expect(page.locator("body")).to_contain_text("for the audit <b>")
        shop.nights.backupd("release", "shop", name)
        _nothing_but(noticed)


def _nothing_but(noticed: Noticed) -> None:
    assert (noticed.violations, noticed.dialogs, noticed.elsewhere) == ([], [], [])


def test_a_chart_is_read_and_zoomed_with_the_mouse_and_with_the_keyboard(site: Dashboard, browser: Browser) -> None:
    with visit(browser, site.url) as (page, noticed):
        enter(page, site.url, site.cookie)
        page.goto("/pool?days=30")
        chart = page.get_by_role("slider", name=re.compile("^allocated went from"))
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        assert box
        middle = box["y"] + box["height"] / 2
        page.mouse.move(box["x"] + 2, middle)
        words = page.locator(".plot").first.locator(".under")
        expect(words).to_have_text(re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d: used [\d.]+ TiB, allocated [\d.]+ TiB, size of"))
        first = words.inner_text()
        chart.focus()
        page.keyboard.press("ArrowRight")
        expect(words).not_to_have_text(first)
        expect(chart).to_have_attribute("aria-valuetext", words.inner_text())
        page.keyboard.press("End")
        expect(words).to_have_text(re.compile(r"forecast of used [\d.]+ TiB \("))
        page.mouse.move(box["x"] + box["width"] * 0.2, middle)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.4, middle)
        page.mouse.up()
        expect(page).to_have_url(re.compile(r"/pool\?from=\d+&until=\d+$"))
        page.get_by_text("Show everything").wait_for()
        wide = span_of(page)
        chart.focus()
        page.keyboard.press("Home")
        for _ in range(8):
            page.keyboard.press("Shift+ArrowRight")
        page.keyboard.press("Enter")
        page.wait_for_url(lambda url: f"{wide[0]}" not in url or f"{wide[1]}" not in url)
        narrow = span_of(page)
        assert wide[0] <= narrow[0] < narrow[1] < wide[1]
        page.go_back()
        assert span_of(page) == wide
        page.get_by_role("link", name="Show everything").click()
        expect(page).to_have_url(re.compile(r"/pool$"))
        noticed.nothing()


def span_of(page: Page) -> tuple[int, int]:
    first, last = re.findall(r"(?:from|until)=(\d+)", page.url)
    return int(first), int(last)


def test_the_lanes_of_a_day_are_links_for_the_keyboard_too(site: Dashboard, browser: Browser) -> None:
    with visit(browser, site.url) as (page, noticed):
        enter(page, site.url, site.cookie)
        page.goto("/pool/day")
        lane = page.get_by_role("link", name=re.compile(r"^expire, \d\d:\d\d to \d\d:\d\d$"))
        lane.focus()
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile(r"/jobs/expire-\d+$"))
        noticed.nothing()


def test_without_javascript_a_chart_has_no_parts_that_do_nothing(site: Dashboard, browser: Browser) -> None:
    with visit(browser, site.url, java_script_enabled=False) as (page, _):
        enter(page, site.url, site.cookie)
        page.goto("/pool")
        assert page.get_by_role("slider").count() == 0
        expect(page.get_by_role("img", name=re.compile("^allocated went from"))).to_be_visible()
        page.get_by_text("The numbers").click()
        expect(page.get_by_role("region", name="Numbers of the charts")).to_be_visible()
