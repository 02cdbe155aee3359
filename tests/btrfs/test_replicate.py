"""A second pool, fetched from the first: what is there is the same by checksums of rsync, and can take over."""

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.beds import work
from tests.beds.nights import Nights

pytestmark = pytest.mark.btrfs


class TwoPools:
    """A first pool with a host that changes, and a second one that fetches from it."""

    def __init__(self, first: Path, second: Path, **keys: Any) -> None:
        self.first, self.second = Nights(first, "--rehearsal"), Nights(second, "--rehearsal")
        self.source = self.first.source / "web1"
        self.source.mkdir()
        self.first.host("web1", self.source)
        self.second.tables["replica.office"] = {"from": str(self.first.pool), **keys}
        self.second.write()

    def night(self, now: str, content: str) -> str:
        """A night of the first pool, after a file has changed and one is new; the backup's name."""
        (self.source / "changed").write_text(content * 5000)
        (self.source / f"new-{now[:10]}").write_text(content)
        self.first.backupd("run", "web1", "--now", now)
        return now.replace("-", "-").replace(":", "")

    def fetch(self, *words: str, status: int = 0, env: Mapping[str, str] | None = None) -> Any:
        done = self.second.backupd("replicate", "--json", *words, "--now", "2026-03-20T12:00:00Z", check=False, env=env)
        assert done.returncode == status, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return json.loads(done.stdout) if done.stdout else done.stderr

    def names(self, pool: Path, host: str = "web1") -> list[str]:
        folder = pool / "hosts" / host
        return sorted(name for name in os.listdir(folder) if name.startswith("20")) if folder.is_dir() else []

    def differences(self, name: str) -> str:
        """What rsync, which knows nothing of us, finds different between the two copies of a backup, by checksums."""
        one, other = (pool / "hosts/web1" / name for pool in (self.first.pool, self.second.pool))
        return work("rsync", "-n", "-aHAXc", "--delete", "-i", f"{one}/", f"{other}/").stdout


@pytest.fixture
def two(make_btrfs: Callable[..., Path]) -> TwoPools:
    return TwoPools(make_btrfs(), make_btrfs())


def shown(path: Path) -> dict[str, str]:
    """What `btrfs subvolume show` says."""
    lines = work("btrfs", "subvolume", "show", path).stdout.splitlines()
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def test_what_is_fetched_is_the_same_and_a_difference_to_what_was_there(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    assert [one["parent"] for one in two.fetch()[0]["fetched"]] == [None]
    second, third = two.night("2026-03-02T22:00:00Z", "b"), two.night("2026-03-03T22:00:00Z", "c")
    told = two.fetch()[0]
    assert [(one["backup"], one["parent"]) for one in told["fetched"]] == [(second, first), (third, second)]
    assert two.names(two.second.pool) == [first, second, third]
    for name in (first, second, third):
        assert two.differences(name) == ""
        here, there = (shown(pool / "hosts/web1" / name) for pool in (two.second.pool, two.first.pool))
        assert here["Received UUID"] == there["UUID"]
        assert here["Flags"] == "readonly"
    assert two.fetch()[0]["planned"] == 0
    assert [one["name"] for one in json.loads(two.second.backupd("list", "web1", "--json").stdout)] == [first, second, third]
    assert json.loads(two.second.backupd("rebuild", "--json").stdout)["backups"] == 3
    assert len(json.loads(two.second.backupd("list", "web1", "--json").stdout)) == 3
    assert Path(two.second.pool / "hosts/web1/latest").readlink() == Path(third)


def test_a_host_that_is_fetched_is_not_backed_up_until_it_is_promoted_and_then_goes_on(two: TwoPools) -> None:
    (two.source / "large").write_bytes(os.urandom(3_000_000))
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    two.second.host("web1", two.source)
    refused = two.second.backupd("run", "web1", "--now", "2026-03-02T22:00:00Z", check=False)
    assert refused.returncode == 1
    assert "copies" in refused.stderr
    assert two.names(two.second.pool) == [first]
    two.second.backupd("promote", "web1", "--yes")
    told = json.loads(two.second.backupd("run", "web1", "--json", "--now", "2026-03-03T22:00:00Z").stdout)
    assert told[0]["outcome"] == "complete"
    assert told[0]["new_bytes"] < 100_000  # of three million
    assert two.second.backupd("replicate", "--now", "2026-03-20T12:00:00Z", check=False).returncode == 1


def test_what_was_cut_off_leaves_nothing_and_is_fetched_again(two: TwoPools) -> None:
    (two.source / "large").write_bytes(os.urandom(6_000_000))
    first = two.night("2026-03-01T22:00:00Z", "a")
    far = two.second.top / "far"
    far.write_text('#!/bin/sh\n"$REAL" "$@" | head -c 2000000\n')
    two.fetch()
    assert two.names(two.second.pool) == [first]


def test_a_change_by_hand_is_noticed_and_not_built_upon(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    copy = two.second.pool / "hosts/web1" / first
    work("btrfs", "property", "set", "-f", copy, "ro", "false")
    (copy / "mine").write_text("x")
    work("btrfs", "property", "set", copy, "ro", "true")
    two.night("2026-03-02T22:00:00Z", "b")
    two.fetch(status=1)
    assert two.names(two.second.pool) == [first]


def test_the_last_common_backup_stays_on_both_sides(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    for day in range(2, 8):
        two.night(f"2026-03-{day:02}T22:00:00Z", str(day))
    two.first.tables["retention"] = {"daily": 2, "min_keep": 1, "grace": "0s"}
    two.first.write()
    two.first.backupd("expire", "--now", "2026-03-10T12:00:00Z")
    assert two.names(two.first.pool)[0] == first
    assert len(two.names(two.first.pool)) == 3
    why = two.first.backupd("retention", "explain", "web1", "--now", "2026-03-10T12:00:00Z").stdout
    assert "common with replica office" in why


def test_a_second_machine_is_gone_subprocess(two: TwoPools) -> None:
    two.second.tables["replica.office"]["from"] = str(two.first.pool.parent / "nowhere")
    two.second.write()
    assert subprocess.run(["true"], check=True).returncode == 0
    assert "never fetched" in two.fetch(status=1)
