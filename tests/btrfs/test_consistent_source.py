"""Runs of a host whose btrkeep-source makes snapshots: its program, a real sshd with the key's forced command, and a btrfs as the
host's filesystem. Each run is of the moment at which its session began, whatever the host writes later, and leaves nothing there.
"""

import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from btrkeep.units import format_size
from tests.beds import work
from tests.beds.nights import Nights
from tests.beds.source_program import HIDDEN, SourceHost
from tests.beds.ssh import Sshd
from tests.beds.two_pools import TwoPools
from tests.beds.watch import does_at, held_at, killed, wait_for
from tests.beds.within import Within

pytestmark = [pytest.mark.btrfs, pytest.mark.root]

BEGUN = "session of snapshots begun"
DUMP = """[dump shop]
command = {command}
output = {output}
required = {required}
"""


class Web1:
    """A host with its own btrfs, in which `www` is the source path; `live` is a folder on a filesystem without snapshots."""

    def __init__(self, nights: Nights, sshd: Sshd, top: Path, live: Path) -> None:
        self.nights, self.top, self.www, self.live = nights, top, top / "www", live
        self.program = SourceHost(sshd)
        self.program.ssh("office")
        self.www.mkdir()
        self.live.mkdir()
        self.file = self.www / "page"
        self.file.write_text("first")
        nights.settings("ssh", command="ssh -F none", key=str(self.program.keys["office"]), known_hosts=str(sshd.known_hosts))

    def configure(self, *paths: Path, snapshots: str = "auto", config: str = "", **keys: Any) -> None:
        self.program.config.write_text(config)
        sshd = self.program.sshd
        self.nights.host("web1", *(paths or (self.www,)), address=sshd.address, port=sshd.port, snapshots=snapshots, **keys)

    def text(self, name: str = "") -> str:
        """Returns the content of the file in a backup."""
        return self.nights.data("web1", self.file, name).read_text()

    def consistency(self) -> list[dict[str, Any]]:
        return [path["consistency"] for path in self.nights.record("web1")["paths"]]

    def is_clean(self) -> bool:
        """Returns True if no session left anything on the host: no record, no lock, no snapshot."""
        subvolumes = work("btrfs", "subvolume", "list", self.top).stdout
        return self.program.left(self.top) == [] and HIDDEN not in subvolumes


@pytest.fixture
def web1(nights: Nights, sshd: Sshd, btrfs_mount: Path, ext4: Path) -> Web1:
    return Web1(nights, sshd, btrfs_mount, ext4 / "live")


def test_two_nights_are_of_the_moments_at_which_their_sessions_began(web1: Web1) -> None:
    web1.configure()
    for text in ("first", "second"):
        web1.file.write_text(text)
        done = does_at(web1.nights, f"echo later >{web1.file}", "after", BEGUN, "run", "--json", "web1")
        (result,) = json.loads(done.stdout)
        assert (result["outcome"], result["warnings"]) == ("complete", [])
        assert web1.file.read_text() == "later\n"
        assert web1.text() == text
        (consistency,) = web1.consistency()
        assert (consistency["kind"], consistency["methods"]) == ("snapshot", ["btrfs"])
        assert consistency["taken"] >= web1.nights.record("web1")["started"]
        assert web1.is_clean()
    first, _ = web1.nights.names("web1")
    assert web1.text(first) == "first"
    assert web1.nights.record("web1")["base"] == first


# Two accounts whose sum is 0 after each transaction; the pages of the rows make the file grow, so that rsync reads it for a while.
BANK = """
import sqlite3, sys
bank = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
bank.execute("PRAGMA journal_mode = WAL")
bank.execute("CREATE TABLE account (money INTEGER)")
bank.execute("CREATE TABLE entry (text TEXT)")
bank.execute("INSERT INTO account VALUES (0), (0)")
while True:
    bank.execute("BEGIN IMMEDIATE")
    bank.execute("UPDATE account SET money = money + 1 WHERE rowid = 1")
    bank.executemany("INSERT INTO entry VALUES (hex(randomblob(2000)))", [()] * 20)
    bank.execute("UPDATE account SET money = money - 1 WHERE rowid = 2")
    bank.execute("COMMIT")
"""


