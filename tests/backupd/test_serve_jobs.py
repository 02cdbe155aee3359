"""Jobs, requests and commands of the root service, and the data that it remembers: without a pool."""

import json
import os
import pwd
import shlex
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backupd.serve.cli.run_job import Log, carry_out
from backupd.serve.commands import command_of, folder_of
from backupd.serve.jobs import JobStore, ServeJob, ServeRequest, claim_request, is_id, job_object, new_id, write_request
from backupd.serve.start_job import next_turns, start_command, unit_of
from btrkeep.clock import Clock
from btrkeep.config import Config, load
from btrkeep.errors import OperatorError, UsageError
from btrkeep.process.proc import start_time, terminate
from btrkeep.process.programs import ProgramStopped, run_watched
from btrkeep.serving.protocol import RequestRefused
from btrkeep.serving.server import allowed_users
from tests.beds import TOP
from tests.beds.watch import wait_for

NOW = datetime(2026, 11, 21, 21, 0, tzinfo=UTC)
ID = "20261121T210000Z-3d9f956f"


def job(job_id: str = ID, **changed: Any) -> ServeJob:
    return replace(ServeJob(job_id, "run", "web1", "alice", "2026-11-21T21:00:00Z", {"host": "web1"}), **changed)


@pytest.fixture
def jobs(tmp_path: Path) -> JobStore:
    return JobStore(tmp_path)


# --- jobs


def test_names_of_jobs_sort_by_time_and_are_never_given_twice() -> None:
    names = [new_id(NOW + timedelta(seconds=number)) for number in range(50)]
    assert names == sorted(names)
    assert len({new_id(NOW) for _ in range(1000)}) == 1000
    assert all(map(is_id, names))


def test_a_job_is_as_it_was_written(jobs: JobStore) -> None:
    written = job(state="done", exit=0, result={"path": "\udcff"}, arguments={"paths": ["/\udcff\n"]})
    jobs.put(written)
    assert jobs.get(ID, NOW) == written
    assert job_object(written)["job"] == ID
    assert "pid" not in job_object(written)


def test_one_whose_process_is_gone_has_failed(jobs: JobStore) -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    started = Path(f"/proc/{sleeper.pid}/stat").read_text().rpartition(") ")[2].split()[19]
    jobs.put(job(state="running", pid=sleeper.pid, pid_started=started))
    assert jobs.get(ID, NOW).state == "running"
    jobs.put(job(state="running", pid=sleeper.pid, pid_started="1"))  # the number is another's now
    assert jobs.get(ID, NOW).state == "failed"
    jobs.put(job(state="running", pid=sleeper.pid, pid_started=started))
    sleeper.kill()
    sleeper.wait()
    assert "killed" in (jobs.get(ID, NOW).error or "")


def test_one_that_was_never_begun_has_failed_after_a_while(jobs: JobStore) -> None:
    jobs.put(job(called=NOW.isoformat()))
    assert jobs.get(ID, NOW + timedelta(minutes=5)).state == "queued"
    assert jobs.get(ID, NOW + timedelta(minutes=11)).state == "failed"


def test_one_that_waits_does_so_for_a_day(jobs: JobStore) -> None:
    jobs.put(job())
    assert jobs.get(ID, NOW + timedelta(hours=23)).state == "queued"
    assert "slot" in (jobs.get(ID, NOW + timedelta(hours=25)).error or "")


def test_after_thirty_days_they_are_forgotten_but_not_those_at_work(jobs: JobStore, tmp_path: Path) -> None:
    ended, running = job(state="done"), job(new_id(NOW), state="running", pid=os.getpid(), pid_started=own_start())
    previewed = job(new_id(NOW), verb="preview", state="done")
    for stored_job in (ended, running, previewed):
        jobs.put(stored_job)
        jobs.log(stored_job.id).write_text("said\n")
    jobs.thin(NOW + timedelta(hours=2))
    assert {job.id for job in jobs.all(NOW)} == {ended.id, running.id}
    jobs.thin(NOW + timedelta(days=29))
    assert {job.id for job in jobs.all(NOW)} == {ended.id, running.id}
    jobs.thin(NOW + timedelta(days=31))
    assert sorted(path.name for path in (tmp_path / "jobs").iterdir()) == [f"{running.id}.json", f"{running.id}.log"]


