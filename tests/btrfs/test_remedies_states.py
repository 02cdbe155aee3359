"""The commands that are printed in lasting states: a changed backup, a held lock, an unreachable repository."""

import html
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from backupd.serve.jobs import ServeJob
from backupd.serve.start_job import PER_ASKER, require_waiting_slot
from btrkeep.decisions.alarm_advice import command_for
from btrkeep.serving.protocol import RequestRefused
from tests.beds import TOP, btrfs
from tests.beds.cli import backupd_start
from tests.beds.faults import damage_metadata, leaves
from tests.beds.history import every, make_history
from tests.beds.nights import Nights
from tests.beds.remedies import Done, Typist, prints, refused, types, typing
from tests.beds.serving import serving
from tests.beds.walls import with_own_mounts
from tests.beds.work import work
from tests.btrfs.test_altered import writable
from tests.web.made import client, login_of

pytestmark = [pytest.mark.btrfs, pytest.mark.root]
ENV = {**os.environ, "PYTHONPATH": str(TOP), "NO_COLOR": "1"}
TODAY = datetime.now(UTC).replace(microsecond=0)


@pytest.fixture
def typist(request: pytest.FixtureRequest) -> Iterator[Typist]:
    with typing(request.function) as made:
        yield made


@pytest.fixture
def pool(nights: Nights) -> Nights:
    """A pool with a host that has a file; the configuration is in a folder with a blank in its name."""
    folder = nights.top / "my pools"
    folder.mkdir()
    nights.config = nights.config.rename(folder / nights.config.name)
    (nights.source / "file").write_text("text")
    nights.host("web1", nights.source, address=None)
    return nights


@types("backupd verify {}@{}", "{} verify {}", "{} accept {}")
def test_a_backup_that_was_changed_by_hand_is_read_and_accepted(pool: Nights, typist: Typist) -> None:
    pool.run("web1")
    (name,) = pool.names("web1")
    writable(pool.backup("web1"), lambda backup: next(backup.rglob("file")).write_text("changed"))
    pool.backupd("verify", "web1", check=False)
    assert "altered: 1 backup" in prints(pool, "status").stdout
    with serving(pool.config, "--login", login_of()) as service:
        page = client(pool.state, socket=service.socket).get(f"/hosts/web1/accept?backup={name}").text
    (line,) = re.findall(r"<code>(backupd [^<]*verify [^<]+)</code>", page)
    assert "file" in typist.type(html.unescape(line), status=1).stdout
    typist.follow(prints(pool, "status"), "{} verify {}", status=1)
    typist.follow(prints(pool, "status"), "{} accept {}")
    assert "altered" not in prints(pool, "status").stdout
    assert {backup["state"] for backup in pool.listed("web1")} == {"complete"}


@types("{} delete {}")
def test_a_backup_that_was_changed_by_hand_is_deleted(pool: Nights, typist: Typist) -> None:
    pool.run("web1")
    (pool.source / "new").write_text("1")
    pool.run("web1")
    first, last = pool.names("web1")
    writable(pool.backup("web1", first), lambda backup: next(backup.rglob("file")).write_text("changed"))
    pool.backupd("verify", "web1", check=False)
    typist.follow(prints(pool, "status"), "{} delete {}")
    assert "altered" not in prints(pool, "status").stdout
    assert {backup["name"]: backup["state"] for backup in pool.listed("web1")}[last] == "complete"


@types("backupd host add web1 --address root@web1.example.org --path /etc", "backupd run web1")
def test_the_commands_of_a_dashboard_without_hosts_make_the_first_backup(nights: Nights, typist: Typist) -> None:
    (nights.top / "my pools").mkdir()
    nights.config = nights.config.rename(nights.top / "my pools" / nights.config.name)
    nights.settings("ssh", key=str(nights.top / "key"), known_hosts=str(nights.top / "known_hosts"))
    nights.backupd("status")
    with serving(nights.config, "--login", login_of()) as service:
        page = client(nights.state, socket=service.socket).get("/").text
    (block,) = re.findall(r"<pre><code>([^<]+)</code></pre>", page)
    setup, *lines = block.splitlines()
    assert setup == "backupd setup"
    for line, status in zip(lines, (None, 0), strict=True):  # the name does not resolve, so the host is added and not reached
        typist.type(command_for(line, "main", f"backupd --config '{nights.config}'"), status)
    assert len(nights.names("web1")) == 1


@types("{} verify {}")
def test_a_host_that_no_verification_reached_is_read(pool: Nights, typist: Typist) -> None:
    pool.tables["verify"] = {"max_age": "30d"}
    pool.write()
    make_history(pool, "web1", every(1, 2, TODAY - timedelta(days=120)))
    checked = prints(pool, "check")
    assert "no backup of web1 was read for" in checked.stdout
    typist.follow(checked, "{} verify {}")
    assert "was read for" not in prints(pool, "check").stdout


@types("backupd run --all")
def test_more_runs_than_may_wait_are_asked_for_and_all_hosts_are_backed_up(pool: Nights, typist: Typist) -> None:
    pool.host("web2", pool.source, address=None)
    jobs = [
        ServeJob(str(number), "run", f"web{number % 2 + 1}", "alice", "2026-11-20T08:00:00Z", {}) for number in range(PER_ASKER)
    ]
    with pytest.raises(RequestRefused) as error:
        require_waiting_slot(jobs, "alice")
    (command,) = re.findall(r"`([^`]+)`", error.value.hint or "")
    typist.type(command_for(command, "main", f"backupd --config '{pool.config}'"))
    assert [len(pool.names(host)) for host in ("web1", "web2")] == [1, 1]


