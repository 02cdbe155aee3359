"""Decisions of reconciling without a pool: which error stops what, which rows are outdated, and how a killed run ends."""

import errno
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from backupd.repo.backup_json import Record, UnreadableRecord
from backupd.repo.notes_json import Notes, read_notes
from backupd.repo.reconcile import (
    ReconcileResult,
    _collect_errors,
    _collect_unread,
    _stale,
    all_rows,
    check_seals,
    final_row,
    follow_notes,
    noted_row,
    reconcile,
    row_of,
)
from backupd.repo.seals import Seal, read_seals, write_seals
from btrkeep.catalogue import Backup, Catalogue, StateFromNotes
from btrkeep.errors import LockHeld, OperatorError, PoolUnusable
from btrkeep.pool.marker import WORKING, Pool
from btrkeep.pool.subvolume import Subvolume

NOON = datetime(2026, 3, 20, 12, tzinfo=UTC)
NAME = "2026-03-20T120000Z"
POOL_ID = "00000000-0000-0000-0000-000000000000"


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    return Pool(tmp_path, "main", POOL_ID, rehearsal=False)


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    return Catalogue.open(tmp_path / "state")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OperatorError("its notes cannot be read", "mend them"), "web1: its notes cannot be read"),
        (OSError(errno.EIO, "Input/output error"), "web1: [Errno 5] Input/output error"),
        (ValueError("a bug"), "web1: ValueError('a bug')"),
    ],
)
def test_an_error_of_one_host_is_reported_and_the_others_are_reconciled(error: Exception, words: str) -> None:
    problems: list[str] = []
    with _collect_errors(problems, "web1"):
        raise error
    assert problems == [words]


@pytest.mark.parametrize("error", [LockHeld("in use", "wait"), PoolUnusable("the pool is read-only", "check dmesg")])
def test_a_pool_that_cannot_be_used_ends_the_reconciling(error: Exception) -> None:
    problems: list[str] = []
    with pytest.raises(type(error)), _collect_errors(problems, "web1"):
        raise error
    assert problems == []


def damaged(error: Exception | None = None) -> UnreadableRecord:
    record = UnreadableRecord("backup.json cannot be read", "x")
    record.__cause__ = error
    return record


@pytest.mark.parametrize(
    ("error", "is_unread"),
    [
        (OSError(errno.EIO, "Input/output error"), True),
        (damaged(OSError(errno.EUCLEAN, "Structure needs cleaning")), True),
        (damaged(), False),
        (OSError(errno.EACCES, "Permission denied"), False),
    ],
)
def test_only_a_backup_that_the_disk_does_not_give_back_counts_as_unread(error: Exception, is_unread: bool) -> None:
    unread: list[tuple[str, str]] = []
    with pytest.raises(type(error)), _collect_unread(unread, "web1", NAME):
        raise error
    assert unread == ([("web1", NAME)] if is_unread else [])
    with pytest.raises(type(error)), _collect_unread(None, "web1", NAME):
        raise error


def test_a_reconciling_is_reported_if_it_changed_something_or_left_a_host_as_it_is() -> None:
    assert not ReconcileResult()
    assert not ReconcileResult(locked=["web1"])
    assert ReconcileResult(Counter({"added": 1}))
    assert ReconcileResult(problems=["web1: unreadable"])
    done = ReconcileResult(Counter({"added": 2, "staged": 1}), problems=["web1: unreadable"])
    assert done.sentence == (
        "the catalogue was updated from the pool: 2 backups added, 1 unfinished subvolume of a killed run removed, "
        "not changed: web1: unreadable"
    )
    assert done.in_the_pool().counts == {"staged": 1}
    assert done.in_the_pool().problems == done.problems
    assert not ReconcileResult(Counter({"added": 2})).in_the_pool()


HELD = StateFromNotes("web1", "held", "complete", "complete", None, "court", None)
MARKED = StateFromNotes("web1", "marked", "expired", "complete", None, None, NOON)
NOTES = Notes({"held": {"hold": {"at": "x", "until": None, "why": "court"}}, "marked": {"expired": {"at": "2026-03-20T12:00:00Z"}}})


