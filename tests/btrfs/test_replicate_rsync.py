"""A second pool that fetches by rsync (`engine = "rsync"`): what is there is the same by independent programs, and can go on."""

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backupd.replicate import changes
from backupd.replicate.changes import size_and_time_tell
from backupd.repo.final_backups import final_backups
from btrkeep.pool.marker import open_pool
from tests.beds import TOP, differences, manifest, work
from tests.beds.hidden_changes import hide_changes
from tests.beds.nights import Nights
from tests.beds.two_pools import TwoPools, shown

pytestmark = pytest.mark.btrfs


@pytest.fixture
def two(make_btrfs: Callable[..., Path]) -> TwoPools:
    return TwoPools(make_btrfs(), make_btrfs(), engine="rsync")


def make_strange(source: Path) -> None:
    """What a copy has to bring besides plain files."""
    (source / "odd \n name *[x]'\"\\").write_text("x")
    os.mkfifo(source / "pipe")
    os.mknod(source / "node", 0o20600, os.makedev(1, 3))
    (source / "symlink").symlink_to("../nowhere")
    (source / "one").write_text("linked")
    os.link(source / "one", source / "other")
    with (source / "sparse").open("wb") as file:
        file.truncate(64 << 20)
        file.seek(32 << 20)
        file.write(b"x" * 5000)
    os.setxattr(source / "one", "user.note", b"\x00\xff")
    os.setxattr(source / "one", "trusted.note", b"t")
    work("setfacl", "-m", "u:1234:r,g:4321:rw", source / "sparse")
    os.chown(source / "sparse", 1234, 4321)
    (source / "folder").mkdir(mode=0o2750)
    (source / "folder/inside").write_text("y" * 100)


def backup(two: TwoPools, name: str, *, second: bool = True) -> Path:
    return (two.second if second else two.first).pool / "hosts/web1" / name


def require_same(two: TwoPools, *names: str) -> None:
    for name in names:
        assert two.differences(name) == ""
        here, there = backup(two, name), backup(two, name, second=False)
        assert differences(manifest(there), manifest(here)) == []
        assert shown(here)["Received UUID"] == shown(there)["UUID"]
        assert shown(here)["Flags"] == "readonly"


def test_nights_by_rsync_are_the_same_share_what_did_not_change_and_keep_links_as_they_are(two: TwoPools) -> None:
    """By a stand-in for ssh, within a bandwidth and in cells; the last night by the other engine."""
    make_strange(two.source)
    (two.source / "large").write_bytes(os.urandom(20 << 20))
    two.second.settings("backup", bandwidth="500MB")
    forced(two)
    first = two.night("2026-03-01T22:00:00Z", "a")
    assert [one["parent"] for one in two.fetch()[0]["fetched"]] == [None]
    require_same(two, first)
    with (two.source / "large").open("r+b") as file:
        file.seek(5 << 20)
        file.write(b"changed" * 100)
    (two.source / "other").unlink()  # the link is broken: what is new of one name must not become the other's
    (two.source / "other").write_text("LINKED")
    os.utime(two.source / "other", ns=((two.source / "one").stat().st_atime_ns, (two.source / "one").stat().st_mtime_ns + 1))
    os.link(two.source / "large", two.source / "large-too")
    (two.source / "folder/inside").unlink()
    (two.source / "folder").rmdir()
    (two.source / "folder").write_text("a file now")
    with (two.source / "new sparse").open("wb") as file:
        file.truncate(4 << 20)
        file.write(b"z")
    second = two.night("2026-03-02T22:00:00Z", "b")
    (told,) = two.fetch()
    assert [(one["backup"], one["parent"]) for one in told["fetched"]] == [(second, first)]
    assert told["bytes"] < 5 << 20  # the zeros of the new file, and little of the twenty million
    require_same(two, first, second)
    assert work("du", "-s", "--block-size=1", backup(two, second) / f"data{two.source}/new sparse").stdout.split()[0] == "4096"
    own = work("btrfs", "filesystem", "du", "-s", "--raw", backup(two, second)).stdout.splitlines()[1].split()
    assert int(own[1]) < 2 << 20  # exclusive, of more than twenty million
    assert json.loads(two.second.backupd("rebuild", "--json").stdout)["backups"] == 2
    two.second.tables["replica.office"]["engine"] = "send"
    two.second.write()
    third = two.night("2026-03-03T22:00:00Z", "c")
    assert [(one["backup"], one["parent"]) for one in two.fetch()[0]["fetched"]] == [(third, second)]
    require_same(two, third)
    assert backup(two, "latest").readlink() == Path(third)


