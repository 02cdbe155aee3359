"""`backupd COMMAND | head -1`, or a closed pager: a command still completes its work; otherwise exit status 0 would be wrong."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds import TOP, work
from tests.beds.cli import BACKUPD, backupd_start
from tests.beds.nights import Nights
from tests.beds.two_pools import NOW, TwoPools

pytestmark = pytest.mark.btrfs


def unread(nights: Nights, *words: str) -> None:
    process = backupd_start("--config", nights.config, *words)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()  # before anything is written
    assert process.wait(timeout=60) == 0
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()


def test_copies_are_fetched_although_the_output_is_not_read(two: TwoPools) -> None:
    made = [two.night(f"2026-03-0{day}T22:00:00Z", str(day)) for day in (1, 2, 3)]
    unread(two.second, "replicate", "--now", NOW)
    assert two.names(two.second.pool) == made


def test_backups_are_verified_and_expire_although_the_output_is_not_read(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = Nights(make_btrfs(size="300M"), "--rehearsal")
    nights.host("web", tree)
    for day in (1, 2, 3):
        nights.backupd("run", "web", "--now", f"2026-03-0{day}T22:00:00Z")
    unread(nights, "verify")
    states = {row["verified"]["state"] for row in json.loads(nights.backupd("list", "web", "--json").stdout)}
    assert states == {"whole"}
    nights.tables["retention"] = {"daily": 1, "min_keep": 1, "grace": "1s"}
    nights.write()
    for hour in (12, 13):
        unread(nights, "expire", "--now", f"2026-03-20T{hour}:00:00Z")
    assert len(nights.names("web")) == 1


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_run_whose_output_is_closed_makes_its_backup(make_btrfs: Callable[..., Path], tree: Path, closed: str) -> None:
    """As some cron jobs and daemons start programs."""
    nights = Nights(make_btrfs(size="300M"), "--rehearsal")
    nights.host("web", tree)
    work("sh", "-c", f"{shlex.join([*BACKUPD, '--config', str(nights.config), 'run', 'web'])} {closed}", cwd=TOP)
    assert len(nights.names("web")) == 1


def test_a_run_whose_output_has_no_room_makes_its_backup_and_says_what_is_missing(
    make_btrfs: Callable[..., Path], tree: Path
) -> None:
    nights = Nights(make_btrfs(size="300M"), "--rehearsal")
    nights.host("web", tree)
    for words in (["run", "web", "--now", "2026-03-01T22:00:00Z"], ["verify"]):
        line = shlex.join([*BACKUPD, "--config", str(nights.config), *words])
        done = work("sh", "-c", f"{line} >/dev/full", cwd=TOP, check=False)
        assert done.returncode == 1
        assert done.stderr.splitlines()[-2:] == [
            "error: standard output: No space left on device",
            "hint: the output is incomplete: check the file or program that receives it",
        ]
    assert [row["verified"]["state"] for row in json.loads(nights.backupd("list", "web", "--json").stdout)] == ["whole"]
