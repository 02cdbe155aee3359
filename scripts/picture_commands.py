"""Makes a picture of the output of each command on a terminal of 80 and of 120 columns.

    sudo .venv/bin/python scripts/picture_commands.py FOLDER [--only WORD]

The pool is small and real, with a host of a long name; this needs root and a btrfs. Lines that are wider than their terminal, which
would break them, are printed; everything else is for the reader of FOLDER/COMMAND-COLUMNS.png.
"""

import argparse
import io
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # btrkeep need not be installed

from playwright.sync_api import Browser
from rich.console import Console
from rich.text import Text

from tests.beds import TOP, btrfs, session
from tests.beds.browser import chromium
from tests.beds.nights import Nights
from tests.beds.terminal import at_a_terminal

COLUMNS = (80, 120)
LONG = "database-primary-0041-of-some-customer"
COMMANDS = (
    *("check", "doctor", "status", "list", "list {host}", "run --dry-run", "log", "log {host}", "retention explain {host}"),
    *("retention explain", "retention explain {host} --policy daily=1", "expire --dry-run", "usage", "usage {host}", "forecast"),
    *("trend --days 1", "day", "browse {host} {source}", "versions {host} {source}/prices.txt", "compare {host} {source} {first}"),
    *("restore {host} {source}/prices.txt --to {top}/back --dry-run", "host list", "notify", "hold {host} {first}"),
    *("status {host}", "list {host}@{first}", "run --all --dry-run", "--help", "run --help", "restore --help"),
    *("verify --dry-run", "verify {host}@{first}", "scrub", "damaged", "damaged --help", "verify --help", "drill {host}"),
)
OTHERS = (
    *("balancer score {pool}", "balancer plan {pool}", "balancer run {pool} --dry-run", "balancer history {pool}"),
    *("balancer --help", "heatmap --help", "heatmap --show {pool}", "web --help", "web user --help"),
)


def main() -> int:
    """Returns the exit status: 1 if a line is too wide."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    words = parser.parse_args()
    words.folder.mkdir(parents=True, exist_ok=True)
    os.environ[session.MARK] = session.own_name()
    problems = 0
    try:
        nights = made(btrfs.make(size="2G"))
        names = {"host": LONG, "source": nights.source, "top": nights.top, "pool": nights.pool, "first": nights.names(LONG)[0]}
        lines = [f"backupd --config {nights.config} {words}" for words in COMMANDS] + list(OTHERS)
        with chromium() as browser:
            for line in (line.format(**names) for line in lines if words.only in line):
                for columns in COLUMNS:
                    problems += draw(browser, line, columns, words.folder, nights)
    finally:
        session.end_session(session.own_name())
    return 1 if problems else 0


def made(top: Path) -> Nights:
    """Makes a pool with three nights of two hosts; one of the hosts fails."""
    nights = Nights(top)
    (nights.source / "folder").mkdir()
    nights.host(LONG, nights.source)
    nights.host("lab", nights.source / "gone")
    nights.tables["retention"] = {"daily": 14, "weekly": 13, "monthly": 12}
    nights.write()
    for night in range(3):
        (nights.source / "prices.txt").write_text(f"black tea {2 + night}.80\n" * 100)
        (nights.source / "folder" / f"{night}.bin").write_bytes(os.urandom(300_000))
        with at_a_terminal([sys.executable, "-m", "backupd", "--config", nights.config, "run", "--all"], cwd=TOP) as run:
            run.ends()
        nights.backupd("sample")
    return nights


def draw(browser: Browser, line: str, columns: int, folder: Path, nights: Nights) -> int:
    """Makes a picture of the output of a command line; returns the number of lines that are too wide."""
    program, *words = line.split()
    env = {"TERM": "xterm-256color", "NO_COLOR": ""}
    with at_a_terminal([sys.executable, "-m", program, *words], env, TOP, columns) as terminal:
        terminal.ends(60)
        shown = terminal.text.replace(str(nights.config), "main.toml")
    short = line.replace(f"--config {nights.config} ", "").replace(str(nights.top), "").replace("/", "_").replace(" ", "-")[:60]
    console = Console(record=True, width=max(columns, 200), file=io.StringIO(), force_terminal=True)
    text = Text.from_ansi(shown)
    console.print(text, soft_wrap=True)
    with browser.new_context(viewport={"width": columns * 8 + 40, "height": 300}) as context:
        page = context.new_page()
        frame = "<pre style='font:13px/1.3 DejaVu Sans Mono,monospace;width:{columns}ch;white-space:pre-wrap;word-break:break-all;"
        page.set_content(console.export_html(code_format=frame.format(columns=columns) + "outline:1px solid #888'>{code}</pre>"))
        page.screenshot(path=folder / f"{short}-{columns}.png", full_page=True)
    wide = [line for line in text.plain.splitlines() if len(line) > columns]
    for wide_line in wide:
        print(f"{columns:>4} {short:<40} {len(wide_line)}: {wide_line}")
    return len(wide)


if __name__ == "__main__":
    sys.exit(main())
