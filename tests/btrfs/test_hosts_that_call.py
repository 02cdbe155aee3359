"""Hosts that call the server: a real sshd in both directions, the forced commands of both keys, and a run over that connection."""

import json
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backupd.run.cli import called
from tests.beds import TOP, work
from tests.beds.nights import Nights
from tests.beds.source_program import SourceHost
from tests.beds.ssh import Sshd
from tests.beds.watch import wait_for

pytestmark = [pytest.mark.btrfs, pytest.mark.root, pytest.mark.ssh]


class Laptop:
    """A host that calls. Its name does not resolve: it is reached only by its call."""

    def __init__(self, nights: Nights, sshd: Sshd) -> None:
        self.nights, self.sshd = nights, sshd
        self.program = SourceHost(sshd)
        self.program.ssh("office")
        self.source = nights.source / "home"
        self.source.mkdir()
        (self.source / "letter").write_text("first")
        known_hosts = nights.top / "known_hosts"
        known_hosts.write_text("laptop.invalid " + (sshd.folder / "host_key.pub").read_text())
        nights.settings("ssh", command="ssh -F none", key=str(self.program.keys["office"]), known_hosts=str(known_hosts))
        self.configure()
        self.authorize("laptop")

    def configure(self, **keys: Any) -> None:
        given = {"address": "root@laptop.invalid", "calls": True, "snapshots": "required", **keys}
        self.nights.host("laptop", self.source, **given)

    def authorize(self, name: str) -> None:
        """Adds the host's key to the server."""
        answer = (sys.executable, "-P", "-m", "backupd", "--config", self.nights.config, "answer", name)
        command = f"cd {shlex.quote(str(TOP))} && exec {shlex.join(map(str, answer))}"
        self.key = self.sshd.authorize(f'restrict,command="{command}"')
        options = f"-F none -p {self.sshd.port} -o UserKnownHostsFile={self.sshd.known_hosts}"
        self.program.config.write_text(
            f"[call]\nkey = {self.key}\nssh_options = {options}\nsshd_options = -f {self.sshd.folder}/sshd_config\n"
        )

    @property
    def words(self) -> list[str]:
        return [*self.program.words(), "call", self.sshd.address]

    def call(self, *words: str, status: int = 0) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run([*self.words, *words], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == status, done
        return done

    def second_call(self) -> str:
        """Returns the answer to another process of the host, such as one on a copy of its disk."""
        words = [word if word != str(self.program.state) else f"{word}-2" for word in self.words]
        return subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout

    def outcomes(self) -> list[str]:
        return [run["outcome"] for run in self.nights.json("log", "laptop")]

    def left(self) -> list[str]:
        """Returns the remains of calls: sockets on the server, sessions on the host."""
        return [name for name in self.program.left(*self.nights.top.parents) if not name.startswith("call")]


@pytest.fixture
def laptop(nights: Nights, sshd: Sshd) -> Laptop:
    return Laptop(nights, sshd)


def test_a_host_that_calls_is_backed_up_and_then_told_when_to_call_again(laptop: Laptop) -> None:
    before = time.time()
    assert "no complete backup yet; next call in" in laptop.call("--scheduled").stdout
    nights = laptop.nights
    assert nights.differences("laptop", laptop.source) == []
    assert [path["consistency"]["kind"] for path in nights.record("laptop")["paths"]] == ["snapshot"]
    assert laptop.left() == []
    (appointment,) = laptop.program.state.glob("call-*127*")
    midnight = datetime.combine(datetime.now(UTC).date() + timedelta(days=1), datetime.min.time(), UTC).timestamp()
    assert abs(appointment.stat().st_mtime - max(midnight, before + 60)) < 120
    assert laptop.call("--scheduled").stdout == ""  # it does not even connect
    assert len(nights.names("laptop")) == 1
    assert "complete since" in laptop.call().stdout
    assert len(nights.names("laptop")) == 1


def test_a_night_and_a_check_leave_it_out_and_a_run_by_name_names_the_way(laptop: Laptop) -> None:
    nights = laptop.nights
    assert nights.run("--all") == {}
    assert nights.backupd("run", "--dry-run").stdout.startswith("laptop: would not run: it calls this server")
    done = nights.backupd("run", "laptop", check=False)
    assert done.returncode == 2
    assert "`btrkeep-source call` on the host starts its backup" in done.stderr
    (finding,) = [each for each in nights.json("check", "--connect") if each["subject"] == "laptop"]
    assert (finding["level"], "calls this server" in finding["message"]) == ("note", True)


@pytest.mark.parametrize("name", ["other", "web1"])
def test_a_host_that_is_not_configured_to_call_is_refused(laptop: Laptop, name: str) -> None:
    laptop.nights.host("web1", laptop.source, address="web1.invalid")
    laptop.authorize(name)
    done = laptop.call(status=1)
    assert "the backup server cannot back up now; its log has the reason; next call in 60 minutes" in done.stdout
    assert list((laptop.nights.pool / "hosts").glob("*/2*")) == []


def test_a_key_that_is_not_authorized_gets_no_answer(laptop: Laptop) -> None:
    laptop.program.config.write_text(laptop.program.config.read_text().replace(str(laptop.key), "/nowhere"))
    assert "the server did not answer" in laptop.call(status=1).stderr


def test_the_key_of_a_host_starts_nothing_else(laptop: Laptop) -> None:
    """Every request counts as a call; and a host without an sshd only loses its own backup."""
    for request in ("sh", "backupd answer web1", "rsync --server --sender . /"):
        done = subprocess.run(
            [*laptop.sshd.ssh(laptop.key), laptop.sshd.address, request],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False,
        )  # fmt: skip
        answer = json.loads(done.stdout.split(b"\n")[0])
        assert answer["format"] == 1
        assert done.stderr == b""
    assert list((laptop.nights.pool / "hosts").glob("*/2*")) == []
    forward = [*laptop.sshd.ssh(laptop.key), "-o", "ExitOnForwardFailure=yes", "-N", "-R", "0:127.0.0.1:22", laptop.sshd.address]
    assert subprocess.run(forward, capture_output=True, timeout=60, check=False).returncode == 255


def test_another_machine_that_uses_the_hosts_key_is_not_backed_up(laptop: Laptop) -> None:
    """The server checks the host key of the sshd that answers over the call."""
    known_hosts = laptop.nights.top / "known_hosts"
    known_hosts.write_text("laptop.invalid " + Path(f"{laptop.key}.pub").read_text())
    laptop.call(status=1)
    assert laptop.outcomes() == ["failed"]
    assert list((laptop.nights.pool / "hosts").glob("*/2*")) == []


def test_a_connection_that_dies_ends_the_run_and_another_call_is_answered_meanwhile_and_afterwards(laptop: Laptop) -> None:
    (laptop.source / "large").write_bytes(os.urandom(40 << 20))  # 40 seconds
    laptop.configure(bandwidth="1MB")
    process = subprocess.Popen(laptop.words, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    working = laptop.nights.pool / "hosts" / "laptop" / ".working" / "data"
    wait_for(lambda: (working.is_dir() and any(working.rglob(".large*"))) or (working / str(laptop.source)[1:] / "large").exists())
    assert "another call of this host is being answered; next call in 10 minutes" in laptop.second_call()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: laptop.outcomes()[:1] == ["partial"])
    assert (working / str(laptop.source)[1:]).is_dir()  # the next call continues it
    laptop.configure()
    assert "interrupted a moment ago; next call in 1" in laptop.call().stdout
    with closing(sqlite3.connect(laptop.nights.state / "catalogue.sqlite", timeout=60)) as catalogue, catalogue:
        (started,) = catalogue.execute("SELECT max(started) FROM run").fetchone()
        earlier = datetime.fromisoformat(started) - timedelta(seconds=1000)
        catalogue.execute("UPDATE run SET started = ?", (earlier.isoformat().replace("+00:00", "Z"),))
    assert "next call in" in laptop.call().stdout
    assert laptop.outcomes()[:1] == ["complete"]
    assert laptop.nights.differences("laptop", laptop.source) == []
    assert laptop.left() == []
    assert not list(Path("/run").glob("btrkeep-call-*"))


def test_more_calls_than_the_server_answers_at_the_same_time_are_told_to_call_later(laptop: Laptop) -> None:
    turns = []
    while (turn := called.take_turn(Path("/run/btrkeep-calls"), 4)) is not None:
        turns.append(turn)
    try:
        done = laptop.call()
    finally:
        for turn in turns:
            os.close(turn)
    assert "the server is answering other calls; next call in" in done.stdout
    assert list((laptop.nights.pool / "hosts").glob("*/2*")) == []
    assert "no complete backup yet" in laptop.call().stdout
    assert len(laptop.nights.names("laptop")) == 1


@pytest.mark.parametrize("count", [1, 2])
def test_a_host_with_btrfs_that_calls_sends_streams(laptop: Laptop, btrfs_mount: Path, count: int) -> None:
    paths = [btrfs_mount / f"data{number}" for number in range(count)]
    for path in paths:
        work("btrfs", "-q", "subvolume", "create", path)
        (path / "file").write_text("first")
    keys = {"address": "root@laptop.invalid", "calls": True, "engine": "send", "every": "1s"}
    laptop.nights.host("laptop", *paths, **keys)
    laptop.call()
    (paths[0] / "file").write_text("second")
    laptop.call()
    assert laptop.outcomes() == ["complete", "complete"]
    assert [laptop.nights.data("laptop", path / "file").read_text() for path in paths] == ["second", "first"][:count]
    assert laptop.nights.record("laptop")["base"] is not None
