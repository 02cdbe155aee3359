"""`backupd repair`: damaged data is correct again in a copy beside the damaged backup; compared with the host's own files."""

import json
import os
import shlex
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.beds.faults import damage
from tests.beds.manifest import differences, manifest
from tests.beds.nights import Nights
from tests.beds.two_pools import TwoPools
from tests.beds.watch import does_at, killed, rows, subvolumes
from tests.beds.work import work

pytestmark = [pytest.mark.btrfs]
MIB = 1 << 20
DAY = timedelta(days=1)


def repair(nights: Nights, *words: str, status: int = 0) -> dict[str, Any]:
    done = nights.backupd("repair", *words, "--json", check=False)
    assert done.returncode == status, done.stdout + done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def fates(answer: dict[str, Any]) -> dict[str, list[tuple[str, str | None, str | None]]]:
    return {
        backup["name"]: [(file["fate"], file["copy"], file["proof"]) for file in backup["files"]] for backup in answer["backups"]
    }


def night(nights: Nights, days_ago: int) -> str:
    nights.night("web", now=datetime.now(UTC).replace(microsecond=0) - days_ago * DAY)
    return nights.names("web")[-1]


def spoilt(top: Path, tree: Path) -> tuple[Nights, str, str, str]:
    """Two backups that share a damaged file, which the third fetched again; `verify` had recorded its checksum."""
    nights = Nights(top)
    for folder in ("a", "c"):  # empty files, so that the links are in a leaf of the tree that no repair changes
        (tree / folder).mkdir()
        for number in range(500):
            (tree / folder / str(number)).touch()
    (tree / "b").mkdir()
    (tree / "b/of").write_bytes(os.urandom(MIB))
    (tree / "b/links").hardlink_to(tree / "b/of")
    content = os.urandom(MIB)
    (tree / "database").write_bytes(content)
    os.setxattr(tree / "database", "user.of", b"the owner")
    os.chown(tree / "database", 123, 456)
    (tree / "database").chmod(0o4750)
    work("setcap", "cap_net_raw+ep", tree / "database")
    os.utime(tree / "database", ns=(10**18, 10**18 + 7))
    (tree / "other name").hardlink_to(tree / "database")
    (tree / "log").write_text("first night")
    nights.host("web", tree)
    first = night(nights, 3)
    (tree / "log").write_text("second night, longer")
    second = night(nights, 2)
    nights.backupd("verify")
    damage(top, content[MIB // 2 : MIB // 2 + 4096])
    assert nights.backupd("verify", check=False).returncode == 1
    (tree / "log").write_text("the third night, longer again")
    third = night(nights, 1)
    assert len(rows(nights, "select * from damage")) == 4
    return nights, first, second, third


def test_the_copies_are_what_the_backups_were_and_stand_in_their_place(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights, first, second, third = spoilt(make_btrfs(size="300M"), tree)
    nights.tables["retention"] = {"daily": 14}
    nights.write()
    before = {name: nights.record("web", name) for name in nights.names("web")}
    planned = repair(nights, "--dry-run", status=1)
    assert fates(planned) == {name: [("repaired", third, "checksum")] * 2 for name in (first, second)}
    assert {name: nights.record("web", name) for name in nights.names("web")} == before
    done = repair(nights, "--yes")
    copies = {backup["name"]: backup["repaired_in"] for backup in done["backups"]}
    assert sorted(copies) == [first, second]
    assert [backup["stays"] for backup in done["backups"]] == [None, None]
    (tree / "log").write_text("second night, longer")
    truth, log = manifest(tree), tree / "log"
    for old, new in copies.items():
        assert nights.subvolume("web", new)["Flags"] == "readonly"
        left = differences(truth, manifest(nights.data("web", tree, new)))
        assert [line for line in left if "log" not in line and "''" not in line and "'.'" not in line] == [], left
        assert (nights.data("web", tree, new) / "database").read_bytes() == (tree / "database").read_bytes()
        answer = nights.record("web", new)
        assert (answer["repaired"]["of"], answer["repaired"]["files"], answer["base"], answer["state"]) == (old, 2, old, "complete")
    assert (nights.data("web", tree, copies[first]) / "log").read_text() == "first night"
    assert (nights.data("web", tree, copies[second]) / "log").read_text() == log.read_text()
    listed = {row["name"]: row for row in nights.listed("web")}
    assert [listed[name]["state"] for name in (first, second, third)] == ["expired", "expired", "complete"]
    assert {listed[name]["verified"]["state"] for name in (first, second)} == {"damaged"}, "they still are"
    assert nights.json("status")["verification"]["damaged"] == [], "nothing is to be done about them"
    assert "damaged files" not in nights.backupd("check", check=False).stdout
    assert "repaired in" in nights.backupd("retention", "explain", "web").stdout
    assert "a repaired copy of" in nights.backupd("list", "web", "--json").stdout
    nights.backupd("expire", "web", "--skip-grace", "--wait")
    assert nights.names("web") == sorted([*copies.values(), third])
    assert nights.backupd("verify", check=False).returncode == 0
    assert repair(nights)["backups"] == []


def test_the_next_night_grows_from_the_repaired_copy_of_the_newest_and_splits_links(
    make_btrfs: Callable[..., Path], tree: Path
) -> None:
    nights, _, second, third = spoilt(make_btrfs(size="300M"), tree)
    nights.backupd("delete", f"web@{third}", "--now-without-grace")
    done = repair(nights, "--yes", "--from", "/")
    copy = {backup["name"]: backup["repaired_in"] for backup in done["backups"]}[second]
    assert (nights.pool / "hosts/web/latest").readlink() == Path(copy)
    for name in ("other name", "b/links"):  # rsync writes in place: a name that is still linked in the backup would be overwritten
        (tree / name).unlink()
        (tree / name).write_bytes(os.urandom(MIB))
    nights.run("web")
    assert nights.grew_from("web") == copy
    assert nights.differences("web", tree) == []
    assert (nights.data("web", tree, copy) / "database").read_bytes() == (tree / "database").read_bytes()


def test_without_a_recorded_checksum_a_copy_is_taken_only_on_request(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = Nights(make_btrfs(size="300M"))
    nights.tables["verify"] = {"new_files": "none"}
    good, other = os.urandom(MIB), os.urandom(MIB)
    (tree / "good").write_bytes(good)
    (tree / "other").write_bytes(other)
    (tree / "tiny").write_bytes(tiny := os.urandom(4096))
    (tree / "tail").write_bytes(tail := os.urandom(5000))
    (tree / "touched").write_bytes(touched := os.urandom(MIB))
    nights.host("web", tree)
    old = night(nights, 2)
    for content in (good[: 8 * 4096], other[:4096], tiny, tail[:4096], touched[:4096]):
        damage(nights.top, content)
    assert nights.backupd("verify", check=False).returncode == 1
    stamp = (tree / "other").stat().st_mtime_ns
    (tree / "other").write_bytes(other[: MIB // 2] + os.urandom(MIB // 2))  # the same size and time, with other content
    os.utime(tree / "other", ns=(stamp, stamp))
    (tree / "touched").touch()
    new = night(nights, 1)
    no_copy, unproven = ("no-copy", None, None), ("unproven", new, "readable")
    assert fates(repair(nights, "--yes", status=1)) == {old: [unproven, no_copy, unproven, ("unproven", new, "time"), no_copy]}
    assert nights.names("web") == [old, new]
    (answer,) = repair(nights, "--yes", "--unproven", status=1)["backups"]
    assert [file["fate"] for file in answer["files"]] == ["repaired", "no-copy", "repaired", "repaired", "no-copy"]
    copy = answer["repaired_in"]
    assert "proven" in answer["stays"]
    data = nights.data("web", tree, copy)
    assert [(data / name).read_bytes() for name in ("good", "tail", "tiny")] == [good, tail, tiny]
    assert nights.record("web", copy)["repaired"]["unproven"] == 3
    listed = {row["name"]: row for row in nights.listed("web")}
    assert listed[old]["state"] == "complete"
    assert listed[copy]["held"]["why"].startswith("repaired copy of")
    assert rows(nights, f"select path from damage where name = '{copy}'") == [(f"{tree}/other",), (f"{tree}/touched",)]
    assert repair(nights, f"web@{old}", "--yes", status=1)["backups"][0]["repaired_in"] == copy
    assert len(nights.names("web")) == 3


def test_a_folder_that_is_named_serves_only_what_was_recorded(make_btrfs: Callable[..., Path], tree: Path, tmp_path: Path) -> None:
    """Another filesystem, where a symlink leads elsewhere and a file has another content with the same size and time."""
    nights, first, second, third = spoilt(make_btrfs(size="300M"), tree)
    nights.backupd("delete", f"web@{third}", "--now-without-grace")
    rescue = tmp_path / "rescue"
    path = rescue / str(tree).strip("/")
    path.mkdir(parents=True)
    (path / "database").symlink_to(tree / "database")
    (path / "other name").write_bytes(os.urandom(MIB))
    os.utime(path / "other name", ns=(10**18, 10**18 + 7))
    refused = repair(nights, "--yes", "--unproven", "--from", str(rescue), status=1)
    assert fates(refused) == {name: [("no-copy", None, None)] * 2 for name in (first, second)}
    (path / "database").unlink()
    (path / "database").write_bytes((tree / "database").read_bytes())  # its time differs, but the checksum counts
    done = repair(nights, f"web@{second}", "--yes", "--from", str(rescue))
    assert fates(done) == {second: [("repaired", str(rescue), "checksum")] * 2}  # the other name is one of the same file
    (copy,) = (backup["repaired_in"] for backup in done["backups"])
    data = nights.data("web", tree, copy)
    assert (data / "database").read_bytes() == (data / "other name").read_bytes() == (tree / "database").read_bytes()
    assert (data / "database").stat().st_mtime_ns == 10**18 + 7
    assert os.getxattr(data / "database", "security.capability") == os.getxattr(tree / "database", "security.capability")
    assert (data / "database").stat().st_mode & 0o7777 == 0o4750


@pytest.mark.parametrize(
    "change", ["cp {} {}.new && mv {}.new {}", "printf wrong | dd of={} conv=notrunc status=none && touch -d @1000000000 {}"]
)
def test_a_file_of_a_named_folder_that_changes_before_it_is_copied_repairs_nothing(
    make_btrfs: Callable[..., Path], tree: Path, tmp_path: Path, change: str
) -> None:
    """It was compared with the checksum, but its present content is unknown."""
    nights, first, second, third = spoilt(make_btrfs(size="300M"), tree)
    nights.backupd("delete", f"web@{third}", "--now-without-grace")
    rescue = tmp_path / "rescue" / str(tree).strip("/") / "database"
    rescue.parent.mkdir(parents=True)
    rescue.write_bytes((tree / "database").read_bytes())
    os.utime(rescue, (10**9, 10**9))
    command = change.replace("{}", shlex.quote(str(rescue)))
    words = ("repair", f"web@{second}", "--yes", "--from", str(tmp_path / "rescue"))
    done = does_at(nights, command, "before", "damaged file replaced", *words)
    assert done.returncode not in (0, 70), done.stdout + done.stderr
    assert "was replaced" in done.stdout + done.stderr
    assert nights.names("web") == [first, second]
    assert not (nights.pool / "hosts/web/.working").exists()
    rescue.write_bytes((tree / "database").read_bytes())
    (fate,) = fates(repair(nights, *words[1:])).values()
    assert {each[0] for each in fate} == {"repaired"}


def test_a_folder_that_is_named_may_have_other_filesystems_in_it(
    make_btrfs: Callable[..., Path], tree: Path, tmp_path: Path
) -> None:
    """Like the disks of a rescued host, mounted into each other."""
    nights, _, second, third = spoilt(make_btrfs(size="300M"), tree)
    nights.backupd("delete", f"web@{third}", "--now-without-grace")
    path = tmp_path / "rescue" / str(tree).strip("/")
    path.mkdir(parents=True)
    work("mount", "-t", "tmpfs", "tmpfs", path)
    try:
        (path / "database").write_bytes((tree / "database").read_bytes())
        done = repair(nights, f"web@{second}", "--yes", "--from", str(tmp_path / "rescue"))
    finally:
        work("umount", path)
    assert fates(done) == {second: [("repaired", str(tmp_path / "rescue"), "checksum")] * 2}


def test_what_something_needs_stays_and_the_copy_is_held(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights, first, second, _ = spoilt(make_btrfs(size="300M"), tree)
    nights.backupd("hold", "web", first, "--why", "of the court")
    done = {backup["name"]: backup for backup in repair(nights, "web", "--yes")["backups"]}
    assert "held" in done[first]["stays"]
    assert done[second]["stays"] is None
    listed = {row["name"]: row for row in nights.listed("web")}
    assert listed[done[first]["repaired_in"]]["held"]["why"] == "of the court"
    assert (listed[first]["state"], listed[second]["state"]) == ("complete", "expired")
    assert nights.names("web").index(first) + 1 == nights.names("web").index(done[first]["repaired_in"])


def test_an_unfinished_backup_and_a_fetched_host_are_left_alone(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights, *_ = spoilt(make_btrfs(size="300M"), tree)
    before = nights.names("web")
    (tree / "new").write_bytes(os.urandom(MIB))
    killed(nights, "before", "backup.json replaced", "run", "web", count=2)
    done = nights.backupd("repair", "--yes", check=False)
    assert (done.returncode, nights.names("web")) == (1, before)
    assert "unfinished backup" in done.stderr
    nights.backupd("discard", "web", "--yes")
    notes = nights.pool / "hosts/web/notes.json"
    fields = {"format": 1, "backups": {}} | (json.loads(notes.read_text()) if notes.exists() else {})
    notes.write_text(json.dumps({**fields, "replica": {"pool": "of another", "name": "far", "at": "2026-01-01T00:00:00Z"}}))
    done = nights.backupd("repair", "--yes", check=False)
    assert (done.returncode, nights.names("web")) == (2, before)
    assert "backupd replicate far web --damaged" in done.stderr
    assert nights.backupd("repair", check=False).returncode == 2  # there is no terminal


def test_a_kill_at_any_step_leaves_whole_copies_and_one_of_each(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights, first, second, third = spoilt(make_btrfs(size="300M"), tree)
    content = (tree / "database").read_bytes()
    for step, count in (
        ("before backup.json replaced", 1),
        ("after damaged file replaced", 1),
        ("before backup.json replaced", 3),
        ("before subvolume made read-only", 1),
        ("before backup named", 1),
        ("after backup named", 1),
        ("after backup named", 1),
    ):
        when, _, subject = step.partition(" ")
        killed(nights, when, subject, "repair", "--yes", count=count)
        for name in nights.names("web"):
            if name not in (first, second):
                assert (nights.data("web", tree, name) / "database").read_bytes() == content
    repair(nights, "--yes")
    copies = [name for name in nights.names("web") if nights.record("web", name).get("repaired")]
    assert sorted(nights.record("web", name)["repaired"]["of"] for name in copies) == [first, second]
    states = {row["name"]: row["state"] for row in nights.listed("web")}
    assert states == {first: "expired", second: "expired", third: "complete", **dict.fromkeys(copies, "complete")}
    assert not (nights.pool / "hosts/web/.working").exists()
    assert repair(nights, "--yes")["backups"] == []


def test_a_repair_that_fails_leaves_no_copy_and_the_backups_as_they_were(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights, first, second, third = spoilt(make_btrfs(size="300M"), tree)
    states = "select name, state from backup order by name"
    before = subvolumes(nights), rows(nights, states), sorted(path.name for path in (nights.pool / "hosts/web").iterdir())
    in_the_way = f"mkdir {shlex.quote(str(nights.backup('web', '.working') / 'backup.json.new'))}"
    done = does_at(nights, in_the_way, "before", "damaged file replaced", "repair", "--yes")
    assert (done.returncode, "Is a directory" in done.stderr) == (4, True), done.stdout + done.stderr
    assert (subvolumes(nights), rows(nights, states), sorted(path.name for path in (nights.pool / "hosts/web").iterdir())) == before
    assert fates(repair(nights, "--yes")) == {name: [("repaired", third, "checksum")] * 2 for name in (first, second)}


def test_a_backup_of_the_next_second_is_in_the_way_of_a_copy_and_stays(make_btrfs: Callable[..., Path], tree: Path) -> None:
    """The copy has the time of its original plus a second: after the next backup, it would count as newer than that."""
    nights = Nights(make_btrfs(size="300M"))
    content = os.urandom(MIB)
    (tree / "database").write_bytes(content)
    nights.host("web", tree)
    moment = datetime.now(UTC).replace(microsecond=0) - 3 * DAY
    for later in range(2):
        nights.night("web", now=moment + timedelta(seconds=later))
    first, second = nights.names("web")
    nights.backupd("verify")
    damage(nights.top, content[:4096])
    assert nights.backupd("verify", check=False).returncode == 1
    third = night(nights, 1)
    shown = nights.subvolume("web", second)
    answer = repair(nights, "--yes", status=1)
    assert answer["failed"] == {f"web@{first}": f"web {second} follows {first} at once: no second is free for a repaired copy"}
    (copy,) = set(nights.names("web")) - {first, second, third}
    assert (nights.record("web", copy)["repaired"]["of"], copy > second) == (second, True)
    assert nights.subvolume("web", second)["UUID"] == shown["UUID"]
    assert (nights.data("web", tree, copy) / "database").read_bytes() == content


def test_what_differs_from_the_recorded_sum_is_not_whole_in_the_backups_that_recorded_nothing(
    make_btrfs: Callable[..., Path], tree: Path
) -> None:
    """F is wrong in two backups; only the first one has its checksum. G was fetched again since."""
    nights = Nights(make_btrfs(size="300M", options="nodatasum"), "--rehearsal")
    files = {"F": os.urandom(20_000), "G": os.urandom(20_000)}
    (tree / "F").write_bytes(files["F"])
    nights.host("web", tree)
    first = night(nights, 3)
    (tree / "G").write_bytes(files["G"])
    second = night(nights, 2)
    damage(nights.top, *(file[4096:8192] for file in files.values()))
    assert nights.backupd("verify", check=False).returncode == 1
    os.utime(tree / "G")
    (tree / "F").unlink()
    third = night(nights, 1)
    done = repair(nights, "--yes", status=1)
    assert fates(done) == {
        first: [("no-copy", None, None)],
        second: [("no-copy", None, None), ("repaired", third, "checksum")],
    }
    (copy,) = set(nights.names("web")) - {first, second, third}
    assert (nights.data("web", tree, copy) / "G").read_bytes() == files["G"]
    assert (copy, f"{tree}/F") in rows(nights, "select name, path from damage")
    (tree / "F").write_bytes(files["F"])  # it is restored, and the checksum of the first backup proves it for all
    nights.backupd("run", "web")
    newest = nights.names("web")[-1]
    planned = fates(repair(nights, "--dry-run", status=1))
    assert {planned[name][0] for name in (first, copy)} == {("repaired", newest, "checksum")}


def unproven_site(top: Path, tree: Path, given: Path, bad: slice) -> tuple[Nights, bytes]:
    """One backup with a block that cannot be read, of which nothing was recorded; `given` has the file with another such block."""
    nights = Nights(top, "--rehearsal")
    nights.tables["verify"] = {"new_files": "none"}
    content = os.urandom(200_000)
    path = given / str(tree)[1:]
    path.mkdir(parents=True)
    for folder, wrong in ((tree, content[bad]), (path, os.urandom(4096))):
        (folder / "F").write_bytes(content[: bad.start] + wrong + content[bad.stop :])
        os.utime(folder / "F", (1_600_000_000, 1_600_000_000))
    nights.host("web", tree)
    night(nights, 3)
    damage(nights.top, content[bad])
    assert nights.backupd("verify", check=False).returncode == 1
    (tree / "F").unlink()
    night(nights, 1)
    return nights, (path / "F").read_bytes()


@pytest.mark.parametrize("block", [0, 1, 7])
def test_what_equals_all_that_can_be_read_is_taken_on_request_and_never_counts_as_proven(
    make_btrfs: Callable[..., Path], tree: Path, tmp_path: Path, block: int
) -> None:
    nights, given = unproven_site(make_btrfs(size="300M"), tree, tmp_path / "from", slice(4096 * block, 4096 * (block + 1)))
    old = nights.names("web")[0]
    for words in (("--unproven", "--from", str(tmp_path / "from")), (), ()):
        nights.backupd("repair", *words, "--yes", check=False)
        copy = nights.names("web")[1]
        assert (nights.data("web", tree, copy) / "F").read_bytes() == given
        states = {row["name"]: row["state"] for row in nights.listed("web")}
        assert (states[old], states[copy]) == ("complete", "complete")


def test_all_names_of_a_file_are_repaired_by_a_copy_of_one(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = Nights(make_btrfs(size="300M"), "--rehearsal")
    content = os.urandom(MIB)
    (tree / "database").write_bytes(content)
    (tree / "zz second name").hardlink_to(tree / "database")
    nights.host("web", tree)
    first = night(nights, 3)
    nights.backupd("verify")
    damage(nights.top, content[MIB // 2 : MIB // 2 + 4096])
    assert nights.backupd("verify", check=False).returncode == 1
    (tree / "zz second name").unlink()
    third = night(nights, 1)
    assert fates(repair(nights, "--yes")) == {first: [("repaired", third, "checksum")] * 2}
    (copy,) = set(nights.names("web")) - {first, third}
    for name in ("database", "zz second name"):
        assert (nights.data("web", tree, copy) / name).read_bytes() == content
    assert nights.backupd("verify", f"web@{copy}", check=False).returncode == 0


def test_holes_odd_names_and_what_is_no_file_in_a_folder(make_btrfs: Callable[..., Path], tree: Path, tmp_path: Path) -> None:
    nights = Nights(make_btrfs(size="300M"))
    name, data = os.fsdecode(b"caf\xe9\n"), os.urandom(64 << 10)
    with (tree / name).open("wb") as file:
        file.truncate(1 << 26)
        file.seek(1 << 25)
        file.write(data)
    (tree / "plain").write_bytes(content := os.urandom(MIB))
    nights.host("web", tree)
    old = night(nights, 2)
    nights.backupd("verify")
    damage(nights.top, data[8192:12288])
    damage(nights.top, content[:4096])
    assert nights.backupd("verify", check=False).returncode == 1
    rescue = tmp_path / "rescue" / str(tree).strip("/")
    rescue.mkdir(parents=True)
    os.mkfifo(rescue / "plain")  # opening it must not block
    work("cp", "--sparse=always", tree / name, rescue / name)
    done = repair(nights, "--yes", "--from", str(tmp_path / "rescue"), status=1)
    assert {file["path"]: file["fate"] for file in done["backups"][0]["files"]} == {
        f"{tree}/{name}": "repaired",
        f"{tree}/plain": "no-copy",
    }
    copy = nights.data("web", tree, done["backups"][0]["repaired_in"]) / name
    assert (copy.stat().st_size, copy.stat().st_blocks * 512 < MIB) == (1 << 26, True)
    with copy.open("rb") as repaired:
        repaired.seek(1 << 25)
        assert repaired.read(len(data)) == data
    assert nights.names("web")[0] == old
    (tree / "plain").write_bytes(content)
    nights.backupd("run", "web")  # the host has it still
    assert (nights.data("web", tree) / "plain").read_bytes() == content


def test_what_a_repair_could_not_mend_outlives_the_catalogue(make_btrfs: Callable[..., Path], tree: Path, tmp_path: Path) -> None:
    nights = Nights(make_btrfs(size="300M"))
    contents = {name: os.urandom(MIB) for name in ("mended", "left")}
    for name, content in contents.items():
        (tree / name).write_bytes(content)
    nights.host("web", tree)
    night(nights, 1)
    nights.backupd("verify")
    for content in contents.values():
        damage(nights.top, content[4096:8192])
    nights.backupd("verify", check=False)
    copies = tmp_path / "copies" / str(tree).strip("/")
    copies.mkdir(parents=True)
    work("cp", "-a", tree / "mended", copies)
    repair(nights, "--yes", "--from", str(tmp_path / "copies"), status=1)
    copy = nights.names("web")[-1]
    actual_rows = rows(nights, f"select path from damage where name = '{copy}'")
    assert actual_rows == [(f"{tree}/left",)]
    (nights.state / "catalogue.sqlite").unlink()
    nights.backupd("rebuild")
    assert rows(nights, f"select path from damage where name = '{copy}'") == actual_rows
    night(nights, 0)  # fetches it again, and does not share it with the copy
    assert nights.differences("web", tree) == []


def test_the_repaired_copy_of_a_copy_does_not_know_its_ancestors_by_another_pool_s_generations(
    make_btrfs: Callable[..., Path], tmp_path: Path
) -> None:
    """Otherwise an expiry would not read the metadata that only it has, and the pool would become read-only if some of it was
    damaged.
    """
    two = TwoPools(make_btrfs(), make_btrfs(size="300M"))
    for number in range(60):  # generations
        (two.first.top / "some").write_text(str(number))
        work("btrfs", "filesystem", "sync", two.first.top)
    content = os.urandom(MIB)
    (two.source / "large").write_bytes(content)
    two.night("2026-03-01T22:00:00Z", "a")
    second = two.night("2026-03-02T22:00:00Z", "b")
    two.fetch()
    two.second.backupd("promote", "web1", "--yes")
    two.second.backupd("verify")
    damage(two.second.top, content[MIB // 2 : MIB // 2 + 4096])
    assert two.second.backupd("verify", check=False).returncode == 1
    good = tmp_path / str(two.source).strip("/")
    shutil.copytree(two.source, good)
    copy = {backup["name"]: backup["repaired_in"] for backup in repair(two.second, "--yes", "--from", str(tmp_path))["backups"]}[
        second
    ]
    made = int(two.second.subvolume("web1", copy)["Gen at creation"])
    assert {name: generation <= made for name, generation in two.second.record("web1", copy)["ancestors"].items()} == {second: True}
