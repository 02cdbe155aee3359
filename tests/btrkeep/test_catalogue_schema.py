"""How a catalogue file comes to be, grows older and breaks. The file is looked at with sqlite3 and Alembic themselves."""

import re
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from time import sleep
from types import UnionType
from typing import Any, get_args, get_origin

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

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
    StoredAlarm,
    VerifiedBackup,
    migrate,
    tables,
)
from btrkeep.catalogue.model import DEDUPE_OUTCOMES, Dedupe
from btrkeep.catalogue.sqlite import meaning_of
from btrkeep.errors import OperatorError
from tests.beds import TOP

NOW = datetime(2026, 11, 20, 22, 0, tzinfo=UTC)
BACKUP = Backup("web1", "n1", "/p", "complete", NOW, NOW, 1.0, 1, 1, 1, None, detail={"a": 1})
NOW_VERSION, NEXT_VERSION = tables.SCHEMA_VERSION, f"{int(tables.SCHEMA_VERSION) + 1:04}"


def ask(file: Path, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(statement).fetchall()


def shape(file: Path) -> dict[str, object]:
    """All that SQLite knows of the tables, however their SQL was written."""
    with closing(sqlite3.connect(file)) as connection:

        def rows(pragma: str) -> list[tuple[Any, ...]]:
            return sorted(connection.execute(f"PRAGMA {pragma}").fetchall(), key=repr)

        found: dict[str, object] = {}
        for name, sql in connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall():
            indexes = {row[1]: (row[2:], rows(f"index_xinfo({row[1]})")) for row in rows(f"index_list({name})")}
            checks = sorted(re.findall(r"CONSTRAINT (\w+)", sql)) + sorted(re.findall(r"CHECK \((.*\))\)", sql))
            keys = [row[2:] for row in rows(f"foreign_key_list({name})")]
            found[name] = (rows(f"table_xinfo({name})"), indexes, keys, checks, "AUTOINCREMENT" in sql)
        return found


def test_a_missing_catalogue_is_made_for_its_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "READERS", "no-such-group")  # this machine may have a dashboard
    state = tmp_path / "deep" / "state"
    with Catalogue.open(state) as catalogue:
        catalogue.put_backup(BACKUP)
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in state.iterdir()}
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert {"catalogue.sqlite", "catalogue.sqlite-wal", "catalogue.sqlite-shm"} <= modes.keys()
    assert set(modes.values()) == {0o600}
    assert ask(state / "catalogue.sqlite", "PRAGMA journal_mode") == [("wal",)]
    assert ask(state / "catalogue.sqlite", "SELECT version_num FROM alembic_version") == [(tables.SCHEMA_VERSION,)]


def is_document(of_type: object) -> bool:
    return get_origin(of_type) in (tuple, Mapping)


# What SQLite calls a column of that kind of value; the times, lists and documents are text.
DECLARED = {int: {"INTEGER", "BIGINT"}, float: {"FLOAT"}, bool: {"BOOLEAN"}}
ROWS: dict[str, type] = {
    "backup": Backup, "run": Run, "progress": Progress, "expiry": Expiry, "score": FreeSpaceScore, "balance": Balance,
    "balance_step": BalanceStep, "sample": Sample, "alarm": StoredAlarm, "damage": Damage,
    "verification": VerifiedBackup, "comparison": ComparedBackup, "dedupe": Dedupe,
}  # fmt: skip
OPTIONAL = {"warnings", "last_lines", "before", "after"}  # nothing in them is NULL


def test_migrations_lead_to_a_column_for_each_field_of_a_row(tmp_path: Path) -> None:
    Catalogue.open(tmp_path).close()
    assert {table.name for table in tables.TABLES} == ROWS.keys()
    for table, row in ROWS.items():
        found = {
            name: (kind, notnull)
            for _, name, kind, notnull, _, _ in ask(tmp_path / "catalogue.sqlite", f"PRAGMA table_info({table})")
        }
        wanted = {field.name: field.type for field in fields(row) if (table, field.name) != ("backup", "detail")}
        assert found.keys() - {"id"} == wanted.keys() - {"id"}, table
        for name, of_type in wanted.items():
            known = [DECLARED[kind] for kind in (of_type, *get_args(of_type)) if kind in DECLARED and not is_document(of_type)]
            assert found[name][0] in (known[0] if known else {"TEXT"}), (table, name)
            may_be_null = isinstance(of_type, UnionType) and (table, name) != ("backup", "name")
            assert found[name][1] == (0 if may_be_null or name in OPTIONAL else 1), (table, name)


