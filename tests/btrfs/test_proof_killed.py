"""Killed at each of their checkpoints, verify, a night that fetches damaged files again, and an initial copy succeed
the next time.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds.cli import command
from tests.beds.faults import damage
from tests.beds.nights import Nights
from tests.beds.two_pools import TwoPools
from tests.beds.watch import checkpoints, disagreements, killed, rows, writable_finals
from tests.beds.work import work
from tests.btrfs.test_initial_copies import disk, filled, seed_from, seed_to, two
from tests.btrfs.test_verify import verify

pytestmark = [pytest.mark.btrfs, pytest.mark.slow, pytest.mark.timeout(400)]
__all__ = ["disk", "two"]


def damaged(make_btrfs: Callable[..., Path], tree: Path) -> Nights:
    """Two nights of a host; a file that both share is damaged, which is not detected yet."""
    nights = Nights(make_btrfs(size="300M"))
    content = os.urandom(200_000)
    (tree / "shared").write_bytes(content)
    nights.host("web", tree)
    for number in range(2):
        (tree / str(number)).write_bytes(os.urandom(5000))
        nights.run("web")
    damage(nights.top, content[:4096])
    return nights


def test_a_verify_that_is_killed_anywhere_tells_the_truth_the_next_time(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = damaged(make_btrfs, tree)
    number = len(checkpoints_of_verify(nights))
    assert number >= 8
    for count in range(1, number + 1):
        forget(nights)
        killed(nights, "any", "any", "verify", count=count)
        named = {name for (name,) in rows(nights, "select name from damage")}  # used by the next night
        assert named in (set(), set(nights.names("web"))), count
        assert named or not (nights.pool / "hosts/web/checksums").exists(), count
        answer = verify(nights, status=1)["backups"]
        assert [row["damages"] for row in answer if row["damages"]], count
        assert {name for (name,) in rows(nights, "select name from damage")} == set(nights.names("web")), count
        assert {row["verified"]["state"] for row in nights.listed("web")} == {"damaged"}, count
        assert [backup["damages"] for backup in verify(nights, status=1)["backups"]] == [1, 1], count


def checkpoints_of_verify(nights: Nights) -> list[str]:
    """Returns the checkpoints of a pass over damaged backups."""
    file = nights.top / "passed"
    done = command("backupd", "--config", nights.config, "verify", check=False, at=(f"list:{file}", "any", "any", 0))
    assert done.returncode == 1, done.stderr
    return file.read_text().splitlines()


def forget(nights: Nights) -> None:
    for name in ("checksums", "verified.json", "damaged.json"):
        (nights.pool / "hosts/web" / name).unlink(missing_ok=True)
    work("sqlite3", nights.state / "catalogue.sqlite", "delete from damage")


def test_a_night_that_is_killed_anywhere_fetches_what_is_damaged(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = damaged(make_btrfs, tree)
    verify(nights, status=1)
    first = nights.names("web")
    passed = checkpoints(nights, "run", "web")
    assert any("damaged files removed" in name for name in passed)
    last = next(place for place, name in enumerate(passed, 1) if name == "after damaged files removed")
    for count in range(1, last + 8):
        name = nights.names("web")[-1]
        if name not in first:
            nights.backupd("delete", f"web@{name}", "--force", "--now-without-grace")
        assert nights.names("web") == first, count
        killed(nights, "any", "any", "run", "web", count=count)
        nights.run("web")
        assert nights.differences("web", tree) == [], count
        assert writable_finals(nights) == []
        assert disagreements(nights) == []


def test_a_seed_that_is_killed_anywhere_goes_on(two: TwoPools, disk: Path) -> None:
    first = filled(two)
    words = ("replicate", "--seed-to", str(disk), "--part-size", "64KiB", "backup2", "--now", "2026-03-20T12:00:00Z")
    number = len(checkpoints(two.first, *words))
    for count in range(1, number + 1):
        shutil.rmtree(disk)
        for path in (two.first.pool / ".btrkeep/common").iterdir():
            path.unlink()
        killed(two.first, "any", "any", *words, count=count)
        seed_to(two, disk, "backup2")
    seed_from(two, disk)
    assert two.differences(first) == ""
