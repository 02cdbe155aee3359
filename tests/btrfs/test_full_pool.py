"""A pool without space for a single byte: the commands that free space work, and afterwards all others, without manual changes."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from btrkeep.errors import LockHeld
from btrkeep.pool.locks import take_lock
from tests.beds import work
from tests.beds.btrfs import MIB, fill, fill_metadata, fits, makes
from tests.beds.expiries import LATER, NOW, Expiries, at
from tests.beds.hidden_changes import hide_changes
from tests.beds.nights import Nights
from tests.beds.watch import is_locked, subvolumes, wait_for

RESERVE = 4 * MIB  # one percent of these pools


@pytest.fixture
def full(make_btrfs: Callable[..., Path], tmp_path: Path) -> Expiries:
    """A pool that the oldest of five backups of `web` fills to the last byte. `db` also has five, and one of a real run."""
    pool = Expiries(make_btrfs(size="400M"))
    pool.config = tmp_path / "main.toml"
    pool.source = tmp_path / "srv"
    pool.source.mkdir()
    (pool.source / "file").write_bytes(os.urandom(MIB))
    pool.history("web")
    pool.history("db")
    pool.run("db", *at(NOW))
    hide_changes(pool.pool / "hosts/web", 3600)
    fill(pool.top, into=pool.backup("web", pool.names("web")[0]))
    return pool


def reserve(pool: Expiries) -> int:
    """Returns the bytes that the reserve uses on the disk."""
    path = pool.pool / ".btrkeep" / "reserve"
    return path.stat().st_blocks * 512


def test_a_run_makes_the_reserve_and_it_is_one_percent_of_the_pool(full: Expiries) -> None:
    assert reserve(full) == pytest.approx(RESERVE, abs=16_384)


def test_expire_marks_and_deletes_on_a_full_pool_and_the_pool_takes_backups_again(full: Expiries) -> None:
    full.settings("pool", min_free="5%")
    done = full.backupd("run", "db", *at(NOW), check=False)
    assert (done.returncode, "too little free space" in done.stderr) == (4, True), done.stderr
    before = full.left("web")
    full.expire(NOW)
    assert full.marked("web") == before[:2]
    assert reserve(full) == 0
    full.expire(LATER, "--wait")
    assert full.left("web") == before[2:]
    assert full.consistent() == []
    full.run("web", *at(LATER))
    assert full.differences("web", full.source) == []
    assert reserve(full) == pytest.approx(RESERVE, abs=16_384)


@pytest.mark.parametrize("how", ["delete", "skip-grace"])
def test_room_that_is_needed_now_comes_back_on_a_full_pool(full: Expiries, how: str) -> None:
    first, second, *rest = full.names("web")  # the first one has filled the pool
    if how == "delete":
        full.backupd("delete", f"web@{first}", "--reason", "full", "--now-without-grace", *at(NOW))
        assert full.left("web") == [second, *rest]
    else:
        full.expire(NOW, "web", "--skip-grace")
        assert full.left("web") == rest
    wait_for(lambda: fits(full.pool / "byte"), 60)
    assert full.consistent() == []
    assert (full.pool / "hosts" / "web" / "latest").readlink() == Path(rest[-1])


def test_what_fills_the_pool_and_is_unfinished_is_discarded(full: Expiries) -> None:
    first, *_ = full.names("web")
    full.backupd("delete", f"web@{first}", "--now-without-grace", *at(NOW))
    wait_for(lambda: fits(full.pool / "byte"), 60)
    working = full.backup("web", ".working")
    work("btrfs", "subvolume", "create", working)
    uuid = full.subvolume("web", ".working")["UUID"]
    fields = {**full.record("web", full.names("web")[-1]), "state": "partial", "name": None, "uuid": uuid}
    (working / "backup.json").write_text(json.dumps(fields))
    (working / "data").mkdir()
    fill(full.top, into=working)
    work("btrfs", "property", "set", "-f", "-ts", working, "ro", "false")
    work("sh", "-ec", f"find {working} -maxdepth 1 -type f -not -name backup.json -exec mv -t {working}/data {{}} +")
    full.backupd("discard", "web", "--yes", *at(NOW))
    assert "hosts/web/.working" not in subvolumes(full)
    wait_for(lambda: fits(full.pool / "byte"), 60)


def test_notes_of_all_kinds_can_be_written_on_a_full_pool(full: Expiries) -> None:
    newest = full.left("web")[-1]
    full.backupd("hold", "web", newest, "--why", "court", *at(NOW))
    assert full.notes("web")["backups"][newest]["hold"]["why"] == "court"
    full.backupd("release", "web", newest, *at(NOW))
    assert full.notes("web")["backups"] == {}
    del full.tables["host"]["web"]
    full.write()
    full.backupd("forget", "web", "--yes", *at(NOW))
    assert full.notes("web")["forgotten"]
    assert not is_locked(full.pool / ".btrkeep" / "locks" / "host-web")


def test_notes_that_not_even_the_reserve_has_room_for_are_refused_in_one_line_and_the_old_ones_stay(full: Expiries) -> None:
    newest = full.left("web")[-1]
    full.backupd("hold", "web", newest, "--why", "court", *at(NOW))  # takes the reserve
    fill(full.top, into=full.backup("db", full.left("db")[-1]))
    for words in (("hold", "web", newest, "--why", "another"), ("release", "web", newest)):
        done = full.backupd(*words, *at(NOW), check=False)
        assert done.returncode == 4
        assert "cannot be written: [Errno 28] No space left on device" in done.stderr
        assert "Traceback" not in done.stderr
    assert full.notes("web")["backups"][newest]["hold"]["why"] == "court"


def test_a_lock_on_a_full_pool_is_held_and_its_holder_is_known_although_no_text_says_so(full: Expiries) -> None:
    path = full.pool / ".btrkeep" / "locks" / "host-new"
    with take_lock(path, "a test", "2026-11-20T22:00:03Z"):
        assert path.read_bytes() == b""
        assert is_locked(path)
        with pytest.raises(LockHeld, match=rf"another process \({os.getpid()}\)"):
            take_lock(path, "another", "")
    assert not is_locked(path)


def test_without_a_reserve_what_is_marked_is_deleted_although_nothing_more_can_be_marked(full: Expiries) -> None:
    """The deletions come first, and what they free lets the marks be written."""
    full.expire(NOW)  # takes the reserve
    before = full.left("web")
    fill(full.top, into=full.backup("db", full.left("db")[-1]))
    full.settings("retention", daily=2)  # so that some are to be marked too
    done = full.backupd("expire", *at(LATER), check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr  # the cleaner may have been quick
    assert "Traceback" not in done.stderr
    assert full.left("web") == before[2:]
    full.expire(LATER)
    assert full.marked("web") == before[2:3]
    assert full.consistent() == []


@pytest.fixture
def no_metadata(make_btrfs: Callable[..., Path], tmp_path: Path) -> Expiries:
    """A pool without space for metadata, in which some backups are marked and nothing was deleted so far."""
    pool = Expiries(make_btrfs(size="300M", mkfs=("-m", "single")))
    pool.history("web")
    pool.expire(NOW)
    fill_metadata(pool.top)
    return pool


def test_without_room_for_metadata_what_is_marked_is_deleted(no_metadata: Expiries) -> None:
    before = no_metadata.left("web")
    assert not makes(no_metadata.pool / "empty")
    done = no_metadata.backupd("expire", "--wait", *at(LATER), check=False)
    assert no_metadata.left("web") == before[2:], done.stdout + done.stderr


def test_files_of_locks_that_are_missing_are_made_by_the_next_run(nights: Nights) -> None:
    locks = nights.pool / ".btrkeep" / "locks"
    for path in locks.iterdir():
        path.unlink()
    nights.host("web", nights.source)
    nights.run("web")
    assert {"balance", "expire", "night"} <= {path.name for path in locks.iterdir()}


@pytest.fixture
def no_metadata_at_all(make_btrfs: Callable[..., Path]) -> Expiries:
    """A pool without space for metadata, in which nothing is marked."""
    pool = Expiries(make_btrfs(size="4300M", mkfs=("-m", "single")))
    pool.history("web")
    pool.run("web", *at(NOW))
    fill_metadata(pool.top)
    assert not makes(pool.pool / "empty")
    return pool


def test_without_room_for_metadata_expire_marks_and_deletes(no_metadata_at_all: Expiries) -> None:
    pool = no_metadata_at_all
    before = pool.left("web")
    pool.expire(NOW)
    assert pool.marked("web") == before[:3]
    pool.expire(LATER, "--wait")
    assert pool.left("web") == before[3:]
    assert pool.consistent() == []


def test_without_room_for_metadata_notes_of_all_kinds_can_be_written(no_metadata_at_all: Expiries) -> None:
    pool = no_metadata_at_all
    newest = pool.left("web")[-1]
    pool.backupd("hold", "web", newest, "--why", "court", *at(NOW))
    assert pool.notes("web")["backups"][newest]["hold"]["why"] == "court"
    pool.backupd("release", "web", newest, *at(NOW))
    del pool.tables["host"]["web"]
    pool.write()
    pool.backupd("forget", "web", "--yes", *at(NOW))
    assert pool.notes("web")["forgotten"]


def test_a_pool_with_small_nodes_has_a_reserve_for_metadata(make_btrfs: Callable[..., Path]) -> None:
    """An attribute that fills a leaf of 16 KiB does not fit into one of 4 KiB, the default of mkfs.btrfs until 2013."""
    pool = Expiries(make_btrfs(size="4300M", mkfs=("-m", "single", "-n", "4096")))
    pool.history("web")
    pool.run("web", *at(NOW))
    path = pool.pool / ".btrkeep/reserve-metadata"
    assert path.exists()
    before = metadata_used(pool)
    path.unlink()
    work("btrfs", "filesystem", "sync", pool.top)
    assert before - metadata_used(pool) > 15 * MIB


def metadata_used(pool: Expiries) -> int:
    """Returns the bytes of metadata in use, counted by btrfs-progs."""
    lines = work("btrfs", "filesystem", "df", "--raw", pool.top).stdout.splitlines()
    return int(next(line for line in lines if line.startswith("Metadata")).rsplit("used=", 1)[1])
