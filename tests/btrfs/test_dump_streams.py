"""Dumps that a host sends as streams: its program, a real sshd, and runs that write them into the backup.

A file is in the backup only if its command succeeded and all of it arrived. Whatever breaks, no part of one looks like a dump.
"""

import os
import shlex
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.beds import exclusive_bytes
from tests.beds.nights import Nights
from tests.beds.source_program import SourceHost
from tests.beds.ssh import Sshd
from tests.beds.watch import killed, wait_for
from tests.btrfs.test_consistent_source import Web1

pytestmark = [pytest.mark.btrfs, pytest.mark.root, pytest.mark.slow]

PAGE = 4096
# Ends the connection of the host as a lost network would: the server's ssh gets no status.
CUT = "p=$PPID; while ! grep -q sshd /proc/$p/comm; do p=$(ps -o ppid= $p | tr -d ' '); done; kill -9 $p; sleep 60"


@pytest.fixture
def web1(nights: Nights, sshd: Sshd, btrfs_mount: Path, ext4: Path) -> Web1:
    return Web1(nights, sshd, btrfs_mount, ext4 / "live")


def stream(web1: Web1, command: str, required: str = "yes") -> Path:
    """Configures a dump as a stream, and returns where it is in the backup."""
    output = web1.www / "dumps/shop.sql"
    web1.configure(config=f"[dump shop]\ncommand = {command}\noutput = {output}\nrequired = {required}\nstream = yes\n")
    return output


def test_a_stream_is_in_the_backup_and_not_on_the_host_and_equal_pages_are_shared(web1: Web1) -> None:
    database = web1.live / "database"
    content = bytearray(os.urandom(4 << 20) + b"the end")
    output = stream(web1, f"cat {database}")
    for night in range(3):
        content[night * PAGE + 10] ^= 1
        if night == 2:
            del content[3 << 20 :]
        database.write_bytes(content)
        assert web1.nights.run("web1")["web1"]["outcome"] == "complete"
        stored = web1.nights.data("web1", output)
        assert stored.read_bytes() == content
        assert not output.exists()
        (dump,) = web1.nights.record("web1")["dumps"]
        assert (dump["status"], dump["error"], dump["bytes"]) == (0, "", len(content))
        new = exclusive_bytes(stored)
        assert new < 5 * PAGE if night else new > 4 << 20
    first = web1.nights.data("web1", output, web1.nights.names("web1")[0])
    assert first.stat().st_size == (4 << 20) + 7
    assert web1.is_clean()


def test_a_command_that_fails_makes_the_backup_suspect_and_leaves_no_file(web1: Web1) -> None:
    output = stream(web1, "echo rows")
    assert web1.nights.run("web1")["web1"]["outcome"] == "complete"
    failing = "echo ro; echo no such role >&2; exit 3"
    stream(web1, failing)
    result = web1.nights.run("web1", status=1)["web1"]
    assert (result["outcome"], result["error"]) == ("suspect", "the host could not make the dump shop: no such role")
    assert not web1.nights.data("web1", output).exists()
    stream(web1, failing, required="no")
    result = web1.nights.run("web1")["web1"]
    assert (result["outcome"], result["warnings"]) == ("complete", ["the host could not make the dump shop: no such role"])
    assert not web1.nights.data("web1", output).exists()
    stream(web1, "echo rows")
    assert web1.nights.run("web1")["web1"]["outcome"] == "complete"
    assert web1.nights.data("web1", output).read_text() == "rows\n"


def test_a_connection_that_is_lost_leaves_no_file_and_the_next_run_completes(web1: Web1) -> None:
    output = stream(web1, f"head -c 3000000 /dev/urandom; {CUT}")
    result = web1.nights.run("web1", status=1)["web1"]
    assert (result["outcome"], "connection was lost" in result["error"]) == ("partial", True)
    working = web1.nights.pool / "hosts/web1/.working/data"
    assert (working / str(web1.file)[1:]).exists()
    assert not (working / str(output)[1:]).exists()
    stream(web1, "echo rows")
    assert web1.nights.run("web1")["web1"]["outcome"] == "complete"
    assert web1.nights.data("web1", output).read_text() == "rows\n"


def test_a_killed_run_leaves_no_file_without_its_end(web1: Web1) -> None:
    output = stream(web1, "echo rows")
    killed(web1.nights, "before", "dump placed", "run", "web1")
    working = web1.nights.pool / "hosts/web1/.working/data"
    assert not (working / str(output)[1:]).exists()
    assert web1.nights.run("web1")["web1"]["outcome"] == "complete"
    assert web1.nights.data("web1", output).read_text() == "rows\n"


def test_a_stream_without_end_is_stopped_by_the_limits(web1: Web1) -> None:
    output = stream(web1, "cat /dev/urandom")
    web1.nights.host(
        "web1", web1.www, address=web1.program.sshd.address, port=web1.program.sshd.port, snapshots="auto", max_new_bytes="20MB"
    )
    result = web1.nights.run("web1", status=1)["web1"]
    assert (result["outcome"], "max_new_bytes" in result["error"]) == ("partial", True)
    assert not (web1.nights.pool / "hosts/web1/.working/data" / str(output)[1:]).exists()