@pytest.mark.parametrize(
    ("table", "column", "known"),
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
def test_the_database_knows_the_words_that_the_code_knows(tmp_path: Path, table: str, column: str, known: tuple[str, ...]) -> None:
    Catalogue.open(tmp_path).close()
    ((sql,),) = ask(tmp_path / "catalogue.sqlite", f"SELECT sql FROM sqlite_master WHERE name = '{table}'")
    (words,) = re.findall(rf"CHECK \({column} IN \((.*?)\)\)", sql)
    assert tuple(re.findall(r"'([^']+)'", words)) == known


def test_the_newest_migration_is_the_version_that_the_code_knows() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrate.MIGRATIONS).replace("%", "%%"))
    revisions = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    assert revisions == sorted(revisions, reverse=True)
    assert revisions[0] == tables.SCHEMA_VERSION


def test_pragmas_are_said_where_the_database_is_known_only() -> None:
    folder = TOP / "btrkeep" / "catalogue"
    sources = {path.name: re.sub(r'""".*?"""', "", path.read_text(), flags=re.DOTALL) for path in folder.glob("*.py")}
    found = {name for name, source in sources.items() if re.search(r"PRAGMA|sqlite_master|sqlite3\.connect", source)}
    assert found == {"dashboard_copy.py", "migrate.py", "readonly.py", "sqlite.py", "upgrade.py"}


FRESH = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from btrkeep.catalogue import Catalogue
catalogue = Catalogue.open(Path(sys.argv[1]))
"""


def fresh(code: str, state: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", FRESH + code, str(state)], cwd=TOP, text=True, capture_output=True, check=True)


@pytest.mark.slow
def test_alembic_and_sqlalchemy_are_imported_only_to_migrate(tmp_path: Path) -> None:
    code = "catalogue.host_facts(datetime.now(UTC)); print('alembic' in sys.modules, 'sqlalchemy' in sys.modules)"
    assert fresh(code, tmp_path).stdout.split() == ["True", "True"]
    assert fresh(code, tmp_path).stdout.split() == ["False", "False"]


# Everything is imported before, so that the openings really meet; many folders, since each race is short.
OPEN_MANY = """
import sys
from pathlib import Path
import alembic.command, alembic.autogenerate
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
        assert ask(file, "SELECT version_num FROM alembic_version") == [(tables.SCHEMA_VERSION,)]


