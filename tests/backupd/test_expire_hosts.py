"""The reads and writes of an expiry for a host: its backups, deletions and marks, and the remains of a forgotten host."""

import errno
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from backupd.expire import host_backups
from backupd.expire.delete_backups import Deleter, MetadataReader
from backupd.expire.expiry_context import ExpiryContext
from backupd.expire.host_backups import HostOnPool, _from_pool, _names
from backupd.expire.mark import _Batch, _decide, remove_hosts
from backupd.expire.queue import CleanerQueue
from backupd.repo.backup_json import UnreadableRecord
from backupd.repo.notes_json import Notes, write_notes
from btrkeep.catalogue import Backup, BackupState, Catalogue
from btrkeep.config import Config, Retention
from btrkeep.config.settings import PoolSettings
from btrkeep.decisions.expiry_plan import ExpiryStep, HostBackups, HostPlan, Plan
from btrkeep.decisions.retention import Candidate, Reason, RetentionCode
from btrkeep.pool.marker import WORKING, Pool
from btrkeep.process.progress import ProgressSinks
from tests.backupd.facts import NOON, final


@pytest.fixture
def context(tmp_path: Path) -> Iterator[ExpiryContext]:
    pool = Pool(tmp_path, "main", "00000000-0000-0000-0000-000000000000", rehearsal=False)
    pool.host_lock("web1").parent.mkdir(parents=True)
    with Catalogue.open(tmp_path / "state") as catalogue:
        yield ExpiryContext(None, pool, catalogue, NOON, ProgressSinks(lambda _: None))  # type: ignore[arg-type]


def doomed(host: str, *names: str) -> HostPlan:
    return HostPlan(host, total=9, delete=tuple(ExpiryStep(name, ()) for name in names))


def test_only_what_is_named_like_a_backup_or_has_a_row_is_read_as_one(tmp_path: Path) -> None:
    for name in ("2026-03-01T220000Z", "by hand", ".working", "latest", "notes.json", "2026-03-01"):
        (tmp_path / name).mkdir()
    assert sorted(_names(tmp_path, {"by hand": None, ".working": None, "gone": None})) == ["2026-03-01T220000Z", "by hand"]


@pytest.mark.parametrize(
    ("error", "is_asked", "state", "unread"),
    [
        (errno.EIO, False, None, ["own"]),
        (errno.EIO, True, "failed", []),  # it counts for nothing, and is deleted
        (errno.EACCES, False, "raised", []),
        (None, False, None, []),
        (0, False, None, []),
    ],
)
def test_a_damaged_backup_is_kept_and_named_unless_an_administrator_asked_to_delete_it(
    monkeypatch: pytest.MonkeyPatch, error: int | None, is_asked: bool, state: str | None, unread: list[str]
) -> None:
    """`error`: 0 is an invalid record on a good disk, None a foreign backup."""

    def read(_path: Path, _host: str) -> None:
        if error is not None:
            raise OSError(error, "x") if error else UnreadableRecord("x", "y")

    damaged = final("own")
    stand_in = damaged._replace(record=replace(damaged.record, state="failed"))
    monkeypatch.setattr("backupd.expire.host_backups.read_final_if_ours", read)
    monkeypatch.setattr("backupd.expire.host_backups.sealed_without_record", lambda _path, _host: stand_in)
    notes = Notes({"own": {"expired": {"asked": {"at_once": True}}}} if is_asked else {})
    named: list[str] = []
    if state == "raised":
        with pytest.raises(PermissionError):
            _from_pool(Path("/pool/hosts/web1"), "own", notes, None, named)
    else:
        candidate = _from_pool(Path("/pool/hosts/web1"), "own", notes, None, named)
        assert (candidate.state if candidate else None) == state
        assert (candidate is not None and candidate.asked is not None) == is_asked
    assert named == unread


