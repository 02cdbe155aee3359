"""Backups sent to a repository of restic, and restored from it by plain restic."""

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.beds import session, work
from tests.beds.cli import backupd_start
from tests.beds.faults import damage, damage_metadata, leaves
from tests.beds.nights import Nights
from tests.beds.watch import wait_for

pytestmark = pytest.mark.btrfs

PASSWORD = "a very secret word 4711"
KEY = "Xy9-the-key-of-the-storage"


class Offsite:
    """A pool with one host, web1, and a repository `far` in a folder outside of it."""

    def __init__(self, top: Path) -> None:
        self.night = Nights(top, "--rehearsal")
        self.away = Path(session.folder()) / f"away-{os.urandom(4).hex()}"
        self.away.mkdir(mode=0o700)
        self.repository = self.away / "repository"
        self.password = self.secret("password", PASSWORD + "\n")
        self.night.tables["offsite.far"] = {"repository": str(self.repository), "password_file": str(self.password)}
        self.night.host("web1", self.night.source)

    def secret(self, name: str, text: str, mode: int = 0o600) -> Path:
        file = self.away / name
        file.write_text(text)
        file.chmod(mode)
        return file

    def settings(self, **keys: Any) -> None:
        self.night.tables["offsite.far"] |= keys
        self.night.tables["offsite.far"] = {
            key: value for key, value in self.night.tables["offsite.far"].items() if value is not None
        }
        self.night.write()

    def backup(self, now: str, host: str = "web1") -> str:
        self.night.backupd("run", host, "--now", now)
        return self.night.names(host)[-1]

    def offsite(self, *words: str, status: int = 0, env: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        done = self.night.backupd("offsite", *words, check=False, env=env)
        assert done.returncode == status, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def run(self, *words: str, status: int = 0) -> dict[str, Any]:
        (answer,) = json.loads(self.offsite("run", "--json", *words, status=status).stdout)
        return dict(answer)

    def restic(self, *words: str | Path) -> str:
        """Plain restic, used with only the repository and its password."""
        return work("restic", "--repo", self.repository, "--password-file", self.password, "--no-cache", *words).stdout

    def listed_by_restic(self) -> list[tuple[str, str, list[str]]]:
        """Returns host, time and paths from plain restic's list."""
        answer = json.loads(self.restic("snapshots", "--json")) or []
        return [(row["hostname"], row["time"], row["paths"]) for row in answer]

    def copies(self, now: str) -> dict[str, Any]:
        (answer,) = self.night.json("status", "--now", now)["copies"]
        return dict(answer)


@pytest.fixture
def far(make_btrfs: Callable[..., Path]) -> Iterator[Offsite]:
    made = Offsite(make_btrfs())
    yield made
    shutil.rmtree(made.away)


def fill(source: Path) -> None:
    (source / "a").write_text("first\n")
    (source / "b").write_bytes(os.urandom(2_000_000))
    os.link(source / "a", source / "hard")
    (source / "link").symlink_to("a")
    (source / "folder").mkdir(mode=0o750)
    (source / "folder" / "new\nline [x] *?\\ caf\udce9").write_text("odd")
    os.mkfifo(source / "fifo")
    os.setxattr(source / "a", "user.note", b"kept")
    os.chown(source / "folder", 1234, 5678)
    os.utime(source / "a", ns=(10**18, 10**18 + 123_456_789))
    work("setfacl", "-m", "u:1234:rw", source / "b")


def test_plain_restic_gets_back_what_the_host_had_with_time_and_host(far: Offsite) -> None:
    fill(far.night.source)
    name = far.backup("2026-03-01T22:00:00Z")
    assert "no repository" in far.offsite("run", status=1).stderr
    far.offsite("init", "far")
    answer = far.run()
    assert [(sent_backup["host"], sent_backup["backup"]) for sent_backup in answer["sent"]] == [("web1", name)]
    assert far.listed_by_restic() == [("web1", f"{name[:13]}:{name[13:15]}:{name[15:]}", ["/btrkeep"])]
    back = far.away / "back"
    far.restic("restore", "latest", "--host", "web1", "--target", back)
    shown = back / "btrkeep/data" / str(far.night.source).lstrip("/")
    output = work("rsync", "-n", "-aHAXci", "--delete", f"{far.night.source}/", f"{shown}/").stdout
    assert output == ""
    assert (shown / "a").stat().st_ino == (shown / "hard").stat().st_ino
    record = json.loads((back / "btrkeep/backup.json").read_text())
    assert (record["host"], record["state"]) == ("web1", "complete")
    assert far.run()["sent"] == []
    with sqlite3.connect(far.night.state / "catalogue.sqlite") as rows:
        facts = dict(rows.execute("SELECT name, value FROM about WHERE name LIKE 'offsite%'").fetchall())
    assert json.loads(facts["offsite-there:far"]) == {"incomplete": [], "newest": {"web1": name}}
    listed = json.loads(far.offsite("list", "--json").stdout)
    assert [(row["host"], row["backup"], row["whole"]) for row in listed] == [("web1", name, True)]


def test_a_second_night_sends_the_difference_and_reads_only_what_has_changed(far: Offsite) -> None:
    fill(far.night.source)
    for number in range(300):
        (far.night.source / f"f{number}").write_bytes(os.urandom(5000))
    far.backup("2026-03-01T22:00:00Z")
    far.offsite("init", "far")
    first = far.run()["sent"][0]["bytes"]
    (far.night.source / "a").write_text("second\n")
    name = far.backup("2026-03-02T22:00:00Z")
    (sent,) = far.run()["sent"]
    assert 0 < sent["bytes"] < first / 10
    parents = [row.get("parent") for row in json.loads(far.restic("snapshots", "--json"))]
    assert parents[0] is None
    assert parents[1]
    (lag,) = far.copies("2026-03-02T23:00:00Z")["lag"]
    assert (lag["host"], lag["newest"], lag["listed"]) == ("web1", name, True)
    assert 3540 < lag["age"] <= 3600


def test_no_secret_is_in_the_catalogue_on_a_command_line_or_in_what_is_said(far: Offsite) -> None:
    key = f"{KEY}-of-this-test"  # other tests pass their keys to a server on its command line
    fill(far.night.source)
    far.backup("2026-03-01T22:00:00Z")
    text = f"RESTIC_PASSWORD='{PASSWORD}'\nexport AWS_SECRET_ACCESS_KEY={key}\n# a comment\n"
    file = far.secret("environment", text)
    far.settings(environment_file=str(file), password_file=None)
    far.offsite("init", "far")
    seen: list[str] = []
    program = backupd_start("--config", far.night.config, "-vv", "offsite", "run")
    while program.poll() is None:
        for command_line in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                seen.append(command_line.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
    out, err = program.communicate()
    assert program.returncode == 0, err
    assert any("restic backup" in line for line in seen)
    far.night.backupd("sample")
    output = "".join((*seen, out, err, far.offsite("run", "-h").stdout, *(json.dumps(far.copies("2026-03-02T22:00:00Z")),)))
    for secret in (PASSWORD, key):
        assert secret not in output
        for state_file in (path for path in far.night.state.rglob("*") if path.is_file()):
            assert secret.encode() not in state_file.read_bytes(), state_file
    far.settings(repository=f"rest:http://127.0.0.1:1/{key}")
    assert key not in far.offsite("run", status=1).stderr


@pytest.mark.parametrize(("mode", "output"), [(0o640, "users other than root"), (0o604, "users other than root")])
def test_a_secret_that_others_may_read_is_not_used(far: Offsite, mode: int, output: str) -> None:
    far.password.chmod(mode)
    assert output in far.offsite("init", "far", status=1).stderr
    assert not far.repository.exists()


def test_a_wrong_password_and_a_repository_that_is_away_are_told_and_noted(far: Offsite) -> None:
    fill(far.night.source)
    far.backup("2026-03-01T22:00:00Z")
    far.offsite("init", "far")
    far.run()
    far.password.write_text("another\n")
    output = far.offsite("run", "--now", "2026-03-02T12:00:00Z", status=1).stderr
    assert "wrong password" in output
    assert "its newest backup is" in output
    copies = far.copies("2026-03-02T12:30:00Z")
    assert (copies["kind"], copies["state"]) == ("offsite", "failing")
    assert "wrong password" in copies["error"]
    far.password.write_text(PASSWORD)
    far.repository.rename(far.away / "else")
    assert "there is no repository" in far.offsite("run", status=1).stderr
    assert not far.repository.exists()
    (far.away / "else").rename(far.repository)
    assert far.run()["status"] == 0
    assert far.copies("2026-03-02T13:00:00Z")["error"] is None


def test_killed_in_the_middle_it_goes_on_and_nothing_counts_that_is_not_whole(far: Offsite) -> None:
    for number in range(40):
        (far.night.source / f"f{number}").write_bytes(os.urandom(1_000_000))
    far.backup("2026-03-01T22:00:00Z")
    far.offsite("init", "far")
    far.settings(bandwidth="4MB")
    program = backupd_start("--config", far.night.config, "offsite", "run")
    end = time.monotonic() + 60
    while not any((far.repository / "data").glob("*/*")):
        assert time.monotonic() < end
        time.sleep(0.02)
    program.send_signal(signal.SIGKILL)
    program.wait()
    assert far.listed_by_restic() == []
    assert far.copies("2026-03-02T22:00:00Z")["state"] == "never"
    far.settings(bandwidth=None)
    assert len(far.run()["sent"]) == 1
    far.restic("check", "--read-data", "--no-lock")  # the killed one's lock may still be there


def test_foreign_snapshots_there_are_neither_listed_nor_trusted(far: Offsite) -> None:
    (far.night.source / "a").write_text("first\n")
    far.backup("2026-03-01T22:00:00Z")
    far.offsite("init", "far")
    pool = json.loads((far.night.pool / ".btrkeep/pool.json").read_text())["id"]
    ours = ("--tag", f"btrkeep,pool:{pool},backup:2026-03-01T220000Z")
    for words in (
        ("--host", "../../..", *ours),
        ("--host", "web1", "--tag", "mine"),
        ("--host", "web1", *ours[:1], "btrkeep,pool:x"),
    ):
        work("restic", "-q", "--repo", far.repository, "--password-file", far.password, "backup", *words, far.night.source / "a")
    assert json.loads(far.offsite("list", "--json").stdout) == []
    assert len(far.run()["sent"]) == 1


def test_a_lock_of_a_restic_that_died_is_removed_and_one_of_a_living_is_not(far: Offsite) -> None:
    fill(far.night.source)
    far.backup("2026-03-01T22:00:00Z")
    far.offsite("init", "far")
    words = ("restic", "--repo", str(far.repository), "--password-file", str(far.password), "--no-cache", "check", "--read-data")
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as other:
        wait_for(lambda: any("tmp" not in lock.name for lock in (far.repository / "locks").iterdir()))  # named when it is whole
        other.send_signal(signal.SIGSTOP)
        done = far.night.backupd("offsite", "run", check=False)
        other.kill()
    assert "already locked" in done.stderr
    assert any((far.repository / "locks").iterdir())
    assert len(far.run()["sent"]) == 1


def test_what_is_sent_is_not_deleted_meanwhile(far: Offsite) -> None:
    for number in range(40):
        (far.night.source / f"f{number}").write_bytes(os.urandom(1_000_000))
    name = far.backup("2026-03-01T22:00:00Z")
    far.offsite("init", "far")
    far.settings(bandwidth="8MB")
    program = backupd_start("--config", far.night.config, "offsite", "run")
    end = time.monotonic() + 60
    while not any((far.repository / "data").glob("*/*")):
        assert time.monotonic() < end
        time.sleep(0.02)
    done = far.night.backupd("delete", f"web1@{name}", "--force", "--now-without-grace", check=False)
    assert program.poll() is None
    assert "is being restored from" in done.stderr
    assert far.night.names("web1") == [name], done.stderr
    program.communicate()
    assert program.returncode == 0


def test_its_own_retention_removes_there_and_none_removes_nothing(far: Offsite) -> None:
    fill(far.night.source)
    far.offsite("init", "far")
    for day in (1, 2, 3):
        far.backup(f"2026-03-0{day}T22:00:00Z")
        far.run("--now", f"2026-03-0{day}T23:00:00Z")
    assert len(far.listed_by_restic()) == 3
    far.night.tables["offsite.far.retention"] = {"daily": 1, "weekly": 0, "monthly": 0, "yearly": 0, "min_keep": 1}
    far.night.write()
    plan = far.offsite("run", "--dry-run", "--now", "2026-03-05T00:00:00Z").stdout
    names = far.night.names("web1")
    assert f"web1@{names[0]}: would be removed from the repository" in plan
    assert len(far.listed_by_restic()) == 3
    assert far.run("--now", "2026-03-05T00:00:00Z")["removed"] == 2
    assert [when.replace(":", "") for _, when, _ in far.listed_by_restic()] == names[-1:]
    assert far.night.names("web1") == names


def test_check_reads_back_and_finds_what_is_damaged_there(far: Offsite) -> None:
    fill(far.night.source)
    far.backup("2026-03-01T22:00:00Z")
    far.offsite("init", "far")
    far.run()
    (answer,) = json.loads(far.offsite("check", "--sample", "100%", "--json").stdout)
    assert (answer["backup"], answer["error"]) == (f"web1@{far.night.names('web1')[0]}", None)
    assert answer["files"] == 4  # plain files, and one of them by two names: a, hard, b, and the odd one
    pack = max((far.repository / "data").glob("*/*"), key=lambda path: path.stat().st_size)
    pack.chmod(0o600)
    with pack.open("r+b") as file:
        file.seek(pack.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    (answer,) = json.loads(far.offsite("check", "--sample", "100%", "--json", status=1).stdout)
    assert answer["error"]


@contextmanager
def append_only(folder: Path, password: str) -> Iterator[str]:
    """Starts `rclone serve restic --append-only`, which permits only the deletion of locks; yields the URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ("rclone", "serve", "restic", "--append-only", "--addr", f"127.0.0.1:{port}", "--user", "backup", "--pass", password)
    server = subprocess.Popen([*words, folder], stderr=subprocess.DEVNULL, env={**os.environ, "RCLONE_CONFIG": "/dev/null"})
    try:
        end = time.monotonic() + 60
        while True:
            assert time.monotonic() < end
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"rest:http://backup:{password}@127.0.0.1:{port}/"
    finally:
        server.kill()
        server.wait()


@contextmanager
def append_only_repository(far: Offsite) -> Iterator[None]:
    """The repository `far` behind a server that refuses deletions."""
    far.repository.mkdir()
    with append_only(far.repository, KEY) as url:
        file = far.secret("environment", f"RESTIC_REPOSITORY={url}\n")
        far.settings(repository=None, environment_file=str(file))
        far.offsite("init", "far")
        yield


def damaged_backup(far: Offsite) -> Path:
    """A first backup of web1 with a file whose first block cannot be read; returns the source, outside of the pool's disk."""
    source = far.away / "source"
    source.mkdir()
    fill(source)
    far.night.host("web1", source)
    far.backup("2026-03-01T22:00:00Z")
    far.offsite("init", "far")
    damage(far.night.top, (source / "b").read_bytes()[:4096])
    return source


def test_a_server_that_lets_nothing_be_deleted_takes_it_and_gives_it_back(far: Offsite) -> None:
    fill(far.night.source)
    with append_only_repository(far):
        for day in (1, 2):
            far.backup(f"2026-03-0{day}T22:00:00Z")
            far.run("--now", f"2026-03-0{day}T23:00:00Z")
        far.offsite("check", "--sample", "100%")
    assert len(far.listed_by_restic()) == 2


def test_the_age_is_that_of_the_newest_backup_there_and_a_server_that_is_down_is_not_made_anew(far: Offsite) -> None:
    fill(far.night.source)
    with append_only_repository(far):
        far.backup("2026-03-01T22:00:00Z")
        far.run("--now", "2026-03-02T10:00:00Z")
    assert (far.copies("2026-03-02T11:00:00Z")["state"], far.copies("2026-03-02T11:00:00Z")["age"]) == ("ok", 13 * 3600)
    done = far.offsite("run", "--now", "2026-03-04T22:00:00Z", status=1)
    assert "connection refused" in done.stderr
    assert "its newest backup is 3d old" in done.stderr
    assert "offsite init" not in done.stderr
    assert far.copies("2026-03-04T22:00:00Z")["age"] == 3 * 86400


def test_what_restic_could_not_read_whole_does_not_count(far: Offsite) -> None:
    source = damaged_backup(far)
    done = far.offsite("run", "--now", "2026-03-02T12:00:00Z", status=1)
    assert "could not read all of the backup" in done.stderr
    assert far.copies("2026-03-02T22:00:00Z")["state"] == "failing"
    assert far.copies("2026-03-02T22:00:00Z")["lag"] == []
    assert [row["whole"] for row in json.loads(far.offsite("list", "--json").stdout)] == [False]
    (source / "b").write_bytes(os.urandom(2_000_000))
    far.backup("2026-03-02T22:00:00Z")
    assert len(far.run("--now", "2026-03-03T12:00:00Z")["sent"]) == 1
    assert sorted(row["whole"] for row in json.loads(far.offsite("list", "--json").stdout)) == [False, True]
    assert far.copies("2026-03-03T12:00:00Z")["state"] == "ok"


@pytest.mark.long
def test_a_retention_with_a_key_that_cannot_delete_is_told(far: Offsite) -> None:
    """restic tries ten times, which takes most of a minute."""
    (far.night.source / "a").write_text("first\n")
    with append_only_repository(far):
        for day in (1, 2):
            far.backup(f"2026-03-0{day}T22:00:00Z")
            far.run("--now", f"2026-03-0{day}T23:00:00Z")
        far.night.tables["offsite.far.retention"] = {"daily": 1, "weekly": 0, "monthly": 0, "yearly": 0, "min_keep": 1}
        far.night.write()
        process = far.offsite("run", "--now", "2026-03-05T00:00:00Z", status=1)
        assert KEY not in process.stderr + process.stdout
        assert "cannot delete" in process.stderr
    assert len(far.listed_by_restic()) == 2


def test_when_the_pool_or_the_backup_is_gone_restore_gives_the_line_that_gets_it_back(far: Offsite) -> None:
    fill(far.night.source)
    first = far.backup("2026-03-01T22:00:00Z")
    far.offsite("init", "far")
    far.run()
    (far.night.source / "a").write_text("second\n")
    second = far.backup("2026-03-02T22:00:00Z")
    far.run()
    wanted, target = (far.night.source / "folder", far.night.source / "b"), far.away / "back"
    gone = far.night.pool / "hosts" / "web1" / first
    work("btrfs", "property", "set", "-f", "-ts", gone, "ro", "false")
    work("btrfs", "subvolume", "delete", gone)
    notes = far.night.backupd("restore", f"web1@{first}", far.night.source, "--to", target, check=False).stderr
    assert f"offsite far: its newest backup is {second}" in notes
    subprocess.run(["bash", "-euc", restic_line_of(notes)], check=True, capture_output=True)
    shown = f"{target}/btrkeep/data{far.night.source}"
    assert Path(shown, "a").read_text() == "first\n"
    far.night.settings("pool", path=str(far.away / "empty"))
    (far.away / "empty").mkdir()
    done = far.night.backupd("restore", "web1", *wanted, "--to", far.away / "two", check=False)
    assert done.returncode == 4
    assert PASSWORD not in done.stderr
    subprocess.run(["bash", "-euc", restic_line_of(done.stderr)], check=True, capture_output=True)
    for path in wanted:
        assert work("rsync", "-n", "-aHAXci", "--delete", path, f"{far.away}/two/btrkeep/data{path.parent}/").stdout == ""
    (far.night.state / "catalogue.sqlite").unlink()
    done = far.night.backupd("restore", "web1", "/", "--to", far.away / "later", check=False)
    assert "its newest backup is not known here" in done.stderr
    assert f"--include /btrkeep/data --target {far.away}/later" in restic_line_of(done.stderr)


def restic_line_of(output: str) -> str:
    (line,) = [line.strip() for line in output.splitlines() if line.strip().startswith(("restic ", "(set -a"))]
    return line


def test_a_newest_backup_that_the_disk_does_not_give_back_is_not_passed_over_in_silence(make_btrfs: Callable[..., Path]) -> None:
    far = Offsite(make_btrfs(size="300M", mkfs=("-m", "single")))
    (far.night.source / "file").write_text("1")
    first = far.backup("2026-03-01T22:00:00Z")
    far.offsite("init", "far")
    far.offsite("run")
    (far.night.source / "file").write_text("2")
    second = far.backup("2026-03-02T22:00:00Z")
    old, new = (leaves(far.night.pool / "hosts/web1" / name, far.night.top) for name in (first, second))
    damage_metadata(far.night.top, *(number for number in new if number not in old))
    done = far.offsite("run", status=1)
    assert second in done.stdout + done.stderr
