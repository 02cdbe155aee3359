"""Histories of other programs become backups: of a real rsnapshot on ext4, of dirvish, of dated folders; compared by rsync."""

import os
import signal
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.beds import manifest, work
from tests.beds.everything import everything
from tests.beds.nights import Nights
from tests.beds.old_trees import data, dated, differing, imported
from tests.beds.watch import does_at, killed, wait_for

pytestmark = [pytest.mark.btrfs, pytest.mark.root]
DAY = timedelta(days=1)


@pytest.fixture
def nights(make_btrfs: Callable[..., Path]) -> Nights:
    return Nights(make_btrfs(size="900M"))


class Rsnapshot:
    """The real rsnapshot; afterwards, the times of its folders are set back, because it uses the time of the run."""

    def __init__(self, place: Path) -> None:
        self.root, self.source = place / "snapshots", place / "srv"
        self.source.mkdir()
        self.conf = place / "rsnapshot.conf"
        lines = [
            ("config_version", "1.2"), ("snapshot_root", f"{self.root}/"), ("cmd_cp", "/bin/cp"), ("cmd_rm", "/bin/rm"),
            ("cmd_rsync", "/usr/bin/rsync"), ("retain", "daily", "7"), ("retain", "weekly", "4"), ("lockfile", f"{place}/pid"),
            ("rsync_long_args", "--delete --numeric-ids --relative --delete-excluded --hard-links --acls --xattrs"),
            ("backup", f"{self.source}/", "web1/"), ("backup", f"{self.source}/sub/", "web2/"),
        ]  # fmt: skip
        self.conf.write_text("\n".join("\t".join(line) for line in lines) + "\n")

    def day(self, when: datetime) -> None:
        work("rsnapshot", "-c", self.conf, "daily")
        os.utime(self.root / "daily.0", (when.timestamp(), when.timestamp()))
        if when.weekday() == 6 and (self.root / "daily.6").is_dir():  # rsnapshot 1.5 refuses to rotate a missing folder
            work("rsnapshot", "-c", self.conf, "weekly")


def grow(source: Path, number: int) -> None:
    """Changes the files of a host as during a day."""
    (source / "sub").mkdir(exist_ok=True)
    (source / "sub" / "log").write_text("line\n" * number * 1000)
    (source / f"new{number}").write_bytes(os.urandom(50_000))
    if number > 3:
        (source / f"new{number - 3}").unlink()
    with (source / "same size").open("wb") as file:
        file.write(os.urandom(4096))
    if number % 5 == 0:
        folder = source / "once a file"
        if folder.is_dir():
            folder.rmdir()
            folder.write_text("a file again")
        else:
            folder.unlink(missing_ok=True)
            folder.mkdir()


@pytest.fixture
def fortnight(ext4: Path) -> Rsnapshot:
    """Sixteen days of a real rsnapshot, of a tree with all kinds of files: seven days and two weeks are left of them."""
    old = Rsnapshot(ext4)
    everything(old.source / "all")
    first = old.source / "linked"
    first.write_bytes(os.urandom(30_000))
    os.link(first, old.source / "linked too")
    begin = datetime(2026, 3, 1, 22, tzinfo=UTC)
    for number in range(16):
        grow(old.source, number + 1)
        old.day(begin + number * DAY)
    return old