def newer_code(monkeypatch: pytest.MonkeyPatch, folder: Path, upgrade: Iterable[str]) -> None:
    """As if the next version of btrkeep had been installed."""
    shutil.copytree(migrate.MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    lines = ["import sqlalchemy as sa", "from alembic import op", f"revision, down_revision = '{NEXT_VERSION}', '{NOW_VERSION}'"]
    (folder / "versions" / f"version_{NEXT_VERSION}.py").write_text(
        "\n".join([*lines, "def upgrade() -> None:", *(f"    {line}" for line in upgrade)])
    )
    monkeypatch.setattr(migrate, "MIGRATIONS", folder)
    monkeypatch.setattr(tables, "SCHEMA_VERSION", NEXT_VERSION)


@pytest.mark.slow
def test_an_older_catalogue_is_migrated_and_a_copy_kept_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    file, copy = state / "catalogue.sqlite", state / f"catalogue.sqlite.before-{NEXT_VERSION}"
    with Catalogue.open(state) as still_open:
        still_open.put_backup(BACKUP)  # which is in the journal only, as long as somebody has the catalogue open
        drop_a_column = ["with op.batch_alter_table('backup', recreate='always') as batch:", "    batch.drop_column('uuid')"]
        newer_code(monkeypatch, tmp_path / "next%40", ["op.add_column('run', sa.Column('note', sa.Text))", *drop_a_column])
        migrate.prepared(state)
    assert "note" in [row[1] for row in ask(file, "PRAGMA table_info(run)")]
    assert "uuid" not in [row[1] for row in ask(file, "PRAGMA table_info(backup)")]
    # The table was built anew; what refers to it must not have gone with the old one.
    assert ask(file, "SELECT * FROM backup_detail") == [("web1", "n1", '{"a":1}')]
    assert ask(file, "SELECT version_num FROM alembic_version") == [(NEXT_VERSION,)]
    assert ask(copy, "SELECT version_num, host FROM alembic_version, backup") == [(NOW_VERSION, "web1")]
    assert "uuid" in [row[1] for row in ask(copy, "PRAGMA table_info(backup)")]
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert not list(state.glob("*.tmp"))


@pytest.mark.slow
def test_of_two_that_find_an_older_catalogue_one_migrates_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    Catalogue.open(state).close()
    newer_code(monkeypatch, tmp_path / "next", ["op.add_column('run', sa.Column('note', sa.Text))"])
    copied: list[tuple[Any, ...]] = []
    copy = migrate._copy

    def slow_copy(file: Path, to: Path) -> None:
        sleep(0.3)
        copied.extend(ask(file, "SELECT version_num FROM alembic_version"))
        copy(file, to)

    monkeypatch.setattr(migrate, "_copy", slow_copy)
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(migrate.prepared, [state, state])) == [state / "catalogue.sqlite"] * 2
    assert copied == [(NOW_VERSION,)]
    assert ask(state / f"catalogue.sqlite.before-{NEXT_VERSION}", "SELECT version_num FROM alembic_version") == [(NOW_VERSION,)]
    assert ask(state / "catalogue.sqlite", "SELECT version_num FROM alembic_version") == [(NEXT_VERSION,)]


OLD_ROWS = r"""
INSERT INTO about VALUES ('pool_id', 'the-pool');
INSERT INTO host VALUES ('web1'), ('caf\udce9');
INSERT INTO backup VALUES
  ('web1', '2026-11-20T220003Z', 'hosts/web1/2026-11-20T220003Z', 'complete', '2026-11-20T22:00:03.000000Z',
   '2026-11-20T22:01:04.500000Z', 61.5, 1234, 1099511627776, 77, NULL, '["one", "two"]', '2026-11-19T220003Z', 300, 'u-1'),
  ('web1', 'n2', 'p2', 'suspect', '2026-11-21T22:00:03.000000Z', NULL, NULL, NULL, NULL, NULL, 'lost', NULL, NULL, NULL, NULL),
  ('web1', 'n3', 'p3', 'failed', '2026-11-22T22:00:03.000000Z', NULL, NULL, NULL, NULL, NULL, 'gone', NULL, NULL, 302, 'u-3'),
  ('caf\udce9', '', 'p4', 'partial', '2026-11-20T22:00:03.000000Z', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'n1', 303, 'u-4');
INSERT INTO backup_detail VALUES ('web1', '2026-11-20T220003Z', '{"a":1}'), ('web1', 'n2', '{"b":[2]}');
INSERT INTO run (id, host, started, finished, outcome, backup, attempts, last_lines, pid, night) VALUES
  (7, 'web1', '2026-11-20T22:00:03.000000Z', '2026-11-20T22:01:04.500000Z', 'complete', '2026-11-20T220003Z', 1, '["x"]', 4242, 1),
  (9, 'caf\udce9', '2026-11-20T22:00:03.000000Z', NULL, NULL, NULL, 2, NULL, 4243, 0);
INSERT INTO progress VALUES ('caf\udce9', 9, 4243, '99', '/srv', 1, NULL, 3, NULL, 0.5, '2026-11-20T22:00:09.000000Z');
"""


