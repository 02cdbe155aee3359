"""`backupd promote`: the backups of later nights, the remains of a kill, and whose holds count. Compared with the sources
themselves.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds import TOP, work
from tests.beds.faults import damage
from tests.beds.nights import Nights
from tests.beds.two_pools import TwoPools
from tests.beds.watch import killed

pytestmark = pytest.mark.btrfs
MIB = 1 << 20


def content(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Returns the content and the mode of each file there."""
    return {path.name: (path.read_bytes(), path.stat().st_mode) for path in folder.iterdir()}


@pytest.mark.parametrize("nights", [0, 2])
def test_names_that_the_host_separates_after_promote_are_separate(two: TwoPools, nights: int) -> None:
    """Makes that many nights after it. If two names are one inode in the base, rsync would write the new content of one to both.

    There are thousands of files, because only a tree of several leaves has parts that a search may skip.
    """
    many = two.source / "many"
    many.mkdir()
    for number in range(4000):
        (many / f"{number:05}").write_text(str(number) * 20)
    two.night("2026-02-28T22:00:00Z", "w")
    for number in (1000, 2000, 3000):
        os.link(many / f"{number:05}", many / f"{number:05}.link")
    two.night("2026-03-01T22:00:00Z", "x")
    two.fetch()
    two.second.backupd("promote", "web1", "--yes")
    two.second.host("web1", two.source)
    for day in range(5, 5 + nights):
        two.second.backupd("run", "web1", "--now", f"2026-03-0{day}T22:00:00Z")
    for number in (1000, 2000, 3000):
        link = many / f"{number:05}.link"
        link.unlink()
        link.write_bytes(b"SECRET")
        link.chmod(0o600)
    two.second.backupd("run", "web1", "--now", "2026-03-07T22:00:00Z")
    newest = two.names(two.second.pool)[-1]
    assert two.second.record("web1", newest)["state"] == "complete"
    assert content(two.second.data("web1", two.source, newest) / "many") == content(many)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_promote_that_was_killed_pins_nothing_and_can_be_given_again(two: TwoPools, when: str) -> None:
    two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    common = two.second.pool / ".btrkeep/common/office.json"
    assert "web1" in json.loads(common.read_text())["hosts"]
    assert two.second.backupd("promote", "web1", "--dry-run").stdout.startswith("1 host would be promoted: web1\n")
    assert "web1" in json.loads(common.read_text())["hosts"]
    killed(two.second, when, "notes.json replaced", "promote", "web1", "--yes")
    assert two.second.backupd("promote", "web1", "--yes", check=False).returncode == (0 if when == "before" else 2)
    assert not common.exists() or "web1" not in json.loads(common.read_text())["hosts"]
    assert "common with" not in two.second.backupd("retention", "explain", "web1").stdout


def test_a_hold_stays_when_the_damaged_copy_is_fetched_again(two: TwoPools) -> None:
    """The first server's hold has an end; an attacker on that server must not end ours."""
    data = os.urandom(MIB)
    (two.source / "large").write_bytes(data)
    first = two.night("2026-03-01T22:00:00Z", "a")
    (two.source / "large").write_bytes(os.urandom(MIB))
    two.night("2026-03-02T22:00:00Z", "b")
    two.fetch()
    now = ("--now", "2026-03-20T12:00:00Z")
    two.second.backupd("hold", "web1", first, "--why", "of the court", *now)
    two.first.backupd("hold", "web1", first, "--why", "a look", "--until", "2026-03-21", *now)
    damage(two.second.top, data[4096:8192])
    assert two.second.backupd("verify", *now, check=False).returncode == 1
    (answer,) = two.fetch("office", "--damaged")
    assert [fetched_backup["backup"] for fetched_backup in answer["fetched"]] == [first]
    hold = json.loads((two.second.pool / "hosts/web1/notes.json").read_text())["backups"][first]["hold"]
    assert (hold["until"], hold["why"]) == (None, "of the court")


def test_the_first_night_after_it_reads_no_copy_for_a_crash_that_was_none(make_btrfs: Callable[..., Path]) -> None:
    """No run of this pool has recorded the boot so far, and all backups fetched in it seemed to be of the boot before."""
    first, second = Nights(make_btrfs()), Nights(make_btrfs())
    source = first.source / "web1"
    source.mkdir()
    (source / "file").write_bytes(os.urandom(MIB))
    first.host("web1", source)
    first.run("web1")
    second.tables["replica.office"] = {"from": str(first.pool)}
    second.write()
    second.backupd("replicate", "office")
    second.backupd("promote", "web1", "--yes")
    second.host("web1", source)
    done = second.backupd("run", "web1")
    assert "crash" not in done.stdout + done.stderr
    assert len(second.names("web1")) == 2


def test_more_hosts_are_promoted_than_files_may_be_open(two: TwoPools) -> None:
    """Thousands of hosts, just after the first server was lost."""
    two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    notes = two.second.pool / "hosts/web1/notes.json"
    for number in range(60):
        folder = two.second.pool / f"hosts/copy{number}"
        folder.mkdir(mode=0o700)
        shutil.copy(notes, folder)
    words = ("bash", "-c", 'ulimit -n 50; exec "$@"', "-", sys.executable, "-m", "backupd", "--config", two.second.config)
    done = work(*words, "promote", "*", "--yes", cwd=TOP)
    assert "61 hosts promoted" in done.stdout
    assert not [path for path in two.second.pool.glob("hosts/*/notes.json") if "replica" in json.loads(path.read_text())]
