"""A night without usual resources: open files, processes, memory."""

import json
import multiprocessing
import os
import resource
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from backupd.run.slots import OPEN, possible_at_once
from tests.beds import cgroups
from tests.beds.badssh import FAKESSH
from tests.beds.nights import Nights
from tests.beds.watch import ENVIRONMENT, disagreements, hold, transferring, wait_for, writable_finals

pytestmark = pytest.mark.slow

HOSTS = 6


def backed_up(nights: Nights, *before: str) -> tuple[dict[str, str], str]:
    """Runs a night of all hosts, with the arguments `before` in front of `backupd`; returns each host's outcome, and
    other output.
    """
    tree = nights.source / "srv"
    tree.mkdir(exist_ok=True)
    (tree / "file").write_bytes(os.urandom(3000))
    nights.settings("backup", concurrency=HOSTS)
    for number in range(HOSTS):
        nights.host(f"web{number}", tree)
    words = [*before, sys.executable, "-m", "backupd", "--config", str(nights.config), "run", "--all", "--json"]
    nights._begin()
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env={**os.environ, **ENVIRONMENT}, timeout=60, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert transferring(nights) == []
    assert writable_finals(nights) == []
    assert disagreements(nights) == []
    return {result["host"]: result["outcome"] for result in json.loads(done.stdout)}, done.stderr


def all_complete(nights: Nights, by_name: dict[str, str]) -> None:
    assert by_name == {f"web{number}": "complete" for number in range(HOSTS)}
    assert all(nights.differences(host, nights.source / "srv") == [] for host in by_name)


def test_a_night_with_few_open_files_takes_fewer_hosts_at_a_time_and_completes_them_all(nights: Nights) -> None:
    by_name, output = backed_up(nights, "prlimit", "--nofile=36")
    all_complete(nights, by_name)
    assert f"1 of {HOSTS} hosts at a time" in output


def test_a_limit_of_open_files_that_may_be_raised_is_raised(nights: Nights) -> None:
    by_name, output = backed_up(nights, "prlimit", "--nofile=36:4096")
    all_complete(nights, by_name)
    assert "at a time" not in output


def test_hosts_that_cannot_be_reached_leave_open_files_to_the_others(nights: Nights) -> None:
    """A whole network is down, and one host that comes last is not."""
    (nights.source / "file").write_bytes(os.urandom(3000))
    script, result = nights.top / "refusing-ssh", nights.top / "result"
    script.write_text(
        '#!/bin/bash\n[[ " $* " != *" down"* ]] || { echo "ssh: connect to host web1 port 22: No route to host" >&2; exit 255; }\n'
        f'exec {shlex.quote(str(FAKESSH))} "$@"\n'
    )
    script.chmod(0o755)
    nights.settings("ssh", command=str(script))
    nights.settings("backup", concurrency=1, attempts=2)
    for number in range(26):
        nights.host(f"down{number}", nights.source)
    nights.host("last", nights.source)

    def night() -> None:
        most = len(list(Path("/proc/self/fd").iterdir())) + 60  # it cannot be raised again, so this is a process of its own
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        result.write_text(
            json.dumps({host_result.host: host_result.error or host_result.outcome for host_result in nights.night()})
        )

    child = multiprocessing.get_context("fork").Process(target=night)
    child.start()
    child.join(100)
    answer = json.loads(result.read_text())
    assert answer.pop("last") == "complete"
    assert len(answer) == 26
    assert {error.split(": ")[1] for error in answer.values()} == {"there is no route to the host"}


@pytest.mark.skipif(bool(cgroups.why_not("pids")), reason=f"left out: few processes ({cgroups.why_not('pids')})")
def test_a_night_with_few_processes_takes_fewer_hosts_at_a_time_and_completes_them_all(nights: Nights) -> None:
    with cgroups.limited("pids", 24) as group:
        by_name, output = backed_up(nights, *cgroups.words_within(group))
    all_complete(nights, by_name)
    assert f"2 of {HOSTS} hosts at a time" in output


@pytest.mark.skipif(bool(cgroups.why_not("memory")), reason=f"left out: little memory ({cgroups.why_not('memory')})")
def test_an_rsync_that_the_kernel_ends_for_want_of_memory_leaves_its_host_unfinished_and_the_next_night_completes_it(
    nights: Nights,
) -> None:
    nights.host("web", nights.source)
    for number in range(20_000):  # names, because the kernel cannot reclaim them like cached data
        (nights.source / f"{number:0200}").touch()
    with cgroups.limited("memory", 4 << 20) as group:
        env = nights.rsync(f'[[ " $* " == *" --server "* ]] || echo $$ >{group}/cgroup.procs; exec $REAL "$@"')
        (result,) = nights.run("web", status=1, env=env).values()
    assert result["outcome"] == "failed"
    assert "signal 9" in result["error"] or "the connection broke" in result["error"], result["error"]  # the first report
    assert transferring(nights) == []
    nights.run("web")
    assert nights.differences("web", nights.source) == []


@pytest.mark.skipif(bool(cgroups.why_not("memory")), reason=f"left out: little memory ({cgroups.why_not('memory')})")
def test_a_run_that_the_kernel_ends_for_want_of_memory_leaves_nothing_that_is_believed_and_the_next_one_completes(
    nights: Nights,
) -> None:
    tree = nights.source / "srv"
    tree.mkdir()
    (tree / "file").write_bytes(os.urandom(1_000_000))
    for number in range(HOSTS):
        nights.host(f"web{number}", tree)
    nights.settings("backup", concurrency=HOSTS)
    nights.run("web0")
    (tree / "file").write_bytes(os.urandom(1_000_000))
    flag = hold(nights, 500_000)
    with cgroups.limited("memory", 300 << 20) as group:
        words = [sys.executable, "-m", "backupd", "--config", str(nights.config), "run", "--all", "--json"]
        process = subprocess.Popen(
            cgroups.words_within(group, *words),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **ENVIRONMENT},
        )
        wait_for(flag.exists)
        Path(f"/proc/{process.pid}/oom_score_adj").write_text("1000")  # so that the kernel chooses it, and not its children
        cgroups.fill_up(group)
        assert process.wait(60) == -signal.SIGKILL
        wait_for(lambda: transferring(nights) == [])
    assert writable_finals(nights) == []
    assert len(nights.names("web0")) == 1
    nights.ssh("")
    answer = nights.run()
    assert {result["outcome"] for result in answer.values()} == {"complete"}
    assert all(nights.differences(host, tree) == [] for host in answer)
    assert disagreements(nights) == []


@pytest.mark.parametrize(("free", "wanted", "possible"), [(1000, 50, 50), (40, 50, 50)])
def test_the_limit_is_raised_only_as_far_as_the_hosts_need(free: int, wanted: int, possible: int) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = sum(1 for _ in Path("/proc/self/fd").iterdir()) + free
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        assert possible_at_once(wanted, OPEN) == possible
        assert soft <= resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= soft + 1000
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
