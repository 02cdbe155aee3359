"""The times that commands print and read: those of the pool's zone, wherever the machine is."""

import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import click
import pytest

from backupd.cli import COMMANDS, group
from btrkeep.clock import Clock
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Clock, "now", lambda clock: clock.start or datetime.now(UTC))  # on a busy machine a night takes a second
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


TAKES_A_BACKUP = {
    "browse": ["browse", "web1@{}"],
    "restore": ["restore", "web1@{}", "/", "--to", "/nowhere", "--dry-run"],
    "compare": ["compare", "web1", "/", "{}"],
    "verify": ["verify", "web1@{}", "--dry-run"],
    "dedupe": ["dedupe", "web1@{}", "--dry-run"],
    "damaged": ["damaged", "web1@{}"],
    "repair": ["repair", "web1@{}", "--dry-run"],
    "drill": ["drill", "web1@{}", "--sample", "1"],
    "hold": ["hold", "web1@{}"],
    "release": ["release", "web1@{}"],
    "accept": ["accept", "web1@{}"],
    "unexpire": ["unexpire", "web1@{}"],
    "delete": ["delete", "web1@{}", "--dry-run"],
}
"""The commands that take a backup of a host."""
NOT_ONE = {"versions"}
"""It accepts only HOST@latest, because it is about all backups."""


def test_the_table_has_every_command_that_takes_a_backup() -> None:
    taking = set()
    for name in COMMANDS:
        words = group.get_command(click.Context(group), name)
        assert words
        metavars = [
            parameter.make_metavar(click.Context(words)) for parameter in words.params if parameter.param_type_name == "argument"
        ]
        if any("BACKUP" in metavar for metavar in metavars) or metavars == ["HOST", "NAME"]:
            taking.add(name)
    assert taking == set(TAKES_A_BACKUP)


@pytest.mark.parametrize("name", TAKES_A_BACKUP)
def test_a_day_of_a_backup_is_one_of_the_pools_zone(nights: Nights, name: str) -> None:
    """In UTC the third backup is of the fourth, in Tokyo too."""
    process = nights.backupd(*[word.format("2025-11-03") for word in TAKES_A_BACKUP[name]], check=False, env=TOKYO)
    other = nights.backupd(*[word.format("2025-11-04") for word in TAKES_A_BACKUP[name]], check=False, env=TOKYO)
    assert "web1 has no backup 2025-11-04" in other.stderr
    assert NAMES[2] in process.stdout + process.stderr or (name, process.returncode) in {
        ("damaged", 0),
        ("dedupe", 0),
        ("repair", 0),
    }
    assert "has no backup 2025-11-03" not in process.stderr or name == "delete"


@pytest.mark.parametrize(
    ("at", "name"),
    [
        ("2025-11-03", NAMES[2]),
        ("2025-11-02", NAMES[1]),
        ("2025-11-03T19:00", NAMES[2]),
        ("2025-11-03 18:59:59", NAMES[1]),
        ("2025-11-02T01:30:00-07:00", NAMES[0]),
        ("2025-11-02T01:30:00-08:00", NAMES[1]),
    ],
)
def test_at_is_read_on_the_pools_clocks(nights: Nights, at: str, name: str) -> None:
    for words in (["browse", "web1", "--at", at], ["restore", "web1", "/", "--to", "/nowhere", "--dry-run", "--at", at]):
        assert name in nights.backupd(*words, env=TOKYO).stdout
    explained = nights.backupd("retention", "explain", "web1", "--at", at, env=TOKYO).stdout
    assert [backup in explained for backup in NAMES] == [backup <= name for backup in NAMES]


@pytest.mark.parametrize("words", [["browse", "web1", "--at"], ["hold", "web1", "latest", "--until"]])
def test_a_time_that_the_clocks_show_twice_needs_its_offset_and_the_hint_can_be_typed(nights: Nights, words: list[str]) -> None:
    refused = nights.backupd(*words, "2030-11-03T01:30", check=False, env=TOKYO)
    assert refused.returncode == 2
    assert "clocks in America/Los_Angeles show 01:30:00 twice or not at all on 2030-11-03" in refused.stderr
    typed = re.findall(r"2030-11-03T01:30:00-0[78]:00", refused.stderr)
    assert len(set(typed)) == 2
    for moment in typed:
        nights.backupd(*words, moment, env=TOKYO)
