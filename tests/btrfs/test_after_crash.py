"""After a crash of this server, the data written last is read before a backup is based on it. The record identifies the boot."""

import fcntl
import hashlib
import json
import os
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from backupd.proof.after_crash import in_doubt_verifier, read_in_doubt, read_last_written, record_boot
from backupd.repo.pool_context import PoolContext
from backupd.repo.pool_files import has_backups_in_doubt
from backupd.run.run_hosts import due_now
from btrkeep.catalogue import Catalogue
from btrkeep.clock import Clock
from btrkeep.config import load
from btrkeep.config.values import parse_window
from btrkeep.pool.marker import open_pool
from btrkeep.pool.subvolume import last_written
from btrkeep.process.progress import Cancellation
from tests.beds.faults import after_cut, cut, damage
from tests.beds.hidden_changes import hide_changes
from tests.beds.nights import Nights
from tests.beds.watch import killed, rows
from tests.beds.work import work

pytestmark = [pytest.mark.btrfs]
MIB = 1 << 20
ANOTHER = "00000000-0000-4000-8000-000000000000"


def note(nights: Nights) -> Path:
    return nights.pool / ".btrkeep/boot.json"


def noted(nights: Nights) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(note(nights).read_text())
    return answer


def reboot(nights: Nights, **fields: Any) -> None:
    """Changes the record to that of another boot."""
    note(nights).write_text(json.dumps(noted(nights) | {"boot": ANOTHER} | fields))


def after_crash(nights: Nights, *words: str, status: int = 0) -> list[dict[str, Any]]:
    done = nights.backupd("verify", "--after-crash", *words, "--json", check=False)
    assert done.returncode == status, done.stderr
    answer = json.loads(done.stdout)
    return list(answer if isinstance(answer, list) else answer["backups"])


def backup_id(path: Path) -> int:
    return int(work("btrfs", "inspect-internal", "rootid", path).stdout)


def written_at(path: Path) -> int:
    """Returns when a file of the subvolume was last written, in seconds since 1970, from `btrfs inspect-internal dump-tree`."""
    device = work("findmnt", "--noheadings", "--output", "SOURCE", "--target", path).stdout.split("[")[0].strip()
    lines = work("btrfs", "inspect-internal", "dump-tree", "-t", "root", device).stdout.splitlines()
    start = next(place for place, line in enumerate(lines) if f"key ({backup_id(path)} ROOT_ITEM" in line)
    return int(next(line for line in lines[start:] if "ctime" in line).split()[1].split(".")[0])


def test_what_the_last_minutes_wrote_is_read_at_once_and_nothing_else(make_btrfs: Callable[..., Path], tree: Path) -> None:
    """The only copy of a file of the last night is lost without btrfs noticing, and another one was wrong before btrfs
    received it.
    """
    nights = Nights(make_btrfs(size="400M"))
    nights.tables["verify"] = {"after_crash": "2s", "new_files": "all"}
    lost, wrong = os.urandom(MIB), os.urandom(MIB)
    (tree / "old").write_bytes(os.urandom(3 * MIB))
    for host in ("old", "web"):
        nights.host(host, tree)
    nights.run("old", "web")
    work("sleep", "2.5")
    (tree / "lost").write_bytes(lost)
    (tree / "wrong").write_bytes(wrong)
    nights.run("web")
    _, last = nights.names("web")
    backup = nights.pool / "hosts/web" / last
    work("btrfs", "property", "set", "-f", backup, "ro", "false")
    (backup / "data" / str(tree)[1:] / "wrong").write_bytes(os.urandom(MIB))
    work("btrfs", "property", "set", backup, "ro", "true")
    hide_changes(backup.parent)  # it was not changed, it has come to the disk like that
    assert hashlib.sha256(wrong).hexdigest() in (backup / "SHA256SUMS").read_text()
    work("sync", "-f", nights.top)
    assert last_written(nights.top)[backup_id(backup)] == datetime.fromtimestamp(written_at(backup), UTC)
    copy = cut(nights.top)
    after_cut(nights.top, copy)
    damage(nights.top, lost)
    assert after_crash(nights) == []  # it is the same boot

    reboot(nights)
    assert after_crash(nights, "--dry-run") == [{"host": "web", "name": last}]
    (single,) = after_crash(nights, status=1)
    assert (single["name"], single["damaged"], single["state"]) == (last, [f"{tree}/lost", f"{tree}/wrong"], "damaged")
    assert single["bytes"] == MIB  # the one that could be read; nothing of the old ones
    assert after_crash(nights) == []
    assert rows(nights, "select distinct name from damage") == [(last,)]
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert (nights.data("web", tree) / "lost").read_bytes() == lost
    assert (nights.data("web", tree) / "wrong").read_bytes() == wrong


