"""Each benchmark runs through in a tiny size, tells what it should, and leaves nothing. Its figures mean nothing here."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench.common import Sides, bare_night
from bench.slow_disk import slow_btrfs
from bench.trees import Tree
from tests.beds import TOP, session, work

TINY = {
    "one_host": ("--files", "60", "--bytes", "600kB", "--per-folder", "20", "--share", "0.4"),
    "many_hosts": ("--hosts", "5", "--files", "20"),
    "replicate": ("--hosts", "2", "--pairs", "1", "--plan-hosts", "3", "--plan-backups", "2"),
    "rsnapshot_night": ("--files", "60", "--bytes", "600kB", "--changed", "20"),
}
MEASURED = {
    "one_host": ("without our start-up", "whole process"),
    "many_hosts": ("whole process", "CPU seconds"),
    "rsnapshot_night": ("cold cache", "warm cache"),
}

needs_btrfs = pytest.mark.btrfs


def bench(name: str, *words: str, place: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    options = ("--nights", "2", "--quiet", "0", "--image-dir", str(place), "--json")
    return work(sys.executable, "-m", f"bench.{name}", *TINY[name], *options, *words, cwd=TOP, check=check, timeout=110)


@pytest.fixture
def place() -> Path:
    """Where the images of a bench may lie: this session's own folder, so that a bench that is killed is cleared away with it."""
    return session.folder(1 << 30)


def left(place: Path) -> list[str]:
    """Sessions of a bench that are still there, as folders, mounts or loop devices."""
    mounts = [point for point in session.mounts_below(place) if session.PREFIX in point.relative_to(place).as_posix()]
    return [*map(str, place.glob(f"{session.PREFIX}*")), *map(str, mounts)]


@pytest.mark.long
@needs_btrfs
@pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="left out: a slow disk (no FUSE)")
def test_each_write_to_a_slow_disk_takes_its_time_and_nothing_is_left(place: Path) -> None:
    folder = place / f"{session.PREFIX}slow"
    folder.mkdir()
    try:
        with slow_btrfs(folder, "300M", "200ms", "noatime") as point:
            assert work("findmnt", "-n", "-o", "FSTYPE", point).stdout.strip() == "btrfs"
            assert len(session.loops_below(folder)) == 1
            (point / "file").write_bytes(os.urandom(5000))
            begun = time.monotonic()
            work("sync", "-f", point)
            assert time.monotonic() - begun > 0.4  # the data, and after it the superblock
        assert not session.mounts_below(folder)
        assert not session.loops_below(folder)
        assert str(folder) not in work("ps", "-e", "-o", "args").stdout
    finally:
        problems = session.remove(folder)
    assert problems == []


@pytest.mark.long
@needs_btrfs
@pytest.mark.parametrize(("name", "transport"), [("one_host", "ssh"), ("many_hosts", "fakessh")])
def test_a_bench_runs_through_and_leaves_nothing(name: str, transport: str, place: Path) -> None:
    told = json.loads(bench(name, "--transport", transport, place=place).stdout)
    assert told["machine"]["transport"] == transport
    assert told["machine"]["kernel"] == os.uname().release
    for measure in MEASURED[name]:
        see_that_it_adds_up(told[measure])
    if name == "many_hosts":
        own = told["own CPU, ms per host"]
        assert 0 < own["the least that a process can take"]["median"] < own["user and system"]["median"]
    assert left(place) == []


@pytest.mark.long
@needs_btrfs
@pytest.mark.skipif(not shutil.which("rsnapshot"), reason="rsnapshot is not installed")
def test_the_night_against_rsnapshot_runs_through_and_leaves_nothing(place: Path) -> None:
    told = json.loads(bench("rsnapshot_night", place=place).stdout)
    for measure in MEASURED["rsnapshot_night"]:
        see_that_it_adds_up(told[measure])
    assert left(place) == []


@pytest.mark.long
@needs_btrfs
def test_the_bench_of_a_second_copy_runs_through_and_leaves_nothing(place: Path) -> None:
    """It ends with an error if the two made pools do not agree, so that it measures a plan of nothing and no refusal."""
    told = json.loads(bench("replicate", place=place).stdout)
    assert len(told["seconds, one host at a time"]["ratio"]["pairs"]) == 1
    memory = told["nothing is new: MB of memory"]
    assert 10 < memory["the side that lists"]["median"] != memory["the side that plans"]["median"] > 10
    assert left(place) == []


