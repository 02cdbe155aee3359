"""A printed remedy is typed unchanged, in the state that printed it, and then the state is better.

The configuration is in a folder with a blank in its name, so a command that does not name or quote it fails here.
tests/test_remedies.py has the list of all commands that are printed, and which test types each of them.
"""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.beds.expiries import LAST, NOW, Expiries, at
from tests.beds.faults import damage
from tests.beds.history import every, make_histories, make_history
from tests.beds.nights import Nights
from tests.beds.remedies import Typist, prints, refused, types, typing
from tests.beds.two_pools import TwoPools
from tests.beds.watch import disagreements, rows
from tests.beds.work import work
from tests.btrfs.test_discard import leave

pytestmark = [pytest.mark.btrfs, pytest.mark.root]
MIB = 1 << 20
TODAY = datetime.now(UTC).replace(microsecond=0)


@pytest.fixture
def typist(request: pytest.FixtureRequest) -> Iterator[Typist]:
    with typing(request.function) as made:
        yield made


def moved(nights: Nights) -> Nights:
    """The same pool with its configuration in a folder that has to be quoted."""
    folder = nights.top / "my pools"
    folder.mkdir()
    nights.config = nights.config.rename(folder / nights.config.name)
    return nights


@pytest.fixture
def pool(nights: Nights) -> Nights:
    return moved(nights)


@pytest.fixture
def web1(pool: Nights) -> Nights:
    """One host with three backups of the last days, the newest an hour old."""
    (pool.source / "file").write_text("text")
    pool.host("web1", pool.source, address=None)
    make_history(pool, "web1", every(1, 3, TODAY - timedelta(hours=1)))
    return pool


# --- backups that are kept, marked or in the way


@types("backupd release {} {}", "backupd unexpire {} {}")
def test_a_held_backup_is_released_and_deleted_and_taken_back(web1: Nights, typist: Typist) -> None:
    first = web1.names("web1")[0]
    web1.backupd("hold", "web1", first)
    typist.follow(refused(web1, "delete", f"web1@{first}"), "backupd release {} {}")
    deleted = prints(web1, "delete", f"web1@{first}")
    assert deleted.returncode == 0
    typist.follow(deleted, "backupd unexpire {} {}")
    assert {row["name"]: row["state"] for row in web1.listed("web1")}[first] == "complete"


@types("backupd hold {} {}", "backupd list {}")
def test_a_backup_that_has_not_expired_is_held_instead(web1: Nights, typist: Typist) -> None:
    first = web1.names("web1")[0]
    typist.follow(refused(web1, "unexpire", "web1", first), "backupd hold {} {}")
    assert {row["name"]: row["held"] is not None for row in web1.listed("web1")}[first]
    last = web1.names("web1")[-1]
    assert "held" in typist.follow(refused(web1, "release", "web1", last), "backupd list {}").stdout


@types("backupd forget {}", "backupd forget {} --undo", "backupd expire {} --skip-grace", "backupd host remove {}")
def test_a_host_is_removed_forgotten_taken_back_and_deleted(web1: Nights, typist: Typist) -> None:
    web1.backupd("host", "add", "db1", "--path", web1.source)
    make_history(web1, "db1", every(1, 2, TODAY - timedelta(hours=1)))
    removed = typist.follow(refused(web1, "forget", "db1", "--yes"), "backupd host remove {}")
    typist.follow(removed, "backupd forget {}", more="--yes")
    assert "is forgotten" in refused(web1, "hold", "db1", "latest").stderr
    typist.follow(refused(web1, "hold", "db1", "latest"), "backupd forget {} --undo")
    web1.backupd("hold", "db1", "latest")
    web1.backupd("release", "db1", "latest")
    web1.backupd("forget", "db1", "--yes")
    typist.follow(refused(web1, "delete", f"db1@{web1.names('db1')[0]}"), "backupd expire {} --skip-grace")
    assert not list((web1.pool / "hosts" / "db1").glob("2*"))
    assert len(web1.names("web1")) == 3


