"""A process that not even SIGKILL ends affects only its own host in this night, and in the next one."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from btrkeep.process import programs
from tests.beds.cli import TOP
from tests.beds.hangfs import hanging
from tests.beds.nights import Nights
from tests.beds.receivers import web
from tests.beds.terminal import at_a_terminal
from tests.beds.watch import disagreements, is_locked, processes, rows, wait_for
from tests.beds.work import work

SHIFTED = TOP / "tests" / "beds" / "shifted.py"
IMPATIENT = TOP / "tests" / "beds" / "impatient.py"
SENDING = (("notify",), ("notify",), ("notify", "--failed", "btrkeep-backup@main.service"), ("metrics",))
SHOWING = (("status",), ("check",), ("doctor",))
WORKING = (("run", "--scheduled"), ("expire",))
SOON = 25.0
QUIET = 1.0
"""Seconds of `--version` on a quiet machine: more than measured, so that no fault of the machine counts as one of the command."""


def started(nights: Nights, *words: str) -> "subprocess.Popen[str]":
    """`backupd WORDS`, which gives up what cannot be ended after a second and not forty."""
    return subprocess.Popen(
        [sys.executable, "-P", IMPATIENT, "--config", nights.config, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TOP), "NO_COLOR": "1"},
    )


def impatient(nights: Nights, *words: str) -> tuple[int, str, str]:
    """Runs it to its end: exit status and both texts."""
    with started(nights, *words) as process:
        status, stdout, stderr = ended_soon(process)
    assert "Traceback" not in stderr, stderr
    return status, stdout, stderr


def ended_soon(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Waits for it: exit status and both texts. Without the shorter limits of impatient.py it would end after forty seconds.

    Where it has not ended after `SOON`, as on a busy machine, `--version` is measured beside it: it may take as much longer as
    that takes longer than on a quiet machine.
    """
    begun = time.monotonic()
    try:
        stdout, stderr = process.communicate(timeout=SOON)
    except subprocess.TimeoutExpired:
        limit = SOON * max(1, seconds_of_a_command() / QUIET)
        try:
            stdout, stderr = process.communicate(timeout=max(0.1, begun + limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            pytest.fail(f"no end after {limit:.0f} s: {process.args!r}")
    return process.returncode, stdout, stderr


def seconds_of_a_command() -> float:
    begun = time.monotonic()
    work(sys.executable, "-P", IMPATIENT, "--version", env={**os.environ, "PYTHONPATH": str(TOP)})
    return time.monotonic() - begun


def state_of(pid: int) -> str:
    """Returns the state letter that ps shows; "" if there is no process with that number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def stuck(mount: Path) -> list[int]:
    return [pid for pid, words in processes(mount).items() if Path(words[0]).name in ("rsync", "ls") and state_of(pid) == "D"]


@pytest.fixture
def mount(nights: Nights) -> Iterator[Path]:
    """A source that never answers, of the host `stuck`; `well` is a host like others."""
    mount, tree = nights.top / "hangs", nights.source / "srv"
    tree.mkdir()
    (tree / "file").write_bytes(os.urandom(5000))
    nights.host("well", tree)
    nights.host("stuck", mount, address=None, deadline="1s")
    with hanging(mount):
        yield mount
    wait_for(lambda: not stuck(mount))


def test_a_stuck_process_costs_only_its_host_the_night_and_the_night_ends(nights: Nights, mount: Path) -> None:
    status, stdout, stderr = impatient(nights, "run", "--all", "--json")
    answer = {result["host"]: result for result in json.loads(stdout)}
    assert status == 1, stderr
    assert answer["well"]["outcome"] == "complete"
    assert answer["stuck"]["outcome"] == "failed"
    pids = stuck(mount)
    assert pids
    assert any(f"process {pid} (rsync) cannot be ended" in answer["stuck"]["error"] for pid in pids)
    assert "the deadline has passed" in answer["stuck"]["error"]
    assert is_locked(nights.pool / ".btrkeep" / "locks" / "host-stuck")
    assert not is_locked(nights.pool / ".btrkeep" / "locks" / "host-well")
    assert rows(nights, "select outcome from run where host = 'stuck'") == [("failed",)]


def test_the_next_night_finds_the_lock_and_who_has_it_and_backs_up_all_others(nights: Nights, mount: Path) -> None:
    impatient(nights, "run", "stuck")
    working = nights.backup("stuck", ".working")
    inode = working.stat().st_ino
    written = (working / "backup.json").read_bytes()
    status, stdout, stderr = impatient(nights, "run", "--all", "--json")
    answer = {result["host"]: result for result in json.loads(stdout)}
    assert status == 1, stderr
    assert answer["well"]["outcome"] == "complete"
    assert answer["stuck"]["outcome"] == "locked"
    assert f"process {stuck(mount)[0]} (rsync), left from the backup of stuck" in answer["stuck"]["error"]
    assert "state D" in answer["stuck"]["error"]
    assert (working.stat().st_ino, (working / "backup.json").read_bytes()) == (inode, written)


def test_a_stuck_process_with_an_open_file_of_the_dead_mount_stops_no_reader_of_the_lock(nights: Nights) -> None:
    mount, tree = nights.top / "hangs", nights.source / "srv"
    tree.mkdir()
    (tree / "file").write_bytes(os.urandom(5000))
    nights.host("well", tree)
    nights.host("stuck", mount, address=None, deadline="2s")
    with hanging(mount, once_open=True):
        impatient(nights, "run", "stuck")
        pid = stuck(mount)[0]
        assert str(mount / "file") in [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
        status, stdout, _ = impatient(nights, "run", "--all", "--json")
        answer = {result["host"]: result for result in json.loads(stdout)}
        assert (status, answer["well"]["outcome"], answer["stuck"]["outcome"]) == (1, "complete", "locked")
        assert f"process {pid} (rsync)" in answer["stuck"]["error"]
        assert impatient(nights, "expire")[0] in (0, 1)
    wait_for(lambda: not stuck(mount))


def test_when_the_mount_answers_again_the_lock_is_free_and_the_host_is_backed_up(nights: Nights) -> None:
    mount = nights.top / "hangs"
    nights.host("stuck", mount, address=None, deadline="1s")
    with hanging(mount):
        impatient(nights, "run", "stuck")
        assert is_locked(nights.pool / ".btrkeep" / "locks" / "host-stuck")
    (mount / "file").write_text("there")
    wait_for(lambda: not is_locked(nights.pool / ".btrkeep" / "locks" / "host-stuck"))
    nights.host("stuck", mount, address=None)
    nights.run("stuck")
    assert nights.differences("stuck", mount) == []


@pytest.mark.parametrize("which", ["before", "after"])
def test_a_stuck_hook_costs_only_its_host_the_night(nights: Nights, mount: Path, which: str) -> None:
    nights.host("stuck", nights.source / "srv", deadline="1s", **{which: ["/bin/ls", str(mount)]})
    status, stdout, stderr = impatient(nights, "run", "--all", "--json")
    answer = {result["host"]: result for result in json.loads(stdout)}
    assert status == 1, stderr
    assert answer["well"]["outcome"] == "complete"
    assert answer["stuck"]["outcome"] == "failed"
    assert f"{which}: the deadline has passed; process {stuck(mount)[0]} (ls) cannot be ended" in answer["stuck"]["error"]


def test_a_signal_ends_a_night_with_a_stuck_process(nights: Nights, mount: Path) -> None:
    nights.host("stuck", mount, address=None)
    process = started(nights, "run", "stuck")
    wait_for(lambda: processes(mount, "rsync"))
    wait_for(lambda: [pid for pid, words in processes(mount).items() if words[0] == "rsync"])
    process.send_signal(signal.SIGTERM)
    assert ended_soon(process)[0] == 143


def test_a_program_that_looks_at_such_a_mount_is_given_up_too(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "UNENDING", 0.5)
    with pytest.raises(programs.ProgramFailed, match="did not end within"):
        programs.run(("ls", str(mount)), timeout=0.5)
    assert stuck(mount)


@pytest.mark.parametrize("words", [("status",), ("check",), ("notify", "--dry-run")])
def test_a_pool_that_does_not_answer_is_reported_and_no_command_waits_for_it(nights: Nights, words: tuple[str, ...]) -> None:
    with hanging(nights.pool, dead=True):
        status, stdout, stderr = impatient(nights, *words)
        assert f"{nights.pool} does not answer" in stdout + stderr
        assert status == (0 if words[0] == "notify" else 4)
    wait_for(lambda: not processes("head", nights.pool))


def test_a_night_whose_catalogue_does_not_answer_backs_up_all_hosts(nights: Nights) -> None:
    nights.host("web", nights.source)
    (nights.source / "file").write_text("it")
    with hanging(nights.state, dead=True):
        status, stdout, stderr = impatient(nights, "run", "--all", "--json")
        assert (status, [result["outcome"] for result in json.loads(stdout)]) == (1, ["complete"])
        assert f"{nights.state / 'catalogue.sqlite'} does not answer" in stderr
        assert nights.differences("web", nights.source) == []
        assert "does not answer" in impatient(nights, "status")[2]
    nights.state.rmdir()  # the mount was over nothing
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert {row for (row,) in rows(nights, "select name from backup")} == set(nights.names("web"))


@pytest.mark.parametrize("is_pool_away", [False, True])
def test_a_state_folder_that_does_not_answer_stops_no_command_for_ever_and_is_reported(nights: Nights, is_pool_away: bool) -> None:
    """Each of them ends, and says why, also those that report failures: with the pool, and without."""
    (nights.source / "file").write_text("it")
    nights.host("web", nights.source)
    with web() as server:
        nights.tables["notify"] = {"urls": [f"json://127.0.0.1:{server.port}/"], "digest": "none"}
        nights.write()
        nights.run("web")
        nights.state.rename(nights.state.with_name("away"))
        if is_pool_away:
            nights.pool.rename(nights.top / "elsewhere")
            nights.pool.mkdir()
        with hanging(nights.state, dead=True):
            hung = f"{nights.state / 'catalogue.sqlite'} does not answer"
            for words in SENDING if is_pool_away else (*SENDING, *SHOWING, *WORKING):
                status, stdout, stderr = impatient(nights, *words)
                text = " ".join((stdout + stderr).split())
                assert hung in text or (words == ("doctor",) and "check` shows why" in text), (words, status, text)
            if not is_pool_away:  # the catalogue is not needed for it
                restored = impatient(nights, "restore", "web", str(nights.source / "file"), "--to", f"{nights.top}/to", "--anyway")
                assert restored[0] == 0, restored
                assert (nights.top / "to" / "file").read_text() == "it"
            sent = [json.loads(body)["message"] for _, _, body in server.got]
            assert len(sent) == 2, sent
            assert hung in sent[0]
            assert "btrkeep-backup@main.service" in sent[1]
        nights.state.rmdir()
        nights.state.with_name("away").rename(nights.state)
        if is_pool_away:
            nights.pool.rmdir()
            (nights.top / "elsewhere").rename(nights.pool)
        nights.backupd("notify")
        assert "success" in [json.loads(body)["type"] for _, _, body in server.got]


def test_three_nights_without_an_answer_of_the_state_folder(nights: Nights) -> None:
    """Each makes its backup. The first is two messages, of the folder and of the unit; then each day's digest has it. The backups
    are in the catalogue with the first run after its folder answers, and the end is a message.
    """
    nights.host("web", nights.source, every="20h")

    def at(day: int, *words: str) -> "subprocess.CompletedProcess[str]":
        command: tuple[str | Path, ...] = (
            sys.executable,
            "-P",
            SHIFTED,
            str(day * 86400.0),
            "impatient",
            "--config",
            nights.config,
        )
        done = work(*command, *words, env={**os.environ, "PYTHONPATH": str(TOP), "NO_COLOR": "1"}, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    with web() as server:
        nights.tables["notify"] = {"urls": [f"json://127.0.0.1:{server.port}/"], "digest": "00:00"}
        nights.write()
        assert at(-4, "run", "--scheduled").returncode == 0
        at(-4, "notify")
        before = len(server.got)
        nights.state.rename(nights.state.with_name("away"))
        messages = []
        with hanging(nights.state, dead=True):
            for night in (-3, -2, -1):
                (nights.source / "file").write_text(str(night))
                done = at(night, "run", "--scheduled")
                assert (done.returncode, "catalogue.sqlite does not answer" in " ".join((done.stdout + done.stderr).split())) == (
                    1,
                    True,
                ), done.stdout
                at(night, "notify", "--failed", "btrkeep-backup@main.service")
                at(night, "notify")
                messages.append([" ".join(message["message"].split()) for message in server.json()[before:]])
                before = len(server.got)
        nights.state.rmdir()
        nights.state.with_name("away").rename(nights.state)
        assert len(nights.names("web")) == 4
        assert [len(texts) for texts in messages] == [3, 1, 1], messages
        assert all("catalogue.sqlite does not answer" in texts[-1] for texts in messages), messages
        assert at(0, "run", "--scheduled").returncode == 0
        at(0, "notify")
        over = [message["message"].partition("Resolved")[2] for message in server.json()[before:]]
        assert any("catalogue.sqlite does not answer" in " ".join(text.split()) for text in over), over
    assert {name for (name,) in rows(nights, "select name from backup")} == set(nights.names("web"))
    assert len(nights.names("web")) == 5


def test_a_night_whose_catalogue_is_locked_all_the_time_backs_up_all_hosts(nights: Nights) -> None:
    (nights.source / "file").write_text("it")
    for host in ("a", "b", "c"):
        nights.host(host, nights.source)
    nights.run("a")
    with closing(sqlite3.connect(nights.state / "catalogue.sqlite", isolation_level=None)) as holder:
        holder.execute("begin immediate")
        status, stdout, stderr = impatient(nights, "run", "--all", "--json")
        assert (status, {result["outcome"] for result in json.loads(stdout)}) == (1, {"complete"}), stderr
        assert "was locked by another program for too long" in stderr
    assert nights.run("b")["b"]["outcome"] == "complete"
    assert disagreements(nights) == []


def test_status_on_a_terminal_prints_what_it_waits_for(nights: Nights) -> None:
    nights.host("web", nights.source)
    nights.run("web")
    words = [sys.executable, "-m", "backupd", "--config", str(nights.config), "status"]
    with closing(sqlite3.connect(nights.state / "catalogue.sqlite", isolation_level=None)) as holder:
        holder.execute("pragma locking_mode = exclusive")
        holder.execute("begin exclusive")
        with at_a_terminal(words, env={"PYTHONPATH": str(TOP)}) as terminal:
            terminal.wait_for(f"waiting for the catalogue {re.escape(str(nights.state))}", 60)
            holder.close()
            terminal.wait_for("web")


def test_no_command_waits_for_ever_for_a_path_that_it_is_given(nights: Nights) -> None:
    """For each kind of use: a folder or file that must exist, one that is resolved, one that is made, one of a btrfs."""
    dead = nights.top / "dead"
    lines = (
        ("repair", "--from", dead),
        ("import", "tree", dead, "--host", "web"),
        ("import", "rsnapshot", dead / "rsnapshot.conf"),
        ("doctor", "--fix", "room", "--device", dead / "image", "--dry-run"),
        ("init", dead / "pool"),
        ("metrics", "--textfile", dead / "btrkeep.prom"),
        ("progress", dead),
    )
    with hanging(dead, dead=True), ThreadPoolExecutor(len(lines)) as pool:
        for line, (status, _, stderr) in zip(lines, pool.map(lambda line: impatient(nights, *map(str, line)), lines), strict=True):
            assert (status, f"error: {dead}" in stderr, "does not answer" in stderr) == (1, True, True), (line, stderr)


def test_check_tells_a_source_that_does_not_answer_from_one_that_is_not_there(nights: Nights) -> None:
    mount, missing = nights.top / "hangs", nights.top / "missing"
    nights.host("here", mount, missing, address=None)
    with hanging(mount, dead=True):
        answer = {row["message"]: row["hint"] for row in json.loads(impatient(nights, "check", "--json")[1])}
    assert "dmesg" in answer[f"{mount} does not answer"]
    assert f"{missing} does not exist on this machine" in answer