def made_at(version: str, file: Path) -> None:
    """A catalogue of an older btrkeep, by the migrations that it had, and Alembic itself."""
    engine = create_engine(f"sqlite:///{file}")
    config = Config()
    config.set_main_option("script_location", str(migrate.MIGRATIONS).replace("%", "%%"))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, version)
    engine.dispose()


def rows_of(file: Path, columns: dict[str, str]) -> dict[str, list[tuple[Any, ...]]]:
    return {table: sorted(ask(file, f"SELECT {names} FROM {table}"), key=repr) for table, names in columns.items()}


def test_a_catalogue_of_the_first_schema_keeps_every_row_and_value(tmp_path: Path) -> None:
    file = tmp_path / "catalogue.sqlite"
    made_at("0001", file)
    tables_then = ("about", "host", "backup", "backup_detail", "run", "progress")
    columns = {name: ", ".join(row[1] for row in ask(file, f"PRAGMA table_info({name})")) for name in tables_then}
    assert "held" not in columns["backup"]
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(OLD_ROWS)
    before = rows_of(file, columns)
    assert all(before.values())
    with Catalogue.open(tmp_path) as catalogue:
        found = list(catalogue.backups(with_detail=True))
        assert [(one.host, one.name, one.outcome, one.held_why, one.expired) for one in found] == [
            ("caf\udce9", None, None, None, None),
            ("web1", "2026-11-20T220003Z", "complete", None, None),
            ("web1", "n2", "suspect", None, None),
            ("web1", "n3", "failed", None, None),
        ]
        assert (found[1].warnings, found[1].bytes, found[1].detail) == (("one", "two"), 2**40, {"a": 1})
        assert (len(catalogue.runs()), len(catalogue.progress()), catalogue.pool_id()) == (2, 1, "the-pool")
        assert catalogue.start_run("web1", NOW, 1, None, False) == 10
    after = rows_of(file, columns)
    after["run"] = [row for row in after["run"] if row[0] != 10]
    assert after == before
    assert rows_of(tmp_path / f"catalogue.sqlite.before-{NOW_VERSION}", columns) == before
    assert (ask(file, "PRAGMA integrity_check"), ask(file, "PRAGMA foreign_key_check")) == ([("ok",)], [])


ROWS_SINCE_0002 = r"""
UPDATE backup SET outcome = 'complete', state = 'expired', held = 'held until 2027-01-01T00:00:00Z: the audit: caf\udce9
two lines', expired = '2026-11-21T00:00:00.000000Z'
  WHERE name = '2026-11-20T220003Z';
UPDATE backup SET held = 'held' WHERE name = 'n2';
UPDATE backup SET held = 'until May' WHERE name = 'n3';
INSERT INTO expiry VALUES
  (3, '2026-11-20T22:00:03.000000Z', '2026-11-20T22:01:04.500000Z', 'complete', 1, '9', 5, 4, 3, 2, 1, 0, 7, 0.5, NULL, 99, 'ssd',
   NULL, NULL, '2026-11-20T22:01:04.500000Z'),
  (4, '2026-11-21T22:00:03.000000Z', NULL, NULL, 2, NULL, 1, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, 'backups run', NULL,
   '2026-11-21T22:01:04.500000Z');
"""