@types("backupd discard {}")
def test_an_unfinished_backup_in_the_way_is_given_up(pool: Nights, typist: Typist) -> None:
    pool.host("web1", pool.source, address=None)
    (base,) = make_history(pool, "web1", [TODAY - timedelta(hours=1)])
    leave(pool, "web1")
    typist.follow(refused(pool, "delete", f"web1@{base}", "--force"), "backupd discard {}", more="--yes")
    assert not pool.backup("web1", ".working").exists()
    pool.backupd("delete", f"web1@{base}", "--force")


@types("backupd delete --now-without-grace {}")
def test_a_backup_of_the_future_is_named_in_full_and_deleted(web1: Nights, typist: Typist) -> None:
    make_histories(web1, ["web1"], [datetime(2036, 11, 20, 3, tzinfo=UTC)], {})
    future = web1.names("web1")[-1]
    assert future in refused(web1, "delete", "web1@2036-11-20").stderr
    call = f"backupd --config '{web1.config}' delete --now-without-grace web1@{future}"
    typist.type(call)
    assert future not in web1.names("web1")
    assert "future" not in prints(web1, "check").stdout


@types("backupd accept HOST latest")
def test_a_suspect_backup_is_accepted(web1: Nights, typist: Typist) -> None:
    make_histories(web1, ["web1"], [TODAY - timedelta(minutes=5)], {0: "suspect"})
    assert web1.status("web1")["state"] == "suspect"
    typist.type(f"backupd --config '{web1.config}' accept web1 latest")
    assert web1.status("web1")["state"] == "ok"


# --- guards


@pytest.fixture
def old(shared_btrfs: Path) -> Expiries:
    expiries = Expiries(shared_btrfs)
    moved(expiries)
    return expiries


@types("backupd {} --force {}")
def test_an_expiry_that_its_guards_stop_goes_on_by_the_command_that_is_named(old: Expiries, typist: Typist) -> None:
    names = old.history("many", 14)
    stopped = prints(old, "expire", *at(NOW))
    assert (stopped.returncode, old.marked("many")) == (1, [])
    typist.follow(stopped, "backupd {} --force {}", more=" ".join(at(NOW)))
    assert old.marked("many") == names[:11]
    back = LAST - timedelta(hours=3)
    stopped = prints(old, "expire", *at(back))
    assert "the clock went back from" in stopped.stdout + stopped.stderr
    typist.follow(stopped, "backupd {} --force {}", more=" ".join(at(back)))
    assert prints(old, "expire", *at(back)).returncode == 0


@types("backupd expire HOST --skip-grace", "backupd expire --dry-run")
def test_space_is_needed_now(old: Expiries, typist: Typist) -> None:
    old.history("many", 8)
    line = typist.find(refused(old, "expire", "--skip-grace"), "backupd expire HOST --skip-grace")
    typist.type(line.replace("HOST", "many"), more=" ".join(at(NOW)))
    assert len(old.left("many")) == 3
    back = LAST - timedelta(hours=3)
    process = refused(old, "delete", f"many@{old.left('many')[0]}", *at(back))
    typist.follow(process, "backupd expire --dry-run", status=1, more=" ".join(at(back)))


@types("backupd expire")
def test_below_min_free_the_expiry_that_is_named_makes_space(make_btrfs: Callable[..., Path], typist: Typist) -> None:
    nights = Expiries(make_btrfs(size="600M"))
    moved(nights)
    (nights.source / "large").write_bytes(os.urandom(200 * MIB))
    nights.host("web1", nights.source, max_absence=None)
    nights.backupd("run", "web1", *at(NOW))
    work("rm", nights.source / "large")
    (nights.source / "small").write_text("x")
    nights.backupd("run", "web1", *at(NOW + timedelta(days=1)), check=False)
    first, last = nights.names("web1")
    nights.backupd("accept", "web1", "latest", *at(NOW + timedelta(days=1)), check=False)
    nights.settings("pool", min_free="450MiB")
    nights.backupd("delete", f"web1@{first}", *at(NOW + timedelta(days=1)))
    later = at(NOW + timedelta(days=3))
    process = prints(nights, "check", *later)
    assert "no further transfer starts" in process.stdout, process.stdout
    typist.follow(process, "backupd expire", more=" ".join(later))
    work("btrfs", "subvolume", "sync", nights.pool)
    assert nights.names("web1") == [last]
    assert "no further transfer starts" not in prints(nights, "check", *later).stdout


