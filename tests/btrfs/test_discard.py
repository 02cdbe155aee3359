"""`discard`: what a stopped run left goes, and nothing else. One pool for all; each test has a host of its own."""

import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.beds import btrfs, work
from tests.beds.expiries import fingerprint
from tests.beds.history import every, make_histories, moment
from tests.beds.nights import Nights
from tests.beds.watch import disagreements, does_at, killed, rows, subvolumes

pytestmark = [pytest.mark.btrfs]
HOSTS = [f"host{number}" for number in range(11)]
SIZE = 1 << 20
_unused = iter(HOSTS)


@pytest.fixture(scope="module")
def pool(module_btrfs: Path) -> Iterator[Nights]:
    nights = Nights(module_btrfs)
    make_histories(nights, HOSTS, every(1, 1, moment("2026-11-20 03:00")), rebuild=False)
    for host in HOSTS:
        leave(nights, host)
    nights.backupd("rebuild")
    yield nights
    for path in btrfs.subvolumes_below(module_btrfs, module_btrfs.parent):
        work("btrfs", "property", "set", "-f", "-ts", path, "ro", "false")


def leave(nights: Nights, host: str) -> None:
    """What a run leaves that was stopped: a writable snapshot of its base with a record of its own, and SIZE bytes of new data."""
    path, (base,) = nights.backup(host, ".working"), nights.names(host)
    work("btrfs", "subvolume", "snapshot", nights.backup(host, base), path)
    shown = work("btrfs", "subvolume", "show", path).stdout
    uuid = next(line.split()[1] for line in shown.splitlines() if line.strip().startswith("UUID:"))
    fields: dict[str, Any] = {**nights.record(host, base), "state": "partial", "name": None, "uuid": uuid, "base": base}
    fields |= {"started": "2026-11-21T03:00:00Z", "finished": None}
    (path / "backup.json").write_text(json.dumps(fields))
    work("dd", "if=/dev/urandom", f"of={path}/data/new", "bs=1M", "count=1", "conv=fsync")


@pytest.fixture
def host(pool: Nights) -> str:
    return next(_unused)


def has_working(pool: Nights, host: str) -> bool:
    return f"hosts/{host}/.working" in subvolumes(pool)


def refused(pool: Nights, *words: str, status: int = 1) -> str:
    done = pool.backupd("discard", *words, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stdout + done.stderr
    return done.stderr


def test_what_is_unfinished_goes_for_good_and_the_final_backup_stays(pool: Nights, host: str) -> None:
    answer = json.loads(pool.backupd("discard", host, "--yes", "--json").stdout)
    assert (answer["host"], answer["began"], answer["dry_run"]) == (host, "2026-11-21T03:00:00Z", False)
    assert SIZE <= answer["bytes"] < 2 * SIZE
    assert not has_working(pool, host)
    assert rows(pool, f"select name != '' from backup where host = '{host}'") == [(1,)]
    assert len(pool.names(host)) == 1
    assert f"{host} has no unfinished backup" in refused(pool, host, "--yes")


def test_a_rehearsal_says_what_would_be_lost_and_changes_nothing(pool: Nights, host: str) -> None:
    before = fingerprint(pool.pool / "hosts" / host)
    output = pool.backupd("discard", host, "--dry-run").stdout
    assert f"{host} has an unfinished backup of 1.00 MiB, started 2026-11-21T03:00:00Z (" in output
    assert fingerprint(pool.pool / "hosts" / host) == before


def test_without_a_terminal_it_has_to_be_said_that_one_is_sure(pool: Nights, host: str) -> None:
    assert "add --yes if you are sure" in refused(pool, host, status=2)
    assert has_working(pool, host)


def test_while_a_run_works_on_the_host_it_is_refused(pool: Nights, host: str) -> None:
    with (pool.pool / ".btrkeep" / "locks" / f"host-{host}").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "the lock is held" in refused(pool, host, "--yes", status=3)
        assert "the lock is held" in refused(pool, host, "--dry-run", status=3)
    assert has_working(pool, host)


def test_a_run_that_was_at_it_while_the_question_waited_keeps_it(pool: Nights, host: str) -> None:
    record = pool.backup(host, ".working") / "backup.json"
    later = f"sed -i s/2026-11-21T03:00:00Z/2026-11-21T09:00:00Z/ {record}"
    done = does_at(pool, later, "before", "host lock taken", "discard", host, "--yes", count=2)
    assert (done.returncode, "has just changed" in done.stderr) == (1, True), done.stderr
    assert has_working(pool, host)


def test_what_waited_for_a_commit_is_no_change(pool: Nights, host: str) -> None:
    (pool.backup(host, ".working") / "data" / "late").write_text("not committed")
    done = does_at(pool, f"btrfs filesystem sync {pool.pool}", "before", "host lock taken", "discard", host, "--yes", count=2)
    assert done.returncode == 0, done.stderr
    assert not has_working(pool, host)


@pytest.mark.parametrize("subject", ["finished", "foreign", "inside"])
def test_what_is_finished_or_not_ours_is_left_alone(pool: Nights, host: str, subject: str) -> None:
    path = pool.backup(host, ".working")
    if subject == "finished":
        fields = {**json.loads((path / "backup.json").read_text()), "state": "complete", "name": "2026-11-21T030000Z"}
        (path / "backup.json").write_text(json.dumps(fields))
        work("btrfs", "property", "set", "-ts", path, "ro", "true")
        output = "is finished, but not renamed yet"
    elif subject == "foreign":
        (path / "mine").write_text("somebody's")
        output = "does not belong to btrkeep"
    else:
        work("btrfs", "subvolume", "create", path / "data" / "mine")
        output = "holds a subvolume that does not belong to btrkeep"
    assert output in refused(pool, host, "--yes")
    assert has_working(pool, host)


def test_a_discard_killed_before_the_row_is_in_the_catalogue_after_the_next_reconciling(pool: Nights, host: str) -> None:
    killed(pool, "after", "subvolume deleted", "discard", host, "--yes")
    assert not has_working(pool, host)
    assert rows(pool, f"select count(*) from backup where host = '{host}'") == [(2,)]
    pool.backupd("expire", host)
    assert rows(pool, f"select count(*) from backup where host = '{host}'") == [(1,)]
    assert [line for line in disagreements(pool) if f"/{host}/" in line] == []
