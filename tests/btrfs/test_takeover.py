"""Snapshots of btrbk and snapper become backups without copying: compared by rsync, their room measured by btrfs."""

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds import manifest, work
from tests.beds.everything import everything
from tests.beds.nights import Nights
from tests.beds.old_trees import data, differing, imported
from tests.beds.watch import checkpoints, does_at, killed, subvolumes

pytestmark = [pytest.mark.btrfs, pytest.mark.root, pytest.mark.slow]
_STEPS = {"snapshot made", "snapshot arranged", "working subvolume named", "subvolume made read-only", "backup named"}
TIMES = ("20260301T2200", "20260302T220000+0100", "20260303T2200_1")


@pytest.fixture
def nights(make_btrfs: Callable[..., Path]) -> Nights:
    return Nights(make_btrfs(size="500M"))


def snapshots(nights: Nights, *names: str) -> list[Path]:
    """Returns read-only snapshots of a subvolume that changes, as btrbk makes them."""
    live, folder = nights.top / "live", nights.top / "btrbk"
    folder.mkdir()
    work("btrfs", "subvolume", "create", live)
    everything(live / "all")
    (live / "data").mkdir()
    (live / "backup.json").write_text("{}")
    (live / "linked").write_bytes(os.urandom(3 << 20))
    os.link(live / "linked", live / "linked too")
    work("setfacl", "-m", "u:daemon:rx", live)
    work("setfattr", "-n", "user.of", "-v", "root", live)
    os.chown(live, 3, 4)
    live.chmod(0o2751)
    made = list[Path]()
    for name in names:
        (live / name).write_bytes(os.urandom(100_000))
        os.utime(live, ns=(10**18 + len(made), 10**18 + len(made)))
        work("btrfs", "subvolume", "snapshot", "-r", live, folder / f"home.{name}")
        made.append(folder / f"home.{name}")
    return made


def exclusive(folder: Path) -> int:
    work("btrfs", "filesystem", "sync", folder)
    return int(work("btrfs", "filesystem", "du", "-s", "--raw", folder).stdout.splitlines()[-1].split()[1])


def test_snapshots_of_btrbk_are_taken_over_and_the_next_night_goes_on_from_them(nights: Nights) -> None:
    made = snapshots(nights, *TIMES)
    before = [manifest(path) for path in made]
    planned = imported(nights, "btrbk", nights.top / "btrbk", "--host", "web1", "--path", "/srv/home", "--dry-run")
    assert [(host["host"], host["backups"]) for host in planned["hosts"]] == [("web1", 3)]
    answer = imported(nights, "btrbk", nights.top / "btrbk", "--host", "web1", "--path", "/srv/home", "--verify", "all")
    assert [comparison["differences"] for comparison in answer["compared"]] == [0, 0, 0]
    names = nights.names("web1")
    assert names[1] == "2026-03-02T210000Z"
    for snapshot, name in zip(made, names, strict=True):
        assert differing(snapshot, data(nights, "web1", name) / "srv/home") == ""
        assert exclusive(nights.backup("web1", name)) <= 16 << 10  # backup.json
    assert [manifest(path) for path in made] == before
    assert imported(nights, "btrbk", nights.top / "btrbk", "--host", "web1")["here_already"] == 3

    source = nights.source / "srv"
    work("cp", "-a", "--reflink=never", made[-1], source)
    (source / "linked too").unlink()
    (source / "linked too").write_bytes((source / "linked").read_bytes()[:-1] + b"\0")  # the link is broken, and this one changed
    work("mount", "--mkdir", "--bind", source, "/srv/home")
    try:
        nights.host("web1", "/srv/home", address=None)
        assert nights.run("web1")["web1"]["outcome"] == "complete"
    finally:
        work("umount", "/srv/home")
    assert nights.record("web1")["base"] == names[-1]
    newest = data(nights, "web1", nights.names("web1")[-1]) / "srv/home"
    assert (newest / "linked").read_bytes() == (source / "linked").read_bytes()
    assert (newest / "linked too").read_bytes() == (source / "linked too").read_bytes()


def test_nothing_is_taken_over_for_a_forgotten_host_whose_backups_all_go(nights: Nights) -> None:
    (first,) = snapshots(nights, TIMES[0])
    words = ("btrbk", first.parent, "--host", "web1", "--verify", "none")
    imported(nights, *words)
    names = nights.names("web1")
    nights.backupd("forget", "web1", "--yes")
    work("btrfs", "subvolume", "snapshot", "-r", first, first.with_name(f"home.{TIMES[1]}"))
    (why,) = imported(nights, *words, status=1)["failed"].values()
    assert "web1 is forgotten" in why
    assert nights.names("web1") == names
    nights.backupd("forget", "web1", "--undo")
    assert len(imported(nights, *words)["backups"]) == 1


