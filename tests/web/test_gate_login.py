"""Logging in and out: stored data, pages, limits of attempts, and the end of a session."""

import logging
import re
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import pytest
from argon2 import PasswordHasher, extract_parameters
from hypothesis import given
from hypothesis import strategies as st

from tests.web.gate import CHEAP, PASSWORD, Gate, add_user, gate, made
from web.auth import LoginSession, digest, passwords, service
from web.auth.store import Store
from web.dashboard_settings import Settings
from web.request_values import is_within, within

pytestmark = pytest.mark.slow  # a dashboard of its own for each

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
EVIL = (
    "//evil.example",
    "///evil.example",
    "/\\evil.example",
    "\\\\evil.example",
    "https://evil.example",
    "/\t/evil.example",
    "/\n/evil.example",
    "javascript:alert(1)",
    "evil.example",
    "/é",
    "",
    "/" * 3000,
)


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "_HASHER", CHEAP)
    monkeypatch.setattr(passwords, "NOBODY", CHEAP.hash("nobody's"))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    site = made(tmp_path)
    add_user(site, "alice")
    return site


@pytest.fixture
def here(settings: Settings) -> Gate:
    return gate(settings)


def database(settings: Settings) -> sqlite3.Connection:
    return sqlite3.connect(settings.data / "users.sqlite", isolation_level=None)


def test_who_knows_the_password_comes_in_and_goes_on_to_where_he_wanted(here: Gate) -> None:
    asked = here.get("/hosts?state=late")
    assert (asked.status_code, asked.location) == (303, "/login?next=/hosts?state%3Dlate")
    answer = here.log_in(next="/account?x=1")
    assert (answer.status_code, answer.location) == (303, "/account?x=1")
    assert here.get("/account").status_code == 200


def test_the_cookie_is_no_scripts_business_and_what_it_holds_is_not_in_the_database(here: Gate, settings: Settings) -> None:
    output = here.log_in().headers["Set-Cookie"]
    assert {"HttpOnly", "Path=/", "SameSite=Lax"} <= set(output.split("; "))
    assert "Secure" not in output  # requested over http
    with here.client.session_transaction() as session:
        word = session["sid"]
    assert len(word) > 40
    kept = b"".join(path.read_bytes() for path in settings.data.iterdir() if path.is_file())
    assert word.encode() not in kept
    assert PASSWORD.encode() not in kept
    assert b"$argon2id$" in kept


