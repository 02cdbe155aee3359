"""A process without rights that holds each lock it can get on the catalogue's files stops no night, no expiry and no alarm."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.beds import TOP, work
from tests.beds.anyone import NOBODY
from tests.beds.expiries import LATER, NOW, Expiries, at
from tests.beds.nights import Nights
from tests.beds.strangers import holding, writing_once_gone
from tests.beds.watch import disagreements


def impatient(nights: Nights, *words: str, bed: tuple[str | Path, ...] = ("impatient.py",)) -> "subprocess.CompletedProcess[str]":
    """Runs `backupd WORDS`, which waits half a second for other writers; requires the report that the catalogue is locked."""
    done = subprocess.run(
        [sys.executable, "-P", TOP / "tests/beds" / bed[0], *bed[1:], "--config", nights.config, *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(TOP)},
        check=False,
    )
    assert "locked by another program" in done.stderr
    assert "Traceback" not in done.stderr
    return done


def mount_options(pool: Path) -> str:
    return work("findmnt", "-no", "OPTIONS", "--target", pool).stdout


def as_installed(nights: Nights) -> None:
    """Lets the dashboard's group enter the state folder."""
    nights.state.parent.chmod(0o755)
    nights.state.mkdir(exist_ok=True)
    os.chown(nights.state, 0, NOBODY)
    nights.state.chmod(0o2750)


@contextmanager
def soon() -> Iterator[None]:
    """Requires that the block, one command, does not wait: a waiting writer of the catalogue fails after 30 s."""
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < 25


@pytest.mark.slow
def test_night_expiry_alarms_and_rebuild_go_on_beside_a_dashboard_that_holds_what_it_can(shared_btrfs: Path) -> None:
    pool = Expiries(shared_btrfs)
    names = pool.history("web", 5)
    as_installed(pool)
    pool.backupd("check", check=False)
    with holding(pool.state, NOBODY) as holder:
        with soon():
            assert pool.expire(NOW)["marked"] == 2
        with soon():
            assert pool.expire(LATER)["deleted"] == 2
        with soon():
            assert pool.run("web")["web"]["outcome"] == "complete"
        with soon():
            assert "catalogue" not in pool.backupd("notify", check=False).stderr
        with soon():
            pool.backupd("rebuild")
        assert not list(pool.state.glob("catalogue.sqlite-*"))
        holder.kill()
        held = set(holder.communicate()[0].split())
        assert {"dashboard.sqlite"} <= held <= {"dashboard.sqlite", "dashboard.sqlite.tmp"}  # its own copy, also while it is made
    assert pool.left("web")[: len(names) - 2] == names[2:]
    assert pool.consistent() == []


@pytest.mark.slow
def test_a_night_goes_on_without_a_catalogue_whose_locks_are_held(nights: Nights) -> None:
    (nights.source / "file").write_text("it")
    for host in ("a", "b"):
        nights.host(host, nights.source)
    nights.run("a")
    with holding(nights.state, 0):
        done = impatient(nights, "run", "--all", "--json")
    assert {result["outcome"] for result in json.loads(done.stdout)} == {"complete"}, done.stderr
    nights.run("b")
    assert disagreements(nights) == []


@pytest.mark.slow
def test_expire_and_delete_go_on_without_a_catalogue_whose_locks_are_held(shared_btrfs: Path) -> None:
    pool = Expiries(shared_btrfs)
    names = pool.history("web", 6)
    held_name, asked = names[1], names[5]
    pool.backupd("hold", f"web@{held_name}", "--why", "court")
    pool.expire(NOW)
    history = pool.pool / ".btrkeep" / "history.jsonl.gz"
    before = history.read_bytes()
    with holding(pool.state, 0):
        done = impatient(pool, "expire", "--json", *at(LATER))
        assert (done.returncode, json.loads(done.stdout)["deleted"]) == (1, 2), done.stderr
        assert pool.left("web") == [held_name, *names[3:]]
        impatient(pool, "delete", f"web@{asked}", "--why", "no longer", *at(LATER))
        assert asked in pool.marked("web")
        assert history.read_bytes() == before
    pool.expire(LATER)
    assert pool.left("web") == [held_name, *names[3:]]
    assert pool.states("web")[asked] == "expired"
    assert pool.consistent() == []


@pytest.mark.slow
@pytest.mark.parametrize("command", ["expire", "delete"])
def test_deletions_go_on_when_the_catalogue_is_locked_in_the_middle(shared_btrfs: Path, command: str) -> None:
    pool = Expiries(shared_btrfs)
    pool.tables["expiry"] = {"max_orphans": 1, "mount_option": "ssd_spread"}
    pool.write()
    names = pool.history("web", 9)
    pool.expire(NOW)
    due, before = names[:6], mount_options(pool.pool)
    with writing_once_gone(pool.state, pool.pool / "hosts" / "web" / due[-1]) as writer:
        if command == "expire":
            done = impatient(pool, "expire", "--json", *at(LATER))
            assert json.loads(done.stdout)["deleted"] == len(due), done.stderr
        else:
            done = impatient(pool, "delete", *(f"web@{name}" for name in due), "--now-without-grace", "--json", *at(LATER))
        assert writer.poll() is None
        assert done.returncode == 1, done.stderr
        assert done.stderr.count("locked by another program") == 1
        assert pool.left("web") == names[6:]
        assert mount_options(pool.pool) == before
        writer.kill()
        assert writer.communicate()[0] == "holds it\n"
    pool.expire(LATER)
    assert pool.left("web") == names[6:]
    assert pool.consistent() == []


@pytest.mark.slow
@pytest.mark.parametrize("command", ["expire", "delete"])
def test_deletions_go_on_when_the_catalogue_is_locked_while_it_is_reconciled(shared_btrfs: Path, command: str) -> None:
    pool = Expiries(shared_btrfs)
    names = pool.history("web", 9)
    pool.expire(NOW)
    due = names[1:6]
    work("btrfs", "subvolume", "delete", pool.pool / "hosts" / "web" / names[0])  # so there is something to reconcile
    bed = ("locked_reconcile.py", pool.state / "catalogue.sqlite")
    if command == "expire":
        done = impatient(pool, "expire", "--json", *at(LATER), bed=bed)
        assert json.loads(done.stdout)["deleted"] == len(due), done.stderr
    else:
        done = impatient(pool, "delete", *(f"web@{name}" for name in due), "--now-without-grace", "--json", *at(LATER), bed=bed)
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("locked by another program") == 1
    assert pool.left("web") == names[6:]
    pool.expire(LATER)
    assert pool.left("web") == names[6:]
    assert pool.consistent() == []
