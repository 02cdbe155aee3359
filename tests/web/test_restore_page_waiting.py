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
    "to": "/srv/restored/web1-2026",
    "why_not": "",
}
CHECK = "20261121T213345Z-dddfa747"


class Slow:
    """An agent whose host is slow to answer."""

    def __init__(self) -> None:
        self.check: dict[str, Any] = {"state": "running", "result": None, "error": None}
        self.folder = False
        self.arguments: dict[str, Any] = {}
        self.state: dict[str, Any] = {"state": "running", "result": None, "error": None, "lines": ["scanning: 7 names"]}

    def ask(self, verb: str, **arguments: Any) -> Any:
        if verb == "hello":
            return {"elsewhere": True, "folder": self.folder}
        if verb == "reach":
            return {"job": CHECK}
        if arguments.get("job") == CHECK:
            return {"job": CHECK, "verb": "reach", "host": "web1", **self.check}
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
    with write(
        tmp_path, [HostConfig("web1", address="root@web1", paths=("/x",)), HostConfig("web2", paths=("/x",))], [backup("web1", NOW)]
    ):
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


def form(visitor: FlaskClient) -> str:
    return visitor.get("/restore/web1?path=/x").get_data(as_text=True)


def test_the_form_opens_before_the_host_has_answered_and_shows_what_was_found_out(agent: Slow, visitor: FlaskClient) -> None:
    """The page does not wait for a host that is down, and explains the key only if that is the reason."""
    live = f"/restore/web1/key/{CHECK}"
    opened = form(visitor)
    assert f'data-live="{live}"' in opened
    assert "authorized_keys" not in opened
    assert "data-over" not in visitor.get(live, headers={"X-Live": "1"}).get_data(as_text=True)
    for result, words, is_about_keys in (
        ({"reason": "", "error": "", "hint": ""}, "can be reached and allows a restore", False),
        ({"reason": "key", "error": "it only reads", "hint": ""}, "does not have the restore key (it only reads)", True),
        ({"reason": "other", "error": "no <route", "hint": ""}, "does not allow a restore now: no &lt;route", False),
        (None, "does not allow a restore now: it took too long", False),
    ):
        agent.check = {"state": "done", "result": result, "error": None if result else "it took too long"}
        for page in (form(visitor), visitor.get(live).get_data(as_text=True)):
            assert words in page
            assert "data-over" in page
            assert ("authorized_keys" in page) == is_about_keys
        assert "data-live" not in form(visitor)
    assert visitor.get(f"/restore/web2/key/{CHECK}").status_code == 404
    agent.arguments = {}
    assert visitor.get(f"/restore/web1/key/{JOB}").status_code == 404


def test_the_folder_of_the_backup_server_is_a_destination_if_the_service_has_one(
    agent: Slow, visitor: FlaskClient, tmp_path: Path
) -> None:
    assert 'value="server"' not in form(visitor)
    agent.folder = True
    assert 'value="server"' in form(visitor)
    fields = {"path": "/x", "place": "server", "overwrite": "never", "csrf_token": token(form(visitor))}
    begun = visitor.post("/restore/web1/preview", data=fields)
    assert (begun.status_code, agent.arguments["to"]) == (303, "folder")
    agent.state |= {"state": "done", "result": RESULT}
    shown = visitor.get(begun.headers["Location"]).get_data(as_text=True)
    assert "/srv/restored/web1-2026</bdi> of the backup server" in shown
    assert 'name="place" value="server"' in shown
    customer = client(tmp_path, "operator", ("web1",))
    limited = form(customer)
    assert 'value="server"' not in limited
    assert "backup server" not in limited
    assert customer.post("/restore/web1/start", data={**fields, "csrf_token": token(limited)}).status_code == 403
