"""Decisions of an expiry without a pool: backups that cannot be read before a deletion, requests in notes, and the result."""

import errno
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from backupd.expire.delete_backups import Deleter, _shared_before
from backupd.expire.expiry_context import ExpiryContext, RowWriter
from backupd.expire.expiry_runner import LONGEST_YIELD, ExpiryRunner, ExpiryScope, _named, dry_run_plan
from backupd.expire.host_backups import _with_seal, asked_of, forgotten_at, gone_names
from backupd.expire.monitor import in_hand
from backupd.expire.mount_option import SwitchedOption, read_record, record_path
from backupd.expire.queue import CleanerQueue, Governor
from backupd.expire.report import ExpiryProgress, Pause, Summary
from backupd.repo.backup_json import UnreadableRecord
from backupd.repo.final_backups import FinalBackup
from backupd.repo.notes_json import Notes
from backupd.repo.reconcile import ReconcileResult
from backupd.repo.seals import SealState
from btrkeep.catalogue import Catalogue, CatalogueUnusable
from btrkeep.config import Config, Retention
from btrkeep.config.settings import PoolSettings
from btrkeep.decisions.expiry_plan import ExpiryStep, HostBackups, HostPlan, Plan
from btrkeep.decisions.retention import Candidate, DeletionRequest
from btrkeep.decisions.safety_limits import DeletedShare, Forced
from btrkeep.errors import OperatorError, PoolUnusable
from btrkeep.pool.marker import Pool
from btrkeep.pool.orphans import Drop
from btrkeep.pool.subvolume import Subvolume
from btrkeep.process.proc import start_time
from btrkeep.process.progress import ProgressSinks
from tests.backupd.facts import NOON, final

OLDER = final("older", created=10, written=12)


@pytest.mark.parametrize(
    ("own", "older", "since"),
    [
        (final("own", parent_uuid="uuid of older"), OLDER, 40),
        (final("own", {"older": 30}), OLDER, 30),
        (final("own", {"older": 60}), OLDER, 40),  # never more than since it was made
        (final("own", {"other": 30}), OLDER, 0),
        (final("own"), OLDER, 0),
        (final("own", {"older": 30}, received_uuid="x"), OLDER, 0),  # its record is about another pool
        (final("own", {"older": 12}), OLDER, 12),
        (final("own", {"older": 11}), OLDER, 0),  # written later, as `backupd dedupe` does
        (final("own", {"older": 30}), final("older", created=31, written=12), 0),
        (final("own", parent_uuid="uuid of older"), final("older", created=10, written=41), 0),
    ],
)
def test_only_metadata_that_another_backup_certainly_shares_is_not_read_before_a_deletion(
    own: FinalBackup, older: FinalBackup, since: int
) -> None:
    assert _shared_before(own, older) == since


@pytest.mark.parametrize(
    ("note", "request_"),
    [
        (None, None),
        ({"at": "x", "why": "no rule"}, None),
        ({"asked": "yes"}, None),
        ({"asked": {}}, DeletionRequest("", False, False, "")),
        ({"asked": {"last": True}, "why": "moved", "by": "eve"}, DeletionRequest("moved", True, False, "eve")),
        ({"asked": {"at_once": True}}, DeletionRequest("", False, True, "")),
        ({"asked": {"last": "true", "at_once": 1}}, DeletionRequest("", False, False, "")),
    ],
)
def test_a_backup_is_deleted_on_request_only_when_its_note_has_one(
    note: dict[str, Any] | None, request_: DeletionRequest | None
) -> None:
    notes = Notes({"a": {"expired": note}} if note else {})
    assert asked_of(notes, "a") == request_


def test_a_host_is_given_up_from_the_time_in_its_note_and_a_note_without_time_is_unreadable() -> None:
    assert forgotten_at(Notes()) is None
    assert forgotten_at(Notes(forgotten={"at": "2026-03-20T12:00:00Z"})) == NOON
    for wrong in ({"by": "eve"}, {"at": 5}, {"at": "yesterday"}):
        with pytest.raises(UnreadableRecord):
            forgotten_at(Notes(forgotten=wrong))


