"""Actions of users are recorded with their login names: in notes.json, in the pool's record, and in `backupd log`."""

import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backupd.repo import actions_log
from backupd.repo.actions_log import ACTIONS, LARGEST, LONGEST, UserAction, read_actions, record_action
from backupd.repo.notes_json import Notes, text_of
from btrkeep.pool.marker import Pool
from tests.beds.history import every, make_histories, moment, notes_of
from tests.beds.nights import Nights
from tests.beds.watch import is_locked, wait_for

pytestmark = [pytest.mark.btrfs]
NOW = datetime(2026, 11, 20, 3, tzinfo=UTC)
ALICE = {"SUDO_USER": "alice"}


@pytest.fixture(scope="module")
def pool(module_btrfs: Path) -> Nights:
    nights = Nights(module_btrfs)
    make_histories(nights, ["host000", "host001", "host002"], every(1, 3, moment("2026-11-20 03:00")), {2: "suspect"})
    return nights


@pytest.fixture
def small(tmp_path: Path) -> Pool:
    (tmp_path / ".btrkeep").mkdir()
    return Pool(tmp_path, "id", "filesystem", rehearsal=False)


def actions(pool: Nights, *words: str) -> list[dict[str, Any]]:
    recorded: list[dict[str, Any]] = json.loads(pool.backupd("log", "--actions", "--json", *words).stdout)
    return recorded


def test_a_hold_names_its_user_and_leaves_a_trace_after_its_release(pool: Nights) -> None:
    first, *_ = pool.names("host000")
    pool.backupd("hold", "host000", first, "--why", "the audit", env=ALICE)
    assert notes_of(pool, "host000")["backups"][first]["hold"]["by"] == "alice"
    pool.backupd("release", "host000", first, env={"SUDO_USER": "bob"})
    notes = notes_of(pool, "host000")
    assert notes["backups"] == {}
    trace = [(action["what"], action["by"], action["backup"], action["why"]) for action in notes["actions"]]
    assert trace == [("hold", "alice", first, "the audit"), ("release", "bob", first, "the audit")]
    assert actions(pool, "host000") == notes["actions"][::-1]
    lines = pool.backupd("log", "host000").stdout
    assert f"alice: hold host000 {first}: the audit\n" in lines
    assert f"bob: release host000 {first}: the audit\n" in lines
    (pool.pool / ".btrkeep" / ACTIONS).unlink()  # the notes have it too
    assert actions(pool, "host000") == notes["actions"][::-1]


def test_each_command_that_changes_backups_records_its_user(pool: Nights, tmp_path: Path) -> None:
    first, second, suspect = pool.names("host001")
    pool.backupd("accept", "host001", suspect, env=ALICE)
    pool.backupd("delete", f"host001@{first}", "--why", "private", env=ALICE)
    pool.backupd("unexpire", "host001", first, env=ALICE)
    pool.backupd("restore", f"host001@{second}", "/", "--to", tmp_path / "restored", env=ALICE)
    pool.backupd("restore", f"host001@{second}", "/", "--to", tmp_path / "never", "--dry-run", env=ALICE)
    pool.backupd("expire", "host001", "--limit", "0", env=ALICE)
    done = [
        (action["what"], action["backup"])
        for action in actions(pool)
        if action["by"] == "alice" and action["host"] in ("host001", None)
    ]
    wanted = [("accept", suspect), ("delete", first), ("unexpire", first), ("expire", None)]
    wanted += [("restore", second), ("restored", second)]
    assert sorted(done, key=str) == sorted(wanted, key=str)
    (restored,) = (action for action in actions(pool, "host001") if action["what"] == "restore")
    assert restored["why"] == f"/ to {tmp_path / 'restored'}"
    assert notes_of(pool, "host001")["backups"][suspect]["accepted"]["by"] == "alice"


def test_a_forgotten_and_a_renamed_host_names_its_user(pool: Nights) -> None:
    pool.backupd("rename", "host002", "other", "--yes", env=ALICE)
    pool.backupd("forget", "other", "--yes", env=ALICE)
    assert notes_of(pool, "other")["forgotten"]["by"] == "alice"
    pool.backupd("forget", "other", "--undo", env=ALICE)
    assert [action["what"] for action in notes_of(pool, "other")["actions"]] == ["rename", "forget", "forget --undo"]
    assert {action["by"] for action in notes_of(pool, "other")["actions"]} == {"alice"}


