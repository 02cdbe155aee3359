"""A state folder that is full, or cannot be written: the catalogue is only a copy of the pool's records, so no backup is lost."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.beds import work
from tests.beds.anyone import NOBODY
from tests.beds.deep import deepen
from tests.beds.nights import Nights
from tests.beds.receivers import web
from tests.beds.watch import disagreements, killed, rows

FILL = "for n in 1 2 3; do dd if=/dev/zero of={state}/ballast$n bs=1k conv=fsync 2>/dev/null; done; true"


@pytest.fixture(params=["tmpfs", "ext4"])
def site(request: pytest.FixtureRequest, nights: Nights, tmp_path: Path) -> Iterator[Nights]:
    """Two hosts, and a state folder on a small disk of its own."""
    disk, image = tmp_path / "disk", tmp_path / "image"
    disk.mkdir()
    if request.param == "tmpfs":
        work("mount", "-t", "tmpfs", "-o", "size=4M", "none", disk)
    else:
        with image.open("wb") as file:
            file.truncate(8 << 20)
        work("mkfs.ext4", "-q", "-m", "0", image)
        work("mount", "-o", "loop", image, disk)
    nights.state = disk / "state"
    nights.settings("pool", state=str(nights.state))
    nights.tables["retention"] = {"daily": 14}
    nights.settings("backup", concurrency=1)
    (nights.source / "file").write_bytes(os.urandom(5000))
    nights.host("a", nights.source)
    nights.host("b", nights.source)
    yield nights
    work("umount", disk)


def fill(site: Nights) -> None:
    work("sh", "-c", FILL.format(state=site.state))
    assert os.statvfs(site.state).f_bavail < 8


def make_room(site: Nights) -> None:
    for ballast in site.state.glob("ballast*"):
        ballast.unlink()


def outcomes_of(done: "subprocess.CompletedProcess[str]") -> dict[str, str]:
    assert "Traceback" not in done.stderr, done.stderr
    return {result["host"]: result["outcome"] for result in json.loads(done.stdout or "[]")}


COMPLETE = {"a": "complete", "b": "complete"}


def test_a_full_state_folder_at_the_start_costs_no_backup(site: Nights) -> None:
    site.run()
    fill(site)
    done = site.backupd("run", "--all", "--json", check=False)
    assert outcomes_of(done) == COMPLETE, done.stderr
    assert done.returncode == 1
    assert done.stderr.count("there is no free space for the catalogue") + done.stderr.count("cannot be read or written") == 1
    assert len(site.names("a")) == len(site.names("b")) == 2
    assert site.differences("a", site.source) == []
    make_room(site)
    site.run("a")
    assert rows(site, "select host, count(*) from backup group by host") == [("a", 3), ("b", 2)]
    assert disagreements(site) == []


def test_a_run_that_has_nothing_to_do_does_not_say_that_all_is_well_before_an_error(site: Nights) -> None:
    site.run()
    fill(site)
    done = site.backupd("run", check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert "nothing was due" not in done.stdout
    assert done.stdout.splitlines()[-2:][0] == "no host was backed up"
    make_room(site)
    assert site.backupd("run").stdout.splitlines()[-1] == "nothing was due"


def test_a_state_folder_that_is_full_from_the_beginning_costs_no_backup(site: Nights) -> None:
    site.state.mkdir(exist_ok=True)
    fill(site)
    done = site.backupd("run", "--all", "--json", check=False)
    assert (outcomes_of(done), done.returncode) == (COMPLETE, 1), done.stderr
    make_room(site)
    site.run("a")
    assert rows(site, "select host, count(*) from backup group by host") == [("a", 2), ("b", 1)]
    assert disagreements(site) == []


def test_a_state_folder_that_becomes_full_in_the_night_costs_no_backup(site: Nights) -> None:
    site.run()
    (site.source / "file").write_bytes(os.urandom(600_000))
    site.in_the_middle(100_000, FILL.format(state=site.state))
    done = site.backupd("run", "--all", "--json", check=False)
    assert (outcomes_of(done), done.returncode) == (COMPLETE, 1), done.stderr
    assert len(site.names("a")) == len(site.names("b")) == 2
    make_room(site)
    site.ssh("")
    site.run("a")
    assert rows(site, "select host, count(*) from backup group by host") == [("a", 3), ("b", 2)]
    assert disagreements(site) == []


def test_a_state_folder_that_cannot_be_written_costs_no_backup(site: Nights) -> None:
    site.run()
    work("mount", "-o", "remount,ro", site.state.parent)
    done = site.backupd("run", "--all", "--json", check=False)
    assert (outcomes_of(done), done.returncode) == (COMPLETE, 1), done.stderr
    work("mount", "-o", "remount,rw", site.state.parent)
    site.run("a")
    assert disagreements(site) == []


def test_what_is_due_is_known_without_the_catalogue(site: Nights) -> None:
    site.run("a")
    fill(site)
    done = site.backupd("run", "--json", check=False)
    assert outcomes_of(done) == {"b": "complete"}, done.stderr
    assert done.returncode == 1


def test_a_catalogue_in_memory_that_a_killed_run_left_is_cleared_away_by_the_next_run(nights: Nights) -> None:
    nights.host("web", nights.source)
    nights.run("web")
    blocked = nights.top / "no folder"
    blocked.write_text("so no catalogue can be there")
    nights.settings("pool", state=str(blocked))
    memory = Path("/dev/shm")
    before = set(memory.glob("btrkeep-catalogue-*"))
    killed(nights, "before", "backup.json replaced", "run", "web", count=2)
    assert len(left := set(memory.glob("btrkeep-catalogue-*")) - before) == 1
    nights.settings("pool", state=str(nights.state))
    nights.run("web")
    assert not any(path.exists() for path in left)


def test_what_another_user_puts_where_catalogues_are_in_memory_ends_no_run(nights: Nights) -> None:
    """It has the name of a dead run's folder, and is nested deeper than the call stack allows."""
    nights.host("web", nights.source)
    mine, others = (Path(f"/dev/shm/btrkeep-catalogue-4194305-1-{os.urandom(4).hex()}") for _ in range(2))
    try:
        for folder, owner in ((mine, 0), (others, NOBODY)):
            made = folder.with_name(f"made-{folder.name}")  # another test's command deletes files of that name
            made.mkdir()
            deepen(made, 1500)
            os.chown(made, owner, owner)
            made.rename(folder)
        nights.run("web")
        assert (mine.exists(), others.exists()) == (False, True)
    finally:
        work("rm", "-rf", mine, others)


