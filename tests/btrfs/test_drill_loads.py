"""Load drills: a command of the administrator loads a restored dump, confined; its result is that of a drill."""

import json
import os
import shlex
import sqlite3
from typing import Any

import pytest

from tests.beds import work
from tests.beds.nights import Nights

pytestmark = [pytest.mark.btrfs, pytest.mark.root]
NOBODY = 65534


@pytest.fixture
def dumps(nights: Nights) -> Nights:
    """A host whose backup has a dump that only root may read, and a folder with a device node and a link that leads out."""
    dump = nights.source / "shop.sql"
    dump.write_text("1\n2\n3\n")
    dump.chmod(0o600)
    folder = nights.source / "folder"
    folder.mkdir(mode=0o700)
    (folder / "rows").write_text("x")
    (folder / "rows").chmod(0o4755)
    (folder / "out").symlink_to("/etc/shadow")
    os.mknod(folder / "null", 0o20666, os.makedev(1, 3))
    nights.host("db1", nights.source)
    nights.run()
    return nights


def drill(nights: Nights, command: str, dump: str = "shop.sql", status: int = 0, **keys: Any) -> dict[str, Any]:
    """Runs a drill with this command for the dump; returns its report of the load."""
    nights.tables["drill"] = {"load": [f"{nights.source}/{dump} {command}"], **keys}
    nights.write()
    done = nights.backupd("drill", "db1", "--json", check=False)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == status, (done.stdout, done.stderr)
    restored, loaded = json.loads(done.stdout)
    assert (restored["kind"], restored["outcome"], loaded["kind"]) == ("restore", "proven", "load"), loaded
    assert list((nights.pool / ".btrkeep/drill").iterdir()) == []
    return dict(loaded)


def test_a_dump_is_loaded_and_the_last_line_is_recorded(dumps: Nights) -> None:
    loaded = drill(dumps, 'echo loading >&2; echo "$(grep -c . "$DUMP") rows"')
    assert (loaded["outcome"], loaded["text"]) == ("proven", f"{dumps.source}/shop.sql: 3 rows")
    with sqlite3.connect(dumps.state / "catalogue.sqlite") as rows:
        ((stored,),) = rows.execute("SELECT value FROM about WHERE name = 'drill:db1'").fetchall()
    assert [(row.get("kind"), row["outcome"]) for row in json.loads(stored)] == [("load", "proven"), (None, "proven")]
    shown = dumps.backupd("drill", "db1").stdout
    assert f"loaded: db1@{dumps.names('db1')[0]}, {dumps.source}/shop.sql: 3 rows" in " ".join(shown.split())


def test_a_load_that_fails_is_a_failed_drill_until_one_succeeds_or_none_is_configured(dumps: Nights) -> None:
    (name,) = dumps.names("db1")
    loaded = drill(dumps, "echo no such role >&2; exit 3", status=1)
    words = f"db1@{name} has a dump that could not be loaded: {dumps.source}/shop.sql: exit status 3: no such role"
    assert loaded["outcome"] == "failed"
    assert words.endswith(loaded["text"])

    def state() -> str:
        shown = json.loads(dumps.backupd("status", "--json", check=False).stdout)["drill"]
        assert [row["kind"] for row in shown["failed"]] == (["load"] if shown["state"] == "failing" else [])
        standing = json.loads(dumps.backupd("notify", "--json", check=False).stdout)["standing"]
        alarms = [alarm["text"] for alarm in standing if alarm["subject"] == "drill"]
        again = f"backupd --config {shlex.quote(str(dumps.config))} drill db1@latest"
        assert alarms == (
            [f"drill: {words}. Correct the cause, then repeat the drill: {again}"] if shown["state"] == "failing" else []
        )
        return str(shown["state"])

    assert state() == "failing"
    assert f"drill failed: {words}" in " ".join(dumps.backupd("status", check=False).stdout.split())
    del dumps.tables["drill"]["load"]
    dumps.write()
    assert state() == "ok"
    dumps.backupd("drill", "db1")
    drill(dumps, "exit 4", status=1)
    words = words.replace("status 3: no such role", "status 4")
    assert state() == "failing"
    drill(dumps, "true")
    assert state() == "ok"


def test_what_loads_a_dump_sees_and_reaches_nothing_of_this_machine(dumps: Nights) -> None:
    checks = [
        f"test $(id -u) = {NOBODY}",
        "test ! -r /etc/shadow",
        "! cat $DUMP/out",
        "test -f $DUMP/rows",
        "test ! -u $DUMP/rows",
        "test ! -e $DUMP/null",
        f"test ! -e {dumps.pool}",
        "test ! -e /var/lib",
        "test $(ls -d /proc/[0-9]* | wc -l) -lt 10",
        "! touch /x",
        "! touch /dev/x",
        "touch here $DUMP/x /tmp/x /dev/shm/x",
        "test $(ls /sys 2>/dev/null | wc -l) = 0",
        "test $(grep -c : /proc/net/dev) = 1",
        "grep -q 'NoNewPrivs:.1' /proc/self/status",
        "grep -q 'CapPrm:.0000000000000000' /proc/self/status",
    ]
    command = "; ".join(f"({check}) || {{ echo wrong: {number}; exit 1; }}" for number, check in enumerate(checks))
    assert drill(dumps, command, "folder")["outcome"] == "proven"


def test_a_load_that_does_not_end_is_killed_with_all_that_it_started(dumps: Nights) -> None:
    loaded = drill(dumps, "setsid sleep 98765 & echo starting; sleep 98766", status=1, load_timeout="1s")
    assert (loaded["outcome"], loaded["text"]) == ("failed", f"{dumps.source}/shop.sql: not loaded within 1.0s: starting")
    processes = work("ps", "-eo", "args").stdout
    assert "sleep 98765" not in processes
    assert "sleep 98766" not in processes
    assert drill(dumps, "setsid sleep 98767 & echo done")["text"].endswith("done")
    assert "sleep 98767" not in work("ps", "-eo", "args").stdout


def test_a_backup_without_the_dump_is_drilled_as_before(dumps: Nights) -> None:
    dumps.tables["drill"] = {"load": ["postgresql false", "/nowhere false"]}
    dumps.write()
    (restored,) = json.loads(dumps.backupd("drill", "db1", "--json").stdout)
    assert (restored["kind"], restored["outcome"]) == ("restore", "proven")
