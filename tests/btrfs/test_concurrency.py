"""Many hosts at a time: limits, order, a failing host beside others, and locks against a second run."""

import json
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backupd.repo.backup_json import Record
from backupd.run import finalisation, source_paths
from backupd.run import work_subvolume as working
from btrkeep.errors import OperatorError
from btrkeep.pool.marker import Pool
from btrkeep.pool.syncfs import Syncfs
from tests.beds.badssh import FAKESSH
from tests.beds.nights import Nights
from tests.beds.watch import disagreements, ended, hold, is_locked, receivers, results, rows, wait_for

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def tree(nights: Nights) -> Path:
    tree = nights.source / "srv"
    tree.mkdir()
    (tree / "file").write_bytes(os.urandom(5000))
    return tree


def logging_ssh(nights: Nights, seconds: float) -> Path:
    """Makes each transfer take that long, and write a line with its host's name when it starts (+) and when it ends (-)."""
    log, script = nights.top / "log", nights.top / "logging-ssh"
    lines = [
        "#!/bin/bash",
        'while getopts ":i:o:p:l:" option; do :; done',
        'host="${!OPTIND}"',
        f'echo "+$host" >> {log}; sleep {seconds}',
        f'{shlex.quote(str(FAKESSH))} "$@"; status=$?',
        f'echo "-$host" >> {log}; exit $status',
    ]
    script.write_text("\n".join(lines) + "\n")
    script.chmod(0o755)
    nights.settings("ssh", command=str(script))
    return log


def begun(log: Path) -> list[str]:
    return [line[1:] for line in log.read_text().splitlines() if line.startswith("+")]


def most_at_once(log: Path, prefix: str = "") -> int:
    running = most = 0
    for line in log.read_text().splitlines():
        if line[1:].startswith(prefix):
            running += 1 if line.startswith("+") else -1
            most = max(most, running)
    return most


def test_never_more_than_concurrency_and_never_more_of_a_group_than_its_own(nights: Nights, tree: Path) -> None:
    nights.settings("backup", concurrency=4)
    nights.tables["group.slow"] = {"concurrency": 2}
    log = logging_ssh(nights, 0.4)
    for number in range(6):
        nights.host(f"slow{number}", tree, group="slow")
    for number in range(6):
        nights.host(f"quick{number}", tree)
    nights.run()
    assert most_at_once(log) == 4
    assert most_at_once(log, "slow") == 2
    assert len(begun(log)) == 12
    assert disagreements(nights) == []


def test_thirty_small_hosts_all_complete(nights: Nights, tree: Path) -> None:
    hosts = [f"h{number}" for number in range(30)]
    for host in hosts:
        nights.host(host, tree)
    nights.settings("backup", concurrency=8)
    answer = nights.run()
    assert {host: answer[host]["outcome"] for host in answer} == dict.fromkeys(hosts, "complete")
    assert disagreements(nights) == []
    assert all(nights.differences(host, tree) == [] for host in hosts[::10])


def test_who_was_tried_longest_ago_comes_first_and_who_never_was_before_all(nights: Nights, tree: Path) -> None:
    nights.settings("backup", concurrency=1, every="1s")
    log = logging_ssh(nights, 0)
    nights.host("a", tree)
    nights.host("b", tree, rsync_path="false")  # fails each time, and must not starve the others for it
    nights.host("c", tree)
    for host in ("c", "b", "a"):
        nights.backupd("run", host, check=False)
        time.sleep(1)  # the order depends on seconds
    nights.host("new", tree)
    log.unlink()
    nights.backupd("run", check=False)
    assert begun(log)[:1] == ["new"]
    assert begun(log)[1:] == ["c", "b", "a"]


def refusing_ssh(nights: Nights, host: str) -> tuple[Path, Path]:
    """Makes each transfer write its host's name into the first file. That one host cannot be reached until the second
    file exists.
    """
    log, up, script = nights.top / "log", nights.top / "up", nights.top / "refusing-ssh"
    lines = [
        "#!/bin/bash",
        'while getopts ":i:o:p:l:" option; do :; done',
        f'echo "+${{!OPTIND}}" >> {log}',
        f'if [[ "${{!OPTIND}}" == {host} && ! -e {up} ]]; then',
        '    echo "ssh: connect to host web1 port 22: No route to host" >&2; exit 255',
        "fi",
        f'exec {shlex.quote(str(FAKESSH))} "$@"',
    ]
    script.write_text("\n".join(lines) + "\n")
    script.chmod(0o755)
    nights.settings("ssh", command=str(script))
    return log, up


def test_a_host_that_cannot_be_reached_holds_no_place_and_is_tried_again_when_all_others_had_their_turn(
    nights: Nights, tree: Path
) -> None:
    nights.settings("backup", concurrency=1, attempts=3)
    log, up = refusing_ssh(nights, "down")
    for host in ("down", "a", "b"):
        nights.host(host, tree)
    nights.host("c", tree, after=["/usr/bin/touch", str(up)])
    by_name = {result.host: result.outcome for result in nights.night()}
    assert by_name == dict.fromkeys(("down", "a", "b", "c"), "complete")
    assert begun(log)[0] == "down"
    assert begun(log) == ["down", "a", "b", "c", "down"]
    assert disagreements(nights) == []


