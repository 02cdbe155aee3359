"""A night, and commands during the day, with a catalogue of a newer version, as after a downgrade."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.beds.nights import Nights
from tests.beds.watch import disagreements

pytestmark = pytest.mark.btrfs


def test_with_a_catalogue_of_a_newer_version_nothing_is_done_until_it_was_moved_away(nights: Nights, tmp_path: Path) -> None:
    tree = tmp_path / "srv"
    tree.mkdir()
    (tree / "file").write_bytes(os.urandom(100_000))
    for host in ("web", "db"):
        nights.host(host, tree)
    nights.run()
    catalogue = nights.state / "catalogue.sqlite"
    with closing(sqlite3.connect(catalogue)) as connection, connection:
        connection.execute("PRAGMA user_version = 9999")
        connection.execute("CREATE TABLE of_the_newer_one (x)")
    (tree / "file").write_bytes(os.urandom(100_000))
    names, before = nights.names("web"), catalogue.read_bytes()
    for words in (("run", "--all"), ("status",), ("list",), ("check",), ("expire",), ("sample",), ("notify",), ("metrics",)):
        done = nights.backupd(*words, check=False)
        assert (done.returncode, "Traceback" in done.stderr) == (1, False)
        assert "backupd rebuild" in done.stdout + done.stderr, "what to do is said"
    assert nights.names("web") == names
    assert catalogue.read_bytes() == before
    shutil.move(catalogue, tmp_path / "newer")
    nights.backupd("rebuild")
    assert {result["outcome"] for result in nights.run().values()} == {"complete"}
    assert nights.differences("web", tree) == []
    assert [row["name"] for row in nights.listed("web")][1:] == names
    assert disagreements(nights) == []
