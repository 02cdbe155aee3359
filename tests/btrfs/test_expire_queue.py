"""The cleaner's queue: never longer than allowed, even if other programs delete; stops, paces, waits."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backupd.expire.queue import CleanerQueue
from btrkeep.process.progress import Cancellation
from tests.beds import work
from tests.beds.cli import BACKUPD, TOP
from tests.beds.expiries import LAST, LATER, NOW, Expiries, at, sampled
from tests.beds.history import every, make_histories
from tests.beds.watch import ended, held_at, killed, rows, subvolumes, wait_for

MOST = 12
HOSTS = [f"h{number}" for number in range(4)]


@pytest.fixture
def pool(make_btrfs: Callable[..., Path]) -> Expiries:
    """160 backups of which 120 are marked and due, on a separate filesystem."""
    pool = Expiries(make_btrfs(size="1G"))
    pool.settings("retention", daily=10)
    for host in HOSTS:
        pool.host(host, pool.source)
    make_histories(pool, HOSTS, every(1, 40, LAST))
    pool.settings("expiry", max_orphans=MOST)
    pool.expire(NOW, "--force", "pool", "--force", "hosts")
    return pool


def deleted_now(point: Path) -> int:
    """Returns the number of deleted subvolumes that btrfs-progs lists now, by its own tree search."""
    return work("btrfs", "subvolume", "list", "-d", point).stdout.count("\n")


@contextmanager
def held_open(pool: Expiries, host: str, count: int) -> Iterator[None]:
    """Holds files of the host's oldest backups open: when these are deleted, the cleaner does not get them."""
    files = [(pool.backup(host, name) / "backup.json").open() for name in pool.left(host)[:count]]
    try:
        yield
    finally:
        for file in files:
            file.close()


def make_others(pool: Expiries, count: int) -> list[Path]:
    paths = [pool.top / f"other{number}" for number in range(count)]
    for path in paths:
        work("btrfs", "-q", "subvolume", "create", path)
    return paths


def test_never_more_wait_than_allowed_and_the_others_count(pool: Expiries) -> None:
    """Five foreign ones wait all the time, because a file in each is open."""
    others = make_others(pool, 5)
    for path in others:
        (path / "file").write_text("x")
    files = [(path / "file").open() for path in others]
    work("btrfs", "-q", "subvolume", "delete", *others)
    assert deleted_now(pool.top) == 5
    with sampled(lambda: deleted_now(pool.top)) as seen:
        done = pool.expire(LATER)
    for file in files:
        file.close()
    assert done["deleted"] == 120
    assert len(seen) > 20
    assert max(seen) <= MOST
    assert max(seen) > 5
    assert done["most_waiting"] <= MOST
    assert pool.consistent() == []


def test_nothing_is_deleted_while_others_fill_the_queue_and_it_goes_on_when_they_are_gone(pool: Expiries) -> None:
    others = make_others(pool, MOST + 3)
    for path in others:
        (path / "file").write_text("x")
    files = [(path / "file").open() for path in others]
    work("btrfs", "-q", "subvolume", "delete", *others)
    process = subprocess.Popen(
        [*BACKUPD, "--config", pool.config, "expire", "--json", *at(LATER)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TOP)},
    )
    lock = pool.pool / ".btrkeep/locks/expire"
    wait_for(lambda: str(process.pid) in lock.read_text())
    time.sleep(1)  # in which it would delete some
    assert process.poll() is None
    assert deleted_now(pool.top) == MOST + 3
    assert [len(pool.left(host)) for host in HOSTS] == [40] * 4
    for file in files:
        file.close()
    status, out, _ = ended(process)
    assert (status, json.loads(out)["deleted"]) == (0, 120)