def own_start() -> str:
    return Path("/proc/self/stat").read_text().rpartition(") ")[2].split()[19]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"id": 1}', '{"nothing": "of it"}', "\0"])
def test_what_lies_there_and_is_no_job_is_passed_over(jobs: JobStore, tmp_path: Path, text: str) -> None:
    other = job(new_id(NOW))
    jobs.put(other)
    (tmp_path / "jobs" / f"{ID}.json").write_text(text)
    assert list(jobs.all(NOW)) == [other]
    with pytest.raises(RequestRefused):
        jobs.get(ID, NOW)


def test_a_name_that_is_none_reaches_no_file(jobs: JobStore, tmp_path: Path) -> None:
    jobs.put(job())
    (tmp_path / "secret.json").write_text(json.dumps(asdict(job())))
    for name in ("../secret", f"../jobs/{ID}", f"{ID}\n", ""):
        with pytest.raises(RequestRefused):
            jobs.get(name, NOW)


def test_the_last_lines_are_told_whatever_is_in_them(jobs: JobStore) -> None:
    jobs.put(job())
    assert jobs.last_lines(ID, 5) == []
    jobs.log(ID).write_bytes(b"".join(b"%d\n" % number for number in range(100_000)) + b"\xff \x1b[2J\nend")
    assert jobs.last_lines(ID, 3) == ["99999", "\udcff \x1b[2J", "end"]
    assert len(jobs.last_lines(ID, 10**6)) < 20_000


@pytest.mark.slow
def test_a_log_stays_short_and_keeps_the_end(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", longest=10_000)
    for number in range(50_000):
        log.write(b"line %d\n" % number)
    log.close()
    lines = (tmp_path / "log").read_text().splitlines()
    assert (tmp_path / "log").stat().st_size <= 10_100
    assert lines[-1] == "line 49999"
    assert lines == [f"line {number}" for number in range(50_000 - len(lines), 50_000)]


# --- carrying out


def test_a_command_is_carried_out_and_its_words_are_kept(jobs: JobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.put(job())
    job_store = bytearray()
    (tmp_path / "ends.py").write_text(
        "import sys\nfrom btrkeep.cli import print_error\nfrom btrkeep.errors import OperatorError\n"
        "print_error(OperatorError('the disk is full', 'a hint'))\nprint_error(OperatorError('more'))\nsys.exit(1)\n"
    )
    ends = shlex.join([sys.executable, str(tmp_path / "ends.py")])
    script = f"echo '{{\"good\": true}}'; echo looking >&2; echo 'error: of no program of ours' >&2; exec {ends}"
    monkeypatch.setenv("PYTHONPATH", str(TOP))
    assert carry_out(job(), jobs, ("sh", "-c", script), Clock(), job_store.extend, speaks_json=True) == 1
    result = jobs.get(ID, NOW)
    assert (result.state, result.exit, result.error, result.result) == ("failed", 1, "the disk is full", {"good": True})
    assert jobs.last_lines(ID, 9)[0] == "looking"
    assert jobs.last_lines(ID, 9)[2:] == ["error: the disk is full", "hint: a hint", "error: more"]
    assert bytes(job_store).startswith(b"looking")
    assert carry_out(job(), jobs, ("sh", "-c", "echo one"), Clock(), job_store.extend, speaks_json=False) == 0
    assert (jobs.get(ID, NOW).state, jobs.last_lines(ID, 9)) == ("done", ["one"])


@pytest.mark.slow
def test_a_stop_is_passed_on_and_waited_for(tmp_path: Path) -> None:
    script = f"""
import sys
from pathlib import Path
from btrkeep.clock import Clock
from backupd.serve.cli.run_job import carry_out
from backupd.serve.jobs import ServeJob, JobStore
job = ServeJob("{ID}", "run", "web1", "alice", "2026-11-21T21:00:00Z", {{}})
command = ("bash", "-c", "trap 'sleep 0.3; echo tidied; exit 143' TERM; echo ready; while :; do sleep 0.05; done")
sys.exit(carry_out(job, JobStore(Path("{tmp_path}")), command, Clock(), lambda _: None, speaks_json=False))
"""
    jobs = JobStore(tmp_path)
    process = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(TOP)})
    while "ready" not in jobs.last_lines(ID, 5):
        time.sleep(0.02)
    process.terminate()
    assert process.wait(60) == 143
    result = jobs.get(ID, NOW)
    assert (result.state, result.exit, jobs.last_lines(ID, 5)[-1]) == ("failed", 143, "tidied")