def test_a_fortnight_of_rsnapshot_is_as_it_was_and_the_next_night_goes_on_from_it(nights: Nights, fortnight: Rsnapshot) -> None:
    planned = imported(nights, "rsnapshot", fortnight.conf, "--dry-run")
    intervals = sorted(path for path in fortnight.root.iterdir())
    assert [(host["host"], host["backups"]) for host in planned["hosts"]] == [("web1", len(intervals)), ("web2", len(intervals))]
    assert not (nights.pool / "hosts" / "web1").exists()
    answer = imported(nights, "rsnapshot", fortnight.conf, "--verify", "all")
    assert len(answer["backups"]) == len(answer["compared"]) == 2 * len(intervals)
    assert {comparison["differences"] for comparison in answer["compared"]} == {0}
    made = {backup["from"]: backup["name"] for backup in answer["backups"]}
    rows = {(host, row["name"]): row for host in ("web1", "web2") for row in nights.json("list", host)}
    for interval in intervals:
        stamp = datetime.fromtimestamp(interval.stat().st_mtime, UTC)
        for host in ("web1", "web2"):
            name = made[str(interval / host)]
            assert name == f"{stamp:%Y-%m-%dT%H%M%SZ}"
            assert differing(interval / host, data(nights, host, name)) == ""
            statuses = [path.lstat() for path in (interval / host).rglob("*") if path.is_symlink() or path.is_file()]
            listed = rows[host, name]
            assert listed["files"] == sum(stat.S_ISREG(status.st_mode) for status in statuses)
            assert listed["bytes"] == sum(status.st_size for status in statuses)  # as rsync counts them
    newest = nights.names("web1")[-1]
    assert manifest(data(nights, "web1", newest)) == manifest(fortnight.root / "daily.0" / "web1")
    assert imported(nights, "rsnapshot", fortnight.root)["here_already"] == 2 * len(intervals)  # nothing is made twice

    nights.host("web1", fortnight.source)
    grow(fortnight.source, 17)
    result = nights.run("web1")["web1"]
    assert result["new_bytes"] < 400_000  # only the changes, of some megabytes
    assert nights.differences("web1", fortnight.source) == []
    assert nights.record("web1")["base"] == newest
    status = nights.json("list", "web1")
    assert {row["state"] for row in status} == {"complete"}
    nights.backupd("verify", "web1")
    assert "Traceback" not in nights.backupd("retention", "explain", "web1").stderr
    restored = nights.top / "back"
    nights.backupd("restore", f"web1@{nights.names('web1')[3]}", f"{fortnight.source}/sub", "--to", restored)
    assert (restored / "sub/log").is_file() or (restored / "log").is_file()


def test_dated_trees_go_below_the_root_and_what_deceives_by_size_and_time_is_read(nights: Nights, ext4: Path) -> None:
    """A file with another content, the same size and the same time: only the inode shows the difference."""

    def fill(source: Path, number: int) -> None:
        for name in ("#hash", ";semicolon", "-dash", "new\nline", " blank ", os.fsdecode(b"caf\xe9"), "a*b?[c]", "back\\slash"):
            (source / f"{name}{number % 2}").write_text(f"{number}")
        (source / f"folder {number}").mkdir()
        (source / "kept").write_text("the same")
        file = source / "deceiving"
        file.unlink(missing_ok=True)
        file.write_text(f"content {number}")
        os.utime(file, ns=(10**18, 10**18))
        os.utime(source / "kept", ns=(10**18, 10**18))

    root = dated(ext4, 3, fill)
    for number in range(3):  # rsync itself was deceived
        file = root / f"2026-03-{number + 1:02}" / "deceiving"
        file.unlink()
        file.write_text(f"content {number}")
        os.utime(file, ns=(10**18, 10**18))
    (root / "lost+found").mkdir()
    answer = imported(nights, "tree", root, "--host", "old1", "--verify", "none")
    assert [*answer["left_out"]] == [str(root / "lost+found")]
    names = nights.names("old1")
    assert len(names) == 3
    for number, name in enumerate(names):
        assert (data(nights, "old1", name) / "deceiving").read_text() == f"content {number}"
        assert differing(root / f"2026-03-{number + 1:02}", data(nights, "old1", name)) == ""
    for row in nights.json("list", "old1"):  # the import's time, not the tree's
        assert datetime.now(UTC) - datetime.fromisoformat(row["finished"]) < DAY
    kept = {(data(nights, "old1", name) / "kept").stat().st_ino for name in names}
    assert len(kept) == 1  # shared, not written again


def test_hard_links_of_one_day_are_kept_apart_from_those_between_days(nights: Nights, ext4: Path) -> None:
    def fill(source: Path, number: int) -> None:
        if number == 0:
            for name in ("a", "b", "c", "alone"):
                (source / name).write_text("equal")
            (source / "d").write_text("linked")
            os.link(source / "d", source / "e")
        if number == 1:  # one more name of an old file, and one that is no longer a link
            os.link(source / "a", source / "a too")
            (source / "e").unlink()
            (source / "e").write_text("linked")
        if number == 2:
            (source / "a").unlink()
            os.link(source / "d", source / "folder-d")

    root = dated(ext4, 4, fill)
    imported(nights, "tree", root, "--host", "old1", "--verify", "all")
    for number, name in enumerate(nights.names("old1")):
        assert differing(root / f"2026-03-{number + 1:02}", data(nights, "old1", name)) == ""
    second = data(nights, "old1", nights.names("old1")[1])
    assert (second / "a").stat().st_ino == (second / "a too").stat().st_ino
    assert (second / "b").stat().st_nlink == 1