# --- configuration, pool and catalogue


@types("backupd init PATH", "backupd host add NAME", "backupd run {}", "backupd host test {}")
def test_from_nothing_to_the_first_backup(shared_btrfs: Path, typist: Typist) -> None:
    nights = Nights(shared_btrfs)
    nights.config = shared_btrfs / "other pools" / "new one" / "second.toml"
    nights.config.parent.mkdir(parents=True)
    line = typist.find(refused(nights, "status"), "backupd init PATH")
    typist.type(line.replace("PATH", str(shared_btrfs / "second")))
    assert nights.config.exists()
    text = nights.config.read_text()
    state = nights.state.parent / "second-state"
    nights.config.write_text(text.replace("[pool]\n", f'[pool]\nstate = "{state}"\n', 1))
    listed = prints(nights, "host", "list")
    line = typist.find(listed, "backupd host add NAME")
    added = typist.type(line.replace("NAME", "web1"), more=f"--path {nights.source}")
    typist.follow(added, "backupd run {}")
    process = prints(nights, "host", "set", "web1", "address=root@127.0.0.1", "port=1")
    typist.follow(process, "backupd host test {}", status=1)  # no server answers there


@types("backupd init {}")
def test_a_pool_that_was_never_there_is_made_by_the_command_that_is_named(pool: Nights, typist: Typist) -> None:
    pool.settings("pool", path=str(pool.top / "my new pool"), state=str(pool.state) + "-new")
    typist.follow(refused(pool, "status"), "backupd init {}")
    assert pool.backupd("status").returncode == 0


@pytest.mark.parametrize("fault", ["lost", "foreign", "newer", "damaged"])
@types("backupd rebuild")
def test_a_catalogue_is_made_again(web1: Nights, typist: Typist, fault: str, tmp_path: Path) -> None:
    catalogue = web1.state / "catalogue.sqlite"
    if fault == "lost":
        catalogue.unlink()
        Path(f"{catalogue}-wal").unlink(missing_ok=True)
    elif fault == "damaged":
        catalogue.write_bytes(b"no database" * 1000)
    else:
        change = {"foreign": "UPDATE about SET value = 'x' WHERE name = 'pool_id'", "newer": "PRAGMA user_version = 9999"}[fault]
        with closing(sqlite3.connect(catalogue)) as connection, connection:
            changed = connection.execute(change).rowcount
            assert fault == "newer" or changed == 1, connection.execute("select * from about").fetchall()
    process = prints(web1, "check")
    line = typist.find(process, "backupd rebuild")
    if fault == "newer":  # "move the catalogue away and run"
        shutil.move(catalogue, tmp_path / "newer")
    typist.type(line)
    assert rows(web1, "select count(*) from backup where host = 'web1'") == [(3,)]
    assert "backupd rebuild" not in prints(web1, "check").stdout
    assert disagreements(web1) == []


@types("backupd quota disable", "btrfs quota disable {}")
def test_quotas_end_by_the_commands_that_are_named(make_btrfs: Callable[..., Path], typist: Typist) -> None:
    nights = moved(Nights(make_btrfs(size="300M")))
    nights.host("web1", nights.source, address=None, quota="50MiB")
    work("btrfs", "quota", "enable", nights.top)
    typist.follow(refused(nights, "quota", "enable", "--yes"), "btrfs quota disable {}")
    enabled = prints(nights, "quota", "enable", "--yes")
    assert enabled.returncode == 0, enabled.stderr
    typist.follow(enabled, "backupd quota disable", more="--yes")
    assert work("btrfs", "qgroup", "show", nights.top, check=False).returncode != 0


# --- looking, and reading again


