"""Old histories for imports: dated folders made by rsync, and the output of an import of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.beds.nights import Nights
from tests.beds.work import work


def differing(tree: Path, copy: Path) -> str:
    """Returns the differences found by an independent program: content, owners, modes, times, ACLs, attributes, hard links."""
    words = ("rsync", "-n", "-aHAXc", "--numeric-ids", "--modify-window=-1", "--delete", "-i")
    return work(*words, f"{tree}/", f"{copy}/").stdout


def data(nights: Nights, host: str, name: str) -> Path:
    return nights.pool / "hosts" / host / name / "data"


def imported(nights: Nights, *words: str | Path, status: int = 0) -> Any:
    done = nights.backupd("import", *words, "--json", check=False)
    assert done.returncode == status, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout) if done.stdout else done.stderr


def dated(place: Path, count: int, fill: Callable[[Path, int], None]) -> Path:
    """Makes folders with a date, each from the one before by hard links, like rsync --link-dest."""
    root, before = place / "dated", None
    root.mkdir()
    source = place / "src"
    source.mkdir()
    for number in range(count):
        fill(source, number)
        tree = root / f"2026-03-{number + 1:02}"
        link = (f"--link-dest={before}",) if before else ()
        work("rsync", "-aHAX", *link, f"{source}/", f"{tree}/")
        before = tree
    return root