def test_zeros_of_sparse_files_do_not_come(two: TwoPools) -> None:
    """In a first copy, of a new file, and of one that has grown. Zeros of a file that is not sparse are copied as ever."""

    def sparse(name: str, size: int, at: int) -> None:
        with (two.source / name).open("r+b" if (two.source / name).exists() else "wb") as file:
            file.truncate(size)
            file.seek(at)
            file.write(os.urandom(5000))

    (two.source / "folder").mkdir(mode=0o750)
    sparse("folder/first", 200 << 20, 100 << 20)
    first = two.night("2026-03-01T22:00:00Z", "a")
    (told,) = two.fetch()
    assert told["bytes"] < 8 << 20
    require_same(two, first)
    sparse("folder/first", 400 << 20, 300 << 20)
    sparse("second", 200 << 20, 50 << 20)
    (two.source / "dense").write_bytes(bytes(24 << 20))
    second = two.night("2026-03-02T22:00:00Z", "b")
    (told,) = two.fetch()
    assert told["bytes"] < 40 << 20  # the dense zeros come
    require_same(two, first, second)
    for name in ("folder/first", "second"):
        assert int(work("du", "--block-size=1", backup(two, second) / f"data{two.source}" / name).stdout.split()[0]) <= 1 << 20


@pytest.mark.parametrize("over_ssh", [False, True], ids=["local", "ssh"])
def test_a_backup_in_which_something_is_mounted_is_not_copied(two: TwoPools, over_ssh: bool) -> None:
    """rsync would take what is mounted for the backup's, and not see what that hides."""
    if over_ssh:
        forced(two)
    (two.source / "sub").mkdir()
    (two.source / "sub/file").write_text("of the backup")
    made = two.night("2026-03-01T22:00:00Z", "a")
    place = backup(two, made, second=False) / f"data{two.source}/sub"
    work("mount", "-t", "tmpfs", "tmpfs", place)
    try:
        (place / "stranger").write_text("not of the backup")
        (told,) = two.fetch(status=1)
    finally:
        work("umount", place)
    assert (told["fetched"], "mounted" in told["failed"][0]["error"]) == ([], True)
    assert two.names(two.second.pool) == []
    two.fetch()
    require_same(two, made)


def forced(two: TwoPools, script: str = "") -> None:
    """By a stand-in for ssh with a forced command; `script` is run in its place when rsync asks, with "$@" the real answer."""
    two.over_ssh(f'case "$SSH_ORIGINAL_COMMAND" in *--server*) {script or ":"};; esac\nexec "$@"')


def hide_change(backup: Path, path: str, content: bytes) -> None:
    """Gives a file of a backup other content under the same size and time, as a night that compares checksums does."""
    work("btrfs", "property", "set", backup, "ro", "false")
    file = backup / path
    times = file.stat()
    assert times.st_size == len(content)
    file.write_bytes(content)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    work("btrfs", "property", "set", backup, "ro", "true")
    hide_changes(backup.parent)