@types("backupd versions {} {}", "backupd compare {} {} BACKUP", "backupd browse {}", "backupd {} {} --at {}")
def test_a_path_with_a_blank_is_asked_for_as_it_is_printed(pool: Nights, typist: Typist) -> None:
    folder = pool.source / "my files"
    folder.mkdir()
    (folder / "a").write_text("1")
    pool.host("web1", pool.source, address=None)
    pool.run("web1")
    (folder / "a").write_text("22")
    pool.run("web1")
    first, last = pool.names("web1")
    typist.follow(refused(pool, "versions", f"web1@{first}", str(folder)), "backupd versions {} {}")
    line = typist.find(refused(pool, "compare", "web1", str(folder)), "backupd compare {} {} BACKUP")
    assert "/a" in typist.type(line.replace("BACKUP", first), status=None).stdout
    typist.follow(refused(pool, "restore", "web1", "--to", pool.top / "out"), "backupd browse {}")
    day = f"{TODAY + timedelta(days=1):%Y-%m-%d}"
    typist.follow(refused(pool, "browse", f"web1@{last}", "--at", day), "backupd {} {} --at {}")


@types("backupd verify HOST", "backupd host list", "backupd status", "backupd list HOST")
def test_the_lists_that_are_named(web1: Nights, typist: Typist) -> None:
    process = refused(web1, "verify", "--after-crash", "web1")
    typist.type(typist.find(process, "backupd verify HOST").replace("HOST", "web1"))
    process = refused(web1, "delete", "web1")
    typist.type(typist.find(process, "backupd list HOST").replace("HOST", "web1"))
    typist.follow(refused(web1, "run", "x*"), "backupd host list")
    typist.follow(refused(web1, "status", "nobody9"), "backupd status")


@pytest.fixture
def copies(make_btrfs: Callable[..., Path], tree: Path) -> TwoPools:
    """A copy that is damaged here, in a pool that has a damaged host of its own as well."""
    two = TwoPools(make_btrfs(size="300M"), make_btrfs(size="300M"))
    content, own = os.urandom(MIB), os.urandom(MIB)
    (two.source / "large").write_bytes(content)
    two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    two.second.host("own", tree)
    (tree / "large").write_bytes(own)
    two.second.backupd("run", "own", "--now", "2026-03-02T22:00:00Z")
    damage(two.second.top, content[4096:8192], own[4096:8192])
    return two


@types("backupd verify", "backupd damaged", "backupd replicate {} {} --damaged")
def test_a_damaged_copy_is_fetched_again_and_keeps_no_other_host_from_being_repaired(copies: TwoPools, typist: Typist) -> None:
    second, now = moved(copies.second), ("--now", "2026-03-20T12:00:00Z")
    more = " ".join(now)
    call = f"backupd --config '{second.config}'"
    typist.type(f"{call} verify", status=1, more=more)
    typist.follow(prints(second, "status", *now), "backupd damaged", status=1, more=more)
    repaired = refused(second, "repair", "--yes", *now, "--from", copies.source.parent)
    assert "own@" in repaired.stdout or "own" in repaired.stdout, repaired.stdout
    typist.follow(repaired, "backupd replicate {} {} --damaged", more=more)
    typist.type(f"{call} verify web1", more=more)
    damaged = json.loads(second.backupd("damaged", "--json", check=False).stdout)
    assert "web1" not in {row["host"] for row in damaged}


@types("backupd drill {}")
def test_a_dump_that_could_not_be_loaded_is_loaded_when_its_command_is_corrected(web1: Nights, typist: Typist) -> None:
    def load(command: str) -> None:
        web1.tables["drill"] = {"load": [f"{web1.source}/file {command}"]}
        web1.write()

    web1.backupd("run", "web1")
    load("false")
    failed = prints(web1, "drill", "web1@latest")
    assert failed.returncode == 1
    load("true")
    assert "loaded: web1@" in typist.follow(failed, "backupd drill {}").stdout
    assert "drill failed" not in prints(web1, "status").stdout


# --- files, modes and other running programs


@types("backupd sample", "backupd run", "backupd check")
def test_numbers_and_backups_that_are_not_there_yet_are_made(pool: Nights, typist: Typist) -> None:
    pool.host("web1", pool.source, address=None)
    typist.follow(refused(pool, "drill"), "backupd run")
    assert len(pool.names("web1")) == 1
    assert "sample" in prints(pool, "trend").stdout + prints(pool, "trend").stderr
    typist.follow(prints(pool, "trend"), "backupd sample")
    typist.follow(refused(pool, "init", pool.pool), "backupd check", status=None)


