"""The catalogue's queries and updates for retention and expiry. The tests read the rows with sqlite3."""

import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from sqlite3 import IntegrityError, ProgrammingError
from typing import Any

import pytest

from btrkeep.catalogue import EXPIRY_OUTCOMES, Backup, BackupState, Catalogue, Expiry, Progress
from btrkeep.errors import OperatorError

EVENING = datetime(2026, 11, 20, 22, 0, 3, 123456, tzinfo=UTC)
DAY = timedelta(days=1)
BACKUP = Backup(
    "web1", "n1", "hosts/web1/n1", "complete", EVENING, EVENING, 1.0, 1, 1, 1, None, ("w",), "n0", 300, "u-1", "complete",
    detail={"a": 1},
)  # fmt: skip
WORKING = replace(BACKUP, name=None, path="hosts/web1/.working", state="partial", outcome=None, base="n1", detail={})


def nights(count: int, host: str = "web1") -> list[Backup]:
    """Returns the backups n1, n2, ... of a host, one a day."""
    return [
        replace(BACKUP, host=host, name=f"n{day}", path=f"hosts/{host}/n{day}", started=EVENING + day * DAY, subvolume_id=300 + day)
        for day in range(1, count + 1)
    ]


def everything(sql: sqlite3.Connection) -> dict[str, list[tuple[Any, ...]]]:
    """Returns every row of every table."""
    names = [name for (name,) in sql.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {name: sorted(sql.execute(f"SELECT * FROM {name}").fetchall(), key=repr) for name in names}


def states_of(sql: sqlite3.Connection) -> dict[tuple[str, str], tuple[str, str | None]]:
    rows = sql.execute("SELECT host, name, state, expired FROM backup")
    return {(host, name): (state, expired) for host, name, state, expired in rows}


def test_a_held_and_an_expired_backup_come_back_as_they_went_in(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    held = replace(BACKUP, state="expired", held_until=EVENING + 40 * DAY, held_why="caf\udce9", expired=EVENING + DAY)
    catalogue.put_backup(held)
    assert list(catalogue.backups(with_detail=True)) == [held]
    assert sql.execute("SELECT outcome, held_until, held_why, expired FROM backup").fetchall() == [
        ("complete", "2026-12-30T22:00:03.123456Z", "caf\\udce9", "2026-11-21T22:00:03.123456Z")
    ]
    assert catalogue.replace_backups("p", [held]) == 1
    assert list(catalogue.backups(with_detail=True)) == [held]


def test_states_tell_what_sqlite3_tells_by_host_and_start(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    odd = b"caf\xe9\\".decode("utf-8", "surrogateescape")
    for backup in reversed([*nights(3, odd), *nights(3), WORKING]):
        catalogue.put_backup(backup)
    catalogue.put_backup(replace(BACKUP, name="a name that sorts first", started=EVENING + 9 * DAY))
    catalogue.put_backup(replace(BACKUP, name="n2", started=EVENING + 2 * DAY, state="expired", expired=EVENING, held_why=""))
    rows = sql.execute(
        "SELECT host, started, name, state, outcome, held_until, held_why, expired, subvolume_id, uuid, base, sealed FROM backup"
    )
    expected = [
        (host.replace("\\udce9\\\\", "\udce9\\"), name or None, datetime.fromisoformat(started), state, outcome,
         datetime.fromisoformat(until) if until else None, why,
         datetime.fromisoformat(expired) if expired else None, number, uuid, None if name else base, sealed)
        for host, started, name, state, outcome, until, why, expired, number, uuid, base, sealed
        in sorted(rows, key=lambda row: row[:3])
    ]  # fmt: skip
    backup_states = list(catalogue.states())
    assert [tuple(backup_state) for backup_state in backup_states] == expected
    assert {type(backup_state) for backup_state in backup_states} == {BackupState}
    assert [(backup_state.host, backup_state.name, backup_state.base) for backup_state in backup_states if backup_state.base] == [
        ("web1", None, "n1")
    ]
    assert {backup_state.host for backup_state in backup_states} == {odd, "web1"}


def test_states_can_be_read_while_they_are_changed(catalogue: Catalogue) -> None:
    catalogue.replace_backups("p", nights(3000))
    seen = 0
    for state in catalogue.states():
        seen += 1
        if seen % 500 == 0:
            assert catalogue.set_states([(state.host, state.name, "expired", EVENING)]) == 1
            assert catalogue.drop_backups([(state.host, f"n{seen - 10}")]) == 1
    assert seen == 3000
    assert sum(state.state == "expired" for state in catalogue.states()) == 6


def test_states_that_are_left_half_way_do_not_look_like_all(tmp_path: Path) -> None:
    with Catalogue.open(tmp_path) as catalogue:
        catalogue.replace_backups("p", nights(3000))
        before_the_last, half, never = catalogue.states(), catalogue.states(), catalogue.states()
        for _ in range(2999):
            next(before_the_last)
        next(half)
    for left in (before_the_last, half, never):
        with pytest.raises(ProgrammingError):
            list(left)


def test_states_are_set_for_those_that_are_given_and_are_there(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    for backup in (*nights(3), *nights(3, "web2"), WORKING):
        catalogue.put_backup(backup)
    at = datetime(2026, 11, 25, 1, tzinfo=timezone(timedelta(hours=1)))
    assert catalogue.set_states([("web1", "n1", "expired", at), ("web2", "n3", "expired", at), ("gone", "n1", "expired", at)]) == 2
    assert catalogue.set_states(iter(())) == 0
    expired = ("expired", "2026-11-25T00:00:00.000000Z")
    before = states_of(sql)
    assert {key for key, value in before.items() if value == expired} == {("web1", "n1"), ("web2", "n3")}
    assert {value for value in before.values() if value != expired} == {("complete", None), ("partial", None)}
    assert sql.execute("SELECT DISTINCT outcome FROM backup WHERE state = 'expired'").fetchall() == [("complete",)]
    catalogue.set_states([("web1", "n1", "complete", None)])
    assert states_of(sql) == {**before, ("web1", "n1"): ("complete", None)}


def test_setting_states_changes_all_or_nothing(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    catalogue.replace_backups("p", nights(3))
    before = everything(sql)
    with pytest.raises(IntegrityError):
        catalogue.set_states([("web1", "n1", "expired", EVENING), ("web1", "n2", "splendid", None)])
    with pytest.raises(ValueError, match="zone"):
        catalogue.set_states([("web1", "n1", "expired", EVENING), ("web1", "n2", "expired", datetime(2026, 1, 1))])  # noqa: DTZ001
    assert everything(sql) == before


def test_a_backup_is_marked_before_it_is_deleted_and_goes_with_its_detail(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    for backup in (*nights(3), WORKING, replace(BACKUP, host="web2")):
        catalogue.put_backup(backup)
    catalogue.set_states([("web1", "n1", "expired", EVENING)])
    assert catalogue.mark_deleting([("web1", "n1"), ("web1", "n2"), ("web1", "never was")]) == 2
    deleting = {key: value for key, value in states_of(sql).items() if value[0] == "deleting"}
    assert deleting == {("web1", "n1"): ("deleting", "2026-11-20T22:00:03.123456Z"), ("web1", "n2"): ("deleting", None)}
    assert catalogue.drop_backups([("web1", "n1"), ("web1", "n2"), ("web1", None), ("web1", "never was")]) == 3
    assert set(states_of(sql)) == {("web1", "n3"), ("web2", "n1")}
    assert set(sql.execute("SELECT host, name FROM backup_detail")) == {("web1", "n3"), ("web2", "n1")}
    assert (catalogue.mark_deleting([]), catalogue.drop_backups([])) == (0, 0)


def begin(catalogue: Catalogue, host: str) -> int:
    return catalogue.start_run(host, EVENING, 4242, "99", night=True)


def test_a_host_is_dropped_with_all_its_backups_and_its_history_stays(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    for backup in (*nights(3), WORKING, replace(BACKUP, host="web2"), replace(BACKUP, host="no-run")):
        catalogue.put_backup(backup)
    begin(catalogue, "web1")
    assert [catalogue.drop_host(name) for name in ("web1", "no-run", "never was")] == [4, 1, 0]
    assert (set(states_of(sql)), sql.execute("SELECT host FROM run").fetchall()) == ({("web2", "n1")}, [("web1",)])
    assert sql.execute("SELECT host FROM backup_detail").fetchall() == [("web2",)]
    assert catalogue.hosts() == sorted(catalogue.host_facts(EVENING + 9 * DAY)) == ["web1", "web2"]


def test_a_renamed_host_takes_everything_along_and_leaves_nothing(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    odd = b"caf\xe9".decode("utf-8", "surrogateescape")
    for item in (*nights(3), WORKING, *nights(2, "web2")):
        catalogue.put_backup(item)
    runs = [begin(catalogue, host) for host in ("web1", "web2", "web1")]
    catalogue.put_progress(Progress("web1", runs[2], 1, None, "/srv/web1", 1, None, 2, None, None, EVENING))
    before = everything(sql)
    assert catalogue.rename_host("web1", odd) == 4
    assert everything(sql) == {
        table: sorted((tuple(renamed(value) for value in row) for row in rows), key=repr) if table != "host" else
        sorted([*rows, ("caf\\udce9",)], key=repr)
        for table, rows in before.items()
    }  # fmt: skip
    assert sql.execute("PRAGMA foreign_key_check").fetchall() == []
    assert catalogue.hosts() == sorted(catalogue.host_facts(EVENING + 9 * DAY)) == sorted([odd, "web2"])
    assert [backup.path for backup in catalogue.backups(odd)][-1] == f"hosts/{odd}/n3"
    assert {backup.detail["a"] for backup in catalogue.backups(odd, with_detail=True) if backup.name} == {1}
    catalogue.put_backup(BACKUP)  # the old name may be used again
    assert catalogue.rename_host("never was", "nobody") == 0


def renamed(value: Any) -> Any:
    """Returns a row's value after the renaming; a source path that looks like the host's folder stays."""
    if isinstance(value, str) and (value == "web1" or value.startswith("hosts/web1/")):
        return value.replace("web1", "caf\\udce9")
    return value


@pytest.mark.parametrize("rows", ["a backup", "a run"])
def test_a_host_is_not_renamed_onto_another_one(catalogue: Catalogue, sql: sqlite3.Connection, rows: str) -> None:
    for night in nights(3):
        catalogue.put_backup(night)
    if rows == "a run":
        begin(catalogue, "web2")
    else:
        catalogue.put_backup(replace(BACKUP, host="web2"))
    before = everything(sql)
    for new in ("web2", "web1"):
        if new == "web2" or rows == "a backup":
            with pytest.raises(OperatorError, match=f"of {new} already"):
                catalogue.rename_host("web1", new)
    assert everything(sql) == before


def test_an_expiry_is_told_while_it_goes_on_and_when_it_ends(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    later = EVENING + timedelta(minutes=5)
    first = catalogue.start_expiry(EVENING, 4242, "99", planned=10)
    assert catalogue.expiries() == catalogue.unfinished_expiries() == [
        Expiry(first, EVENING, None, None, 4242, "99", 10, 0, 0, 0, 0, None, None, None, None, None, None, None, None, EVENING)
    ]  # fmt: skip
    catalogue.update_expiry(
        first, deleted=4, waiting=100, most_waiting=100, rate=0.5, eta=12.5, paused="backups run", updated=later
    )
    cursor = sql.execute("SELECT * FROM expiry")
    row = dict(zip((column[0] for column in cursor.description), cursor.fetchone(), strict=True))
    assert {name: value for name, value in row.items() if value} == {
        "id": first, "started": "2026-11-20T22:00:03.123456Z", "pid": 4242, "pid_started": "99", "planned": 10, "deleted": 4,
        "waiting": 100, "most_waiting": 100, "rate": 0.5, "eta": 12.5, "paused": "backups run",
        "updated": "2026-11-20T22:05:03.123456Z",
    }  # fmt: skip
    catalogue.update_expiry(first, finished=later, outcome="complete", written_bytes=2**50, mount_option="ssd", paused=None)
    second = catalogue.start_expiry(later, 4243, None)
    assert [expiry.id for expiry in catalogue.expiries()] == [second, first]
    assert (
        [expiry.id for expiry in catalogue.expiries(limit=1)]
        == [unfinished_expiry.id for unfinished_expiry in catalogue.unfinished_expiries()]
        == [second]
    )
    ended = catalogue.expiries()[1]
    assert (ended.finished, ended.outcome, ended.written_bytes, ended.mount_option, ended.paused) == (
        later, "complete", 2**50, "ssd", None)  # fmt: skip
    sql.execute("DELETE FROM expiry")
    assert catalogue.start_expiry(later, 1, None) > second


def test_an_expiry_ends_with_time_and_outcome_and_has_no_other_fields(catalogue: Catalogue) -> None:
    number = catalogue.start_expiry(EVENING, 1, None)
    with pytest.raises(TypeError, match="colour"):
        catalogue.update_expiry(number, colour="red")
    with pytest.raises(TypeError, match="colour"):
        catalogue.start_expiry(EVENING, 1, None, colour="red")
    with pytest.raises(TypeError, match="ends with"):
        catalogue.update_expiry(number, finished=EVENING)
    with pytest.raises(TypeError, match="ends with"):
        catalogue.update_expiry(number, outcome="failed")
    with pytest.raises(KeyError):
        catalogue.update_expiry(number + 1, deleted=1)
    with pytest.raises(IntegrityError):
        catalogue.update_expiry(number, finished=EVENING, outcome="splendid")
    assert [unfinished_expiry.id for unfinished_expiry in catalogue.unfinished_expiries()] == [number]
    for outcome in EXPIRY_OUTCOMES:
        catalogue.update_expiry(number, finished=EVENING, outcome=outcome)


def test_facts_are_kept_by_name_and_outlive_a_rebuild(catalogue: Catalogue, sql: sqlite3.Connection) -> None:
    assert catalogue.get_fact("clock") is None
    catalogue.set_pool_id("p")
    for text in ("first", "caf\udce9"):
        catalogue.set_fact("clock", text)
    catalogue.set_fact("gone", "x")
    catalogue.set_fact("gone", None)
    catalogue.replace_backups("p", nights(1))
    assert (catalogue.get_fact("clock"), catalogue.get_fact("gone"), catalogue.pool_id()) == ("caf\udce9", None, "p")
    assert set(sql.execute("SELECT * FROM about")) == {("clock", "caf\\udce9"), ("pool_id", "p")}


def test_the_newest_finish_is_that_of_the_newest_run_whatever_the_clock_said_in_an_older_one(catalogue: Catalogue) -> None:
    assert catalogue.newest_finish() is None
    ids = [begin(catalogue, "web1") for _ in range(3)]
    assert catalogue.newest_finish() is None
    catalogue.finish_run(ids[0], finished=EVENING + 2 * DAY, outcome="complete")
    assert catalogue.newest_finish() == EVENING + 2 * DAY
    catalogue.finish_run(ids[1], finished=EVENING + DAY, outcome="failed")
    assert catalogue.newest_finish() == EVENING + DAY