def test_a_database_that_is_written_during_the_nights_is_whole_in_each_backup(web1: Web1, tmp_path: Path) -> None:
    web1.configure()
    database = web1.www / "bank.sqlite"
    writer = subprocess.Popen([sys.executable, "-c", BANK, database])
    try:
        wait_for(lambda: database.exists() and database.stat().st_size > 1 << 20)
        for _ in range(2):
            assert web1.nights.run("web1")["web1"]["outcome"] == "complete"
            assert writer.poll() is None
    finally:
        writer.kill()
        writer.wait()
    amounts = []
    for name in web1.nights.names("web1"):
        restored = tmp_path / name
        shutil.copytree(web1.nights.data("web1", web1.www, name), restored)
        with closing(sqlite3.connect(restored / "bank.sqlite")) as bank:
            assert bank.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            ((first,), (second,)) = bank.execute("SELECT money FROM account").fetchall()
        assert first + second == 0
        amounts.append(first)
    assert 0 < amounts[0] < amounts[1]
    assert web1.is_clean()


def test_all_paths_are_of_one_session_and_the_mount_point_of_a_subvolume_too(web1: Web1) -> None:
    work("btrfs", "subvolume", "create", web1.top / "db")
    (web1.top / "db" / "rows").write_text("1")
    web1.configure(web1.www, web1.top / "db", inplace="large")
    changes = f"echo later >{web1.file}; echo 2 >{web1.top}/db/rows"
    does_at(web1.nights, changes, "after", BEGUN, "run", "web1")
    assert (web1.text(), web1.nights.data("web1", web1.top / "db" / "rows").read_text()) == ("first", "1")
    assert [consistency["kind"] for consistency in web1.consistency()] == ["snapshot"] * 2
    assert web1.is_clean()


def test_the_run_after_one_that_was_killed_takes_its_snapshots_away(web1: Web1) -> None:
    web1.configure()
    killed(web1.nights, "after", BEGUN, "run", "web1")
    assert not web1.is_clean()
    web1.file.write_text("second")
    assert web1.nights.run("web1")["web1"]["outcome"] == "complete"
    assert web1.text() == "second"
    assert web1.is_clean()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_cancelled_run_ends_its_session(web1: Web1, number: signal.Signals) -> None:
    web1.configure()
    with held_at(web1.nights, "after", BEGUN, "run", "web1") as process:
        assert not web1.is_clean()
        process.send_signal(number)
    process.communicate()
    assert process.returncode not in (0, -signal.SIGKILL)
    assert web1.is_clean()
    assert web1.nights.run("web1")["web1"]["outcome"] == "complete"


def test_a_run_that_is_late_ends_its_session(web1: Web1) -> None:
    (web1.www / "large").write_bytes(os.urandom(4 << 20))
    web1.configure(deadline="15s", bandwidth="100KB")
    result = web1.nights.run("web1", status=1)["web1"]
    assert (result["outcome"], result["error"]) == ("partial", f"{web1.www}: the deadline has passed")
    assert web1.is_clean()


def test_a_run_whose_rsync_the_program_refuses_ends_its_session(web1: Web1) -> None:
    web1.configure()
    forbid = f"printf '[paths]\\nallow = /nowhere\\n' >{web1.program.config}"
    done = does_at(web1.nights, forbid, "after", BEGUN, "run", "--json", "web1")
    (result,) = json.loads(done.stdout)
    assert (result["outcome"], "is not one of the allowed paths" in result["error"]) == ("failed", True)
    assert web1.is_clean()


def test_a_failed_run_ends_its_session(web1: Web1) -> None:
    web1.configure(web1.top / "missing")
    assert web1.nights.run("web1", status=1)["web1"]["outcome"] == "failed"
    assert web1.is_clean()


