"""A state folder on a server that stops answering while a command works: the command ends and reports it, also where nothing ends a
thread that waits. Where the folder is local, no command has a second process.
"""

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from backupd.serve.jobs import JobStore, ServeJob, ServeRequest, new_id, write_request
from btrkeep import hung_storage
from btrkeep.units import format_time
from tests.beds import leftout, served_folder
from tests.beds.cli import TOP
from tests.beds.hangfs import hanging
from tests.beds.nights import Nights
from tests.beds.receivers import web
from tests.beds.served_folder import served, stop
from tests.beds.watch import processes, wait_for

ENV = {**os.environ, "PYTHONPATH": str(TOP), "NO_COLOR": "1"}
DYING = TOP / "tests" / "beds" / "served_folder.py"
IMPATIENT = TOP / "tests" / "beds" / "impatient.py"
QUERY = 8  # the command has opened the catalogue, and is not done with it


@pytest.fixture
def site(nights: Nights) -> Nights:
    if why := served_folder.why_not():
        pytest.skip(leftout.reason("of a served state folder", why))
    (nights.source / "file").write_text("it")
    nights.host("web", nights.source)
    nights.run("web")
    return nights


def dying(nights: Nights, server: "subprocess.Popen[bytes]", *words: str) -> tuple[int, str, str]:
    """Runs `backupd WORDS`, whose state folder stops answering during it; returns exit status and both outputs, through files."""
    command = (sys.executable, "-P", str(DYING), str(server.pid), str(QUERY), "--config", str(nights.config), *words)
    with TemporaryFile("w+") as stdout, TemporaryFile("w+") as stderr:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=ENV)
        try:
            status = process.wait(40)
            assert is_stopped(server.pid)
        finally:  # nothing ends who waits for it
            if process.poll() is None:
                server.send_signal(signal.SIGCONT)
        stdout.seek(0)
        stderr.seek(0)
        texts = stdout.read(), stderr.read()
    assert "Traceback" not in texts[1], texts
    return status, *texts


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize("words", [("status",), ("check",), ("metrics",), ("list",), ("run", "--all")])
def test_a_command_ends_when_the_state_folder_dies_while_it_works(site: Nights, words: tuple[str, ...]) -> None:
    with served(site.state) as server:
        status, stdout, stderr = dying(site, server, *words)
        text = " ".join((stdout + stderr).split())
        assert f"{site.state}" in text
        assert "does not answer" in text
        assert status == (4 if words[0] in ("list", "run") else 1), text
        server.send_signal(signal.SIGCONT)
        if words[0] == "run":
            assert site.run("web")["web"]["outcome"] == "complete"
        else:
            assert site.status("web")["state"] == "ok"


def test_the_notification_about_it_is_sent_by_the_command_whose_catalogue_died(site: Nights) -> None:
    with web() as receiver, served(site.state) as server:
        site.tables["notify"] = {"urls": [f"json://127.0.0.1:{receiver.port}/"], "digest": "none"}
        site.write()
        dying(site, server, "notify")
        (message,) = receiver.json()
        assert f"{site.state / 'catalogue.sqlite'} does not answer" in message["message"]
        server.send_signal(signal.SIGCONT)
        site.backupd("notify")
        assert receiver.json()[-1]["type"] == "success"
    assert json.loads(site.backupd("notify", "--json").stdout)["standing"] == []


