"""A lasting problem differs from that of one night: the same unreadable path, or an empty folder, in three successive nights."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest

from tests.beds import work
from tests.beds.hangfs import hanging
from tests.beds.nights import Nights
from tests.beds.within import Within

pytestmark = [pytest.mark.btrfs]
SKIPPED_SINCE = r"deletions have been skipped since 2026-11-02T22:0\d:\d\dZ"  # the time that is given to a command goes on
ODD = "odd `x` <b>@[1]\\*"


@pytest.fixture
def nights(shared_btrfs: Path) -> Nights:
    return Within(shared_btrfs, "--rehearsal")


def night(nights: Nights, day: int) -> str:
    at = f"2026-11-{day:02}T22:00:00Z"
    nights.backupd("run", "web1", "--now", at)
    return at


def alarms(nights: Nights, at: str) -> list[str]:
    answer = json.loads(nights.backupd("notify", "--json", "--now", at, check=False).stdout)["standing"]
    return [alarm["text"] for alarm in answer if alarm["subject"] == "condition web1"]


def test_an_unreadable_folder_is_an_alarm_on_the_third_night_whose_command_ends_it(nights: Nights) -> None:
    for name in ("etc/1", "etc/2", "u/kept"):
        (nights.source / name).parent.mkdir(exist_ok=True)
        (nights.source / name).write_text(name)
    nights.host("web1", nights.source, exclude=["*.tmp"], unreadable_limit="60%")
    night(nights, 1)
    with hanging(nights.source / "u" / ODD, user=65534):
        (nights.source / "etc" / "1").unlink()
        for day in (2, 3):
            assert not alarms(nights, night(nights, day))
        (text,) = alarms(nights, night(nights, 4))
        assert re.search(SKIPPED_SINCE + r" \(3 backups in a row\)", text), text

        gone = nights.source / "etc" / "1"
        for words in (("browse", "web1", gone.parent), ("versions", "web1", gone), ("status", "web1")):
            shown = nights.backupd(*words, "--now", "2026-11-04T22:10:00Z").stdout
            assert re.search(SKIPPED_SINCE, " ".join(shown.split())), shown
        back = nights.backupd("restore", "web1", gone, "--to", nights.top / "back", "--dry-run", "--now", "2026-11-04T22:10:00Z")
        assert re.search(SKIPPED_SINCE, back.stdout + back.stderr), back
        message = nights.backupd("notify", "--digest", "--dry-run", "--now", "2026-11-04T22:10:00Z").stdout
        assert "deletions have been skipped since" in " ".join(message.split()), message

        (command,) = re.findall(r"backupd (--config .*)", text)
        nights.backupd(*shlex.split(command))
        assert "*.tmp" in nights.config.read_text()
        assert not alarms(nights, night(nights, 5))
    data = next(nights.pool.glob("hosts/web1/2026-11-05*")) / "data"
    assert not os.path.lexists(f"{data}{gone}"), "deleted on the host, and nothing stood against it any more"
    assert Path(f"{data}{nights.source}/u/kept").exists()


def test_a_folder_that_lost_its_mount_stays_known_until_it_is_mounted_again(nights: Nights) -> None:
    (nights.source / "mnt").mkdir()
    for number in range(400):
        (nights.source / f"f{number}").write_text("x")
    work("mount", "-t", "tmpfs", "none", nights.source / "mnt")
    (nights.source / "mnt" / "data").write_text("x")
    nights.host("web1", nights.source, unreadable_limit="60%")
    os.utime(nights.source / "mnt", (1, 1))
    night(nights, 1)
    work("umount", nights.source / "mnt")
    os.utime(nights.source / "mnt", (1, 1))
    for day in (2, 3):
        assert not alarms(nights, night(nights, day))
    (text,) = alarms(nights, night(nights, 4))
    assert "mnt has been empty since 2026-11-02" in text, text
    (nights.source / "mnt" / "data").write_text("x")
    assert not alarms(nights, night(nights, 5))
