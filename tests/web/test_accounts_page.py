"""One's own sessions, ended one by one, and all users for an admin. Without it a lost laptop stays logged in, or a user would see
who else has access.
"""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from btrkeep.serving.protocol import Request, RequestRefused
from tests.web.gate import CHEAP, Gate, add_user, gate, made
from web.auth import LoginSession, Token, digest, new_word, passwords, service
from web.auth.store import Store
from web.dashboard_settings import Settings


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(passwords, "_HASHER", CHEAP)
    site = made(tmp_path)
    for name, role, hosts in (("alice", "operator", None), ("root", "admin", None), ("acme", "admin", ("acme-*",))):
        add_user(site, name, role, hosts)
    return site


def logged_in(settings: Settings, name: str, address: str = "192.0.2.1") -> Gate:
    browser = gate(settings, REMOTE_ADDR=address)
    assert browser.log_in(name).status_code == 303
    return browser


def identifiers(browser: Gate) -> list[str]:
    return re.findall(r'name="id" value="([0-9a-f]{16})"', browser.get("/account").text)


def test_a_session_is_ended_alone(settings: Settings) -> None:
    here, lost, other = (logged_in(settings, "alice", f"192.0.2.{number}") for number in (1, 2, 3))
    rows = re.findall(r'192.0.2.2</td>.*?name="id" value="([0-9a-f]{16})"', here.get("/account").text, re.DOTALL)
    assert here.post("/account/end", {"id": rows[0]}).status_code == 303
    assert [browser.get("/account").status_code for browser in (here, lost, other)] == [200, 303, 200]
    here.post("/account/end", {"id": rows[0]})
    assert "had ended already" in here.get("/account").text


def test_nobody_ends_a_session_of_another_user(settings: Settings) -> None:
    alice, root = logged_in(settings, "alice"), logged_in(settings, "root")
    logged_in(settings, "root", "192.0.2.9")
    [stolen] = identifiers(root)
    alice.post("/account/end", {"id": stolen})
    assert identifiers(root) == [stolen]
    assert len(Store(settings.data).sessions("root")) == 2


def test_only_an_admin_of_all_hosts_sees_the_users(settings: Settings) -> None:
    store = Store(settings.data)
    store.add_token(Token("prometheus", "viewer", None, datetime.now(UTC), None), digest("btrkeep_secret"))
    for name in ("alice", "acme"):
        browser = logged_in(settings, name)
        assert browser.get("/account/users").status_code == 403, name
        assert "/account/users" not in browser.get("/account").text
    page = logged_in(settings, "root").get("/account/users").text
    for text in ("alice", "acme-*", "prometheus", "192.0.2.1"):
        assert text in page
    hashes = [user.hash for user in store.users()]
    assert not [text for text in (*hashes, "argon2", digest("btrkeep_secret").hex(), "btrkeep_secret") if text in page]


@pytest.mark.parametrize("name", ["alice", "acme"])
def test_the_login_service_decides_itself_who_sees_the_users(settings: Settings, name: str) -> None:
    store, now, word = Store(settings.data), datetime.now(UTC), new_word()
    user = store.user(name)
    assert user
    assert store.add_session(LoginSession(digest(word), name, now, now, "192.0.2.1", ""), user.hash)
    with pytest.raises(RequestRefused, match="only an admin of all hosts"):
        service._VERBS["accounts"](service.LoginService(store), Request("accounts", "", {}, word))