def test_snapshots_of_snapper_have_their_time_in_info_xml(nights: Nights) -> None:
    (made,) = snapshots(nights, "one")
    folder = nights.top / "live" / ".snapshots"
    work("btrfs", "subvolume", "create", folder)
    for number in ("1", "2", "3"):
        (folder / number).mkdir()
        (folder / number / "info.xml").write_text(
            f"<snapshot><num>{number}</num><date>2026-03-0{number} 22:00:03</date></snapshot>"
        )
    work("btrfs", "subvolume", "snapshot", "-r", made, folder / "1" / "snapshot")
    work("btrfs", "subvolume", "snapshot", "-r", nights.top / "live", folder / "2" / "snapshot")
    answer = imported(nights, "snapper", nights.top / "live", "--host", "web1")
    assert [comparison["differences"] for comparison in answer["compared"]] == [0]
    assert list(answer["left_out"]) == [str(folder / "3")]
    assert nights.names("web1") == ["2026-03-01T220003Z", "2026-03-02T220003Z"]
    second = data(nights, "web1", "2026-03-02T220003Z")
    assert not (second / ".snapshots").exists()  # an empty folder in the place of a subvolume
    (folder / "2" / "snapshot").stat()
    assert differing(made, data(nights, "web1", "2026-03-01T220003Z")) == ""
    assert second.stat().st_mtime_ns == (nights.top / "live").stat().st_mtime_ns


def test_a_snapshot_with_subvolumes_in_it_is_compared_but_for_these(nights: Nights) -> None:
    """A snapshot that differs must not be listed among the equal ones."""
    live, folder = nights.top / "live", nights.top / "btrbk"
    snapshots(nights)
    (live / "b").mkdir()
    for name in ("one", "b/tw[o]*\\", "b/th\\ree", "a\nb"):
        work("btrfs", "subvolume", "create", live / name)
    (live / "b" / "twoo\\").mkdir()  # a pattern could match it too
    work("setfacl", "-d", "-m", "u:1000:rwx", live)  # new entries inherit that ACL
    work("btrfs", "subvolume", "snapshot", live, folder / "home.20260301")
    work("btrfs", "subvolume", "snapshot", live, folder / "home.20260302")
    answer = imported(nights, "btrbk", folder, "--host", "web1", "--verify", "none")
    assert answer["compared"] == []
    (folder / "home.20260302" / "b" / "twoo\\" / "new").write_text("since")
    answer = imported(nights, "btrbk", folder, "--host", "web1", "--verify", "all", status=1)
    assert [comparison["differences"] for comparison in answer["compared"]] == [0, 2]
    answer = imported(nights, "btrbk", folder, "--host", "web1", "--verify", "all", status=1)
    assert [comparison["differences"] for comparison in answer["compared"]] == [2]


def test_what_cannot_be_taken_over_is_refused_and_nothing_is_left(nights: Nights, make_btrfs: Callable[..., Path]) -> None:
    elsewhere = make_btrfs(size="200M")
    work("btrfs", "subvolume", "create", elsewhere / "home.20260301")
    answer = imported(nights, "btrbk", elsewhere, "--host", "web1", status=1)
    assert "another filesystem" in answer["failed"]["web1"]
    assert "web1" not in str(work("btrfs", "subvolume", "list", nights.top).stdout)


def test_flags_of_chattr_hold_up_neither_the_takeover_nor_the_next_night(nights: Nights) -> None:
    live, source = nights.top / "live", nights.source
    snapshots(nights)
    for folder in ("nocow", "fixed folder", "a/b"):
        (live / folder).mkdir(parents=True)
    work("chattr", "+C", live / "nocow")
    fixed = [live / name for name in ("fixed", "fixed folder/in", "a/b/fixed", "a/b/gone", "nocow/image")]
    for file in fixed:
        file.write_bytes(os.urandom(5000))
    work("btrfs", "subvolume", "create", live / "fixed folder" / "subvolume")
    (live / "log").write_text("one line\n")
    work("cp", "-a", "--reflink=never", f"{live}/.", source)
    (source / "fixed folder" / "subvolume").rmdir()
    work("chattr", "+i", *fixed, live / "fixed folder")
    work("chattr", "+a", live / "log")
    made = nights.top / "btrbk" / "home.20260301"
    work("btrfs", "subvolume", "snapshot", live, made)
    work("chattr", "+i", made)
    work("btrfs", "property", "set", made, "ro", "true")
    answer = imported(nights, "btrbk", nights.top / "btrbk", "--host", "web1", "--path", str(source), "--verify", "all")
    assert [comparison["differences"] for comparison in answer["compared"]] == [0]

    for name in ("fixed", "fixed folder/in", "fixed folder/new", "a/b/fixed", "nocow/new"):
        (source / name).write_text("in the next night")
    (source / "log").write_text("rotated\n")
    (source / "a/b/gone").unlink()
    nights.host("web1", source, address=None)
    assert nights.run("web1")["web1"]["outcome"] == "complete"
    copy = data(nights, "web1", nights.names("web1")[-1]) / str(source).strip("/")
    assert differing(source, copy) == ""
    assert [work("lsattr", "-d", copy / name).stdout.split()[0].strip("-") for name in ("nocow", "nocow/new")] == ["", ""]
    work("chattr", "-i", *fixed, live / "fixed folder")


