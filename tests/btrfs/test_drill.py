"""Restore drills: they restore the backup's files, find differences, and leave nothing behind."""

import json
import os
import random
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.beds import TOP, work
from tests.beds.faults import damage
from tests.beds.nights import Nights
from tests.beds.watch import ended, held_at

pytestmark = pytest.mark.btrfs


def fill(top: Path) -> None:
    """Makes files of all kinds, with attributes that a copy loses easily."""
    (top / "deep/er").mkdir(parents=True)
    for number in range(40):
        (top / f"deep/er/file{number}").write_bytes(random.Random(number).randbytes(700 * number))
    (top / "deep/er/file7").chmod(0o4755)
    os.link(top / "deep/er/file3", top / "deep/also3")
    (top / "sparse").write_bytes(b"")
    os.truncate(top / "sparse", 5 << 20)
    (top / "link").symlink_to("nowhere")
    os.mkfifo(top / "fifo")
    os.mknod(top / "node", 0o20600, os.makedev(1, 3))
    (top / "#no comment\n; is this").write_text("x")
    work("setfattr", "-n", "user.colour", "-v", "red", top / "deep/er/file5")
    work("setfacl", "-m", "u:1234:rw", top / "deep/er/file6")
    work("setcap", "cap_net_raw+ep", top / "deep/er/file8")
    os.utime(top / "deep/er/file9", ns=(1, 987_654_321_123_456_789))


@pytest.fixture
def web(nights: Nights) -> Nights:
    fill(nights.source)
    nights.host("web", nights.source)
    nights.run()
    return nights


def drill(of: Nights, *words: str, status: int = 0, env: dict[str, str] | None = None) -> list[dict[str, Any]]:
    done = of.backupd("drill", "--json", *words, check=False, env=env)
    assert done.returncode == status, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    answer: list[dict[str, Any]] = json.loads(done.stdout or "[]")
    return answer


def scratch(of: Nights) -> list[str]:
    """Returns the content of the scratch folder, and the subvolumes in it."""
    folder = of.pool / ".btrkeep/drill"
    listed = work("btrfs", "subvolume", "list", of.pool).stdout
    return [
        *([path.name for path in folder.iterdir()] if folder.exists() else []),
        *[line for line in listed.splitlines() if "/drill/" in line],
    ]


def noted(of: Nights, host: str = "web") -> Any:
    """Returns the host's drills in the catalogue, by sqlite3."""
    with sqlite3.connect(of.state / "catalogue.sqlite") as rows:
        answer = rows.execute("SELECT value FROM about WHERE name = ?", (f"drill:{host}",)).fetchone()
    return json.loads(answer[0]) if answer else []


def test_a_whole_backup_is_restored_compared_and_gone_again(web: Nights) -> None:
    number = sum(1 for path in (web.source).rglob("*") if path.is_symlink() or not path.is_dir())
    (done,) = drill(web, "--sample", "all")
    assert (done["host"], done["outcome"], done["names"], done["of"]) == ("web", "proven", number, number)
    assert done["bytes"] == sum(path.lstat().st_size for path in web.source.rglob("*") if path.is_file() and not path.is_symlink())
    assert scratch(web) == []
    assert [row["outcome"] for row in noted(web)] == ["proven"]


def test_a_sample_is_as_large_as_asked_for_and_another_one_each_time(web: Nights) -> None:
    (done,) = drill(web, "web", "--sample", "9")
    assert (done["outcome"], done["names"], done["sample"]) == ("proven", 9, "9")
    (share,) = drill(web, "web", "--sample", "50%")
    assert 5 < share["names"] < 45
    assert len({row["bytes"] for row in noted(web)} | {drill(web, "--sample", "9")[0]["bytes"] for _ in range(3)}) > 1
    assert scratch(web) == []


def at_a_checkpoint(of: Nights, action: str, when: str, name: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """Runs the same command, with an action at one of its checkpoints; see tests/beds/kill_at.py."""
    call = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "tests.beds.kill_at",
        action,
        when,
        name,
        "1",
        "--config",
        str(of.config),
        "drill",
        *words,
    ]
    return subprocess.run(call, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(TOP)})


