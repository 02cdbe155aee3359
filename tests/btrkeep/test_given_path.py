"""Paths of the command line that cannot be looked at: the command itself reports them."""

import sys
from pathlib import Path

import click
import pytest

from btrkeep.cli.given_path import GivenPath
from tests.beds import work
from tests.beds.cli import TOP
from tests.beds.leftout import needs_root


def test_a_name_that_is_too_long_is_left_to_the_command() -> None:
    path = Path("/") / ("x" * 5000)
    assert GivenPath(path_type=Path).convert(str(path), None, None) == path
    with pytest.raises(click.BadParameter, match="does not exist"):
        GivenPath(exists=True).convert(str(path), None, None)


@needs_root
def test_a_folder_that_this_user_may_not_enter_is_left_to_the_command(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    code = (
        "import os, sys; from btrkeep.cli.given_path import GivenPath as G; os.seteuid(65534); G().convert(sys.argv[1], None, None)"
    )
    work(sys.executable, "-c", code, closed / "x" / "y", cwd=TOP)