def test_a_backup_without_a_row_that_says_what_it_is_is_read_from_the_pool(
    context: ExpiryContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was killed before it wrote the row, or an older row: otherwise the backup would not count, or never expire."""
    names = ["2026-03-01T220000Z", "2026-03-02T220000Z", "2026-03-03T220000Z"]
    for name in names:
        (context.pool.host("web1") / name).mkdir(parents=True)
    context.config = Config(Path("/etc/x"), "main", PoolSettings(context.pool.path, Path("/state"), ZoneInfo("UTC")))
    monkeypatch.setattr(
        "backupd.expire.host_backups.read_final_if_ours", lambda path, _host: (final(path.name).subvolume, final(path.name).record)
    )
    asked = list[str]()
    from_pool = host_backups._from_pool

    def noted(folder: Path, name: str, notes: Notes, base: str | None, unread: list[str]) -> Candidate | None:
        asked.append(name)
        return from_pool(folder, name, notes, base, unread)

    monkeypatch.setattr(host_backups, "_from_pool", noted)
    for name, state in zip(names[:2], ("complete", "partial"), strict=True):
        context.catalogue.put_backup(Backup("web1", name, "x", state, NOON, NOON, 1.0, 1, 1, 1, None))
    (facts,) = host_backups.read_hosts(context.pool, context.catalogue, context.config)
    assert sorted((candidate.name, candidate.state) for candidate in facts.candidates) == [(name, "complete") for name in names]
    assert sorted(asked) == names[1:]
    assert [facts.host for facts in host_backups.read_hosts(context.pool, context.catalogue, context.config, {"web2"})] == []


STATE = BackupState("web1", "a", NOON, "complete", "complete", None, None, None, 300, "u", None)


@pytest.mark.parametrize(
    ("notes", "row", "state"),
    [
        ({}, "suspect", "suspect"),
        ({"accepted": {"at": "x"}}, "suspect", "complete"),
        ({"altered": {"at": "x", "subvolume": 300}}, "complete", "altered"),
        ({"altered": {"at": "x", "subvolume": 300}, "accepted": {"at": "x"}}, "suspect", "altered"),
        ({"expired": {"at": "2026-03-20T12:00:00Z"}}, "complete", "complete"),
    ],
)
def test_what_a_backup_counts_for_follows_its_row_and_its_notes(notes: dict[str, Any], row: str, state: str) -> None:
    fields = STATE._replace(state=row, outcome=row)
    for others in ({}, {"b": {"hold": {"at": "x", "until": None, "why": "y"}}}):
        backups = {**others, **({"a": notes} if notes else {})}
        candidate = host_backups._from_row(fields, Notes(backups), "a")
        assert candidate is not None
        assert (candidate.state, candidate.in_use, candidate.expired is not None) == (state, True, "expired" in notes)


def test_metadata_is_read_ahead_of_the_next_backups_that_are_there_once(
    context: ExpiryContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    backups = {name: final(name) for name in "abc"}
    monkeypatch.setattr("backupd.expire.delete_backups.read_host_from_pool", lambda *_: SimpleNamespace(backups=backups))
    context.config = Config(Path("/etc/x"), "main", PoolSettings(context.pool.path, Path("/state"), ZoneInfo("UTC")))
    deleter = Deleter(context, CleanerQueue(Path("/pool"), 5), Plan((doomed("web1", "a", "gone", "c"),), {}, None, 27), 9)
    asked: list[str] = []
    monkeypatch.setattr(deleter.reader, "can_be_dropped", lambda own, _others: asked.append(own.path.name))
    deleter.read_ahead(2)
    assert asked == ["a"]
    deleter.read_ahead(3)
    deleter.read_ahead(3)
    assert asked == ["a", "c"]


def test_the_rows_of_a_batch_are_deleted_and_what_was_kept_or_put_off_is_expired_again(
    context: ExpiryContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleter = Deleter(context, CleanerQueue(Path("/pool"), 5), Plan((), {}, None, 0), None)
    for name in "abcd":
        context.catalogue.put_backup(Backup("web1", name, "x", "expired", NOON, NOON, 1.0, 1, 1, 1, None))
    on_pool = HostOnPool(HostBackups("web1", (), Retention()), Notes(), {name: final(name) for name in "abcd"})
    deletable, hosts = set[str](), list[str]()
    is_full = iter([False, False, True] * 2)
    monkeypatch.setattr(deleter.queue, "full", lambda: next(is_full))
    monkeypatch.setattr(deleter.reader, "can_be_dropped", lambda *_: None)
    monkeypatch.setattr(deleter, "_delete_one", lambda backup, _look: backup.path.name in deletable)
    pointed: list[str] = []
    monkeypatch.setattr("backupd.expire.delete_backups.point_latest", lambda _pool, host: pointed.append(host))
    for _ in range(2):
        assert deleter._delete("web1", list("abcd"), on_pool) == ("c", "d")
        assert deleter.hosts == hosts  # their notes are searched for deleted backups
        deletable, hosts = {"a"}, ["web1"]
    assert (deleter._gone, pointed) == ([("web1", "a")], ["web1", "web1"])
    states = {row.name: row.state for row in context.catalogue.states()}
    assert states == {"a": "deleting", "b": "expired", "c": "expired", "d": "expired"}
    assert deleter._delete("web1", [], on_pool) == ()


def test_marks_and_their_ends_come_to_the_notes_and_to_the_rows(context: ExpiryContext, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {"expired": {"at": "2026-03-19T12:00:00Z"}}
    candidates = (Candidate("kept again", NOON, "suspect"), Candidate("other", NOON, "complete"))
    notes = Notes({"kept again": before, "old row": before})
    on_pool = HostOnPool(HostBackups("web1", candidates, Retention()), notes)
    plan = HostPlan(
        "web1",
        mark=(ExpiryStep("marked", (Reason(RetentionCode.NO_RULE),)),),
        revive=(ExpiryStep("kept again", (Reason(RetentionCode.NEWEST),)),),
        amend=(("old row", "expired"),),
    )
    monkeypatch.setattr(ExpiryContext, "recheck_under_lock", lambda _context, plan: (on_pool, plan))
    batch = _Batch()
    _decide(context, plan, batch)
    assert batch.rows == [
        ("web1", "marked", "expired", NOON),
        ("web1", "kept again", "suspect", None),
        ("web1", "old row", "expired", NOON - timedelta(days=1)),
    ]
    assert (batch.marked, len(batch.revived)) == (1, 1)
    (after,) = batch.notes.values()
    assert {name: after.expired_at(name) for name in ("marked", "kept again", "old row")} == {
        "marked": NOON,
        "kept again": None,
        "old row": NOON - timedelta(days=1),
    }


@pytest.mark.parametrize(
    ("grace_over", "clock_waits", "has_backup", "is_full", "goes"),
    [
        (True, False, False, False, True),
        (False, False, False, False, False),
        (True, True, False, False, False),  # the grace may have ended only by a wrong clock
        (True, False, True, False, False),
        (True, False, False, True, False),
    ],
)
def test_the_unfinished_backup_of_a_forgotten_host_is_deleted_last_and_after_the_grace(
    context: ExpiryContext,
    monkeypatch: pytest.MonkeyPatch,
    grace_over: bool,
    clock_waits: bool,
    has_backup: bool,
    is_full: bool,
    goes: bool,
) -> None:
    forgotten = "2020-03-20T12:00:00Z" if grace_over else "2026-03-20T11:59:00Z"
    folder = context.pool.host("web1")
    for name in (WORKING, *(["2026-03-01T220000Z"] if has_backup else [])):
        (folder / name).mkdir(parents=True)
    write_notes(folder, Notes(forgotten={"at": forgotten}))
    context.config = Config(Path("/etc/x"), "main", PoolSettings(context.pool.path, Path("/state"), ZoneInfo("UTC")))
    context.clock_waits = clock_waits
    queue = CleanerQueue(context.pool.path, 5)
    monkeypatch.setattr("backupd.expire.queue.orphan_items", lambda _path: range(5 if is_full else 4))
    monkeypatch.setattr(queue, "commit", lambda: None)
    monkeypatch.setattr("backupd.expire.mark.unfinished", lambda path, _host: final(path.name).subvolume)
    monkeypatch.setattr("backupd.expire.mark.delete_working", lambda path, _subvolume: path.rmdir())
    remove_hosts(context, queue, ["web1"])
    assert folder.exists() is not goes
    assert context.summary.hosts_gone == (["web1"] if goes else [])
    assert (folder / WORKING).exists() is not goes
    if has_backup:  # without a row it is foreign
        assert "2026-03-01T220000Z" in context.summary.problems[0]
    else:
        assert context.summary.problems == []


def test_a_batch_deletes_as_many_as_there_is_room_for_and_the_limit_allows_whatever_is_not_durable_yet(
    context: ExpiryContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan((doomed("web1", "a", "b"), doomed("web2", "c", "d", "e", "f")), {}, None, 27)
    deleter = Deleter(context, CleanerQueue(Path("/pool"), 5), plan, 4)
    most = 9

    def delete(host_plan: HostPlan, names: tuple[str, ...], room: int) -> tuple[str, ...]:
        count = min(room, most)
        deleter._gone += [(host_plan.host, name) for name in names[:count]]
        return names[count:]

    monkeypatch.setattr(deleter, "_first_names", delete)
    deleter._gone = [("web0", "x"), ("web0", "y")]
    deleter.batch(3)
    assert [name for _, name in deleter._gone] == ["x", "y", "a", "b", "c"]
    assert (deleter.limit, deleter.left, deleter.is_done()) == (1, 3, False)
    deleter.batch(3)
    assert [name for _, name in deleter._gone][5:] == ["d"]
    assert (deleter.limit, deleter.left, deleter.is_done()) == (0, 2, True)
    deleter.limit, most = None, 1
    deleter.batch(3)  # others have filled the queue after the first one
    assert ([name for _, name in deleter._gone][6:], deleter.left) == (["e"], 1)


def test_metadata_of_a_backup_is_read_once_and_again_only_for_what_is_no_longer_shared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    older, own = final("older", created=10, written=12), final("own", {"older": 30})
    read: list[tuple[str, int]] = []

    def is_readable(path: Path, since: int, _pulse: object) -> bool:
        read.append((path.name, since))
        return since > 0

    monkeypatch.setattr("backupd.expire.delete_backups._is_readable", is_readable)
    reader = MetadataReader(lambda: None)
    reader.close()  # without any reading
    first = reader.can_be_dropped(own, [own, older])
    assert first.result()
    assert reader.can_be_dropped(own, [own, older]) is first
    everything = reader.can_be_dropped(own, [own])
    assert not everything.result()
    assert reader.can_be_dropped(own, [own, older]) is everything  # read more than necessary
    reader.forget()
    assert reader.can_be_dropped(own, [own, older]).result()
    assert read == [("own", 30), ("own", 0), ("own", 30)]
    reader.close()
