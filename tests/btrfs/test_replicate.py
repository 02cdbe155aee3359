"""A second pool, fetched from the first: what is there is the same by checksums of rsync, and can take over."""

import fcntl
import json
import os
import shlex
import signal
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from btrkeep import __version__
from tests.beds import TOP, work
from tests.beds.nights import Nights
from tests.beds.ssh import Sshd

pytestmark = pytest.mark.btrfs

RELAY = """
import os, sys, time
left = int(sys.argv[2])
while data := bytearray(os.read(0, 65536)):
    if 0 <= left < len(data):
        if sys.argv[1] == "flip":
            data[left] ^= 1
        else:
            os.write(1, data[:left])
            time.sleep(60 if sys.argv[1] == "stop" else 0)
            sys.exit()
    left -= len(data)
    os.write(1, data)
"""


class TwoPools:
    """A first pool with a host that changes, and a second one that fetches from it."""

    def __init__(self, first: Path, second: Path, **keys: Any) -> None:
        self.first, self.second = Nights(first, "--rehearsal"), Nights(second, "--rehearsal")
        self.source = self.first.source / "web1"
        self.source.mkdir()
        self.first.host("web1", self.source)
        self.second.tables["replica.office"] = {"from": str(self.first.pool), **keys}
        self.second.write()

    def night(self, now: str, content: str) -> str:
        """A night of the first pool, after a file has changed and one is new; the backup's name."""
        (self.source / "changed").write_text(content * 5000)
        (self.source / f"new-{now[:10]}").write_text(content)
        self.first.backupd("run", "web1", "--now", now)
        return now.replace("-", "-").replace(":", "")

    def fetch(self, *words: str, status: int = 0, env: Mapping[str, str] | None = None) -> Any:
        done = self.second.backupd("replicate", "--json", *words, "--now", "2026-03-20T12:00:00Z", check=False, env=env)
        assert done.returncode == status, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return json.loads(done.stdout) if done.stdout else done.stderr

    def over_ssh(self, script: str) -> None:
        """The same by ssh, for which lines of the shell stand in: "$@" is what answers on the other server."""
        answers = shlex.join([sys.executable, "-m", "backupd", "--config", str(self.first.config), "send-only"])
        file = self.second.top / "ssh"
        file.write_text(f"#!/bin/bash\ncd {shlex.quote(str(TOP))}\nRELAY='{RELAY}'\nset -- {answers}\n{script}\n")
        file.chmod(0o755)
        self.second.settings("ssh", command=str(file))
        self.second.tables["replica.office"]["from"] = "ssh://root@first"
        self.second.write()

    def names(self, pool: Path, host: str = "web1") -> list[str]:
        folder = pool / "hosts" / host
        return sorted(path.name for path in folder.glob("20*"))

    def differences(self, name: str) -> str:
        """What rsync, which knows nothing of us, finds different between the two copies of a backup, by checksums."""
        one, other = (pool / "hosts/web1" / name for pool in (self.first.pool, self.second.pool))
        return work("rsync", "-n", "-aHAXc", "--delete", "-i", f"{one}/", f"{other}/").stdout


@pytest.fixture
def two(make_btrfs: Callable[..., Path]) -> TwoPools:
    return TwoPools(make_btrfs(), make_btrfs())


def wait_until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end, f"waited for {what}"
        time.sleep(0.02)


def shown(path: Path) -> dict[str, str]:
    """What `btrfs subvolume show` says."""
    lines = work("btrfs", "subvolume", "show", path).stdout.splitlines()
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def published(of: Nights) -> Any:
    """What the dashboard is told of copies, by sqlite3."""
    with sqlite3.connect(of.state / "catalogue.sqlite") as rows:
        found = rows.execute("SELECT value FROM about WHERE name = 'copies'").fetchone()
    return json.loads(found[0]) if found else {}


