"""The picture of docs/rehearse.rst, and its figures: a rehearsal for a server whose catalogue is made up. Needs root.

    python -m docs.pictures.rehearse [OPTIONS OF backupd rehearse ...]

Twelve hosts: four with mail (many small files, of which 4 % change or come and go each day), five with documents (2 %), three with
dumps (large files that are written anew). The page goes to docs/pictures/rehearse.png, as Chromium shows it.
"""

import json
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from btrkeep.catalogue import Backup, Catalogue

HERE = Path(__file__).resolve().parent
BEGIN = datetime(2026, 11, 1, 22, tzinfo=UTC)
# name, how many hosts, files, bytes of each, and a night's created, deleted and changed files, literal and matched bytes
KINDS = (
    ("mail", 4, 60_000, 20_000, 1500, 1400, 900, 60e6, 2e6),
    ("documents", 5, 20_000, 250_000, 120, 80, 280, 90e6, 60e6),
    ("dumps", 3, 40, 60_000_000, 2, 2, 6, 400e6, 80e6),
)
OPTIONS = ("--question", "holes", "--days", "5", "--age", "5", "--seeds", "5", "--size", "512MiB")


def rows(host: str, kind: tuple[object, ...]) -> list[Backup]:
    """A fortnight of backups, some nights busier than others."""
    _, _, files, size, created, deleted, changed, literal, matched = (
        int(number) if isinstance(number, float) else number for number in kind
    )
    assert isinstance(files, int) and isinstance(size, int) and isinstance(created, int) and isinstance(literal, int)  # noqa: PT018
    assert isinstance(deleted, int) and isinstance(changed, int) and isinstance(matched, int)  # noqa: PT018
    rows = []
    for night in range(15):
        when, share = BEGIN + timedelta(days=night), (0.6, 1.3, 1.1, 1.0, 1.2, 1.4, 0.4)[night % 7]
        numbers = {
            "created": round(created * share),
            "deleted": round(deleted * share),
            "transferred": round((created + changed) * share),
            "matched": round(matched * share),
        }
        new = round(literal * share) if night else files * size
        detail = {"paths": [{"path": "/srv", "numbers": numbers}]}
        rows.append(Backup(host, f"{night:02}", "", "complete", when, when, 60.0, files, files * size, new, None, detail=detail))
    return rows


def make_site(folder: Path) -> Path:
    """A configuration and its catalogue."""
    lines = [
        f'[pool]\npath = "{folder}/pool"\nstate = "{folder}/state"',
        '[retention]\ndaily = 10\nweekly = 4\nmin_keep = 3\ngrace = "1d"',
    ]
    with Catalogue.open(folder / "state") as catalogue:
        for kind in KINDS:
            for number in range(1, kind[1] + 1):
                host = f"{kind[0]}{number}"
                lines.append(f'[host.{host}]\naddress = {json.dumps(f"root@{host}")}\npaths = ["/srv"]')
                for row in rows(host, kind):
                    catalogue.put_backup(row)
    config = folder / "main.toml"
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return config


def photograph(page: Path, picture: Path) -> None:
    """The upper part of the page."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        words = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=words)
        shown = browser.new_page(viewport={"width": 1100, "height": 1500})
        shown.goto(page.as_uri())
        shown.screenshot(path=picture)
        browser.close()


def main() -> None:
    """Makes the site, rehearses, and takes the picture."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config, page = make_site(folder), folder / "rehearse.html"
        words = sys.argv[1:] or OPTIONS
        subprocess.run(
            [sys.executable, "-m", "backupd", "--config", str(config), "rehearse", *words, "--html", str(page)], check=True
        )
        photograph(page, HERE / "rehearse.png")


if __name__ == "__main__":
    main()
