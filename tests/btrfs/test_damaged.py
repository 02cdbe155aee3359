"""A scrub names the files that it cannot repair, in every backup that shares them; compared with the overwritten place."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from btrkeep.pool.kernel_log import SPAN, TreeBlock, faults
from tests.beds import btrfs
from tests.beds.faults import damage, damage_metadata, leaves, put_right
from tests.beds.hidden_changes import hide_changes
from tests.beds.nights import Nights
from tests.beds.watch import killed, rows, wait_for
from tests.beds.work import work
from tests.btrfs.test_dedupe import spoil
from tests.btrfs.test_scrub import slow_down, status_of

pytestmark = [pytest.mark.btrfs, pytest.mark.root]
MIB = 1 << 20


def scrub(nights: Nights) -> dict[str, Any]:
    """Scrubs repeatedly while the kernel leaves out lines: its limit counts those of all tests that run on this machine
    together.
    """
    for _ in range(8):
        done = nights.backupd("scrub", "--json", check=False)
        answer: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == (1 if any(answer["errors"].values()) else 0), done.stderr
        if not answer["unnamed"]:
            break
        time.sleep(5)
    return answer


def remove(nights: Nights, backup: str, *files: Path) -> None:
    """A forbidden change: it removes the damaged file from the backup."""
    work("btrfs", "property", "set", "-f", nights.pool / "hosts/web" / backup, "ro", "false")
    for file in files:
        file.unlink()
    work("btrfs", "property", "set", nights.pool / "hosts/web" / backup, "ro", "true")
    hide_changes(nights.pool / "hosts/web")
    work("btrfs", "filesystem", "sync", nights.top)


def test_a_scrub_names_the_file_and_all_backups_that_share_what_was_spoilt(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = Nights(make_btrfs(size="300M"))
    content, name = os.urandom(2 * MIB), os.fsdecode(b"caf\xe9\nx")
    (tree / name).write_bytes(content)
    os.link(tree / name, tree / "second name")
    (tree / "other").write_bytes(os.urandom(MIB))
    nights.host("web", tree)
    nights.run("web")
    (tree / "new").write_bytes(b"of the second night")
    nights.run("web")
    assert nights.backupd("damaged").stdout == "no damaged files are recorded\n"
    damage(nights.top, content[MIB + 8192 : MIB + 16384])
    answer = scrub(nights)
    assert (answer["unnamed"], answer["metadata"], answer["elsewhere"]) == (0, [], [])
    assert [(damaged_file["path"], damaged_file["backups"], damaged_file["places"]) for damaged_file in answer["damaged"]] == [
        (f"{tree}/{name}", nights.names("web"), [{"start": MIB + 8192, "length": 8192}]),
        (f"{tree}/second name", nights.names("web"), [{"start": MIB + 8192, "length": 8192}]),
    ]
    listed = nights.backupd("damaged", "--json", check=False)
    assert (listed.returncode, json.loads(listed.stdout)) == (1, answer["damaged"])
    shown = nights.backupd("damaged", check=False).stdout
    assert "the devices have counted" not in shown  # those that it counted are these
    assert all(damaged_file["next_night"] and not damaged_file["similar"] for damaged_file in answer["damaged"])
    assert nights.backupd("damaged", "nosuch", check=False).returncode == 2
    assert "(2)" in nights.backupd("damaged", "web", check=False).stdout
    assert "damaged files in backups of web (2 backups)" in nights.backupd("check", check=False).stdout

    nights.run("web")  # has it from the host
    listed = nights.backupd("damaged", "web", "--json", check=False)
    newest = nights.names("web")[-1]
    assert [(row["similar"], row["next_night"]) for row in json.loads(listed.stdout)] == [([newest], False)] * 2
    assert (nights.data("web", tree, newest) / name).read_bytes() == content
    for old in nights.names("web")[:-1]:
        remove(nights, old, *(nights.data("web", tree, old) / text for text in (name, "second name")))
    assert scrub(nights)["damaged"] == []
    assert rows(nights, "select count(*) from damage") == [(0,)]


def test_what_a_scrub_repaired_from_the_other_mirror_is_not_damaged(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = Nights(make_btrfs(size="500M", mkfs=("-d", "dup", "-m", "dup")))
    content = os.urandom(MIB)
    (tree / "file").write_bytes(content)
    nights.host("web", tree)
    nights.run("web")
    damage(nights.top, content[4096:8192])
    answer = scrub(nights)
    assert (answer["errors"]["corrected"], answer["errors"]["uncorrectable"], answer["damaged"]) == (1, 0, [])
    assert nights.backupd("damaged").stdout == "no damaged files are recorded\n"


def test_errors_of_other_programs_during_a_scrub_stay_after_it(
    make_btrfs: Callable[..., Path], tree: Path, backupd_running: Callable[..., Any]
) -> None:
    """The scrub has already read that place without an error."""
    nights = Nights(make_btrfs(size="300M"))
    content = os.urandom(MIB)
    (tree / "first").write_bytes(content)
    nights.host("web", tree)
    nights.run("web")
    (tree / "second").write_bytes(os.urandom(24 * MIB))
    nights.run("web")
    file = nights.data("web", tree) / "first"
    slow_down(nights.top, "8m")
    running = backupd_running("--config", nights.config, "scrub")
    wait_for(lambda: int(status_of(nights.top).get("data_bytes_scrubbed", 0)) >= 8 * MIB, 60)
    slow_down(nights.top, "256k")
    spoil(nights, file, content)
    os.posix_fadvise(fd := os.open(file, os.O_RDONLY), 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    for _ in range(8):  # again while the kernel leaves out lines
        assert work("sha256sum", file, check=False).returncode
        if nights.backupd("damaged", check=False).returncode:
            break
        time.sleep(1)
    met = rows(nights, "select name, path, found_by from damage order by name")
    assert met == [(name, f"{tree}/first", "device") for name in nights.names("web")]
    fact = "update about set value = json_set(value, '$.counters', json('{}')) where name = 'device_errors'"
    work("sqlite3", nights.state / "catalogue.sqlite", fact)  # as if the log had omitted errors
    assert status_of(nights.top)["Status"] == "running"
    slow_down(nights.top, "0")
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out.startswith("finished: ")) == (0, True), err
    assert rows(nights, "select name, path, found_by from damage order by name") == met
    assert "the devices have counted" in nights.backupd("damaged", check=False).stdout

    assert [damaged_file["path"] for damaged_file in scrub(nights)["damaged"]] == [f"{tree}/first"]
    assert {by for (by,) in rows(nights, "select found_by from damage")} == {"scrub"}
    assert "the devices have counted" not in nights.backupd("damaged", check=False).stdout


def test_damaged_metadata_is_told_by_its_tree(make_btrfs: Callable[..., Path]) -> None:
    nights = Nights(make_btrfs(size="300M", mkfs=("-m", "single")))
    for number in range(300):
        (nights.source / f"name {number}").touch()
    work("btrfs", "subvolume", "create", nights.top / "own")
    for number in range(300):
        (nights.top / "own" / f"name {number}").touch()
    leaf = leaves(nights.top / "own", nights.top)[-1]
    damage_metadata(nights.top, leaf)
    fields = scrub(nights)
    (answer,) = fields["metadata"]
    assert leaf - SPAN < answer["vaddr"] <= leaf
    assert fields["damaged"] == []
    assert (
        f"metadata cannot be read within 64 KiB from {fields['metadata'][0]['vaddr']}, "
        in nights.backupd("scrub", check=False).stdout
    )


def test_a_compressed_extent_is_named_once_where_the_file_has_it(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = Nights(make_btrfs(size="300M", options="compress-force=zstd"))
    (tree / "file").write_text(os.urandom(MIB).hex())
    nights.host("web", tree)
    nights.run("web")
    shown = work("filefrag", "-v", "-b1", nights.data("web", tree) / "file").stdout.splitlines()
    (line,) = [name for name in shown if name.strip().startswith("3:")]
    start, vaddr = (int(name.rstrip(".:")) for name in line.split()[1:4:2])
    (device,) = btrfs.devices_of(nights.top)
    mapped = work("btrfs-map-logical", "-l", str(vaddr), device).stdout.split()
    btrfs.unmount(nights.top)
    with Path(device).open("r+b") as disk:
        disk.seek(int(mapped[mapped.index("physical") + 1]) + 8192)
        disk.write(b"spoilt")
    work("mount", "-t", "btrfs", device, nights.top)
    assert [damaged_file["places"] for damaged_file in scrub(nights)["damaged"]] == [[{"start": start, "length": 4096}]]


def test_a_kill_leaves_what_was_known_or_what_is(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = Nights(make_btrfs(size="300M"))
    content = os.urandom(MIB)
    (tree / "file").write_bytes(content)
    nights.host("web", tree)
    nights.run("web")
    damage(nights.top, content[4096:8192])
    scrub(nights)
    assert rows(nights, "select start, length, found_by from damage") == [(4096, 4096, "scrub")]
    remove(nights, nights.names("web")[0], nights.data("web", tree) / "file")
    killed(nights, "before", "damages written", "scrub")
    assert rows(nights, "select count(*) from damage") == [(1,)]
    killed(nights, "after", "damages written", "scrub")
    assert rows(nights, "select count(*) from damage") == [(0,)]


def test_words_of_several_kernels_are_understood() -> None:
    lines = [
        "BTRFS error (device sdb1): unable to fixup (regular) error at logical 4096 on dev /dev/sdb1",  # 5.10
        "BTRFS error (device sdb1 state EA): scrub: unable to fixup (regular) error at logical 65536 on dev /dev/sdb1 physical 9",
        "BTRFS error (device sdb1): scrub: unable to fixup (regular) error at logical 65536 on dev /dev/sdb1 physical 9",
        "BTRFS error (device sdc): unable to fixup (regular) error at logical 8192 on dev /dev/sdc",  # of another filesystem
        "BTRFS warning (device sdb1): header error at logical 4096 on dev /dev/sdb1, physical 1: metadata leaf (level 0) in tree 7",
        "BTRFS error (device sdb1): fixed up error at logical 131072 on dev /dev/sdb1 physical 131072",
    ]
    scrub_faults = faults(lines, frozenset({"sdb1"}))
    assert (scrub_faults.vaddrs, scrub_faults.trees, scrub_faults.lines) == ((4096, 65536), (TreeBlock(4096, 7, 0),), 3)
    assert faults([], frozenset({"sdb1"})).vaddrs == ()


def test_a_copy_whose_checksum_was_recorded_is_proven_and_another_is_not(make_btrfs: Callable[..., Path], tree: Path) -> None:
    """Of two other copies, one is unchanged but has another time; the other has the same size and time, and other content."""
    nights = Nights(make_btrfs(size="300M"))
    nights.tables["verify"] = {"new_files": "none"}
    content = os.urandom(MIB)
    nights.host("web", tree)
    for number in range(9):  # or the run would not believe that the file is gone
        (tree / str(number)).write_bytes(bytes(MIB))
    (tree / "file").write_bytes(content)
    os.utime(tree / "file", (1_700_000_000, 1_700_000_000))
    nights.run("web")
    (tree / "file").unlink()
    nights.run("web")
    (tree / "file").write_bytes(os.urandom(MIB))
    os.utime(tree / "file", (1_700_000_000, 1_700_000_000))
    nights.run("web")
    (tree / "file").unlink()
    nights.run("web")
    (tree / "file").write_bytes(content)  # now with another time
    nights.run("web")
    nights.backupd("verify")
    names = nights.names("web")
    damage(nights.top, content[4096:8192])
    done = nights.backupd("verify", "web", check=False)
    assert done.returncode == 1
    (answer,) = json.loads(nights.backupd("damaged", "--json", check=False).stdout)
    (bad,) = answer["backups"]
    assert bad in (names[0], names[4])
    assert answer["proven"] == [names[4] if bad == names[0] else names[0]]
    assert answer["similar"] == ([names[2]] if bad == names[0] else [])
    assert "(by checksum)" in nights.backupd("damaged", check=False).stdout
    assert (nights.data("web", tree, answer["proven"][0]) / "file").read_bytes() == content
    work("rm", nights.pool / "hosts/web/checksums")  # the record is gone
    (answer,) = json.loads(nights.backupd("damaged", "--json", check=False).stdout)
    assert answer["proven"] == []


def test_what_a_scrub_and_the_devices_found_outlives_the_catalogue(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = Nights(make_btrfs(size="300M"))
    content, other = os.urandom(MIB), os.urandom(MIB)
    (tree / "file").write_bytes(content)
    (tree / "met").write_bytes(other)
    nights.host("web", tree)
    nights.run("web")
    nights.run("web")
    damage(nights.top, content[4096:8192])
    damage(nights.top, content[65536:69632])
    answer = scrub(nights)["damaged"]
    assert [row["places"] for row in answer] == [[{"start": start, "length": 4096} for start in (4096, 65536)]]
    damage(nights.top, other[4096:8192])
    met = nights.data("web", tree) / "met"
    assert work("sha256sum", met, check=False).returncode
    device, root = Path(btrfs.devices_of(nights.top)[0]).name, nights.subvolume("web")["Subvolume ID"]
    place = f"root {root} ino {met.stat().st_ino} off 4096 csum 0x1 expected csum 0x2 mirror 1"
    Path("/dev/kmsg").write_text(f"<4>BTRFS warning (device {device}): csum failed {place}\n")  # the kernel may leave it out
    document = json.loads(nights.backupd("damaged", "--json", check=False).stdout)
    assert [row["found_by"] for row in document] == [["scrub"], ["device"]]
    (nights.state / "catalogue.sqlite").unlink()
    lost = nights.backupd("damaged", check=False)
    assert (lost.returncode, "nothing is known" in lost.stdout) == (1, False)
    assert nights.backupd("repair", "--dry-run", check=False).returncode == 1
    nights.backupd("rebuild")
    assert json.loads(nights.backupd("damaged", "--json", check=False).stdout) == document
    assert {row["verified"]["state"] for row in nights.listed("web")} == {"damaged"}
    assert "2 files" in nights.backupd("list", "web").stdout
    nights.backupd("verify", check=False)  # does not know the damaged length of a file, and keeps a scrub's records
    after = json.loads(nights.backupd("damaged", "--json", check=False).stdout)
    assert [row["places"] for row in after] == [row["places"] for row in document]

    nights.run("web")  # has both from the host
    assert nights.differences("web", tree) == []
    for old in nights.names("web")[:-1]:
        remove(nights, old, *(nights.data("web", tree, old) / name for name in ("file", "met")))
    assert scrub(nights)["damaged"] == []
    nights.backupd("verify")
    assert json.loads((nights.pool / "hosts/web/damaged.json").read_text())["backups"] == {}


def test_a_backup_of_which_nothing_can_be_read_is_damaged_and_hides_no_other_damage(
    make_btrfs: Callable[..., Path], tree: Path
) -> None:
    nights = Nights(make_btrfs(size="300M", mkfs=("-m", "single")))
    content, lost = os.urandom(MIB), os.urandom(MIB)
    (tree / "file").write_bytes(content)
    nights.host("web", tree)
    nights.run("web")
    work("rm", tree / "file")
    (tree / "other").write_bytes(lost)
    nights.run("web")
    first, last = nights.names("web")
    damage_metadata(nights.top, *leaves(nights.pool / "hosts/web" / last, nights.top))
    damage(nights.top, content[4096:8192])
    damage(nights.top, lost[4096:8192])
    done = nights.backupd("scrub", "--json", check=False)
    assert "could not be read" not in done.stderr
    answer = json.loads(done.stdout)
    assert answer["unnamed"] > 0  # its file cannot be known
    assert [(damaged_file["path"], damaged_file["backups"]) for damaged_file in answer["damaged"]] == [(f"{tree}/file", [first])]
    done = nights.backupd("verify", check=False)
    assert (done.returncode, f"no file of web@{last} can be read" in done.stderr) == (1, True)
    assert [row["verified"]["state"] for row in nights.listed("web")] == ["damaged", "damaged"]
    assert rows(nights, f"select path from damage where name = '{last}'") == [("/",)]
    (nights.state / "catalogue.sqlite").unlink()
    nights.backupd("rebuild", check=False)
    assert rows(nights, "select distinct name, path from damage order by name") == [(first, f"{tree}/file"), (last, "/")]


def test_holds_and_marks_of_a_backup_whose_folder_cannot_be_read_are_changed_in_the_notes(
    make_btrfs: Callable[..., Path], tree: Path
) -> None:
    nights = Nights(make_btrfs(size="300M", mkfs=("-m", "single")))
    nights.host("web", tree)
    for number in range(3):
        for file in range(400):  # leaves of its own
            (tree / f"file-{file:06}").write_text(f"{number} {file}")
        nights.run("web")
    first, middle, last = nights.names("web")
    nights.backupd("hold", "web", middle, "--why", "court")
    nights.backupd("delete", f"web@{first}")
    own = [set(leaves(nights.backup("web", name), nights.top)) for name in (first, middle, last)]
    damage_metadata(nights.top, *(own[0] - own[1] - own[2]), *(own[1] - own[0] - own[2]))
    for words in (("release", "web", middle), ("unexpire", "web", first), ("hold", "web", middle)):
        done = nights.backupd(*words)
        assert f"web {words[2]} itself cannot be read: `backupd damaged web` lists the damage" in " ".join(done.stdout.split())
    notes = json.loads((nights.pool / "hosts/web/notes.json").read_text())["backups"]
    assert [sorted(notes[name]) for name in (first, middle)] == [["hold"], ["hold"]]
    assert rows(nights, "select name, state, held_why from backup order by name") == [
        (first, "complete", "kept again with unexpire"),
        (middle, "complete", ""),
        (last, "complete", None),
    ]
    refused = nights.backupd("delete", f"web@{middle}", check=False)
    assert (refused.returncode, f"web {middle} is held" in refused.stderr) == (1, True)


def test_a_place_that_scrub_and_verify_found_is_mended_by_verify_for_a_rebuild_too(
    make_btrfs: Callable[..., Path], tree: Path
) -> None:
    nights = Nights(make_btrfs(size="300M"))
    content = os.urandom(MIB)
    (tree / "file").write_bytes(content)
    nights.host("web", tree)
    nights.run("web")
    (place,) = damage(nights.top, content[4096:8192])
    assert len(scrub(nights)["damaged"]) == 1
    assert nights.backupd("verify", check=False).returncode == 1
    put_right(nights.top, place, content[4096:8192])  # as from another disk
    assert nights.backupd("verify").returncode == 0
    assert json.loads(nights.backupd("damaged", "--json").stdout) == []
    (nights.state / "catalogue.sqlite").unlink()
    nights.backupd("rebuild")
    assert json.loads(nights.backupd("damaged", "--json", check=False).stdout) == []
    assert [row["verified"]["state"] for row in nights.listed("web")] == ["whole"]
