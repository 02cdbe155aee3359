"""Programs that start runs, under real systemd: all commands report the same finding, and only with a reason."""

import json
import re
from collections.abc import Iterator

import pytest

from tests.beds.machine import Booted, why_not
from tests.systemd.test_boot import boot

pytestmark = [
    pytest.mark.slow,
    pytest.mark.takes(60),
    pytest.mark.btrfs,
    pytest.mark.root,
    pytest.mark.skipif(bool(why_not()), reason=f"left out: under real systemd ({why_not()})"),
    pytest.mark.timeout(600),  # the machine may have to be made first
]


@pytest.fixture(scope="module")
def starts(no_leftovers: None) -> Iterator[Booted]:
    yield from boot("starts.sh")


@pytest.mark.parametrize(
    ("state", "is_missed", "words"),
    [
        ("off", True, "nothing starts the backups"),
        ("on", False, "btrkeep-backup@main.timer, the next at"),
        ("never", True, "btrkeep-backup@main.timer start runs, none of them in the window"),
        ("nocron", True, "nothing starts the backups"),
        ("cron", False, "/etc/cron.d/btrkeep, the next at"),
        ("elapsed", True, "nothing starts the backups"),
        ("monotonic", False, "nightly.timer, the next at"),
        ("noanacron", True, "nothing starts the backups"),
        ("anacron", False, "/etc/anacrontab, the next at"),
    ],
)
def test_each_command_shows_whether_runs_start_in_time(starts: Booted, state: str, is_missed: bool, words: str) -> None:
    (checked,) = [row for row in json.loads(starts.read(f"check-{state}")) if row["subject"] == "schedule"]
    assert words in checked["message"]
    assert checked["level"] == ("warning" if is_missed else "ok")
    shown = json.loads(starts.read(f"status-{state}"))["pool"]
    assert ("schedule" in [finding["check"] for finding in shown["findings"]]) is is_missed
    assert "schedule" not in shown["not_looked_at"]
    diagnosed = json.loads(starts.read(f"doctor-{state}"))
    assert ("schedule" in [finding["name"] for finding in diagnosed["findings"]]) is is_missed
    (graded,) = re.findall(r'^btrkeep_pool_health\{check="schedule",.*\} (\S+)$', starts.read(f"metrics-{state}"), re.MULTILINE)
    assert float(graded) == is_missed


def test_the_hint_is_the_command_that_was_typed(starts: Booted) -> None:
    (checked,) = [row for row in json.loads(starts.read("check-off")) if row["subject"] == "schedule"]
    assert checked["hint"] == "`systemctl enable --now btrkeep-backup@main.timer`"
