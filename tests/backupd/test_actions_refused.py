"""Actions of an administrator, and of a night, that must stop before they harm a backup: renaming, discarding, pacing."""

import errno
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backupd.actions import rename as rename_module
from backupd.actions.discard import UnfinishedBackup, discard_for_room
from backupd.actions.rename import require_renameable, validate_names
from backupd.dedupe.cli import recorded_job
from backupd.dedupe.deduper import Pacer
from backupd.proof import verify_pass
from backupd.proof.verify_pass import ReadScope, VerifyPass
from backupd.repo import final_backups
from backupd.repo.backup_json import ROOM, Record, write
from backupd.run import room as room_module
from backupd.run.room import RoomMaker
from btrkeep.backup_states import PARTIAL
from btrkeep.catalogue import Catalogue
from btrkeep.errors import OperatorError, UsageError
from btrkeep.pool.locks import take_lock
from btrkeep.pool.marker import Pool
from btrkeep.pool.subvolume import Subvolume
from btrkeep.process.progress import Cancellation, ProgressSinks

NOON = datetime(2026, 3, 20, 12, tzinfo=UTC)
NAME = "2026-03-01T220000Z"


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    pool = Pool(tmp_path, "main", "00000000-0000-0000-0000-000000000000", rehearsal=False)
    pool.hosts.mkdir()
    pool.host_lock("web1").parent.mkdir(parents=True)
    return pool


@pytest.fixture
def catalogue(tmp_path: Path) -> Iterator[Catalogue]:
    with Catalogue.open(tmp_path / "state") as opened:
        yield opened


# Renaming


def test_a_host_is_not_renamed_to_its_own_or_an_impossible_name() -> None:
    for new in ("web1", "../web1", "", ".working"):
        with pytest.raises(UsageError):
            validate_names("web1", new)


def test_two_hosts_never_become_one(pool: Pool) -> None:
    """Their backups could no longer be distinguished."""
    (pool.host("web1") / NAME).mkdir(parents=True)
    (pool.host("web2") / NAME).mkdir(parents=True)
    with pytest.raises(OperatorError, match="web2 has backups already"):
        require_renameable(pool, "web1", "web2")
    with pytest.raises(OperatorError, match="has no backup in the pool"):
        require_renameable(pool, "web3", "web4")
    require_renameable(pool, "web1", "web4")


@pytest.mark.parametrize(
    ("kind", "has_folder"),
    [("a file", True), ("a file", False), ("a symlink", True), ("a symlink", False), ("a folder with something in it", True)],
)
def test_what_lies_at_the_new_name_is_reported_and_not_overwritten(pool: Pool, kind: str, has_folder: bool) -> None:
    """A plain file and a symlink caused an error of the system without a hint."""
    if has_folder:
        pool.host("web1").mkdir()
    match kind:
        case "a file":
            pool.host("web2").touch()
        case "a symlink":
            (pool.path / "elsewhere").mkdir()
            pool.host("web2").symlink_to(pool.path / "elsewhere")
        case _:
            (pool.host("web2") / "precious").mkdir(parents=True)
    with pytest.raises(OperatorError, match="exists already"):
        require_renameable(pool, "web1", "web2")


