"""A pool's pictures, one each night, and which of them are kept."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from heatmap.cli.nightly import series_and_time, superfluous
from tests.beds import TOP, work
from tests.beds.nights import Nights

NOW = datetime(2026, 11, 20, 18, tzinfo=UTC)


def named(at: datetime, of: str = "fsid_x_chunks", ending: str = "png") -> str:
    return f"{of}_at_{int(at.timestamp())}.{ending}"


def days_ago(*days: float) -> list[str]:
    return [named(NOW - timedelta(days=day)) for day in days]


def test_everything_of_two_weeks_stays() -> None:
    assert superfluous(days_ago(0, 0.1, 0.2, 13.9), NOW) == []


def test_then_the_last_of_each_day_and_after_a_year_the_last_of_each_week() -> None:
    noon, evening = days_ago(20.3, 20.1)
    assert superfluous([noon, evening], NOW) == [noon]
    monday, sunday, next_monday = (named(datetime(2024, 1, day, 18, tzinfo=UTC)) for day in (1, 7, 8))
    assert superfluous([monday, sunday, next_monday], NOW) == [monday]


def test_a_picture_and_its_state_share_their_fate_and_other_files_are_left_alone() -> None:
    old, newer = NOW - timedelta(days=20, hours=3), NOW - timedelta(days=20, hours=2)
    pair = [named(old), named(old, ending="heatmap")]
    others = ["year.gif", "notes.txt", named(old, of="fsid_y"), named(old, ending="webp"), ".hidden", "at_1.png.part"]
    assert superfluous([*pair, *others, named(newer), named(newer, ending="heatmap")], NOW) == sorted(pair)


def test_the_names_are_those_that_the_program_gives() -> None:
    assert series_and_time("fsid_f5c9181c-b024-4697-b27e-722cc87dd80a_chunks_at_1795195800.heatmap") == (
        "fsid_f5c9181c-b024-4697-b27e-722cc87dd80a_chunks",
        datetime(2026, 11, 20, 17, 30, tzinfo=UTC),
    )
    assert series_and_time("picture.png") is None


def days(names: set[str]) -> set[date]:
    return {parsed[1].date() for name in names if (parsed := series_and_time(name))}


@given(st.lists(st.integers(0, 3000 * 24), max_size=60, unique=True), st.integers(0, 400))
@example([475, 481], 346)
def test_thinning_again_later_takes_no_more_than_thinning_once(hours: list[int], later: int) -> None:
    """At the hour at which a day's pictures become a year old, thinning once keeps one more picture of that day, until the next
    night.
    """
    names, then = {named(NOW - timedelta(hours=hour)) for hour in hours}, NOW + timedelta(days=later)
    first = names - set(superfluous(names, NOW))
    twice, once = first - set(superfluous(first, then)), names - set(superfluous(names, then))
    assert twice <= once
    assert days(twice) == days(once)
    assert not set(superfluous(first, NOW))


@pytest.mark.btrfs
@pytest.mark.root
def test_a_night_leaves_a_picture_by_virtual_address_and_the_state_and_takes_old_ones_away(shared_btrfs: Path) -> None:
    nights = Nights(shared_btrfs)
    folder = nights.state / "pictures"
    folder.mkdir(parents=True)
    old = [named(datetime.now(UTC) - timedelta(days=700), of=of) for of in ("fsid_x_chunks", "fsid_y_chunks")]
    goes = named(datetime.now(UTC) - timedelta(days=700, seconds=1))
    for name in (*old, goes):
        (folder / name).touch()
    done = work(sys.executable, "-m", "heatmap", "nightly", "--config", nights.config, env={"PYTHONPATH": str(TOP)})
    made = sorted(path.name for path in folder.iterdir() if path.name not in old)
    assert "deleted: 1 old file" in done.stdout
    uuid = work("findmnt", "-no", "UUID", "-T", nights.pool).stdout.strip()
    stem = f"fsid_{uuid}_chunks_at_"
    assert [name.startswith(stem) for name in made] == [True, True]
    assert {Path(name).suffix for name in made} == {".png", ".heatmap"}
    with Image.open(folder / made[1]) as picture:
        assert picture.size == (1024, 1024)


@pytest.mark.btrfs
@pytest.mark.root
def test_the_group_of_the_state_folder_may_read_what_a_night_leaves_whatever_the_umask_is(shared_btrfs: Path) -> None:
    nights = Nights(shared_btrfs)
    nights.backupd("list")
    os.chown(nights.state, 0, 61234)
    nights.state.chmod(0o2750)
    line = shlex.join([sys.executable, "-m", "heatmap", "nightly", "--config", str(nights.config)])
    work("sh", "-c", f"umask 077; exec {line}", env={"PYTHONPATH": str(TOP)})
    made = (nights.state / "pictures", *(nights.state / "pictures").iterdir())
    assert [(path.stat().st_gid, oct(path.stat().st_mode & 0o077)) for path in made] == [(61234, "0o50"), *[(61234, "0o40")] * 2]


def refused(run: Callable[[], "subprocess.CompletedProcess[str]"]) -> str:
    done = run()
    assert done.returncode in (2, 4), done.stderr
    return done.stderr


@pytest.mark.btrfs
@pytest.mark.root
def test_no_pool_no_picture(shared_btrfs: Path) -> None:
    nights = Nights(shared_btrfs)

    def nightly(*words: str | Path) -> str:
        return refused(lambda: work(sys.executable, "-m", "heatmap", "nightly", *words, env={"PYTHONPATH": str(TOP)}, check=False))

    assert "--pool and --config exclude each other" in nightly("--pool", "main", "--config", nights.config)
    assert "--pool is empty" in nightly("--pool", "")
    nights.settings("pool", path=str(nights.top / "elsewhere"))
    assert "elsewhere" in nightly("--config", nights.config)
    assert not list((nights.state / "pictures").glob("*"))