def test_a_path_without_a_snapshot_is_recorded_and_shown(web1: Web1) -> None:
    (web1.live / "file").write_text("x")
    web1.configure(web1.www, web1.live)
    result = web1.nights.run("web1")["web1"]
    assert (result["outcome"], result["warnings"]) == ("complete", [])
    snapshot, live = web1.consistency()
    assert (snapshot["kind"], live["kind"]) == ("snapshot", "live")
    assert "ext4" in live["reason"]
    nights = web1.nights
    assert [backup["live_paths"] for backup in nights.json("list", "web1")] == [1]
    assert "1 path not from a snapshot" in " ".join(nights.backupd("list", "web1").stdout.split())
    shown = " ".join(nights.backupd("browse", "web1", web1.live).stdout.split())
    assert f"{web1.live}: not read from a snapshot: {live['reason']}" in shown
    assert str(web1.www) not in shown
    consistency = nights.json("browse", "web1", "/")["backup"]["consistency"]
    assert consistency == [{"path": str(web1.www), **snapshot}, {"path": str(web1.live), **live}]
    (family,) = [family for family in nights.json("metrics") if family["name"] == "btrkeep_host_live_paths"]
    assert [sample["value"] for sample in family["samples"]] == [1.0]
    nights.backupd("rebuild")
    assert [backup["live_paths"] for backup in nights.json("list", "web1")] == [1]


def test_a_path_without_a_required_snapshot_makes_the_backup_suspect(web1: Web1) -> None:
    (web1.live / "file").write_text("x")
    web1.configure(web1.www, web1.live, snapshots="required")
    result = web1.nights.run("web1", status=1)["web1"]
    assert result["outcome"] == "suspect"
    assert result["error"].startswith(f"{web1.live}: not read from a snapshot: ")
    assert web1.nights.record("web1")["cause"]["code"] == "not-from-snapshot"
    assert web1.nights.differences("web1", web1.live) == []
    web1.nights.backupd("accept", "web1", "latest", "--why", "its files are not changed at night")
    web1.configure(snapshots="required")
    assert web1.nights.run("web1")["web1"]["outcome"] == "complete"


def test_a_dump_is_in_the_backup_and_one_that_fails_makes_it_suspect(web1: Web1) -> None:
    output = web1.www / "shop.sql"
    config = DUMP.format(command="echo rows", output=output, required="yes")
    web1.configure(config=config)
    assert web1.nights.run("web1")["web1"]["outcome"] == "complete"
    assert web1.nights.data("web1", output).read_text() == "rows\n"
    (dump,) = web1.nights.record("web1")["dumps"]
    assert (dump["name"], dump["path"], dump["status"], dump["bytes"]) == ("shop", str(output), 0, 5)
    web1.nights.tables["drill"] = {"load": ['shop echo "$(grep -c rows "$DUMP") lines"', "other false"]}
    web1.nights.write()
    _, loaded = json.loads(web1.nights.backupd("drill", "web1", "--json").stdout)
    assert (loaded["kind"], loaded["outcome"], loaded["text"]) == ("load", "proven", "shop: 1 lines")
    failing = "sh -c 'echo starting >&2; echo no such role >&2; exit 3'"
    web1.configure(config=DUMP.format(command=failing, output=output, required="yes"))
    result = web1.nights.run("web1", status=1)["web1"]
    assert (result["outcome"], result["error"]) == ("suspect", "the host could not make the dump shop: no such role")
    (dump,) = web1.nights.record("web1")["dumps"]
    assert (dump["status"], dump["error"]) == (3, "no such role")
    web1.configure(config=DUMP.format(command=failing, output=output, required="no"))
    result = web1.nights.run("web1")["web1"]
    assert (result["outcome"], result["warnings"]) == ("complete", ["the host could not make the dump shop: no such role"])


def test_a_live_backup_has_no_snapshots_of_an_interrupted_session(web1: Web1) -> None:
    """As after a kill, if the next run may no longer use the program."""
    web1.configure(web1.top)
    killed(web1.nights, "after", BEGUN, "run", "web1")
    assert (web1.top / HIDDEN).exists()
    web1.program.config.write_text("[paths]\nallow = /nowhere\n")
    key = web1.program.sshd.authorize('restrict,command="rrsync -ro /"')
    web1.nights.settings("ssh", key=str(key))
    result = web1.nights.run("web1")["web1"]
    assert result["outcome"] == "complete"
    assert web1.text() == "first"
    assert list(web1.nights.data("web1", web1.top / HIDDEN).iterdir()) == []