@pytest.mark.parametrize(
    ("rows", "names", "stale"),
    [
        ([HELD, MARKED], {"held", "marked", "plain"}, set[str]()),
        ([MARKED], {"held", "marked"}, {"held"}),
        ([HELD._replace(held_why="other"), MARKED], {"held", "marked"}, {"held"}),
        ([HELD, MARKED._replace(expired=NOON + timedelta(hours=1))], {"held", "marked"}, {"marked"}),
        ([HELD, MARKED, HELD._replace(name="released")], {"held", "marked", "released"}, {"released"}),
        ([], {"plain"}, set[str]()),  # another step creates the row of a note without one
    ],
)
def test_rows_that_disagree_with_the_notes_on_holds_and_marks_are_written_again(
    rows: list[StateFromNotes], names: set[str], stale: set[str]
) -> None:
    assert _stale(NOTES, names, rows) == stale


def test_a_backup_of_a_renamed_host_is_entered_under_the_present_name(pool: Pool) -> None:
    subvolume = Subvolume(300, "u", None, read_only=True, generation=50, created=40)
    record = Record("old", "u", "complete", NOON, NAME, finished=NOON)
    for host in ("new", "old"):
        row = final_row(pool, host, record, subvolume, Notes())
        assert (row.host, row.name, row.state, row.subvolume_id) == (host, NAME, "complete", 300)
        assert f"/{host}/" in f"/{row.path}/"


SUBVOLUME = Subvolume(300, "u", None, read_only=False, generation=50, created=40)


@pytest.mark.parametrize(
    ("name", "state", "read_only", "is_altered", "row_state"),
    [
        (NAME, "complete", True, False, "complete"),
        (NAME, "suspect", True, True, "altered"),
        (NAME, "complete", False, True, "altered"),
        (NAME, "complete", False, False, None),  # it is becoming final, or was just made writable
        (NAME, "partial", True, False, None),
        (WORKING, "complete", True, False, "partial"),  # regardless of its record
        (WORKING, "partial", False, False, "partial"),
    ],
)
def test_a_backup_has_a_row_if_it_is_final_unfinished_or_known_to_be_altered(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, name: str, state: str, read_only: bool, is_altered: bool, row_state: str | None
) -> None:
    record = Record("web1", "u", state, NOON, name if name != WORKING else None, finished=NOON)
    ours = (replace(SUBVOLUME, read_only=read_only), record)
    notes = Notes({NAME: {"altered": {"at": "x", "subvolume": 300}}} if is_altered else {})
    monkeypatch.setattr("backupd.repo.reconcile.read_if_ours", lambda _path, _host: ours)
    row = row_of(pool, "web1", name, notes)
    assert (row.outcome or row.state if row else None) == row_state
    monkeypatch.setattr("backupd.repo.reconcile.read_if_ours", lambda _path, _host: None)
    assert row_of(pool, "web1", name, notes) is None


def backup(started: datetime, state: str = "complete", name: str | None = NAME, finished: datetime | None = NOON) -> Backup:
    return Backup("web1", name, "x", state, started, finished, 1.0, 1, 1, 1, "why" if state != "complete" else None)


HOUR = timedelta(hours=1)


def give_pool(monkeypatch: pytest.MonkeyPatch, pool: Pool, rows: Mapping[str, Backup | Exception | None], **names: object) -> None:
    """Lets web1 have these backups, each with its record; `names`: replaced functions that read or change a btrfs."""

    def row_of(_pool: Pool, _host: str, name: str, _notes: Notes | None = None) -> Backup | None:
        answer = rows[name]
        if isinstance(answer, Exception):
            raise answer
        return answer

    answers = {
        "names_of": lambda *_: set(rows),
        "row_of": row_of,
        "read_notes": lambda _folder: Notes(),
        "clear_left_drills": lambda *_: False,
        **dict.fromkeys(("recover", "point_latest", "recall_verifications", "check_seals"), lambda *_: None),
    }
    for name, answer in (answers | names).items():
        monkeypatch.setattr(f"backupd.repo.reconcile.{name}", answer)
    pool.host("web1").mkdir(parents=True)
    pool.host_lock("web1").parent.mkdir(parents=True)


@pytest.mark.parametrize("bad", [damaged(), OperatorError("not ours", "x"), OSError(errno.EIO, "Input/output error"), None])
def test_a_damaged_or_foreign_backup_is_not_entered_and_keeps_no_other_from_it(
    pool: Pool, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch, bad: Exception | None
) -> None:
    give_pool(monkeypatch, pool, {"2026-03-19T120000Z": bad, NAME: backup(NOON)})
    with catalogue:
        done = reconcile(pool, catalogue, "now")
        assert (done.counts, done.problems) == ({"added": 1}, [])
        assert list(catalogue.names()) == [("web1", NAME)]