def test_a_host_that_cannot_be_reached_holds_no_place_of_its_group(nights: Nights, tree: Path) -> None:
    nights.settings("backup", concurrency=2, attempts=2)
    log, up = refusing_ssh(nights, "down")
    nights.tables["group.slow"] = {"concurrency": 1}
    nights.host("down", tree, group="slow")
    nights.host("a", tree, group="slow")
    nights.host("b", tree, group="slow", after=["/usr/bin/touch", str(up)])
    by_name = {result.host: result.outcome for result in nights.night()}
    assert by_name == dict.fromkeys(("down", "a", "b"), "complete")
    assert begun(log) == ["down", "a", "b", "down"]


@pytest.mark.slow
def test_while_a_host_waits_for_its_place_after_a_pause_its_deadline_comes_no_nearer(nights: Nights, tree: Path) -> None:
    script, broken = nights.top / "slow-ssh", nights.top / "broken"
    script.write_text(
        f'#!/bin/bash\nif [[ " $* " == *" first "* && ! -e {broken} ]]; then touch {broken}; kill -9 $$; fi\n'
        f'[[ " $* " != *" second "* ]] || sleep 6\nexec {shlex.quote(str(FAKESSH))} "$@"\n'
    )
    script.chmod(0o755)
    nights.settings("ssh", command=str(script))
    nights.settings("backup", concurrency=1, attempts=2)
    nights.host("first", tree, deadline="5s")
    nights.host("second", tree)
    lines = [(result.host, result.outcome, result.error) for result in nights.night()]
    assert lines == [("second", "complete", None), ("first", "complete", None)]


def test_during_the_pause_of_one_host_never_more_than_concurrency_transfer(nights: Nights, tree: Path) -> None:
    nights.settings("backup", concurrency=2, attempts=2)
    log = logging_ssh(nights, 0.15)
    for number in range(4):
        nights.host(f"broken{number}", tree, rsync_path="kill -9 $$;")
        nights.host(f"good{number}", tree)
    by_name = {result.host: result.outcome for result in nights.night()}
    assert {host for host, outcome in by_name.items() if outcome == "complete"} == {f"good{n}" for n in range(4)}
    assert most_at_once(log) == 2
    assert sorted(begun(log)) == sorted([f"broken{n}" for n in range(4)] * 2 + [f"good{n}" for n in range(4)])


def test_the_failure_of_one_host_stops_no_other(nights: Nights, tree: Path) -> None:
    nights.host("good1", tree)
    nights.host("missing", nights.source / "not-there")
    nights.host("broken", tree, rsync_path="false")
    nights.host("skips", tree, before=["/bin/sh", "-c", "echo not tonight; exit 75"])
    nights.host("hook", tree, before=["/bin/false"])
    nights.host("no-program", tree, before=["/nowhere/at/all"])
    nights.host("good2", tree)
    nights.settings("backup", concurrency=1)
    answer = {host: result["outcome"] for host, result in nights.run(status=1).items()}
    assert answer.pop("good1") == answer.pop("good2") == "complete"
    assert answer.pop("skips") == "skipped"
    assert set(answer.values()) == {"failed"}
    assert disagreements(nights) == []


