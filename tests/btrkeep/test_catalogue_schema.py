"""How a catalogue file is created, upgraded and damaged. The tests examine the file with sqlite3."""

import re
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from time import sleep
from types import UnionType
from typing import Any, get_args, get_origin

import pytest

from btrkeep.backup_states import BACKUP_STATES
from btrkeep.catalogue import (
    BALANCE_OUTCOMES,
    EXPIRY_OUTCOMES,
    FOUND_BY,
    RUN_OUTCOMES,
    SPANS,
    STEP_OUTCOMES,
    Backup,
    Balance,
    BalanceStep,
    Catalogue,
    CatalogueDamaged,
    CatalogueFull,
    ComparedBackup,
    Damage,
    Expiry,
    FreeSpaceScore,
    Progress,
    Run,
    Sample,
    Silence,
    StoredAlarm,
    VerifiedBackup,
    migrate,
    tables,
)
from btrkeep.catalogue.model_backup import DEDUPE_OUTCOMES, Dedupe
from btrkeep.catalogue.sqlite import meaning_of
from btrkeep.errors import OperatorError
from tests.beds import TOP

NOW = datetime(2026, 11, 20, 22, 0, tzinfo=UTC)
BACKUP = Backup("web1", "n1", "/p", "complete", NOW, NOW, 1.0, 1, 1, 1, None, detail={"a": 1})
NOW_VERSION, NEXT_VERSION = tables.SCHEMA_VERSION, tables.SCHEMA_VERSION + 1


def ask(file: Path, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(statement).fetchall()


def shape(file: Path) -> dict[str, object]:
    """Returns SQLite's description of the tables, which does not depend on the text of their SQL."""
    with closing(sqlite3.connect(file)) as connection:

        def rows(pragma: str) -> list[tuple[Any, ...]]:
            return sorted(connection.execute(f"PRAGMA {pragma}").fetchall(), key=repr)

        answer: dict[str, object] = {}
        for name, sql in connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall():
            indexes = {row[1]: (row[2:], rows(f"index_xinfo({row[1]})")) for row in rows(f"index_list({name})")}
            checks = sorted(re.findall(r"CONSTRAINT (\w+)", sql)) + sorted(re.findall(r"CHECK \((.*\))\)", sql))
            keys = [row[2:] for row in rows(f"foreign_key_list({name})")]
            answer[name] = (rows(f"table_xinfo({name})"), indexes, keys, checks, "AUTOINCREMENT" in sql)
        return answer


def test_a_missing_catalogue_is_made_for_its_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "WEB_USER", "no-such-group")  # this machine may have a dashboard
    state = tmp_path / "deep" / "state"
    with Catalogue.open(state) as catalogue:
        catalogue.put_backup(BACKUP)
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in state.iterdir()}
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert {"catalogue.sqlite", "catalogue.sqlite-wal", "catalogue.sqlite-shm"} <= modes.keys()
    assert set(modes.values()) == {0o600}
    assert ask(state / "catalogue.sqlite", "PRAGMA journal_mode") == [("wal",)]
    assert ask(state / "catalogue.sqlite", "PRAGMA user_version") == [(tables.SCHEMA_VERSION,)]


def is_document(of_type: object) -> bool:
    return get_origin(of_type) in (tuple, Mapping)


# What SQLite calls a column of that kind of value; the times, lists and documents are text.
DECLARED = {int: {"INTEGER", "BIGINT"}, float: {"FLOAT"}, bool: {"BOOLEAN"}}
ROWS: dict[str, type] = {
    "backup": Backup, "run": Run, "progress": Progress, "expiry": Expiry, "score": FreeSpaceScore, "balance": Balance,
    "balance_step": BalanceStep, "sample": Sample, "alarm": StoredAlarm, "damage": Damage,
    "verification": VerifiedBackup, "comparison": ComparedBackup, "dedupe": Dedupe,
    "silence": Silence,
}  # fmt: skip
OPTIONAL = {"warnings", "last_lines", "before", "after"}  # nothing in them is NULL