def test_a_folder_of_that_name_that_is_not_the_programs_is_backed_up(web1: Web1) -> None:
    work("btrfs", "-q", "subvolume", "create", web1.top / "nested")
    kept = [web1.www / HIDDEN / "file", web1.top / "nested" / HIDDEN / "file"]
    for file in kept:
        file.parent.mkdir()
        file.write_text("kept")
    for config in ("", f"[paths]\nallow = {web1.top}\n"):
        web1.configure(web1.top, config=config)
        result = web1.nights.run("web1")["web1"]
        assert (result["outcome"], result["warnings"]) == ("complete", [])
        assert [web1.nights.data("web1", file).read_text() for file in kept] == ["kept", "kept"]
        assert not web1.nights.data("web1", web1.top / HIDDEN).exists()
        assert {each["kind"] for each in web1.consistency()} == {"snapshot"}


def test_a_dry_run_prints_the_rsync_of_a_session(web1: Web1) -> None:
    web1.configure(snapshots="required")
    (entry,) = web1.nights.json("run", "--all", "--dry-run")
    (command,) = entry["commands"]
    assert command[command.index("--rsync-path") + 1] == "btrkeep-source rsync SESSION"
    text = web1.nights.backupd("run", "--all", "--dry-run").stdout
    assert "SESSION is the name of the session that btrkeep-source begins on the host first" in text


def test_check_connect_names_the_paths_without_a_snapshot(web1: Web1) -> None:
    def findings() -> list[dict[str, Any]]:
        answer = json.loads(web1.nights.backupd("check", "--connect", "--json", check=False).stdout)
        return [
            finding
            for finding in answer
            if finding.get("check") == "host" or "snapshot" in json.dumps(finding) or "dump" in json.dumps(finding)
        ]

    web1.configure(web1.www, web1.live)
    (note,) = [finding for finding in findings() if "no snapshot" in finding["message"]]
    assert (note["level"], note["message"].split(":")[0]) == ("note", str(web1.live))
    web1.configure(web1.www, web1.live, snapshots="required")
    assert [finding["level"] for finding in findings() if "no snapshot" in finding["message"]] == ["warning"]
    web1.configure(web1.www, config=DUMP.format(command="echo rows", output="/var/lib/elsewhere/shop.sql", required="yes"))
    assert not [finding for finding in findings() if "no snapshot" in finding["message"]]
    (warning,) = [finding for finding in findings() if "dump" in finding["message"]]
    assert warning["message"] == "the dump shop is not made: no source path contains /var/lib/elsewhere/shop.sql"
    web1.configure(web1.www, config=DUMP.format(command="echo rows", output=web1.www / "shop.sql", required="yes"))
    assert not [finding for finding in findings() if "dump" in finding["message"]]
    web1.nights.settings("ssh", key=str(web1.program.sshd.authorize('restrict,command="rrsync -ro /"')))
    (warning,) = [finding for finding in findings() if "no snapshot" in finding["message"]]
    assert warning["message"].startswith("the host makes no snapshots: the host does not run btrkeep-source")
    assert web1.is_clean()


def test_what_one_file_system_excludes_is_listed_by_the_session_and_the_host_is_not_asked_again(web1: Web1) -> None:
    log = web1.nights.top / "requests"
    inner = f'echo "$*" >>{log}; exec ssh -F none "$@"'
    web1.nights.settings("ssh", command=shlex.join(["sh", "-c", inner, "ssh"]))
    for name in ("nested", "nested/deeper", "skipped"):
        work("btrfs", "subvolume", "create", web1.www / name)
        (web1.www / name / "file").write_text("x")
    web1.configure(one_file_system=True, exclude=["skipped/"])
    mounted = web1.www / "mounted \udcff"
    mounted.mkdir()
    work("mount", "-t", "tmpfs", "-o", "size=8m", "none", mounted)
    try:
        (mounted / "file").write_bytes(b"x" * 2_000_000)
        used = int(work("df", "--output=used", "--block-size=1", mounted).stdout.split()[1])
        printed = work("rsync", "--dry-run", "--recursive", "-xx", "--info=mount", f"{web1.www}/", "nowhere").stdout
        assert sorted(re.findall(r"mount-point dir (\w+)", printed)) == ["mounted", "nested", "skipped"]
        for night in (1, 2):
            log.write_text("")
            result = web1.nights.run("web1")["web1"]
            assert result["outcome"] == "complete"
            (warning,) = result["warnings"]
            assert f"{web1.www}/nested" in warning
            assert "skipped" not in warning
            assert "deeper" not in warning
            assert format_size(used) in warning, night
            assert len([line for line in log.read_text().splitlines() if "--server" in line]) == 1
            left_out = web1.nights.record("web1")["paths"][0]["left_out"]
            assert sorted(left_out) == sorted([str(mounted), str(web1.www / "nested")])
    finally:
        work("umount", mounted)
    mounted.rmdir()
    assert str(mounted) not in web1.nights.run("web1")["web1"]["warnings"][0]
    assert not (web1.nights.data("web1", web1.www) / "nested" / "file").exists()
    assert web1.is_clean()


