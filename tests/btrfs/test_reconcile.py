"""The catalogue compared with the pool, missing pools, and pools with a second path."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.beds import backupd, btrfs, work
from tests.beds.history import every, make_history, moment, name_of, write_down
from tests.beds.nights import Nights
from tests.beds.opens import watched
from tests.beds.watch import disagreements, rows, subvolumes

BACKUP_COLUMNS = "host, name, path, state, started, finished, files, bytes, new_bytes, error, warnings, base, subvolume_id, uuid"


@pytest.fixture
def tree(nights: Nights) -> Path:
    tree = nights.source / "srv"
    tree.mkdir()
    for number in range(10):
        (tree / f"file{number}").write_text("text")
    for host in ("web", "other"):
        nights.host(host, tree)
    nights.run()
    return tree


def delete(path: Path) -> None:
    work("btrfs", "-q", "property", "set", "-f", "-ts", path, "ro", "false")
    work("btrfs", "-q", "subvolume", "delete", path)


def catalogue(nights: Nights) -> Path:
    return nights.state / "catalogue.sqlite"


def forget_catalogue(nights: Nights) -> None:
    shutil.rmtree(nights.state)


def backup_rows(nights: Nights) -> list[tuple[object, ...]]:
    """Returns the rows of backups without their durations: the records were written before the end."""
    actual_rows = rows(
        nights, f"select {BACKUP_COLUMNS}, detail from backup left join backup_detail using (host, name) order by host, name"
    )
    assert actual_rows
    return actual_rows


def test_a_row_whose_subvolume_was_deleted_is_deleted(nights: Nights, tree: Path) -> None:
    nights.run("web")
    first, second = nights.names("web")
    delete(nights.backup("web", first))
    output = nights.backupd("run", "other").stdout
    assert "1 row without a backup dropped" in output
    assert rows(nights, "select name from backup where host = 'web'") == [(second,)]
    assert disagreements(nights) == []


def test_a_subvolume_without_a_row_gets_one(nights: Nights, tree: Path) -> None:
    before = backup_rows(nights)
    with closing(sqlite3.connect(catalogue(nights))) as connection, connection:
        connection.execute("pragma foreign_keys = on")
        connection.execute("delete from backup where host = 'web'")
    output = nights.backupd("run").stdout
    assert "1 backup added" in output
    assert backup_rows(nights) == before
    assert disagreements(nights) == []


@pytest.mark.parametrize("damage", ["", "{", "\x00\x00", '{"format": 1, "host": "web"}', "[]"])
def test_a_damaged_record_leaves_its_backup_and_its_row_alone(nights: Nights, tree: Path, damage: str) -> None:
    (name,) = nights.names("web")
    path = nights.backup("web", name)
    work("btrfs", "-q", "property", "set", "-f", "-ts", path, "ro", "false")
    (path / "backup.json").write_text(damage)
    work("btrfs", "-q", "property", "set", "-ts", path, "ro", "true")
    number = subvolumes(nights)[f"hosts/web/{name}"]
    assert nights.run("web", "other")["web"]["outcome"] == "complete"
    assert subvolumes(nights)[f"hosts/web/{name}"] == number
    assert nights.record("web")["base"] is None
    done = nights.backupd("rebuild", check=False)
    assert done.returncode == 1
    assert f"web/{name}" in done.stdout
    assert subvolumes(nights)[f"hosts/web/{name}"] == number


def test_rebuild_equals_what_was_lost_an_acceptance_included(nights: Nights, tree: Path) -> None:
    nights.host("missing", tree, nights.source / "not-there")
    nights.run("missing", status=1)  # a failed one
    for number in range(9):
        (tree / f"file{number}").unlink()
    nights.run("web", "other", status=1)  # suspect ones
    nights.backupd("accept", "web", nights.names("web")[-1], "--why", "cleared up")
    (tree / "big").write_bytes(b"x" * 500_000)
    nights.in_the_middle(200_000, end="dies")
    nights.run("web", status=1)  # and a partial one
    before = backup_rows(nights)
    states = sorted(state for (state,) in rows(nights, "select state from backup"))
    assert states == ["complete", "complete", "complete", "failed", "partial", "suspect"]
    forget_catalogue(nights)
    nights.backupd("rebuild")
    assert backup_rows(nights) == before
    assert disagreements(nights) == []
    nights.backupd("rebuild")
    assert backup_rows(nights) == before


def test_a_lost_catalogue_comes_back_by_itself_with_the_next_run(nights: Nights, tree: Path) -> None:
    before = backup_rows(nights)
    forget_catalogue(nights)
    nights.backupd("run")  # nothing is due: the catalogue is updated before that decision
    assert backup_rows(nights) == before


@pytest.mark.parametrize("lost", [False, True], ids=["rebuild", "a run after rows were lost"])
def test_a_hosts_notes_are_not_read_again_for_each_of_its_backups(nights: Nights, lost: bool) -> None:
    """The kernel merges successive events of one file, so the records are watched too: each is opened between two reads
    of notes.
    """
    starts = every(1, 20, moment("2026-11-20 22:00"))
    opened = []
    nights.host("other", nights.source)
    for host, count in (("few", 5), ("many", 20)):
        nights.host(host, nights.source)
        names = make_history(nights, host, starts[-count:])
        write_down(nights, host, backups={name: {"hold": {"at": "2026-11-21T09:00:00Z", "why": "court"}} for name in names[:-1]})
        if lost:
            with closing(sqlite3.connect(catalogue(nights))) as connection, connection:
                connection.execute("pragma foreign_keys = on")
                connection.execute("delete from backup where host = ?", (host,))
        folder = nights.pool / "hosts" / host
        with watched(folder / "notes.json", *(folder / name / "backup.json" for name in names)) as opens:
            nights.backupd(*(("run", "other") if lost else ("rebuild",)))
            opened.append(opens.count())
        held = rows(nights, f"select name from backup where host = '{host}' and held_why = 'court' order by name")
        assert held == [(name_of(start),) for start in starts[-count:-1]]
    assert opened[1] - opened[0] <= 15  # the records


def test_the_catalogue_of_another_pool_is_refused(nights: Nights, tree: Path) -> None:
    other = nights.top / "other-pool"
    nights.backupd("init", other)
    nights.settings("pool", path=str(other))
    for words in (["run"], ["status"], ["list"]):
        done = nights.backupd(*words, check=False)
        assert done.returncode != 0
        assert "another pool" in done.stderr
    assert list((other / "hosts").iterdir()) == []
    nights.backupd("rebuild")
    assert rows(nights, "select count(*) from backup") == [(0,)]


def everything_below(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


WRITERS = (["run"], ["run", "web"], ["run", "--all"], ["accept", "web", "latest"], ["rebuild"])
READERS = (["status"], ["list"], ["run", "--dry-run"])


def test_a_pool_that_is_not_mounted_is_refused_and_nothing_is_written_where_it_should_be(btrfs_mount: Path, tmp_path: Path) -> None:
    top = tmp_path / "site"
    top.mkdir()
    point = top / "pool"
    point.mkdir()
    device = btrfs.devices_of(btrfs_mount)[0]
    backupd("--config", top / "main.toml", "init", btrfs_mount / "pool")
    config = top / "main.toml"
    (top / "src").mkdir()
    config.write_text(
        f'[pool]\npath = "{point}"\nstate = "{top}/state"\nmin_free = "0%"\n[host.web]\npaths = ["{top}/src"]\n', encoding="utf-8"
    )
    for words in (*WRITERS, *READERS):
        done = backupd("--config", config, *words, check=False)
        assert done.returncode == 4, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
    assert everything_below(point) == []
    assert not (top / "state").exists()
    work("mount", "-o", "subvol=pool", device, point)
    try:
        backupd("--config", config, "run")
        assert len(list((point / "hosts" / "web").glob("2*"))) == 1
    finally:
        work("umount", point)
    done = backupd("--config", config, "run", "web", check=False)
    assert done.returncode == 4
    assert everything_below(point) == []


def test_a_read_only_pool_is_unusable_for_what_writes_and_can_be_looked_at(btrfs_mount: Path) -> None:
    nights = Nights(btrfs_mount)
    (nights.source / "file").write_text("text")
    nights.host("web", nights.source)
    nights.settings("pool", state=str(btrfs_mount.parent / "state"))
    nights.run()
    btrfs.remount(btrfs_mount, "ro")
    try:
        for words in WRITERS:
            done = nights.backupd(*words, check=False)
            assert done.returncode == 4, done.stdout + done.stderr
            assert "read-only" in done.stderr
            assert "Traceback" not in done.stderr
        for words in READERS:
            assert nights.backupd(*words, check=False).returncode == 0
    finally:
        btrfs.remount(btrfs_mount, "rw")
    assert len(nights.names("web")) == 1


# --- with another path of the pool


def nights_by_another_way(nights: Nights, tree: Path, way: Path) -> None:
    """Runs two nights, a partial one, one that is discarded and a rebuild, all with that path of the pool."""
    nights.settings("pool", path=str(way))
    nights.run("web")
    (tree / "file1").unlink()
    (tree / "new").write_bytes(b"x" * 300_000)
    (tree / "new-too").hardlink_to(tree / "new")
    nights.in_the_middle(200_000, end="dies")
    nights.run("web", status=1)
    nights.ssh("")
    nights.host("web", tree, exclude=["/nothing"])  # so that `.working` is discarded
    nights.run("web")
    assert nights.differences("web", tree) == []
    assert len(nights.names("web")) == 3
    assert not nights.backup("web", ".working").exists()
    assert disagreements(nights) == []
    nights.backupd("rebuild")
    assert disagreements(nights) == []
    assert nights.backupd("check", check=False).returncode in (0, 1)


def test_the_pool_through_a_symlink(nights: Nights, tree: Path) -> None:
    way = nights.top / "link"
    way.symlink_to(nights.pool)
    nights_by_another_way(nights, tree, way)
    fresh = nights.top / "fresh"
    (nights.top / "to-fresh").symlink_to(fresh)
    work("btrfs", "-q", "subvolume", "create", fresh)
    nights.backupd("init", nights.top / "to-fresh")
    assert (fresh / ".btrkeep" / "pool.json").exists()


def test_the_pool_through_a_bind_mount(nights: Nights, tree: Path) -> None:
    way = nights.top / "bound"
    way.mkdir()
    work("mount", "--bind", nights.pool, way)
    try:
        nights_by_another_way(nights, tree, way)
    finally:
        work("umount", way)


def test_the_pool_on_a_subvolume_that_is_mounted_itself(btrfs_mount: Path) -> None:
    nights = Nights(btrfs_mount)
    tree = nights.source / "srv"
    tree.mkdir()
    for number in range(10):
        (tree / f"file{number}").write_text("text")
    nights.host("web", tree)
    nights.run()
    way = btrfs_mount.parent / "way"
    way.mkdir()
    work("mount", "-o", "subvol=pool", btrfs.devices_of(btrfs_mount)[0], way)
    try:
        nights_by_another_way(nights, tree, way)
    finally:
        work("umount", way)
