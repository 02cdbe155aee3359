"""A server that cannot be reached sends its backups: rsync compares the received ones."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.beds import TOP, work
from tests.beds.badssh import FAKESSH
from tests.beds.ssh import Sshd
from tests.beds.two_pools import RELAY, TwoPools
from tests.beds.watch import processes, wait_for

pytestmark = [pytest.mark.btrfs, pytest.mark.root]
NOW = "2026-03-20T12:00:00Z"


class Pushing(TwoPools):
    """The first pool sends to the second one."""

    def __init__(self, first: Path, second: Path, **keys: Any) -> None:
        super().__init__(first, second, **keys)
        self.second.tables["replica.office"]["from"] = "push"
        self.second.write()
        self.first.tables["push.backup2"] = {"to": "ssh://root@second"}
        self.over('exec "$@"')

    @property
    def forced(self) -> list[str]:
        """Returns the forced command of the second server."""
        words = ("receive-only", "--replica", "office", "--now", NOW)
        return [sys.executable, "-m", "backupd", "--config", str(self.second.config), *words]

    def over(self, script: str, *, answers: str = "") -> None:
        """Makes shell lines replace ssh: "$@" is the forced command of the other server."""
        forced = answers or shlex.join(self.forced)
        file = self.first.top / "ssh"
        hosts = f'case "$*" in *receive-only*) ;; *) exec {shlex.quote(str(FAKESSH))} "$@" ;; esac'
        file.write_text(f"#!/bin/bash\n{hosts}\ncd {shlex.quote(str(TOP))}\nRELAY='{RELAY}'\nset -- {forced}\n{script}\n")
        file.chmod(0o755)
        self.first.settings("ssh", command=str(file))

    def push(self, *words: str, status: int = 0) -> Any:
        done = self.first.backupd("replicate", "--json", *words, "--now", NOW, check=False)
        assert done.returncode == status, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return json.loads(done.stdout)[0] if done.stdout else done.stderr

    def copies(self, first: bool = False) -> dict[str, Any]:
        nights = self.first if first else self.second
        (answer,) = json.loads(nights.backupd("status", "--json", "--now", NOW).stdout)["copies"]
        return dict(answer)

    def more_hosts(self, *names: str) -> None:
        for name in names:
            source = self.first.source / name
            source.mkdir()
            (source / "file").write_bytes(os.urandom(1 << 20))
            self.first.host(name, source)
            self.first.backupd("run", name, "--now", "2026-03-01T22:00:00Z")


@pytest.fixture
def two(make_btrfs: Callable[..., Path]) -> Pushing:
    return Pushing(make_btrfs(), make_btrfs())


def test_what_is_sent_is_whole_the_next_time_a_difference_and_both_sides_tell_of_it(two: Pushing) -> None:
    first = two.night("2026-03-01T22:00:00Z", "a")
    done = two.push()
    assert [(sent_backup["host"], sent_backup["backup"]) for sent_backup in done["sent"]] == [("web1", first)]
    assert two.names(two.second.pool) == [first]
    assert two.differences(first) == ""
    second = two.night("2026-03-02T22:00:00Z", "b")
    again = two.push("backup2")
    assert [sent_backup["backup"] for sent_backup in again["sent"]] == [second]
    assert two.differences(second) == ""
    assert again["sent"][0]["bytes"] < 200_000  # two files; a complete copy would have more
    assert two.push()["sent"] == []
    here, answer = two.copies(first=True), two.copies()
    assert (here["kind"], here["state"], here["hosts"], here["newest"]) == ("push", "ok", 1, f"2026-03-02T22:00:{second[15:17]}Z")
    assert (answer["kind"], answer["from"], answer["state"], answer["hosts"]) == ("replica", "push", "ok", 1)
    assert [host_lag["newest"] for host_lag in here["lag"]] == [second]
    explained = two.first.backupd("retention", "explain", "web1", "--now", NOW).stdout
    assert "common with replica backup2" in explained
    two.second.backupd("verify", "web1")


def test_a_server_that_only_receives_cannot_fetch_and_accepts_no_folder(two: Pushing) -> None:
    two.night("2026-03-01T22:00:00Z", "a")
    assert json.loads(two.second.backupd("replicate", "--json", "--now", NOW).stdout) == []
    refused = two.second.backupd("replicate", "office", check=False)
    assert (refused.returncode, "is sent by the other server" in refused.stderr) == (2, True)
    refused = two.first.backupd("replicate", "backup2", "web1", check=False)
    assert (refused.returncode, "the other server chooses" in refused.stderr) == (2, True)
    assert two.push("--dry-run")["sent"] == []
    assert two.names(two.second.pool) == []
    two.second.tables["replica.office"]["from"] = str(two.first.pool)
    two.second.write()
    assert "is fetched from" in two.push(status=1)["error"]


def test_a_host_that_cannot_be_taken_costs_the_others_nothing(two: Pushing) -> None:
    two.night("2026-03-01T22:00:00Z", "a")
    two.more_hosts("aaa", "web2")
    (two.second.pool / "hosts" / "aaa").mkdir()
    (two.second.pool / "hosts" / "aaa" / two.names(two.first.pool, "aaa")[0]).mkdir()  # foreign
    done = two.push(status=1)
    assert [failure["host"] for failure in done["failed"]] == ["aaa"]
    assert [len(two.names(two.second.pool, host)) for host in ("web1", "web2")] == [1, 1]
    for status in (two.copies(), two.copies(first=True)):
        assert status["state"] == "failing"
        assert [row["host"] for row in status["behind"]] == ["aaa"]


def test_a_host_whose_stream_cannot_be_received_is_given_up_in_its_middle_and_the_next_one_comes(two: Pushing) -> None:
    """`btrfs receive` fails at once; some MiB are still to come."""
    (two.source / "large").write_bytes(os.urandom(24 << 20))
    two.night("2026-03-01T22:00:00Z", "a")
    two.more_hosts("web2")
    folder = two.second.top / "bin"
    folder.mkdir()
    (folder / "bwrap").write_text('#!/bin/sh\ncase "$*" in *web1*) exit 1;; esac\nexec /usr/bin/bwrap "$@"\n')
    (folder / "bwrap").chmod(0o755)
    two.over('exec "$@"', answers=f"env PATH={folder}:$PATH " + shlex.join(two.forced))
    done = two.push(status=1)
    assert [failure["host"] for failure in done["failed"]] == ["web1"], done
    assert [sent_backup["host"] for sent_backup in done["sent"]] == ["web2"]  # the other is not sent to its end for nothing
    assert len(two.names(two.second.pool, "web2")) == 1
    assert two.names(two.second.pool) == []


@pytest.mark.parametrize(("end", "place"), [("cut", 400_000), ("flip", 400_000), ("cut", 20), ("cut", 1000)])
def test_a_line_that_is_cut_or_garbled_leaves_nothing_and_the_next_sending_is_whole(two: Pushing, end: str, place: int) -> None:
    (two.source / "large").write_bytes(os.urandom(1 << 20))
    name = two.night("2026-03-01T22:00:00Z", "a")
    two.over(f'{shlex.quote(sys.executable)} -c "$RELAY" {end} {place} | "$@"')
    done = two.first.backupd("replicate", "--now", NOW, check=False)
    assert done.returncode in (1, 4), done.stderr
    assert "Traceback" not in done.stderr
    assert two.names(two.second.pool) == []
    assert not (two.second.pool / "hosts/web1/.receiving").exists()
    two.over('exec "$@"')
    two.push()
    assert two.differences(name) == ""
    assert (two.copies()["state"], two.copies(first=True)["state"]) == ("ok", "ok")


def test_the_receiving_server_records_a_cut_line_although_its_output_is_lost(two: Pushing) -> None:
    (two.source / "large").write_bytes(os.urandom(1 << 20))
    two.night("2026-03-01T22:00:00Z", "a")
    two.over(f'{shlex.quote(sys.executable)} -c "$RELAY" cut 400000 | "$@" 2> >(exec true)')  # as after the end of sshd
    assert two.first.backupd("replicate", "--now", NOW, check=False).returncode == 1
    assert two.copies()["state"] == "failing"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_sender_that_is_ended_leaves_nothing_there_and_no_process(
    two: Pushing, backupd_running: Callable[..., Any], number: signal.Signals
) -> None:
    (two.source / "large").write_bytes(os.urandom(40 << 20))
    name = two.night("2026-03-01T22:00:00Z", "a")
    two.first.settings("backup", bandwidth="4MB")
    running = backupd_running("--config", two.first.config, "replicate", "--now", NOW)
    wait_for(lambda: (two.second.pool / "hosts/web1/.receiving/backup").exists())
    time.sleep(1)
    running.send_signal(number)
    running.communicate(timeout=60)
    assert running.returncode == (143 if number == signal.SIGTERM else -9)
    marked = str(two.second.config)
    wait_for(lambda: not any(marked in word for words in processes().values() for word in words))
    assert two.names(two.second.pool) == []
    del two.first.tables["backup"]["bandwidth"]
    two.first.write()
    two.push()
    assert two.differences(name) == ""


def test_the_bandwidth_holds(two: Pushing) -> None:
    (two.source / "large").write_bytes(os.urandom(4 << 20))
    two.night("2026-03-01T22:00:00Z", "a")
    two.first.tables["push.backup2"]["bandwidth"] = "1MiB"
    two.first.write()
    begun = time.monotonic()
    two.push()
    assert time.monotonic() - begun > 3


HOSTILE = """
import json, os, sys
said = json.loads(sys.argv[1])
os.write(1, b"".join((line if isinstance(line, str) else json.dumps(line)).encode() + b"\\n" for line in said))
sys.stdin.buffer.read()
"""


@pytest.mark.parametrize(
    "asked",
    [
        [{"verb": "send", "host": "../../../etc", "name": "2026-03-01T220000Z", "uuid": "x"}],
        [{"verb": "send", "host": "web1", "name": "../web1", "uuid": "x"}],
        [{"verb": "nothing"}, {"verb": "_stream", "path": "/"}, "no json", "[" * 100_000, {"no": "verb"}],
        [{"verb": "common", "fetch": None, "replica": "../../x", "hosts": {"web1": "2026-03-01T220000Z"}}],
        [{"verb": "common", "fetch": None, "replica": "x", "hosts": {"web1": "2026-03-01T220000Z"}}],
        [{"verb": "common", "fetch": None, "replica": "x", "hosts": "all"}],
        [{"verb": "ended", "failed": ["x"], "error": 7}],
        [{"verb": "ended", "failed": {"web1": "\\u001b[2J" + "x" * 10**6}, "error": ""}],
        ["x" * (9 << 20)],
    ],
)
def test_a_hostile_other_side_gets_and_changes_nothing(two: Pushing, asked: list[Any]) -> None:
    two.night("2026-03-01T22:00:00Z", "a")
    file = two.first.top / "hostile.json"
    file.write_text(json.dumps(asked))
    hostile = f'{shlex.quote(sys.executable)} -c {shlex.quote(HOSTILE)} "$(cat {shlex.quote(str(file))})"'
    if len(file.read_text()) > 100_000:
        hostile = (
            f"{shlex.quote(sys.executable)} -c {shlex.quote(HOSTILE.replace('sys.argv[1]', 'open(sys.argv[1]).read()'))} {file}"
        )
    two.over(f"timeout 5 {hostile}")
    before = sorted(str(path) for path in (two.first.pool / ".btrkeep").rglob("*") if "locks" not in path.parts)
    done = two.first.backupd("replicate", "--now", NOW, check=False)
    assert done.returncode in (1, 4), done.stderr
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr
    assert len(done.stderr) < 3000
    after = sorted(str(path) for path in (two.first.pool / ".btrkeep").rglob("*") if "locks" not in path.parts)
    own = str(two.first.pool / ".btrkeep/common/backup2.json")  # its own report, under its name here
    assert [path for path in after if path not in before and path not in (own, str(Path(own).parent))] == []


def test_a_forced_command_asks_for_what_its_own_configuration_says_whatever_is_sent_along(two: Pushing, tmp_path: Path) -> None:
    """`hosts` of the second server selects, so a compromised first server cannot have hosts deleted."""
    two.night("2026-03-01T22:00:00Z", "a")
    two.more_hosts("web2")
    two.second.tables["replica.office"]["hosts"] = ["web1"]
    two.second.write()
    two.push()
    assert two.names(two.second.pool, "web2") == []
    kept = two.names(two.second.pool)
    for name in two.names(two.first.pool):
        two.first.backupd("delete", f"web1@{name}", "--now-without-grace", "--yes", check=False)
    two.push()
    assert two.names(two.second.pool) == kept


def test_two_at_once_are_one_too_many(two: Pushing, backupd_running: Callable[..., Any]) -> None:
    (two.source / "large").write_bytes(os.urandom(20 << 20))
    two.night("2026-03-01T22:00:00Z", "a")
    two.first.settings("backup", bandwidth="4MB")
    running = backupd_running("--config", two.first.config, "replicate", "--now", NOW)
    wait_for(lambda: (two.second.pool / "hosts/web1/.receiving/backup").exists())
    assert two.first.backupd("replicate", "--now", NOW, check=False).returncode == 3
    answers = subprocess.run(
        two.forced, input=b"", capture_output=True, check=False, cwd=TOP, timeout=60
    )  # another client with the same key, which disconnects
    assert answers.returncode in (1, 3, 4), answers.stderr
    assert running.wait(timeout=60) == 0
    assert len(two.names(two.second.pool)) == 1


def test_by_ssh_the_key_takes_backups_and_does_nothing_else_and_check_says_so(two: Pushing, sshd: Sshd) -> None:
    name = two.night("2026-03-01T22:00:00Z", "a")
    key = sshd.authorize(f'restrict,command="cd {shlex.quote(str(TOP))} && {shlex.join(two.forced)}"')
    two.first.settings("ssh", command="ssh", key=str(key), known_hosts=str(sshd.known_hosts))
    two.first.tables["push.backup2"] = {"to": f"ssh://{sshd.address}", "port": sshd.port}
    two.first.write()

    def checked() -> list[tuple[str, str]]:
        answer = json.loads(two.first.backupd("check", "--connect", "--json", check=False).stdout)
        return [(row["level"], row["message"]) for row in answer if row["subject"] == "push backup2"]

    (text,) = [
        text for level, text in checked() if level == "ok" and text.startswith("reached, and ready to receive backups, btrkeep ")
    ]
    assert re.search(r", [\d.]+ [MG]iB free there$", text)
    assert two.copies()["tried_at"] is None  # the request for the list of hosts does not count as a try
    assert [sent_backup["backup"] for sent_backup in two.push()["sent"]] == [name]
    assert two.differences(name) == ""
    for line in ("cat /etc/passwd", json.dumps({"verb": "send", "host": "web1"})):
        process = work(*sshd.ssh(key), sshd.address, "cat", "/etc/passwd", input=line + "\n", check=False)
        assert "root:" not in process.stdout
    assert two.names(two.second.pool) == [name]
    two.first.tables["push.backup2"]["port"] = 1
    two.first.write()
    (why,) = [text for level, text in checked() if level == "error"]
    assert "refused" in why
    assert "refused" in two.push(status=1)["error"]
    assert two.copies(first=True)["state"] == "failing"


def test_check_tells_of_a_clock_that_is_another_there(two: Pushing) -> None:
    two.over(r"""sed -u 's/"now": "20[0-9]*-/"now": "2019-/' < <("$@")""")
    answer = json.loads(two.first.backupd("check", "--connect", "--json", check=False).stdout)
    warned = [row["message"] for row in answer if row["subject"] == "push backup2" and row["level"] == "warning"]
    assert re.fullmatch(r"the other server's clock is \d.* behind this one", warned[1]), warned


READS_NOT = """
import json, os, struct, sys, time
def ask(asked):
    os.write(1, json.dumps(asked).encode() + b"\\n")