def test_a_history_of_the_new_name_stays_when_a_host_gets_it(
    pool: Pool, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forgotten host had that name: the runs of both are kept, and no row of its backups counts for the other host."""
    for host, count in (("web1", 2), ("web2", 1)):
        for _ in range(count):
            catalogue.start_run(host, NOON, 1, "x", night=False)
    recalled: list[str] = []
    monkeypatch.setattr(rename_module, "row_of", lambda *_: None)
    monkeypatch.setattr(rename_module, "recall_verifications", lambda _pool, _catalogue, host, *_: recalled.append(host))
    rename_module._in_catalogue(pool, catalogue, "web1", "web2")
    assert (len(catalogue.runs("web1", 9)), len(catalogue.runs("web2", 9)), recalled) == (0, 3, ["web2"])
    rename_module._in_catalogue(pool, catalogue, "web1", "web2")  # as after a kill
    assert len(catalogue.runs("web2", 9)) == 3


# Unfinished backups that take the space of others


def unfinished(pool: Pool, host: str = "web1", *, for_room: bool = True) -> UnfinishedBackup:
    subvolume = Subvolume(300, "u", None, read_only=False, generation=50, created=40)
    return UnfinishedBackup(host, pool.working(host), subvolume, 1 << 30, for_room, NOON)


class Working:
    """An unfinished backup in the pool; `subvolume`: the kernel's facts about it. `discarded`: whether it was deleted."""

    def __init__(self, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
        self.subvolume: Subvolume | None = Subvolume(300, "u", None, read_only=False, generation=50, created=40)
        self.path = pool.working("web1")
        self.path.mkdir(parents=True)
        self.record(Record("web1", "u", PARTIAL, NOON, None, stopped_for=ROOM))
        self.discarded, self.error = False, 0
        monkeypatch.setattr(final_backups, "unfinished", lambda _path, _host: self.subvolume)
        monkeypatch.setattr(final_backups, "discard", self.discard)

    def record(self, record: Record) -> None:
        write(self.path, record)

    def discard(self, _path: Path, _uuid: str) -> None:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        self.discarded = True


def test_what_was_stopped_for_want_of_space_is_deleted_so_that_others_have_some(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    working = Working(pool, monkeypatch)
    assert discard_for_room(unfinished(pool))
    assert working.discarded


@pytest.mark.parametrize(
    "change", ["finished", "gone", "another", "continued", "stopped by hand", "unreadable", "foreign data in it"]
)
def test_any_other_unfinished_backup_is_kept(pool: Pool, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """It contains data, and the next run continues it."""
    working = Working(pool, monkeypatch)
    match change:
        case "finished":
            working.subvolume = Subvolume(300, "u", None, read_only=True, generation=50, created=40)
        case "gone":
            working.subvolume = None
        case "another":
            working.subvolume = Subvolume(301, "v", None, read_only=False, generation=50, created=40)
        case "continued":
            working.record(Record("web1", "u", PARTIAL, datetime(2026, 3, 20, 13, tzinfo=UTC), None, stopped_for=ROOM))
        case "stopped by hand":
            working.record(Record("web1", "u", PARTIAL, NOON, None))
        case "unreadable":
            (working.path / "backup.json").write_text("{")
        case "foreign data in it":
            working.error = errno.ENOTEMPTY
    assert not discard_for_room(unfinished(pool))
    assert not working.discarded


def test_the_unfinished_backup_of_a_host_in_use_is_not_deleted_for_others(
    pool: Pool, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up: list[str] = []
    notices: list[str] = []

    def noting(unfinished_backup: UnfinishedBackup) -> bool:
        given_up.append(unfinished_backup.host)
        return True

    monkeypatch.setattr(room_module, "discard_for_room", noting)
    context: Any = SimpleNamespace(
        pool=pool,
        catalogue=catalogue,
        clock=SimpleNamespace(now=lambda: NOON),
        sinks=ProgressSinks(lambda event: notices.append(str(event))),
    )
    maker = RoomMaker(context)
    with take_lock(pool.host_lock("web1"), "backupd run", "2026-03-20T12:00:00Z"):
        assert not maker._give_up(unfinished(pool))
    assert (given_up, notices, maker.last) == ([], [], set())
    assert maker._give_up(unfinished(pool))
    assert (given_up, maker.last) == (["web1"], {"web1"})
    assert "discarded, to free space for other hosts" in notices[0]
    with take_lock(pool.host_lock("web1"), "backupd run", "2026-03-20T12:00:00Z"):
        pass  # the lock is free again


# Reading that makes way for other work


class Busy:
    """The share of time in which processes wait for I/O, reading by reading; then 0."""

    def __init__(self, *shares: float | None) -> None:
        self.shares, self.restarts = list(shares), 0

    def share(self) -> float | None:
        return self.shares.pop(0) if self.shares else 0.0

    def restart(self) -> None:
        self.restarts += 1


def reading(monkeypatch: pytest.MonkeyPatch, busy: Busy, *, seconds: float | None = None) -> tuple[VerifyPass, list[float]]:
    """A pass that may use a fifth of the disks' time, and its sleeps; only these advance the clock."""
    clock, sleeps = [1000.0], list[float]()
    monkeypatch.setattr(verify_pass, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(verify_pass, "IoPressure", lambda: busy)
    cancellation = Cancellation()

    def sleep(span: float) -> None:
        sleeps.append(span)
        clock[0] += span

    monkeypatch.setattr(cancellation, "sleep", sleep)
    work = VerifyPass(NOON, ReadScope(seconds=seconds, pressure=0.2), cancellation, lambda _: None)
    clock[0] += 60
    return work, sleeps


def test_a_verify_waits_until_the_disks_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a scheduled verify slows the night down."""
    work, sleeps = reading(monkeypatch, Busy(0.9, 0.5, 0.21, 0.2, 0.9))
    assert work.keep_pace()
    assert len(sleeps) == 3
    assert work.keep_pace()  # a moment later it is not asked again
    assert len(sleeps) == 3


def test_what_is_not_known_of_the_disks_holds_up_no_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    work, sleeps = reading(monkeypatch, Busy(None))
    assert work.keep_pace()
    assert sleeps == []


def test_a_verify_whose_time_is_over_reads_its_file_to_the_end_with_one_pause_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """On disks that are always busy a large file would otherwise never be read."""
    work, sleeps = reading(monkeypatch, Busy(*[0.9] * 50), seconds=1)
    assert work.keep_pace()
    assert len(sleeps) == 1
    work.cancellation.handle_signal(15)
    assert not work.keep_pace()


# Sharing of equal data


def test_a_run_of_dedupe_that_fails_is_not_recorded_as_running_for_ever(catalogue: Catalogue) -> None:
    with pytest.raises(KeyError), recorded_job(catalogue, NOON):
        raise KeyError("a bug")
    (run,) = catalogue.dedupes(9)
    assert (run.outcome, run.finished is None) == ("failed", False)


def test_dedupe_that_waits_for_another_command_reports_which_and_ends_at_a_signal(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancellation, reported = Cancellation(), list[str]()
    pacer = Pacer(pool.locks, cancellation, seconds=None, pressure=None, tell=reported.append)
    monkeypatch.setattr(cancellation, "sleep", lambda _seconds: cancellation.handle_signal(15))
    assert not pacer.wait_for("backupd verify is running (process 7)")
    assert reported == ["waits: backupd verify is running (process 7)"]
    assert pacer.is_over