def test_waiting_for_the_cleaner_ends_at_a_backup_in_use_and_names_the_process(pool: Expiries) -> None:
    names = pool.left("h0")[:3]
    path = pool.backup("h0", names[0]) / "data"
    process = subprocess.Popen(["sleep", "1000"], cwd=path)
    try:
        with (pool.backup("h0", names[1]) / "backup.json").open():
            done = pool.expire(LATER, "--wait", status=1)
    finally:
        process.kill()
        process.wait()
    assert (done["deleted"], done["outcome"]) == (120, "partial")
    (problem,) = done["problems"]
    assert "2 deleted backups cannot be freed" in problem
    assert f"h0 {names[0]} by process {process.pid} (sleep)" in problem
    assert f"h0 {names[1]} by process {os.getpid()}" in problem
    again = pool.expire(LATER, "--wait")  # there is nothing to do, and no wait
    assert (again["deleted"], again["problems"]) == (0, [])


def test_a_queue_that_is_full_of_what_the_cleaner_cannot_take_is_given_up_after_some_patience(shared_btrfs: Path) -> None:
    paths = [shared_btrfs / f"other{number}" for number in range(3)]
    for path in paths:
        work("btrfs", "-q", "subvolume", "create", path)
        (path / "file").write_text("x")
    files = [(path / "file").open() for path in paths]
    try:
        work("btrfs", "-q", "subvolume", "delete", *paths)
        queue = CleanerQueue(shared_btrfs, 3, patience=1.0)
        assert queue.wait_for_room(Cancellation(), lambda: None) == 0
        assert queue.stuck
    finally:
        for file in files:
            file.close()


def test_those_that_the_cleaner_does_not_get_keep_no_other_from_going(pool: Expiries) -> None:
    """Backups with an open file occupy seven of twelve slots: more than the mark at which it adds further deletions."""
    with held_open(pool, "h0", 7):
        with sampled(lambda: deleted_now(pool.top)) as seen:
            done = pool.expire(LATER)
        assert done["deleted"] == 120
        assert max(seen) <= MOST
        assert deleted_now(pool.top) >= 7
        assert done["still_waiting"] >= 7
    work("btrfs", "filesystem", "sync", pool.top)
    wait_for(lambda: deleted_now(pool.top) == 0)


def named_on(device: str) -> set[int]:
    """Returns the subvolumes that still have an entry in a folder, by their numbers, as btrfs-progs reads it from the device
    itself.
    """
    text = work("btrfs", "inspect-internal", "dump-tree", "-t", "root", device).stdout
    return {int(number) for number in re.findall(r"key \((\d+) ROOT_BACKREF ", text)}


@pytest.mark.parametrize("ends", [True, False])
def test_a_row_goes_when_the_deletion_is_on_the_disk_itself(pool: Expiries, ends: bool) -> None:
    """The state after a power cut: at the end, and just before rows are deleted."""
    device = work("findmnt", "-no", "SOURCE", pool.top).stdout.split("[")[0].strip()
    before = set(subvolumes(pool).values())
    if ends:
        pool.expire(LATER)
    else:
        killed(pool, "before", "rows of deleted backups dropped", "expire", *at(LATER))
    on_disk = named_on(device)
    numbers = set(subvolumes(pool).values())
    assert len(before - numbers) == (120 if ends else MOST)
    assert on_disk & before == numbers & before


def test_with_wait_it_stays_until_all_is_dropped(pool: Expiries) -> None:
    done = pool.expire(LATER, "--wait")
    assert done["deleted"] == 120
    assert deleted_now(pool.top) == 0
    assert done["still_waiting"] == 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_a_signal_stops_it_after_the_step_it_is_at_and_all_is_consistent(
    pool: Expiries, number: signal.Signals, status: int
) -> None:
    with held_at(pool, "before", "filesystem committed", "expire", "--json", *at(LATER)) as process:
        process.send_signal(number)
    code, out, _ = ended(process)
    assert code == status
    done = json.loads(out)
    assert 0 < done["deleted"] <= MOST
    assert done["rest"] == 120 - done["deleted"]
    assert sum(len(pool.left(host)) for host in HOSTS) == 160 - done["deleted"]
    assert pool.consistent() == []
    assert rows(pool, "select outcome from expiry order by id desc limit 1") == [("stopped",)]
    assert pool.expire(LATER)["deleted"] == 120 - done["deleted"]


