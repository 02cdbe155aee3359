"""Errors of our programs behind ssh, which forwards standard error only."""

import pytest

from btrkeep.cli import print_error
from btrkeep.errors import OperatorError, last_remote_error


def test_what_complain_writes_is_read_as_the_last_error(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(OperatorError("one"))
    print_error(OperatorError("the pool is full", "make room"))
    assert last_remote_error(["Warning: added a key", *capsys.readouterr().err.splitlines()]) == "the pool is full"


def test_without_an_error_of_ours_the_last_line_counts() -> None:
    assert last_remote_error(["banner", "Permission denied (publickey)"]) == "Permission denied (publickey)"
    assert last_remote_error([]) == ""
