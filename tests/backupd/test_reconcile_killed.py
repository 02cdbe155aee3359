"""Remains of killed runs and commands are found and removed; files of other origin are kept."""

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from backupd.repo.backup_json import RECORD, Record, write
from backupd.repo.checksums import SUMS
from backupd.repo.hardlinks import STAGING
from backupd.repo.reconcile import (
    ReconcileResult,
    _drop_staged,
    _end_dead_run,
    _is_finished,
    _is_of_run,
    _staged_hosts,
    clear_dead_stand_ins,
    open_catalogue_or_memory,
)
from btrkeep.backup_states import CauseCode
from btrkeep.catalogue import Backup, Catalogue, CatalogueBusy
from btrkeep.pool.locks import take_lock
from btrkeep.pool.marker import Pool
from btrkeep.pool.subvolume import Subvolume
from btrkeep.process.proc import start_time

NOON = datetime(2026, 3, 20, 12, tzinfo=UTC)
NAME = "2026-03-20T120000Z"
POOL_ID = "00000000-0000-0000-0000-000000000000"
HOUR = timedelta(hours=1)
SUBVOLUME = Subvolume(300, "u", None, read_only=False, generation=50, created=40)


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    return Pool(tmp_path, "main", POOL_ID, rehearsal=False)


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    return Catalogue.open(tmp_path / "state")


def backup(started: datetime, state: str = "complete", name: str | None = NAME, finished: datetime | None = NOON) -> Backup:
    return Backup("web1", name, "x", state, started, finished, 1.0, 1, 1, 1, "why" if state != "complete" else None)


def test_only_folders_count_as_what_a_killed_run_was_creating(pool: Pool) -> None:
    assert _staged_hosts(pool) == []
    for host in ("web2", "web1"):
        pool.staged(host).mkdir(parents=True)
    (pool.staged("web1").parent / "a file").touch()
    (pool.staged("web1").parent / "a link").symlink_to(pool.staged("web1"))
    assert _staged_hosts(pool) == ["web1", "web2"]


def test_a_folder_with_anything_that_no_run_makes_is_not_removed(tmp_path: Path) -> None:
    assert _is_of_run(tmp_path, "web1", ())
    (tmp_path / "data").mkdir()
    assert not _is_of_run(tmp_path, "web1", ())  # data without a record: no run's
    (tmp_path / "data").rmdir()
    (tmp_path / "SHA256SUMS.mine").touch()
    assert not _is_of_run(tmp_path, "web1", ())


def test_what_a_killed_run_left_with_a_record_is_removed_only_if_it_is_of_that_host(tmp_path: Path) -> None:
    """With all files that a run makes before it has its name."""
    write(tmp_path, Record("web1", "u", "partial", NOON))
    for name in ("backup.json.new", "SHA256SUMS", "data", os.fsdecode(STAGING)):
        (tmp_path / name).touch()
    assert {RECORD, SUMS} <= {path.name for path in tmp_path.iterdir()}
    assert _is_of_run(tmp_path, "web1", ())
    assert _is_of_run(tmp_path, "web2", ("web0", "web1"))
    assert not _is_of_run(tmp_path, "web2", ("web0",))


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


# A catalogue in memory, in place of one that cannot be used


def test_what_killed_commands_left_in_memory_is_removed_and_what_others_put_there_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backupd.repo.reconcile._MEMORY", tmp_path / "memory")
    own = f"{os.getpid()}-{start_time(os.getpid())}"
    stays = [f"btrkeep-catalogue-{own}-running", "btrkeep-catalogue-x-1-no pid", "another-1-1-x"]
    for name in (*stays, f"btrkeep-catalogue-{os.getpid()}-1-number of a dead one"):
        (tmp_path / "memory" / name).mkdir(parents=True)
        (tmp_path / "memory" / name / "catalogue.sqlite").touch()
    (tmp_path / "memory" / "btrkeep-catalogue-1-1-a file").touch()
    (tmp_path / "memory" / "btrkeep-catalogue-1-1-a link").symlink_to(tmp_path)
    with open_catalogue_or_memory(tmp_path / "state", POOL_ID) as (_, problem):
        assert problem is None
    stays = sorted([*stays, "btrkeep-catalogue-1-1-a file", "btrkeep-catalogue-1-1-a link"])
    assert sorted(path.name for path in (tmp_path / "memory").iterdir()) == stays
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    (tmp_path / "memory" / f"btrkeep-catalogue-{os.getpid()}-1-of another user").mkdir()
    clear_dead_stand_ins()
    assert len(list((tmp_path / "memory").iterdir())) == len(stays) + 1


@pytest.mark.parametrize("fault", ["damaged", "not writable"])
def test_a_catalogue_that_cannot_be_used_is_replaced_by_an_empty_one_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    with Catalogue.open(tmp_path) as catalogue:
        catalogue.set_pool_id(POOL_ID)
        catalogue.put_backup(backup(NOON))
    set_pool_id = Catalogue.set_pool_id
    asked: list[Catalogue] = []

    def fails_once(catalogue: Catalogue, pool_id: str) -> None:
        asked.append(catalogue)
        if len(asked) == 1:
            raise CatalogueBusy("the catalogue is busy", "wait")
        set_pool_id(catalogue, pool_id)

    if fault == "damaged":
        (tmp_path / "catalogue.sqlite").write_bytes(b"x" * 5000)
    else:
        monkeypatch.setattr(Catalogue, "set_pool_id", fails_once)
    with open_catalogue_or_memory(tmp_path, POOL_ID) as (catalogue, problem):
        assert problem is not None
        assert (list(catalogue.names()), catalogue.pool_id()) == ([], POOL_ID)