def see_that_it_adds_up(told: dict[str, Any]) -> None:
    first, second, ratio = told.values()
    assert len(ratio["pairs"]) == 2  # the unmeasured night is not among them
    assert min(ratio["pairs"]) == ratio["min"] <= ratio["median"] <= ratio["max"] == max(ratio["pairs"])
    assert ratio["of_medians"] == pytest.approx(first["median"] / second["median"])


@pytest.mark.long
@needs_btrfs
def test_a_bench_whose_backup_fails_says_so_and_leaves_nothing(place: Path, tmp_path: Path) -> None:
    """An rsync that fails is found before ours: both sides would seem fast."""
    broken = tmp_path / "rsync"
    broken.write_text('#!/bin/sh\ncase $1 in -*V*|--version) exec /usr/bin/rsync "$@";; esac\nexit 1\n', encoding="utf-8")
    broken.chmod(0o755)
    words = (*TINY["one_host"], "--nights", "1", "--quiet", "0", "--image-dir", str(place))
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = work(sys.executable, "-m", "bench.one_host", *words, cwd=TOP, env=env, check=False, timeout=110)
    assert done.returncode != 0
    assert "ended with" in done.stderr
    assert left(place) == []


@pytest.mark.long
@needs_btrfs
def test_a_bench_that_is_stopped_leaves_nothing(place: Path) -> None:
    words = ("--nights", "1000", "--quiet", "0", "--image-dir", str(place))
    running = subprocess.Popen(
        [sys.executable, "-m", "bench.one_host", *TINY["one_host"], *words], cwd=TOP, stderr=subprocess.PIPE, text=True
    )
    assert running.stderr is not None
    try:
        assert "night 0" in running.stderr.readline()
        assert left(place) != []
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=60) != 0
    finally:
        running.kill()
        running.communicate()
    assert left(place) == []


def test_a_tree_is_the_same_for_the_same_seed_and_a_day_changes_as_many_files_as_asked(tmp_path: Path) -> None:
    first, second = (Tree(tmp_path / name, files=100, mean=500, per_folder=10, seed=7) for name in ("one", "two"))
    work("diff", "-r", first.top, second.top)
    first.change(40)
    done = work("diff", "-rq", first.top, second.top, check=False).stdout.splitlines()
    changed = [line for line in done if line.startswith("Files ")]
    appeared, gone = ([line for line in done if line.startswith(f"Only in {tree.top}")] for tree in (first, second))
    assert (len(changed), len(appeared), len(gone)) == (38, 2, 2)  # of twenty changed files one gives way to a new one
    second.change(40)
    work("diff", "-r", first.top, second.top)


def test_the_bare_line_differs_from_ours_only_in_rsync_s_destination() -> None:
    line = bare_night(("rsync", "-a", "--filter=- /a b", "host:/./src/", "/pool/.working/data/"), Path("/d/base"), Path("/d/new"))
    assert line == (
        "btrfs -q subvolume snapshot /d/base /d/new && rsync -a '--filter=- /a b' host:/./src/ /d/new/data/"
        " && sync -f /d/new && btrfs property set -ts /d/new ro true"
    )


def test_ratios_are_of_pairs_and_not_of_the_best_with_the_worst() -> None:
    told = Sides("ours", "bare", [(1.0, 1.0), (4.0, 2.0), (9.0, 3.0)]).summary(1.1)
    assert told["ratio"]["pairs"] == [1.0, 2.0, 3.0]
    assert (told["ratio"]["median"], told["ratio"]["min"], told["ratio"]["max"]) == (2.0, 1.0, 3.0)
    assert told["ratio"]["of_medians"] == 2.0


@pytest.mark.long
@needs_btrfs
def test_a_night_with_a_hostile_host_is_told_and_leaves_nothing(place: Path) -> None:
    options = ("--size", "1G", "--image-dir", str(place), "--json", "--only", "huge-sizes")
    told = json.loads(work(sys.executable, "-m", "bench.hostile_sender", *options, cwd=TOP, timeout=110).stdout)
    assert [(night["attack"], night["outcome"], night["wrong"]) for night in told] == [("huge-sizes", "complete", [])]
    assert told[0]["memory"] < 200_000_000  # 0 when it was gone before anybody looked
    assert told[0]["room"] < 4_000_000  # whatever the sizes that it claimed
    assert left(place) == []
