"""Reading the catalogue without writing to any file: see docs/decisions/0018. Users without rights read a copy, see 0075."""

import contextlib
import grp
import json
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from btrkeep.catalogue import Catalogue, CatalogueDamaged, CatalogueUnready, migrate, readonly, tables
from btrkeep.errors import OperatorError
from tests.beds import work
from tests.beds.anyone import readable
from tests.beds.leftout import needs_root
from tests.beds.strangers import STRANGER, entered_state

ROOT = Path(__file__).parents[2]
BEDS = ROOT / "tests" / "beds"
NOW = datetime(2026, 11, 20, 22, tzinfo=UTC)


@pytest.fixture
def state() -> Iterator[Path]:
    with entered_state("readonly-") as folder:
        yield folder


def settled(state: Path) -> None:
    """Waits until the last write is old enough for a reader."""
    time.sleep(2 * readonly._SETTLED / 1e9)
    assert not list(state.glob("*-wal"))


def looks_of(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mode, status.st_mtime_ns, status.st_ctime_ns


def elsewhere(code: str, state: Path) -> str:
    """Executes the code in a separate process."""
    return work(sys.executable, "-c", code, state, cwd=ROOT).stdout.strip()


IMPORTS = """import os, pathlib, sqlite3, sys
from btrkeep.catalogue import Catalogue, CatalogueUnready
state = pathlib.Path(sys.argv[1])
"""
READ = IMPORTS + "print(Catalogue.open_readonly(state).get_fact('a'))"
WRITE = IMPORTS + "with Catalogue.open(state) as catalogue: catalogue.set_fact('a', 'new')"
OPEN = IMPORTS + "Catalogue.open(state).close()"
DIE = IMPORTS + "catalogue = Catalogue.open(state)\ncatalogue.set_fact('a', 'x' * 9000)\nos.kill(os.getpid(), 9)"
TELL = IMPORTS + "try: Catalogue.open_copy(state)\nexcept CatalogueUnready as error: print(error.message)"


def test_what_is_only_read_gets_no_file_beside_it(state: Path) -> None:
    with Catalogue.open(state) as catalogue:
        catalogue.set_fact("a", "1")
    settled(state)
    before = {path: looks_of(path) for path in state.iterdir()}
    assert elsewhere(READ, state) == "1"
    assert {path: looks_of(path) for path in state.iterdir()} == before


@pytest.mark.slow
def test_what_a_killed_writer_had_committed_is_read(state: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", DIE, state], cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert (state / "catalogue.sqlite-wal").stat().st_size > 9000
    assert elsewhere(READ, state) == "x" * 9000


def test_a_reader_sees_what_an_open_writer_has_committed(state: Path) -> None:
    with Catalogue.open(state) as catalogue:
        for value in ("1", "2"):
            catalogue.set_fact("a", value)
            assert elsewhere(READ, state) == value


@needs_root
def test_a_job_that_may_not_give_files_away_leaves_a_copy_that_the_group_may_read(state: Path) -> None:
    """The hardened units lack CAP_CHOWN, and may not set the setgid bit."""
    Catalogue.open(state).close()
    assert stat.S_IMODE(state.stat().st_mode) == 0o2750
    bare = ("setpriv", "--bounding-set=-all,+sys_admin", "--inh-caps=-all", "--", readable().python, "-c", WRITE, state)
    subprocess.run(bare, cwd=readable().top, check=True)
    copy = (state / "dashboard.sqlite").stat()
    assert (stat.S_IMODE(copy.st_mode), copy.st_gid) == (0o640, STRANGER)
    code = IMPORTS + "print(Catalogue.open_copy(state).get_fact('a'))"
    assert work(*readable().run_as(STRANGER, "-c", code, state), env=readable().environment).stdout == "new\n"


@needs_root
def test_a_job_that_may_change_nothing_of_the_folder_opens_the_catalogue_all_the_same(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Catalogue.open(state).close()
    state.chmod(0o750)

    def refused(*_words: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", refused)
    monkeypatch.setattr(Path, "chmod", refused)
    Catalogue.open(state).close()
    assert stat.S_IMODE(state.stat().st_mode) == 0o750


@needs_root
def test_the_folder_gets_the_dashboards_group_unless_another_one_was_chosen(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "WEB_USER", "daemon")
    os.chown(state, 0, 0)
    state.chmod(0o700)
    Catalogue.open(state).close()
    assert (stat.S_IMODE(state.stat().st_mode), state.stat().st_gid) == (0o2750, grp.getgrnam("daemon").gr_gid)
    os.chown(state, 0, STRANGER)
    state.chmod(0o700)
    Catalogue.open(state).close()
    assert (stat.S_IMODE(state.stat().st_mode), state.stat().st_gid) == (0o700, STRANGER)


def test_an_answer_during_which_the_file_changed_is_thrown_away(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the query and the check after it, a program opens, writes and closes the catalogue: only the file itself shows the
    change.
    """
    with Catalogue.open(state) as catalogue:
        catalogue.set_fact("a", "old")
    settled(state)
    looks, real = [], Path.stat

    def look(path: Path, **more: Any) -> os.stat_result:
        if path.name.endswith("-wal"):
            looks.append(path)
            if len(looks) == 2:  # the first was before the query
                work(sys.executable, "-c", WRITE, state, cwd=ROOT)
        return real(path, **more)

    with Catalogue.open_readonly(state) as catalogue:
        assert catalogue.get_fact("a") == "old"
        monkeypatch.setattr(Path, "stat", look)
        assert catalogue.get_fact("a") == "new"
    assert len(looks) > 2


def test_a_reader_that_stays_open_goes_from_the_file_to_the_journal_and_back(state: Path) -> None:
    Catalogue.open(state).close()
    settled(state)
    with Catalogue.open_readonly(state) as reader:
        assert reader.get_fact("a") is None
        with Catalogue.open(state) as writer:
            writer.set_fact("a", "1")
            assert reader.get_fact("a") == "1"
        assert reader.get_fact("a") == "1"
        with Catalogue.open(state) as writer:
            writer.set_fact("a", "2")
        assert reader.get_fact("a") == "2"


def test_a_long_list_that_is_being_read_stays_as_it_was(state: Path) -> None:
    def made_facts(number: int) -> list[tuple[str, str]]:
        return [(f"fact{index}", str(number)) for index in range(50)]

    for opens_before in (False, True):
        with Catalogue.open(state) as writer:
            for name, value in made_facts(1):
                writer.set_fact(name, value)
            if not opens_before:
                writer.close()
                settled(state)
            with Catalogue.open_readonly(state) as reader:
                rows = reader._reader.stream("SELECT value FROM about WHERE name LIKE 'fact%' ORDER BY name")
                first = next(rows)
                with Catalogue.open(state) as other:
                    for name, value in made_facts(2):
                        other.set_fact(name, value)
                assert {row[0] for row in [first, *rows]} == {"1"}


@pytest.mark.slow
@pytest.mark.timeout(90)
def test_readers_see_no_wrong_answer_and_no_error_while_writers_come_go_and_are_killed(state: Path) -> None:
    Catalogue.open(state).close()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    chance, number = random.Random(7), 0
    seconds = float(os.environ.get("BTRKEEP_TEST_READERS", "6"))

    def writer(name: str) -> subprocess.Popen[bytes]:
        nonlocal number
        number += 1
        return subprocess.Popen([sys.executable, BEDS / "catalogue_writer.py", state, name, str(number)], env=environment)

    writers = {name: writer(name) for name in ("a", "b")}
    readers = [
        subprocess.Popen(
            [sys.executable, BEDS / "catalogue_reader.py", state, str(seconds), seed],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2", "3")
    ]
    killed = 0
    try:
        while any(reader.poll() is None for reader in readers):
            time.sleep(0.02)
            for name, process in writers.items():
                if process.poll() is not None:
                    writers[name] = writer(name)
                elif chance.random() < 0.01:
                    process.kill()
                    killed += 1
        result = [json.loads(reader.communicate()[0]) for reader in readers]
    finally:
        for process in writers.values():
            process.kill()
            process.wait()
        for reader in readers:
            reader.kill()
            reader.wait()
    assert [reader["wrong"] for reader in result] == [[], [], []]
    assert all(sum(reader["counts"].values()) > 3 for reader in result)
    assert all(reader["longest"] < readonly.PATIENCE for reader in result)
    assert max(max(reader["seen"].values(), default=0) for reader in result) > 0
    assert killed + number > 2


def test_what_writes_is_refused(state: Path) -> None:
    Catalogue.open(state).close()
    with Catalogue.open_readonly(state) as catalogue:
        with pytest.raises(TypeError, match="open for reading"):
            catalogue.set_fact("a", "1")
        with pytest.raises(OperatorError):
            catalogue._reader.all("DELETE FROM about")


def test_a_catalogue_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(CatalogueUnready, match="there is no catalogue") as raised:
        Catalogue.open_readonly(tmp_path)
    assert "backupd check" in raised.value.hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("newest", "words"), [(6, "older schema 5,"), (4, "has schema 5,")])
def test_a_reader_refuses_another_schema_and_changes_nothing(
    state: Path, monkeypatch: pytest.MonkeyPatch, newest: int, words: str
) -> None:
    Catalogue.open(state).close()
    with closing(sqlite3.connect(state / "catalogue.sqlite")) as connection, connection:
        connection.execute("PRAGMA user_version = 5")
    before = (state / "catalogue.sqlite").read_bytes()
    monkeypatch.setattr(tables, "SCHEMA_VERSION", newest)
    with pytest.raises(OperatorError, match=words):
        Catalogue.open_readonly(state)
    assert (state / "catalogue.sqlite").read_bytes() == before


def test_a_file_that_is_no_catalogue_is_said_to_be_none(state: Path) -> None:
    (state / "catalogue.sqlite").write_bytes(b"no database at all" * 100)
    settled(state)
    with pytest.raises(OperatorError, match="damaged"):
        Catalogue.open_readonly(state)


@needs_root
@pytest.mark.parametrize("byte", range(40, 60))
def test_a_byte_of_the_header_that_is_none_leaves_the_catalogue_readable_or_damaged(state: Path, byte: int) -> None:
    """SQLite has no separate error code for an unknown format, so the error would have been reported as a bug of btrkeep."""
    Catalogue.open(state).close()
    file = state / "catalogue.sqlite"
    content = bytearray(file.read_bytes())
    content[byte] = 0xFF
    file.write_bytes(content)
    settled(state)
    with contextlib.suppress(OperatorError), Catalogue.open_readonly(state) as catalogue:
        catalogue.runs()


@needs_root
@pytest.mark.parametrize("value", ["CAST(x'ff' AS TEXT)", "'5'", "printf('%.9000c', '[')"], ids=["bytes", "number", "deep"])
def test_an_impossible_value_means_for_every_reader_that_the_catalogue_is_damaged(state: Path, value: str) -> None:
    with Catalogue.open(state) as catalogue:
        catalogue.finish_run(catalogue.start_run("web", NOW, 1, None, False), finished=NOW, outcome="failed", last_lines=("a",))
    with closing(sqlite3.connect(state / "catalogue.sqlite")) as database:
        database.execute(f"UPDATE run SET last_lines = {value}")
        database.commit()
    settled(state)
    for opened in (Catalogue.open, Catalogue.open_readonly):
        with opened(state) as catalogue, pytest.raises(CatalogueDamaged, match="is damaged"):
            catalogue.runs()
        with opened(state) as catalogue, pytest.raises(CatalogueDamaged, match="is damaged"):
            catalogue.require_integrity()  # otherwise `rebuild`, the remedy in the error, would not change it
        settled(state)


@needs_root
def test_a_folder_that_is_closed_to_the_reader_is_named(state: Path) -> None:
    Catalogue.open(state).close()
    state.chmod(0o700)
    code = readable()
    assert "cannot be read: Permission denied" in work(*code.run_as(STRANGER, "-c", TELL, state), env=code.environment).stdout


def test_opening_the_catalogue_again_keeps_the_locks_that_this_process_has(state: Path) -> None:
    """Closing a file drops all locks that the process holds on it. The last other process to close the catalogue would then delete
    the journal in use.
    """
    with Catalogue.open(state) as first:
        first.set_fact("a", "1")
        first.get_fact("a")
        Catalogue.open(state).close()
        work(sys.executable, "-c", OPEN, state, cwd=ROOT)
        assert (state / "catalogue.sqlite-wal").exists()
        first.set_fact("a", "2")
    settled(state)
    with sqlite3.connect(state / "catalogue.sqlite") as connection:
        assert connection.execute("SELECT value FROM about WHERE name = 'a'").fetchone() == ("2",)
    connection.close()
