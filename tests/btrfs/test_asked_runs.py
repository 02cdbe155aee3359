"""Backups that many users request at once: few run, the others wait, also during a night and through a restart."""

import asyncio
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from backupd.rsync.process import RunCancellation
from backupd.run.slots import HeldSlots, Slots
from btrkeep.pool.locks import take_lock
from btrkeep.serving.protocol import RequestRefused
from tests.beds.badssh import FAKESSH
from tests.beds.nights import Nights
from tests.beds.serving import Service, serving
from tests.beds.watch import is_locked, wait_for

pytestmark = [pytest.mark.btrfs, pytest.mark.root]

Start = Callable[..., "subprocess.Popen[str]"]


class Gated:
    """Hosts whose transfers do not proceed until `open`. `log` has a line for each that starts (+) and that ends (-)."""

    def __init__(self, nights: Nights) -> None:
        self.nights, self.log, self._gate = nights, nights.top / "log", nights.top / "gate"
        self.log.touch()
        lines = [
            "#!/bin/bash",
            'while getopts ":i:o:p:l:" option; do :; done',
            f'host="${{!OPTIND}}"; echo "+$host" >>{self.log}',
            f"until [ -e {self._gate} ]; do sleep 0.05; done",
            f'{shlex.quote(str(FAKESSH))} "$@"; status=$?',
            f'echo "-$host" >>{self.log}; exit $status',
        ]
        script = nights.top / "gated-ssh"
        script.write_text("\n".join(lines) + "\n")
        script.chmod(0o755)
        nights.settings("ssh", command=str(script))
        (nights.source / "srv").mkdir()
        (nights.source / "srv/file").write_text("content")
        nights.backupd("list")  # there is a catalogue

    def hosts(self, *names: str, **keys: Any) -> None:
        for name in names:
            self.nights.host(name, self.nights.source / "srv", **keys)

    def open(self) -> None:
        self._gate.touch()

    @property
    def begun(self) -> list[str]:
        return [line[1:] for line in self.log.read_text().splitlines() if line[0] == "+"]

    @property
    def most(self) -> int:
        """Returns the maximum number of simultaneous transfers."""
        running, most = 0, 0
        for line in self.log.read_text().splitlines():
            running += 1 if line[0] == "+" else -1
            most = max(most, running)
        return most

    def processes(self, word: str) -> int:
        """Returns the processes of our command with that word, on this pool."""
        number = 0
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    words = (folder / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                number += {word.encode(), os.fsencode(self.nights.config)} <= set(words)
        return number


@pytest.fixture
def gated(nights: Nights) -> Iterator[Gated]:
    nights.settings("backup", concurrency=2)
    result = Gated(nights)
    yield result
    result.open()


def jobs_by_host(service: Service) -> dict[str, dict[str, Any]]:
    """Returns the state of each host's job."""
    return {job["host"]: job for job in service.agent().ask("jobs")}


def over(service: Service) -> bool:
    return all(job["state"] in ("done", "failed") for job in jobs_by_host(service).values())


def test_of_many_that_are_asked_for_at_once_few_have_a_process_and_all_are_done(gated: Gated) -> None:
    alices, bobs = [f"a{number}" for number in range(6)], ["b0", "b1"]
    gated.hosts(*alices, *bobs)
    most = 0
    with serving(gated.nights.config) as service:
        for host in alices:
            service.agent("alice").ask("run", host=host)
        for host in bobs:
            service.agent("bob").ask("run", host=host)
        wait_for(lambda: len(gated.begun) == 2)
        with pytest.raises(RequestRefused, match="waits for a slot for its backup already, for alice") as refused:
            service.agent("bob").ask("run", host="a5")
        assert refused.value.kind == "locked"
        assert gated.processes("run-job") == gated.processes("run") == 2
        assert [jobs_by_host(service)[host]["state"] for host in [*alices, *bobs]] == ["running"] * 2 + ["queued"] * 6
        gated.open()
        while not over(service):
            most = max(most, gated.processes("run-job"))
            time.sleep(0.02)
        assert {job["state"] for job in jobs_by_host(service).values()} == {"done"}
    assert gated.most == 2
    assert most <= 4  # an ended one may still exit while the next starts
    assert sorted(gated.begun) == [*alices, *bobs]
    assert max(gated.begun.index("b0"), gated.begun.index("b1")) < 7  # although all of alice's were requested earlier


def test_what_waits_outlives_the_service_and_the_next_one_stays_until_all_have_begun(gated: Gated) -> None:
    hosts = [f"h{number}" for number in range(4)]
    gated.hosts(*hosts)
    with serving(gated.nights.config) as service:
        for host in hosts:
            service.agent().ask("run", host=host)
        wait_for(lambda: len(gated.begun) == 2)
    assert gated.processes("run-job") == 2  # these continue
    with serving(gated.nights.config, "--idle", "1") as service:
        with pytest.raises(subprocess.TimeoutExpired):
            service.process.wait(2)
        gated.open()
        assert service.process.wait(60) == 0  # it got no request
    wait_for(lambda: not gated.processes("run-job"))
    assert {host: len(gated.nights.names(host)) for host in hosts} == dict.fromkeys(hosts, 1)
    assert gated.most == 2


def test_a_waiting_one_that_cannot_be_begun_any_more_is_told_as_failed_and_the_others_go_on(gated: Gated) -> None:
    gated.hosts("h0", "h1", "h2", "h3")
    with serving(gated.nights.config) as service:
        jobs = [service.agent().ask("run", host=host)["job"] for host in ("h0", "h1", "h2", "h3")]
        wait_for(lambda: len(gated.begun) == 2)
        (gated.nights.state / "jobs/asked" / f"{jobs[2]}.json").unlink()  # as a restart of a machine with systemd does
        gated.open()
        wait_for(lambda: over(service))
        assert {host: job["state"] for host, job in jobs_by_host(service).items()} == {
            "h0": "done",
            "h1": "done",
            "h2": "failed",
            "h3": "done",
        }
        assert "restarted" in jobs_by_host(service)["h2"]["error"]


# --- beside a night


def test_a_night_and_what_is_asked_for_meanwhile_have_the_places_of_the_pool_together(gated: Gated, backupd_running: Start) -> None:
    nightly, asked_for = [f"n{number}" for number in range(5)], ["a0", "a1", "a2"]
    gated.hosts(*nightly)
    night = backupd_running("--config", gated.nights.config, "run")
    wait_for(lambda: len(gated.begun) == 2)
    gated.hosts(*asked_for)
    with serving(gated.nights.config) as service:
        for host in asked_for:
            service.agent().ask("run", host=host)
        wait_for(lambda: any("waits for a slot" in line for line in lines_of(service, "a0")))
        gated.open()
        wait_for(lambda: over(service))
        assert {job["state"] for job in jobs_by_host(service).values()} == {"done"}
    assert night.wait(60) == 0
    assert gated.most == 2
    assert sorted(gated.begun) == sorted([*nightly, *asked_for])


def lines_of(service: Service, host: str) -> list[str]:
    lines: list[str] = service.agent().ask("job", job=jobs_by_host(service)[host]["job"])["lines"]
    return lines


def test_the_cap_of_a_group_counts_hosts_of_other_runs(gated: Gated, backupd_running: Start) -> None:
    gated.nights.tables["group.far"] = {"concurrency": 1}
    gated.hosts("f0", "f1", group="far")
    gated.hosts("near")
    first = backupd_running("--config", gated.nights.config, "run", "f0")
    wait_for(lambda: gated.begun == ["f0"])
    second = backupd_running("--config", gated.nights.config, "run", "--wait", "f1", "near")
    wait_for(lambda: sorted(gated.begun) == ["f0", "near"])
    gated.open()
    assert (first.wait(60), second.wait(60)) == (0, 0)
    text = gated.log.read_text().splitlines()
    assert text.index("-f0") < text.index("+f1")


def test_who_names_a_host_in_a_shell_need_not_wait_and_is_told_that_it_is_one_more(gated: Gated, backupd_running: Start) -> None:
    gated.hosts("n0", "n1", "urgent")
    night = backupd_running("--config", gated.nights.config, "run", "n0", "n1")
    wait_for(lambda: len(gated.begun) == 2)
    urgent = backupd_running("--config", gated.nights.config, "run", "urgent")
    wait_for(lambda: "urgent" in gated.begun)
    gated.open()
    assert (night.wait(60), urgent.wait(60)) == (0, 0)
    assert "2 transfers run" in urgent.communicate()[0]


def until_said(process: "subprocess.Popen[str]", words: str) -> None:
    assert process.stdout
    assert any(words in line for line in process.stdout)


def test_a_run_that_waits_is_stopped_at_once_and_a_place_of_a_killed_run_is_free(gated: Gated, backupd_running: Start) -> None:
    gated.hosts("n0", "n1", "n2", "n3")
    first = backupd_running("--config", gated.nights.config, "run", "n0", "n1")
    wait_for(lambda: len(gated.begun) == 2)
    stopped = backupd_running("--config", gated.nights.config, "run", "--wait", "n2")
    until_said(stopped, "n2 waits for a slot")
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait(60) == 143
    other = backupd_running("--config", gated.nights.config, "run", "--wait", "n3")
    until_said(other, "n3 waits for a slot")
    first.kill()
    wait_for(lambda: "n3" in gated.begun)
    gated.open()
    assert other.wait(60) == 0
    assert not (gated.nights.pool / "hosts/n2").exists()


def test_who_has_the_turn_and_goes_no_further_holds_up_the_others_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like a process that was stopped with Ctrl-Z."""
    monkeypatch.setattr("backupd.run.slots._LOOK", 0.01)
    monkeypatch.setattr("backupd.run.slots._PATIENCE", 5)
    slots_of_hosts, looks = list[Slots](), count()
    with take_lock(tmp_path / "slot-turn", "a run", "now"), HeldSlots(tmp_path, "another", "now") as places:
        assert asyncio.run(places.wait([Slots("slot", 1, "")], RunCancellation(), lambda: next(looks) > 50, slots_of_hosts.append))
        assert is_locked(tmp_path / "slot-0")
    assert len(slots_of_hosts) == 1
    assert not is_locked(tmp_path / "slot-0")


def test_relative_paths_are_those_of_the_folder_it_was_started_in(
    nights: Nights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("main.toml").symlink_to(nights.config)
    Path("main.d").symlink_to(nights.config.with_suffix(".d"))
    with serving(Path("main.toml"), socket=Path("here.sock")) as service:
        assert service.agent().ask("jobs") is not None
    assert not (tmp_path / "here.sock").exists()
