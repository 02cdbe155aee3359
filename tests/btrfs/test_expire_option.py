"""The mount option during the run: recorded first, switched, restored in every case, and not changed if it is the administrator's
choice.
"""

import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.beds import work
from tests.beds.cli import BACKUPD, TOP
from tests.beds.expiries import LAST, LATER, NOW, Expiries, at
from tests.beds.faults import failing_disk
from tests.beds.history import every, make_history
from tests.beds.watch import ended, held_at, killed, rows, wait_for

FLAGS = "nosuid,nodev,noatime,compress=zstd:3,commit=45,nossd"


@pytest.fixture
def pool(make_btrfs: Callable[..., Path]) -> Expiries:
    pool = Expiries(make_btrfs(size="512M", options=FLAGS))
    pool.settings("expiry", mount_option="ssd")
    pool.host("web", pool.source)
    make_history(pool, "web", every(1, 13, LAST))
    pool.expire(NOW)
    return pool


def options(pool: Expiries) -> set[str]:
    """Returns the options in /proc/self/mountinfo: of the mount, and of the filesystem."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[4] == str(pool.top):
            return {*fields[5].split(","), *fields[fields.index("-") + 3].split(",")}
    raise AssertionError("it is not mounted")


def record(pool: Expiries) -> Path:
    return pool.pool / ".btrkeep" / "mount-option.json"


def test_it_is_switched_while_something_is_deleted_and_nothing_else_changes(pool: Expiries) -> None:
    before = options(pool)
    assert {"nosuid", "nodev", "noatime", "compress=zstd:3", "commit=45", "nossd"} <= before
    with held_at(pool, "before", "subvolume deleted", "expire", "--json", *at(LATER)) as process:
        assert options(pool) == before - {"nossd"} | {"ssd"}
        assert json.loads(record(pool).read_text())["was"] == "nossd"
    status, out, _ = ended(process)
    assert status == 0
    assert json.loads(out)["mount_option"] == "ssd"
    assert options(pool) == before
    assert not record(pool).exists()
    assert rows(pool, "select mount_option from expiry order by id") == [(None,), ("ssd",)]


def test_it_is_not_touched_when_nothing_is_deleted_nor_in_a_rehearsal_nor_without_the_key(pool: Expiries) -> None:
    before = options(pool)
    assert pool.expire(NOW)["mount_option"] is None
    assert pool.expire(LATER, "--dry-run")["delete"]
    pool.settings("expiry", mount_option="none")
    with held_at(pool, "before", "subvolume deleted", "expire", "--json", *at(LATER)) as process:
        assert options(pool) == before
        assert not record(pool).exists()
    ended(process)


def test_the_cleaner_is_waited_for_before_it_is_put_back(pool: Expiries) -> None:
    assert pool.expire(LATER)["still_waiting"] == 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_a_signal_puts_it_back(pool: Expiries, number: signal.Signals, status: int) -> None:
    before = options(pool)
    with held_at(pool, "before", "subvolume deleted", "expire", "--json", *at(LATER)) as process:
        process.send_signal(number)
    assert ended(process)[0] == status
    assert options(pool) == before
    assert not record(pool).exists()


def test_an_error_puts_it_back(pool: Expiries) -> None:
    """The catalogue fails in the middle."""
    before = options(pool)
    with held_at(pool, "before", "subvolume deleted", "expire", *at(LATER)) as process:
        (pool.state / "catalogue.sqlite").write_bytes(b"no catalogue at all" * 1000)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert options(pool) == before
    assert not record(pool).exists()


STEPS = (
    ("before", "mount-option.json replaced"),
    ("after", "mount-option.json replaced"),
    ("after", "mount option switched"),
    ("after", "subvolume deleted"),
)


@pytest.mark.parametrize(("when", "step"), STEPS)
def test_after_a_kill_the_next_start_puts_it_back(pool: Expiries, when: str, step: str) -> None:
    before = options(pool)
    killed(pool, when, step, "expire", *at(LATER))
    pool.expire(NOW, status=1)  # a clock that went back: nothing else is done
    assert options(pool) == before
    assert not record(pool).exists()
    pool.expire(LATER)
    assert options(pool) == before


@pytest.mark.parametrize(("when", "step"), STEPS)
def test_after_a_kill_a_service_puts_it_back_without_more(pool: Expiries, when: str, step: str) -> None:
    before = options(pool)
    killed(pool, when, step, "expire", *at(LATER))
    names = pool.left("web")
    for _ in range(2):
        assert pool.backupd("expire", "--restore-mount-option").returncode == 0
        assert options(pool) == before
        assert not record(pool).exists()
    assert pool.left("web") == names


@pytest.mark.parametrize("count", [1, 2])
def test_a_kill_while_it_is_put_back_is_made_good(pool: Expiries, count: int) -> None:
    before = options(pool)
    killed(pool, "after", "mount option switched", "expire", *at(LATER), count=count)
    pool.backupd("expire", "--restore-mount-option")
    assert options(pool) == before


def test_while_an_expiry_is_at_work_a_restore_leaves_it_alone(pool: Expiries) -> None:
    with held_at(pool, "before", "subvolume deleted", "expire", *at(LATER)) as process:
        done = pool.backupd("expire", "--restore-mount-option")
        assert "restores the mount option" in done.stdout
        assert "ssd" in options(pool)
    ended(process)
    assert "nossd" in options(pool)


def test_a_mount_option_that_was_changed_during_the_expiry_is_kept_and_reported(pool: Expiries) -> None:
    with held_at(pool, "before", "subvolume deleted", "expire", *at(LATER)) as process:
        work("mount", "-o", "remount,ssd_spread", pool.top)
    status, out, _ = ended(process)
    assert status == 0
    assert "changed by another program, so it is kept" in out
    assert "ssd_spread" in options(pool)
    assert not record(pool).exists()


def test_after_a_reboot_the_option_is_the_mounts_own_affair(pool: Expiries) -> None:
    killed(pool, "after", "mount option switched", "expire", *at(LATER))
    fields = json.loads(record(pool).read_text())
    record(pool).write_text(json.dumps({**fields, "boot": "11111111-2222-3333-4444-555555555555"}))
    pool.backupd("expire", "--restore-mount-option")
    assert "ssd" in options(pool)
    assert not record(pool).exists()


def test_a_record_that_cannot_be_read_is_said_and_nothing_is_switched_by_it(pool: Expiries) -> None:
    before = options(pool)
    record(pool).write_text("{")
    done = pool.backupd("expire", "--restore-mount-option", check=False)
    assert done.returncode == 1
    assert "mount-option.json" in done.stderr
    assert options(pool) == before


def test_during_a_pause_for_backups_what_was_there_is_back(pool: Expiries) -> None:
    before = options(pool)
    pool.settings("expiry", yield_to_backups=True, max_orphans=2)
    sleeper = subprocess.Popen(["sleep", "60"])
    with held_at(pool, "before", "subvolume deleted", "expire", "--json", *at(LATER)) as process:
        assert "nossd" not in options(pool)
        started = Path(f"/proc/{sleeper.pid}/stat").read_text().rpartition(")")[2].split()[19]
        columns = "host, started, attempts, pid, pid_started, night"
        with closing(sqlite3.connect(pool.state / "catalogue.sqlite", timeout=30)) as connection, connection:
            values = ("web", "2026-03-20T22:00:00.000000Z", 0, sleeper.pid, started, 0)
            connection.execute(f"insert into run ({columns}) values (?, ?, ?, ?, ?, ?)", values)
        time.sleep(1.1)  # it checks for backups once a second
    wait_for(lambda: rows(pool, "select paused from expiry where finished is null") == [("backups are running",)])
    assert options(pool) == before
    sleeper.kill()
    sleeper.wait()
    status, out, _ = ended(process)
    assert (status, json.loads(out)["deleted"]) == (0, 10)
    assert options(pool) == before


def test_a_command_without_the_pool_says_so(pool: Expiries) -> None:
    pool.settings("pool", path=str(pool.top / "nowhere"))
    done = subprocess.run(
        [*BACKUPD, "--config", pool.config, "expire", "--restore-mount-option"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TOP)},
    )
    assert done.returncode == 4


def test_a_pool_that_becomes_read_only_meanwhile_has_its_option_back_and_the_next_expiry_goes_on() -> None:
    with failing_disk(alone=True) as disk:
        pool = Expiries(disk.point)
        pool.settings("expiry", mount_option="ssd")
        pool.host("web", pool.source)
        make_history(pool, "web", every(1, 13, LAST))
        pool.expire(NOW)
        with held_at(pool, "before", "subvolume deleted", "expire", "--json", *at(LATER)) as process:
            disk.fail()
            (disk.point / "made").touch()
            work("btrfs", "filesystem", "sync", disk.point, check=False)
            assert "ro" in options(pool)
        status, _, output = ended(process)
        assert (status, "Traceback" in output, "read-only" in output.lower()) == (4, False, True), output
        assert "nossd" in options(pool) or "ssd" not in options(pool), output
        assert "could not be restored" not in output
        disk.flag.unlink()
        disk.read_again()
        assert pool.expire(LATER)["still_waiting"] == 0
        assert not record(pool).exists()
