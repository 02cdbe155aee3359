"""Makes the dashboard-*.png that the documentation shows, beside itself: `python docs/pictures/dashboard.py` from the top folder.

With FOLDER it makes those of every page there.

The site is the made-up one of bench/make_site.py, the files are those of a small real pool (so this takes root and a btrfs). A real
browser looks at both: in light, in dark, and as a telephone. The pictures are reduced to few colours, for there are many of them.
"""

import argparse
import os
import re
import sys
from pathlib import Path
from typing import Any

from PIL import Image

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP))  # the pictures are made in a bare checkout

from playwright.sync_api import Browser  # noqa: E402

from scripts.picture_pages import FILES, PAGES  # noqa: E402
from tests.beds import btrfs, session  # noqa: E402
from tests.beds.browser import LAPTOP, PHONE, chromium, enter, visit  # noqa: E402
from tests.beds.dashboard import Dashboard, own_folder, real_shop, serving  # noqa: E402
from tests.beds.made_catalogue import made_catalogue  # noqa: E402

SITE = {
    name: path.format(host="mail0067.example.org")
    for name, path in PAGES.items()
    if name not in ("failing", "fetched", "run", "error")
}
COLOURS = 64
LOOKS = {"": LAPTOP, "-dark": LAPTOP, "-phone": PHONE}
IN_DARK = ("overview", "hosts", "host", "heatmap", "files", "copies")
"""Pages whose dark looks are kept too."""
SHOWN = {
    name
    for page in (TOP / "README.rst", *(TOP / "docs").glob("*.rst"))
    for name in re.findall(r"pictures/(dashboard-[\w-]+\.png)", page.read_text(encoding="utf-8"))
}


def main(folder: Path) -> None:
    """Makes those of every page, or those that are shown if the folder is this one."""
    os.environ[session.MARK] = session.own_name()
    try:
        with chromium() as browser:
            with own_folder() as place:
                made = made_catalogue(place / "state", 300, hostile=False, copies=True)
                with serving(place, made.state) as web:
                    draw(browser, web, SITE, folder)
            with real_shop(btrfs.make(size="2G")) as web:
                draw(browser, web, _files(web), folder)
    finally:
        session.end_session(session.own_name())


def _files(web: Dashboard) -> dict[str, str]:
    assert web.nights
    words = {"source": str(web.nights.source), "first": web.nights.names("shop")[0]}
    pages = {**FILES, "compare": "/files/shop/compare?path={source}/prices.txt&before={first}"}
    return {name: path.format(**words) for name, path in pages.items() if name != "names"}


def draw(browser: Browser, web: Dashboard, pages: dict[str, str], folder: Path) -> None:
    """A picture of the window for each page and look."""
    for look, size in LOOKS.items():
        scheme = "dark" if look == "-dark" else "light"
        with visit(browser, web.url, viewport=size, color_scheme=scheme, reduced_motion="reduce") as (page, _):
            enter(page, web.url, web.cookie)
            for name, path in pages.items():
                path_of_picture = folder / f"dashboard-{name}{look}.png"
                if look == "-dark" and name not in IN_DARK:
                    continue
                if folder == Path(__file__).parent and path_of_picture.name not in SHOWN:
                    continue
                page.context.clear_cookies() if name == "login" else enter(page, web.url, web.cookie)
                page.goto(path, wait_until="networkidle")
                for button in page.get_by_role("button", name="Run it now").all():  # the doctor's, who has not looked yet
                    button.click()
                    page.wait_for_load_state("networkidle")
                if name == "jobs":  # the made-up site has no root service that could list them
                    page.evaluate("document.querySelector('section[aria-labelledby=asked]')?.remove()")
                _keep(page.screenshot(), path_of_picture)


def _keep(data: bytes, path: Path) -> None:
    from io import BytesIO

    image = Image.open(BytesIO(data)).convert("RGB")
    # Colours mean something here: those of grounds and shapes stay, and a rare one does not take that of a frequent one.
    counted: Any = image.getcolors(1 << 24)
    frequent = sorted(counted, reverse=True)[: COLOURS // 2]
    rare = image.quantize(COLOURS - len(frequent), Image.Quantize.MAXCOVERAGE).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for _, colour in frequent for part in colour] + rare)
    image.quantize(palette=palette, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent, metavar="FOLDER", help="another one")
    main(parser.parse_args().folder)