def test_what_is_fetched_is_the_same_and_a_difference_to_what_was_there(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    assert [one["parent"] for one in two.fetch()[0]["fetched"]] == [None]
    second, third = two.night("2026-03-02T22:00:00Z", "b"), two.night("2026-03-03T22:00:00Z", "c")
    told = two.fetch()[0]
    assert [(one["backup"], one["parent"]) for one in told["fetched"]] == [(second, first), (third, second)]
    assert two.names(two.second.pool) == [first, second, third]
    for name in (first, second, third):
        assert two.differences(name) == ""
        here, there = (shown(pool / "hosts/web1" / name) for pool in (two.second.pool, two.first.pool))
        assert here["Received UUID"] == there["UUID"]
        assert here["Flags"] == "readonly"
    assert two.fetch()[0]["planned"] == 0
    assert [one["name"] for one in json.loads(two.second.backupd("list", "web1", "--json").stdout)] == [first, second, third]
    assert json.loads(two.second.backupd("rebuild", "--json").stdout)["backups"] == 3
    assert len(json.loads(two.second.backupd("list", "web1", "--json").stdout)) == 3
    assert Path(two.second.pool / "hosts/web1/latest").readlink() == Path(third)


def test_a_host_that_is_fetched_is_not_backed_up_until_it_is_promoted_and_then_goes_on(two: TwoPools) -> None:
    (two.source / "large").write_bytes(os.urandom(3_000_000))
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    assert published(two.second) == {"fetched": {"web1": "office"}, "common": {"office": {"web1": first}}}
    assert published(two.first) == {}
    two.first.backupd("sample")
    assert published(two.first) == {"fetched": {}, "common": {"office": {"web1": first}}}
    two.second.host("web1", two.source)
    refused = two.second.backupd("run", "web1", "--now", "2026-03-02T22:00:00Z", check=False)
    assert refused.returncode == 1
    assert "copies" in refused.stdout
    assert two.names(two.second.pool) == [first]
    assert "common with replica" in two.second.backupd("retention", "explain", "web1").stdout
    two.second.backupd("promote", "web1", "--yes")
    assert published(two.second)["fetched"] == {}
    assert "common with replica" not in two.second.backupd("retention", "explain", "web1").stdout
    told = json.loads(two.second.backupd("run", "web1", "--json", "--now", "2026-03-03T22:00:00Z").stdout)
    assert told[0]["outcome"] == "complete"
    assert told[0]["new_bytes"] < 100_000  # of three million
    assert two.second.backupd("replicate", "--now", "2026-03-20T12:00:00Z", check=False).returncode == 1


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ('"$@" | python3 -c "$RELAY" cut 2000000', "connection has ended"),
        ('"$@" | python3 -c "$RELAY" flip 3000000', "crc"),
        ("echo banner; cat", "none of the protocol"),
        ("exit 255", "connection has ended"),
    ],
)
def test_what_was_cut_off_or_garbled_leaves_nothing_and_is_fetched_again(two: TwoPools, script: str, why: str) -> None:
    (two.source / "large").write_bytes(os.urandom(6_000_000))
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.over_ssh(script)
    told = two.fetch(status=1)
    assert why in (told if isinstance(told, str) else json.dumps(told))
    assert two.names(two.second.pool) == []
    assert not (two.second.pool / "hosts/web1/.receiving").exists()
    two.over_ssh('"$@"')
    assert [one["backup"] for one in two.fetch()[0]["fetched"]] == [first]
    assert two.differences(first) == ""


def test_a_kill_in_the_middle_leaves_what_the_next_one_clears_away(two: TwoPools) -> None:
    (two.source / "large").write_bytes(os.urandom(6_000_000))
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.over_ssh('"$@" | python3 -c "$RELAY" stop 3000000')
    words = [sys.executable, "-m", "backupd", "--config", str(two.second.config), "replicate", "--now", "2026-03-20T12:00:00Z"]
    with subprocess.Popen(words, cwd=TOP, start_new_session=True) as killed:
        receiving = two.second.pool / "hosts/web1/.receiving"
        wait_until(lambda: receiving.is_dir() and any(receiving.rglob("large")), "the stream to be half received")
        os.killpg(killed.pid, signal.SIGKILL)
    assert receiving.is_dir()
    two.over_ssh('"$@"')
    two.fetch()
    assert two.names(two.second.pool) == [first]
    assert not receiving.exists()
    assert two.differences(first) == ""