def test_a_dump_that_sends_nothing_fails_alone_and_the_backup_becomes_complete(web1: Web1) -> None:
    """A user who locks a table, or stops the process that reads his database, would prevent each backup of the host."""
    section = "[dump {0}]\ncommand = {1}\noutput = {2}/{0}.sql\nrequired = no\nstream = yes\n"
    web1.configure(
        config=section.format("locked", "echo part; sleep 60", web1.www) + section.format("shop", "echo rows", web1.www), stall="3s"
    )
    result = web1.nights.run("web1")["web1"]
    assert (result["outcome"], len(result["warnings"])) == ("complete", 1)
    assert "the host could not make the dump locked: no progress for 3" in result["warnings"][0]
    assert web1.nights.data("web1", web1.www / "shop.sql").read_text() == "rows\n"
    assert not web1.nights.data("web1", web1.www / "locked.sql").exists()


def test_a_symlink_of_the_host_leads_no_stream_out_of_the_backup(web1: Web1, tmp_path: Path) -> None:
    output = stream(web1, "echo evil")
    outside = tmp_path / "outside"
    outside.mkdir()
    output.parent.symlink_to(outside)
    result = web1.nights.run("web1", status=1)["web1"]
    assert (result["outcome"], "the dump shop" in result["error"]) == ("suspect", True)
    assert list(outside.iterdir()) == []
    output.parent.unlink()
    output.parent.mkdir()
    output.mkdir()
    (output / "file").touch()
    assert web1.nights.run("web1", status=1)["web1"]["outcome"] == "suspect"
    assert web1.nights.data("web1", output / "file").exists()


def test_a_database_of_sqlite_arrives_as_sql_that_loads(web1: Web1) -> None:
    file = web1.live / "app.db"
    with closing(sqlite3.connect(file)) as base:
        base.executescript("CREATE TABLE t (a TEXT, b BLOB); PRAGMA user_version = 7; INSERT INTO t VALUES ('it''s', x'00ff');")
        base.execute("INSERT INTO t VALUES (CAST(x'ff41' AS TEXT), NULL)")
        base.commit()
        stream(web1, f"sqlite {file}")
        assert web1.nights.run("web1")["web1"]["outcome"] == "complete"
        text = web1.nights.data("web1", web1.www / "dumps/shop.sql/app.db.sql").read_bytes()
        rows = "SELECT hex(a), hex(b) FROM t"
        expected = base.execute(rows).fetchall()
    subprocess.run(["sqlite3", "-bail", web1.live / "copy.db"], input=text, check=True)
    with closing(sqlite3.connect(web1.live / "copy.db")) as copy:
        assert copy.execute(rows).fetchall() == expected
        assert copy.execute("PRAGMA user_version").fetchone() == (7,)


def test_a_command_ends_when_the_server_has_gone(sshd: Sshd, btrfs_mount: Path) -> None:
    host = SourceHost(
        sshd, f"[dump slow]\ncommand = echo $$ >{btrfs_mount}/pid; sleep 1000\noutput = {btrfs_mount}/d\nstream = yes\n"
    )
    request = [*host.ssh(), sshd.address, shlex.join(["btrkeep-source", "dump", "slow", f"{btrfs_mount}/d"])]
    client = subprocess.Popen(request, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: (btrfs_mount / "pid").exists() and (btrfs_mount / "pid").read_text())
    client.kill()
    client.wait()
    pid = (btrfs_mount / "pid").read_text().strip()
    wait_for(lambda: not Path("/proc", pid).exists())


def test_only_the_files_of_dumps_that_are_streams_are_sent_and_only_below_allowed_paths(sshd: Sshd, btrfs_mount: Path) -> None:
    for folder in ("srv", "secret"):
        (btrfs_mount / folder).mkdir()
    (btrfs_mount / "secret/key").write_text("secret")
    section = "[dump {0}]\ncommand = echo {0}\noutput = {1}\nstream = {2}\n"
    dumps = (
        ("shop", btrfs_mount / "srv/shop.sql", "yes"),
        ("file", btrfs_mount / "srv/file.sql", "no"),
        ("other", btrfs_mount / "secret/o.sql", "yes"),
    )
    host = SourceHost(sshd, f"[paths]\nallow = {btrfs_mount}/srv\n" + "".join(section.format(*dump) for dump in dumps))
    assert host.request(f"btrkeep-source dump shop {btrfs_mount}/srv/shop.sql").stdout == "shop\n"
    for words in (
        f"shop {btrfs_mount}/secret/key",
        f"shop {btrfs_mount}/srv/../srv/shop.sql",
        f"shop {btrfs_mount}/srv/file",
        "shop",
        "shop a b",
        f"file {btrfs_mount}/srv/file.sql",
        f"other {btrfs_mount}/secret/o.sql",
        f"../shop {btrfs_mount}/srv/shop.sql",
        "-- /etc/shadow",
    ):
        assert host.refusal(f"btrkeep-source dump {words}")
