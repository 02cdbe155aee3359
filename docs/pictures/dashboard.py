"""Makes dashboard-*.png beside itself: every page of the dashboard, `python docs/pictures/dashboard.py` from the top folder.

The site is the made-up one of bench/make_site.py, the files are those of a small real pool (so this takes root and a btrfs). A real
browser looks at both: in light, in dark, and as a telephone. The pictures are reduced to few colours, for there are many of them.
"""

import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from PIL import Image

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP))  # the pictures are made in a bare checkout

from playwright.sync_api import Browser  # noqa: E402

from btrkeep.catalogue import Catalogue  # noqa: E402
from btrkeep.config.published import FACT  # noqa: E402
from btrkeep.decisions.copies import (  # noqa: E402
    COPIES,
    OFFSITE,
    OFFSITE_THERE,
    PUSH,
    HostBehind,
    KnownCopies,
    ReplicaSession,
    RunningFetch,
    copies_text,
    note_running,
    note_session,
    note_stored,
)
from btrkeep.process.proc import start_time  # noqa: E402
from btrkeep.units import backup_name  # noqa: E402
from tests.beds import btrfs, session  # noqa: E402
from tests.beds.browser import LAPTOP, PHONE, chromium, enter, visit  # noqa: E402
from tests.beds.dashboard import Dashboard, own_folder, real_shop, serving  # noqa: E402
from tests.beds.made_catalogue import made_catalogue  # noqa: E402

SITE = {
    "overview": "/",
    "hosts": "/hosts",
    "host": "/hosts/mail0067.example.org",
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
}
COLOURS = 64
LOOKS = {"": LAPTOP, "-dark": LAPTOP, "-phone": PHONE}
IN_DARK = ("overview", "hosts", "host", "heatmap", "files", "copies")
"""Pages whose dark looks are kept too."""


def main(folder: Path) -> None:
    """All of them."""
    os.environ[session.MARK] = session.own_name()
    try:
        with chromium() as browser:
            with own_folder() as place:
                made = made_catalogue(place / "state", 300, hostile=False)
                with serving(place, made.state) as web:
                    draw(browser, web, SITE, folder)
                    add_copies(made.state)
                    draw(browser, web, {"copies": "/copies"}, folder)
            with real_shop(btrfs.make(size="2G")) as web:
                draw(browser, web, _files(web), folder)
    finally:
        session.end_session(session.own_name())


def add_copies(state: Path) -> None:
    """Gives the made-up site a server that it sends to, another that fetches from it, and a repository that is late."""
    with Catalogue.open(state) as found:
        now, facts = datetime.now(UTC), found.host_facts(datetime.now(UTC))
        newest = {host: backup_name(one.last_complete) for host, one in sorted(facts.items()) if one.last_complete}
        hosts = [*newest][:-9]
        some = {host: newest[host] for host in hosts}
        found.set_fact(
            COPIES, copies_text(KnownCopies({}, {"away": some, "backup2": {host: newest[host] for host in hosts[:120]}}))
        )
        found.set_fact(f"{OFFSITE_THERE}far", json.dumps({"incomplete": [], "newest": {host: newest[host] for host in hosts[:40]}}))
        note_stored(found, "far", 734 << 30)
        day, me = timedelta(days=1), os.getpid()
        behind = (HostBehind(hosts[3], newest[hosts[3]], None, "restic could not read all of it"),)
        sessions = (
            (PUSH, "away", ReplicaSession(now - day / 8, now - day / 8, "", "p", len(hosts), 281, 95 << 30, 4100.0)),
            (OFFSITE, "far", ReplicaSession(now - day / 2, now - day / 2, "", "p", 40, 39, 11 << 30, 2300.0, behind=behind)),
        )
        for kind, name, one in sessions:
            note_session(found, name, one, kind)
        running = RunningFetch(me, start_time(me), now - day / 24, now, 281, 112, 41 << 30, tuple(hosts[5:8]))
        note_running(found, "away", running)
        published = json.loads(found.get_fact(FACT) or "{}")
        published |= {"pushes": {"away": 172800.0}, "offsites": {"far": 172800.0}}
        found.set_fact(FACT, json.dumps(published, separators=(",", ":")))


def _files(web: Dashboard) -> dict[str, str]:
    assert web.nights
    source, first = web.nights.source, web.nights.names("shop")[0]
    return {
        "login": "/login",
        "files": f"/files/shop?path={source}",
        "file": f"/files/shop?path={source}/prices.txt",
        "versions": f"/files/shop/versions?path={source}/prices.txt",
        "compare": f"/files/shop/compare?path={source}/prices.txt&before={first}",
        "restore": f"/restore/shop?path={source}/prices.txt",
        "doctor": "/doctor",
    }


def draw(browser: Browser, web: Dashboard, pages: dict[str, str], folder: Path) -> None:
    """A picture of the window for each page and look."""
    for look, size in LOOKS.items():
        scheme = "dark" if look == "-dark" else "light"
        with visit(browser, web.url, viewport=size, color_scheme=scheme, reduced_motion="reduce") as (page, _):
            enter(page, web.url, web.cookie)
            for name, path in pages.items():
                if look == "-dark" and name not in IN_DARK:
                    continue
                page.context.clear_cookies() if name == "login" else enter(page, web.url, web.cookie)
                page.goto(path, wait_until="networkidle")
                for button in page.get_by_role("button", name="Run it now").all():  # the doctor's, who has not looked yet
                    button.click()
                    page.wait_for_load_state("networkidle")
                _keep(page.screenshot(), folder / f"dashboard-{name}{look}.png")


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
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
