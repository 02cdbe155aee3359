"""An expiry with a broken configuration, a catalogue in use, a full pool, and foreign files in its folders."""

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from backupd.expire import expiry_runner as module
from backupd.expire import queue as queue_module
from backupd.expire.expiry_context import ExpiryContext
from backupd.expire.expiry_runner import EVERYTHING, ExpiryRunner, ExpiryScope, dry_run_plan
from backupd.expire.host_backups import read_host_from_pool, read_hosts
from backupd.expire.mark import _expired, empty_gone, gone_folder, remove_hosts
from backupd.expire.mount_option import MountOption
from backupd.expire.queue import CleanerQueue
from backupd.expire.trust import read_clocks
from backupd.repo.notes_json import Notes, write_notes
from backupd.repo.reconcile import ReconcileResult
from btrkeep.catalogue import Backup, Catalogue, CatalogueBusy
from btrkeep.config import Config
from btrkeep.config.settings import PoolSettings
from btrkeep.decisions.expiry_plan import ExpiryStep, HostPlan, Plan
from btrkeep.decisions.safety_limits import ClockAhead, ClockBehind, ClockPast, ClockVerdict, Forced
from btrkeep.errors import ConfigError
from btrkeep.pool.marker import Pool
from btrkeep.pool.orphans import Drop
from btrkeep.process.progress import ProgressSinks

NOON = datetime(2026, 3, 20, 12, tzinfo=UTC)
BEHIND = ClockBehind(NOON, NOON + timedelta(days=3))
AHEAD = ClockAhead(timedelta(days=9), NOON, timedelta(hours=1))


@pytest.fixture
def context(tmp_path: Path) -> Iterator[ExpiryContext]:
    pool = Pool(tmp_path / "pool", "main", "00000000-0000-0000-0000-000000000000", rehearsal=False)
    pool.host_lock("web1").parent.mkdir(parents=True)
    pool.hosts.mkdir(parents=True, exist_ok=True)
    config = Config(Path("/etc/x"), "main", PoolSettings(pool.path, Path("/state"), ZoneInfo("UTC")))
    with Catalogue.open(tmp_path / "state") as catalogue:
        yield ExpiryContext(config, pool, catalogue, NOON, ProgressSinks(lambda _: None))


@pytest.fixture
def runner(context: ExpiryContext) -> ExpiryRunner:
    return ExpiryRunner(context, Forced(), None, wait=False)


def test_with_a_file_of_the_configuration_that_cannot_be_read_nothing_is_deleted(context: ExpiryContext) -> None:
    """It may contain the retention of the host whose backups would be deleted."""
    context.config = replace(context.config, unread=("/etc/btrkeep/hosts.d/web1.toml: permission denied",))
    with pytest.raises(ConfigError, match=r"web1\.toml") as refused:
        dry_run_plan(context, Forced(), EVERYTHING)
    assert "nothing is deleted" in (refused.value.hint or "")