def test_notes_of_deleted_backups_are_dropped_and_those_of_held_or_present_ones_stay(tmp_path: Path) -> None:
    (tmp_path / "present").mkdir()
    expired, hold = {"at": "x"}, {"why": "court"}
    notes = Notes(
        {
            "present": {"expired": expired},
            "gone": {"expired": expired},
            "moved away": {"expired": expired, "hold": hold},
            "held": {"hold": hold},
            "accepted": {"accepted": expired},
        }
    )
    assert gone_names(tmp_path, notes) == ["gone"]


def drop(root: int, at: int) -> Drop:
    return Drop(root, (at, 1, 0), 0)


@pytest.mark.parametrize(
    ("drops", "before", "last", "root"),
    [
        ([drop(5, 1)], {}, None, 5),
        ([], {}, 5, None),
        ([drop(5, 1), drop(6, 1)], {}, None, None),
        ([drop(5, 1), drop(6, 1)], {}, 6, 6),  # in the first reading all seem to have moved
        ([drop(5, 1), drop(6, 2)], {5: drop(5, 1), 6: drop(6, 1)}, 5, 6),
        ([drop(5, 1), drop(6, 1)], {5: drop(5, 1), 6: drop(6, 1)}, 5, 5),
        ([drop(5, 2), drop(6, 2)], {5: drop(5, 1), 6: drop(6, 1)}, 5, 6),
        ([drop(5, 1), drop(6, 1)], {5: drop(5, 1)}, 5, 6),
    ],
)
def test_of_several_interrupted_drops_the_one_that_moved_is_under_way(
    drops: list[Drop], before: dict[int, Drop], last: int | None, root: int | None
) -> None:
    assert (result.root if (result := in_hand(drops, before, last)) else None) == root


SKIPPED: dict[str, Any] = {"skipped_hosts": {"web1": DeletedShare(11, 12)}}


@pytest.mark.parametrize(
    ("summary", "is_good", "outcome"),
    [
        (Summary(deleted=5), True, "complete"),
        (Summary(**SKIPPED), False, "partial"),
        (Summary(problems=["x"]), False, "partial"),
        (Summary(rest=1), True, "partial"),
        (Summary(stop=DeletedShare(200, 300)), False, "stopped"),
        (Summary(ended_by=15), True, "stopped"),
        (Summary(error="x", ended_by=15), True, "failed"),
        (Summary(waiting_for_grace=3, busy=["web1"]), True, "complete"),
    ],
)
def test_an_expiry_that_left_something_undone_is_not_complete(summary: Summary, is_good: bool, outcome: str) -> None:
    assert (summary.good, summary.outcome) == (is_good, outcome)


def test_bytes_for_each_deleted_backup_are_unknown_without_a_deletion_or_a_count() -> None:
    assert Summary(deleted=4, written_bytes=10).written_each == 2
    assert Summary(deleted=4, written_bytes=0).written_each == 0
    assert Summary(deleted=0, written_bytes=10).written_each is None
    assert Summary(deleted=4).written_each is None


def test_after_a_failed_write_only_a_last_one_is_still_tried(tmp_path: Path) -> None:
    reports: list[str] = []
    calls: list[str] = []

    def failing(catalogue: Catalogue) -> None:
        raise CatalogueUnusable("the catalogue is full", "make room")

    with Catalogue.open(tmp_path) as catalogue:
        rows = RowWriter(catalogue, reports.append)
        assert rows.write(lambda _: calls.append("first"))
        assert not rows.write(failing)
        assert not rows.write(lambda _: calls.append("skipped"))
        assert rows.write(lambda _: calls.append("last"), is_last=True)
        assert not rows.write(failing, is_last=True)
    assert calls == ["first", "last"]
    assert len(reports) == 1
    assert "the catalogue is full" in reports[0]
    assert rows.problem is not None


@pytest.mark.parametrize(
    "error", [OperatorError("its notes cannot be read", "x"), OSError(errno.EIO, "Input/output error"), ValueError("a bug")]
)
def test_an_error_of_one_host_is_reported_once_and_ends_nothing(tmp_path: Path, error: Exception) -> None:
    with Catalogue.open(tmp_path) as catalogue:
        context = ExpiryContext(None, None, catalogue, NOON, ProgressSinks(lambda _: None))  # type: ignore[arg-type]
        for _ in range(2):
            with context.report_errors_of("web1"):
                raise error
        assert len(context.summary.problems) == 1
        assert "web1" in context.summary.problems[0]
        with pytest.raises(PoolUnusable), context.report_errors_of("web1"):
            raise PoolUnusable("the pool is read-only", "x")