def test_a_wrong_password_and_a_wrong_name_are_answered_alike(here: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = type(CHEAP).verify

    def verify(self: object, text: str, password: bytes) -> bool:
        asked.append(text)
        return real(CHEAP, text, password)

    monkeypatch.setattr(type(CHEAP), "verify", verify)
    pages = []
    for name in ("alice", "nobody"):
        answer = here.log_in(name, "wrong wrong wrong")
        pages.append((answer.status_code, re.sub(r'value="[^"]*"', "", answer.text)))
    assert pages[0] == pages[1]
    assert pages[0][0] == 401
    assert len(asked) == 2  # each was compared with a hash


@pytest.mark.slow
def test_an_unknown_name_takes_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert extract_parameters(passwords.NOBODY) == extract_parameters(passwords.hashed("a password of mine"))
    assert extract_parameters(passwords.NOBODY).memory_cost >= 64 << 10
    assert not passwords.is_right(None, "nobody's")


def test_a_session_that_an_attacker_prepared_is_worth_nothing_after_the_login(here: Gate, settings: Settings) -> None:
    here.get("/login")
    with here.client.session_transaction() as session:
        session["sid"] = "a word that somebody else knows"
        form = session["csrf_token"]
    here.log_in()
    with here.client.session_transaction() as session:
        first = session["sid"]
        assert first != "a word that somebody else knows"
        assert session.get("csrf_token") != form
    here.log_in()
    with here.client.session_transaction() as session:
        assert session["sid"] != first
    assert len(Store(settings.data).sessions("alice")) == 1


def test_logging_out_ends_the_session_also_for_a_kept_cookie(here: Gate, settings: Settings) -> None:
    here.log_in()
    cookie = here.client.get_cookie("btrkeep")
    assert cookie is not None
    assert here.post("/logout", {}).location == "/login"
    assert here.get("/account").status_code == 303
    here.client.set_cookie("btrkeep", cookie.value)
    assert here.get("/account").status_code == 303
    assert Store(settings.data).sessions("alice") == []


def test_a_cookie_that_was_made_up_is_worth_nothing(here: Gate) -> None:
    for value in ("", "x", "eyJzaWQiOiJ4In0.aaaa.bbbb", "a" * 5000):
        here.client.set_cookie("btrkeep", value)
        assert here.get("/account").status_code == 303


@pytest.mark.parametrize(
    ("column", "age", "over"), [("seen", 13, True), ("seen", 11, False), ("created", 169, True), ("created", 167, False)]
)
def test_a_session_ends_when_it_is_idle_and_when_it_is_old(
    here: Gate, settings: Settings, column: str, age: int, over: bool
) -> None:
    here.log_in()
    then = (datetime.now(UTC) - timedelta(hours=age)).timestamp()
    database(settings).execute(f"UPDATE session SET {column} = ?", (then,))
    assert (here.get("/account").status_code == 303) is over


def test_a_page_that_refreshes_itself_does_not_extend_the_session(here: Gate, settings: Settings) -> None:
    here.log_in()
    then = (datetime.now(UTC) - timedelta(hours=2)).timestamp()
    database(settings).execute("UPDATE session SET seen = ?", (then,))
    here.get("/account", headers={"X-Live": "1"})
    assert database(settings).execute("SELECT seen FROM session").fetchone() == (then,)
    here.get("/account")
    assert database(settings).execute("SELECT seen FROM session").fetchone()[0] > then + 7000


def test_a_live_part_without_a_login_gets_an_error_and_no_login_page(here: Gate) -> None:
    answer = here.get("/account", headers={"X-Live": "1"})
    assert answer.status_code == 401


def test_a_user_who_is_removed_or_changed_is_so_with_the_next_click(here: Gate, settings: Settings) -> None:
    here.log_in()
    Store(settings.data).change_user("alice", "viewer", ("web*",), NOW)
    assert "of web*" in here.get("/account").text
    Store(settings.data).remove_user("alice")
    assert here.get("/account").status_code == 303


def test_another_password_ends_all_sessions_but_the_one_that_asked(here: Gate, settings: Settings) -> None:
    elsewhere = gate(settings)
    assert elsewhere.log_in().status_code == 303
    here.log_in()
    form = {"password": PASSWORD, "new": "another good one", "again": "another good one"}
    assert here.post("/account/password", form).status_code == 303
    assert here.get("/account").status_code == 200
    assert elsewhere.get("/account").status_code == 303
    assert elsewhere.log_in().status_code == 401
    assert elsewhere.log_in(password="another good one").status_code == 303


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"password": "wrong wrong", "new": "x" * 12, "again": "x" * 12}, "current password is wrong"),
        ({"password": PASSWORD, "new": "x" * 12, "again": "y" * 12}, "do not match"),
        ({"password": PASSWORD, "new": "short", "again": "short"}, "10 characters"),
        ({}, "current password is wrong"),
    ],
)
def test_a_password_that_will_not_do_changes_nothing(here: Gate, settings: Settings, form: dict[str, str], words: str) -> None:
    here.log_in()
    before = Store(settings.data).user("alice")
    answer = here.post("/account/password", form)
    assert (answer.status_code, words in answer.text) == (400, True)
    assert Store(settings.data).user("alice") == before
    assert here.get("/account").status_code == 200


def test_logging_out_elsewhere_leaves_this_browser(here: Gate, settings: Settings) -> None:
    other = gate(settings)
    other.log_in()
    here.log_in()
    here.post("/account/elsewhere", {})
    assert here.get("/account").status_code == 200
    assert other.get("/account").status_code == 303


# --- how often


def test_after_five_wrong_passwords_the_sixth_waits_even_when_it_is_right(here: Gate, settings: Settings) -> None:
    assert [here.log_in(password="wrong wrong").status_code for _ in range(5)] == [401] * 5
    answer = here.log_in()
    assert answer.status_code == 429
    assert 800 < int(answer.headers["Retry-After"]) <= 901
    assert "Too many attempts" in answer.text
    add_user(settings, "bob")
    assert here.log_in("bob").status_code == 303  # others of the same address are not kept out