@types("backupd status")
def test_while_a_lock_is_held_the_command_that_is_named_shows_its_holder(pool: Nights, typist: Typist) -> None:
    pool.host("web2", pool.source)
    pool.ssh("sleep 60; true")
    holder = backupd_start("--config", pool.config, "run", "web2")
    try:
        end = time.monotonic() + 60
        while (done := prints(pool, "rename", "web2", "web3", "--yes")).returncode != 3:
            assert time.monotonic() < end, done
            time.sleep(0.1)
        assert f"process {holder.pid} (backup of web2)" in done.stderr
        while "running" not in (shown := typist.follow(done, "backupd status", status=None).stdout):
            assert time.monotonic() < end, shown  # the lock comes before the record of the run
        assert "web2" in shown
    finally:
        holder.terminate()
        holder.wait(60)
    assert prints(pool, "discard", "web2", "--yes").returncode != 3


@types("backupd offsite check {}")
def test_a_repository_that_could_not_be_reached_three_times_is_checked_once_it_is_back(
    pool: Nights, typist: Typist, tmp_path: Path
) -> None:
    away, password = tmp_path / "my repository", tmp_path / "my password"
    password.write_text("4711\n")
    password.chmod(0o600)
    pool.tables["offsite.far"] = {"repository": str(away), "password_file": str(password)}
    pool.write()
    pool.run("web1")
    pool.backupd("offsite", "init", "far")
    pool.backupd("offsite", "run", "far")
    shutil.move(away, tmp_path / "unplugged")
    for _ in range(3):
        assert refused(pool, "offsite", "check", "far").returncode == 1
        time.sleep(1)  # attempts are identified by the second
    checked = prints(pool, "check")
    assert "offsite check far: did not finish 3 times in a row" in " ".join(checked.stdout.split())
    shutil.move(tmp_path / "unplugged", away)
    typist.follow(checked, "backupd offsite check {}")
    assert "not finished" not in prints(pool, "check").stdout


@types("backupd drill")
def test_a_drill_that_never_ended_in_time_is_made_with_more_time(pool: Nights, typist: Typist) -> None:
    pool.run("web1")
    slow = pool.rsync('sleep 2; exec "$REAL" "$@"')
    for _ in range(3):
        assert pool.backupd("drill", "--time", "1s", check=False, env=slow).returncode == 1
    checked = prints(pool, "check")
    assert "give it more time" in checked.stdout
    typist.follow(checked, "backupd drill")
    assert "not finished" not in prints(pool, "check").stdout


@types("btrfs check --readonly")
def test_a_damaged_leaf_is_named_by_the_check_that_scrub_names(make_btrfs: Callable[..., Path], typist: Typist) -> None:
    nights = Nights(make_btrfs(size="300M", mkfs=("-m", "single")))
    work("btrfs", "subvolume", "create", nights.top / "own")
    for number in range(300):
        (nights.top / "own" / f"name {number}").touch()
    damage_metadata(nights.top, leaves(nights.top / "own", nights.top)[-1])
    line = typist.find(prints(nights, "scrub"), "btrfs check --readonly")
    (device,) = btrfs.devices_of(nights.top)
    work("umount", nights.top)
    done = typist.type(f"{line} {device}", status=None)
    work("mount", device, nights.top)
    assert done.returncode != 0
    assert "own" in done.stderr or "checksum" in done.stderr.lower() or "csum" in done.stderr, done


@types("mount {}")
def test_a_pool_that_is_not_mounted_is_mounted_by_the_command_of_fstab(
    make_btrfs: Callable[..., Path], typist: Typist, tmp_path: Path
) -> None:
    """In a separate mount namespace, with a separate fstab."""
    pool = Nights(make_btrfs())
    (pool.source / "file").write_text("text")
    pool.host("web1", pool.source, address=None)
    pool.run("web1")
    uuid = work("btrfs", "filesystem", "show", pool.top).stdout.split("uuid: ")[1].split()[0]
    fstab, config = tmp_path / "fstab", tmp_path / "main.toml"
    shutil.copy(pool.config, config)
    fstab.write_text(f"UUID={uuid} {pool.top} btrfs noauto 0 0\n")
    holder = subprocess.Popen(with_own_mounts("cat"), stdin=subprocess.PIPE)
    within = ["nsenter", f"--target={holder.pid}", "--mount"]

    def type_within(*words: str | Path) -> Done:
        return subprocess.run([*within, *words], cwd="/", env=ENV, capture_output=True, text=True, timeout=100, check=False)

    try:
        while work("readlink", f"/proc/{holder.pid}/ns/mnt").stdout == work("readlink", "/proc/self/ns/mnt").stdout:
            time.sleep(0.01)
        assert type_within("mount", "--bind", fstab, "/etc/fstab").returncode == 0
        assert type_within("umount", pool.top).returncode == 0
        status = (sys.executable, "-m", "backupd", "--config", config, "list")
        lost = type_within(*status)
        assert lost.returncode == 4, lost
        (command,) = re.findall(r"`(mount [^`]+)`", " ".join(lost.stderr.split()))
        typist.typed.append(command)
        assert type_within("bash", "-c", command).returncode == 0
        again = type_within(*status)
        assert (again.returncode, "web1" in again.stdout) == (0, True), again
    finally:
        holder.communicate(timeout=60)