@pytest.fixture
def context(tmp_path: Path) -> Iterator[ExpiryContext]:
    pool = Pool(tmp_path, "main", "00000000-0000-0000-0000-000000000000", rehearsal=False)
    pool.host_lock("web1").parent.mkdir(parents=True)
    with Catalogue.open(tmp_path / "state") as catalogue:
        yield ExpiryContext(None, pool, catalogue, NOON, ProgressSinks(lambda _: None))  # type: ignore[arg-type]


def test_a_host_in_use_is_left_to_the_next_expiry_and_named_once(context: ExpiryContext) -> None:
    with ExitStack() as own:
        assert context.locked("web1", own)
        for _ in range(2):
            with ExitStack() as other:
                assert not context.locked("web1", other)
        assert context.summary.busy == ["web1"]
    with ExitStack() as own:
        assert context.locked("web1", own)
    assert context.summary.busy == ["web1"]


def doomed(host: str, *names: str) -> HostPlan:
    return HostPlan(host, total=9, delete=tuple(ExpiryStep(name, ()) for name in names))


@pytest.mark.parametrize(
    ("limit", "order", "is_done"),
    [(None, [("c", "b", "a"), ("d",)], False), (2, [("a", "b", "c"), ("d",)], False), (0, [("a", "b", "c"), ("d",)], True)],
)
def test_the_newest_backup_goes_first_unless_the_number_is_limited(
    context: ExpiryContext, limit: int | None, order: list[tuple[str, ...]], is_done: bool
) -> None:
    plan = Plan((doomed("web1", "a", "b", "c"), doomed("web2"), doomed("web3", "d")), {}, None, 27)
    deleter = Deleter(context, CleanerQueue(Path("/pool"), 5), plan, limit)
    assert [names for _, names in deleter.pending] == order
    assert (deleter.left, deleter.is_done(), deleter.unsettled) == (4, is_done, 0)
    assert Deleter(context, CleanerQueue(Path("/pool"), 5), Plan((doomed("web2"),), {}, None, 9), limit).is_done()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"was": "ssd"}', '{"was": "ssd", "set": "nossd", "boot": "x", "more": 1}'])
def test_a_damaged_record_of_a_switched_mount_option_is_an_error(context: ExpiryContext, text: str) -> None:
    assert read_record(context.pool) is None
    record_path(context.pool).write_text(text)
    with pytest.raises(ValueError, match=r"mount-option\.json cannot be read"):
        read_record(context.pool)
    record_path(context.pool).write_text('{"was": "ssd", "set": "nossd", "boot": "x"}')
    assert read_record(context.pool) == SwitchedOption("ssd", "nossd", "x")


@pytest.mark.parametrize(("error", "is_altered"), [(None, False), (errno.EIO, True), (errno.EUCLEAN, True)])
def test_a_backup_whose_seal_cannot_be_compared_counts_as_altered(
    monkeypatch: pytest.MonkeyPatch, error: int | None, is_altered: bool
) -> None:
    """As a complete backup it would let others be deleted."""

    def check_seal(path: Path, subvolume: Subvolume, seals: object, name: str) -> SimpleNamespace:
        if error:
            raise OSError(error, "x")
        return SimpleNamespace(state=SealState.UNCHANGED)

    monkeypatch.setattr("backupd.expire.host_backups.check_seal", check_seal)
    candidate = Candidate("own", NOON, "complete")
    assert _with_seal(candidate, final("own"), {}).state == ("altered" if is_altered else "complete")
    error = errno.EACCES
    with pytest.raises(PermissionError):
        _with_seal(candidate, final("own"), {})


def test_backups_that_cannot_be_read_are_kept_and_named(context: ExpiryContext) -> None:
    notices: list[str] = []
    context.sinks = ProgressSinks(lambda event: notices.append(str(event)))
    hosts = [HostBackups("web1", (), Retention(), unread=("a", "b")), HostBackups("web2", (), Retention())]
    assert list(_named(context, hosts)) == hosts
    assert len(notices) == 2
    assert "web1 a cannot be read, so it is kept" in notices[0]