def test_without_room_the_catalogue_is_not_called_damaged_and_a_rebuild_leaves_it_where_it_is(site: Nights) -> None:
    site.run()
    fill(site)
    for words in ("status", "rebuild"):
        done = site.backupd(words, check=False)
        assert done.returncode == 1, done.stdout
        assert "there is no free space for the catalogue" in done.stderr
        assert "free some space on the filesystem" in done.stderr
        assert "dmesg" not in done.stderr
    assert [path.name for path in site.state.iterdir() if "aside" in path.name or "rebuil" in path.name] == []
    make_room(site)
    assert rows(site, "select host, outcome from run order by host") == [("a", "complete"), ("b", "complete")]
    assert site.status("a")["state"] == "ok"


def test_a_damaged_catalogue_stays_where_it_is_when_there_is_no_room_for_another(site: Nights) -> None:
    site.run()
    catalogue = site.state / "catalogue.sqlite"
    damaged = catalogue.read_bytes()[:20_000]
    catalogue.write_bytes(damaged)
    fill(site)
    done = site.backupd("rebuild", check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no free space for the catalogue" in done.stderr
    assert catalogue.read_bytes() == damaged
    make_room(site)
    done = site.backupd("rebuild")
    assert f"was renamed to {catalogue}.aside-1" in done.stdout
    assert (site.state / "catalogue.sqlite.aside-1").read_bytes() == damaged
    assert sorted(path.name for path in site.state.iterdir() if "rebuil" in path.name) == []
    assert disagreements(site) == []


def test_a_run_without_its_catalogue_says_so_first_and_last_and_nothing_of_the_one_in_memory(site: Nights) -> None:
    site.run()
    fill(site)
    done = site.backupd("run", "--all", check=False)
    lines = (done.stdout + done.stderr).splitlines()
    assert done.returncode == 1
    assert "reconciled" not in done.stdout + done.stderr
    numbers = [number for number, line in enumerate(lines) if "there is no free space for the catalogue" in line]
    assert numbers == [0, len(lines) - 1], lines
    assert lines[-2].startswith("2 complete")
    assert "exit status 1" in lines[-1]


def test_a_state_folder_without_inodes_costs_no_backup_and_the_message_names_what_is_full(nights: Nights, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    work("mount", "-t", "tmpfs", "-o", "size=16M,nr_inodes=40", "none", disk)
    try:
        nights.state = disk / "state"
        nights.settings("pool", state=str(nights.state))
        nights.host("web", nights.source)
        with web() as server:
            nights.tables["notify"] = {"urls": [f"json://127.0.0.1:{server.port}/"], "digest": "none"}
            nights.write()
            nights.run("web")
            with suppress(OSError):
                for number in range(40):
                    (nights.state / f"ballast{number}").touch()
            assert (os.statvfs(disk).f_favail, os.statvfs(disk).f_bavail > 1000) == (0, True)
            done = nights.backupd("run", "web", "--json", check=False)
            assert (outcomes_of(done), done.returncode) == ({"web": "complete"}, 1), done.stderr
            assert "df -i" in nights.backupd("status", check=False).stderr
            nights.backupd("notify", check=False)
            (message,) = server.json()
            command = f"df -h {nights.state}; df -i {nights.state}"
            assert command in message["message"]
            assert "100%" in work("sh", "-c", command).stdout
            make_room(nights)
            nights.backupd("notify")
            assert server.json()[-1]["type"] == "success"
        assert nights.run("web")["web"]["outcome"] == "complete"
        assert rows(nights, "select host, count(*) from backup group by host") == [("web", 3)]
    finally:
        work("umount", disk)