def test_right_passwords_are_not_counted(here: Gate) -> None:
    assert {here.log_in().status_code for _ in range(8)} == {303}


def test_an_address_that_tries_many_names_waits(tmp_path: Path) -> None:
    store = Store(tmp_path)
    waits = [service.admit_attempt(store, f"name{number}", "192.0.2.1", NOW) for number in range(service.FOR_ADDRESS + 1)]
    assert [bool(wait) for wait in waits] == [False] * service.FOR_ADDRESS + [True]
    assert service.admit_attempt(store, "alice", "192.0.2.2", NOW) == 0


def test_a_stranger_cannot_keep_an_operator_out_of_where_he_logged_in_before(settings: Settings) -> None:
    store = Store(settings.data)
    service.record_success(store, "alice", "192.0.2.200", NOW)
    for number in range(service.FOR_NAME):
        assert service.admit_attempt(store, "alice", f"198.51.100.{number}", NOW) == 0
    assert service.admit_attempt(store, "alice", "203.0.113.9", NOW) > 0
    assert service.admit_attempt(store, "alice", "192.0.2.200", NOW) == 0
    assert (
        service.admit_attempt(store, "alice", "203.0.113.9", NOW + timedelta(seconds=service.WINDOW + 1)) == 0
    )  # and not for ever


