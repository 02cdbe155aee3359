"""Paths of the command line that cannot be read."""

import subprocess
import sys
from pathlib import Path

import pytest

from btrkeep.cli.arguments import GivenPath
from btrkeep.errors import UsageError
from tests.beds import work
from tests.beds.cli import TOP
from tests.beds.leftout import needs_root


@pytest.mark.parametrize(
    "path", [Path("/") / ("x" * 5000), Path("/") / ("x" * 256), Path("/" + "x/" * 2500)], ids=["5,000", "256", "deep"]
)
def test_a_path_that_is_too_long_is_reported_in_one_short_line(path: Path) -> None:
    for kind in (GivenPath(), GivenPath(exists=True)):
        with pytest.raises(UsageError, match="too long") as refused:
            kind.convert(str(path), None, None)
        assert len(refused.value.message) < 120


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("backupd", ["init"]),
        ("backupd", ["rehearse", "--on"]),
        ("backupd", ["--config"]),
        ("balancer", ["score"]),
        ("heatmap", []),
    ],
)
def test_commands_refuse_it(program: str, words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", program, *words, "/tmp/" + "x" * 5000], capture_output=True, text=True)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 2)
    assert "too long" in done.stderr


@needs_root
def test_a_folder_that_this_user_may_not_enter_is_left_to_the_command(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    code = (
        "import os, sys; from btrkeep.cli.arguments import GivenPath as G; os.seteuid(65534); G().convert(sys.argv[1], None, None)"
    )
    work(sys.executable, "-c", code, closed / "x" / "y", cwd=TOP)
