"""Hosts that call: the commands that a host runs for a server that may be hostile or hang, and the server's log of a run."""

import json
import os
import syslog
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from backupd.run.cli import answer, called
from backupd.run.run_context import HostResult
from backupd.run.run_hosts import RunEnd
from backupd.run.slots import HeldSlots, Slots
from backupd.source import btrkeep_source as program
from btrkeep.errors import Exit, OperatorError, PoolUnusable
from btrkeep.pool.locks import take_lock
from btrkeep.process.progress import Notice
from tests.beds.watch import wait_for

ANSWER = {"format": 1, "connect": False, "again": 600, "retry": 900, "text": "complete"}


class Caller:
    """A host whose ssh prints the answer in the file with the server's name, and whose sshd records its arguments."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.script("ssh", 'while [ "$1" != -- ]; do shift; done; cat "$2"; exec cat >/dev/null')
        self.script("sshd", 'echo "$*" >sshd-words')
        monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        monkeypatch.setattr(program.Sessions, "prepare", lambda _: None)
        monkeypatch.setattr(os, "makedirs", lambda *_, **__: None)
        monkeypatch.chdir(folder)
        self.host = program.Host("office", str(folder / "none"), str(folder))

    def script(self, name: str, text: str) -> None:
        (self.folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.folder / name).chmod(0o755)

    def answers(self, server: str, text: str) -> None:
        (self.folder / server).write_text(text + "\n")

    def call(self, server: str) -> int:
        return program.call(self.host, server, scheduled=False)


@pytest.fixture
def caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Caller:
    return Caller(tmp_path, monkeypatch)


def test_a_server_that_does_not_answer_does_not_keep_another_one_waiting(caller: Caller) -> None:
    os.mkfifo(caller.folder / "silent")
    caller.answers("good", json.dumps(ANSWER))
    failed: list[BaseException] = []

    def call_silent() -> None:
        try:
            caller.call("silent")
        except program.RefusedRequest as error:
            failed.append(error)

    waiting = threading.Thread(target=call_silent)
    waiting.start()
    wait_for(lambda: (caller.folder / "calling-silent.lock").exists())
    try:
        assert caller.call("good") == 0
        with pytest.raises(program.RefusedRequest, match="busy"):
            caller.call("silent")
    finally:
        (caller.folder / "silent").write_text("no answer\n")
        waiting.join(60)
    assert "not that of a backup server" in str(failed[0])


def test_the_sshd_for_a_server_accepts_only_keys_unless_the_hosts_configuration_says_otherwise(caller: Caller) -> None:
    caller.answers("good", json.dumps({**ANSWER, "connect": True}))
    caller.host.config.call_sshd = ["-o", "KbdInteractiveAuthentication=yes"]
    assert caller.call("good") == 0
    words = (caller.folder / "sshd-words").read_text().split()
    assert words[:3] == ["-i", "-o", "KbdInteractiveAuthentication=yes"]  # sshd uses the first value of an option
    assert {"PasswordAuthentication=no", "KbdInteractiveAuthentication=no"} <= set(words[3:])


@pytest.mark.parametrize("text", ["[" * 4000, "{}", "null", '{"again": NaN}', json.dumps({**ANSWER, "again": "x"}), "x" * 5000])
def test_a_wrong_answer_is_refused(caller: Caller, text: str) -> None:
    caller.answers("bad", text)
    with pytest.raises(program.RefusedRequest, match="answer"):
        caller.call("bad")


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    lines: list[tuple[int, str]] = []
    monkeypatch.setattr(syslog, "syslog", lambda level, text: lines.append((level, text)))
    return lines


def test_the_servers_log_has_all_that_a_run_reports(logged: list[tuple[int, str]]) -> None:
    answer._log_notice(Notice("catalogue reconciled"))
    good = HostResult("laptop", "complete")
    assert answer._log_end("laptop", RunEnd([good], 0)) == Exit.OK
    assert answer._log_end("laptop", RunEnd([good], 0, problem=OperatorError("the catalogue is full"))) == Exit.ATTENTION
    assert answer._log_end("laptop", RunEnd([good], 0, unusable=PoolUnusable("the pool is gone"))) == Exit.UNUSABLE
    assert logged[0] == (syslog.LOG_NOTICE, "catalogue reconciled")
    errors = [text for level, text in logged if level == syslog.LOG_ERR]
    assert errors == ["laptop: the catalogue is full; the next run records the backup", "laptop: the pool is gone"]


def test_what_a_host_says_is_neither_a_line_of_the_log_nor_an_error_of_logging(logged: list[tuple[int, str]]) -> None:
    answer._log(syslog.LOG_ERR, "one\n\x1b[2J\0\udcff")
    assert [text for _, text in logged] == ["one", "\\x1b[2J\\x00\\xff"]


def test_only_so_many_calls_are_answered_at_the_same_time(tmp_path: Path) -> None:
    turns = [called.take_turn(tmp_path / "calls", 3) for _ in range(5)]
    assert [turn is None for turn in turns] == [False, False, False, True, True]
    assert turns[1] is not None
    os.close(turns[1])
    assert called.take_turn(tmp_path / "calls", 3) is not None


def test_the_locale_of_a_host_does_not_reach_the_server() -> None:
    """sshd accepts LANG and LC_* from the host on Debian; Python reads paths by them."""
    given = {"PATH": "/usr/bin", "LANG": "C", "LC_CTYPE": "ja_JP.SJIS", "LANGUAGE": "ja", "LC_ALL": "ja_JP.SJIS"}
    own = called.own_environment(given)
    assert own == {"PATH": "/usr/bin", "LC_ALL": "C.UTF-8"}
    assert called.own_environment(own) is None
    assert called.own_environment({}) == {"LC_ALL": "C.UTF-8"}


def test_a_host_that_calls_without_a_pause_leaves_turns_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered, refused = list[str](), list[str]()
    monkeypatch.setattr(called, "_LOCKS", tmp_path / "calls")
    monkeypatch.setattr(called, "own_environment", lambda _: None)
    monkeypatch.setattr(called, "reply", lambda *_, text: refused.append(text))
    monkeypatch.setattr(called, "import_command", lambda _: lambda name, **_: answered.append(name))
    for name in [*["evil"] * 6, "laptop", "desk"]:
        CliRunner().invoke(called.command, [name], catch_exceptions=False, standalone_mode=False)
    assert answered == ["evil", "laptop", "desk"]
    assert set(refused) == {"another call of this host is being answered"}


def test_a_call_takes_no_slot_for_which_a_night_waits(tmp_path: Path) -> None:
    slots, since = (Slots("slot", 1, ""),), "2026-11-30T20:00:00Z"
    with HeldSlots(tmp_path, "backup of evil", since) as call:
        with take_lock(tmp_path / "slot-turn", "a night that waits", since):
            assert call.take_after_others(slots) is slots[0]
            with HeldSlots(tmp_path, "backup of web1", since) as night:
                assert night.take(slots) is None
        assert call.take_after_others(slots) is None