def test_a_night_reads_it_before_it_becomes_a_base(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = Nights(make_btrfs(size="300M"))
    lost = os.urandom(MIB)
    (tree / "lost").write_bytes(lost)
    for host in ("db", "web"):
        nights.host(host, tree)
    nights.run("db", "web")
    damage(nights.top, lost)
    (damaged,) = [host for host in ("db", "web") if work("sha256sum", nights.data(host, tree) / "lost", check=False).returncode]
    reboot(nights)
    output = nights.backupd("run", damaged).stdout
    assert "2 backups written just before a crash of this server" in output
    assert f"{damaged} {nights.names(damaged)[0]}: 1 damaged file" in output
    assert (nights.data(damaged, tree) / "lost").read_bytes() == lost
    (other,) = {"db", "web"} - {damaged}
    assert [host for host, _ in noted(nights)["unread"]] == [other]  # it was not requested
    assert nights.json("status")["in_doubt"]["backups"] == [{"host": other, "name": nights.names(other)[0]}]
    assert "written just before a crash of this server" in nights.backupd("status").stdout
    assert "in doubt" in nights.backupd("list", other).stdout
    assert "1 backup written just before" in nights.backupd("run", "--all").stdout
    assert noted(nights)["unread"] == []
    assert nights.json("status")["in_doubt"] is None
    assert "crash" not in nights.backupd("run", "--all").stdout


def test_a_night_waits_for_the_hosts_that_are_due_alone(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = Nights(make_btrfs(size="300M"))
    for host, every in (("db", "30d"), ("web", "1m")):
        nights.host(host, tree, every=every)
    nights.run("db", "web")
    ago = datetime.now(UTC) - timedelta(hours=1)
    with closing(sqlite3.connect(nights.state / "catalogue.sqlite")) as catalogue, catalogue:
        for column in ("started", "finished"):
            catalogue.execute(
                f"UPDATE backup SET {column} = ? WHERE host = 'web'", (ago.isoformat(timespec="microseconds")[:-6] + "Z",)
            )
            catalogue.execute(
                f"UPDATE run SET {column} = ? WHERE host = 'web'", (ago.isoformat(timespec="microseconds")[:-6] + "Z",)
            )
    reboot(nights)
    output = nights.backupd("run").stdout
    assert "web 1 of 1" in output or "1 complete" in output, output
    assert [host for host, _ in noted(nights)["unread"]] == ["db"]
    assert nights.backupd("verify", "--after-crash").returncode == 0
    assert noted(nights)["unread"] == []


def test_a_clean_stop_leaves_no_doubt_but_of_what_was_written_later(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = Nights(make_btrfs(size="300M"))
    (tree / "file").write_bytes(os.urandom(MIB))
    nights.host("web", tree)
    nights.run("web")
    work("sleep", "1.1")
    nights.backupd("verify", "--clean-stop")
    reboot(nights)
    assert after_crash(nights) == []
    reboot(nights)
    assert [row["name"] for row in after_crash(nights)] == nights.names("web")  # the end of this boot was not recorded
    nights.backupd("verify", "--clean-stop")
    work("sleep", "1.1")
    nights.run("web")
    reboot(nights)
    assert [row["name"] for row in after_crash(nights)] == nights.names("web")[1:]


def test_what_was_not_read_when_it_was_killed_is_read_the_next_time(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = Nights(make_btrfs(size="300M"))
    for number in range(40):
        (tree / str(number)).write_bytes(os.urandom(50_000))
    nights.host("web", tree)
    nights.run("web")
    nights.backupd("verify", "--sample", "50%")  # that pass would continue
    work("sleep", "1.1")
    note(nights).write_text("none of ours")
    killed(nights, "before", "checksums replaced", "verify", "--after-crash")
    assert [host for host, _ in noted(nights)["unread"]] == ["web"]
    (backup,) = after_crash(nights)
    assert (backup["bytes"], backup["read"], backup["state"]) == (2_000_000, 40, "whole")
    assert after_crash(nights) == []
    assert nights.backupd("verify", "--after-crash", "web", check=False).returncode == 2


def test_a_run_waits_for_a_program_that_already_reads(
    make_btrfs: Callable[..., Path], tree: Path, backupd_running: "Callable[..., subprocess.Popen[str]]"
) -> None:
    nights = Nights(make_btrfs(size="300M"))
    (tree / "file").write_bytes(os.urandom(MIB))
    nights.host("web", tree)
    nights.run("web")
    reboot(nights)
    with (nights.pool / ".btrkeep/locks/verify").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = backupd_running("--config", nights.config, "run", "web")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
        assert len(nights.names("web")) == 1
    assert process.wait(60) == 0
    assert len(nights.names("web")) == 2
    assert noted(nights)["unread"] == []


@pytest.mark.parametrize("number", ["NULL", "1", "(SELECT max(subvolume_id) FROM backup)"])
def test_rows_with_the_number_of_another_subvolume_hide_nothing(make_btrfs: Callable[..., Path], tree: Path, number: str) -> None:
    nights = Nights(make_btrfs(size="300M"))
    nights.host("web", tree)
    for content in ("1", "2"):
        (tree / "file").write_text(content)
        nights.run("web")
    with closing(sqlite3.connect(nights.state / "catalogue.sqlite")) as catalogue, catalogue:
        catalogue.execute(f"UPDATE backup SET subvolume_id = {number}")
    reboot(nights)
    assert [backup["name"] for backup in after_crash(nights)] == nights.names("web")


def test_a_night_reads_no_longer_than_its_window(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = Nights(make_btrfs(size="300M"))
    (tree / "file").write_bytes(os.urandom(MIB))
    nights.host("web", tree)
    nights.run("web")
    reboot(nights)
    notices = list[str]()
    config = load(file=nights.config)
    with Catalogue.open(config.pool.state) as catalogue:
        context = PoolContext(config, open_pool(nights.pool), catalogue, Clock())
        begun = time.monotonic()
        with (nights.pool / ".btrkeep/locks/verify").open("a") as lock:  # another reader, for longer than the window
            fcntl.flock(lock, fcntl.LOCK_EX)
            read_last_written(context, ["web"], notices.append, Cancellation(), 0.5)
        assert time.monotonic() - begun < 60
        assert "is being read" in notices[0]
        assert has_backups_in_doubt(context.pool, ["web"])
        record = record_boot(context.pool, catalogue, context.clock.now(), config.verify.after_crash)
        verifier = in_doubt_verifier(context, record, Cancellation(), lambda _: None, 0.0)
        assert list(read_in_doubt(record, verifier)) == []
        assert noted(nights)["unread"] == [["web", nights.names("web")[0]]]  # nothing was read, so it stays suspect
        read_last_written(context, ["web"], notices.append, Cancellation(), 60.0)
    assert noted(nights)["unread"] == []


@pytest.mark.parametrize(("windows", "seconds"), [(["21:00-23:00", "21:00-22:30"], 3600), (["21:00-23:00", None], None)])
def test_the_limit_is_the_end_of_the_last_window(windows: list[str | None], seconds: float | None) -> None:
    now = datetime(2026, 3, 1, 22, tzinfo=UTC)
    zone = SimpleNamespace(pool=SimpleNamespace(zone=ZoneInfo("UTC")))
    opened: Any = SimpleNamespace(clock=SimpleNamespace(now=lambda: now), config=zone)
    planned: Any = [
        SimpleNamespace(host=SimpleNamespace(name=f"web{number}", window=window and parse_window(window)), runs=True, bound=True)
        for number, window in enumerate(windows)
    ]
    assert due_now(opened, planned) == (["web0", "web1"], seconds)


def test_a_backup_whose_record_is_lost_is_told(make_btrfs: Callable[..., Path], tree: Path) -> None:
    nights = Nights(make_btrfs(size="300M"))
    (tree / "file").write_bytes(os.urandom(MIB))
    nights.host("web", tree)
    nights.run("web")
    backup = nights.pool / "hosts/web" / nights.names("web")[0]
    reboot(nights)
    work("btrfs", "property", "set", "-f", backup, "ro", "false")
    (backup / "backup.json").write_bytes(b"")
    work("btrfs", "property", "set", backup, "ro", "true")
    done = nights.backupd("verify", "--after-crash", check=False)
    assert (done.returncode, backup.name in done.stderr) == (1, True)
    assert noted(nights)["unread"] == []


def test_what_a_stopped_run_left_last_is_not_continued(make_btrfs: Callable[..., Path], tree: Path) -> None:
    """Its files have their times and sizes, and were not read; so the backup is made from its base again."""
    nights = Nights(make_btrfs(size="300M"))
    (tree / "file").write_bytes(os.urandom(MIB))
    nights.host("web", tree)
    nights.run("web")
    (tree / "file").write_bytes(lost := os.urandom(MIB))
    (tree / "later").write_bytes(os.urandom(MIB))
    nights.in_the_middle(MIB + 300_000, end="dies")
    assert nights.run("web", status=1)["web"]["outcome"] == "partial"
    nights.ssh("")
    working = nights.pool / "hosts/web/.working"
    assert os.listxattr(working) == ["user.btrkeep.synced"]
    damage(nights.top, lost)
    reboot(nights)
    after_crash(nights)
    assert os.listxattr(working) == []
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert (nights.data("web", tree) / "file").read_bytes() == lost


def test_a_sample_after_the_backup_is_a_sign_of_life(make_btrfs: Callable[..., Path], tree: Path) -> None:
    """So after a crash by day no backup is read."""
    nights = Nights(make_btrfs(size="300M"))
    nights.tables["verify"] = {"after_crash": "1s"}
    (tree / "file").write_bytes(os.urandom(MIB))
    nights.host("web", tree)
    nights.run("web")
    reboot(nights)
    assert len(after_crash(nights, "--dry-run")) == 1
    work("sleep", "2.1")
    nights.backupd("sample")
    assert after_crash(nights) == []