def test_a_night_that_began_in_the_second_of_the_snapshot_is_not_taken_for_a_killed_takeover(nights: Nights) -> None:
    """The timers of both programs fire at the full hour, and without exclude patterns the host has the settings of a takeover."""
    nights.settings("backup", exclude=[])
    nights.host("web1", nights.source)
    (nights.source / "large").write_bytes(os.urandom(8 << 20))
    nights.in_the_middle(1 << 20, end="dies")
    nights.backupd("run", "web1", check=False)
    left = nights.record("web1", ".working")
    began = left["started"].replace("-", "").replace(":", "").replace("Z", "+0000")
    snapshots(nights, began)
    words = ("btrbk", nights.top / "btrbk", "--host", "web1", "--path", str(nights.source))
    assert "unfinished backup" in imported(nights, *words, status=1)["failed"]["web1"]
    assert nights.record("web1", ".working")["uuid"] == left["uuid"]


def test_killed_at_each_checkpoint_the_next_one_makes_it(nights: Nights) -> None:
    (made,) = snapshots(nights, "20260301")
    words = ("import", "btrbk", str(nights.top / "btrbk"), "--host", "web1", "--verify", "none")
    listed = [checkpoint.split(" ", 1)[1] for checkpoint in checkpoints(nights, *words) if checkpoint.startswith("before ")]
    steps = [step for step in dict.fromkeys(listed) if listed.count(step) == 1]
    assert {*steps} >= _STEPS
    for number, step in enumerate(step for step in steps if step in _STEPS):
        host = f"web{number + 2}"
        killed(nights, "before" if number % 2 else "after", step, *(host if word == "web1" else word for word in words))
        imported(nights, "btrbk", nights.top / "btrbk", "--host", host, "--verify", "none")
        (name,) = nights.names(host)
        assert differing(made, data(nights, host, name)) == "", step
        assert not (nights.pool / "hosts" / host / ".working").exists()


@pytest.mark.parametrize("subject", ["its record cannot be written", "a signal"])
def test_a_takeover_that_ends_midway_leaves_nothing_and_the_next_one_makes_it(nights: Nights, subject: str) -> None:
    (made,) = snapshots(nights, "20260301")
    before = manifest(made)
    in_the_way = shlex.quote(str(nights.pool / "hosts/web1/.working/backup.json.new"))
    words = ("import", "btrbk", str(made.parent), "--host", "web1", "--verify", "none")
    if subject == "a signal":
        done = does_at(nights, "kill -TERM $PPID", "after", "snapshot made", *words)
        assert done.returncode == 143, done.stderr
    else:
        done = does_at(nights, f"mkdir {in_the_way}", "after", "working subvolume named", *words)
        assert (done.returncode, "Is a directory" in done.stdout + done.stderr) == (1, True), done.stderr
    assert subvolumes(nights) == {}
    assert manifest(made) == before
    assert len(imported(nights, *words[1:])["backups"]) == 1
    (name,) = nights.names("web1")
    assert differing(made, data(nights, "web1", name)) == ""


def test_a_snapshot_with_the_folder_that_a_takeover_makes_for_a_moment_is_refused(nights: Nights) -> None:
    """Otherwise the takeover would write its content into a folder of the user."""
    snapshots(nights)
    (nights.top / "live" / ".btrkeep-takeover").mkdir()
    made = nights.top / "btrbk" / "home.20260301"
    work("btrfs", "subvolume", "snapshot", "-r", nights.top / "live", made)
    before = manifest(made)
    (why,) = imported(nights, "btrbk", made.parent, "--host", "web1", status=1)["failed"].values()
    assert "it contains .btrkeep-takeover, a name" in why
    assert subvolumes(nights) == {}
    assert manifest(made) == before


def test_a_snapshot_that_is_replaced_by_another_of_its_name_is_not_taken_over_under_its_time(nights: Nights) -> None:
    """A rotation may give this name to another snapshot at any moment."""
    made, other = snapshots(nights, "20260301", "20260302")
    words = ("import", "btrbk", str(made.parent), "--host", "web1", "--verify", "none", "--json")
    aside = made.with_name("aside")  # a read-only subvolume cannot change its folder
    done = does_at(nights, f"mv {made} {aside} && mv {other} {made}", "before", "snapshot made", *words)
    assert done.returncode == 1, done.stderr
    assert f"{made} was replaced" in str(json.loads(done.stdout)["failed"])
    assert subvolumes(nights) == {}
