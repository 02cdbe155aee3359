"""The catalogue's rows: written by the catalogue and read with sqlite3, or the other way round."""

import gc
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from sqlite3 import IntegrityError, ProgrammingError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import make_catalogue
from bench.make_catalogue import add_runs
from btrkeep.backup_states import Cause, CauseCode
from btrkeep.catalogue import Backup, Catalogue, Progress, Run
from btrkeep.catalogue.sqlite import CatalogueDamaged, escape, unescape

DEADLINE = Cause(CauseCode.DEADLINE, "/srv")
EVENING = datetime(2026, 11, 20, 22, 0, 3, 123456, tzinfo=UTC)
FAR = EVENING + timedelta(days=3000)
BACKUP = Backup(
    host="web1",
    name="2026-11-20T220003Z",
    path="/srv/backup/hosts/web1/2026-11-20T220003Z",
    state="complete",
    started=EVENING,
    finished=EVENING + timedelta(seconds=61.5),
    duration=61.5,
    files=1234,
    bytes=2**40,
    new_bytes=77,
    error=None,
    warnings=("file has vanished: /a", "two"),
    base="2026-11-19T220003Z",
    subvolume_id=2**48 - 1,
    uuid="0d6f0d2e-9f4b-4a43-8a0f-7f7d6f0f1a2b",
    detail={"paths": {"/srv": {"exit_code": 0}}, "literal": 5},
)
WORKING = replace(BACKUP, name=None, path="/srv/backup/hosts/web1/.working", state="running", finished=None, detail={})


def one_row(sql: sqlite3.Connection, table: str) -> dict[str, Any]:
    cursor = sql.execute(f"SELECT * FROM {table}")
    [row] = cursor.fetchall()
    return dict(zip([column[0] for column in cursor.description], row, strict=True))


def begin(catalogue: Catalogue, host: str = "web1", started: datetime = EVENING) -> int:
    return catalogue.start_run(host, started, 4242, "99", night=True)


