"""The preview on a host takes longer than users wait: they get a page that waits for it."""

from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from btrkeep.config.config_model import HostConfig
from btrkeep.serving.protocol import RequestRefused
from tests.web.made import NOW, backup, client, token, write

JOB = "20261121T213345Z-dddfa746"
COUNT = {"count": 0, "bytes": 0, "samples": []}
RESULT = {
    **dict.fromkeys(("new", "same", "entered", "kept", "refused"), COUNT),
    "overwritten": {"count": 1, "bytes": 7, "samples": [{"place": "/etc/caf\udce9", "why": "differs: size"}]},
    "files": 1,
    "folders": 0,
    "others": 0,
    "bytes": 7,
    "why_not": "",
}


class Slow:
    """An agent whose host is slow to answer."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"state": "running", "result": None, "error": None, "lines": ["scanning: 7 names"]}

    def ask(self, verb: str, **arguments: Any) -> Any:
        if verb == "hello":
            return {"elsewhere": True}
        if verb == "browse":
            which = {"name": "2026-11-20T210000Z", "state": "complete", "started": "2026-11-20T21:00:00Z"}
            numbers = dict.fromkeys(("size", "allocated", "uid", "gid", "mtime_ns", "inode", "links"), 0)
            entry = {"path": "/", "name": "/", "kind": "folder", "mode": "0755", "mtime": None, "target": None, **numbers}
            return {"backup": which, "path": "/", "entry": entry, "entries": [], "total": 0}
        if verb == "preview":
            self.arguments = arguments
            raise RequestRefused("the preview is not ready yet", "any words", "busy", job=JOB)
        return {"job": JOB, "verb": "preview", "host": "web1", "arguments": self.arguments, **self.state}


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Slow:
    slow = Slow()
    monkeypatch.setattr("web.restore.page.root_service", lambda: slow)
    return slow


@pytest.fixture
def visitor(tmp_path: Path) -> FlaskClient:
    with write(tmp_path, [HostConfig("web1", paths=("/x",)), HostConfig("web2", paths=("/x",))], [backup("web1", NOW)]):
        pass
    return client(tmp_path, "admin")


@pytest.mark.slow
def test_a_look_that_takes_long_has_a_page_that_waits_and_then_shows_it(agent: Slow, visitor: FlaskClient) -> None:
    fields = {"path": "/etc/caf%E9", "place": "folder", "into": "/srv/back", "overwrite": "all"}
    words = {**fields, "csrf_token": token(visitor.get("/restore/web1?path=/x").get_data(as_text=True))}
    begun = visitor.post("/restore/web1/preview", data=words)
    assert (begun.status_code, begun.headers["Location"]) == (303, f"/restore/web1/preview/{JOB}")
    assert agent.arguments["to"] == "host:/srv/back"
    waiting = visitor.get(begun.headers["Location"]).get_data(as_text=True)
    assert f'data-wait="/restore/web1/preview/{JOB}"' in waiting
    assert "scanning: 7 names" in waiting
    assert "Restore now" not in waiting
    assert visitor.get(begun.headers["Location"], headers={"X-Wait": "1"}).status_code == 202
    agent.state |= {"state": "done", "result": RESULT}
    assert visitor.get(begun.headers["Location"], headers={"X-Wait": "1"}).status_code == 204
    shown = visitor.get(begun.headers["Location"]).get_data(as_text=True)
    assert "1 name would be overwritten." in shown
    assert "/etc/caf\\xe9" in shown
    for name, value in fields.items():
        assert f'name="{name}" value="{value}"' in shown
    assert visitor.get(f"/restore/web2/preview/{JOB}").status_code == 404


def test_a_look_that_failed_says_why_and_leads_back(agent: Slow, visitor: FlaskClient) -> None:
    agent.arguments = {"backup": "latest", "paths": ["/x"], "to": "host", "overwrite": None}
    agent.state |= {"state": "failed", "error": "web1 cannot be <b>reached"}
    shown = visitor.get(f"/restore/web1/preview/{JOB}").get_data(as_text=True)
    assert "web1 cannot be &lt;b&gt;reached" in shown
    assert "Restore now" not in shown
    assert ">Change</button>" in shown