def test_an_attempt_counts_before_it_is_looked_at_and_waits_as_long_as_is_said(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for second in range(5):
        assert service.admit_attempt(store, "alice", "192.0.2.1", NOW + timedelta(seconds=second)) == 0
    later = NOW + timedelta(seconds=100)
    wait = service.admit_attempt(store, "alice", "192.0.2.1", later)
    assert wait == service.WINDOW - 100
    assert service.admit_attempt(store, "alice", "192.0.2.1", later + timedelta(seconds=wait - 1)) > 0
    assert service.admit_attempt(store, "alice", "192.0.2.1", later + timedelta(seconds=wait)) == 0


@pytest.mark.parametrize(
    ("output", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("unix:", "unix:", True),
    ],
)
def test_a_network_of_ipv6_is_one_person(output: str, other: str, same: bool) -> None:
    assert (service.network_of(output) == service.network_of(other)) is same


def test_a_clock_that_was_put_back_locks_out_no_user(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for _ in range(5):
        service.admit_attempt(store, "alice", "192.0.2.1", NOW)
    assert service.admit_attempt(store, "alice", "192.0.2.1", NOW - timedelta(days=1)) == 0


# --- where to go then


@pytest.mark.parametrize("address", EVIL)
def test_no_user_is_sent_to_another_site_after_the_login(here: Gate, address: str) -> None:
    assert here.log_in(next=address).location == "/"
    assert within(address) == "/"
    assert here.get("/login", query_string={"next": address}).location == "/"


@given(st.text(max_size=30).map(lambda text: "/" + text))
def test_what_counts_as_within_has_no_host_for_a_browser(address: str) -> None:
    """The URL standard drops tabs and newlines, and treats backslashes as slashes."""
    read = re.sub(r"[\t\r\n]", "", address).strip().replace("\\", "/")
    if is_within(address):
        assert read.startswith("/")
        assert not read.startswith("//")


# --- the log


def test_who_came_and_who_did_not_is_logged_and_no_password(here: Gate, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        here.log_in(password="a wrong password")
        here.log_in("hunter2-typed-as-name", "x")
        here.log_in()
        here.post("/logout", {})
    lines = [record.getMessage() for record in caplog.records if record.name == "btrkeep.audit"]
    assert [re.sub(r" \(session [0-9a-f]{8}\)$", "", line) for line in lines] == [
        "login failed: alice from 127.0.0.1",
        "login failed: an unknown name from 127.0.0.1",
        "login: alice from 127.0.0.1",
        "logout: alice from 127.0.0.1",
    ]
    assert "hunter2" not in caplog.text
    assert PASSWORD not in caplog.text


@pytest.fixture(autouse=True)
def _levels() -> Iterator[None]:
    logging.getLogger("btrkeep.audit").setLevel(logging.INFO)
    yield
    logging.getLogger("btrkeep.audit").setLevel(logging.NOTSET)


def test_a_user_who_logs_in_again_and_again_keeps_only_the_newest_sessions(here: Gate, settings: Settings) -> None:
    store, now = Store(settings.data), datetime.now(UTC)
    add_user(settings, "mallory")
    mallory = store.user("mallory")
    assert mallory
    for number in range(60):
        moment = now + timedelta(seconds=number)
        assert store.add_session(LoginSession(digest(str(number)), "mallory", moment, moment, "10.0.0.9", ""), mallory.hash)
    assert len(store.sessions("mallory")) == 50
    assert store.session(digest("59"))
    assert not store.session(digest("9"))
    here.log_in()
    assert here.get("/account").status_code == 200


@pytest.mark.parametrize("how", ["changed", "removed"])
def test_a_login_during_a_change_of_the_password_does_not_outlive_it(
    here: Gate, settings: Settings, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Otherwise repeated logins with the old password would succeed between the check and the new session."""
    store, right = Store(settings.data), passwords.is_right

    def check_and_change(text: str | None, password: str) -> bool:
        is_true = right(text, password)
        if how == "changed":
            store.set_hash("alice", CHEAP.hash("another one, and long"), datetime.now(UTC))
        else:
            store.remove_user("alice")
        return is_true

    monkeypatch.setattr(passwords, "is_right", check_and_change)
    assert here.log_in().location == "/login"
    assert store.sessions("alice") == []
    assert here.get("/account").status_code == 303


@pytest.mark.parametrize("asked", ["a new password", "a login that makes an old hash anew"])
@pytest.mark.parametrize("how", ["changed", "removed"])
def test_a_password_that_the_administrator_sets_meanwhile_stays(
    here: Gate, settings: Settings, monkeypatch: pytest.MonkeyPatch, how: str, asked: str
) -> None:
    """Otherwise an attacker who has taken over an account, and changes its password again and again, would keep it."""
    store, right, reset = Store(settings.data), passwords.is_right, CHEAP.hash("the administrator's")
    here.log_in()

    def check_and_change(text: str | None, password: str) -> bool:
        is_true = right(text, password)
        if how == "changed":
            store.set_hash("alice", reset, datetime.now(UTC))
        else:
            store.remove_user("alice")
        return is_true

    monkeypatch.setattr(passwords, "is_right", check_and_change)
    if asked == "a new password":
        new = "the thief's own, and long"
        here.post("/account/password", {"password": PASSWORD, "new": new, "again": new})
    else:
        monkeypatch.setattr(passwords, "_HASHER", PasswordHasher(time_cost=2, memory_cost=8, parallelism=1))
        gate(settings).log_in()
    alice = store.user("alice")
    assert (alice and alice.hash) == (reset if how == "changed" else None)
    assert store.sessions("alice") == []
    assert here.get("/account").status_code == 303


def test_a_flood_of_logins_takes_few_threads_and_the_rest_are_told_to_come_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = gate(settings)
    visitors, begun, go = (
        [Gate(client.app, REMOTE_ADDR=f"10.9.{number}.1") for number in range(12)],
        threading.Semaphore(0),
        threading.Event(),
    )
    for visitor in visitors:
        visitor.get("/login")

    def slow(_text: str | None, _password: str) -> bool:
        begun.release()
        return not go.wait(100)

    monkeypatch.setattr(passwords, "is_right", slow)
    with ThreadPoolExecutor(12) as pool:
        answers = [pool.submit(visitor.log_in, f"name{number}") for number, visitor in enumerate(visitors)]
        for _ in range(6):
            assert begun.acquire(timeout=60)
        refused = [future.result().status_code for future in islice(as_completed(answers, timeout=60), 6)]
        assert refused == [503] * 6
        go.set()
        assert sorted(answer.result().status_code for answer in answers) == [401] * 6 + [503] * 6
    assert client.log_in("name99").status_code == 401  # there are places again