@types("chmod 700 {}", "chmod g-w {}", "mkdir -p {}")
def test_modes_and_folders_are_changed_as_printed(web1: Nights, typist: Typist) -> None:
    web1.pool.chmod(0o755)
    typist.follow(prints(web1, "check"), "chmod 700 {}")
    assert "chmod 700" not in prints(web1, "check").stdout
    os.chown(web1.config, 0, 12)
    web1.config.chmod(0o664)
    typist.follow(prints(web1, "check"), "chmod g-w {}")
    assert "chmod g-w" not in prints(web1, "check").stdout
    to = web1.top / "a folder" / "below" / "it"
    typist.follow(refused(web1, "restore", "web1", "/", "--to", to), "mkdir -p {}")
    assert web1.backupd("restore", "web1", "/", "--to", to, check=False).stderr.count("mkdir") == 0


@types("backupd offsite init {}", "backupd offsite run {}", "chmod 600 {}")
def test_a_repository_that_is_not_there_or_locked_is_made_and_sent_to(pool: Nights, typist: Typist, tmp_path: Path) -> None:
    away, password = tmp_path / "my repository", tmp_path / "my password"
    password.write_text("4711\n")
    password.chmod(0o644)
    pool.tables["offsite.far"] = {"repository": str(away), "password_file": str(password)}
    pool.host("web1", pool.source, address=None)
    pool.run("web1")
    typist.follow(refused(pool, "offsite", "run"), "chmod 600 {}")
    made = typist.follow(refused(pool, "offsite", "run"), "backupd offsite init {}")
    again = refused(pool, "offsite", "init", "far")
    assert made.returncode == 0
    typist.follow(again, "backupd offsite run {}")
    call = ["restic", "--repo", str(away), "--password-file", str(password), "--no-cache"]
    assert '"web1"' in work(*call, "snapshots", "--json").stdout
    with subprocess.Popen([*call, "check", "--read-data"], stdout=subprocess.DEVNULL) as other:
        try:
            end = time.monotonic() + 60
            while not any("tmp" not in lock.name for lock in (away / "locks").iterdir()):  # it has its name when it is whole
                assert time.monotonic() < end
                time.sleep(0.01)
            other.send_signal(signal.SIGSTOP)
            pool.backupd("hold", "web1", "latest")
            (pool.source / "new").write_text("1")
            pool.run("web1")
            locked = refused(pool, "offsite", "run")
        finally:
            other.kill()
    assert "already locked" in locked.stderr
    typist.follow(locked, "backupd offsite run {}")


@types("mount -o remount,rw {}")
def test_a_filesystem_that_is_mounted_read_only_is_mounted_writable_as_printed(
    make_btrfs: Callable[..., Path], typist: Typist
) -> None:
    point = make_btrfs(size="300M")
    work("mount", "-o", "remount,ro", point)
    process = typist.type(f"btrfs-balancer run {point}", status=None)
    assert process.returncode != 0
    typist.follow(process, "mount -o remount,rw {}")
    assert "read-only" not in typist.type(f"btrfs-balancer run {point}", status=None).stderr


@types("btrfs-heatmap --record MOUNTPOINT", "btrfs-balancer score --record {}")
def test_states_and_scores_that_are_not_there_yet_are_recorded(pool: Nights, typist: Typist, tmp_path: Path) -> None:
    pictures = tmp_path / "my pictures"
    pictures.mkdir()
    process = typist.type(f"btrfs-heatmap timelapse '{pictures}' -o '{tmp_path}/out.gif'", status=None)
    line = typist.find(process, "btrfs-heatmap --record MOUNTPOINT").replace("MOUNTPOINT", f"-o '{pictures}/' '{pool.pool}'")
    typist.type(line)
    typist.type(f"btrfs-heatmap timelapse '{pictures}' -o '{tmp_path}/out.gif'")
    assert (tmp_path / "out.gif").exists()
    process = typist.type(f"btrfs-balancer history --config '{pool.config}'", status=None)
    (line,) = [text.strip() for text in process.stdout.splitlines() if "score --record" in text]
    typist.type(line)
    assert "--record" not in typist.type(f"btrfs-balancer history --config '{pool.config}'", status=None).stderr