def test_the_schema_has_a_column_for_each_field_of_a_row(tmp_path: Path) -> None:
    Catalogue.open(tmp_path).close()
    assert {table.name for table in tables.TABLES} == ROWS.keys()
    for table, row in ROWS.items():
        answer = {
            name: (kind, notnull)
            for _, name, kind, notnull, _, _ in ask(tmp_path / "catalogue.sqlite", f"PRAGMA table_info({table})")
        }
        wanted = {field.name: field.type for field in fields(row) if (table, field.name) != ("backup", "detail")}
        assert answer.keys() - {"id"} == wanted.keys() - {"id"}, table
        for name, of_type in wanted.items():
            declared_types = [
                DECLARED[kind] for kind in (of_type, *get_args(of_type)) if kind in DECLARED and not is_document(of_type)
            ]
            assert answer[name][0] in (declared_types[0] if declared_types else {"TEXT"}), (table, name)
            may_be_null = isinstance(of_type, UnionType) and (table, name) != ("backup", "name")
            assert answer[name][1] == (0 if may_be_null or name in OPTIONAL else 1), (table, name)


@pytest.mark.parametrize(
    ("table", "column", "recorded"),
    [
        ("backup", "state", BACKUP_STATES),
        ("run", "outcome", RUN_OUTCOMES),
        ("expiry", "outcome", EXPIRY_OUTCOMES),
        ("dedupe", "outcome", DEDUPE_OUTCOMES),
        ("balance", "outcome", BALANCE_OUTCOMES),
        ("balance_step", "outcome", STEP_OUTCOMES),
        ("sample", "span", SPANS),
        ("damage", "found_by", FOUND_BY),
    ],
)
def test_the_database_knows_the_words_that_the_code_knows(
    tmp_path: Path, table: str, column: str, recorded: tuple[str, ...]
) -> None:
    Catalogue.open(tmp_path).close()
    ((sql,),) = ask(tmp_path / "catalogue.sqlite", f"SELECT sql FROM sqlite_master WHERE name = '{table}'")
    (words,) = re.findall(rf"CHECK \({column} IN \((.*?)\)\)", sql, re.DOTALL)
    assert tuple(re.findall(r"'([^']+)'", words)) == recorded


def test_the_schema_has_a_file_for_each_version() -> None:
    names = sorted(path.name for path in migrate.SCHEMA.iterdir())
    assert names == [f"{number:04}.sql" for number in range(1, tables.SCHEMA_VERSION + 1)]


def test_pragmas_are_said_where_the_database_is_known_only() -> None:
    folder = TOP / "btrkeep" / "catalogue"
    sources = {path.name: re.sub(r'""".*?"""', "", path.read_text(), flags=re.DOTALL) for path in folder.glob("*.py")}
    lines = {name for name, source in sources.items() if re.search(r"PRAGMA|sqlite_(master|schema)|sqlite3\.connect", source)}
    assert lines == {"dashboard_copy.py", "migrate.py", "readonly.py", "sqlite.py"}


# Everything is imported before, so that the openings really meet; many folders, since each race is short.
OPEN_MANY = """
import sys
from pathlib import Path
from btrkeep.catalogue import Catalogue
print("ready", flush=True)
sys.stdin.readline()
for number in range(5):
    with Catalogue.open(Path(sys.argv[1]) / str(number)) as catalogue:
        catalogue.start_run("h", __import__("datetime").datetime.now(__import__("datetime").UTC), 1, None, False)
"""


@pytest.mark.slow
def test_first_openings_at_the_same_time_all_succeed(tmp_path: Path) -> None:
    argv, pipe = [sys.executable, "-c", OPEN_MANY, str(tmp_path)], subprocess.PIPE
    together = [subprocess.Popen(argv, cwd=TOP, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(4)]
    for process in together:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in together:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.communicate()[1] for process in together] == [""] * 4
    assert [process.returncode for process in together] == [0] * 4
    for number in range(5):
        file = tmp_path / str(number) / "catalogue.sqlite"
        assert ask(file, "SELECT count(*) FROM run") == [(4,)]
        assert ask(file, "PRAGMA user_version") == [(tables.SCHEMA_VERSION,)]