def test_dirvish_has_its_own_dates_and_what_failed_there_is_left_out(nights: Nights, ext4: Path) -> None:
    vault = ext4 / "bank" / "shop"
    (vault / "dirvish").mkdir(parents=True)
    for number, status in enumerate(("success", "fatal error (12)", "success")):
        image = vault / f"2026030{number + 1}"
        (image / "tree" / "etc").mkdir(parents=True)
        (image / "tree" / "etc" / "file").write_text(f"{number}")
        (image / "summary").write_text(
            f"client: shop.example.org\ntree: /srv\nBackup-begin: 2026-03-0{number + 1} 23:30:05\nStatus: {status}\n"
        )
    answer = imported(nights, "dirvish", ext4 / "bank", "--host", "shop=shop.example.org")
    assert [*answer["left_out"]] == [str(vault / "20260302")]
    names = nights.names("shop")
    expected = [datetime(2026, 3, day, 23, 30, 5).astimezone(UTC) for day in (1, 3)]
    assert names == [f"{moment:%Y-%m-%dT%H%M%SZ}" for moment in expected]
    assert (data(nights, "shop", names[1]) / "srv/etc/file").read_text() == "2"


def test_trees_of_another_path_do_not_come_between_imported_backups(nights: Nights, ext4: Path) -> None:
    """Vaults of dirvish of one client, imported one after the other: otherwise each backup would share nothing with the
    one before.
    """
    for vault, path in (("root", "/"), ("home", "/home")):
        (ext4 / vault / "dirvish").mkdir(parents=True)
        for day in (1, 2):
            (ext4 / vault / f"{day}" / "tree").mkdir(parents=True)
            text = f"client: web1\ntree: {path}\nBackup-begin: 2026-03-0{day} 22:00:{len(path):02}\nStatus: success\n"
            (ext4 / vault / f"{day}" / "summary").write_text(text)
    imported(nights, "dirvish", ext4 / "root")
    for dry in ((), ("--dry-run",)):
        assert "has imported backups of /," in imported(nights, "dirvish", ext4 / "home", *dry, status=2)
    assert len(nights.names("web1")) == 2
    assert imported(nights, "dirvish", ext4 / "root")["here_already"] == 2
    imported(nights, "dirvish", ext4 / "home", "--host", "web1-home=web1")
    assert len(nights.names("web1-home")) == 2


def test_changed_blocks_alone_are_new_with_delta(nights: Nights, ext4: Path) -> None:
    content = bytearray(os.urandom(16 << 20))

    def fill(source: Path, number: int) -> None:
        content[5 << 20 : (5 << 20) + 4096] = os.urandom(4096)
        (source / "database").write_bytes(content)

    root = dated(ext4, 3, fill)
    answer = imported(nights, "tree", root, "--host", "old1", "--delta", "--verify", "all")
    assert [comparison["differences"] for comparison in answer["compared"]] == [0, 0, 0]
    assert answer["backups"][2]["bytes"] < 1 << 20
    work("btrfs", "filesystem", "sync", nights.top)
    line = work("btrfs", "filesystem", "du", "-s", "--raw", nights.pool / "hosts/old1").stdout.splitlines()[-1].split()
    assert int(line[1]) + int(line[2]) < 24 << 20, line  # exclusive and shared


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_stopped_in_the_middle_nothing_half_is_left_and_the_next_one_makes_the_rest(
    nights: Nights, ext4: Path, backupd_running: Callable[..., Any], number: signal.Signals
) -> None:
    def fill(source: Path, day: int) -> None:
        for name in range(300):
            (source / f"{name}-{day}").write_bytes(os.urandom(20_000))

    root = dated(ext4, 6, fill)
    running = backupd_running("--config", nights.config, "import", "tree", root, "--host", "old1")
    folder = nights.pool / "hosts/old1"
    wait_for(lambda: folder.is_dir() and len(nights.names("old1")) >= 2 and (nights.pool / "hosts/old1/.working").exists())
    running.send_signal(number)
    running.communicate(timeout=60)
    assert running.returncode == (143 if number == signal.SIGTERM else -9)
    if number == signal.SIGTERM:
        assert not (nights.pool / "hosts/old1/.working").exists()
    before = nights.names("old1")
    assert 2 <= len(before) < 6
    answer = imported(nights, "tree", root, "--host", "old1", "--verify", "all")
    assert answer["here_already"] == len(before)
    names = nights.names("old1")
    assert len(names) == 6
    for place, name in enumerate(names):
        assert differing(root / f"2026-03-{place + 1:02}", data(nights, "old1", name)) == ""
    assert not (nights.pool / "hosts/old1/.working").exists()