@pytest.mark.parametrize(
    ("harm", "output"),
    [
        ("truncate -s -1 {top}/deep/er/file9", "size"),
        ("cd {top}/deep/er; printf X | dd of=file9 bs=1 seek=100 conv=notrunc; touch -d @987654321.123456789 file9", "content"),
        ("chmod 600 {top}/deep/er/file7", "mode"),
        ("chown 4:5 {top}/link -h", "owner"),
        ("rm {top}/fifo; touch -r {source} {top}", "was not restored"),
        ("setfattr -x user.colour {top}/deep/er/file5", "attributes"),
        ("setfacl -b {top}/deep/er/file6", "ACL"),
        ("touch {top}/more; touch -r {source} {top}", "it is not in the backup"),
        ("cd {top}; cp -p deep/also3 x; mv x deep/also3; touch -r {source}/deep deep; touch -r {source} .", "hard link"),
    ],
)
def test_a_difference_between_the_backup_and_what_came_back_is_found(web: Nights, harm: str, output: str) -> None:
    top = web.pool / ".btrkeep/drill/restored/data" / str(web.source).lstrip("/")
    action = "does:" + harm.format(top=top, source=web.source)
    done = at_a_checkpoint(web, action, "after", "sample restored", "--sample", "all", "--json")
    assert done.returncode == 1, done.stderr
    (answer,) = json.loads(done.stdout)
    assert answer["outcome"] == "failed"
    assert output in answer["text"]
    assert scratch(web) == []
    assert "was restored with differences" in web.backupd("status").stdout


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["sample restored", "scratch of a drill deleted"])
def test_what_a_killed_drill_leaves_the_next_command_that_looks_clears_away(web: Nights, when: str, name: str) -> None:
    done = at_a_checkpoint(web, "die", when, name, "--sample", "all")
    assert done.returncode == -signal.SIGKILL
    web.run()
    assert scratch(web) == []
    assert drill(web, "--sample", "9")[0]["outcome"] == "proven"


def test_a_drill_that_is_stopped_leaves_nothing(web: Nights) -> None:
    with held_at(web, "before", "sample restored", "drill", "--sample", "all") as program:
        assert "the lock is held by process" in web.backupd("drill", check=False).stderr
        program.send_signal(signal.SIGTERM)
    status, _, output = ended(program)
    assert (status, "all files of the drill are deleted" in output) == (143, True)
    assert scratch(web) == []


def test_a_backup_is_not_deleted_while_it_is_drilled(web: Nights, tmp_path: Path) -> None:
    (name,) = web.names("web")
    words = (
        sys.executable,
        "-m",
        "backupd",
        "--config",
        str(web.config),
        "delete",
        f"web@{name}",
        "--force",
        "--now-without-grace",
    )
    action = f"does:cd {TOP}; {shlex.join(words)} >{tmp_path}/said 2>&1; :"
    done = at_a_checkpoint(web, action, "after", "sample restored", "--sample", "all", "--json")
    assert web.names("web") == [name]
    assert "is being restored from" in (tmp_path / "said").read_text()
    assert json.loads(done.stdout)[0]["outcome"] == "proven"


def test_what_has_no_room_is_not_finished_and_says_nothing_of_the_backup(web: Nights) -> None:
    web.settings("pool", min_free="99%")
    (done,) = drill(web, "--sample", "all", status=1)
    assert done["outcome"] == "unfinished"
    assert "above min_free" in done["text"]
    assert [row["outcome"] for row in noted(web)] == ["unfinished"]
    assert json.loads(web.backupd("status", "--json").stdout)["drill"]["state"] == "never"


def test_a_file_that_the_disk_does_not_give_back_fails_the_drill(make_btrfs: Callable[..., Path], tmp_path: Path) -> None:
    nights = Nights(make_btrfs(size="300M"))
    content = os.urandom(100_000)
    (tmp_path / "database").write_bytes(content)
    nights.host("web", tmp_path)
    nights.run()
    damage(nights.top, content[:4096])
    (done,) = drill(nights, status=1)
    assert done["outcome"] == "failed"
    assert "database" in done["text"]
    answer = json.loads(nights.backupd("notify", "--dry-run", "--json", check=False).stdout)
    assert "database" in json.dumps(answer)


def test_the_host_that_waited_longest_is_next(web: Nights) -> None:
    for name in ("db", "mail"):
        web.host(name, web.source / "deep")
    web.run()
    drilled = []
    for _ in range(4):
        drilled += [drill(web, "--sample", "1")[0]["host"]]
        time.sleep(1.0)  # moments are kept by the second
    assert sorted(drilled[:3]) == ["db", "mail", "web"]
    assert drilled[3] == drilled[0]


def test_status_says_when_a_restore_was_proven_last(web: Nights) -> None:
    assert "restore was proven" not in web.backupd("status").stdout
    drill(web, "--sample", "all")
    assert "last proven restore: web@" in web.backupd("status").stdout
    answer = json.loads(web.backupd("status", "--json").stdout)["drill"]
    assert (answer["state"], answer["last"]["host"]) == ("ok", "web")
    web.tables["drill"] = {"max_age": "1s"}
    web.write()
    time.sleep(1.1)
    assert json.loads(web.backupd("status", "--json").stdout)["drill"]["state"] == "late"
    standing = json.loads(web.backupd("notify", "--dry-run", "--json", check=False).stdout)["standing"]
    (text,) = [alarm["text"] for alarm in standing if alarm["subject"] == "drill"]
    assert text.startswith("drill: no restore was proven for "), text