def newer_code(monkeypatch: pytest.MonkeyPatch, folder: Path, step: str) -> None:
    """Simulates the next version of btrkeep, with one more SQL file."""
    shutil.copytree(migrate.SCHEMA, folder)
    (folder / f"{NEXT_VERSION:04}.sql").write_text(step)
    monkeypatch.setattr(migrate, "SCHEMA", folder)
    monkeypatch.setattr(tables, "SCHEMA_VERSION", NEXT_VERSION)


ADD_NOTE = "ALTER TABLE run ADD COLUMN note TEXT; -- as 0002.sql might"


@pytest.mark.slow
def test_an_older_catalogue_is_migrated_and_a_copy_kept_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    file, copy = state / "catalogue.sqlite", state / f"catalogue.sqlite.before-{NEXT_VERSION:04}"
    with Catalogue.open(state) as still_open:
        still_open.put_backup(BACKUP)  # only in the journal, as long as a process has the catalogue open
        ((sql,),) = ask(file, "SELECT sql FROM sqlite_schema WHERE name = 'backup'")
        columns = ", ".join(row[1] for row in ask(file, "PRAGMA table_info(backup)") if row[1] != "uuid")
        make = re.sub(r"\s+uuid TEXT,", "", sql).replace("TABLE backup", "TABLE new_backup")
        move = f"INSERT INTO new_backup SELECT {columns} FROM backup; DROP TABLE backup; ALTER TABLE new_backup RENAME TO backup;"
        newer_code(monkeypatch, tmp_path / "next", f"{ADD_NOTE}\n{make};\n{move}")
        migrate.prepared(state)
    assert "note" in [row[1] for row in ask(file, "PRAGMA table_info(run)")]
    assert "uuid" not in [row[1] for row in ask(file, "PRAGMA table_info(backup)")]
    # The table was recreated; rows that refer to it must not be deleted with the old one.
    assert ask(file, "SELECT * FROM backup_detail") == [("web1", "n1", '{"a":1}')]
    assert ask(file, "PRAGMA user_version") == [(NEXT_VERSION,)]
    assert (ask(copy, "PRAGMA user_version"), ask(copy, "SELECT host FROM backup")) == ([(NOW_VERSION,)], [("web1",)])
    assert "uuid" in [row[1] for row in ask(copy, "PRAGMA table_info(backup)")]
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert not list(state.glob("*.tmp"))


@pytest.mark.slow
def test_of_two_that_find_an_older_catalogue_one_migrates_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    Catalogue.open(state).close()
    newer_code(monkeypatch, tmp_path / "next", ADD_NOTE)
    copied: list[tuple[Any, ...]] = []
    copy = migrate._copy

    def slow_copy(file: Path, to: Path) -> None:
        sleep(0.3)
        copied.extend(ask(file, "PRAGMA user_version"))
        copy(file, to)

    monkeypatch.setattr(migrate, "_copy", slow_copy)
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(migrate.prepared, [state, state])) == [state / "catalogue.sqlite"] * 2
    assert copied == [(NOW_VERSION,)]
    assert ask(state / f"catalogue.sqlite.before-{NEXT_VERSION:04}", "PRAGMA user_version") == [(NOW_VERSION,)]
    assert ask(state / "catalogue.sqlite", "PRAGMA user_version") == [(NEXT_VERSION,)]


def test_a_catalogue_without_live_paths_gets_them_and_keeps_its_rows(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "catalogue.sqlite")) as connection, connection:
        first = (migrate.SCHEMA / "0001.sql").read_text()
        connection.executescript(f"{first}PRAGMA application_id = {tables.APPLICATION_ID}; PRAGMA user_version = 1;")
        connection.execute("INSERT INTO host VALUES ('web1')")
        columns = "host, name, path, state, started"
        connection.execute(f"INSERT INTO backup ({columns}) VALUES ('web1', 'n1', '/p', 'complete', '2026-11-20T22:00:00Z')")
    with Catalogue.open(tmp_path) as catalogue:
        assert [row.live_paths for row in catalogue.backups()] == [None]
        catalogue.put_backup(replace(BACKUP, live_paths=2))
        assert [row.live_paths for row in catalogue.backups()] == [2]
        assert catalogue.host_facts(NOW)["web1"].last_complete_live_paths == 2