@pytest.mark.parametrize("problem", ["raised", "reported and not writable"])
def test_with_a_catalogue_that_others_use_an_expiry_reads_the_pool_and_not_old_rows(
    runner: ExpiryRunner, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    own, asked = runner.context.catalogue, list[Catalogue]()

    def reconcile(_pool: Pool, catalogue: Catalogue, _since: str) -> ReconcileResult:
        asked.append(catalogue)
        if catalogue is own and problem == "raised":
            raise CatalogueBusy("the catalogue is busy", "wait")
        return ReconcileResult(Counter(), [], ["web1: x"]) if catalogue is own else ReconcileResult()

    def busy(_id: str) -> None:
        raise CatalogueBusy("the catalogue is busy", "wait")

    monkeypatch.setattr(module, "reconcile", reconcile)
    monkeypatch.setattr(own, "set_pool_id", busy)
    with ExitStack() as held:
        runner._reconcile(held)
        assert runner.context.catalogue is not own
        assert asked == [own, runner.context.catalogue]
        assert runner.context.rows.problem is not None  # it is reported once, and no longer waited for
        runner._reconcile(held)
        assert len(asked) == 3
    assert runner.context.catalogue is own


@pytest.mark.parametrize(
    ("verdict", "by_name", "steps", "stop"),
    [
        (ClockVerdict(), False, ["clock", "clocks stored", "finish", "reconcile", "carry out"], None),
        (ClockVerdict(stop=BEHIND), False, ["clock", "clocks stored"], BEHIND),
        (ClockVerdict(wait=AHEAD), False, ["clock", "finish", "reconcile", "carry out", "clocks stored"], None),
        (ClockVerdict(stop=BEHIND), True, ["finish", "reconcile", "carry out"], None),
    ],
)
def test_nothing_is_deleted_by_a_clock_that_went_back_except_what_an_administrator_named(
    runner: ExpiryRunner,
    monkeypatch: pytest.MonkeyPatch,
    verdict: ClockVerdict,
    by_name: bool,
    steps: list[str],
    stop: ClockBehind | None,
) -> None:
    """A clock that is ahead is stored last, so that grace periods do not wait for a run that was killed."""
    done: list[str] = []

    def noted(step: str, answer: object = None) -> Callable[..., object]:
        def note(*_: object, **__: object) -> object:
            done.append(step)
            return answer

        return note

    monkeypatch.setattr(runner, "_keep_clocks", noted("clocks stored"))
    monkeypatch.setattr(runner, "_finish_killed", noted("finish", []))
    monkeypatch.setattr(runner, "_reconcile", noted("reconcile"))
    monkeypatch.setattr(runner, "_carry_out", noted("carry out"))
    past = ClockPast(read_clocks(NOON))
    monkeypatch.setattr(module, "judge_clock", noted("clock", (verdict, past)))
    runner.scope = ExpiryScope(asked=frozenset({("web1", "a")})) if by_name else EVERYTHING
    with ExitStack() as held:
        runner._steps(held)
    assert (done, runner.context.summary.stop) == (steps, stop)
    assert runner.context.clock_waits == (verdict.wait is not None)


@pytest.mark.parametrize(("number", "is_fatal"), [(errno.ENOSPC, False), (errno.EDQUOT, False), (errno.EIO, True)])
def test_notes_for_which_a_full_pool_has_no_room_end_no_deletions(runner: ExpiryRunner, number: int, is_fatal: bool) -> None:
    """Only deletions free space in a full pool. Any other error ends the expiry."""

    def write() -> None:
        raise OSError(number, os.strerror(number))

    if is_fatal:
        with pytest.raises(OSError, match="Input/output"):
            runner._as_room_allows(write)
    else:
        runner._as_room_allows(write)
        assert len(runner.context.summary.problems) == 1


def test_a_queue_from_which_nothing_is_dropped_ends_the_deletions_and_is_reported(
    runner: ExpiryRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each night deletes more backups that still use their space, without a report."""
    waiting = list(range(runner.queue.most))
    monkeypatch.setattr(queue_module, "orphan_items", lambda _path: waiting)
    monkeypatch.setattr(queue_module, "dead_roots", lambda _path: [SimpleNamespace(drop=None) for _ in waiting])
    monkeypatch.setattr(MountOption, "switch", lambda _self: None)
    monkeypatch.setattr(module, "written_bytes", lambda _path: 0)
    runner.queue.patience = 0.0
    runner.context.pool.locks.mkdir(parents=True, exist_ok=True)
    plan = Plan((HostPlan("web1", total=9, delete=(ExpiryStep("a", ()), ExpiryStep("b", ()))),), {}, None, 9)
    runner._delete(plan)
    assert runner.context.summary.rest == 2
    assert runner.deleter is not None
    assert runner.deleter.deleted == {}
    (problem,) = runner.context.summary.problems
    assert "max_orphans" in problem


def test_a_large_subvolume_that_is_dropped_for_an_hour_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of waiting subvolumes does not change, but the kernel records its progress."""
    clock, drops = [1000.0], [Drop(5, (1, 1, 0), 0)]
    monkeypatch.setattr(queue_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(queue_module, "dead_roots", lambda _path: [SimpleNamespace(drop=drop) for drop in drops])
    queue = CleanerQueue(Path("/pool"), 5, patience=300)
    for key in range(2, 12):
        clock[0] += 301
        drops[:] = [Drop(5, (key, 1, 0), 0)]
        assert not queue._gives_nothing()
    clock[0] += 299
    assert not queue._gives_nothing()
    clock[0] += 2
    assert queue._gives_nothing()


def test_a_request_of_an_administrator_whose_mark_has_a_wrong_time_stays_his() -> None:
    before = {"at": "2030-01-01T00:00:00Z", "why": "moved", "by": "eve", "asked": {"last": True}}
    assert _expired(before, ExpiryStep("a", ()), NOON) == {**before, "at": "2026-03-20T12:00:00Z"}
    assert _expired({"at": "x", "why": "no rule"}, ExpiryStep("a", ()), NOON) == {
        "at": "2026-03-20T12:00:00Z",
        "why": "",
        "rules": [],
    }


# What cannot be read


def test_a_host_that_cannot_be_read_is_left_out_and_the_others_are_planned(
    context: ExpiryContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    for host in ("web1", "web2", "web3"):
        context.pool.host(host).mkdir()
    (context.pool.host("web1") / "notes.json").write_text("{")
    scandir = os.scandir

    def unreadable(folder: Any = ".") -> Any:
        if folder == context.pool.host("web2"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", unreadable)
    by_name = {host.host: host.problem for host in read_hosts(context.pool, context.catalogue, context.config)}
    assert {host: problem is not None for host, problem in by_name.items()} == {"web1": True, "web2": True, "web3": False}
    assert "Input/output error" in getattr(by_name["web2"], "error", "")


def test_a_folder_of_a_host_that_was_replaced_by_a_symlink_is_not_read(context: ExpiryContext, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    context.pool.host("web1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotADirectoryError):
        read_host_from_pool(context.pool, context.config, "web1", {})


# Folders of forgotten hosts


def test_what_others_have_put_into_the_folder_of_a_deleted_host_stays(context: ExpiryContext) -> None:
    gone = gone_folder(context.pool)
    for name in ("web1.0", "web2.0", "web3.0"):
        (gone / name).mkdir(parents=True)
        (gone / name / "notes.json").touch()
    (gone / "web2.0" / "precious").touch()
    (gone / "web3.0" / "latest").mkdir()  # only as a symlink it is ours
    (gone / "a file").touch()
    (gone / "a link").symlink_to(context.pool.hosts)
    empty_gone(context.pool)
    assert sorted(path.name for path in gone.iterdir()) == ["a file", "a link", "web2.0", "web3.0"]
    assert sorted(path.name for path in (gone / "web2.0").iterdir()) == ["notes.json", "precious"]


def test_a_forgotten_host_with_a_wrong_configuration_or_after_a_signal_stays(
    context: ExpiryContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    for host in ("web1", "web2", "web3"):
        context.pool.host(host).mkdir()
        write_notes(context.pool.host(host), Notes(forgotten={"at": "2020-03-20T12:00:00Z"}))
    monkeypatch.setattr(type(context.config), "excluded", {"web1": object()}, raising=False)
    monkeypatch.setattr(queue_module, "commit", lambda _path: None)
    monkeypatch.setattr(queue_module, "orphan_items", lambda _path: [])
    queue = CleanerQueue(context.pool.path, 5)
    remove_hosts(context, queue, ["web1", "web2"])
    assert sorted(path.name for path in context.pool.hosts.iterdir()) == ["web1", "web3"]
    context.cancellation.handle_signal(15)
    remove_hosts(context, queue, ["web3"])
    assert sorted(path.name for path in context.pool.hosts.iterdir()) == ["web1", "web3"]


# What a killed expiry left


def test_rows_of_deletions_that_a_killed_expiry_made_go_once_these_are_durable(
    runner: ExpiryRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue, left = runner.context.catalogue, list[str]()
    (runner.context.pool.host("web1") / "there").mkdir(parents=True)
    for name, state in (("there", "deleting"), ("deleted", "deleting"), ("moved away", "complete")):
        catalogue.put_backup(Backup("web1", name, "x", state, NOON, NOON, 1.0, 1, 1, 1, None))
    monkeypatch.setattr(module, "written_bytes", lambda _path: 0)
    killed = catalogue.start_expiry(NOON, 1, "another start", hosts=None)
    runner._begin_row()
    monkeypatch.setattr(runner.queue, "commit", lambda: left.extend(row.name or "" for row in catalogue.states()))
    assert runner._finish_killed() == ["web1"]
    assert sorted(left) == ["deleted", "moved away", "there"]  # the row is deleted after the commit
    assert sorted(row.name or "" for row in catalogue.states()) == ["moved away", "there"]
    assert [row.id for row in catalogue.unfinished_expiries()] == [runner.row]
    assert killed != runner.row


def test_the_row_of_an_expiry_is_written_once_a_second(runner: ExpiryRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    written, clock = list[float](), [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(runner, "_update_row", lambda _row, **_fields: written.append(clock[0]))
    monkeypatch.setattr(module, "written_bytes", lambda _path: 0)
    for _ in range(12):
        runner._tick()
        clock[0] += 0.25
    assert written == [1000.0, 1001.0, 1002.0]
