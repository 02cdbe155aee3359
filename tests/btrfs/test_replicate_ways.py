"""The way back: a first server that was away fetches the backups that the second has made since, and takes over again."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from btrkeep import __version__
from tests.beds import work
from tests.beds.cli import BACKUPD
from tests.beds.two_pools import TwoPools, shown

pytestmark = pytest.mark.btrfs
SMALL = 300_000  # bytes, where the whole host has three million


@pytest.fixture
def taken_over(make_btrfs: Callable[..., Path]) -> TwoPools:
    """Two pools; the second has fetched a backup and was promoted. Each is configured to fetch from the other."""
    two = TwoPools(make_btrfs(), make_btrfs())
    (two.source / "large").write_bytes(os.urandom(3_000_000))
    two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    two.second.backupd("promote", "web1", "--yes")
    two.second.host("web1", two.source)
    two.first.tables["replica.back"] = {"from": str(two.second.pool)}
    two.first.write()
    return two


def back(two: TwoPools, status: int = 0) -> str:
    done = two.first.backupd("replicate", "--json", "--now", "2026-03-20T12:00:00Z", check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def test_there_and_back_nothing_is_transferred_twice_and_nothing_is_lost(taken_over: TwoPools) -> None:
    two, (first,) = taken_over, taken_over.names(taken_over.first.pool)
    (two.source / "changed").write_text("made there" * 500)
    two.second.backupd("run", "web1", "--now", "2026-03-02T22:00:00Z")
    _, second = two.names(two.second.pool)
    assert two.first.backupd("demote", "back", "web1", "--dry-run").stdout.startswith("1 host would be demoted: web1\n")
    assert not (two.first.pool / ".btrkeep/common/back.json").exists()
    two.first.backupd("demote", "back", "web1", "--yes")
    for pool in (two.first.pool, two.second.pool):
        assert json.loads((pool / ".btrkeep/common/back.json").read_text())["hosts"] == {"web1": first}
    assert two.first.backupd("run", "web1", "--now", "2026-03-03T21:00:00Z", check=False).returncode == 1
    answer = json.loads(back(two))[0]["fetched"]
    assert [(row["backup"], row["parent"]) for row in answer] == [(second, first)]
    assert answer[0]["bytes"] < SMALL
    assert two.differences(second) == ""
    assert shown(two.first.pool / "hosts/web1" / second)["Received UUID"] == shown(two.second.pool / "hosts/web1" / second)["UUID"]
    two.first.backupd("promote", "web1", "--yes")
    two.second.backupd("demote", "office", "web1", "--yes")
    third = two.night("2026-03-04T22:00:00Z", "d")
    answer = two.fetch()[0]["fetched"]
    assert [(row["backup"], row["parent"]) for row in answer] == [(third, second)]
    assert answer[0]["bytes"] < SMALL
    assert two.differences(third) == ""
    assert two.names(two.first.pool) == two.names(two.second.pool) == [first, second, third]
    assert json.loads(back(two))[0]["planned"] == 0  # a host that is fetched from here is not reported as a problem


@pytest.mark.parametrize(
    ("answers", "why", "hint"),
    [
        (
            "echo 'root@first: Permission denied (publickey).' >&2; exit 255",
            "office: root@first: Permission denied (publickey)",
            "public key",
        ),
        ("echo 'Host key verification failed.' >&2; exit 255", "office: Host key verification failed;", "known_hosts"),
        (
            "echo 'bash: line 1: /usr/local/sbin/backupd: No such file or directory' >&2; exit 127",
            "No such file",
            "install btrkeep on the other server",
        ),
        ("""echo '{"verb": "hello"}'; cat >/dev/null""", "office: the key starts `receive-only` on the other server", "send-only"),
        (
            """echo 'error: web: none of the protocol' >&2; echo '{"tells_waits": true, "verb": "hello"}'; cat >/dev/null""",
            "office: the key starts `receive-only` on the other server",
            "send-only",
        ),
        ("echo 'error: no pool' >&2; exit 4", "office: no pool;", ""),
    ],
)
def test_a_connection_that_does_not_come_about_says_what_to_do(two: TwoPools, answers: str, why: str, hint: str) -> None:
    two.night("2026-03-01T22:00:00Z", "a")
    two.fetch()
    two.second.backupd("promote", "web1", "--yes")
    two.over_ssh(answers)
    for words in (("replicate", "office"), ("demote", "office", "web1", "--yes")):
        done = two.second.backupd(*words, check=False)
        output = " ".join(done.stderr.split())
        assert (done.returncode != 0, why in output, ".;" in output) == (True, True, False), output
        assert (hint in output.partition("hint: ")[2], "hint: " in output) == (True, bool(hint)), output
    answer = json.loads(two.second.backupd("check", "--connect", "--json", check=False).stdout)
    assert [hint in row["hint"] for row in answer if row["subject"] == "replica office" and row["level"] == "error"] == [True]


@pytest.mark.parametrize("version", [-5, 0, 10**9])
def test_a_version_of_the_stream_that_there_is_not_gets_one_that_there_is(two: TwoPools, version: int) -> None:
    name = two.night("2026-03-01T22:00:00Z", "a")
    uuid = shown(two.first.pool / "hosts/web1" / name)["UUID"]
    asked = {"verb": "send", "host": "web1", "name": name, "uuid": uuid, "stream": version}
    words = [*BACKUPD, "--config", str(two.first.config), "send-only"]
    done = subprocess.run(words, input=f"{json.dumps(asked)}\n".encode(), capture_output=True, check=False)
    assert (b"btrfs-stream\0" in done.stdout, done.stderr) == (True, b""), done


def test_a_line_that_ends_in_the_middle_of_a_stream_says_what_ssh_says(two: TwoPools) -> None:
    (two.source / "large").write_bytes(os.urandom(3_000_000))
    two.night("2026-03-01T22:00:00Z", "a")
    cut = f'"$@" | {shlex.quote(sys.executable)} -c "$RELAY" cut 400000'
    two.over_ssh(f'{cut}; echo "Timeout, server first not responding." >&2; exit 255')
    done = two.second.backupd("replicate", "office", "--now", "2026-03-20T12:00:00Z", check=False)
    assert (done.returncode, "error: web1: Timeout, server first not responding" in done.stderr) == (1, True), done.stderr
    assert two.names(two.second.pool) == []


def test_promote_and_demote_say_what_comes_next(taken_over: TwoPools, make_btrfs: Callable[..., Path]) -> None:
    two = taken_over
    two.second.backupd("demote", "office", "web1", "--yes")
    output = two.second.backupd("promote", "web1", "--yes").stdout
    assert "[replica.office] no longer fetches anything" in output
    new = two.onward(make_btrfs()).second  # an empty pool that fetches from the second one
    new.tables["replica.office"] = {"from": str(two.second.pool)}
    new.write()
    refused = new.backupd("demote", "office", "*", check=False)
    assert (refused.returncode, "`backupd replicate office` fetches its backups" in " ".join(refused.stderr.split())) == (2, True)
    two.second.tables["replica.office"]["from"] = "push"
    two.second.write()
    refused = two.second.backupd("demote", "office", "*", check=False)
    assert (refused.returncode, "cannot list its backups" in refused.stderr) == (2, True)


def test_two_that_both_back_up_are_told_so_and_what_only_one_has_is_named_and_stays(taken_over: TwoPools) -> None:
    two = taken_over
    two.second.backupd("run", "web1", "--now", "2026-03-02T22:00:00Z")
    both = two.names(two.second.pool)
    alone = two.night("2026-03-03T22:00:00Z", "b")
    done = two.second.backupd("replicate", "--now", "2026-03-20T12:00:00Z", check=False)
    assert done.returncode == 1
    assert "both pools back it up" in done.stderr
    assert "both pools back it up" in two.first.backupd("replicate", "--dry-run", "--now", "2026-03-20T12:00:00Z").stdout
    assert alone in two.first.backupd("demote", "back", "web1", "--yes").stdout
    back(two)
    assert two.names(two.first.pool) == [*both, alone]
    refused = two.second.backupd("demote", "office", "web1", "--yes", check=False)
    assert refused.returncode != 0
    assert "each of the two pools" in refused.stderr
    assert two.second.backupd("run", "web1", "--now", "2026-03-05T22:00:00Z").returncode == 0


def test_how_many_backups_another_retention_lets_expire_is_said_first(taken_over: TwoPools) -> None:
    two = taken_over
    for day in (2, 3):
        two.night(f"2026-03-0{day}T22:00:00Z", "b")
    two.first.tables["replica.back.retention"] = {"daily": 1, "min_keep": 1}
    two.first.write()
    now = ("--now", "2026-03-04T12:00:00Z")
    process = two.first.backupd("demote", "back", "web1", *now, check=False)  # no terminal to confirm it; the common one stays
    assert process.returncode == 2
    assert "the retention of replica back keeps 2 of 3 backups here" in process.stdout
    two.first.tables["replica.back.retention"]["daily"] = 7
    two.first.write()
    assert "keeps" not in two.first.backupd("demote", "back", "web1", *now, check=False).stdout


def test_a_host_that_only_has_the_same_name_is_not_demoted(make_btrfs: Callable[..., Path]) -> None:
    two = TwoPools(make_btrfs(), make_btrfs())
    two.night("2026-03-01T22:00:00Z", "a")
    two.second.host("web1", two.source)
    two.second.backupd("run", "web1", "--now", "2026-03-02T22:00:00Z")
    refused = two.second.backupd("demote", "office", "web1", "--yes", check=False)
    assert refused.returncode != 0
    assert "no backup of it in common" in refused.stderr
    notes = two.second.pool / "hosts/web1/notes.json"
    assert not notes.exists() or "replica" not in json.loads(notes.read_text())


@pytest.mark.parametrize(("output", "version"), [("v5.16.2", 1), ("v6.2", 2), ("v6.17.1", 2), ("v12.0", 2), ("nothing", 1)])
def test_what_comes_is_a_stream_that_the_program_here_knows(make_btrfs: Callable[..., Path], output: str, version: int) -> None:
    """A script that prints this version precedes the real btrfs in PATH."""
    two = TwoPools(make_btrfs(), make_btrfs())
    name = two.night("2026-03-01T22:00:00Z", "a")
    folder, streams = two.second.top / "bin", two.second.top / "streams"
    folder.mkdir()
    real = work("which", "btrfs").stdout.strip()
    (folder / "btrfs").write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "btrfs-progs {output}" && exit\nexec {real} "$@"\n')
    (folder / "btrfs").chmod(0o755)
    two.over_ssh(f'"$@" | tee -a {streams}')
    two.fetch(env={"PATH": f"{folder}:{os.environ['PATH']}"})
    assert two.differences(name) == ""
    sent = streams.read_bytes()
    begin = sent.index(b"btrfs-stream\0") + len(b"btrfs-stream\0")
    assert int.from_bytes(sent[begin : begin + 4], "little") == version


def test_check_and_doctor_tell_of_another_clock_version_and_of_too_little_room_for_the_first_fetch(
    make_btrfs: Callable[..., Path],
) -> None:
    two = TwoPools(make_btrfs(), make_btrfs())
    two.night("2026-03-01T22:00:00Z", "a")
    ago = r"""re.sub(rb'"version": "0', b'"version": "7', re.sub(rb'"now": "20\d\d', b'"now": "2019', data))"""
    relay = f"import os, re\nwhile data := os.read(0, 65536):\n    os.write(1, {ago})"
    two.over_ssh(f'python3 -c {shlex.quote(relay)} < <("$@")')
    two.second.settings("pool", min_free="99%")
    answer = json.loads(two.second.backupd("check", "--connect", "--json", check=False).stdout)
    fields = {row["message"]: row["level"] for row in answer}
    (clock,) = [text for text in fields if text.startswith("the other server's clock is")]
    (room,) = [text for text in fields if "the other pool uses" in text]
    version = f"the other server runs btrkeep 7{__version__[1:]}, and this server {__version__}"
    assert "behind this one" in clock
    assert room.endswith(" but only 0 B above min_free are free here")
    assert (fields[clock], fields[room], fields[version]) == ("warning", "warning", "note")
    doctor = json.loads(two.second.backupd("doctor", "--connect", "--json", check=False).stdout)
    assert {clock, room, version} <= {copy["message"] for copy in doctor["copies"]}