def test_killed_before_it_was_compared_a_backup_is_compared_the_next_time(nights: Nights, ext4: Path) -> None:
    root = dated(ext4, 2, one_file)
    killed(nights, "after", "backup named", "import", "tree", str(root), "--host", "old1", count=2)
    newest = nights.names("old1")[-1]
    assert len(nights.names("old1")) == 2
    file = root / "2026-03-02" / "file"
    when = file.stat()
    file.write_text("y")  # a difference that the comparison must find
    for _ in range(2):  # it is not forgotten either
        answer = imported(nights, "tree", root, "--host", "old1", status=1)
        assert [(comparison["name"], comparison["differences"]) for comparison in answer["compared"]] == [(newest, 1)]
    file.write_text("x")
    os.utime(file, ns=(when.st_atime_ns, when.st_mtime_ns))
    answer = imported(nights, "tree", root, "--host", "old1", "--verify", "all")
    assert [comparison["differences"] for comparison in answer["compared"]] == [0, 0]
    assert imported(nights, "tree", root, "--host", "old1", "--verify", "all")["compared"] == []  # once is enough


def test_bad_input_changes_nothing(nights: Nights, ext4: Path) -> None:
    nights.host("web", nights.source)
    nights.run("web")
    empty = ext4 / "empty"
    empty.mkdir()
    for words, why in (
        (("rsnapshot", empty), "no folder such as daily.0"),
        (("dirvish", empty), "neither a vault nor a bank"),
        (("tree", empty), "give --host NAME"),
        (("tree", empty, "--host", "a"), "no folder with a date"),
        (("tree", empty, "--host", "../a"), "--host ../a"),
        (("tree", empty, "--host", "a", "--host", "b"), "only one name is possible"),
        (("tree", ext4 / "nowhere", "--host", "a"), "nowhere"),
    ):
        done = nights.backupd("import", *words, check=False)
        assert (done.returncode, why in done.stderr) == (2, True), done.stderr
    future = ext4 / "future"
    (future / "2199-01-01").mkdir(parents=True)
    (future / "2026-03-01").mkdir()
    answer = imported(nights, "tree", future, "--host", "old1")
    assert [*answer["left_out"].values()] == ["its time is in the future"]
    assert len(nights.names("old1")) == 1


def one_file(source: Path, _: int) -> None:
    (source / "file").write_text("x")


def test_a_full_pool_ends_it_with_what_is_whole(make_btrfs: Callable[..., Path], ext4: Path) -> None:
    nights = Nights(make_btrfs(size="200M"))
    nights.settings("pool", min_free="20%")

    def fill(source: Path, number: int) -> None:
        (source / f"{number}").write_bytes(os.urandom(30 << 20))

    root = dated(ext4, 5, fill)
    done = nights.backupd("import", "tree", root, "--host", "old1", check=False)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    names = nights.names("old1")
    assert names
    for place, name in enumerate(names):
        assert differing(root / f"2026-03-{place + 1:02}", data(nights, "old1", name)) == ""
    assert not (nights.pool / "hosts/old1/.working").exists()


def test_hosts_that_no_night_would_back_up_are_named_at_the_end(nights: Nights, ext4: Path) -> None:
    root = dated(ext4, 1, one_file)
    nights.host("new1", root)
    for host, is_true in (("old1", True), ("new1", False)):
        done = nights.backupd("import", "tree", root, "--host", host, "--verify", "none")
        assert ("not configured yet: old1. After `backupd host add" in done.stdout) == is_true
        assert ("not configured" in done.stdout) == is_true