def test_a_record_that_may_not_be_read_leaves_its_host_unchanged_and_is_reported(
    pool: Pool, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_pool(monkeypatch, pool, {NAME: PermissionError(errno.EACCES, "Permission denied")})
    with catalogue:
        assert reconcile(pool, catalogue, "now").problems == ["web1: [Errno 13] Permission denied"]
        assert list(catalogue.names()) == []


@pytest.mark.parametrize("has_working_row", [True, False])
def test_rows_are_dropped_added_and_written_again_as_the_pool_has_them(
    pool: Pool, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch, has_working_row: bool
) -> None:
    """`gone` has only a row, `new` only a subvolume and a hold, and of `marked` the row has no mark."""
    notes = Notes({"marked": {"expired": {"at": "2026-03-20T12:00:00Z"}}, "new": {"hold": {"at": "x", "until": None, "why": "y"}}})
    rows = {
        "marked": backup(NOON, "expired", "marked"),
        "new": backup(NOON, name="new"),
        WORKING: backup(NOON, "partial", None),
    }
    calls: list[object] = []
    give_pool(
        monkeypatch,
        pool,
        rows,
        read_notes=lambda _folder: notes,
        recover=lambda *_: calls.append("recover"),
        point_latest=lambda *_: calls.append("latest"),
        recall_verifications=lambda *words: calls.append(sorted(words[-1])),
    )
    with catalogue:
        for name in ("gone", "marked", *([None] if has_working_row else [])):
            catalogue.put_backup(backup(NOON, "complete" if name else "partial", name))
        done = reconcile(pool, catalogue, "now")
        assert {row.name: row.state for row in catalogue.backups("web1")} == {row.name: row.state for row in rows.values()}
    added = ["new"] if has_working_row else sorted([WORKING, "new"])
    assert done.counts == {"added": len(added), "dropped": 1, "amended": 1}
    assert calls == ["recover", "latest", added]


def test_a_killed_run_and_a_killed_drill_are_counted_once(
    pool: Pool, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {name: backup(NOON - HOUR, name=name) for name in ("2026-03-19T110000Z", "2026-03-20T110000Z")}
    give_pool(monkeypatch, pool, rows, clear_left_drills=lambda *_: True)
    with catalogue:
        run_id = catalogue.start_run("web1", NOON, 1, "another start", night=False)
        done = reconcile(pool, catalogue, "now")
        assert done.counts == {"killed": 1, "drills": 1, "added": 2}
        assert done.problems == []
        ended = catalogue.one_run(run_id)
        assert ended is not None
        assert ended.outcome == "failed"


def test_a_row_whose_backup_cannot_be_read_stays_and_keeps_no_other_from_its_mark(
    pool: Pool, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = {"hold": {"at": "x", "until": None, "why": "court"}}
    rows: dict[str, Backup | Exception | None] = {"bad": damaged(), "good": replace(backup(NOON, name="good"), held_why="court")}
    give_pool(monkeypatch, pool, rows, read_notes=lambda _folder: Notes({"bad": hold, "good": hold}))
    with catalogue:
        for name in rows:
            catalogue.put_backup(backup(NOON, name=name))
        done = reconcile(pool, catalogue, "now")
        assert (done.counts, done.problems) == ({"amended": 1}, [])
        assert {row.name: row.held_why for row in catalogue.backups("web1")} == {"bad": None, "good": "court"}


def test_hosts_that_cannot_be_reconciled_are_named_in_the_order_of_their_names(
    pool: Pool, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their rows come from the catalogue, and some of their folders do not exist."""
    give_pool(monkeypatch, pool, {}, names_of=lambda *_: refuse())
    hosts = [f"web{number}" for number in range(10, 30)]
    with catalogue:
        for host in reversed(hosts):
            catalogue.put_backup(replace(backup(NOON), host=host))
        assert reconcile(pool, catalogue, "now").problems == [f"{host}: refused" for host in ["web1", *hosts]]


def refuse() -> None:
    raise OperatorError("refused", "x")


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), damaged(OSError(errno.EUCLEAN, "x"))])
def test_a_damaged_backup_keeps_its_row_with_what_its_notes_have(
    pool: Pool, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    notes = Notes({NAME: {"hold": {"at": "x", "until": None, "why": "court"}}})
    give_pool(monkeypatch, pool, {NAME: error, "other": damaged(), "gone": error})
    with catalogue:
        for name in ("2026-03-19T120000Z", NAME):
            catalogue.put_backup(backup(NOON, name=name))
        row = noted_row(pool, catalogue, "web1", NAME, notes)
        assert row is not None
        assert (row.name, row.held_why) == (NAME, "court")
        assert noted_row(pool, catalogue, "web1", "gone", notes) is None
        with pytest.raises(UnreadableRecord):  # its record is wrong, and the disk is not
            noted_row(pool, catalogue, "web1", "other", notes)


def test_after_a_change_of_notes_the_rows_and_latest_follow_them(
    pool: Pool, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    pointed: list[str] = []
    give_pool(
        monkeypatch,
        pool,
        {NAME: backup(NOON, "expired"), "foreign": None},
        point_latest=lambda _pool, host: pointed.append(host),
    )
    with catalogue:
        catalogue.put_backup(backup(NOON))
        follow_notes(pool, catalogue, "web1", [NAME, "foreign"])
        assert [(row.name, row.state) for row in catalogue.backups("web1")] == [(NAME, "expired")]
    assert pointed == ["web1"]


def test_a_rebuild_names_what_it_does_not_enter_and_counts_only_what_the_disk_does_not_give_back(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {"a": backup(NOON, name="a"), "b": None, "c": OSError(errno.EIO, "Input/output error"), "d": damaged()}
    give_pool(monkeypatch, pool, rows)
    problems, unread = list[str](), list[tuple[str, str]]()
    assert [row.name for row in all_rows(pool, problems, unread)] == ["a"]
    assert [text.partition(":")[0] for text in problems] == ["web1/b", "web1/c", "web1/d"]
    assert "not a backup of btrkeep" in problems[0]
    assert unread == [("web1", "c")]


# Seals


def test_of_backups_that_differ_from_their_seal_only_the_changed_one_is_altered(
    pool: Pool, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names describe what happened to each since its row got seal 50. A later transaction alone is not a change."""
    in_pool = {
        "same": (301, 50),
        "moved": (302, 60),
        "changed": (303, 60),
        "new": (304, 60),
        "seal lost": (305, 50),
        "swapped": (318, 60),
        "swapped, seal lost": (319, 60),
        "foreign": (320, 60),
        "made writable": (309, 60),
    }
    rows = dict(zip([*in_pool, "gone"], range(301, 311), strict=True))  # the subvolumes that the rows name
    seals = {name: Seal(rows[name], 50, 7) for name in rows if name not in {"new", "seal lost", "swapped, seal lost"}}
    described: list[str] = []

    def describe_recorded(path: Path) -> Subvolume | None:
        described.append(path.name)
        return subvolumes.get(path.name)

    subvolumes = {name: replace(SUBVOLUME, id=id_, read_only=True, written=written) for name, (id_, written) in in_pool.items()}
    entered = {
        name: None if name in {"foreign", "made writable"} else replace(backup(NOON, name=name), subvolume_id=id_)
        for name, (id_, _) in in_pool.items()
    }
    give_pool(
        monkeypatch,
        pool,
        entered,
        read_notes=read_notes,
        describe=describe_recorded,
        last_changes=lambda _fd: dict(in_pool.values()),
    )
    monkeypatch.setattr("backupd.repo.seals._changes", lambda path, *_: iter([1] if path.name in CHANGED else []))
    for name in in_pool:
        (pool.host("web1") / name).mkdir()
    write_seals(pool.host("web1"), seals)
    with catalogue:
        for name, id_ in rows.items():
            catalogue.put_backup(replace(backup(NOON, name=name), subvolume_id=id_))
        catalogue.set_seals([("web1", name, 50) for name in rows if name != "new"])
        done = check_seals(pool, catalogue, "now")
        assert done.problems == []
        assert done.counts == {"altered": 2, "sealed": 3, "resealed": 1}
        sealed = {row.name: row.sealed for row in catalogue.states()}
    assert sorted(described) == sorted([*in_pool, "gone"][1:])
    notes, after = read_notes(pool.host("web1")), read_seals(pool.host("web1"))
    assert [name for name in in_pool if notes.is_altered(name)] == ["changed", "made writable"]
    assert notes.note("changed", "altered") == {"at": "now", "subvolume": 303, "sealed": 7}
    assert {name: (seal.subvolume, seal.ctransid) for name, seal in after.items()} == {
        **{name: numbers for name, numbers in in_pool.items() if name != "foreign"},
        "changed": (303, 50),
        "made writable": (309, 50),
        "foreign": (308, 50),
    }
    assert sealed == {
        **{name: written for name, (_, written) in in_pool.items()},
        "changed": None,
        "made writable": 50,
        "foreign": 50,
        "gone": 50,
    }


CHANGED = ("changed", "made writable", "swapped", "swapped, seal lost")
