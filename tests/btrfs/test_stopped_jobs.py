"""Users stop jobs in the dashboard. Without this, a run that should end could only be ended on the server, or a user could end the
work of another; and after a stop transferred files could be lost.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from btrkeep.catalogue import Catalogue
from btrkeep.decisions.verification import read_verifying
from btrkeep.serving.client import RootServiceClient
from btrkeep.serving.protocol import RequestRefused
from tests.beds.logins import logins_at
from tests.beds.nights import Nights
from tests.beds.serving import Service, serving
from tests.beds.watch import held_at, wait_for
from tests.btrfs.test_asked_runs import Gated, Start
from web.auth import Token, digest

pytestmark = [pytest.mark.btrfs, pytest.mark.root]

RIGHTS = {"viewer": ("viewer", None), "olga": ("operator", ("web*",)), "otto": ("operator", None)}


@pytest.fixture
def gated(nights: Nights) -> Iterator[Gated]:
    nights.settings("backup", concurrency=1)
    result = Gated(nights)
    result.hosts("web1", "web2", "db1")
    yield result
    result.open()


@pytest.fixture
def service(gated: Gated, tmp_path: Path) -> Iterator[Service]:
    logins = logins_at(tmp_path / "s", tmp_path / "users")
    for name, (role, hosts) in RIGHTS.items():
        logins.store.add_token(Token(name, role, hosts, datetime(2026, 11, 23, tzinfo=UTC), None), digest(f"btrkeep_{name}"))
    with serving(gated.nights.config, "--login", tmp_path / "s") as result:
        yield result


def refusal(service: Service, name: str, verb: str, **arguments: object) -> tuple[str, str]:
    """Returns the kind and the message with which it is refused; two empty texts if it is not."""
    try:
        RootServiceClient(service.socket, "root", 20, f"btrkeep_{name}").ask(verb, **arguments)
    except RequestRefused as refused:
        return refused.kind, refused.message
    return "", ""


def state_of(service: Service, job: str) -> dict[str, Any]:
    answer: dict[str, Any] = service.agent().ask("job", job=job)
    return answer


def actions(nights: Nights) -> list[tuple[str, str, str | None]]:
    lines = (nights.pool / ".btrkeep" / "actions.jsonl").read_text().splitlines()
    return [(action["what"], action["by"], action["host"]) for action in map(json.loads, lines)]


def states(nights: Nights, host: str) -> list[str]:
    return [row["state"] for row in nights.listed(host)]


def test_a_stopped_backup_is_partial_keeps_its_files_and_names_who_stopped_it(gated: Gated, service: Service) -> None:
    gated.open()
    folder, working = gated.nights.source / "srv", gated.nights.pool / "hosts" / "web1" / ".working"
    (folder / "large").write_bytes(os.urandom(8 << 20))
    gated.hosts("web1", bandwidth="500KB")
    job = service.agent("alice").ask("run", host="web1")["job"]
    wait_for(lambda: any(path.stat().st_size > 1 << 20 for path in working.rglob("*large*") if path.is_file()))
    assert service.agent("bob").ask("stop", job=job)["stopped"] == "backup"
    wait_for(lambda: state_of(service, job)["state"] == "failed")
    ended = state_of(service, job)
    assert (ended["error"], ended["stopped"], ended["exit"]) == ("stopped by bob", "bob", 143)
    assert actions(gated.nights) == [("stop", "bob", "web1")]
    with pytest.raises(RequestRefused, match="has ended already"):
        service.agent("bob").ask("stop", job=job)
    assert states(gated.nights, "web1") == ["partial"]
    gated.hosts("web1")
    gated.nights.run("web1")
    assert states(gated.nights, "web1") == ["complete"]


def test_the_signal_is_sent_once_because_a_second_one_would_not_let_it_end_cleanly(gated: Gated, service: Service) -> None:
    gated.hosts("web1", after=["sleep", "3"])  # the first signal lets it finish
    job = service.agent("alice").ask("run", host="web1")["job"]
    wait_for(lambda: gated.begun == ["web1"])
    service.agent("alice").ask("stop", job=job)
    with pytest.raises(RequestRefused, match="alice stopped this job already"):
        service.agent("bob").ask("stop", job=job)
    wait_for(lambda: state_of(service, job)["state"] == "failed")


def test_a_waiting_backup_is_removed_from_the_queue_and_never_starts(gated: Gated, service: Service) -> None:
    service.agent("alice").ask("run", host="web1")
    wait_for(lambda: gated.begun == ["web1"])
    waiting = service.agent("alice").ask("run", host="web2")["job"]
    assert state_of(service, waiting)["state"] == "queued"
    service.agent("alice").ask("stop", job=waiting)
    assert (state_of(service, waiting)["state"], state_of(service, waiting)["stopped"]) == ("failed", "alice")
    third = service.agent("alice").ask("run", host="db1")["job"]
    gated.open()
    wait_for(lambda: state_of(service, third)["state"] == "done")
    assert gated.begun == ["web1", "db1"]


def test_each_stops_what_his_role_and_hosts_allow_and_a_neighbours_job_looks_like_none(gated: Gated, service: Service) -> None:
    job = service.agent("alice").ask("run", host="db1")["job"]
    wait_for(lambda: gated.begun == ["db1"])
    with Catalogue.open(gated.nights.state) as catalogue:
        (run,) = catalogue.unfinished_runs()
    for job_id in (job, f"backup-{run.id}", "backup-999", f"night-{run.id}", "expire-1", "balance-1", "verify"):
        assert refusal(service, "olga", "stop", job=job_id) == ("missing", f"there is no job {job_id}")
    assert refusal(service, "viewer", "stop", job=job)[0] == "refused"
    assert refusal(service, "viewer", "stop", job=f"backup-{run.id}")[0] == "refused"
    assert state_of(service, job)["state"] == "running"
    assert refusal(service, "otto", "stop", job=f"backup-{run.id}") == ("", "")
    wait_for(lambda: state_of(service, job)["state"] == "failed")
    assert state_of(service, job)["stopped"] == "token:otto"  # the run belongs to the requested job
    wait_for(lambda: gated.processes("run-job") == 0)


def test_a_run_of_the_timer_is_stopped_as_a_whole_and_not_by_a_user_of_one_host(
    gated: Gated, service: Service, backupd_running: Start
) -> None:
    night = backupd_running("--config", gated.nights.config, "run", stderr=subprocess.PIPE)
    wait_for(lambda: bool(gated.begun))
    with Catalogue.open(gated.nights.state) as catalogue:
        (run,) = catalogue.unfinished_runs()
    assert run.night
    assert refusal(service, "olga", "stop", job=f"night-{run.id}")[0] == "missing"
    assert refusal(service, "olga", "stop", job=f"backup-{run.id}")[0] == "missing"
    assert night.poll() is None
    assert refusal(service, "otto", "stop", job=f"night-{run.id}") == ("", "")
    assert night.wait(60) == 143
    assert actions(gated.nights) == [("stop", "token:otto", None)]
    assert refusal(service, "otto", "stop", job=f"night-{run.id}") == ("refused", "the job has ended already")
    assert len(gated.begun) == 1


def test_a_process_that_has_the_number_of_an_ended_job_is_not_touched(gated: Gated, service: Service) -> None:
    other = subprocess.Popen(["sleep", "60"])
    try:
        with Catalogue.open(gated.nights.state) as catalogue:
            number = catalogue.start_expiry(started=datetime.now(UTC), pid=other.pid, pid_started="1")
        assert refusal(service, "otto", "stop", job=f"expire-{number}") == ("refused", "the job has ended already")
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_verification_is_recorded_while_it_runs_and_can_be_stopped(gated: Gated, service: Service) -> None:
    gated.open()
    gated.nights.run("web1")
    with held_at(gated.nights, "before", "filesystem committed", "verify") as verify:
        with Catalogue.open(gated.nights.state) as catalogue:
            running = read_verifying(catalogue)
        assert running
        assert running.pid == verify.pid
        assert refusal(service, "olga", "stop", job="verify")[0] == "missing"
        assert refusal(service, "otto", "stop", job="verify") == ("", "")
    assert verify.wait(60) == 143
    with Catalogue.open(gated.nights.state) as catalogue:
        assert read_verifying(catalogue) is None
    assert refusal(service, "otto", "stop", job="verify") == ("refused", "the job has ended already")