# --- requests


def test_a_request_is_taken_once_and_only_root_could_have_left_it(tmp_path: Path) -> None:
    folder = tmp_path / "jobs" / "main"
    asked = ServeRequest(ID, "restore", "alice", {"paths": ["/\udcff"]}, elsewhere=True, in_place=("/srv/www",))
    write_request(folder, asked)
    assert (folder.stat().st_mode & 0o777, (folder / f"{ID}.json").stat().st_mode & 0o777) == (0o700, 0o600)
    with pytest.raises(FileExistsError):
        write_request(folder, asked)
    assert claim_request(folder, ID) == asked
    with pytest.raises(UsageError):
        claim_request(folder, ID)


@pytest.mark.parametrize(
    "changed",
    [
        {"format": 2},
        {"verb": "forget"},
        {"id": "20261121T210000Z-00000000"},
        {"arguments": []},
        {"more": 1},
        {"who": None, "id": 1},
    ],
)
def test_a_request_that_is_none_of_ours_is_not_carried_out(tmp_path: Path, changed: dict) -> None:
    fields = {"format": 1, **asdict(ServeRequest(ID, "run", "alice", {"host": "web1"})), **changed}
    (tmp_path / f"{ID}.json").write_text(json.dumps(fields))
    with pytest.raises(OperatorError):
        claim_request(tmp_path, ID)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../x", "main", "", f"{ID}/..", "20261121T210000Z"])