def test_days_are_those_of_the_zone_of_the_pool(context: ExpiryContext) -> None:
    zone = ZoneInfo("Pacific/Auckland")
    context.config = Config(Path("/etc/x"), "main", PoolSettings(Path("/pool"), Path("/state"), zone))
    assert context.zone is zone


@pytest.fixture
def runner(context: ExpiryContext, monkeypatch: pytest.MonkeyPatch) -> ExpiryRunner:
    """An expiry on a pool with free space, whose devices' counters do not change."""
    monkeypatch.setattr("backupd.expire.expiry_runner.read_room", lambda _path: None)
    monkeypatch.setattr("backupd.expire.expiry_runner.lacks_room", lambda _room, _least: False)
    monkeypatch.setattr("backupd.expire.expiry_runner.written_bytes", lambda _path: 0)
    context.config = Config(Path("/etc/x"), "main", PoolSettings(context.pool.path, Path("/state"), ZoneInfo("UTC")))
    return ExpiryRunner(context, Forced(), None, wait=False)


def test_an_expiry_waits_for_a_running_backup_but_not_for_a_dead_one_nor_for_ever(
    runner: ExpiryRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue = runner.context.catalogue
    assert not runner._is_to_yield()
    catalogue.start_run("web1", NOON, os.getpid(), "another start", night=False)
    assert not runner._is_to_yield()
    catalogue.start_run("web1", NOON, os.getpid(), start_time(os.getpid()), night=False)
    assert runner._is_to_yield()
    runner._yielded = LONGEST_YIELD - 1
    assert runner._is_to_yield()
    runner._yielded = LONGEST_YIELD
    assert not runner._is_to_yield()
    runner._yielded = 0.0
    monkeypatch.setattr("backupd.expire.expiry_runner.lacks_room", lambda _room, _least: True)
    assert not runner._is_to_yield()
    monkeypatch.setattr("backupd.expire.expiry_runner.lacks_room", lambda _room, _least: False)
    runner.context.rows.problem = CatalogueUnusable("full", "x")
    assert not runner._is_to_yield()


def test_a_pause_lasts_as_long_as_it_should_and_is_reported(runner: ExpiryRunner) -> None:
    events: list[object] = []
    runner.context.sinks = ProgressSinks(events.append)
    begun = time.monotonic()
    runner._pause(Pause.PACE, 0.3)
    assert time.monotonic() - begun >= 0.3
    assert [event.paused for event in events if isinstance(event, ExpiryProgress)][:1] == [Pause.PACE]
    assert runner.paused is None
    runner.context.cancellation.handle_signal(15)
    begun = time.monotonic()
    runner._pause(Pause.PACE, 250)
    assert time.monotonic() - begun < 100


@pytest.mark.parametrize(("hosts", "count"), [(None, None), (frozenset[str](), 0), (frozenset({"a", "b"}), 2)])
def test_the_history_has_how_many_hosts_an_expiry_was_limited_to(
    runner: ExpiryRunner, hosts: frozenset[str] | None, count: int | None
) -> None:
    runner.scope = ExpiryScope(hosts)
    runner._begin_row()
    (row,) = runner.context.catalogue.unfinished_expiries()
    assert (row.id, row.hosts) == (runner.row, count)


def test_rows_that_could_be_reconciled_need_no_catalogue_in_memory(runner: ExpiryRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = runner.context.catalogue
    for done in (ReconcileResult(Counter({"added": 1})), ReconcileResult()):
        monkeypatch.setattr("backupd.expire.expiry_runner.reconcile", lambda *_, done=done: done)
        with ExitStack() as held:
            assert runner._reconcile(held) is done
            assert runner.context.catalogue is catalogue


@pytest.mark.parametrize(("width", "room", "count"), [(4, 30, 4), (50, 30, 30)])
def test_a_batch_has_no_more_backups_than_the_pace_and_the_queue_allow(
    runner: ExpiryRunner, monkeypatch: pytest.MonkeyPatch, width: int, room: int, count: int
) -> None:
    batches, commits = list[int](), list[str]()

    def batch(deleter: Deleter, most: int) -> None:
        batches.append(most)
        deleter.pending.clear()
        deleter._gone.append(("web1", "a"))

    pace = Governor(50, None, None)
    pace.width = width
    monkeypatch.setattr(runner.queue, "wait_for_room", lambda *_: room)
    monkeypatch.setattr(runner.queue, "moving", lambda: 1)
    monkeypatch.setattr(runner.queue, "commit", lambda: commits.append("commit"))
    monkeypatch.setattr("backupd.expire.expiry_runner.governor", lambda *_: pace)
    monkeypatch.setattr(runner.option, "switch", lambda: None)
    monkeypatch.setattr(Deleter, "batch", batch)
    runner.context.pool.locks.mkdir(parents=True, exist_ok=True)
    runner._delete(Plan((HostPlan("web1", total=9, delete=(ExpiryStep("a", ()),)),), {}, None, 9))
    assert batches == [count]
    assert (commits, runner.context.summary.deleted) == (["commit"], 1)  # durable at the end, also where the cleaner is awake


def test_while_a_backup_runs_the_mount_option_is_back_and_what_was_read_ahead_is_forgotten(
    runner: ExpiryRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, clock = list[str](), [1000.0]
    catalogue, config = runner.context.catalogue, runner.context.config
    backup = catalogue.start_run("web1", NOON, os.getpid(), start_time(os.getpid()), night=False)
    runner.context.config = replace(config, expiry=replace(config.expiry, yield_to_backups=True))
    deleter = Deleter(runner.context, runner.queue, Plan((), {}, None, 0), None)

    def note(step: str) -> Callable[..., None]:
        return lambda *_: steps.append(step)

    def sleep(span: float) -> None:
        clock[0] += span
        if steps[-1:] != ["pause"]:
            steps.append("pause")
        if clock[0] > 1010:
            catalogue.finish_run(backup, finished=NOON, outcome="complete")

    monkeypatch.setattr("backupd.expire.expiry_runner.time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(runner.context.cancellation, "sleep", sleep)
    monkeypatch.setattr(runner.option, "switch", note("switch"))
    monkeypatch.setattr(runner.option, "put_back", note("put back"))
    monkeypatch.setattr(deleter, "settle", note("settle"))
    monkeypatch.setattr(deleter.reader, "forget", note("forget"))
    runner._yield_to_backups(deleter)
    assert [step for step in steps if step != "settle"] == ["put back", "pause", "forget", "switch"]
    assert (steps[0], 1010 < clock[0] < 1012) == ("settle", True)
    assert runner._yielded == pytest.approx(clock[0] - 1000)
    steps.clear()
    runner._yield_to_backups(deleter)
    catalogue.start_run("web2", NOON, os.getpid(), start_time(os.getpid()), night=False)
    runner._yield_to_backups(deleter)  # a moment later it is not searched again
    assert steps == []


def test_an_expiry_of_named_hosts_or_backups_is_not_bound_by_the_limits_that_count_all(
    context: ExpiryContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    context.config = Config(Path("/etc/x"), "main", PoolSettings(context.pool.path, Path("/state"), ZoneInfo("UTC")))
    forced: list[Forced] = []

    def make_plan(_facts: object, _zone: object, _now: object, words: Forced, *, clock_waits: bool) -> Plan:
        forced.append(words)
        return Plan((), {}, None, 0)

    context.pool.hosts.mkdir(parents=True)
    monkeypatch.setattr("backupd.expire.expiry_runner.make_plan", make_plan)
    for scope in (ExpiryScope(), ExpiryScope(frozenset({"web1"})), ExpiryScope(asked=frozenset({("web1", "a")}))):
        dry_run_plan(context, Forced(), scope)
    assert forced == [Forced(), Forced(pool=True), Forced(pool=True, every_host=True)]


def test_the_time_left_counts_what_waits_and_what_is_still_to_be_deleted(
    runner: ExpiryRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner.context.summary.planned = 30
    runner.context.summary.deleted = 12
    runner.queue._ids = {1, 2}
    monkeypatch.setattr(runner.queue, "rate", lambda: None)
    assert runner._progress().left is None
    monkeypatch.setattr(runner.queue, "rate", lambda: 4.0)
    assert runner._progress().left == 5.0
    runner.context.summary.deleted = 40  # more than planned never shortens it
    assert runner._progress().left == 0.5
    runner.context.summary.deleted = 12
    runner.deleter = Deleter(runner.context, runner.queue, Plan((), {}, None, 0), None)
    runner.deleter._gone = [("web1", name) for name in "abcdefgh"]
    assert (runner._progress().deleted, runner._progress().left) == (20, 3.0)
