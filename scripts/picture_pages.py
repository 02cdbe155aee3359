"""Makes a picture of every page of the dashboard: 390 to 1920 pixels wide, light and dark, with no hosts, few and thousands.

    sudo .venv/bin/python scripts/picture_pages.py FOLDER [--hosts 0,3,300,3000] [--widths 390,768,1280,1920] [--only NAME,...]

It prints the measurable problems of each page: the page is wider than its window, a text is cut, or a name is broken in the middle.
Everything else is for the reader of the pictures: FOLDER/HOSTS/NAME-WIDTH-LOOK.png. `site` in --hosts is a small real pool, with
the pages of files; that needs root and a btrfs.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # btrkeep need not be installed

from playwright.sync_api import Browser, Page

from tests.beds import btrfs, session
from tests.beds.browser import chromium, enter, visit
from tests.beds.dashboard import Dashboard, own_folder, real_shop, serving
from tests.beds.geometry import layout_problems
from tests.beds.made_catalogue import made_catalogue

PAGES = {
    "overview": "/",
    "hosts": "/hosts",
    "host": "/hosts/{host}",
    "failing": "/hosts/{failing}",
    "trends": "/hosts/{host}?tab=trends",
    "runs": "/hosts/{failing}?tab=runs",
    "settings": "/hosts/{host}?tab=settings",
    "fetched": "/hosts/{fetched}",
    "run": "/hosts/{host}/run",
    "actions": "/hosts/-/actions?action=run&all=1&state=problems",
    "silence": "/overview/silence?problem=room",
    "copies": "/copies",
    "proof": "/proof",
    "pool": "/pool",
    "day": "/pool/day",
    "score": "/pool/score",
    "heatmap": "/pool/heatmap",
    "timelapse": "/pool/timelapse",
    "blockgroups": "/pool/blockgroups",
    "balance": "/pool/balance",
    "expiry": "/pool/expiry",
    "jobs": "/jobs",
    "log": "/log",
    "account": "/account",
    "search": "/search?q=web",
    "error": "/nowhere",
}
FILES = {
    "login": "/login",
    "files": "/files/shop?path={source}",
    "search": "/files/shop/search?path={source}&find=.txt",
    "names": "/files/shop?path={source}/names",
    "file": "/files/shop?path={source}/prices.txt",
    "versions": "/files/shop/versions?path={source}/prices.txt",
    "compare": "/files/shop/compare?path={source}&before={first}",
    "restore": "/restore/shop?path={source}/prices.txt",
    "doctor": "/doctor",
    "change": "/hosts/shop/change",
    "newhost": "/changes/new",
    "changes": "/changes",
    "proposal": "/changes/{proposal}",
}
TALLEST = 2600
"""Maximum height of a picture, in pixels."""


def main() -> int:
    """Returns the exit status: 1 if a page has a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hosts", default="site,0,3,300,3000")
    parser.add_argument("--widths", default="390,768,1280,1920")
    parser.add_argument("--looks", default="light,dark")
    parser.add_argument("--only", default="")
    words = parser.parse_args()
    os.environ[session.MARK] = session.own_name()
    problems = 0
    try:
        with chromium() as browser:
            for hosts in words.hosts.split(","):
                with site_of(hosts) as (web, pages):
                    chosen = {name: path for name, path in pages.items() if not words.only or name in words.only.split(",")}
                    place = words.folder / hosts
                    place.mkdir(parents=True, exist_ok=True)
                    for look in words.looks.split(","):
                        for width in map(int, words.widths.split(",")):
                            problems += draw(browser, web, chosen, place, look, width)
    finally:
        session.end_session(session.own_name())
    return 1 if problems else 0


@contextmanager
def site_of(hosts: str) -> Iterator[tuple[Dashboard, dict[str, str]]]:
    """Yields a dashboard, and the addresses of its pages by name."""
    if hosts == "site":
        with real_shop(btrfs.make(size="2G")) as web:
            assert web.nights
            assert web.service
            keys = {"exclude+": ["/srv/shop/tmp/*"], "retention.daily": 7}
            proposal = web.service.agent("alice").ask("propose", host="shop", keys=keys, why="the disk is nearly full")
            words = {"source": str(web.nights.source), "first": web.nights.names("shop")[0], "proposal": proposal["id"]}
            yield web, {name: path.format(**words) for name, path in FILES.items()}
        return
    with own_folder() as place:
        made = made_catalogue(place / "state", int(hosts), hostile=False, copies=bool(int(hosts)))
        names = (
            {"host": made.hosts[0], "failing": made.hosts[41 % len(made.hosts)], "fetched": made.fetched[1]} if made.hosts else {}
        )
        with serving(place, made.state) as web:
            yield web, {name: path.format(**names) for name, path in PAGES.items() if names or "{" not in path}


def draw(browser: Browser, web: Dashboard, pages: dict[str, str], folder: Path, look: str, width: int) -> int:
    """Makes a picture of each page; returns the number of problems."""
    problems = 0
    size = {"width": width, "height": 900}
    with visit(browser, web.url, viewport=size, color_scheme=look, reduced_motion="reduce", has_touch=width < 500) as (page, _):
        for name, path in pages.items():
            page.context.clear_cookies() if name == "login" else enter(page, web.url, web.cookie)
            page.goto(path, wait_until="networkidle")
            if (button := page.get_by_role("button", name="Run it now")).count():  # of the doctor, which has not run yet
                button.first.click()
                page.wait_for_load_state("networkidle")
            keep(page, folder / f"{name}-{width}-{look}.png")
            for problem in layout_problems(page):
                problems += 1
                print(f"{folder.name:>5} {width:>5} {look:<5} {name:<12} {problem}")
    return problems


def keep(page: Page, path: Path) -> None:
    """Writes a picture of the page from its top on."""
    size = page.viewport_size or {"width": 0, "height": 0}
    tall = min(TALLEST, max(size["height"], page.evaluate("document.documentElement.scrollHeight")))
    page.screenshot(path=path, full_page=True, clip={"x": 0, "y": 0, "width": size["width"], "height": tall})


if __name__ == "__main__":
    sys.exit(main())