def test_hosts_in_a_long_step_do_not_keep_another_from_its_own(nights: Nights, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio's own threads are a few more than the machine has CPUs, however many hosts run at a time."""
    slow = [f"slow{number:02}" for number in range(min(32, (os.cpu_count() or 1) + 4))]
    for host in (*slow, "zz-quick"):
        nights.host(host, tree)
    nights.settings("backup", concurrency=len(slow) + 1)
    quick_is_done, in_time = threading.Event(), []
    prepare, finalise = working.recover_and_prepare, finalisation.finalise

    def prepared(wanted: working.WorkRequest) -> object:
        if wanted.host.name in slow:
            in_time.append(quick_is_done.wait(60))
        return prepare(wanted)

    def finalised(
        pool: Pool, prepared: finalisation.WorkSubvolume, record: Record, disk: Syncfs, *rest: Any, **more: Any
    ) -> object:
        done = finalise(pool, prepared, record, disk, *rest, **more)
        if record.host == "zz-quick":
            quick_is_done.set()
        return done

    monkeypatch.setattr(working, "recover_and_prepare", prepared)
    monkeypatch.setattr(finalisation, "finalise", finalised)
    assert {result.outcome for result in nights.night()} == {"complete"}
    assert in_time == [True] * len(slow)


def test_a_bug_met_by_one_host_is_told_and_costs_the_others_nothing(
    nights: Nights, tree: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = working.recover_and_prepare

    def buggy(wanted: working.WorkRequest) -> object:
        if wanted.host.name == "unlucky":
            raise RuntimeError("a bug")
        return real(wanted)

    monkeypatch.setattr(working, "recover_and_prepare", buggy)
    for host in ("a", "unlucky", "z"):
        nights.host(host, tree)
    nights.settings("backup", concurrency=1)
    by_name = {result.host: result for result in nights.night()}
    assert (by_name["a"].outcome, by_name["z"].outcome) == ("complete", "complete")
    assert by_name["unlucky"].outcome == "failed"
    assert "a bug" in str(by_name["unlucky"].error)
    assert "RuntimeError" in caplog.text
    assert rows(nights, "select outcome from run where host = 'unlucky'") == [("failed",)]
    assert disagreements(nights) == []


def test_what_fails_after_the_transfer_leaves_a_partial_and_no_row_that_says_running(
    nights: Nights, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OperatorError("no holes tonight")

    (tree / "file").write_bytes(os.urandom(200_000))
    nights.host("web", tree)
    nights.run("web")
    (tree / "file").write_bytes(os.urandom(200_000))
    monkeypatch.setattr(source_paths, "punch_written", full)
    (result,) = nights.night("web")
    assert (result.outcome, result.error) == ("failed", "no holes tonight")
    assert rows(nights, "select state from backup order by name") == [("partial",), ("complete",)]
    assert disagreements(nights) == []
    monkeypatch.undo()
    nights.run("web")
    assert nights.differences("web", tree) == []


def test_nothing_is_said_to_run_when_the_hook_after_took_long(nights: Nights, tree: Path) -> None:
    """Progress is written every two seconds, but must not be written after the run has ended."""
    nights.host("web", tree, after=["/bin/sleep", "2.5"])
    nights.run("web")
    assert rows(nights, "select count(*) from progress") == [(0,)]


# --- a second run beside the first


def lock(nights: Nights, name: str) -> Path:
    return nights.pool / ".btrkeep" / "locks" / name


def a_night(nights: Nights, start: Start) -> tuple["subprocess.Popen[str]", Path]:
    flag = hold(nights, 0)
    process = start("--config", nights.config, "run", "--json", "--all")
    wait_for(flag.exists)
    nights.ssh("")
    return process, flag


def test_a_second_night_is_refused_and_told_who_holds_the_lock(nights: Nights, tree: Path, backupd_running: Start) -> None:
    nights.host("web", tree)
    process, flag = a_night(nights, backupd_running)
    assert is_locked(lock(nights, "night"))
    done = nights.backupd("run", check=False)
    assert done.returncode == 3
    assert f"process {process.pid}" in done.stderr
    assert "Traceback" not in done.stderr
    flag.unlink()
    assert ended(process)[0] == 0
    assert not is_locked(lock(nights, "night"))
    assert nights.backupd("run").returncode == 0


def test_a_named_host_is_run_beside_a_night_and_one_that_the_night_works_on_is_refused(
    nights: Nights, tree: Path, backupd_running: Start
) -> None:
    nights.host("web", tree)
    process, flag = a_night(nights, backupd_running)
    nights.host("other", tree)
    assert nights.run("other")["other"]["outcome"] == "complete"
    done = nights.backupd("run", "--json", "web", check=False)
    assert done.returncode == 3
    assert results(done.stdout)["web"]["outcome"] == "locked"
    assert f"process {process.pid}" in results(done.stdout)["web"]["error"]
    assert json.loads(lock(nights, "host-web").read_text())["pid"] == process.pid, "who was refused took the holder's text away"
    assert len({os.getpgid(pid) for pid in receivers(nights)}) == 1
    done = nights.backupd("run", "web", "other", check=False)
    assert done.returncode == 1, "one of two was locked"
    flag.unlink()
    assert ended(process)[0] == 0
    assert len(nights.names("web")) == 1
    assert len(nights.names("other")) == 2
    assert disagreements(nights) == []


def test_a_night_continues_without_a_host_that_another_process_has_locked(nights: Nights, tree: Path) -> None:
    nights.host("web", tree)
    nights.host("other", tree)
    with subprocess.Popen(["flock", lock(nights, "host-web"), "sleep", "60"], start_new_session=True) as holder:
        wait_for(lambda: is_locked(lock(nights, "host-web")))
        answer = nights.run(status=1)
        os.killpg(holder.pid, signal.SIGKILL)
    assert answer["web"]["outcome"] == "locked"
    assert answer["other"]["outcome"] == "complete"


def test_a_named_host_draws_on_the_same_bandwidth_as_the_night(nights: Nights, tree: Path, backupd_running: Start) -> None:
    size, rate = 5_000_000, 2_000_000
    (tree / "file").write_bytes(os.urandom(size))
    nights.settings("backup", bandwidth="2MB")
    nights.host("web", tree)
    process = backupd_running("--config", nights.config, "run")
    wait_for(lambda: len(receivers(nights)) == 2)
    nights.host("other", tree)
    start = time.monotonic()
    nights.run("other")
    assert ended(process)[0] == 0
    took = time.monotonic() - start
    assert took > 0.8 * 2 * size / rate, "each had the whole of it"