def test_a_signal_in_the_middle_of_deletions_leaves_no_row_that_says_deleting(pool: Expiries) -> None:
    with held_at(pool, "before", "subvolume deleted", "expire", "--json", *at(LATER)) as process:
        process.send_signal(signal.SIGTERM)
    code, out, _ = ended(process)
    assert (code, json.loads(out)["deleted"]) == (143, 1)
    assert pool.consistent() == []


@contextmanager
def running_backup(pool: Expiries) -> Iterator[Path]:
    """Runs a backup until the file is removed."""
    flag = pool.top / "held"
    (pool.source / "big").write_bytes(os.urandom(900_000))
    pool.in_the_middle(300_000, f"touch {flag}; while test -e {flag}; do sleep 0.05; done")
    pool.host("runs", pool.source)
    running = subprocess.Popen(
        [*BACKUPD, "--config", pool.config, "run", "runs", *at(LATER)], env={**os.environ, "PYTHONPATH": str(TOP)}
    )
    wait_for(flag.exists)
    try:
        yield flag
    finally:
        flag.unlink(missing_ok=True)
        running.wait(timeout=60)


@pytest.mark.parametrize("asked", ["configured", "--yield-to-backups"])
def test_it_waits_while_a_backup_runs_if_so_asked(pool: Expiries, asked: str) -> None:
    pool.settings("expiry", yield_to_backups=asked == "configured")
    with running_backup(pool) as flag:
        process = subprocess.Popen(
            [*BACKUPD, "--config", pool.config, "expire", "--json", *([asked] if asked[0] == "-" else []), *at(LATER)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(TOP)},
        )
        wait_for(lambda: rows(pool, "select paused from expiry where finished is null") == [("backups are running",)])
        assert sum(len(pool.left(host)) for host in HOSTS) == 160
        flag.unlink()
    status, out, _ = ended(process)
    assert (status, json.loads(out)["deleted"]) == (0, 120)


def test_it_waits_for_no_backup_while_the_pool_has_less_than_min_free(pool: Expiries) -> None:
    with running_backup(pool):
        pool.settings("pool", min_free="99%")
        assert pool.expire(LATER, "--yield-to-backups")["deleted"] == 120


def test_it_waits_for_backups_only_so_long(pool: Expiries) -> None:
    program = "import backupd.expire.expiry_runner as r; from backupd.cli import main; r.LONGEST_YIELD = 1.5; main()"
    words = ["--config", str(pool.config), "expire", "--yield-to-backups", "--json", *at(LATER)]
    with running_backup(pool):
        done = work(sys.executable, "-P", "-c", program, *words, env={"PYTHONPATH": str(TOP)})
        assert json.loads(done.stdout)["deleted"] == 120


def test_a_pace_deletes_a_few_at_a_time_and_everything_in_the_end(pool: Expiries) -> None:
    pool.settings("expiry", pace="0.01ms")  # no fsync keeps to it, on memory neither
    with sampled(lambda: deleted_now(pool.top)) as seen:
        done = pool.expire(LATER, "--limit", "12")
    assert done["deleted"] == 12
    assert max(seen) <= 4
    pool.settings("expiry", pace="10s")  # all deletions stay within it
    assert pool.expire(LATER)["deleted"] == 108
    assert not (pool.pool / ".btrkeep" / "pace-probe").exists()


def test_a_line_is_said_for_each_batch(pool: Expiries) -> None:
    lines = pool.backupd("expire", *at(LATER)).stdout.splitlines()
    batches = [line for line in lines if " of 120 deleted, " in line]
    assert len(batches) >= 120 / MOST
    assert all(f"of at most {MOST} waiting" in line for line in batches)
    counts = [int(line.split()[0]) for line in batches]
    assert counts == sorted(counts)
    assert counts[-1] == 120


def test_on_a_terminal_it_is_drawn(pool: Expiries) -> None:
    argv = [sys.executable, "-m", "backupd", "--config", str(pool.config), "expire", *at(LATER)]
    done = work("script", "-qec", shlex.join(argv), "/dev/null", env={"TERM": "xterm", "PYTHONPATH": str(TOP)})
    assert "cleaner" in done.stdout
    assert "120 deleted" in done.stdout
