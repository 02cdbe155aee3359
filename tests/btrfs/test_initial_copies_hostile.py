"""Initial copies with a foreign seed.json, and disks that changed the written data."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.beds.two_pools import TwoPools
from tests.btrfs.test_initial_copies import disk, filled, seed_from, seed_to, two

pytestmark = pytest.mark.btrfs
__all__ = ["disk", "two"]

Change = Callable[[dict[str, Any]], object]

TOPS: dict[str, Any] = {
    "no pool": {"format": 1},
    "a number": 3,
    "a list": [],
    "nothing": None,
    "a pool of another kind": {"format": 1, "pool": {"a": 1}},
    "a format of another kind": {"format": "x", "pool": "a"},
    "a format that is nothing": {"format": None, "pool": "a"},
}

HOSTS: dict[str, Change] = {
    "nothing listed": lambda answer: answer.pop("listed"),
    "another kind listed": lambda answer: answer.update(listed=[1, 2]),
    "no backups": lambda answer: answer["listed"].pop("backups"),
    "backups of another kind": lambda answer: answer["listed"].update(backups=7),
    "an empty backup": lambda answer: answer["listed"].update(backups=[[]]),
    "none": lambda answer: answer["listed"].update(backups=[]),
    "a name that leads out": lambda answer: answer["listed"]["backups"][0].__setitem__(0, "../../../etc"),
    "nothing announced": lambda answer: answer.pop("announced"),
    "another kind announced": lambda answer: answer.update(announced="x"),
    "negative bytes": lambda answer: answer["announced"].update(bytes=-5),
    "notes of another kind": lambda answer: answer["announced"].update(notes=[1]),
    "no parts": lambda answer: answer.pop("parts"),
    "parts of another kind": lambda answer: answer.update(parts=5),
    "an empty part": lambda answer: answer.update(parts=[{}]),
    "a part of another kind": lambda answer: answer.update(parts=["x"]),
    "a stream of another version": lambda answer: answer["announced"].update(stream="1"),
    "a list of names in was": lambda answer: answer["listed"].update(was=[{"a": 1}]),
    "a copy of another kind": lambda answer: answer["listed"].update(copy_of=[1]),
    "a format of another kind": lambda answer: answer.update(format=[1]),
    "deep": lambda answer: answer.update(listed=json.loads("[" * 900 + "]" * 900)),
}

REFUSED = {"a name that leads out", "a list of names in was"}
"""Changes that only an attacker makes: then nothing on the disk is trusted."""


def quiet(answer: Any) -> str:
    """The whole output: no traceback, at most one screen."""
    text = json.dumps(answer) if not isinstance(answer, str) else answer
    assert "Traceback" not in text
    assert len(text) < 5000, text
    return text


def test_a_folder_whose_seed_is_nonsense_is_told_in_one_line(two: TwoPools, disk: Path) -> None:
    filled(two)
    seed_to(two, disk, "backup2")
    before = (disk / "seed.json").read_text()
    for name, content in TOPS.items():
        (disk / "seed.json").write_text(json.dumps(content))
        done = two.second.backupd("replicate", "office", "--seed-from", disk, "--now", "2026-03-20T12:00:00Z", check=False)
        assert done.returncode in (1, 2), name
        assert len(quiet(done.stderr).splitlines()) < 5, done.stderr
        assert "seed.json" in done.stderr, done.stderr
        done = two.first.backupd("replicate", "--seed-to", disk, "backup2", "--now", "2026-03-20T12:00:00Z", check=False)
        assert done.returncode in (0, 1, 2), name
        assert len(quiet(done.stderr).splitlines()) < 5, done.stderr
    (disk / "seed.json").write_text(before)
    seed_from(two, disk)
    assert len(two.names(two.second.pool)) == 1


def with_hosts(two: TwoPools, disk: Path, *names: str) -> None:
    """An initial copy of these hosts, which have one small file each."""
    source = two.first.source / "small"
    source.mkdir()
    (source / "file").write_text("x")
    for name in names:
        two.first.host(name, source)
    two.first.backupd("run", *names, "--now", "2026-03-01T21:00:00Z")
    seed_to(two, disk, "backup2")


def damage(disk: Path, host: str, subject: str) -> None:
    file = disk / host / "seed.json"
    answer = json.loads(file.read_text())
    HOSTS[subject](answer)
    file.write_text(json.dumps(answer))


def test_hosts_whose_seeds_are_nonsense_cost_no_other_host(two: TwoPools, disk: Path) -> None:
    """Each in another way, all on one disk."""
    damaged = {f"host{number}": name for number, name in enumerate(HOSTS) if name not in REFUSED}
    with_hosts(two, disk, "also", *damaged)
    for host, name in damaged.items():
        damage(disk, host, name)
    done = two.second.backupd("replicate", "office", "--seed-from", disk, "--now", "2026-03-20T12:00:00Z", check=False)
    assert "Traceback" not in done.stderr
    assert max(map(len, done.stderr.splitlines())) < 1000
    assert len(done.stderr.splitlines()) < len(damaged) + 8, done.stderr
    assert two.names(two.second.pool, "also"), f"{done.returncode} {done.stdout} {done.stderr}"
    assert done.returncode == 1
    for host, name in damaged.items():
        assert two.names(two.second.pool, host) or host in done.stderr, name
        shutil.rmtree(disk / host)
    seed_to(two, disk, "backup2")
    seed_from(two, disk)
    assert {host: len(two.names(two.second.pool, host)) for host in damaged} == dict.fromkeys(damaged, 1)


def test_nothing_on_a_changed_disk_is_trusted(two: TwoPools, disk: Path) -> None:
    with_hosts(two, disk, "also", "other")
    before = (disk / "other/seed.json").read_text()
    for name in REFUSED:
        damage(disk, "other", name)
        done = two.second.backupd("replicate", "office", "--seed-from", disk, "--now", "2026-03-20T12:00:00Z", check=False)
        assert len(quiet(done.stderr).splitlines()) < 8, done.stderr
        assert done.returncode == 1, name
        assert two.names(two.second.pool, "also") == two.names(two.second.pool, "other") == []
        (disk / "other/seed.json").write_text(before)
    seed_from(two, disk)
    assert len(two.names(two.second.pool, "other")) == 1


def test_a_host_that_was_cut_off_is_named(two: TwoPools, disk: Path) -> None:
    two.first.host("also", two.source)
    two.first.backupd("run", "also", "--now", "2026-03-01T21:00:00Z")
    filled(two)
    seed_to(two, disk, "backup2")
    (disk / "web1/seed.json").unlink()
    done = seed_from(two, disk, status=1)
    assert [failure["host"] for failure in done["failed"]] == ["web1"]
    assert [fetched_backup["host"] for fetched_backup in done["fetched"]] == ["also"]


def test_a_part_that_the_disk_changed_is_named_with_what_to_do(two: TwoPools, disk: Path) -> None:
    first = filled(two)
    seed_to(two, disk, "backup2")
    part = disk / "web1/000003.part"
    content = bytearray(part.read_bytes())
    content[30_000] ^= 1
    part.write_bytes(content)
    (failed,) = seed_from(two, disk, status=1)["failed"]
    assert "000003.part" in failed["error"]
    assert "delete the folder web1 of the initial copy and write it again with --seed-to" in failed["error"]
    shutil.rmtree(disk / "web1")
    seed_to(two, disk, "backup2")
    seed_from(two, disk)
    assert two.differences(first) == ""
