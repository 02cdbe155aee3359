"""A backup that is due for deletion and cannot be deleted is kept and named, or the expiry ends."""

import errno
import fcntl
import os
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from backupd.actions.rename import _locked_against_restores
from backupd.expire import delete_backups as module
from backupd.expire import mark
from backupd.expire.delete_backups import Deleter
from backupd.expire.expiry_context import ExpiryContext
from backupd.expire.mark import write_many
from backupd.expire.queue import CleanerQueue
from backupd.repo.backup_json import Record
from backupd.repo.final_backups import FinalBackup
from backupd.repo.notes_json import Notes, read_notes
from backupd.repo.read_lock import is_read_by_others, lock_for_deletion, lock_for_reading
from btrkeep.catalogue import Catalogue
from btrkeep.decisions.expiry_plan import Plan
from btrkeep.errors import OperatorError, PoolUnusable
from btrkeep.pool.marker import Pool
from btrkeep.pool.subvolume import Subvolume
from btrkeep.process.progress import ProgressSinks

NOON = datetime(2026, 3, 20, 12, tzinfo=UTC)
NAME = "2026-03-01T220000Z"


class Expiry:
    """Deletes one backup, a plain folder here; `deleted` has the subvolume ids that were passed to the kernel."""

    def __init__(self, context: ExpiryContext) -> None:
        self.context, self.deleted = context, list[int]()
        path = context.pool.host("web1") / NAME
        path.mkdir(parents=True)
        self.backup = FinalBackup(
            path,
            Subvolume(300, "uuid", None, read_only=True, generation=50, created=40),
            Record("web1", "u", "complete", NOON, NAME),
        )
        self.deleter = Deleter(context, CleanerQueue(context.pool.path, 5), Plan((), {}, None, 0), None)

    def delete(self, *, is_readable: bool = True) -> bool:
        look = Future[bool]()
        look.set_result(is_readable)
        return self.deleter._delete_one(self.backup, look)


@pytest.fixture
def expiry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Expiry]:
    pool = Pool(tmp_path / "pool", "main", "00000000-0000-0000-0000-000000000000", rehearsal=False)
    with Catalogue.open(tmp_path / "state") as catalogue:
        expiry = Expiry(ExpiryContext(None, pool, catalogue, NOON, ProgressSinks(lambda _: None)))  # type: ignore[arg-type]
        monkeypatch.setattr(module, "is_still", lambda _path, _subvolume: True)
        monkeypatch.setattr(module, "delete", lambda _folder, id_: expiry.deleted.append(id_))
        yield expiry


def test_a_backup_is_deleted_by_its_id_and_counted(expiry: Expiry) -> None:
    assert expiry.delete()
    assert expiry.deleted == [300]
    assert [(deleted.host, deleted.name) for deleted in expiry.deleter.deleted.values()] == [("web1", NAME)]
    assert (expiry.context.summary.problems, expiry.deleter.busy) == ([], 0)


def test_a_backup_that_an_administrator_changed_a_moment_ago_is_kept(expiry: Expiry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_still", lambda _path, _subvolume: False)
    assert not expiry.delete()
    assert (expiry.deleted, expiry.deleter.deleted, len(expiry.context.summary.problems)) == ([], {}, 1)


def test_a_backup_whose_metadata_cannot_be_read_is_kept_for_its_deletion_makes_the_pool_read_only(expiry: Expiry) -> None:
    assert not expiry.delete(is_readable=False)
    assert (expiry.deleted, expiry.deleter.deleted, len(expiry.context.summary.problems)) == ([], {}, 1)
    assert f"web1 {NAME} is kept" in expiry.context.summary.problems[0]


def test_a_backup_that_is_being_restored_is_deleted_another_time(expiry: Expiry) -> None:
    """This is not a problem: it counts as busy, and the next expiry deletes it."""
    with lock_for_reading(expiry.backup.path):
        assert not expiry.delete()
    assert (expiry.deleted, expiry.deleter.deleted, expiry.deleter.busy) == ([], {}, 1)
    assert expiry.context.summary.problems == []
    assert expiry.delete()


def refusing(number: int) -> Iterator[None]:
    raise OSError(number, os.strerror(number))


@pytest.mark.parametrize("number", [errno.ENOTEMPTY, errno.EPERM, errno.ENOENT])
def test_one_backup_that_cannot_be_deleted_is_named_and_kept(expiry: Expiry, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(module, "delete", lambda _folder, _id: refusing(number))
    assert not expiry.delete()
    (problem,) = expiry.context.summary.problems
    assert problem.startswith(f"web1 {NAME} cannot be deleted: ")
    assert ("it contains a subvolume that does not belong to btrkeep" in problem) == (number == errno.ENOTEMPTY)
    assert expiry.deleter.deleted == {}


@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO, errno.ENOSPC])
def test_a_broken_pool_ends_the_expiry_instead_of_being_named_once_for_each_backup(
    expiry: Expiry, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(module, "delete", lambda _folder, _id: refusing(number))
    with pytest.raises(PoolUnusable, match=f"{NAME} cannot be deleted"):
        expiry.delete()
    assert expiry.deleter.deleted == {}


@pytest.mark.parametrize("fails", [1, 2])
def test_marks_that_the_disk_lost_replace_no_notes_and_end_the_expiry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    """With empty notes after a power cut the holds would be unknown. After the second sync all notes have their new names."""
    folders = [tmp_path / name for name in ("web1", "web2")]
    for folder in folders:
        folder.mkdir()
    held = {NAME: {"hold": {"why": "court"}}}
    syncs = iter(range(1, 9))

    class Disk:
        def sync(self) -> None:
            if next(syncs) == fails:
                raise OSError(errno.EIO, "Input/output error")

    @contextmanager
    def syncing(_path: Path) -> Iterator[Disk]:
        yield Disk()

    monkeypatch.setattr(mark, "syncing", syncing)
    with pytest.raises(PoolUnusable, match="a write to the disk failed"):
        write_many(tmp_path, {folder: Notes(held) for folder in folders})
    assert [read_notes(folder).backups for folder in folders] == [{} if fails == 1 else held] * 2


# A restore that has begun, and a deletion


def test_a_restore_of_a_deleted_backup_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="was deleted") as refused, lock_for_reading(tmp_path / NAME):
        pass
    assert "`backupd list HOST`" in (refused.value.hint or "")


