"""Output of the commands: JSON, tables, colours, and malicious names."""

import contextlib
import fcntl
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.beds import TOP, backupd_start, work
from tests.beds.cli import BACKUPD
from tests.beds.nights import Nights

pytestmark = [pytest.mark.btrfs]

MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
NAME = re.compile(r"\d{4}-\d\d-\d\dT\d{6}Z")
ESCAPE = "\x1b"


def on_a_terminal(words: Sequence[str | Path], columns: int = 200, env: Mapping[str, str] | None = None) -> str:
    """What our command prints on a terminal that is so wide. (Colours are wanted: the tests' own NO_COLOR is not set.)"""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "LINES")}
    environment = {**kept, "PYTHONPATH": str(TOP), "TERM": "xterm-256color", **(env or {})}
    process = subprocess.Popen([*BACKUPD, *words], stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    text = b""
    with contextlib.suppress(OSError):  # EIO: the other end is closed
        while piece := os.read(ours, 65536):
            text += piece
    os.close(ours)
    process.wait(timeout=60)
    return text.decode().replace("\r\n", "\n")


def folders(site: Nights, host: str) -> list[str]:
    """The backups that are there, as the filesystem has them."""
    return sorted(name for path in (site.pool / "hosts" / host).iterdir() if NAME.fullmatch(name := path.name))


def test_status_as_json_has_the_agreed_fields_for_every_host(site: Nights) -> None:
    status = site.json("status")
    assert list(status) == [
        "hosts",
        "unconfigured",
        "running",
        "copies",
        "drill",
        "verification",
        "altered",
        "in_doubt",
        "dedupe",
        "repeated",
        "silenced",
        "failed",
        "proposals",
        "verdict",
        "pool",
        "lost",
        "clock",
        "clock_synchronised",
        "looked",
    ]
    assert status["copies"] == []
    assert status["running"] == []
    by_host = {host["host"]: host for host in status["hosts"]}
    assert {name: host["state"] for name, host in by_host.items()} == {"web1": "suspect", "web2": "ok", "new": "never"}
    for host in status["hosts"]:
        assert {"host", "state", "last_complete", "age", "next_due", "error"} <= set(host)
    web2 = by_host["web2"]
    started = datetime.strptime(folders(site, "web2")[-1], "%Y-%m-%dT%H%M%S%z")
    assert web2["last_complete"] == started.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert abs(web2["age"] - (datetime.now(UTC) - started).total_seconds()) < 20
    assert MOMENT.fullmatch(web2["next_due"])
    assert web2["error"] is None
    assert "less, the limit is 50%" in by_host["web1"]["error"]
    assert (by_host["new"]["last_complete"], by_host["new"]["age"]) == (None, None)


def test_list_as_json_has_every_backup_with_the_agreed_fields(site: Nights) -> None:
    listed = site.json("list")
    assert [(entry["host"], entry["name"]) for entry in listed] == [
        (host, name) for host in ("web1", "web2") for name in folders(site, host)
    ]
    assert [entry["state"] for entry in listed] == ["complete", "complete", "suspect", "complete"]
    for entry in listed:
        assert {"host", "name", "path", "state", "started", "finished", "files", "bytes", "new_bytes", "error"} <= set(entry)
        assert Path(entry["path"]).is_dir()
        assert Path(entry["path"]) == site.pool / "hosts" / entry["host"] / entry["name"]
        assert MOMENT.fullmatch(entry["started"])
        assert MOMENT.fullmatch(entry["finished"])
        process = work(
            "find", Path(entry["path"]) / "data" / str(site.source).strip("/") / entry["host"], "-type", "f", "-printf", "%s\n"
        )
        sizes = [int(line) for line in process.stdout.split()]
        assert entry["bytes"] == sum(sizes)
        assert entry["files"] == len(sizes)
    assert listed[1]["new_bytes"] == len("changed")
    assert site.json("list", "web2") == listed[3:]


def test_a_host_that_only_begins_like_another_is_not_listed_with_it(site: Nights) -> None:
    assert site.json("list", "new") == []
    assert site.backupd("list", "new").stdout == "no backups yet\n"


def test_log_as_json_tells_of_every_run_newest_first(site: Nights) -> None:
    runs = site.json("log")
    assert [run["host"] for run in runs][-2:] in (["web1", "web2"], ["web2", "web1"])
    assert [run["outcome"] for run in runs if run["host"] == "web1"] == ["suspect", "complete", "complete"]
    assert [run["backup"] for run in site.json("log", "web1")] == folders(site, "web1")[::-1]
    version = work("rsync", "--version").stdout.split()[2]
    for run in runs:
        assert run["exit_code"] == 0
        assert run["meaning"] == "complete"
        assert run["rsync_version"] == version
        assert MOMENT.fullmatch(run["started"])
    assert len(site.json("log", "-n", "2")) == 2


def test_a_dry_run_as_json_says_who_would_run_why_and_how(site: Nights) -> None:
    planned = {entry["host"]: entry for entry in site.json("run", "--dry-run")}
    assert {name: entry["runs"] for name, entry in planned.items()} == {"new": True, "web1": False, "web2": False}
    assert planned["new"]["reason"] == "no complete backup yet"
    assert planned["web2"]["commands"] == []
    ((program, *words),) = planned["new"]["commands"]
    assert program == "rsync"
    assert words[-1].startswith(str(site.pool / "hosts" / "new" / ".working" / "data"))
    assert not (site.pool / "hosts" / "new").exists()
    assert [entry["host"] for entry in site.json("run", "--all", "--dry-run") if entry["runs"]] == [
        "new",
        "web2",
        "web1",
    ]  # least recently tried first


def test_the_list_on_paper_has_the_newest_of_each_host_or_all_or_those_of_one(site: Nights) -> None:
    def names(*words: str) -> list[list[str]]:
        return [line.split()[:3] for line in site.backupd("list", *words).stdout.splitlines()]

    assert names()[0] == ["HOST", "NAME", "STATE"]
    newest = [folders(site, host)[-1] for host in ("web1", "web2")]
    *shown, lines = names()[1:]
    assert lines[:2] == ["Only", "the"]  # newest of each host
    assert shown == [["web1", newest[0], "suspect"], ["web2", newest[1], "complete"]]
    assert [row[1] for row in names("--all")[1:]] == [*folders(site, "web1"), *folders(site, "web2")]
    assert [row[1] for row in names("web1")[1:]] == folders(site, "web1")


def test_all_tables_are_narrow_enough_for_80_columns_or_wrap_their_last_one(site: Nights) -> None:
    for words in (["status"], ["list"], ["list", "web1"], ["check"], ["status", "web1"]):
        text = on_a_terminal(["--config", site.config, *words], columns=80, env={"NO_COLOR": "1"})
        lines = text.partition("\nWhat to do:")[0].splitlines()
        lines = [line for line in lines if "`backupd --config " not in line]  # a command that can be pasted is not broken
        assert max(map(len, lines)) <= 80, text
        assert len(lines) >= 3


@pytest.mark.parametrize("words", [["status"], ["list"], ["log"], ["check"]], ids=lambda words: words[0])
def test_colours_appear_on_a_terminal_and_nowhere_else(site: Nights, words: list[str]) -> None:
    line: list[str | Path] = ["--config", site.config, *words]
    assert f"{ESCAPE}[3" in on_a_terminal(line)
    assert ESCAPE not in on_a_terminal(line, env={"NO_COLOR": "1"})
    assert ESCAPE not in site.backupd(*words, check=False, env={"NO_COLOR": ""}).stdout


def test_an_error_is_red_on_a_terminal_and_plain_elsewhere(site: Nights) -> None:
    assert f"{ESCAPE}[31m" in on_a_terminal(["--config", site.config, "status", "nobody"])
    assert ESCAPE not in on_a_terminal(["--config", site.config, "status", "nobody"], env={"NO_COLOR": "1"})


def test_a_run_on_a_terminal_without_colours_has_none(nights: Nights) -> None:
    nights.host("here", nights.source, address=None)
    (nights.source / "file").write_text("text")
    run: list[str | Path] = ["--config", nights.config, "run", "--all"]
    colour = re.compile(ESCAPE + r"\[([0-9;]*;)?[34][0-7]m")
    assert not colour.search(on_a_terminal(run, env={"NO_COLOR": "1"}))
    assert colour.search(on_a_terminal(run))


@pytest.mark.parametrize("words", [["list", "--json"], ["list", "--all"], ["status"], ["log"], ["--help"]], ids=" ".join)
def test_a_reader_that_has_had_enough_ends_a_command_quietly(site: Nights, words: list[str]) -> None:
    process = backupd_start("--config", site.config, *words)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()  # before anything is written
    assert process.wait(timeout=60) == 0
    assert process.stderr.read() == ""
    process.stderr.close()


@pytest.mark.parametrize("words", [["list", "--json"], ["list", "--all"], ["status"], ["log"], ["--help"]], ids=" ".join)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_cannot_be_written_is_told_in_one_line(site: Nights, words: list[str], unbuffered: str) -> None:
    """`backupd list >FILE` on a full disk: a later reader of FILE must be able to see that it is incomplete."""
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        process = backupd_start("--config", site.config, *words, stdout=full, env={"PYTHONUNBUFFERED": unbuffered})
        _, output = process.communicate(timeout=60)
    assert process.returncode == 1
    assert output.splitlines() == [
        "error: standard output: No space left on device",
        "hint: the output is incomplete: check the file or program that receives it",
    ]


def test_list_into_head_shows_the_first_line_and_nothing_else(site: Nights) -> None:
    line = f"{shlex.join(BACKUPD)} --config {site.config} list --all | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = work("bash", "-c", line, env={"PYTHONPATH": str(TOP)})
    assert done.stdout.split()[:2] == ["HOST", "NAME"]
    assert done.stderr == ""


EVIL = b"evil\x1b[2J\x1b]0;owned\x07\n\xff\xc2\x9b31m"


def test_names_with_control_characters_reach_no_terminal(nights: Nights) -> None:
    folder = nights.source / "web"
    folder.mkdir()
    for number in range(100):
        (folder / f"file{number}").write_text("x")
    (folder / os.fsdecode(EVIL)).write_text("evil")
    nights.host("web", folder)
    # Said by the other side, raw, as a hostile one may.
    ssh = nights.top / "hostile-ssh"
    raw = r'printf "file has vanished: \"/evil\033[2J\377\"\n" >&2'
    ssh.write_text(f'#!/bin/sh\n{nights.tables["ssh"]["command"]} "$@"\nstatus=$?\n{raw}\nexit $status\n')
    ssh.chmod(0o755)
    nights.settings("ssh", command=str(ssh))
    process = nights.backupd("-vv", "run", "web")
    for words in (["list"], ["status"], ["log"], ["status", "web"], ["list", "web"]):
        done = nights.backupd(*words)
        process.stdout += done.stdout
        process.stderr += done.stderr
        assert not re.search(r"[^\n\x20-\x7e\u00a0-\uffff]", done.stdout), done.stdout
    assert not re.search(r"[^\n\x20-\x7e\u00a0-\uffff]", process.stdout + process.stderr), process.stdout + process.stderr
    assert r"\x1b[2J\xff" in process.stdout
    assert ESCAPE not in nights.backupd("list", "--json").stdout
    assert (nights.data("web", folder) / os.fsdecode(EVIL)).read_text() == "evil"


def test_v_says_more_and_vv_every_program_that_is_started(nights: Nights) -> None:
    nights.host("here", nights.source, address=None)
    (nights.source / "file").write_text("text")
    quiet = nights.backupd("run", "here")
    assert quiet.stderr == ""
    loud = nights.backupd("-vv", "run", "here")
    assert re.search(r"^DEBUG: starting rsync --archive .*/\./", loud.stderr, re.MULTILINE)
    assert "DEBUG" not in nights.backupd("-v", "run", "here").stderr


def test_a_piped_run_prints_one_line_per_event(nights: Nights) -> None:
    (nights.source / "file").write_text("text")
    nights.tables["retention"] = {"daily": 14}  # otherwise a note is printed that everything is kept
    nights.host("here", nights.source, address=None)
    nights.host("there", nights.source)
    lines = nights.backupd("run").stdout.splitlines()
    assert lines[0] == "backing up 2 hosts"
    assert sorted(lines[1:3]) == ["here: started", "there: started"] or "here: started" in lines
    assert {line[:5] for line in lines if line.startswith("[")} == {"[1/2]", "[2/2]"}
    assert lines[-1].startswith("2 complete; ")
    assert nights.backupd("run").stdout == "nothing was due\n"


def test_a_run_without_a_configured_host_says_so(nights: Nights) -> None:
    done = nights.backupd("run")
    assert "note: no host is configured: `backupd host add NAME` adds one" in done.stdout + done.stderr
    nights.host("here", nights.source, address=None)
    again = nights.backupd("run")
    assert "no host is configured" not in again.stdout + again.stderr


def test_a_run_outside_of_all_windows_does_not_say_that_nothing_was_due(nights: Nights) -> None:
    nights.tables["retention"] = {"daily": 14}
    later = datetime.now(UTC) + timedelta(hours=3)
    nights.host("here", nights.source, address=None, window=f"{later:%H:%M}-{later + timedelta(hours=1):%H:%M}")
    note, last = nights.backupd("run").stdout.splitlines()
    assert re.fullmatch(r"note: 1 host is due, but outside its window, which opens \d{4}-.*Z", note), note
    assert last == "no host was backed up"
    assert nights.backupd("run", "--json").stdout == "[]\n"


def test_rows_of_running_transfers_are_in_status(nights: Nights, backupd_running: Any, badssh: Any) -> None:
    (nights.source / "big").write_bytes(os.urandom(1 << 20))
    nights.host("slow", nights.source)
    nights.settings("ssh", command=str(badssh("hangs", 300_000)))
    process = backupd_running("--config", nights.config, "run", "slow", "--json")
    running: list[dict[str, Any]] = []
    while not running and process.poll() is None:
        running = nights.json("status")["running"]
    (entry,) = running
    assert (entry["host"], entry["path"], entry["pid"]) == ("slow", str(nights.source), process.pid)
    assert {"files", "bytes", "rate", "share", "updated"} <= set(entry)
    assert "running: slow" in nights.backupd("status").stdout
    (working,) = nights.json("list", "slow")
    assert (working["name"], working["state"], working["finished"]) == (None, "running", None)
    process.terminate()
    out, _ = process.communicate(timeout=60)
    assert json.loads(out)[0]["outcome"] == "partial"
    (working,) = nights.json("list", "slow")
    assert (working["name"], working["state"]) == (None, "partial")
    assert Path(working["path"]).is_dir()
    assert nights.json("status")["running"] == []