@pytest.mark.parametrize("is_base_written", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_file_that_changed_under_the_same_size_and_time_is_seen(two: TwoPools, is_base_written: bool) -> None:
    (two.source / "quiet").write_text("before")
    (two.source / "quiet and large").write_bytes(b"x" * 200_000)
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    second = two.night("2026-03-02T22:00:00Z", "b")
    data = f"data{two.source}"
    hide_change(backup(two, second, second=False), f"{data}/quiet", b"behind")
    hide_change(backup(two, second, second=False), f"{data}/quiet and large", b"y" * 200_000)
    if is_base_written:  # by hand, so its generation tells nothing
        hide_change(backup(two, first, second=False), f"{data}/quiet", b"before")
    two.fetch()
    require_same(two, first, second)


@pytest.mark.long
def test_what_did_not_grow_from_the_common_backup_is_compared_by_checksums(two: TwoPools) -> None:
    """Two backups of the first pool that are no snapshots of each other, as after `backupd import`."""
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    second = two.night("2026-03-02T22:00:00Z", "b")
    there = backup(two, second, second=False)
    other = there.with_name("other")
    work("btrfs", "subvolume", "create", other)
    work("cp", "-a", f"{there}/.", other)
    record = json.loads((other / "backup.json").read_text())
    (other / "backup.json").write_text(json.dumps({**record, "uuid": shown(other)["UUID"]}))
    quiet = other / f"data{two.source}/new-2026-03-01"
    times = quiet.stat()
    quiet.write_text("x")
    os.utime(quiet, ns=(times.st_atime_ns, times.st_mtime_ns))
    work("btrfs", "property", "set", other, "ro", "true")
    work("btrfs", "subvolume", "delete", there)
    other.rename(there)
    two.first.backupd("rebuild")
    two.fetch()
    require_same(two, first, second)
    assert (backup(two, second) / f"data{two.source}/new-2026-03-01").read_text() == "x"


def test_who_cannot_tell_soon_whether_sizes_and_times_tell_says_no(two: TwoPools, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other side does not wait for ever, and would ask for the same the next time: every file may have another owner now."""
    two.night("2026-03-01T22:00:00Z", "a")
    two.night("2026-03-02T22:00:00Z", "b")
    pool = open_pool(two.first.pool)
    chosen, parent = final_backups(pool, "web1")
    assert size_and_time_tell(pool, "web1", chosen, parent)
    monkeypatch.setattr(changes, "_LONGEST_LOOK", -1.0, raising=False)
    assert not size_and_time_tell(pool, "web1", chosen, parent)


@pytest.mark.long
def test_the_two_engines_go_on_from_each_others_copies_and_a_third_pool_from_theirs(
    two: TwoPools, make_btrfs: Callable[..., Path]
) -> None:
    make_strange(two.source)
    (two.source / "large").write_bytes(os.urandom(3 << 20))
    third = Nights(make_btrfs(), "--rehearsal")
    names: list[str] = []
    for day, engine in enumerate(("rsync", "send", "rsync", "rsync", "send"), 1):
        two.second.tables["replica.office"]["engine"] = engine
        two.second.write()
        third.tables["replica.second"] = {"from": str(two.second.pool), "engine": "send" if engine == "rsync" else "rsync"}
        third.write()
        with (two.source / "large").open("r+b") as file:
            file.seek(day << 18)
            file.write(b"%d" % day * 3000)
        names.append(two.night(f"2026-03-{day:02}T22:00:00Z", str(day)))
        expected = [(names[-1], names[-2] if day > 1 else None)]
        (told,) = two.fetch()
        assert [(one["backup"], one["parent"]) for one in told["fetched"]] == expected
        (told,) = json.loads(third.backupd("replicate", "--json", "--now", "2026-03-20T12:00:00Z").stdout)
        assert [(one["backup"], one["parent"]) for one in told["fetched"]] == expected
    require_same(two, *names)
    for name in names:
        assert differences(manifest(backup(two, name)), manifest(third.pool / "hosts/web1" / name)) == []


@pytest.mark.long
def test_a_copy_that_was_changed_by_hand_is_not_built_upon(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    work("btrfs", "property", "set", "-f", backup(two, first), "ro", "false")
    (backup(two, first) / "mine").write_text("x")
    work("btrfs", "property", "set", backup(two, first), "ro", "true")
    second = two.night("2026-03-02T22:00:00Z", "b")
    assert [(one["backup"], one["parent"]) for one in two.fetch()[0]["fetched"]] == [(second, None)]
    assert {one["name"]: one["state"] for one in two.second.json("list", "web1")} == {first: "altered", second: "complete"}


@pytest.mark.long
def test_a_host_that_is_promoted_goes_on_from_a_copy_by_rsync(two: TwoPools) -> None:
    (two.source / "large").write_bytes(os.urandom(3 << 20))
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    (two.second.state / "catalogue.sqlite").unlink()
    two.second.backupd("rebuild")
    second = two.night("2026-03-02T22:00:00Z", "b")
    assert [(one["backup"], one["parent"]) for one in two.fetch()[0]["fetched"]] == [(second, first)]
    assert "common with replica office" in two.second.backupd("retention", "explain", "web1").stdout
    assert "common with replica office" in two.first.backupd("retention", "explain", "web1").stdout
    two.second.backupd("promote", "web1", "--yes")
    two.second.host("web1", two.source)
    told = json.loads(two.second.backupd("run", "web1", "--json", "--now", "2026-03-22T22:00:00Z").stdout)
    assert told[0]["outcome"] == "complete"
    assert told[0]["new_bytes"] < 100_000  # of three million


@pytest.mark.long
@pytest.mark.parametrize("script", ['"$@" | python3 -c "$RELAY" cut 2000000; exit', "exit 255", "exec yes"])
def test_what_was_cut_off_leaves_nothing_and_is_fetched_again(two: TwoPools, script: str) -> None:
    (two.source / "large").write_bytes(os.urandom(6_000_000))
    first = two.night("2026-03-01T22:00:00Z", "a")
    forced(two, script)
    assert "rsync: " in two.fetch(status=1)[0]["failed"][0]["error"]
    assert two.names(two.second.pool) == []
    assert not backup(two, ".receiving").exists()
    forced(two)
    assert [one["backup"] for one in two.fetch()[0]["fetched"]] == [first]
    require_same(two, first)


@pytest.mark.long
def test_a_byte_that_was_garbled_on_the_way_is_noticed_by_rsync_which_sends_the_file_again(two: TwoPools) -> None:
    (two.source / "large").write_bytes(os.urandom(6_000_000))
    first = two.night("2026-03-01T22:00:00Z", "a")
    forced(two, '"$@" | python3 -c "$RELAY" flip 2000000; exit')
    two.fetch()
    require_same(two, first)


@pytest.mark.long
def test_a_signal_ends_rsync_too_and_leaves_nothing(two: TwoPools, backupd_running: Callable[..., Any]) -> None:
    (two.source / "large").write_bytes(os.urandom(6_000_000))
    two.night("2026-03-01T22:00:00Z", "a")
    forced(two, '"$@" | python3 -c "$RELAY" stop 3000000; exit')
    process = backupd_running("--config", two.second.config, "replicate", "--now", "2026-03-20T12:00:00Z")
    receiving, end = backup(two, ".receiving"), time.monotonic() + 30
    while not (receiving.is_dir() and any(receiving.rglob(".large*"))):
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 143
    assert not receiving.exists()
    assert two.names(two.second.pool) == []


def fetch_after_kill(two: TwoPools) -> None:
    """rsync of a killed replication may live for a moment, and holds the host's lock as long."""
    end = time.monotonic() + 30
    while (done := two.second.backupd("replicate", "--now", "2026-03-20T12:00:00Z", check=False)).returncode:
        assert "lock" in done.stderr, done.stderr
        assert time.monotonic() < end, done.stderr
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("when", "checkpoint"),
    [
        pytest.param("after", "snapshot made", marks=pytest.mark.long),
        ("after", "process group noted"),
        pytest.param("before", "copy marked", marks=pytest.mark.long),
        pytest.param("after", "subvolume made read-only", marks=pytest.mark.long),
    ],
)
def test_a_kill_leaves_nothing_that_the_next_one_does_not_clear_away(two: TwoPools, when: str, checkpoint: str) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    second = two.night("2026-03-02T22:00:00Z", "b")
    words = ["die", when, checkpoint, "1", "--config", str(two.second.config), "replicate", "--now", "2026-03-20T12:00:00Z"]
    killed = work(sys.executable, "-m", "tests.beds.kill_at", *words, check=False, cwd=TOP)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    fetch_after_kill(two)
    require_same(two, first, second)
    assert not backup(two, ".receiving").exists()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_kill_at_any_checkpoint_costs_no_backup(two: TwoPools) -> None:
    """Only this sees each of them; the one above has those at which the states differ."""
    names = [two.night("2026-03-01T22:00:00Z", "a")]
    two.fetch()
    number = 0
    while True:
        number += 1
        names.append(two.night(f"2026-03-{number // 24 + 2:02}T{number % 24:02}:00:00Z", str(number)))
        words = ["die", "any", "any", str(number), "--config", str(two.second.config), "replicate", "--now", "2026-05-20T12:00:00Z"]
        killed = work(sys.executable, "-m", "tests.beds.kill_at", *words, check=False, cwd=TOP)
        fetch_after_kill(two)
        assert not backup(two, ".receiving").exists()
        require_same(two, names[-1])
        if killed.returncode != -signal.SIGKILL:
            break
    assert number > 15


@pytest.mark.long
def test_a_pool_that_is_too_small_says_so_and_keeps_what_it_has(make_btrfs: Callable[..., Path]) -> None:
    two = TwoPools(make_btrfs(), make_btrfs(size="200M"), engine="rsync")
    two.second.settings("pool", min_free="1MiB")
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    (two.source / "too large").write_bytes(os.urandom(300 << 20))
    two.night("2026-03-02T22:00:00Z", "b")
    two.fetch(status=4)
    assert two.names(two.second.pool) == [first]
    assert not backup(two, ".receiving").exists()
    require_same(two, first)


def test_an_older_server_and_a_pushed_replica_are_told_that_rsync_is_not_for_them(two: TwoPools) -> None:
    two.night("2026-03-01T22:00:00Z", "a")
    two.over_ssh(f"exec {shlex.quote(sys.executable)} -m tests.beds.hostile_pool device x")
    assert "cannot send by rsync" in json.dumps(two.fetch(status=1))
    said = two.second.backupd("check", "--connect", check=False).stdout
    assert "cannot send by rsync" in " ".join(said.split())
    two.second.tables["replica.office"]["from"] = "push"
    two.second.write()
    checked = two.second.backupd("check", check=False)
    assert checked.returncode == 1
    assert "engine" in checked.stdout + checked.stderr
