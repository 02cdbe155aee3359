"""A pool that fetches from a pool that also fetches: the records of the middle one about the copies after the fetch."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds.two_pools import TwoPools

pytestmark = pytest.mark.btrfs


@pytest.mark.parametrize("how", ["ssh", "folder"])
def test_the_middle_one_knows_at_once_who_has_fetched_from_it(two: TwoPools, make_btrfs: Callable[..., Path], how: str) -> None:
    """Over ssh the sender publishes it for the dashboard; for a folder it has no catalogue, so `check` reads the pool."""
    name = two.night("2026-03-20T10:00:00Z", "a")
    two.fetch()
    two.second.host("db1", two.source)
    two.second.backupd("run", "db1", "--now", "2026-03-20T11:00:00Z")
    onward = two.onward(make_btrfs())
    if how == "ssh":
        onward.over_ssh('exec "$@" --replica third')
    onward.fetch()
    answer = json.loads(two.second.backupd("check", "--json", check=False).stdout)
    assert not [row for row in answer if "no copy of" in row["message"]], answer
    if how == "ssh":
        with sqlite3.connect(f"file:{two.second.state / 'catalogue.sqlite'}?mode=ro", uri=True) as catalogue:
            (text,) = catalogue.execute("select value from about where name = 'copies'").fetchone()
        assert json.loads(text)["common"]["third"]["web1"] == name
