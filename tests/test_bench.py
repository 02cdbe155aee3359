"""Errors that a benchmark must not make: a false figure, a command that failed unseen, anything left behind.

Administrators choose by the figures in docs/benchmarks.rst. If these tests fail, a figure there may be that of a failed command.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.common import Sides, bare_night
from tests.beds import TOP, session, work

TINY = ("--files", "60", "--bytes", "600kB", "--per-folder", "20", "--share", "0.4")
needs_btrfs = pytest.mark.btrfs


@pytest.fixture
def place() -> Path:
    """A folder of this session for the images of a bench, so that a killed bench is cleaned up with the session."""
    return session.folder(1 << 30)


def left(place: Path) -> list[str]:
    """Returns the sessions of a bench that still exist, as folders, mounts or loop devices."""
    mounts = [point for point in session.mounts_below(place) if session.PREFIX in point.relative_to(place).as_posix()]
    return [*map(str, place.glob(f"{session.PREFIX}*")), *map(str, mounts)]


@pytest.mark.long
@needs_btrfs
def test_a_bench_whose_backup_fails_says_so_and_leaves_nothing(place: Path, tmp_path: Path) -> None:
    """The PATH has an rsync that fails before the real one. If the bench did not notice, both sides would seem fast."""
    broken = tmp_path / "rsync"
    broken.write_text('#!/bin/sh\ncase $1 in -*V*|--version) exec /usr/bin/rsync "$@";; esac\nexit 1\n', encoding="utf-8")
    broken.chmod(0o755)
    words = (*TINY, "--nights", "1", "--quiet", "0", "--image-dir", str(place))
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = work(sys.executable, "-m", "bench.one_host", *words, cwd=TOP, env=env, check=False, timeout=110)
    assert done.returncode != 0
    assert "ended with" in done.stderr
    assert left(place) == []


@pytest.mark.long
@needs_btrfs
def test_a_bench_that_is_stopped_leaves_nothing(place: Path) -> None:
    words = ("--nights", "1000", "--quiet", "0", "--image-dir", str(place))
    running = subprocess.Popen([sys.executable, "-m", "bench.one_host", *TINY, *words], cwd=TOP, stderr=subprocess.PIPE, text=True)
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


def test_the_bare_line_differs_from_ours_only_in_rsync_s_destination() -> None:
    line = bare_night(("rsync", "-a", "--filter=- /a b", "host:/./src/", "/pool/.working/data/"), Path("/d/base"), Path("/d/new"))
    assert line == (
        "btrfs -q subvolume snapshot /d/base /d/new && rsync -a '--filter=- /a b' host:/./src/ /d/new/data/"
        " && sync -f /d/new && btrfs property set -ts /d/new ro true"
    )


def test_ratios_are_of_pairs_and_not_of_the_best_with_the_worst() -> None:
    two_sides = Sides("ours", "bare", [(1.0, 1.0), (4.0, 2.0), (9.0, 3.0)]).summary(1.1)
    assert two_sides["ratio"]["pairs"] == [1.0, 2.0, 3.0]
    assert (two_sides["ratio"]["median"], two_sides["ratio"]["min"], two_sides["ratio"]["max"]) == (2.0, 1.0, 3.0)
    assert two_sides["ratio"]["of_medians"] == 2.0
