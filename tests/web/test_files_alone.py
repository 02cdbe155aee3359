"""The pages of files with the agent of the tests: names of any bytes in both directions, and refused requests."""

import html
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from btrkeep.config.config_model import HostConfig
from btrkeep.serving.protocol import RequestRefused
from btrkeep.units import printable
from tests.beds.gate import examples
from tests.web.made import NOW, backup, client, write
from web.files.data import bytes_of, text_of

NAME = st.binary(min_size=1, max_size=30).filter(lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b".."))
WHEN = {"mtime": "2026-11-20T21:00:00Z", "mtime_ns": 0}


class Rigged:
    """Answers for `RootServiceClient`: a folder /x with the names that a test gives, all files; it can be too busy."""

    def __init__(self) -> None:
        self.names: list[bytes] = []
        self.asked: list[tuple[str, Mapping[str, Any]]] = []
        self.refuses: dict[str, RequestRefused] = {}
        self.more: dict[str, Any] = {}

    def ask(self, verb: str, **arguments: Any) -> Any:
        self.asked.append((verb, arguments))
        if verb in self.refuses:
            raise self.refuses[verb]
        which = {"name": "2026-11-20T210000Z", "state": "complete", "started": "2026-11-20T21:00:00Z"}
        if verb == "compare":
            sides = {"before": which, "after": which, "text": None, "note": None}
            entry = self.entry(arguments["path"].encode() + b"/<b>\n", "file")
            answer = {"path": entry["path"], "what": "added", "fields": [], "before": None, "after": entry}
            return {**sides, "differences": [answer], "more": True, "over": True, "next": entry["path"]}
        if verb == "versions":
            seen = [{"name": which["name"], "started": which["started"], "state": "complete", "found": "there", "version": None}]
            return {
                "path": arguments["path"],
                "by_content": arguments["content"],
                "versions": [],
                "gone": [],
                "backups": seen,
                **self.more,
            }
        is_folder = arguments["path"] == "/x"
        inside = [self.entry(b"/x/" + name, "file") for name in self.names] if is_folder else []
        entry = self.entry(bytes_of(arguments["path"]), "folder" if is_folder else "file")
        return {"backup": which, "path": arguments["path"], "entry": entry, "entries": inside, "total": len(inside)}

    def entry(self, path: bytes, kind: str) -> dict[str, Any]:
        numbers = {"size": 0, "allocated": 0, "mode": "0644", "uid": 0, "gid": 0, "inode": 1, "links": 1, "target": None}
        return {"path": text_of(path), "name": text_of(path.rsplit(b"/", 1)[1]), "kind": kind, **numbers, **WHEN}

    def stream(self, verb: str, **arguments: Any) -> Any:
        self.asked.append((verb, arguments))
        raise RequestRefused("not now", "", "busy")


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Rigged:
    rigged = Rigged()
    monkeypatch.setattr("web.files.page.root_service", lambda: rigged)
    return rigged


@pytest.fixture
def visitor(tmp_path: Path) -> FlaskClient:
    with write(tmp_path, [HostConfig("web1", paths=("/x",))], [backup("web1", NOW)]):
        pass
    return client(tmp_path)


@pytest.mark.slow
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(NAME, min_size=1, max_size=5, unique=True))
@example([b"caf\xe9", b"two\nlines", "\u202egnp.exe".encode(), b"<script>alert(1)<script>", b"a+b %41&path=#?;=", b"'\"", b" "])
def test_every_name_comes_back_from_its_link_as_the_bytes_that_it_was(
    agent: Rigged, visitor: FlaskClient, names: list[bytes]
) -> None:
    agent.names = names
    page = visitor.get("/files/web1?path=/x").get_data(as_text=True)
    links = re.findall(r'<th scope="row"><a href="([^"]+)">(?:<bdi class="name">(.*?)</bdi>)', page)
    assert len(links) == len(names)
    for name, (link, shown) in zip(names, links, strict=True):
        assert html.unescape(shown) == printable(name)
        agent.asked.clear()
        assert visitor.get(html.unescape(link)).status_code == 200
        verb, arguments = agent.asked[0]
        assert (verb, bytes_of(arguments["path"])) == ("browse", b"/x/" + name)
    boxes = [html.unescape(value) for value in re.findall(r'name="path" value="([^"]*)"', page)]
    assert all(value.isascii() and value.isprintable() for value in boxes)


@pytest.mark.parametrize("path", ["/x", "/x/file"])
def test_a_service_that_is_too_busy_for_the_history_lets_the_page_be_seen(agent: Rigged, visitor: FlaskClient, path: str) -> None:
    agent.names = [b"file"]
    agent.refuses["versions"] = RequestRefused("too many such requests are running", "try again in a moment", "busy")
    answer = visitor.get(f"/files/web1?path={path}")
    assert answer.status_code == 200
    assert visitor.get(f"/files/web1/versions?path={path}").status_code == 503


@pytest.mark.parametrize(
    ("kind", "status"),
    [("usage", 400), ("missing", 404), ("refused", 409), ("locked", 409), ("busy", 503), ("unusable", 503), ("failed", 502)],
)
def test_what_the_service_refuses_has_its_own_status_and_says_why(
    agent: Rigged, visitor: FlaskClient, kind: str, status: int
) -> None:
    agent.refuses["browse"] = RequestRefused("<b>because</b>", "do so", kind)
    answer = visitor.get("/files/web1?path=/x")
    assert answer.status_code == status
    assert "&lt;b&gt;because" in answer.get_data(as_text=True)
    assert "<b>because" not in answer.get_data(as_text=True)


def test_a_host_without_a_backup_says_that_there_is_none(agent: Rigged, tmp_path: Path) -> None:
    with write(tmp_path, [HostConfig("web1", paths=("/x",))]):
        pass
    agent.refuses["browse"] = RequestRefused("web1 has no backup that can be restored from", "", "missing")
    answer = client(tmp_path).get("/files/web1")
    assert answer.status_code == 404
    assert "This host has no backup to restore from" in answer.get_data(as_text=True)


def test_versions_for_which_time_was_too_short_lead_on_to_the_others(agent: Rigged, visitor: FlaskClient) -> None:
    agent.more = {"of": 34, "next": "2026-11-20T210000Z"}
    page = visitor.get("/files/web1/versions?path=/x&content=1").get_data(as_text=True)
    (link,) = (html.unescape(row) for row in re.findall(r'<a href="([^"]+)">Continue from there', page))
    assert "1 backup of 34" in page
    agent.more = {"of": 34, "next": None}
    assert "Continue from there" not in visitor.get(link).get_data(as_text=True)
    assert agent.asked[-1][1] == {"host": "web1", "path": "/x", "content": True, "since": "2026-11-20T210000Z"}


def test_a_comparison_for_which_time_was_too_short_says_up_to_which_path_it_came(agent: Rigged, visitor: FlaskClient) -> None:
    page = visitor.get("/files/web1/compare?path=/x&before=2026-11-20").get_data(as_text=True)
    assert "longer than the time limit of a page" in page
    assert "up to <code>/x/&lt;b&gt;\\n</code>" in page
    assert "No differences" not in page
    (link,) = (html.unescape(row) for row in re.findall(r'<a rel="next" href="([^"]+)">', page))
    assert "Continued after <code>/x/&lt;b&gt;\\n</code>" in visitor.get(link).get_data(as_text=True)
    assert agent.asked[-1][1]["since"] == "/x/<b>\n"