def test_without_sudo_it_is_root(pool: Nights) -> None:
    pool.backupd("hold", "host000", "latest")
    assert notes_of(pool, "host000")["actions"][-1]["by"] == "root"


def test_a_line_that_was_cut_off_hides_no_other(small: Pool) -> None:
    record_action(small, UserAction(NOW, "hold", "alice", "web1", "x"))
    with (small.path / ".btrkeep" / ACTIONS).open("ab") as file:
        file.write(b'{"at": "2026-')
    record_action(small, UserAction(NOW + timedelta(hours=1), "release", "bob", "web1", "x"))
    assert [action.by for action in read_actions(small)] == ["bob", "alice"]


def test_what_cannot_be_recorded_is_reported(small: Pool) -> None:
    (small.path / ".btrkeep").rmdir()
    assert "No such file" in record_action(small, UserAction(NOW, "hold", "alice"))


def _record_many(path: Path, who: str, count: int) -> None:
    pool = Pool(path, "id", "filesystem", rehearsal=False)
    for number in range(count):
        assert not record_action(pool, UserAction(NOW + timedelta(seconds=number), "hold", who, "web1", why="x" * 1000))


def test_the_record_stays_small_and_loses_nothing_that_is_new(small: Pool) -> None:
    each = 3_000
    with ThreadPoolExecutor(3) as threads:  # each opens the file for itself, so the lock is between them as between processes
        for done in [threads.submit(_record_many, small.path, who, each) for who in "abc"]:
            done.result()
    files = sorted((small.path / ".btrkeep").iterdir())
    assert [file.name for file in files] == [ACTIONS, f"{ACTIONS}.1"]
    assert all(file.stat().st_size < LARGEST + 2_000 for file in files)
    kept = list(read_actions(small))
    assert len(kept) > LARGEST / (LONGEST + 200)
    for who in "abc":  # the newest of each, without a gap
        seconds = [(user_action.at - NOW).total_seconds() for user_action in kept if user_action.by == who]
        assert seconds == list(range(each - 1, each - 1 - len(seconds), -1))


def test_a_user_who_does_very_much_pushes_out_nothing_of_others(small: Pool) -> None:
    record_action(small, UserAction(NOW, "delete", "mallory", "web1", "x"))
    record_action(small, UserAction(NOW, "forget", "bob", "web2"))
    _record_many(small.path, "mallory", 4 * LARGEST // LONGEST)
    kept = list(read_actions(small))
    assert [(action.what, action.host) for action in kept if action.by == "bob"] == [("forget", "web2")]
    assert "delete" not in {action.what for action in kept}, "the file was shortened at all"
    assert sum(file.stat().st_size for file in (small.path / ".btrkeep").iterdir()) < 2 * LARGEST + 2_000


def test_who_holds_the_record_stops_no_command_and_is_named(small: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions_log, "PATIENCE", 1.0)
    record_action(small, UserAction(NOW, "hold", "alice", "web1", "x"))
    path = small.path / ".btrkeep" / ACTIONS
    with subprocess.Popen(["flock", "--no-fork", path, "sleep", "60"]) as holder:
        wait_for(lambda: is_locked(path))
        begun = time.monotonic()
        for _ in range(100):
            failure = record_action(small, UserAction(NOW, "release", "alice", "web1", "x"))
            assert f"the lock is held by another process ({holder.pid})" in failure
        assert time.monotonic() - begun < 60  # only the first one waits
        holder.kill()
    assert not record_action(small, UserAction(NOW, "accept", "alice", "web1", "x"))
    assert [action.what for action in read_actions(small)] == ["accept", "hold"]


def test_the_notes_stay_small() -> None:
    notes = Notes()
    for number in range(500):
        notes = notes.with_action(UserAction(NOW + timedelta(seconds=number), "hold", "alice", "web1", "x", "y" * 10_000))
    assert len(notes.actions) == 100
    assert len(text_of(notes)) < 100_000
    assert notes.actions[-1]["at"] == "2026-11-20T03:08:19Z"
