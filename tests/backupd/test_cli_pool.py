"""The messages of commands when the pool, the catalogue or the rights are not as they should be."""

import json
import re
import shlex
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.beds import session, work
from tests.beds.anyone import NOBODY, readable
from tests.beds.btrfs import devices_of, remount
from tests.beds.cli import BACKUPD, backupd
from tests.beds.nights import Nights

READERS = ("status", "list", "log")


def fails(nights: Nights, *words: str, status: int) -> str:
    """Returns the error of a failing command: one line and a hint, no traceback, nothing on standard output, except that `status`
    prints there that the state is unknown, and the last known one.
    """
    done = nights.backupd(*words, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    assert done.stdout == "" or (words[0] == "status" and done.stdout.startswith("unknown: "))
    lines = done.stderr.splitlines()
    assert [line.partition(":")[0] for line in lines] in (["error", "hint"], ["error"]), done.stderr
    return lines[0].removeprefix("error: ")


def test_in_a_folder_that_was_removed_nothing_begins(nights: Nights, tmp_path: Path) -> None:
    """rsync ends there with status 3, which made a failed backup of it."""
    nights.host("web", nights.source)
    gone = tmp_path / "gone"
    gone.mkdir()
    line = shlex.join([*BACKUPD, "--config", str(nights.config), "run", "web"])
    done = work("sh", "-c", f"cd {gone} && rmdir {gone} && {line}", check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == ["error: the current folder no longer exists", "hint: `cd` to another folder"]
    assert not (nights.pool / "hosts" / "web").exists()


def test_an_unknown_host_is_told_with_the_nearest_known_one(nights: Nights) -> None:
    nights.tables["retention"] = {"daily": 14}  # otherwise a note is printed that everything is kept
    nights.host("web1-berlin", nights.source)
    for words in (["status"], ["list"], ["log"], ["run"], ["accept"]):
        name = ["latest"] if words == ["accept"] else []
        done = nights.backupd(*words, "web1-berlni", *name, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.splitlines()[-1] == "hint: did you mean web1-berlin?"


def test_another_time_is_refused_on_a_pool_that_is_no_rehearsal(nights: Nights) -> None:
    for words in (["status"], ["list"], ["log"], ["run"], ["check"], ["rebuild"], ["accept", "x", "y"]):
        assert "--rehearsal" in fails(nights, *words, "--now", "2026-11-20T22:00:00Z", status=2)


def test_a_pool_that_is_not_there_is_unusable_and_nothing_is_made_in_its_place(make_btrfs: Callable[..., Path]) -> None:
    mount = make_btrfs(size="512M")
    nights = Nights(mount)
    nights.host("here", nights.source, address=None)
    outside = mount.parent / "config.toml"
    outside.write_text(nights.config.read_text().replace(str(nights.state), str(mount.parent / "state")))
    nights.config = outside
    (device,) = devices_of(mount)
    work("umount", mount)
    try:
        for words in (*READERS, "run", "rebuild"):
            assert "is not a pool" in fails(nights, words, status=4)
        assert list(mount.iterdir()) == []
        checked = nights.backupd("check", check=False)
        assert checked.returncode == 4
        assert f"{nights.pool} is not a pool" in checked.stdout
        for command in ("check", "status", "doctor", "run"):
            done = nights.backupd(command, check=False)
            assert "mount the pool" in done.stdout + done.stderr, command
            assert "init" not in done.stdout + done.stderr, command  # no btrfs is mounted there, so no pool can be created
    finally:
        work("mount", device, mount)
    nights.backupd("status")


def test_a_pool_that_the_catalogue_knows_is_to_be_mounted_and_not_made_anew(nights: Nights) -> None:
    """Its mount point may be on a btrfs, too: that of the system."""
    nights.backupd("status")
    nights.pool.rename(nights.top / "elsewhere")
    nights.pool.mkdir()
    assert list(nights.pool.iterdir()) == []
    (answer,) = [row for row in json.loads(nights.backupd("check", "--json", check=False).stdout) if row["subject"] == "pool"]
    assert "mount" in answer["hint"]
    assert str(nights.state) in answer["hint"]
    assert "init" not in answer["hint"]
    for words in (*READERS, "run", "expire", "rebuild", "doctor", "scrub"):
        done = nights.backupd(*words.split(), check=False)
        assert (done.returncode, "init" in done.stdout + done.stderr) == (4, False), words
        assert str(nights.state) in " ".join((done.stdout + done.stderr).split()), words
    shutil.rmtree(nights.state)
    (answer,) = [row for row in json.loads(nights.backupd("check", "--json", check=False).stdout) if row["subject"] == "pool"]
    assert f"backupd init {nights.pool}" in answer["hint"]


def test_without_the_pool_list_and_log_show_what_is_recorded(nights: Nights) -> None:
    nights.host("here", nights.source, address=None)
    nights.run("here")
    nights.pool.rename(nights.top / "elsewhere")
    nights.pool.mkdir()
    for words in (("list",), ("list", "here"), ("list", "--all"), ("log",), ("log", "here")):
        done = nights.backupd(*words, check=False)
        assert (done.returncode, "here" in done.stdout) == (4, True), words
        error, hint = done.stderr.splitlines()
        assert "is not a pool" in error
        assert "the last recorded state, without holds, expiry and actions" in error
        assert "mount the pool" in hint
        rows = nights.backupd(*words, "--json", check=False)
        assert (rows.returncode, [row["host"] for row in json.loads(rows.stdout)]) == (4, ["here"])
    assert fails(nights, "log", "--actions", status=4)
    assert "did you mean here?" in nights.backupd("list", "hree", check=False).stderr


def test_a_marker_on_another_filesystem_makes_no_pool(nights: Nights, tmp_path: Path) -> None:
    shutil.copytree(nights.pool / ".btrkeep", tmp_path / "pool" / ".btrkeep", ignore=shutil.ignore_patterns("reserve*"))
    nights.settings("pool", path=str(tmp_path / "pool"))
    for words in (*READERS, "run", "rebuild"):
        assert "its marker names" in fails(nights, words, status=4)
    assert nights.backupd("check", check=False).returncode == 4


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 1}', '{"format": 99, "id": "x", "filesystem": "x", "rehearsal": false}']
)
def test_a_marker_that_cannot_be_understood_is_unusable(nights: Nights, text: str) -> None:
    (nights.pool / ".btrkeep" / "pool.json").write_text(text)
    fails(nights, "status", status=4)


def test_a_read_only_pool_can_be_looked_at_but_nothing_is_written(make_btrfs: Callable[..., Path]) -> None:
    mount = make_btrfs(size="512M")
    nights = Nights(mount)
    nights.settings("pool", state=str(mount.parent / "state"))
    nights.host("here", nights.source, address=None)
    nights.run("here")
    remount(mount, "ro")
    try:
        assert [entry["host"] for entry in nights.json("list")] == ["here"]
        nights.json("status")
        nights.json("run", "--all", "--dry-run")
        for words in (["run"], ["rebuild"], ["accept", "here", "latest"]):
            assert "read-only" in fails(nights, *words, status=4)
        checked = nights.backupd("check", check=False)
        assert checked.returncode == 4
        assert "is mounted read-only" in checked.stdout
    finally:
        remount(mount, "rw")


def test_a_damaged_catalogue_is_told_and_rebuilt_on_demand(nights: Nights) -> None:
    nights.host("here", nights.source, address=None)
    nights.run("here")
    listed = nights.json("list")
    catalogue = nights.state / "catalogue.sqlite"
    catalogue.write_bytes(b"this is not a database" * 1000)
    for words in READERS:
        assert "is damaged" in fails(nights, words, status=1)
    assert "backupd rebuild" in nights.backupd("status", check=False).stderr
    answer = json.loads(nights.backupd("rebuild", "--json").stdout)
    assert answer["backups"] == 1
    assert Path(answer["set_aside"]).read_bytes().startswith(b"this is not a database")
    rebuilt = nights.json("list")
    took = [entry.pop("duration") for entry in (*listed, *rebuilt)]
    assert rebuilt == listed
    assert 0 < took[1] <= took[0]  # the record is written before the last steps
    assert sqlite3.connect(catalogue).execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_rebuild_finds_damage_in_tables_that_it_does_not_write(nights: Nights) -> None:
    nights.host("here", nights.source, address=None)
    nights.run("here")
    catalogue = nights.state / "catalogue.sqlite"
    with closing(sqlite3.connect(catalogue)) as connection:
        ((page,),) = connection.execute("select rootpage from sqlite_master where name = 'run'")
        ((size,),) = connection.execute("pragma page_size")
    with catalogue.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xa5" * size)
    assert "is damaged" in fails(nights, "log", status=1)
    assert f"was renamed to {catalogue}.aside-1" in nights.backupd("rebuild").stdout
    assert [run["outcome"] for run in nights.json("log")] == ["complete"]  # out of the pool's copy
    assert [entry["host"] for entry in nights.json("list")] == ["here"]


def test_a_rebuild_leaves_alone_what_is_no_damaged_catalogue(nights: Nights) -> None:
    nights.backupd("status")
    catalogue = nights.state / "catalogue.sqlite"
    with closing(sqlite3.connect(catalogue)) as connection, connection:
        connection.execute("pragma user_version = 9999")
    before = catalogue.read_bytes()
    assert "a newer version migrated it" in fails(nights, "rebuild", status=1)
    assert catalogue.read_bytes() == before
    assert list(nights.state.glob("*aside*")) == []


def test_a_catalogue_of_another_pool_is_refused(nights: Nights) -> None:
    nights.host("here", nights.source, address=None)
    nights.backupd("status")
    marker = nights.pool / ".btrkeep" / "pool.json"
    fields = json.loads(marker.read_text())
    marker.write_text(json.dumps({**fields, "id": "11111111-2222-3333-4444-555555555555"}))
    for words in (*READERS, "run"):
        assert f"belongs to another pool ({fields['id']})" in fails(nights, words, status=1)
    checked = nights.backupd("check", "--json", check=False)
    assert checked.returncode == 1
    assert any(finding["subject"] == "catalogue" and finding["level"] == "error" for finding in json.loads(checked.stdout))
    assert "aside-1" in nights.backupd("rebuild").stdout
    nights.backupd("status")
    (aside,) = nights.state.glob("catalogue.sqlite.aside-1")  # its pool may be on a disk that is not mounted now
    with closing(sqlite3.connect(aside)) as connection:
        assert connection.execute("SELECT count(*) FROM about WHERE value = ?", (fields["id"],)).fetchone() == (1,)


def as_nobody(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    return work(*readable().run_as(NOBODY, "-m", "backupd", *words), env=readable().environment, check=False, cwd=Path("/"))


def in_public(nights: Nights) -> Path:
    """The configuration in a folder that all users can enter, like /etc/btrkeep; the session deletes it."""
    folder = Path(tempfile.mkdtemp(prefix="public-", dir=session.folder()))
    folder.chmod(0o755)
    copy = folder / "main.toml"
    copy.write_text(nights.config.read_text())
    copy.chmod(0o644)
    return copy


@pytest.mark.parametrize("words", [["status"], ["list"], ["log"], ["run"]], ids=lambda words: words[0])
def test_a_user_other_than_root_gets_one_line_that_says_so(nights: Nights, words: list[str]) -> None:
    nights.host("here", nights.source, address=None)
    nights.backupd("status")
    config = in_public(nights)
    done = as_nobody("--config", config, *words)
    assert done.returncode == 4, done.stderr
    assert done.stdout == "" or (words == ["status"] and done.stdout.startswith("unknown: "))
    assert "last readable" not in done.stdout  # alarms were never checked
    assert done.stderr.splitlines() == [f"error: {nights.pool}/.btrkeep/pool.json may not be read", "hint: run this as root"]


@pytest.mark.parametrize("folder", [0o755, 0o700])
def test_a_configuration_that_may_not_be_read_is_told_so(nights: Nights, folder: int) -> None:
    config = in_public(nights)
    config.chmod(0o600)
    config.parent.chmod(folder)
    done = as_nobody("--config", config, "status")
    assert done.returncode == 2, done.stderr
    assert "Permission denied" in done.stderr.splitlines()[0]
    assert "Traceback" not in done.stderr


def test_looking_changes_nothing_in_the_pool(nights: Nights) -> None:
    nights.host("here", nights.source, address=None)
    nights.run("here")

    def seen() -> set[str]:
        done = work("find", nights.pool, "-printf", r"%p %i %T@\n").stdout.splitlines()
        assert len(done) > 5
        return set(done)

    before = seen()
    for words in (["status"], ["list"], ["log"], ["check"], ["run", "--dry-run"], ["run", "--all", "--dry-run", "--json"]):
        nights.backupd(*words, check=False)
    assert seen() == before


@pytest.mark.btrfs
def test_commands_in_json_are_about_the_configuration_that_was_named(nights: Nights) -> None:
    nights.host("web1", "/etc")
    done = backupd("--config", nights.config, "doctor", "--json", check=False, as_printed=True)
    commands = re.findall(r"`(backupd [^`]*)`", done.stdout)
    assert commands, done.stdout
    assert all(shlex.split(command)[1:3] == ["--config", str(nights.config)] for command in commands), commands