def test_what_a_kill_left_goes_with_a_host_that_is_forgotten(two: TwoPools) -> None:
    two.night("2026-03-01T22:00:00Z", "a")
    words = [
        "die",
        "before",
        "snapshot made",
        "1",
        "--config",
        str(two.second.config),
        "replicate",
        "--now",
        "2026-03-20T12:00:00Z",
    ]
    work(sys.executable, "-m", "tests.beds.kill_at", *words, check=False, cwd=TOP)
    assert (two.second.pool / "hosts/web1/.receiving/backup").is_dir()
    two.second.backupd("forget", "web1", "--yes", "--now", "2026-03-20T13:00:00Z")
    for day in (21, 23):
        two.second.backupd("expire", "--now", f"2026-03-{day}T14:00:00Z")
    assert not (two.second.pool / "hosts/web1").exists()


def test_a_copy_that_is_forgotten_on_purpose_is_no_failure_and_nothing_of_it_comes(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    two.second.backupd("forget", "web1", "--yes", "--now", "2026-03-20T13:00:00Z")
    two.night("2026-03-02T22:00:00Z", "b")
    assert two.fetch()[0]["failed"] == []
    assert two.names(two.second.pool) == [first]
    (copy,) = json.loads(two.second.backupd("status", "--json", "--now", "2026-03-20T12:30:00Z").stdout)["copies"]
    assert (copy["state"], copy["behind"]) == ("ok", [])


def test_holds_and_acceptances_come_along_and_their_ends_do_not(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.first.backupd("hold", "web1", first, "--why", "audit", "--now", "2026-03-02T01:00:00Z")
    two.fetch()
    two.first.backupd("release", "web1", first, "--now", "2026-03-02T02:00:00Z")
    two.fetch()
    assert json.loads((two.second.pool / "hosts/web1/notes.json").read_text())["backups"][first]["hold"]["why"] == "audit"


def test_what_is_deleted_here_goes_though_both_have_it_and_does_not_come_again(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    two.second.backupd("delete", f"web1@{first}", "--now-without-grace", "--force", "--now", "2026-03-03T02:00:00Z")
    assert two.names(two.second.pool) == []
    assert two.fetch()[0]["planned"] == 0


def test_a_first_pool_that_became_read_only_is_fetched(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    work("mount", "-o", "remount,ro", work("findmnt", "-no", "TARGET", "-T", two.first.pool).stdout.strip())
    done = two.second.backupd("replicate", "--now", "2026-03-20T12:00:00Z")
    assert two.names(two.second.pool) == [first]
    assert "Read-only file system" in done.stderr


def test_a_host_that_cannot_be_fetched_says_why(two: TwoPools) -> None:
    (two.source / "large").write_bytes(os.urandom(6_000_000))
    two.night("2026-03-01T22:00:00Z", "a")
    two.over_ssh('"$@" | python3 -c "$RELAY" flip 3000000')
    failed = two.second.backupd("replicate", "--now", "2026-03-20T12:00:00Z", check=False)
    assert failed.returncode == 1
    assert "crc" in failed.stderr


def test_a_hold_comes_along_whenever_the_replication_is_killed(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.first.backupd("hold", "web1", first, "--why", "audit", "--now", "2026-03-02T01:00:00Z")
    words = ["die", "after", "snapshot made", "1", "--config", str(two.second.config), "replicate", "--now", "2026-03-20T12:00:00Z"]
    killed = work(sys.executable, "-m", "tests.beds.kill_at", *words, check=False, cwd=TOP)
    assert killed.returncode == -signal.SIGKILL
    assert two.names(two.second.pool) == [first]
    two.fetch()
    assert json.loads((two.second.pool / "hosts/web1/notes.json").read_text())["backups"][first]["hold"]["why"] == "audit"


def test_what_both_have_stays_when_a_host_gets_a_new_name(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    two.first.backupd("rename", "web1", "web2", "--yes")
    two.fetch(status=1)
    for pool, host in ((two.first, "web2"), (two.second, "web1")):
        known = json.loads((pool.pool / ".btrkeep/common/office.json").read_text())["hosts"]
        assert known.get(host) == first, host


def test_a_host_with_a_new_name_there_is_not_fetched_as_another_until_it_has_that_name_here(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    two.first.backupd("rename", "web1", "web2", "--yes")
    assert "`backupd rename web1 web2` here too" in json.dumps(two.fetch(status=1))
    assert not (two.second.pool / "hosts/web2").exists()
    two.second.backupd("rename", "web1", "web2", "--yes")
    assert two.fetch()[0]["planned"] == 0
    assert two.names(two.second.pool, "web2") == [first]


def test_what_is_deleted_there_stays_here(two: TwoPools) -> None:
    first, second = two.night("2026-03-01T22:00:00Z", "a"), two.night("2026-03-02T22:00:00Z", "b")
    two.fetch()
    two.first.backupd("delete", f"web1@{first}", "--now-without-grace", "--now", "2026-03-03T02:00:00Z")
    assert two.names(two.first.pool) == [second]
    two.fetch()
    assert two.names(two.second.pool) == [first, second]


def test_a_pool_that_took_the_place_of_another_is_not_fetched(two: TwoPools, make_btrfs: Callable[..., Path]) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    other = TwoPools(make_btrfs(), make_btrfs())
    other.night("2026-03-01T22:00:00Z", "x")
    two.second.tables["replica.office"]["from"] = str(other.first.pool)
    two.second.write()
    assert "a copy of another pool" in json.dumps(two.fetch(status=1))
    assert two.differences(first) == ""


def flag_by_ioctl(path: Path, flags: int) -> None:
    """BTRFS_IOC_SUBVOL_SETFLAGS, which, other than `btrfs property`, leaves the received UUID as it is."""
    fd = os.open(path, os.O_RDONLY)
    fcntl.ioctl(fd, 1 << 30 | 8 << 16 | 0x94 << 8 | 26, struct.pack("=Q", flags))
    os.close(fd)


@pytest.mark.parametrize("by", ["btrfs property", "ioctl"])
def test_a_change_by_hand_is_noticed_and_not_built_upon(two: TwoPools, by: str) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    copy = two.second.pool / "hosts/web1" / first
    if by == "ioctl":
        flag_by_ioctl(copy, 0)
    else:
        work("btrfs", "property", "set", "-f", copy, "ro", "false")
    (copy / "mine").write_text("x")
    flag_by_ioctl(copy, 2)
    two.night("2026-03-02T22:00:00Z", "b")
    two.fetch(status=1)
    assert two.names(two.second.pool) == [first]


def test_the_last_common_backup_stays_on_both_sides(two: TwoPools) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    for day in range(2, 8):
        two.night(f"2026-03-{day:02}T22:00:00Z", str(day))
    two.first.tables["retention"] = {"daily": 2, "min_keep": 1, "grace": "1s"}
    two.first.write()
    two.first.backupd("expire", "--force", "hosts", "--now", "2026-03-10T12:00:00Z", check=False)
    two.first.backupd("expire", "--force", "hosts", "--now", "2026-03-11T12:00:00Z")
    assert two.names(two.first.pool)[0] == first
    assert len(two.names(two.first.pool)) == 3
    why = two.first.backupd("retention", "explain", "web1", "--now", "2026-03-10T12:00:00Z").stdout
    assert "common with replica office" in why


def test_a_key_that_has_a_name_and_hosts_gets_no_others(two: TwoPools) -> None:
    """It keeps only what it has itself from expiring, and knows nothing of other hosts."""
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.first.host("db1", two.source)
    two.first.backupd("run", "db1", "--now", "2026-03-01T22:00:00Z")
    two.over_ssh('exec "$@" --replica backup2 --host "web*"')
    assert [(one["host"], one["backup"]) for one in two.fetch()[0]["fetched"]] == [("web1", first)]
    common = two.first.pool / ".btrkeep/common"
    assert [path.name for path in common.iterdir()] == ["backup2.json"]
    assert json.loads((common / "backup2.json").read_text())["hosts"] == {"web1": first}
    answers = [
        sys.executable,
        "-m",
        "backupd",
        "--config",
        str(two.first.config),
        "send-only",
        "--replica",
        "backup2",
        "--host",
        "web*",
    ]
    uuid = json.loads((two.first.pool / "hosts/db1" / first / "backup.json").read_text())["uuid"]
    asked = [
        {"verb": "send", "host": "db1", "name": first, "uuid": uuid},
        {"verb": "common", "replica": "other", "hosts": {"db1": first, "web1": first}},
    ]
    said = work(*answers, input="".join(f"{json.dumps(one)}\n" for one in asked)).stdout
    assert "there is no such host" in said
    assert [path.name for path in common.iterdir()] == ["backup2.json"]
    assert json.loads((common / "backup2.json").read_text())["hosts"] == {"web1": first}


def of_replicas(nights: Nights, *words: str) -> list[tuple[str, str]]:
    """Level and text of what `check` says of replicas."""
    found = json.loads(nights.backupd("check", "--json", *words, check=False).stdout)
    return [(one["level"], one["message"]) for one in found if one["subject"].startswith("replica")]


def test_check_says_how_a_copy_is_doing_and_whether_the_key_runs_anything_else_there(two: TwoPools) -> None:
    two.night("2026-03-01T22:00:00Z", "a")
    two.second.tables.pop("host.web1", None)
    assert of_replicas(two.second) == [("note", "never fetched")]
    two.over_ssh('exec "$@"')
    two.fetch()
    ((level, text),) = of_replicas(two.second)  # on the true day
    assert level == "warning"
    assert text.startswith("not fetched for")
    answered = of_replicas(two.second, "--connect")[-1]
    assert answered == ("ok", f"reached, btrkeep {__version__}, 1 host to fetch from")
    two.over_ssh('exec "$@"')
    file = two.second.top / "ssh"
    file.write_text(file.read_text().replace("cd ", 'last="${@: -1}"; [[ $last != echo* ]] || exec bash -c "$last"\ncd ', 1))
    assert of_replicas(two.second, "--connect")[-1][0] == "warning"
    assert "runs any command" in of_replicas(two.second, "--connect")[-1][1]
    two.over_ssh("echo 'Permission denied (publickey).' >&2; exit 255")
    assert of_replicas(two.second, "--connect")[-1] == ("error", "Permission denied (publickey).")


def test_check_says_that_a_copy_on_the_same_filesystem_is_none(two: TwoPools) -> None:
    (two.second.top / "beside").mkdir()
    beside = Nights(two.second.top / "beside", "--rehearsal")
    two.second.tables["replica.office"]["from"] = str(beside.pool)
    two.second.write()
    assert ("warning", f"{beside.pool} is on the same filesystem as this pool: when that is lost, so is the copy") in of_replicas(
        two.second
    )


def test_a_disk_that_was_never_there_needs_a_look(two: TwoPools) -> None:
    two.second.tables["replica.office"]["from"] = str(two.first.pool.parent / "nowhere")
    two.second.write()
    (told,) = two.fetch(status=1)
    assert "nowhere" in told["error"]
    assert not told["error"].startswith("hint")
    (copy,) = json.loads(two.second.backupd("status", "--json", "--now", "2026-03-20T12:00:00Z").stdout)["copies"]
    assert (copy["state"], copy["age"], copy["error"]) == ("failing", None, told["error"])


AIMED = ("through-a-symlink", "through-a-folder", "above", "absolute", "moved-out", "hard-link")
OTHERS = ("nested", "clone", "another-record", "no-record", "bad-host", "bad-name")


def test_a_server_that_was_taken_over_writes_nothing_but_what_is_thrown_away(two: TwoPools, tmp_path: Path) -> None:
    """Its targets: a file of this machine, this host's notes, and another host's folder."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    other, notes = two.second.pool / "hosts/other", two.second.pool / "hosts/web1/notes.json"
    other.mkdir()
    before = everything(two.second.pool)
    targets = (str(victim), "../notes.json", "../../other/taken")
    for attack, target in (*((attack, target) for attack in AIMED for target in targets), *((attack, "x") for attack in OTHERS)):
        two.over_ssh(f"exec {shlex.quote(sys.executable)} -m tests.beds.hostile_pool {attack} {shlex.quote(target)}")
        two.fetch(status=1)
        assert victim.read_text() == "mine", attack
        assert [path.name for path in tmp_path.iterdir()] == ["victim"], attack
        new = {path for path in everything(two.second.pool) - before if not path.startswith(".btrkeep/")}
        assert new <= {"hosts/web1", "hosts/web1/notes.json"}, attack
        if notes.exists():
            assert json.loads(notes.read_text())["replica"]["pool"] == "p", attack


@pytest.mark.parametrize("target", ["../.trash", "stolen"])
def test_a_server_that_was_taken_over_cannot_rename_what_came_before(two: TwoPools, target: str) -> None:
    two.over_ssh(f"exec {shlex.quote(sys.executable)} -m tests.beds.hostile_pool device x")
    two.fetch()
    before = everything(two.second.pool)
    two.over_ssh(f"exec {shlex.quote(sys.executable)} -m tests.beds.hostile_pool renamed-away {target}")
    two.fetch(status=1)
    assert everything(two.second.pool) == before


def everything(top: Path) -> set[str]:
    return {str(path.relative_to(top)) for path in top.rglob("*")}


def test_a_device_comes_along_and_lies_there_as_any_backup_of_one_does(two: TwoPools) -> None:
    two.over_ssh(f"exec {shlex.quote(sys.executable)} -m tests.beds.hostile_pool device x")
    assert two.fetch()[0]["fetched"]
    node = two.second.pool / "hosts/web1/2026-03-01T220000Z/disk"
    assert node.is_block_device()


def test_by_ssh_the_key_lists_and_sends_and_does_nothing_else(two: TwoPools, sshd: Sshd) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    words = [sys.executable, "-m", "backupd", "--config", str(two.first.config), "send-only"]
    answers = f"cd {shlex.quote(str(TOP))} && {shlex.join(words)}"
    key = sshd.authorize(f'restrict,command="{answers}"')
    two.second.settings("ssh", command="ssh", key=str(key), known_hosts=str(sshd.known_hosts))
    two.second.tables["replica.office"] |= {"from": f"ssh://{sshd.address}", "port": sshd.port}
    two.second.write()
    assert [one["backup"] for one in two.fetch()[0]["fetched"]] == [first]
    assert two.differences(first) == ""
    asked = [
        "cat /etc/passwd",
        json.dumps({"verb": "send", "host": "../..", "name": "etc", "uuid": "x"}),
        json.dumps({"verb": "delete"}),
    ]
    for line in asked:
        said = work(*sshd.ssh(key), sshd.address, "cat", "/etc/passwd", input=line + "\n", check=False)
        assert "root:" not in said.stdout
        assert "error" in said.stdout
    assert two.names(two.first.pool) == [first]


def test_what_one_host_alone_is_fetched_for_takes_nothing_from_the_others(two: TwoPools) -> None:
    (two.first.source / "db1").mkdir()
    two.first.host("db1", two.first.source / "db1")
    two.night("2026-03-01T22:00:00Z", "a")
    two.first.backupd("run", "db1", "--now", "2026-03-01T23:00:00Z")
    two.fetch()
    two.fetch("office", "web1")
    for pool in (two.first.pool, two.second.pool):
        assert set(json.loads((pool / ".btrkeep/common/office.json").read_text())["hosts"]) == {"web1", "db1"}


def test_a_chain_of_three_knows_what_it_has(two: TwoPools, make_btrfs: Callable[..., Path]) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    third = Nights(make_btrfs(), "--rehearsal")
    third.tables["replica.second"] = {"from": str(two.second.pool)}
    third.write()
    third.backupd("replicate", "--now", "2026-03-20T12:00:00Z")
    second = two.night("2026-03-02T22:00:00Z", "b")
    two.fetch()
    told = json.loads(third.backupd("replicate", "--json", "--now", "2026-03-20T12:00:00Z").stdout)
    assert [(one["backup"], one["parent"]) for one in told[0]["fetched"]] == [(second, first)]
    assert (
        work(
            "rsync", "-n", "-aHAXc", "--delete", "-i", f"{two.source}/", f"{third.pool}/hosts/web1/{second}/data{two.source}/"
        ).stdout
        == ""
    )