@pytest.mark.parametrize(("last", "error"), [("SELECT * FROM nowhere", sqlite3.Error), ("DELETE FROM host", RuntimeError)])
def test_a_migration_that_fails_half_way_leaves_the_old_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str, error: type[Exception]
) -> None:
    state = tmp_path / "state"
    with Catalogue.open(state) as catalogue:
        catalogue.put_backup(BACKUP)
    before = shape(state / "catalogue.sqlite")
    with monkeypatch.context() as patch:
        newer_code(patch, tmp_path / "next", f"{ADD_NOTE}\n{last};")
        with pytest.raises(error):
            Catalogue.open(state)
    assert shape(state / "catalogue.sqlite") == before
    assert ask(state / "catalogue.sqlite", "PRAGMA user_version") == [(NOW_VERSION,)]
    with Catalogue.open(state) as catalogue:
        assert list(catalogue.backups(with_detail=True)) == [BACKUP]


# The rows are more than the page cache, so the -wal has part of the transaction long before its end.
MIGRATE_SLOWLY = """
import sys
from pathlib import Path
from btrkeep.catalogue import Catalogue, migrate, tables
migrate.SCHEMA, tables.SCHEMA_VERSION = Path(sys.argv[2]), tables.SCHEMA_VERSION + 1
Catalogue.open(Path(sys.argv[1]))
"""
MANY_ROWS = """
INSERT INTO about WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000000)
  SELECT 'fact ' || i, 'a value that takes some bytes' FROM n;
"""


@pytest.mark.slow
def test_a_migration_that_was_killed_leaves_the_old_schema_and_is_done_by_the_next_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, folder = tmp_path / "state", tmp_path / "next"
    with Catalogue.open(state) as catalogue:
        catalogue.put_backup(BACKUP)
    before, file = shape(state / "catalogue.sqlite"), state / "catalogue.sqlite"
    newer_code(monkeypatch, folder, ADD_NOTE + MANY_ROWS)
    child = subprocess.Popen([sys.executable, "-c", MIGRATE_SLOWLY, str(state), str(folder)], cwd=TOP)
    wal = state / "catalogue.sqlite-wal"
    size = 0
    while size <= 4 << 20:
        assert child.poll() is None, "it was too quick to be killed"
        sleep(0.001)
        with suppress(FileNotFoundError):  # opening the catalogue may delete and recreate a file
            size = wal.stat().st_size
    child.kill()
    assert child.wait() == -signal.SIGKILL
    assert (shape(file), ask(file, "PRAGMA user_version")) == (before, [(NOW_VERSION,)])
    (folder / f"{NEXT_VERSION:04}.sql").write_text(ADD_NOTE)
    with Catalogue.open(state) as catalogue:
        assert list(catalogue.backups(with_detail=True)) == [BACKUP]
    assert ask(file, "PRAGMA user_version") == [(NEXT_VERSION,)]
    assert "note" in [row[1] for row in ask(file, "PRAGMA table_info(run)")]


def test_a_newer_catalogue_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    Catalogue.open(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "catalogue.sqlite")) as connection, connection:
        connection.execute("PRAGMA user_version = 99")
    before = (tmp_path / "catalogue.sqlite").read_bytes()
    with pytest.raises(
        OperatorError, match=f"has schema 99, this btrkeep has {NOW_VERSION}: a newer version migrated it"
    ) as caught:
        Catalogue.open(tmp_path)
    assert "backupd rebuild" in caught.value.hint
    assert (tmp_path / "catalogue.sqlite").read_bytes() == before


@pytest.mark.parametrize("header", ["user_version = 0", "user_version = 1", "user_version = 9999", "application_id = 5"])
def test_a_database_of_another_program_is_refused_and_left_as_it_is(tmp_path: Path, header: str) -> None:
    with closing(sqlite3.connect(tmp_path / "catalogue.sqlite")) as connection, connection:
        connection.execute("CREATE TABLE cookies (name)")
        connection.execute(f"PRAGMA {header}")
    with pytest.raises(OperatorError, match="not a catalogue") as caught:
        Catalogue.open(tmp_path)
    assert "backupd rebuild" in caught.value.hint
    assert ask(tmp_path / "catalogue.sqlite", "SELECT name FROM sqlite_master") == [("cookies",)]


