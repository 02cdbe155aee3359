"""Wrong clocks, and replayed days: names, bases and which backups are due."""

import os
import time
from pathlib import Path

import pytest

from tests.beds import work
from tests.beds.nights import Nights
from tests.beds.watch import disagreements, killed, rows, subvolumes, writable_finals


@pytest.fixture
def nights(shared_btrfs: Path) -> Nights:
    return Nights(shared_btrfs, "--rehearsal")


@pytest.fixture
def tree(nights: Nights) -> Path:
    tree = nights.source / "srv"
    tree.mkdir()
    (tree / "file").write_text("first")
    nights.host("web", tree)
    return tree


def run_at(nights: Nights, now: str, *words: str) -> None:
    nights.backupd("run", *words, "--now", now)


def test_a_week_of_days_is_replayed_each_growing_from_the_day_before(nights: Nights, tree: Path) -> None:
    for day in range(1, 8):
        (tree / "file").write_text(f"day {day}")
        run_at(nights, f"2026-03-{day:02}T22:00:00Z")
    names = nights.names("web")
    assert [name[:10] for name in names] == [f"2026-03-{day:02}" for day in range(1, 8)]
    uuids = [nights.subvolume("web", name)["UUID"] for name in names]
    parents = [nights.subvolume("web", name)["Parent UUID"] for name in names]
    assert parents[1:] == uuids[:-1]
    assert [nights.data("web", tree, name).joinpath("file").read_text() for name in names] == [f"day {day}" for day in range(1, 8)]
    assert writable_finals(nights) == []
    assert disagreements(nights) == []


def test_two_runs_within_one_second_have_names_of_their_own(nights: Nights, tree: Path) -> None:
    for content in ("first", "second", "third"):
        (tree / "file").write_text(content)
        os.utime(tree / "file", ns=(0, time.time_ns()))
        run_at(nights, "2026-11-20T22:00:00Z", "web")
    names = nights.names("web")
    assert names == sorted(set(names))
    assert len(names) == 3
    assert [nights.data("web", tree, name).joinpath("file").read_text() for name in names] == ["first", "second", "third"]
    assert nights.grew_from("web") == names[1]
    assert disagreements(nights) == []


def test_a_clock_that_was_set_back_overwrites_nothing_and_the_next_base_is_one_of_the_past(nights: Nights, tree: Path) -> None:
    run_at(nights, "2026-11-20T22:00:00Z", "web")
    run_at(nights, "2026-11-22T22:00:00Z", "web")
    (tree / "file").write_text("after the clock was set back")
    run_at(nights, "2026-11-21T22:00:00Z", "web")
    old, back, ahead = nights.names("web")
    assert (old[:10], back[:10], ahead[:10]) == ("2026-11-20", "2026-11-21", "2026-11-22")
    assert nights.record("web", back)["base"] == old
    assert nights.data("web", tree, back).joinpath("file").read_text() == "after the clock was set back"
    assert nights.data("web", tree, ahead).joinpath("file").read_text() == "first"
    assert disagreements(nights) == []


def test_a_backup_stamped_in_the_future_is_a_base_only_when_there_is_no_other_and_hides_no_night(
    nights: Nights, tree: Path
) -> None:
    run_at(nights, "2038-01-01T00:00:00Z")
    (future,) = nights.names("web")
    number = subvolumes(nights)[f"hosts/web/{future}"]
    run_at(nights, "2026-11-20T22:00:00Z")  # due, although something newer seems to be there
    run_at(nights, "2026-11-21T22:00:00Z")
    first, second, last = nights.names("web")
    assert last == future
    assert (nights.record("web", first)["base"], nights.record("web", second)["base"]) == (future, first)
    assert subvolumes(nights)[f"hosts/web/{future}"] == number
    assert rows(nights, "select count(*) from run where outcome = 'complete'") == [(3,)]


def test_a_partial_is_continued_although_the_clock_was_set_back(nights: Nights, tree: Path) -> None:
    (tree / "file").write_bytes(os.urandom(500_000))
    nights.in_the_middle(300_000, end="dies")
    done = nights.backupd("run", "web", "--now", "2026-11-20T22:00:00Z", check=False)
    assert done.returncode == 1
    kept = subvolumes(nights)["hosts/web/.working"]
    nights.ssh("")
    run_at(nights, "2026-11-19T22:00:00Z", "web")
    (name,) = nights.names("web")
    assert name.startswith("2026-11-19")
    assert subvolumes(nights)[f"hosts/web/{name}"] == kept
    assert nights.differences("web", tree) == []


def test_a_killed_run_is_not_repeated_when_its_backup_was_finished(nights: Nights, tree: Path) -> None:
    """Only the pool had it, not the catalogue: the pool decides which backups are due."""
    for step in ("backup named", "latest pointed"):
        killed(nights, "before", step, "run", "--now", "2026-11-20T22:00:00Z")
        run_at(nights, "2026-11-20T22:05:00Z")
        assert len(nights.names("web")) == 1
        for path in subvolumes(nights):
            work("btrfs", "-q", "subvolume", "delete", nights.pool / path)
    (nights.state / "catalogue.sqlite").unlink()
    run_at(nights, "2026-11-21T22:05:00Z")
    (nights.state / "catalogue.sqlite").unlink()
    run_at(nights, "2026-11-21T22:06:00Z")
    assert len(nights.names("web")) == 1


@pytest.mark.parametrize("where", ["--to", "--tar"])
def test_a_restore_of_a_replayed_day_takes_no_backup_of_a_later_one(nights: Nights, tree: Path, tmp_path: Path, where: str) -> None:
    for day, content in (("2031-01-01", "of later"), ("2026-11-23", "of the day")):
        (tree / "file").write_text(content)
        os.utime(tree / "file", ns=(0, time.time_ns()))
        run_at(nights, f"{day}T22:00:00Z", "web")
    out = tmp_path / "out"
    nights.backupd("restore", "web", tree / "file", where, out, "--now", "2026-11-24T08:00:00Z")
    if where == "--tar":
        work("tar", "-xf", out, "-C", tmp_path, "--strip-components", str(len(tree.parts) - 1))
        out = tmp_path
    assert (out / "file").read_text() == "of the day"