def test_status_counts_and_names_hosts_that_are_not_backed_up(nights: Nights, ext4: Path) -> None:
    """Imported hosts and hosts that were removed from the configuration; for both the next step is printed."""
    root = dated(ext4, 2, one_file)
    imported(nights, "tree", root, "--host", "attic")
    shown = nights.backupd("status").stdout
    assert "not configured, so not backed up: attic (2 backups)" in " ".join(shown.split())
    assert "`backupd host add NAME`" in shown
    assert "`backupd forget NAME`" in shown
    assert nights.json("status")["unconfigured"] == [{"host": "attic", "backups": 2}]
    assert "attic has 2 backups but is not configured" in nights.backupd("status", "attic").stdout
    assert nights.json("status", "attic")["unconfigured"] == [{"host": "attic", "backups": 2}]

    nights.host("attic", nights.source)
    assert "not configured, so" not in nights.backupd("status").stdout
    assert nights.json("status")["unconfigured"] == []


def test_a_rotation_meanwhile_puts_no_other_tree_in_its_place(nights: Nights, ext4: Path) -> None:
    """The folder is renamed, and another one gets its name, just before its files are copied."""
    root = dated(ext4, 1, one_file)
    tree, moved = root / "2026-03-01", root / "rotated"
    words = ("import", "tree", str(root), "--host", "old1", "--verify", "none")
    done = does_at(nights, f"mv {tree} {moved}; mkdir {tree}", "after", "working subvolume named", *words)
    assert "1 backup imported" in done.stdout
    assert moved.is_dir()
    assert differing(moved, data(nights, "old1", nights.names("old1")[0])) == ""


# --- trees that mislead


def image(vault: Path, day: str, tree: str, **files: str) -> Path:
    """Makes an image of dirvish that is recorded as a success."""
    (vault / "dirvish").mkdir(parents=True, exist_ok=True)
    folder = vault / day
    (folder / "tree").mkdir(parents=True)
    for name, content in files.items():
        (folder / "tree" / name).write_text(content)
    when = f"{day[:4]}-{day[4:6]}-{day[6:]} 23:30:05"
    (folder / "summary").write_text(f"client: shop\ntree: {tree}\nBackup-begin: {when}\nStatus: success\n")
    return folder


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder outside of the pool."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").write_text("p")
    return victim


def test_dots_in_a_dirvish_summary_lead_nowhere(nights: Nights, ext4: Path, victim: Path) -> None:
    image(ext4 / "shop", "20260301", "/" + "../" * 20 + str(victim).lstrip("/"), new="n")
    image(ext4 / "shop", "20260302", "srv", new="n")
    answer = imported(nights, "dirvish", ext4 / "shop")
    assert set(answer["left_out"].values()) == {"its summary does not name an absolute path as its tree"}
    assert [path.name for path in victim.iterdir()] == ["precious"]


@pytest.mark.parametrize("path", ["/srv", "/srv/deep/er"])
def test_a_symlink_in_the_base_is_not_followed(nights: Nights, ext4: Path, victim: Path, path: str) -> None:
    first = image(ext4 / "shop", "20260301", "/", other="o")
    (first / "tree" / "srv").symlink_to(victim)
    second = image(ext4 / "shop", "20260302", path, new="n")
    imported(nights, "dirvish", ext4 / "shop")
    assert [path.name for path in victim.iterdir()] == ["precious"]
    copy = data(nights, "shop", nights.names("shop")[1])
    assert differing(second / "tree", copy / path.strip("/")) == ""
    assert [path.name for path in copy.iterdir()] == ["srv"]  # other paths of the base are not in it


def test_a_symlink_of_yesterday_to_the_folder_of_today_makes_nothing_old(nights: Nights, ext4: Path) -> None:
    """Its target has today's inodes, and yesterday's backup has a symlink."""

    def fill(source: Path, number: int) -> None:
        if number == 0:
            (source / "sub").symlink_to(ext4 / "dated" / "2026-03-02" / "sub")
        elif number == 1:
            (source / "sub").unlink()
            (source / "sub" / "deep").mkdir(parents=True)
            (source / "sub" / "deep" / "file").write_text("x")

    root = dated(ext4, 3, fill)
    imported(nights, "tree", root, "--host", "old1", "--verify", "none")
    for place, name in enumerate(nights.names("old1")):
        assert differing(root / f"2026-03-0{place + 1}", data(nights, "old1", name)) == ""