def test_a_request_has_the_name_of_a_job(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        claim_request(tmp_path, name)


# --- commands


@pytest.fixture
def config(tmp_path: Path) -> Config:
    file = tmp_path / "main.toml"
    file.write_text(
        f'[pool]\npath = "/srv/backup"\nstate = "{tmp_path}"\n[host.web1]\naddress = "root@web1"\npaths = ["/etc"]\n'
        '[host.here]\npaths = ["/etc"]\n'
    )
    (tmp_path / "second.toml").write_text('[pool]\npath = "/srv/second/pool"\nstate = "/srv/second/state"\n')
    (tmp_path / "broken.toml").write_text("no toml at all")
    return load("main", file)


PROGRAM = ("backupd", "--pool", "main")
RESTORE: dict[str, Any] = {
    "host": "web1",
    "backup": "2026-11-20T220003Z",
    "paths": ["/etc/passwd"],
    "to": "host",
    "overwrite": None,
}


def asked(
    verb: str, folder: str | None = None, *, elsewhere: bool = False, in_place: tuple[str, ...] = (), **arguments: Any
) -> ServeRequest:
    return ServeRequest(ID, verb, "alice", arguments, folder, elsewhere, in_place)


def test_what_was_asked_comes_behind_a_double_dash_and_never_is_an_option(config: Config) -> None:
    assert command_of(asked("run", host="web1"), config, PROGRAM) == (*PROGRAM, "run", "--wait", "--", "web1")
    line = command_of(asked("restore", **{**RESTORE, "paths": ["/--to=x", "/\udcff"]}), config, PROGRAM)
    end = line.index("--")
    assert line[end:] == ("--", "web1@2026-11-20T220003Z", "/--to=x", "/\udcff")
    assert "--dry-run" in command_of(asked("preview", **RESTORE), config, PROGRAM)
    assert "--dry-run" not in line


def test_a_restore_goes_to_the_host_that_the_configuration_names(config: Config) -> None:
    line = command_of(asked("restore", elsewhere=True, **{**RESTORE, "to": "host:/new", "overwrite": "older"}), config, PROGRAM)
    assert {"--to-host=root@web1:/new", "--overwrite=older"} <= set(line)
    line = command_of(asked("restore", folder="/srv/restored/x", **{**RESTORE, "to": "folder"}), config, PROGRAM)
    assert {"--to=/srv/restored/x", "--parents", "--only-below=/srv/restored"} <= set(line)
    assert "--privileged" not in line
    for changed, kind in (
        ({"to": "folder"}, "refused"),
        ({"to": "host:/new"}, "refused"),
        ({"host": "web2"}, "missing"),
        ({"host": "here", "to": "host:/x"}, "refused"),
        ({"to": "/etc"}, "usage"),
        ({"paths": ["/../x"]}, "usage"),
        ({"extra": 1}, "usage"),
    ):
        with pytest.raises(RequestRefused) as refused:
            command_of(asked("restore", **{**RESTORE, **changed}), config, PROGRAM)
        assert refused.value.kind == kind, changed


# --- whose turn it is


def waiting(number: int, who: str = "alice", **changed: Any) -> ServeJob:
    moment = NOW + timedelta(milliseconds=number)
    return job(
        f"20261121T210000Z-{number:08x}", host=f"host{number}", who=who, since=moment.isoformat("T", "microseconds"), **changed
    )


def begun(number: int, who: str = "alice", state: str = "running") -> ServeJob:
    return waiting(number, who, state=state, called=(NOW + timedelta(seconds=number)).isoformat("T", "microseconds"))


def turns(jobs: list[ServeJob], at_once: int) -> list[str]:
    return [next_turn.host for next_turn in next_turns(reversed(jobs), at_once)]


def test_so_many_begin_that_the_pool_has_as_many_as_it_may_and_in_the_order_of_asking() -> None:
    asked_for = [waiting(number) for number in range(9)]
    assert turns(asked_for, 3) == ["host0", "host1", "host2"]
    assert turns([begun(10), begun(11, state="queued"), *asked_for], 3) == ["host0"]
    assert turns([begun(10, state="done"), begun(11, state="failed"), *asked_for], 1) == ["host0"]
    assert turns([begun(number) for number in range(20, 24)] + asked_for, 3) == []


def test_restores_and_previews_take_no_turn_of_a_backup_and_wait_for_none() -> None:
    others = [begun(number) for number in range(20, 24)]
    others = [replace(job, verb=verb) for job, verb in zip(others, ("restore", "preview") * 2, strict=True)]
    assert turns([*others, waiting(1)], 1) == ["host1"]


def test_one_host_of_a_user_does_not_wait_for_the_hundred_of_another_user() -> None:
    of_alice, of_bob = [waiting(number) for number in range(100)], waiting(200, "bob")
    assert turns([*of_alice, of_bob], 2) == ["host0", "host200"]
    assert turns([begun(300), *of_alice, of_bob], 2) == ["host200"]
    assert turns([begun(300, state="done"), *of_alice, of_bob], 1) == ["host200"]  # alice was served last
    assert turns([begun(300, "bob", "done"), begun(299, state="done"), *of_alice, of_bob], 1) == ["host0"]
    assert turns([*of_alice, waiting(200, "bob"), waiting(201, "bob")], 5) == ["host0", "host200", "host1", "host201", "host2"]


def test_the_oldest_of_too_many_jobs_are_forgotten(jobs: JobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backupd.serve.jobs.MOST", 3)
    names = [new_id(NOW + timedelta(seconds=number)) for number in range(6)]
    for name in names:
        jobs.put(job(name, state="failed" if name != names[0] else "queued"))
    jobs.thin(NOW)
    assert sorted(path.stem for path in (tmp_path / "jobs").glob("*.json")) == [names[0], *names[3:]]


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/",
            "/srv",
            "/srv/backup",
            "/srv/backup/hosts/web1",
            "/var/lib",
            "/var/lib/btrkeep-web/main/users.sqlite",
            "/etc/btrkeep",
        ),
        *("/opt", "/opt/btrkeep/bin/python", "/srv/second/pool/hosts", "/srv/second/state"),
    ],
)
def test_nothing_that_btrkeep_lives_on_is_put_back_on_this_machine(config: Config, path: str) -> None:
    everything = {**RESTORE, "host": "here", "in_place": ("/",)}
    with pytest.raises(RequestRefused) as refused:
        command_of(asked("restore", **{**everything, "paths": ["/etc/passwd", path]}), config, PROGRAM)
    assert refused.value.kind == "refused"
    for fine in ("/srv/backups", "/var/lib/btrkeeper", "/var/log"):
        assert fine in command_of(asked("restore", **{**everything, "paths": [fine]}), config, PROGRAM)
    assert path in command_of(asked("restore", **{**RESTORE, "paths": [path]}), config, PROGRAM)  # another machine's


