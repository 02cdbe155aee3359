"""`latest`: the symlink and the word mean the newest complete backup, regardless of later ones. One pool, a host for each test."""

import json
from pathlib import Path

import pytest

from tests.beds import work
from tests.beds.history import every, make_histories, moment
from tests.beds.nights import Nights

pytestmark = [pytest.mark.btrfs]
HOSTS = [f"host{number}" for number in range(6)]
_unused = iter(HOSTS)


@pytest.fixture(scope="module")
def pool(module_btrfs: Path) -> Nights:
    nights = Nights(module_btrfs)
    make_histories(nights, HOSTS, every(1, 4, moment("2026-11-20 03:00")), {2: "suspect", 3: "failed"})
    return nights


@pytest.fixture
def host(pool: Nights) -> str:
    """Two complete backups, then a suspect and a failed one."""
    return next(_unused)


def link(pool: Nights, host: str) -> str | None:
    path = pool.pool / "hosts" / host / "latest"
    return str(path.readlink()) if path.is_symlink() else None


def word(pool: Nights, host: str) -> str:
    return str(json.loads(pool.backupd("browse", f"{host}@latest", "--json").stdout)["backup"]["name"])


def test_it_follows_whatever_changes_what_is_complete(pool: Nights, host: str) -> None:
    first, second, suspect, _ = pool.names(host)
    assert link(pool, host) == word(pool, host) == second  # after the rebuild
    pool.backupd("accept", host, suspect)
    assert link(pool, host) == word(pool, host) == suspect
    pool.backupd("delete", f"{host}@latest")
    assert link(pool, host) == word(pool, host) == second
    pool.backupd("unexpire", host, suspect)
    assert link(pool, host) == word(pool, host) == suspect
    pool.backupd("rename", host, f"{host}-new", "--yes")
    assert link(pool, f"{host}-new") == word(pool, f"{host}-new") == suspect
    work("btrfs", "subvolume", "delete", pool.backup(f"{host}-new", suspect))  # by hand
    pool.backupd("expire", f"{host}-new")
    assert link(pool, f"{host}-new") == second
    assert first in pool.names(f"{host}-new")


def test_a_run_that_is_not_complete_does_not_move_it(pool: Nights, host: str) -> None:
    second = pool.names(host)[1]
    pool.host(host, pool.source / "missing")
    try:
        pool.run(host, status=1)
    finally:
        del pool.tables["host"][host]
        pool.write()
    assert pool.record(host)["state"] == "failed"
    assert link(pool, host) == word(pool, host) == second


def test_without_a_complete_backup_there_is_none_and_the_word_names_none(pool: Nights, host: str) -> None:
    first, second, *_ = pool.names(host)
    pool.backupd("delete", f"{host}@{first}", f"{host}@{second}", "--force")
    assert link(pool, host) is None
    done = pool.backupd("browse", f"{host}@latest", check=False)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, f"error: {host} has no complete backup")
    assert pool.backupd("browse", host).returncode == 0  # without `latest` it is the newest of all


def test_what_is_no_symlink_stays(pool: Nights, host: str) -> None:
    path = pool.pool / "hosts" / host / "latest"
    path.unlink()
    path.write_text("somebody's")
    pool.backupd("accept", host, pool.names(host)[2])
    assert path.read_text() == "somebody's"