def test_a_tree_with_subvolumes_or_mounts_in_it_is_refused_for_their_inodes_prove_nothing(nights: Nights) -> None:
    root = nights.top / "old"
    (root / "2026-03-01").mkdir(parents=True)
    for name in ("home", "srv"):
        work("btrfs", "subvolume", "create", root / "2026-03-01" / name)
        (root / "2026-03-01" / name / "file").write_text(f"of {name}")  # with the same inode number
    answer = imported(nights, "tree", root, "--host", "old1", status=1)
    assert "another filesystem or subvolume" in answer["failed"]["old1"]
    assert not (nights.pool / "hosts" / "old1" / "latest").exists()


def test_dated_snapshots_have_their_own_device_each_and_are_read_by_content(nights: Nights) -> None:
    root = nights.top / "old"
    root.mkdir()
    work("btrfs", "subvolume", "create", root / "2026-03-01")
    for number in (1, 2, 3):
        tree = root / f"2026-03-0{number}"
        if number > 1:
            work("btrfs", "subvolume", "snapshot", root / f"2026-03-0{number - 1}", tree)
        (tree / "deceiving").write_text(f"{number}")
        (tree / f"new{number}").write_text("new")
        os.utime(tree / "deceiving", ns=(10**18, 10**18))
    imported(nights, "tree", root, "--host", "old1", "--verify", "none")
    for place, name in enumerate(nights.names("old1")):
        assert differing(root / f"2026-03-0{place + 1}", data(nights, "old1", name)) == ""


def test_a_rotation_between_two_trees_is_noticed_and_mixes_nothing(
    nights: Nights, ext4: Path, backupd_running: Callable[..., Any]
) -> None:
    root, source, before = ext4 / "snaps", ext4 / "src", None
    root.mkdir()
    source.mkdir()
    for number in range(6):  # backup.5 is the oldest
        for bulk in range(300):
            (source / f"bulk{bulk}-{number}").write_bytes(os.urandom(10_000))
        tree = root / f"backup.{5 - number}"
        work("rsync", "-aH", *((f"--link-dest={before}",) if before else ()), f"{source}/", f"{tree}/")
        os.utime(tree, (1772400000 + number * 86400,) * 2)
        before = tree
    running = backupd_running("--config", nights.config, "import", "tree", root, "--host", "old1")
    folder = nights.pool / "hosts/old1"
    wait_for(lambda: folder.is_dir() and len(nights.names("old1")) >= 1)
    running.send_signal(signal.SIGSTOP)
    for number in range(5, -1, -1):
        (root / f"backup.{number}").rename(root / f"backup.{number + 1}")
    work("rsync", "-aH", f"--link-dest={root}/backup.1", f"{source}/", f"{root}/backup.0/")
    running.send_signal(signal.SIGCONT)
    _, err = running.communicate(timeout=90)
    assert (running.returncode, "rotated during the import" in err) == (1, True)
    imported(nights, "tree", root, "--host", "old1")
    trees = {f"{datetime.fromtimestamp(tree.stat().st_mtime, UTC):%Y-%m-%dT%H%M%SZ}": tree for tree in root.iterdir()}
    assert len(trees) == 7
    for name in nights.names("old1"):
        assert differing(trees[name], data(nights, "old1", name)) == ""


def test_what_is_imported_again_after_its_deletion_is_not_known_as_the_first_was(nights: Nights, ext4: Path) -> None:
    root = dated(ext4, 2, grow)
    words = ("tree", root, "--host", "web1", "--verify", "none")
    imported(nights, *words)
    nights.backupd("verify")
    first, last = nights.names("web1")
    nights.backupd("delete", f"web1@{last}", "--force", "--now-without-grace")
    imported(nights, *words)
    assert nights.names("web1") == [first, last]
    (nights.state / "catalogue.sqlite").unlink()
    nights.backupd("rebuild")
    assert {row["name"]: row["verified"] is not None for row in nights.listed("web1")} == {first: True, last: False}
