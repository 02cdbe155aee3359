"""Jobs are stopped in the browser after a page that shows what stays. Without this, a user would stop more than he meant, or see or
stop the job of a neighbour.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from btrkeep.catalogue import Catalogue, Progress
from btrkeep.config import HostConfig
from btrkeep.decisions.verification import RunningVerification, note_verifying
from tests.beds.nights import Nights
from tests.beds.serving import Service, serving
from tests.web.made import EVENING, ME, MY_START, NOW, client, login_of, run, token, write


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """web1 and db1 in a night, web2 alone, an expiry and a balance, all of this process, so that they are running."""
    hosts = [HostConfig(name, paths=("/srv",)) for name in ("web1", "web2", "db1")]
    runs = [run(name, EVENING, None, pid=ME, pid_started=MY_START, night=True) for name in ("web1", "db1")]
    with write(tmp_path / "state", hosts, runs=runs) as catalogue:
        for entry in catalogue.unfinished_runs():
            catalogue.put_progress(Progress(entry.host, entry.id, ME, MY_START, "/srv", 5, 10, 1000, 1.0, 0.5, NOW))
        note_verifying(catalogue, RunningVerification(ME, MY_START, EVENING, NOW, "[1/2] web1 n1: 5 of 9 files"))
        catalogue.start_expiry(started=EVENING, pid=ME, pid_started=MY_START, planned=4)
    return tmp_path / "state"


def links(page: str) -> list[str]:
    return [part.partition('"')[0] for part in page.split('href="') if part.partition('"')[0].endswith("/stop")]


def test_who_may_stop_a_running_job_gets_a_link_and_nobody_else(state: Path) -> None:
    names = ("backup-1", "backup-2", "expire-1", "verify")
    assert sorted(links(client(state).get("/").text)) == [f"/jobs/{name}/stop" for name in names]
    assert "[1/2] web1 n1: 5 of 9 files" in client(state).get("/").text
    assert links(client(state).get("/hosts/web1").text) == ["/jobs/backup-1/stop"]
    assert links(client(state).get("/log/1").text) == ["/jobs/backup-1/stop"]
    assert "/jobs/night-1/stop" in links(client(state).get("/jobs").text)
    for person in (client(state, "viewer"), client(state, hosts=("web*",))):
        assert [links(person.get(path).text) for path in ("/", "/hosts/web1", "/log/1", "/jobs")] == [[], [], [], []]


def test_the_page_before_a_stop_shows_all_that_would_stop_and_what_stays(state: Path) -> None:
    page = client(state).get("/jobs/backup-1/stop").text
    assert "so all of it stops. 2 transfers end: db1, web1." in page
    assert "Their files stay in unfinished backups, which are <em>partial</em>; the next run continues them." in page
    assert 'method="post" action="/jobs/backup-1/stop"' in page
    assert "Deleted backups stay deleted; the others stay marked as expired" in client(state).get("/jobs/expire-1/stop").text


def statuses(person: FlaskClient) -> list[int]:
    names = ("backup-1", "backup-2", "night-1", "expire-1", "verify", "backup-99")
    return [person.get(f"/jobs/{name}/stop").status_code for name in names]


def test_a_viewer_stops_nothing_and_a_neighbours_job_looks_like_none(state: Path) -> None:
    assert statuses(client(state, "viewer")) == [403] * 6
    assert statuses(client(state, hosts=("web*",))) == [404] * 6
    assert statuses(client(state)) == [200, 200, 200, 200, 200, 409]


@pytest.fixture
def busy(shared_btrfs: Path) -> Iterator[tuple[Nights, Service]]:
    """A host whose connection never answers."""
    nights = Nights(shared_btrfs)
    nights.host("web1", nights.source)
    nights.ssh("sleep 600 #")
    nights.backupd("check", check=False)  # publishes the configuration
    with serving(nights.config, "--login", login_of()) as result:
        yield nights, result


@pytest.mark.btrfs
@pytest.mark.root
@pytest.mark.slow
def test_a_job_is_stopped_with_two_clicks_and_its_page_names_who_did_it(busy: tuple[Nights, Service]) -> None:
    nights, service = busy
    olga = client(nights.state, socket=service.socket)
    form = {"csrf_token": token(olga.get("/hosts/web1/run").text)}
    job = olga.post("/hosts/web1/run", data=form).location
    end = time.monotonic() + 60
    while "Stop</a>" not in olga.get(job).text or "state-running" not in olga.get(job).text:
        assert time.monotonic() < end, olga.get(job).text
        time.sleep(0.1)
    page = olga.get(f"{job}/stop").text
    assert "the unfinished backup of <b>web1</b>, which is <em>partial</em>; the next run continues it" in page
    assert olga.post(f"{job}/stop").status_code == 400  # without the token of the form
    answer = olga.post(f"{job}/stop", data={"csrf_token": token(page)})
    assert (answer.status_code, answer.location) == (303, job)
    while "stopped by somebody" not in (text := olga.get(job).text):
        assert time.monotonic() < end, text
        time.sleep(0.1)
    assert links(text) == []
    assert ">stopped</span>" in text
    assert olga.get(f"{job}/stop").status_code == 409
    with Catalogue.open(nights.state) as catalogue:
        assert not catalogue.unfinished_runs()