def test_a_file_that_is_no_database_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "catalogue.sqlite").write_bytes(b"these are my notes, and no database\n" * 200)
    with pytest.raises(OperatorError, match="damaged") as caught:
        Catalogue.open(tmp_path)
    assert "backupd rebuild" in caught.value.hint
    links = (str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink())
    assert [name for name in links if name.startswith(str(tmp_path))] == [], "left open for the garbage collector"


@pytest.mark.parametrize("damage", ["garbage", "cut"])
def test_damage_inside_the_file_is_reported_with_the_way_out(tmp_path: Path, damage: str) -> None:
    with Catalogue.open(tmp_path) as catalogue:
        catalogue.replace_backups("p", (replace(BACKUP, name=f"n{number}", path="/p" * 50) for number in range(2000)))
    file = tmp_path / "catalogue.sqlite"
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2] if damage == "cut" else content[:65536] + b"\xa5" * (len(content) - 65536))

    def use() -> None:
        with Catalogue.open(tmp_path) as catalogue:
            list(catalogue.backups())

    with pytest.raises(OperatorError, match="damaged") as caught:
        use()
    assert "backupd rebuild" in caught.value.hint


@pytest.mark.parametrize("name", ["locked", "malformed", "readonly"])
def test_a_mistake_of_ours_is_no_trouble_of_the_catalogue_whatever_names_are_in_it(tmp_path: Path, name: str) -> None:
    with Catalogue.open(tmp_path) as catalogue, pytest.raises(sqlite3.OperationalError, match=f"no such column: {name}"):
        catalogue._reader.all(f"SELECT {name} FROM backup")


def test_text_that_is_no_utf8_is_damage_also_while_a_catalogue_is_migrated(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "catalogue.sqlite")) as connection, pytest.raises(sqlite3.OperationalError) as caught:
        connection.execute("SELECT CAST(x'ff' AS TEXT)").fetchall()
    assert isinstance(meaning_of(caught.value, tmp_path / "catalogue.sqlite"), CatalogueDamaged)


@pytest.mark.slow
def test_a_damaged_catalogue_is_set_aside_when_the_new_one_is_made(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / "catalogue.sqlite").write_bytes(b"rubbish %d" % number * 100)
        with Catalogue.rebuilt(tmp_path) as (catalogue, aside):
            assert catalogue.replace_backups("p", [BACKUP]) == 1
        assert aside == [tmp_path / f"catalogue.sqlite.aside-{number}"]
        assert aside[0].read_bytes() == b"rubbish %d" % number * 100
    with Catalogue.open(tmp_path) as catalogue:
        assert [backup.name for backup in catalogue.backups()] == [BACKUP.name]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == []


def made_full(catalogue: Catalogue) -> None:
    """Makes the database full with SQLite's own limit."""
    assert catalogue._writer
    catalogue._writer.run("PRAGMA max_page_count = 1")


def test_a_damaged_catalogue_is_where_it_was_when_the_new_one_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "catalogue.sqlite").write_bytes(b"rubbish" * 100)

    def make() -> None:
        with Catalogue.rebuilt(tmp_path) as (catalogue, _):
            made_full(catalogue)
            catalogue.replace_backups("p", [replace(BACKUP, name=f"n{number}", path="/p" * 500) for number in range(500)])

    with pytest.raises(CatalogueFull):
        make()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"catalogue.sqlite": b"rubbish" * 100}


def test_a_state_folder_that_cannot_be_made_is_an_error_for_the_operator(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OperatorError, match="cannot be opened"):
        Catalogue.open(tmp_path / "file" / "state")


def test_a_full_disk_is_an_error_for_the_operator_and_the_old_rows_stay(tmp_path: Path) -> None:
    with Catalogue.open(tmp_path) as catalogue:
        catalogue.put_backup(BACKUP)
        made_full(catalogue)
        many = [replace(BACKUP, name=f"n{number}", path="/p" * 500) for number in range(500)]
        with pytest.raises(OperatorError, match="no free space"):
            catalogue.replace_backups("p", many)
        assert list(catalogue.backups(with_detail=True)) == [BACKUP]