def test_a_job_of_the_root_service_ends_when_the_folder_of_its_log_dies(site: Nights) -> None:
    """Its command prints, the line goes to the log, and the command's further output was never read."""
    job = ServeJob(new_id(datetime.now(UTC)), "run", "web", "anna", format_time(datetime.now(UTC)), {"host": "web"})
    site.host("web", site.source, before=["/bin/sleep", "2.0377"])
    with served(site.state) as server:
        JobStore(site.state).put(job)
        write_request(site.state / "jobs" / "asked", ServeRequest(job.id, job.verb, job.who, job.arguments))
        words = [
            sys.executable,
            "-P",
            str(TOP / "tests" / "beds" / "impatient.py"),
            "--config",
            str(site.config),
            "run-job",
            job.id,
        ]
        with TemporaryFile("w+") as stderr:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, env=ENV)
            wait_for(lambda: bool(processes("/bin/sleep", "2.0377")))
            stop(server)
            try:
                status = process.wait(40)
            finally:
                server.send_signal(signal.SIGCONT)
            stderr.seek(0)
            text = stderr.read()
        assert (status, "does not answer: nothing could be read" in text) == (4, True), text
        wait_for(lambda: JobStore(site.state).get(job.id, datetime.now(UTC)).over)
        wait_for(lambda: not processes("--wait", site.config))
        site.host("web", site.source)
        assert site.run("web")["web"]["outcome"] == "complete"


OUTLIVES = """
import os, sys
from pathlib import Path
from btrkeep import hung_storage
from btrkeep.process import outliving
hung_storage.PATIENCE = outliving.LOOK = 0.5
try:
    outliving.outlive(Path(sys.argv[1]), 0, keeps_output=True)
except outliving.StorageHung as error:
    print(error)
    sys.exit(error.exit_code)
print("child", os.getpid(), flush=True)
{work}
"""


def outliving(folder: Path, work: str) -> "subprocess.Popen[str]":
    code = OUTLIVES.format(work=work)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen([sys.executable, "-c", code, folder], **pipes, text=True, env=ENV)  # type: ignore[call-overload]


@pytest.mark.root
def test_a_reader_of_its_output_is_not_kept_by_a_child_that_nothing_ends(tmp_path: Path) -> None:
    """The filesystem has read the request and never answers: not even SIGKILL ends a process that waits for the answer."""
    folder = tmp_path / "dies"
    with hanging(folder, once_open=True):
        process = outliving(folder, "(Path(sys.argv[1]) / 'file').read_bytes()")
        output, _ = process.communicate(timeout=60)
        assert output == f"{folder} no longer answers: nothing could be read for 10 s\n"
        assert process.returncode == 4


@pytest.mark.parametrize(("work", "status"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", -9), ("os.kill(os.getpid(), 1)", -1)])
def test_the_command_ends_as_its_child_does_and_prints_all_of_it(site: Nights, work: str, status: int) -> None:
    with served(site.state):
        process = outliving(site.state, f"print('x' * 300_000, file=sys.stderr, flush=True); {work}")
        output, _ = process.communicate(timeout=60)
    first, second = output.splitlines()
    assert first.startswith("child ")
    assert first != f"child {process.pid}"
    assert (second, process.returncode) == ("x" * 300_000, status)


def test_a_signal_to_the_command_reaches_its_child_once(site: Nights, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    work = (
        f"import signal, time; signal.signal(15, lambda *_: os.write(os.open({str(marks)!r}, 1025 | 64), b'x'))\n"
        f"Path({str(marks)!r}).touch()\n"
        f"while not Path({str(marks)!r}).read_text(): time.sleep(0.01)\n"
        "time.sleep(0.3); sys.exit(7)"  # a second one may not come
    )
    with served(site.state):
        process = outliving(site.state, work)
        wait_for(marks.exists)
        process.terminate()
        process.communicate(timeout=60)
    assert (marks.read_text(), process.returncode) == ("x", 7)


def test_a_command_with_a_local_state_folder_has_no_second_process(tmp_path: Path) -> None:
    process = outliving(tmp_path, "")
    assert process.communicate(timeout=60)[0] == f"child {process.pid}\n"


def test_no_page_trusts_that_a_remote_state_folder_answered_a_moment_ago(site: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread of the dashboard that reads from it would hang for ever."""
    monkeypatch.setattr(hung_storage, "PATIENCE", 0.5)
    assert hung_storage.answers(site.pool, 10)
    assert site.pool in hung_storage._answered
    with served(site.state) as server:
        assert hung_storage.answers(site.state, 10)
        stop(server)
        assert not hung_storage.answers(site.state, 10)
    hung_storage._silent.pop(site.state)