@pytest.mark.parametrize("path", ["/opt/x", "/usr/bin", "/etc/cron.d/x", "/var/spool/cron", "/root/.ssh", "/srv/wwwx", "/srv", "/"])
def test_of_this_machine_only_that_is_put_back_which_the_administrator_has_named(config: Config, path: str) -> None:
    for in_place in ((), ("/srv/www", "/export")):
        wish = {**RESTORE, "host": "here", "paths": ["/srv/www/a", path]}
        with pytest.raises(RequestRefused, match="not below a folder") as refused:
            command_of(asked("restore", in_place=in_place, **wish), config, PROGRAM)
        assert refused.value.kind == "refused"
    fine = {**RESTORE, "host": "here", "paths": ["/srv/www/a", "/export"]}
    line = command_of(asked("restore", in_place=("/srv/www", "/export"), **fine), config, PROGRAM)
    assert {"--to-host", "--only-below=/srv/www", "--only-below=/export"} <= set(line)


def test_a_folder_for_restores_has_a_place_for_each_backup() -> None:
    assert folder_of(Path("/srv/restored"), "web1", "2026-11-20T220003Z") == "/srv/restored/web1-2026-11-20T220003Z"
    assert folder_of(None, "web1", "x") is None


def test_a_units_name_holds_nothing_that_was_asked() -> None:
    assert unit_of("run", "main", ID) == f"btrkeep-run@main:{ID}.service"
    assert unit_of("preview", "main", ID) == unit_of("restore", "main", ID) == f"btrkeep-restore@main:{ID}.service"
    assert start_command("x")[-2:] == ("--", "x")


# --- who may ask


def test_root_and_whom_the_administrator_names_may_ask() -> None:
    someone = pwd.getpwnam("nobody")
    assert {0, someone.pw_uid} <= allowed_users(["nobody"])
    assert someone.pw_uid not in allowed_users()
    assert 4711 in allowed_users(["4711"])
    for name in ("nobody-of-that-name", "", "-1", "x\0y"):
        with pytest.raises(UsageError):
            allowed_users([name])


@pytest.mark.parametrize("is_late", [False, True])
def test_a_program_for_an_asker_that_left_or_that_takes_too_long_is_ended_with_all_that_it_started(
    tmp_path: Path, is_late: bool
) -> None:
    started, timeout = tmp_path / "pid", 0.3
    script = f"sleep 6100 & echo $! >{started}.new; mv {started}.new {started}; wait"
    if is_late:
        while not started.exists():  # the machine may be busy for longer than that
            with pytest.raises(ProgramStopped):
                run_watched(("sh", "-c", script), timeout=timeout, gone=lambda: False)
            timeout *= 2
    else:
        with pytest.raises(ProgramStopped):
            run_watched(("sh", "-c", script), timeout=600, gone=started.exists)
    pid = int(started.read_text())
    wait_for(lambda: start_time(pid) is None)


@pytest.mark.slow
def test_a_socket_that_systemd_hands_over_is_listened_on_and_no_other(tmp_path: Path) -> None:
    script = """
import os, sys
os.environ["LISTEN_PID"] = str(os.getpid())
from btrkeep.serving.server import handed_over
from btrkeep.errors import OperatorError
try:
    found = handed_over()
    print(found and found.getsockname(), "LISTEN_FDS" in os.environ, os.get_inheritable(3))
except OperatorError as error:
    print(error.message)
"""

    def listening_report(fd: int, count: str) -> str:
        words = f"exec 3<&{fd}; exec {shlex.quote(sys.executable)} -c '{script}'"
        env = {**os.environ, "PYTHONPATH": str(TOP), "LISTEN_FDS": count}
        return subprocess.run(["bash", "-c", words], pass_fds=[fd], env=env, capture_output=True, text=True, check=True).stdout

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        assert "not a listening Unix socket" in listening_report(listening.fileno(), "1")
        listening.listen()
        assert listening_report(listening.fileno(), "1").split() == [str(tmp_path / "s"), "False", "False"]
        assert "2 sockets" in listening_report(listening.fileno(), "2")
    with socket.socket() as listening:
        listening.listen()
        assert "not a listening Unix socket" in listening_report(listening.fileno(), "1")


def test_only_the_process_with_that_start_time_is_ended() -> None:
    other = subprocess.Popen(["sleep", "60"])
    try:
        assert not terminate(other.pid, "1")
        assert other.poll() is None
        assert terminate(other.pid, start_time(other.pid) or "")
        assert other.wait(60) == -signal.SIGTERM
        assert not terminate(other.pid, "1")
    finally:
        other.kill()
        other.wait()
