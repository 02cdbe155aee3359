"""What the commands print of times, and which times they read: those of the pool's zone, wherever the machine is."""

import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.beds import btrfs
from tests.beds.nights import Nights

pytestmark = [pytest.mark.btrfs]

ZONE = ZoneInfo("America/Los_Angeles")
TOKYO = {"TZ": "Asia/Tokyo"}
FIRST, SECOND = datetime(2025, 11, 2, 8, 30, tzinfo=UTC), datetime(2025, 11, 2, 9, 30, tzinfo=UTC)
"""The two moments at which clocks in Los Angeles show 01:30 on that day."""
EVENING = datetime(2025, 11, 4, 3, 0, tzinfo=UTC)
"""Still the third of November there."""
NAMES = ["2025-11-02T083000Z", "2025-11-02T093000Z", "2025-11-04T030000Z"]
OTHER_CLOCKS = re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(Z|\+\d\d:?\d\d| UTC| JST)")
OWN_CLOCKS = re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)? ?-0[78]:?00")


@pytest.fixture(scope="module")
def nights(_shared_mount: Path) -> Iterator[Nights]:
    top = _shared_mount / "times"
    subprocess.run(["btrfs", "-q", "subvolume", "create", top], check=True)
    site = Nights(top)
    site.settings("pool", zone=ZONE.key)
    (site.source / "web1").mkdir()
    site.host("web1", site.source / "web1")
    for number, moment in enumerate([FIRST, SECOND, EVENING]):
        (site.source / "web1" / "file").write_text(f"{number}" * (number + 1))
        site.night(now=moment)
    assert sorted(path.name for path in (site.pool / "hosts" / "web1").glob("20*")) == NAMES
    yield site
    btrfs.delete_subvolume(top, _shared_mount)


SHOWN = [
    ["list", "web1"],
    ["status", "web1"],
    ["log"],
    ["versions", "web1", "/source/web1/file"],
    ["hold", "web1", NAMES[0], "--until", "2030-01-01"],
    ["retention", "explain", "web1"],
    ["list", "web1"],
    ["delete", f"web1@{NAMES[1]}", "--dry-run"],
    ["log", "--actions"],
    ["day", "2025-11-02"],
    ["doctor"],
    ["check"],
    ["status"],
    ["expire", "--dry-run"],
    ["notify", "--dry-run"],
]


def test_all_commands_print_times_on_the_pools_clocks(nights: Nights) -> None:
    for words in SHOWN:
        done = nights.backupd(*[word.replace("/source", str(nights.source)) for word in words], check=False, env=TOKYO)
        assert "Traceback" not in done.stderr
        text = done.stdout + done.stderr
        assert [match.group() for match in OTHER_CLOCKS.finditer(text)] == [], words
        assert OWN_CLOCKS.search(text), (words, text)