def exactly(count):
    found = b""
    while len(found) < count:
        found += os.read(0, count - len(found))
    return found
ask({"verb": "list"})
hosts = []
while True:
    kind, length = struct.unpack(">cI", exactly(5))
    content = exactly(length)
    if kind == b"e":
        break
    hosts.append(json.loads(content))
host, (name, uuid, *_) = hosts[0]["host"], hosts[0]["backups"][0]
ask({"verb": "send", "host": host, "name": name, "uuid": uuid, "stream": 1})
open(sys.argv[1], "w").close()
time.sleep(1000)
"""


def test_a_receiver_that_reads_no_more_does_not_hold_the_sender(
    two: Pushing, tmp_path: Path, backupd_running: Callable[..., Any]
) -> None:
    (two.source / "large").write_bytes(os.urandom(8 << 20))
    two.night("2026-03-01T22:00:00Z", "a")
    script, reached = tmp_path / "hostile.py", tmp_path / "reached"
    script.write_text(READS_NOT)
    two.over('exec "$@"', answers=shlex.join([sys.executable, str(script), str(reached)]))
    running = backupd_running("--config", two.first.config, "replicate", "--now", NOW)
    wait_for(reached.exists, 60)
    time.sleep(2)
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=60)
    assert running.returncode == 143