def test_a_restore_during_the_deletion_is_refused(tmp_path: Path) -> None:
    with (
        lock_for_deletion(tmp_path),
        pytest.raises(OperatorError, match="is being deleted"),
        lock_for_reading(tmp_path),
    ):
        pass


@pytest.mark.parametrize("takes_its_place", [True, False])
def test_a_backup_that_was_deleted_between_two_steps_of_a_restore_is_not_restored_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes_its_place: bool
) -> None:
    backup, flock = tmp_path / NAME, fcntl.flock
    backup.mkdir()

    def late(fd: int, how: int) -> None:
        if backup.exists():
            backup.rename(tmp_path / "deleted")
            if takes_its_place:
                backup.mkdir()
        monkeypatch.setattr("fcntl.flock", flock)
        flock(fd, how)

    monkeypatch.setattr("fcntl.flock", late)
    with pytest.raises(OperatorError, match="is being deleted"), lock_for_reading(backup):
        pass
    with lock_for_deletion(tmp_path / "deleted") as is_alone:  # nothing of the refused restore is left
        assert is_alone


def test_who_changes_a_backup_sees_others_that_read_it(tmp_path: Path) -> None:
    """`backupd dedupe` must not change a backup while a restore or a copy to another pool reads it."""
    with lock_for_reading(tmp_path) as own:
        assert not is_read_by_others(own)
        with lock_for_reading(tmp_path):
            assert is_read_by_others(own)
        assert not is_read_by_others(own)
        with lock_for_deletion(tmp_path) as is_alone:  # the question has not lost the own lock
            assert not is_alone


# A rename moves the paths of all backups


def test_a_host_of_which_a_backup_is_restored_is_not_renamed(tmp_path: Path) -> None:
    pool = Pool(tmp_path, "main", "00000000-0000-0000-0000-000000000000", rehearsal=False)
    for name in (NAME, "2026-03-02T220000Z"):
        (pool.host("web1") / name).mkdir(parents=True)
    with _locked_against_restores(pool, "web1"):
        for name in (NAME, "2026-03-02T220000Z"):
            with pytest.raises(OperatorError), lock_for_reading(pool.host("web1") / name):
                pass
    with (
        lock_for_reading(pool.host("web1") / NAME),
        pytest.raises(OperatorError, match=f"web1@{NAME} is being restored from"),
        _locked_against_restores(pool, "web1"),
    ):
        pass


def test_a_host_with_more_backups_than_open_files_is_refused_with_the_command_that_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(tmp_path, "main", "00000000-0000-0000-0000-000000000000", rehearsal=False)
    (pool.host("web1") / NAME).mkdir(parents=True)

    @contextmanager
    def too_many(_path: Path) -> Iterator[bool]:
        refusing(errno.EMFILE)
        yield True

    monkeypatch.setattr("backupd.actions.rename.lock_for_deletion", too_many)
    with (
        pytest.raises(OperatorError, match="more backups than this process may have files open") as refused,
        _locked_against_restores(pool, "web1"),
    ):
        pass
    assert "`ulimit -n 100000`" in (refused.value.hint or "")