def test_a_backup_is_kept_as_plain_values_that_sqlite3_can_read(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    catalogue.put_backup(BACKUP)
    row = one_row(sql, "backup")
    assert row.pop("started") == "2026-11-20T22:00:03.123456Z"
    assert row.pop("finished") == "2026-11-20T22:01:04.623456Z"
    assert json.loads(row.pop("warnings")) == list(BACKUP.warnings)
    assert row == {name: getattr(BACKUP, name) for name in row}
    assert json.loads(one_row(sql, "backup_detail")["detail"]) == BACKUP.detail


def test_a_backup_comes_back_as_it_went_in(catalogue: Catalogue) -> None:
    bare = Backup("bare", None, "/p", "partial", EVENING, None, None, None, None, None, None)
    catalogue.put_backup(BACKUP)
    catalogue.put_backup(bare)
    assert list(catalogue.backups(with_detail=True)) == [bare, BACKUP]
    assert list(catalogue.backups()) == [bare, replace(BACKUP, detail={})]
    assert [(moment.started.tzinfo) for moment in catalogue.backups()] == [UTC, UTC]


def test_a_row_that_sqlite3_wrote_is_read(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    sql.execute("INSERT INTO host VALUES ('db')")
    sql.execute(
        "INSERT INTO backup (host, name, path, state, started, error) VALUES "
        "('db', '', '/x\\\\y', 'failed', '2026-11-20T22:00:03.123456Z', 'bad \\udcff')"
    )
    assert list(catalogue.backups("db")) == [
        Backup("db", None, "/x\\y", "failed", EVENING, None, None, None, None, None, "bad \udcff")
    ]


def test_putting_a_backup_again_replaces_the_row_of_that_host_and_name_only(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    for each in (BACKUP, replace(BACKUP, host="web2"), WORKING):
        catalogue.put_backup(each)
    catalogue.put_backup(replace(BACKUP, state="suspect", detail={}))
    assert set(sql.execute("SELECT host, name, state FROM backup")) == {
        ("web1", BACKUP.name, "suspect"),
        ("web1", "", "running"),
        ("web2", BACKUP.name, "complete"),
    }
    assert sql.execute("SELECT host FROM backup_detail").fetchall() == [("web2",)]


def test_a_host_has_one_working_row(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    catalogue.put_backup(WORKING)
    catalogue.put_backup(replace(WORKING, started=EVENING + timedelta(days=1), state="partial"))
    assert one_row(sql, "backup")["state"] == "partial"


def test_dropping_forgets_one_backup_and_its_detail(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    catalogue.put_backup(BACKUP)
    catalogue.put_backup(WORKING)
    catalogue.drop_backup("web1", None)
    assert one_row(sql, "backup")["name"] == BACKUP.name
    catalogue.drop_backup("web1", BACKUP.name)
    catalogue.drop_backup("web1", "never was")
    assert sql.execute("SELECT count(*) FROM backup_detail").fetchone() == (0,)
    assert catalogue.hosts() == []


def test_finishing_moves_the_backup_ends_the_run_and_its_progress(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    run_id = begin(catalogue)
    catalogue.put_backup(WORKING)
    catalogue.put_progress(Progress("web1", run_id, 4242, "99", "/srv", 1, 2, 3, 4.5, 0.5, EVENING))
    catalogue.finish_backup(BACKUP, run_id, attempts=2, exit_code=24, last_lines=("a", "b"), literal_bytes=5)
    assert one_row(sql, "backup")["name"] == BACKUP.name
    run = one_row(sql, "run")
    assert {key: run[key] for key in ("finished", "outcome", "backup", "attempts", "exit_code", "last_lines", "pid", "night")} == {
        "finished": "2026-11-20T22:01:04.623456Z",
        "outcome": "complete",
        "backup": BACKUP.name,
        "attempts": 2,
        "exit_code": 24,
        "last_lines": '["a", "b"]',
        "pid": 4242,
        "night": 1,
    }
    assert sql.execute("SELECT count(*) FROM progress").fetchone() == (0,)


def test_finishing_changes_all_or_nothing(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    run_id = begin(catalogue)
    catalogue.put_backup(WORKING)
    with pytest.raises(IntegrityError):
        catalogue.finish_backup(BACKUP, run_id, outcome="splendid")
    with pytest.raises(KeyError):
        catalogue.finish_backup(BACKUP, run_id + 1)
    assert one_row(sql, "backup")["state"] == "running"
    assert one_row(sql, "run")["outcome"] is None
    catalogue.finish_backup(BACKUP, run_id)
    assert one_row(sql, "backup")["state"] == "complete"


def test_the_outcome_of_a_run_that_has_ended_can_be_corrected(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    run_id = begin(catalogue)
    catalogue.finish_run(run_id, finished=EVENING, outcome="complete")
    catalogue.update_run(run_id, outcome="failed", error="the pool became read-only")
    assert (one_row(sql, "run")["outcome"], one_row(sql, "run")["error"]) == ("failed", "the pool became read-only")


def test_a_partial_backup_stays_in_working_when_its_run_ends(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    run_id = begin(catalogue)
    catalogue.put_backup(WORKING)
    catalogue.finish_backup(replace(WORKING, state="partial", finished=EVENING), run_id, error="stopped")
    assert (one_row(sql, "backup")["name"], one_row(sql, "run")["outcome"]) == ("", "partial")


def test_a_run_must_end_with_a_time_and_an_outcome_and_has_no_other_fields(catalogue: Catalogue) -> None:
    run_id = begin(catalogue)
    with pytest.raises(TypeError):
        catalogue.finish_run(run_id, outcome="failed")
    with pytest.raises(TypeError):
        catalogue.finish_backup(replace(BACKUP, state="running"), run_id)
    with pytest.raises(TypeError, match="colour"):
        catalogue.update_run(run_id, colour="red")
    with pytest.raises(KeyError):
        catalogue.update_run(run_id + 1, attempts=1)
    assert [run.id for run in catalogue.unfinished_runs()] == [run_id]


def test_runs_are_listed_newest_first_and_stay_when_their_backup_goes(catalogue: Catalogue) -> None:
    ids = [begin(catalogue, host, EVENING + timedelta(days=day)) for day in range(3) for host in ("web1", "web2")]
    catalogue.update_run(ids[-1], attempts=3, error="no route to host")
    catalogue.finish_run(ids[0], finished=EVENING, outcome="skipped")
    catalogue.put_backup(BACKUP)
    catalogue.drop_backup("web1", BACKUP.name)
    assert [run.id for run in catalogue.runs()] == ids[::-1]
    assert [run.id for run in catalogue.runs("web1", limit=2)] == [ids[4], ids[2]]
    assert [run.id for run in catalogue.unfinished_runs()] == ids[1:]
    assert catalogue.runs(limit=1)[0] == Run(
        id=ids[-1], host="web2", started=EVENING + timedelta(days=2), finished=None, outcome=None, backup=None, attempts=3,
        exit_code=None, meaning=None, error="no route to host", last_lines=(), literal_bytes=None, matched_bytes=None,
        received_bytes=None, rsync_version=None, protocol=None, pid=4242, pid_started="99", night=True,
    )  # fmt: skip


def test_the_id_of_a_run_is_never_given_again(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    first = begin(catalogue)
    sql.execute("DELETE FROM run")
    assert begin(catalogue) > first


def test_progress_has_one_row_for_each_host(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    early = Progress("web1", begin(catalogue), 1, None, "/etc", 1, None, 2, None, None, EVENING)
    late = replace(early, path="/srv", files_done=10, files_total=20, rate=1e6, share=0.5)
    other = replace(early, host="web2", run_id=begin(catalogue, "web2"))
    for each in (early, other, late):
        catalogue.put_progress(each)
    assert catalogue.progress() == [late, other]
    rows = sql.execute("SELECT path, files_done, share FROM progress ORDER BY host").fetchall()
    assert rows == [("/srv", 10, 0.5), ("/etc", 1, None)]
    catalogue.drop_progress("web1")
    catalogue.finish_run(other.run_id, finished=EVENING, outcome="failed")
    assert catalogue.progress() == []


def test_a_rebuild_replaces_every_backup_and_keeps_the_history(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    begin(catalogue, "gone")
    catalogue.put_backup(replace(BACKUP, host="gone"))
    catalogue.put_backup(WORKING)
    backups = [replace(BACKUP, host=f"host{number % 40}", name=f"n{number:04}") for number in range(1300)]
    assert catalogue.replace_backups("the-pool", iter(backups)) == 1300
    assert set(sql.execute("SELECT host, name FROM backup")) == {(each.host, each.name) for each in backups}
    assert sql.execute("SELECT count(*) FROM backup_detail").fetchone() == (1300,)
    assert (catalogue.pool_id(), one_row(sql, "run")["host"]) == ("the-pool", "gone")
    assert catalogue.hosts() == sorted({each.host for each in backups} | {"gone"})
    assert catalogue.replace_backups("other", []) == 0
    assert (list(catalogue.backups()), catalogue.pool_id()) == ([], "other")


def test_a_rebuild_that_fails_changes_nothing_and_reads_without_a_lock(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    catalogue.put_backup(BACKUP)

    def rows_that_end() -> Iterator[Backup]:
        yield replace(BACKUP, host="new")
        sql.execute("PRAGMA busy_timeout = 0")
        sql.execute("INSERT INTO host VALUES ('written meanwhile')")
        raise OSError("the pool went away")

    with pytest.raises(OSError, match="went away"):
        catalogue.replace_backups("other", rows_that_end())
    with pytest.raises(IntegrityError):
        catalogue.replace_backups("other", [BACKUP, BACKUP])
    assert (one_row(sql, "backup")["host"], catalogue.pool_id()) == ("web1", None)


def test_the_pool_id_is_kept(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    assert catalogue.pool_id() is None
    for pool_id in ("first", "second"):
        catalogue.set_pool_id(pool_id)
    assert catalogue.pool_id() == "second"
    assert sql.execute("SELECT * FROM about").fetchall() == [("pool_id", "second")]


def test_backups_are_ordered_by_host_and_start_whatever_the_order_of_writing(catalogue: Catalogue) -> None:
    days = [3, 1, 2]
    for day in days:
        for host in ("b", "a", "c"):
            catalogue.put_backup(replace(BACKUP, host=host, name=f"z{9 - day}", started=EVENING + timedelta(days=day)))
    assert [(each.host, each.started.day) for each in catalogue.backups()] == [
        (host, 20 + day) for host in "abc" for day in sorted(days)
    ]
    assert [each.started.day for each in catalogue.backups("b")] == [21, 22, 23]
    assert [(each.host, each.started.day) for each in catalogue.newest_backups(FAR)] == [("a", 23), ("b", 23), ("c", 23)]


@pytest.mark.slow
def test_a_list_can_be_read_while_rows_are_written(catalogue: Catalogue) -> None:
    catalogue.replace_backups("p", [replace(BACKUP, name=f"n{number:05}") for number in range(3000)])
    seen = 0
    for each in catalogue.backups():
        seen += 1
        if seen % 1000 == 0:
            catalogue.put_backup(replace(each, state="expired"))
            catalogue.put_backup(replace(each, name=f"x{seen}", started=EVENING + timedelta(days=seen)))
    assert (seen, len(list(catalogue.backups()))) == (3000, 3003)


def test_a_list_that_is_left_half_way_is_closed_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Catalogue.open(tmp_path) as catalogue:
        catalogue.replace_backups("p", [replace(BACKUP, name=f"n{number:05}") for number in range(3000)])
        never, half = catalogue.backups(), catalogue.backups()
        next(half)
    for left in (never, half):
        with pytest.raises(ProgrammingError):
            list(left)
    del left, half
    gc.collect()
    assert caplog.records == []


def test_times_of_any_zone_are_kept_as_utc_and_naive_ones_are_refused(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    berlin = datetime(2026, 11, 21, 0, 30, tzinfo=timezone(timedelta(hours=1)))
    begin(catalogue, started=berlin)
    assert one_row(sql, "run")["started"] == "2026-11-20T23:30:00.000000Z"
    assert catalogue.runs()[0].started == berlin
    with pytest.raises(ValueError, match="zone"):
        begin(catalogue, started=datetime(2026, 11, 21))  # noqa: DTZ001
    with pytest.raises(ValueError, match="zone"):
        catalogue.put_backup(replace(BACKUP, finished=datetime(2026, 11, 21)))  # noqa: DTZ001
    assert list(catalogue.backups()) == []


def test_an_unknown_word_for_a_state_is_refused(catalogue: Catalogue) -> None:
    run_id = begin(catalogue)
    with pytest.raises(IntegrityError):
        catalogue.put_backup(replace(BACKUP, state="splendid"))
    with pytest.raises(IntegrityError):
        catalogue.finish_run(run_id, finished=EVENING, outcome="splendid")


def test_names_that_are_no_utf8_are_kept_and_found_again(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    odd = b"caf\xe9\n\x00\\\xff".decode("utf-8", "surrogateescape")
    backup = replace(BACKUP, host=odd, name=odd, path=odd, error=odd, warnings=(odd,), base=odd, uuid=odd, detail={odd: odd})
    catalogue.put_backup(backup)
    run_id = catalogue.start_run(odd, EVENING, 1, odd, night=False)
    catalogue.update_run(run_id, meaning=odd, error=odd, last_lines=(odd,), rsync_version=odd, backup=odd)
    progress = Progress(odd, run_id, 1, odd, odd, 1, 1, 1, None, None, EVENING)
    catalogue.put_progress(progress)
    assert list(catalogue.backups(odd, with_detail=True)) == [backup]
    assert (catalogue.progress(), catalogue.hosts(), list(catalogue.host_facts(FAR))) == ([progress], [odd], [odd])
    assert (catalogue.runs(odd)[0].last_lines, catalogue.runs(odd)[0].error) == ((odd,), odd)
    # What another program sees, and how it can undo it.
    text = one_row(sql, "backup")["error"]
    assert text == "caf\\udce9\n\\x00\\\\\\udcff"
    assert text.encode("utf-8").decode("unicode_escape") == odd


@given(st.text(st.characters(codec=None)))
def test_any_text_can_be_kept_and_undone(text: str) -> None:
    kept = escape(text)
    kept.encode("utf-8")
    assert "\x00" not in kept
    assert unescape(kept) == text


def test_what_is_no_json_is_refused_as_detail(catalogue: Catalogue) -> None:
    with pytest.raises(TypeError):
        catalogue.put_backup(replace(BACKUP, detail={"path": Path("/")}))
    assert list(catalogue.backups()) == []


def test_another_thread_is_refused(catalogue: Catalogue) -> None:
    errors: list[BaseException] = []

    def use() -> None:
        try:
            catalogue.put_backup(BACKUP)
        except ProgrammingError as error:
            errors.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert len(errors) == 1


@pytest.mark.slow
def test_facts_of_hosts_agree_with_a_plain_walk_over_all_rows(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    catalogue.replace_backups("p", make_catalogue.backups(60, 32))
    add_runs(catalogue, (make_catalogue.run_of(each) for each in make_catalogue.backups(60, 32)))
    late = EVENING + timedelta(days=1)
    for number, host in enumerate(catalogue.hosts()):
        if number % 3 == 0:
            catalogue.put_backup(replace(WORKING, host=host, started=late, error="stopped"))
        if number % 4 == 0:
            begin(catalogue, host, late)
        if number % 5 == 0:
            catalogue.finish_run(begin(catalogue, host, late), finished=late, outcome="failed", error="no route", cause=DEADLINE)
    sql.execute("UPDATE backup SET state = 'failed' WHERE host LIKE 'host0007%'")
    begin(catalogue, "only-a-run")
    expected = {host: (*last_complete(sql, host), *newest(sql, host), *last_run(sql, host)) for host in catalogue.hosts()}
    assert len(expected) == 61
    assert {len(set(column)) > 1 for column in zip(*expected.values(), strict=True)} == {True}
    facts = catalogue.host_facts(FAR)
    assert {host: tuple(getattr(each, field.name) for field in fields(each))[:-5] for host, each in facts.items()} == expected
    assert {each.last_run_error for each in facts.values() if each.last_run_cause == DEADLINE} == {"no route"}
    assert {each.ahead for each in facts.values()} == {None}


@pytest.mark.parametrize("damaged", ['{"code": "dead', "\udcff", "[" * 100_000, "7"])
def test_a_damaged_cause_costs_the_cause_alone(catalogue: Catalogue, sql: sqlite3.Connection, damaged: str) -> None:
    catalogue.put_backup(replace(WORKING, error="stopped"))
    catalogue.finish_run(begin(catalogue), finished=EVENING, outcome="failed", error="no route", cause=DEADLINE)
    with sql:
        sql.execute("UPDATE backup SET cause = CAST(? AS TEXT)", (damaged.encode("utf-8", "surrogateescape"),))
        sql.execute("UPDATE run SET cause = CAST(? AS TEXT)", (damaged.encode("utf-8", "surrogateescape"),))
    assert [(each.error, each.cause) for each in catalogue.backups()] == [("stopped", None)]
    assert [(each.error, each.cause) for each in catalogue.runs()] == [("no route", None)]


def test_of_two_that_began_at_once_the_one_that_is_not_finished_is_the_newest(catalogue: Catalogue) -> None:
    """Two runs with the same --now make such backups."""
    final = next(iter(make_catalogue.backups(1, 1)))
    catalogue.replace_backups("p", [final, replace(WORKING, host=final.host, started=final.started)])
    assert [newest_backup.name for newest_backup in catalogue.newest_backups(FAR)] == [None]
    assert catalogue.host_facts(FAR)[final.host].newest_state == WORKING.state


def test_what_is_stamped_in_the_future_is_no_newest_one_and_is_told_apart(catalogue: Catalogue) -> None:
    """One host has three good backups and two with a time in the future. The other host has only one backup, with a time in the
    future.
    """
    ahead = [EVENING + timedelta(days=1500 + day) for day in range(2)]
    for number, started in enumerate([EVENING, EVENING + timedelta(days=1), EVENING + timedelta(days=2), *ahead]):
        catalogue.put_backup(replace(BACKUP, host="web1", name=f"n{number}", started=started))
    catalogue.put_backup(replace(BACKUP, host="web2", name="only", started=ahead[0]))
    now = EVENING + timedelta(days=2, hours=1)
    facts = catalogue.host_facts(now)
    assert (facts["web1"].last_complete, facts["web1"].ahead) == (EVENING + timedelta(days=2), ahead[1])
    assert (facts["web2"].last_complete, facts["web2"].newest_state, facts["web2"].ahead) == (None, None, ahead[0])
    assert [(newest_backup.host, newest_backup.name) for newest_backup in catalogue.newest_backups(now)] == [
        ("web1", "n2"),
        ("web2", "only"),
    ]
    later = catalogue.host_facts(ahead[0])
    assert (later["web1"].last_complete, later["web1"].ahead) == (ahead[0], ahead[1])


def moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def last_complete(sql: sqlite3.Connection, host: str) -> tuple[Any, ...]:
    columns = "started, finished, files, bytes, new_bytes"
    rows = sql.execute(f"SELECT {columns} FROM backup WHERE host = ? AND state = 'complete'", (host,))
    started, finished, *others = max(rows, default=(None,) * 5)
    return moment(started), moment(finished), *others


def newest(sql: sqlite3.Connection, host: str) -> tuple[Any, ...]:
    rows = sql.execute("SELECT started, state, error, warnings FROM backup WHERE host = ?", (host,))
    _, state, error, warnings = max(rows, default=(None,) * 4)
    return state, error, tuple(json.loads(warnings or "[]"))


def last_run(sql: sqlite3.Connection, host: str) -> tuple[Any, ...]:
    rows = sql.execute("SELECT id, started, outcome, error FROM run WHERE host = ? AND outcome NOTNULL", (host,))
    key, started, outcome, error = max(rows, default=(None,) * 4)
    return key, moment(started), outcome, error


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**30])
def test_a_number_that_sqlite_cannot_hold_is_kept_as_the_nearest_and_costs_no_other_row(
    catalogue: Catalogue, sql: sqlite3.Connection, tmp_path: Path, number: int
) -> None:
    nearest = max(-(2**63) + 1, min(number, 2**63 - 1))
    run_id = begin(catalogue)
    catalogue.put_progress(Progress("web1", run_id, 4242, "99", "/srv", number, number, number, 4.5, 0.5, EVENING))
    assert one_row(sql, "progress")["bytes"] == nearest
    catalogue.finish_backup(replace(BACKUP, bytes=number), run_id, exit_code=24, literal_bytes=number)
    assert one_row(sql, "backup")["bytes"] == one_row(sql, "run")["literal_bytes"] == nearest
    many = [replace(BACKUP, host=f"host{each}", files=number, new_bytes=each) for each in range(3)]
    assert catalogue.replace_backups("pool", many) == 3
    assert sql.execute("SELECT files, new_bytes FROM backup ORDER BY new_bytes").fetchall() == [
        (nearest, each) for each in range(3)
    ]


def test_a_catalogue_that_contradicts_itself_is_damaged_and_no_fault_of_the_program(tmp_path: Path) -> None:
    """A flipped bit in an index causes this: a host is known, but its row is not found."""
    with Catalogue.open(tmp_path) as catalogue:
        catalogue.start_run("web1", EVENING, 1, "1", night=False)
        with closing(sqlite3.connect(tmp_path / "catalogue.sqlite")) as other:
            other.executescript("delete from run; delete from host;")
        with pytest.raises(CatalogueDamaged, match="is inconsistent: FOREIGN KEY constraint failed") as caught:
            catalogue.start_run("web1", EVENING, 1, "1", night=False)
    assert "backupd rebuild" in caught.value.hint
