"""The page of a job: how far it is, its output, and at the end what it did. Without it a user who restored a file reads "writing: 0
of 3 names" and "The job has ended." and does not know whether his file is back.
"""

from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from backupd.files.cli.restore_view import progress_line
from backupd.files.restore_types import RestoreProgress
from btrkeep.config.config_model import HostConfig
from tests.web.made import EVENING, ME, MY_START, NOW, backup, client, write
from web.jobs.data import progress_bar

JOB = "20261121T213345Z-dddfa746"
NOTHING = {"count": 0, "bytes": 0, "samples": []}
RESULT = {
    **dict.fromkeys(("new", "kept", "refused", "entered", "problems"), NOTHING),
    "overwritten": {"count": 30, "bytes": 64, "samples": [{"place": "/etc/caf\udce9", "why": "differs: size"}]},
    "same": {"count": 2, "bytes": 9, "samples": []},
    "differences": {"count": 1, "bytes": 0, "samples": [{"place": "/etc/<b>", "why": "content"}]},
}


class Service:
    """A root service with one restore."""

    def __init__(self) -> None:
        self.job: dict[str, Any] = {
            "job": JOB,
            "verb": "restore",
            "host": "web1",
            "who": "olga",
            "state": "running",
            "asked": "2026-11-21T07:59:00Z",
            "started": "2026-11-21T07:59:00Z",
            "arguments": {"backup": "2026-11-20T210000Z", "paths": ["/etc/caf\udce9"], "to": "host", "overwrite": "all"},
            "lines": ["scanning: 3 names", "writing: 0 of 3 names, 1.50 MiB of 6.00 MiB, 2.00 MiB/s, 3 s left"],
        }
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def ask(self, verb: str, **arguments: Any) -> Any:
        self.asked.append((verb, arguments))
        return [self.job] if verb == "jobs" else self.job


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    service = Service()
    monkeypatch.setattr("web.jobs.page.root_service", lambda: service)
    monkeypatch.setattr("web.hosts.page.root_service", lambda: service)
    return service


@pytest.fixture
def visitor(tmp_path: Path) -> FlaskClient:
    with write(tmp_path, [HostConfig("web1", paths=("/x",))], [backup("web1", NOW)]):
        pass
    return client(tmp_path)


def test_a_line_of_progress_that_the_command_prints_is_a_bar() -> None:
    progress = RestoreProgress("writing", 1, 3 << 20, 4, 12 << 20)
    for spent in (0.5, 10.0):
        parsed = progress_bar(progress_line(progress, progress.begun + spent))
        assert parsed
        assert parsed.share == 0.25
    without_sizes = progress_bar(progress_line(RestoreProgress("comparing", 1500, 0, 2000), 0))
    assert without_sizes
    assert without_sizes.share == 0.75
    for phase in ("looking", "syncing"):
        unknown = progress_bar(progress_line(RestoreProgress(phase, 7), 0))
        assert unknown
        assert unknown.share is None
    assert progress_bar("note: writing: 1 of 2 names") is None


def test_a_running_restore_has_a_bar_with_its_rate_and_is_asked_again(service: Service, visitor: FlaskClient) -> None:
    page = visitor.get(f"/jobs/{JOB}").get_data(as_text=True)
    assert '<progress max="1" value="0.25"' in page
    assert "2.00 MiB/s, 3 s left" in page
    assert f'data-live="/jobs/{JOB}"' in page
    assert "data-over" not in page


def test_a_restore_that_ended_has_its_result_its_files_and_a_way_to_them(service: Service, visitor: FlaskClient) -> None:
    summary = "30 files replaced, 2 already the same; 1 difference"
    service.job |= {
        "state": "failed",
        "exit": 1,
        "result": RESULT,
        "summary": summary,
    }
    page = visitor.get(f"/jobs/{JOB}", headers={"X-Live": "1"}).get_data(as_text=True)
    assert f"{summary}." in page
    assert "Not everything was restored" in page
    assert "Replaced: 1 of 30 files, 64 B" in page
    assert "/etc/caf\\xe9" in page
    assert "/etc/&lt;b&gt;" in page
    assert "Could not be restored" not in page
    assert 'href="/files/web1?path=/etc&amp;backup=2026-11-20T210000Z"' in page
    assert "<progress" not in page
    assert "data-over" in page, "the script asks no more, and the root service can end"
    service.job["state"] = "done"
    assert "Not everything" not in visitor.get(f"/jobs/{JOB}").get_data(as_text=True)


def test_a_hosts_runs_have_its_restores_with_what_they_did(service: Service, visitor: FlaskClient) -> None:
    service.job |= {"state": "done", "summary": "1 file replaced; 64 B read again and compared, no difference"}
    page = visitor.get("/hosts/web1?tab=runs").get_data(as_text=True)
    assert "1 file replaced; 64 B read again and compared, no difference." in page
    assert f'href="/jobs/{JOB}"' in page
    assert service.asked == [("jobs", {"limit": 20, "of_host": "web1", "of_verb": "restore"})]
    visitor.get("/hosts/web1?tab=runs", headers={"X-Live": "1"})
    visitor.get("/hosts/web1")
    assert len(service.asked) == 1, "a page that refreshes itself does not keep the root service running"


def test_a_running_expiry_is_a_link_to_its_page(tmp_path: Path) -> None:
    with write(tmp_path, [HostConfig("web1", paths=("/x",))], [backup("web1", NOW)]) as catalogue:
        catalogue.start_expiry(started=EVENING, pid=ME, pid_started=MY_START, planned=4)
    page = client(tmp_path).get("/").get_data(as_text=True)
    assert '<a href="/jobs/expire-1">Expiry</a>' in page