@pytest.mark.slow
def test_a_catalogue_of_the_second_schema_keeps_every_row_and_value(tmp_path: Path) -> None:
    file = tmp_path / "catalogue.sqlite"
    made_at("0001", file)
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(OLD_ROWS)
    made_at("0002", file)
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(ROWS_SINCE_0002)
    tables_then = ("about", "host", "backup", "backup_detail", "run", "progress", "expiry")
    columns = {name: ", ".join(row[1] for row in ask(file, f"PRAGMA table_info({name})")) for name in tables_then}
    assert " held," in columns["backup"]
    assert "balance" not in {name for (name,) in ask(file, "SELECT name FROM sqlite_master")}
    before = rows_of(file, columns)
    assert all(before.values())
    with Catalogue.open(tmp_path) as catalogue:
        assert [one.id for one in catalogue.expiries()] == [4, 3]
        assert [one.paused for one in catalogue.unfinished_expiries()] == ["backups run"]
        assert [(one.name, one.held_until, one.held_why) for one in catalogue.backups() if one.held_why is not None] == [
            ("2026-11-20T220003Z", datetime(2027, 1, 1, tzinfo=UTC), "the audit: caf\udce9\ntwo lines"),
            ("n2", None, ""),
            ("n3", None, "until May"),
        ]
        assert not catalogue.scores("any")
        assert not catalogue.unfinished_balances()
    assert rows_of(tmp_path / f"catalogue.sqlite.before-{NOW_VERSION}", columns) == before
    kept = {**columns, "backup": columns["backup"].replace(" held,", "")}
    assert rows_of(file, kept) == rows_of(tmp_path / f"catalogue.sqlite.before-{NOW_VERSION}", kept)
    assert ask(file, "SELECT version_num FROM alembic_version") == [(NOW_VERSION,)]
    assert (ask(file, "PRAGMA integrity_check"), ask(file, "PRAGMA foreign_key_check")) == ([("ok",)], [])


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0001", "0002", "0003"])
def test_a_migrated_catalogue_has_the_shape_of_a_new_one(tmp_path: Path, version: str) -> None:
    made_at(version, tmp_path / "catalogue.sqlite")
    Catalogue.open(tmp_path).close()
    Catalogue.open(tmp_path / "new").close()
    assert shape(tmp_path / "catalogue.sqlite") == shape(tmp_path / "new" / "catalogue.sqlite")


@pytest.mark.parametrize("last", ["raise RuntimeError('half way')", "op.execute('DELETE FROM host')"])
def test_a_migration_that_fails_half_way_leaves_the_old_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str) -> None:
    state = tmp_path / "state"
    with Catalogue.open(state) as catalogue:
        catalogue.put_backup(BACKUP)
    before = shape(state / "catalogue.sqlite")
    with monkeypatch.context() as patch:
        newer_code(patch, tmp_path / "next", ["op.add_column('run', sa.Column('note', sa.Text))", last])
        with pytest.raises(RuntimeError):
            Catalogue.open(state)
    assert shape(state / "catalogue.sqlite") == before
    assert ask(state / "catalogue.sqlite", "SELECT version_num FROM alembic_version") == [(NOW_VERSION,)]
    with Catalogue.open(state) as catalogue:
        assert list(catalogue.backups(with_detail=True)) == [BACKUP]


def test_a_newer_catalogue_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    Catalogue.open(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "catalogue.sqlite")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '0099'")
    before = (tmp_path / "catalogue.sqlite").read_bytes()
    with pytest.raises(OperatorError, match="0099") as caught:
        Catalogue.open(tmp_path)
    assert "newer" in caught.value.message
    assert caught.value.hint
    assert (tmp_path / "catalogue.sqlite").read_bytes() == before


def test_a_database_of_something_else_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "catalogue.sqlite")) as connection, connection:
        connection.execute("CREATE TABLE cookies (name)")
    with pytest.raises(OperatorError, match="no catalogue"):
        Catalogue.open(tmp_path)
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
        with Catalogue.made_anew(tmp_path) as (catalogue, aside):
            assert catalogue.replace_backups("p", [BACKUP]) == 1
        assert aside == [tmp_path / f"catalogue.sqlite.aside-{number}"]
        assert aside[0].read_bytes() == b"rubbish %d" % number * 100
    with Catalogue.open(tmp_path) as catalogue:
        assert [one.name for one in catalogue.backups()] == [BACKUP.name]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == []


def made_full(catalogue: Catalogue) -> None:
    """By SQLite's own way to be full."""
    assert catalogue._writer
    catalogue._writer.run("PRAGMA max_page_count = 1")


def test_a_damaged_catalogue_is_where_it_was_when_the_new_one_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "catalogue.sqlite").write_bytes(b"rubbish" * 100)

    def make() -> None:
        with Catalogue.made_anew(tmp_path) as (catalogue, _):
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
        with pytest.raises(OperatorError, match="no room"):
            catalogue.replace_backups("p", many)
        assert list(catalogue.backups(with_detail=True)) == [BACKUP]
