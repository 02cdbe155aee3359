"""Parts of reconciling that decide without a pool: whose fault stops what, which rows are old, what a killed run's end becomes."""

import errno
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from backupd.repo.backup_json import Record, UnreadableRecord
from backupd.repo.notes_json import Notes
from backupd.repo.reconcile import (
    ReconcileResult,
    _collect_errors,
    _collecting,
    _drop_staged,
    _end_dead_run,
    _is_finished,
    _is_runs,
    _staged_hosts,
    _stale,
    final_row,
    reconcile,
)
from btrkeep.backup_states import CauseCode
from btrkeep.catalogue import Backup, Catalogue, StateFromNotes
from btrkeep.errors import LockHeld, OperatorError, PoolUnusable
from btrkeep.pool.locks import take_lock
from btrkeep.pool.marker import WORKING, Pool
from btrkeep.pool.subvolume import Subvolume

NOON = datetime(2026, 3, 20, 12, tzinfo=UTC)
NAME = "2026-03-20T120000Z"


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    return Pool(tmp_path, "main", "00000000-0000-0000-0000-000000000000", rehearsal=False)


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
    with pytest.raises(type(error)), _collecting(unread, "web1", NAME):
        raise error
    assert unread == ([("web1", NAME)] if is_unread else [])
    with pytest.raises(type(error)), _collecting(None, "web1", NAME):
        raise error


def test_a_reconciling_is_reported_if_it_changed_something_or_left_a_host_as_it_is() -> None:
    assert not ReconcileResult()
    assert not ReconcileResult(locked=["web1"])
    assert ReconcileResult(Counter({"added": 1}))
    assert ReconcileResult(problems=["web1: unreadable"])
    done = ReconcileResult(Counter({"added": 2, "staged": 1}), problems=["web1: unreadable"])
    assert done.sentence == (
        "the catalogue was updated from the pool: 2 backups added, 1 beginning of a killed run removed, "
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
        ([], {"plain"}, set[str]()),  # of a note without a row another step makes one
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


def test_only_folders_count_as_what_a_killed_run_was_creating(pool: Pool) -> None:
    assert _staged_hosts(pool) == []
    for host in ("web2", "web1"):
        pool.staged(host).mkdir(parents=True)
    (pool.staged("web1").parent / "a file").touch()
    (pool.staged("web1").parent / "a link").symlink_to(pool.staged("web1"))
    assert _staged_hosts(pool) == ["web1", "web2"]


def test_a_folder_with_anything_that_no_run_makes_is_not_removed(tmp_path: Path) -> None:
    assert _is_runs(tmp_path, "web1", ())
    (tmp_path / "data").mkdir()
    assert not _is_runs(tmp_path, "web1", ())  # data without a record: no run's
    (tmp_path / "data").rmdir()
    (tmp_path / "SHA256SUMS.mine").touch()
    assert not _is_runs(tmp_path, "web1", ())


SUBVOLUME = Subvolume(300, "u", None, read_only=False, generation=50, created=40)


@pytest.mark.parametrize(
    ("subvolume", "is_deleted"), [(SUBVOLUME, True), (replace(SUBVOLUME, read_only=True), False), (None, False)]
)
def test_what_a_killed_run_was_creating_is_deleted_unless_it_is_read_only_or_in_use(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, subvolume: Subvolume | None, is_deleted: bool
) -> None:
    deleted: list[tuple[Path, int]] = []
    monkeypatch.setattr("backupd.repo.reconcile.describe", lambda _path: subvolume)
    monkeypatch.setattr("backupd.repo.reconcile.delete", lambda folder, number: deleted.append((folder, number)))
    pool.staged("web1").mkdir(parents=True)
    pool.host_lock("web1").parent.mkdir(parents=True)
    done = ReconcileResult()
    with take_lock(pool.host_lock("web1"), "run", "now"):
        _drop_staged(pool, "web1", "now", done)
    assert (deleted, done.counts) == ([], {})
    _drop_staged(pool, "web1", "now", done)
    assert deleted == ([(pool.staged("web1").parent, 300)] if is_deleted else [])
    assert done.counts == ({"staged": 1} if is_deleted else {})


@pytest.mark.parametrize(
    ("subvolume", "is_finished"), [(SUBVOLUME, False), (replace(SUBVOLUME, read_only=True), True), (None, False)]
)
def test_an_unfinished_backup_that_is_read_only_was_becoming_final(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, subvolume: Subvolume | None, is_finished: bool
) -> None:
    monkeypatch.setattr("backupd.repo.reconcile.describe", lambda _path: subvolume)
    assert _is_finished(pool, "web1") is is_finished


def backup(started: datetime, state: str = "complete", name: str | None = NAME, finished: datetime | None = NOON) -> Backup:
    return Backup("web1", name, "x", state, started, finished, 1.0, 1, 1, 1, "why" if state != "complete" else None)


HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("made", "outcome", "name", "error", "finished"),
    [
        ([], "failed", None, "killed", NOON - HOUR),
        ([backup(NOON - 2 * HOUR)], "failed", None, "killed", NOON - HOUR),  # of an earlier run
        ([backup(NOON - HOUR, name=None, state="partial")], "failed", None, "killed", NOON - HOUR),
        ([backup(NOON - HOUR)], "complete", NAME, None, NOON),
        ([backup(NOON - HOUR, "suspect")], "suspect", NAME, "why", NOON),
        ([backup(NOON - HOUR, finished=None)], "complete", NAME, None, NOON - HOUR),
    ],
)
def test_a_killed_run_ends_as_its_backup_if_that_was_final_and_else_as_killed(
    catalogue: Catalogue, made: list[Backup], outcome: str, name: str | None, error: str | None, finished: datetime
) -> None:
    with catalogue:
        run_id = catalogue.start_run("web1", NOON - HOUR, 1, "1", night=False)
        for row in made:
            catalogue.put_backup(row)
        (run,) = catalogue.unfinished_runs()
        _end_dead_run(catalogue, run, None)
        ended = catalogue.one_run(run_id)
        assert ended is not None
        assert (ended.outcome, ended.backup, ended.finished) == (outcome, name, finished)
        if error == "killed":
            assert ended.cause is not None
            assert ended.cause.code is CauseCode.KILLED
        else:
            assert ended.error == error


def test_a_killed_run_ended_when_it_was_last_heard_of(catalogue: Catalogue) -> None:
    with catalogue:
        run_id = catalogue.start_run("web1", NOON - HOUR, 1, "1", night=False)
        (run,) = catalogue.unfinished_runs()
        _end_dead_run(catalogue, replace(run, exit_code=20, meaning="stopped"), NOON)
        ended = catalogue.one_run(run_id)
        assert ended is not None
        assert (ended.finished, ended.meaning) == (NOON, "stopped")


def give_pool(monkeypatch: pytest.MonkeyPatch, pool: Pool, rows: Mapping[str, Backup | Exception | None], **names: object) -> None:
    """Lets web1 have these backups, each with what its record says; `names`: other answers of what reads or changes a btrfs."""

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
        **dict.fromkeys(("recover", "point_latest", "recall_looks", "check_seals"), lambda *_: None),
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
        recall_looks=lambda *words: calls.append(sorted(words[-1])),
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