def test_a_replica_has_how_the_files_were_read(two: TwoPools, sshd: Sshd, btrfs_mount: Path, tmp_path: Path) -> None:
    web1 = Web1(two.first, sshd, btrfs_mount, tmp_path / "live")
    web1.configure()
    two.first.run("web1")
    two.second.backupd("replicate")
    assert two.second.record("web1")["paths"] == two.first.record("web1")["paths"]
    assert two.second.record("web1")["paths"][0]["consistency"]["kind"] == "snapshot"
    assert [backup["live_paths"] for backup in two.second.json("list", "web1")] == [0]


@pytest.mark.slow
@pytest.mark.takes(20)
def test_what_fails_for_three_nights_is_an_alarm_with_its_reason_and_the_remedy_ends_it(
    shared_btrfs: Path, sshd: Sshd, btrfs_mount: Path, ext4: Path
) -> None:
    """Two hosts whose backups are complete without a dump, and suspect without a snapshot."""
    web1 = Web1(Within(shared_btrfs, "--rehearsal"), sshd, btrfs_mount, ext4 / "live")
    nights, dump = web1.nights, {"output": web1.www / "shop.sql", "required": "no"}
    web1.configure()
    good = nights.tables["host"]["web1"]

    def night(day: int, *failing: str) -> dict[str, str]:
        """Runs both hosts; returns the texts of the alarms by subject, after checking that they are sent."""
        at = f"2026-11-{day:02}T22:00:00Z"
        for host in ("web1", "web2"):
            done = nights.backupd("run", host, "--now", at, check=False)
            assert done.returncode == (host in failing), done.stdout
        later = f"2026-11-{day:02}T22:30:00Z"
        standing = json.loads(nights.backupd("notify", "--json", "--now", later, check=False).stdout)["standing"]
        return {f"{alarm['what']} {alarm['subject']}": alarm["text"] for alarm in standing}

    nights.tables["host"]["web2"] = good
    nights.write()
    assert night(1) == {}
    web1.configure(config=DUMP.format(command="sh -c 'echo no such role >&2; exit 3'", **dump))
    nights.tables["host"]["web2"] = {**good, "paths": [*good["paths"], str(web1.live)], "snapshots": "required"}
    nights.write()
    reason = f": {web1.live}: not read from a snapshot: {web1.live.parent}: ext4 on a plain partition"
    for day in (2, 3, 4):
        alarms = night(day, "web2")
        assert reason in alarms["suspect host web2"]
        assert ("condition web1" in " ".join(alarms), "silent host web2" in alarms) == (day == 4, day > 2), day
    text = alarms["failure condition web1"]
    assert re.search(r"the host could not make the dump shop since 2026-11-02T22:00:\d\dZ \(3 backups in a row\)", text), text
    assert alarms["silent host web2"].startswith("web2: no complete backup for 3d")
    assert reason in alarms["silent host web2"]
    now = ("--now", "2026-11-04T22:10:00Z")
    for words in (("status", "web1"), ("notify", "--digest", "--dry-run")):
        shown = " ".join(nights.backupd(*words, *now, check=False).stdout.split())
        assert "the host could not make the dump shop since 2026-11-02T22:00:00Z" in shown, words
    web1.program.config.write_text(DUMP.format(command="echo rows", **dump))
    (command,) = re.findall(r"on the host, then: backupd --config \S+ (run .*)", text)
    nights.backupd(*shlex.split(command), "--now", "2026-11-05T20:00:00Z")
    assert "failure condition web1" not in night(5, "web2")
    assert web1.is_clean()
