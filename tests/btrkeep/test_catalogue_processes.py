"""Several processes write to one catalogue, and some of them are killed. The tests read the file with sqlite3."""

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from btrkeep.catalogue import Backup, Catalogue, sqlite
from btrkeep.errors import OperatorError
from tests.beds import TOP

NOW = datetime(2026, 11, 20, 22, 0, tzinfo=UTC)
START = """
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from btrkeep.catalogue import Backup, Catalogue
from btrkeep.catalogue.tables import backup
catalogue = Catalogue.open(Path(sys.argv[1]))
me = sys.argv[2]
one = Backup("h", "n", "/p", "complete", datetime(2026, 11, 20, tzinfo=UTC), None, None, None, None, None, None, detail={"a": 1})
print("ready", flush=True)
sys.stdin.readline()
"""
# Half of the writes go to rows of this process, half to rows that all of them fight for.
WRITE = """
run = catalogue.start_run("host" + me, one.started, 1, None, False)
for number in range(100):
    catalogue.put_backup(replace(one, host="host" + me, name=str(number)))
    catalogue.put_backup(replace(one, host="everybody" + str(number), name=None, path=me))
catalogue.finish_run(run, finished=one.started, outcome="complete")
"""
HALF_WAY = """
with catalogue._writing("half") as session:
    session.run("PRAGMA cache_spill = 5")
    session.run("PRAGMA cache_size = 5")
    session.run("DELETE FROM backup")
    session.run("INSERT OR IGNORE INTO host (name) VALUES ('h')")
    for number in range(20):
        backup.add(session, [replace(one, name=f"{number} {each}", path="/p" * 200) for each in range(100)])
    print("half way", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def writer(state: Path, code: str, name: str = "1") -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", START + code, str(state), name]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, cwd=TOP, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def ask(state: Path, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(state / "catalogue.sqlite")) as connection:
        return connection.execute(statement).fetchall()


@pytest.mark.slow
def test_six_processes_write_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    processes = [writer(tmp_path, WRITE, str(number)) for number in range(6)]
    started = [each.__enter__() for each in processes]
    try:
        for process in started:
            go(process)
        complaints = [process.communicate(timeout=100)[1] for process in started]
    finally:
        for each in processes:
            each.__exit__(None, None, None)
    assert complaints == [""] * 6
    assert [process.returncode for process in started] == [0] * 6
    own = ask(tmp_path, "SELECT host, count(DISTINCT name) FROM backup WHERE host LIKE 'host%' GROUP BY host ORDER BY host")
    assert own == [(f"host{number}", 100) for number in range(6)]
    assert ask(tmp_path, "SELECT count(*), count(DISTINCT host) FROM backup WHERE name = ''") == [(100, 100)]
    assert ask(tmp_path, "SELECT count(*) FROM run WHERE outcome = 'complete'") == [(6,)]
    assert ask(tmp_path, "SELECT count(*) FROM backup_detail") == [(700,)]
    assert ask(tmp_path, "PRAGMA integrity_check") == [("ok",)]
    assert ask(tmp_path, "PRAGMA foreign_key_check") == []


@pytest.mark.slow
def test_a_writer_that_is_killed_in_mid_transaction_leaves_nothing_of_it(tmp_path: Path) -> None:
    backup = Backup("old", "n1", "/p", "complete", NOW, NOW, 1.0, 1, 1, 1, None)
    with Catalogue.open(tmp_path) as catalogue:
        catalogue.put_backup(backup)
    with Catalogue.open(tmp_path) as catalogue, writer(tmp_path, HALF_WAY) as process:
        go(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "half way\n"
        # Its changes have reached the journal, not just its memory.
        assert (tmp_path / "catalogue.sqlite-wal").stat().st_size > 500_000
        assert list(catalogue.backups()) == [backup]
        process.send_signal(signal.SIGKILL)
        process.wait()
        began = monotonic()
        catalogue.start_run("new", NOW, 1, None, False)
        assert monotonic() - began < 25
    assert ask(tmp_path, "SELECT host FROM backup") == [("old",)]
    assert ask(tmp_path, "PRAGMA integrity_check") == [("ok",)]
    with Catalogue.open(tmp_path) as catalogue:
        assert list(catalogue.backups()) == [backup]
        assert [run.host for run in catalogue.unfinished_runs()] == ["new"]


def test_a_catalogue_that_stays_locked_is_an_error_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT", 0.2)
    with Catalogue.open(tmp_path) as catalogue, closing(sqlite3.connect(tmp_path / "catalogue.sqlite")) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OperatorError, match="locked by another program"):
            catalogue.set_pool_id("p")
        assert catalogue.pool_id() is None
        other.rollback()
        catalogue.set_pool_id("p")
        assert catalogue.pool_id() == "p"


def test_writers_wait_for_half_a_minute(tmp_path: Path) -> None:
    with Catalogue.open(tmp_path) as catalogue:
        for session in (catalogue._reader, catalogue._writer):
            names = ("busy_timeout", "foreign_keys", "synchronous")
            assert session is not None
            assert [session.value(f"PRAGMA {name}") for name in names] == [30000, 1, 1]
