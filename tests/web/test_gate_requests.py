"""Rules for every request, whichever page it asks for: logins, headers, forms, names, proxies, errors."""

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flask import Flask
from werkzeug.routing import AnyConverter, BaseConverter, IntegerConverter, Rule

from btrkeep.catalogue import Catalogue, CatalogueBusy, CatalogueUnready, tables
from btrkeep.errors import LockHeld, OperatorError, PoolUnusable
from btrkeep.serving.client import Absent
from btrkeep.serving.protocol import RequestRefused
from tests.web.gate import CHEAP, Gate, add_user, dashboard, gate, made
from web.app import HEADERS, create_app
from web.auth import passwords
from web.dashboard_settings import Settings
from web.source import needs_all_hosts, operator_only, viewer

pytestmark = pytest.mark.slow  # a dashboard of its own for each

OPEN = {"/login", "/healthz", "/static/<path:filename>", "/api/v1/openapi.json"}
"""What wants no login."""
VALUES = {"host": "web1", "backup": "latest", "filename": "style.css", "job": "x", "name": "x"}


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "_HASHER", CHEAP)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    site = made(tmp_path)
    add_user(site, "alice")
    add_user(site, "carol", "viewer")
    add_user(site, "dave", "viewer", ("web*",))
    return site


@pytest.fixture
def app(settings: Settings) -> Flask:
    return dashboard(settings)


@pytest.fixture
def here(app: Flask) -> Gate:
    gate = Gate(app)
    gate.log_in()
    return gate


def routes(app: Flask) -> Iterator[tuple[Rule, str]]:
    """Every rule, and an address that it fits."""
    for rule in app.url_map.iter_rules():
        values = {name: value_of(name, converter) for name, converter in rule._converters.items()}
        built = rule.build(values, append_unknown=False)
        assert built is not None
        yield rule, built[1]


def value_of(name: str, converter: BaseConverter) -> object:
    if isinstance(converter, AnyConverter):
        return min(converter.items)
    return 1 if isinstance(converter, IntegerConverter) else VALUES.get(name, "x")


def test_every_route_but_the_open_ones_wants_a_login(app: Flask) -> None:
    stranger = Gate(app)
    lines = set()
    for rule, address in routes(app):
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}:
            answer = stranger.client.open(address, method=method)
            if rule.rule in OPEN:
                lines.add(rule.rule)
            elif rule.rule.startswith(("/api/", "/metrics")):
                assert (answer.status_code, answer.is_json or rule.rule == "/metrics") == (401, True), rule.rule
            else:
                assert (answer.status_code, answer.location.startswith("/login")) == (303, True), rule.rule
            answer.close()
    assert lines == OPEN


@pytest.mark.slow
def test_every_answer_has_every_header(app: Flask, here: Gate) -> None:
    for who in (Gate(app), here):
        for rule, address in routes(app):
            answer = who.client.open(address, method=min((rule.methods or set()) - {"HEAD", "OPTIONS"}))
            for name, value in HEADERS.items():
                assert answer.headers.get(name) == value, (rule.rule, name)
            assert "no-store" in answer.headers["Cache-Control"] or rule.endpoint == "static" or answer.status_code < 400, rule.rule
            assert "Strict-Transport-Security" not in answer.headers
            assert answer.status_code != 500, rule.rule
            answer.close()
    assert here.get("/no/such/page").headers["Content-Security-Policy"] == HEADERS["Content-Security-Policy"]


def test_the_policy_lets_nothing_in_from_elsewhere_and_no_script_from_the_page() -> None:
    rules = dict(rule.split(" ", 1) for rule in HEADERS["Content-Security-Policy"].split("; "))
    assert rules["default-src"] == "'none'"
    assert {rules[name] for name in ("script-src", "style-src", "connect-src", "form-action")} == {"'self'"}
    assert rules["frame-ancestors"] == rules["base-uri"] == "'none'"
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


def test_no_template_has_a_script_a_style_or_a_handler_in_it() -> None:
    for path in (Path(create_app.__code__.co_filename).parent / "templates").rglob("*.html"):
        text = re.sub(r"{%.*?%}|{{.*?}}|{#.*?#}", "", path.read_text(), flags=re.DOTALL)
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=|javascript:|https?://(?!www\.w3\.org)", text), (
            path
        )
        assert "|safe" not in path.read_text().replace(" ", ""), path


# --- forms


def test_no_form_does_anything_without_its_token(app: Flask, here: Gate) -> None:
    seen = 0
    for rule, address in routes(app):
        for method in {"POST", "PUT", "DELETE", "PATCH"} & (rule.methods or set()):
            answer = here.client.open(address, method=method, data={"confirm": "yes"})
            assert answer.status_code == 400, (rule.rule, answer.status_code)
            assert "submit the form again" in answer.text or answer.is_json
            seen += 1
    assert seen > 5
    assert here.get("/account").status_code == 200


def test_a_token_of_another_session_is_no_token(app: Flask, here: Gate) -> None:
    other = Gate(app)
    other.log_in("carol")
    answer = here.client.post("/logout", data={"csrf_token": other.token("/account")})
    assert answer.status_code == 400
    assert here.get("/account").status_code == 200


def test_a_login_that_another_site_sends_is_refused(app: Flask) -> None:
    answer = Gate(app).client.post("/login", data={"name": "alice", "password": "correct horse battery"})
    assert answer.status_code == 400


# --- names and proxies


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8765", "[::1]:8765", "BACKUP.example.org", "backup.example.org:443"])
def test_it_answers_to_its_names(app: Flask, host: str) -> None:
    assert Gate(app).get("/login", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8765", "", "localhost.evil.example", "127.0.0.1.evil.example", "[::2]", "a b", "x@localhost"],
)
def test_it_answers_to_no_other_name(app: Flask, host: str) -> None:
    answer = Gate(app).get("/login", headers={"Host": host})
    assert answer.status_code == 400
    assert host.partition(":")[0] not in answer.text or not host or host == "[::2]"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


SAID = {"X-Forwarded-For": "198.51.100.7", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "backup.example.org"}


def test_what_a_stranger_says_of_where_he_comes_from_is_not_believed(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    stranger = gate(settings, REMOTE_ADDR="192.0.2.66")
    answer = stranger.client.get("/login", headers={**SAID, "Forwarded": "for=198.51.100.7;proto=https"})
    assert "Secure" not in answer.headers["Set-Cookie"]
    assert "Strict-Transport-Security" not in answer.headers
    with caplog.at_level(logging.INFO):
        stranger.client.post("/login", data={"csrf_token": stranger.token(), "name": "alice", "password": "x"}, headers=SAID)
    assert "from 192.0.2.66" in caplog.text


def test_behind_its_proxy_cookies_are_for_https_alone_and_the_address_is_the_browsers(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    behind = gate(settings, REMOTE_ADDR="10.0.0.1", HTTP_X_FORWARDED_FOR="192.0.2.99, 198.51.100.7")
    behind.client.environ_base.update(HTTP_X_FORWARDED_PROTO="https", HTTP_X_FORWARDED_HOST="backup.example.org")
    answer = behind.client.get("/login", base_url="https://backup.example.org")
    cookie = answer.headers["Set-Cookie"]
    assert cookie.startswith("__Host-btrkeep=")
    assert {"Secure", "HttpOnly", "Path=/", "SameSite=Lax"} <= set(cookie.split("; "))
    assert "max-age=31536000" in answer.headers["Strict-Transport-Security"]
    token = re.search(r'name="csrf_token" value="([^"]+)"', answer.text)
    assert token
    form = {"csrf_token": token[1], "name": "alice", "password": "correct horse battery"}
    with caplog.at_level(logging.INFO):
        sent = behind.client.post(
            "/login", data=form, base_url="https://backup.example.org", headers={"Referer": "https://backup.example.org/login"}
        )
    assert sent.status_code == 303
    assert "login: alice from 198.51.100.7" in caplog.text  # the address that the proxy itself saw; any client can write the rest


# --- roles


def test_actions_of_operators_are_not_for_viewers_and_data_of_all_hosts_not_for_limited_users(app: Flask) -> None:
    app.add_url_rule("/x/operator", "x_operator", operator_only(lambda: "done"))
    app.add_url_rule("/x/whole", "x_whole", needs_all_hosts(lambda: f"all of it, {viewer().name}"))
    answers = {}
    for name in ("alice", "carol", "dave"):
        gate = Gate(app)
        gate.log_in(name)
        answers[name] = [gate.get(address).status_code for address in ("/x/operator", "/x/whole")]
    assert answers == {"alice": [200, 200], "carol": [403, 200], "dave": [403, 403]}


def test_a_host_that_one_may_not_see_is_answered_like_one_that_is_not_there(app: Flask) -> None:
    dave = Gate(app)
    dave.log_in("dave")
    answers = [dave.get(f"/hosts/{host}") for host in ("db1", "nonesuch")]
    assert [answer.status_code for answer in answers] == [404, 404]
    output, other = (re.sub(r'value="[^"]{40,}"', "", answer.text) for answer in answers)  # a token is another in each second
    assert output.replace("db1", "") == other.replace("nonesuch", "")
    assert dave.get("/hosts/web1").status_code == 200


# --- errors


def logged_in(settings: Settings, address: str, view: Callable[[], str]) -> Gate:
    app = dashboard(settings)
    app.add_url_rule(address, "x_view", view)
    gate = Gate(app)
    gate.log_in()
    return gate


KINDS = [
    (CatalogueBusy("the catalogue is held", "by whom?"), 503),
    (CatalogueUnready("older schema", "migrate it"), 503),
    (Absent("nobody listens", "systemctl"), 503),
    (PoolUnusable("not mounted"), 503),
    (LockHeld("held by 7"), 409),
    (RequestRefused("no such path", "near", "missing"), 404),
    (RequestRefused("not held", "", "refused"), 409),
    (RequestRefused("too many", "later", "busy"), 503),
    (RequestRefused("it broke", "", "failed"), 502),
    (OperatorError("something else"), 500),
]


@pytest.mark.parametrize(("error", "status"), KINDS, ids=lambda value: getattr(value, "message", ""))
def test_what_an_operator_can_act_on_is_said_with_its_hint(settings: Settings, error: OperatorError, status: int) -> None:
    def broken() -> str:
        raise error

    here = logged_in(settings, "/x/broken", broken)
    answer = here.get("/x/broken")
    assert answer.status_code == status
    assert error.message in answer.text
    assert error.hint in answer.text
    assert ("Retry-After" in answer.headers) is (status == 503)


def test_an_error_of_several_lines_shows_no_escapes(settings: Settings) -> None:
    def broken() -> str:
        raise PoolUnusable("one is wrong\ntwo is wrong", "mend both")

    answer = logged_in(settings, "/x/broken", broken).get("/x/broken")
    assert "one is wrong; two is wrong" in answer.text


def test_a_fault_of_ours_is_a_calm_page_and_its_traceback_is_in_the_log_alone(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> str:
        raise RuntimeError("a secret of the machine")

    here = logged_in(settings, "/x/broken", broken)
    answer = here.get("/x/broken")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    assert "journalctl" in answer.text
    assert "RuntimeError: a secret of the machine" in caplog.text


def test_errors_have_their_pages(here: Gate) -> None:
    assert here.get("/nowhere").status_code == 404
    answer = here.get("/logout")
    assert (answer.status_code, "POST" in answer.headers["Allow"]) == (405, True)
    assert here.client.post("/login", data={"x": "y" * (2 << 20)}).status_code == 413
    for address in ("/nowhere", "/logout"):
        page = here.get(address).text
        assert '<main id="main"' in page
        assert "<h1>" in page


@pytest.mark.parametrize(
    "address",
    [
        "/<script>alert(1)</script>",
        "/hosts/%3Cb%3E",
        "/%0d%0aSet-Cookie:x=1",
        "/hosts/\u202e",
        "/%ff%fe",
        "/login?next=%3Cscript%3E",
    ],
)
def test_what_is_asked_for_stands_in_no_page_as_it_came(here: Gate, address: str) -> None:
    answer = here.get(address)
    assert answer.status_code in (200, 303, 400, 404)
    assert "<script>" not in answer.text
    assert "<b>" not in answer.text
    assert "x=1" not in answer.headers.get("Set-Cookie", "")


@pytest.mark.parametrize("how", ["missing", "older", "newer", "damaged", "of before"])
def test_without_a_catalogue_that_can_be_read_pages_say_so_and_the_account_works(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    file, copy = settings.state / "catalogue.sqlite", settings.state / "dashboard.sqlite"
    if how == "missing":
        file.unlink()
        copy.unlink()
    elif how == "damaged":
        for damaged in (file, copy):
            damaged.write_bytes(b"nothing of the sort" * 500)
    elif how == "of before":  # as developers had it before docs/decisions/0079
        import sqlite3

        for unmarked in (file, copy):
            with sqlite3.connect(unmarked) as connection:
                connection.execute("PRAGMA application_id = 0")
            connection.close()
    else:
        import sqlite3

        with sqlite3.connect(file) as connection:
            connection.execute("PRAGMA user_version = 5")
        connection.close()
        monkeypatch.setattr(tables, "SCHEMA_VERSION", 6 if how == "older" else 4)
    here = gate(settings)
    assert here.log_in().status_code == 303
    answer = here.get("/")
    assert answer.status_code == 503
    assert {
        "missing": "there is no catalogue",
        "older": "older schema 5",
        "newer": "has schema 5",
        "damaged": "damaged",
        "of before": "the dashboard&#39;s copy cannot be read",
    }[how] in answer.text
    assert here.get("/account").status_code == 200


def test_below_api_errors_are_json(here: Gate) -> None:
    answer = here.get("/api/v1/nowhere")
    assert (answer.status_code, answer.is_json) == (404, True)
    assert set(answer.json or {}) >= {"error"}


def test_static_files_are_kept_by_browsers_and_change_their_address_when_they_change(here: Gate) -> None:
    match = re.search(r'href="(/static/style\.css\?v=\w+)"', here.get("/login").text or here.get("/account").text)
    page = here.get("/account").text
    match = re.search(r'href="(/static/style\.css\?v=\w+)"', page)
    assert match
    answer = here.get(match[1])
    assert (answer.status_code, "max-age" in answer.headers["Cache-Control"]) == (200, True)
    assert here.get("/static/../settings.py").status_code == 404
    assert here.get("/static/%2e%2e/settings.py").status_code == 404


def test_a_catalogue_that_is_being_written_is_read(settings: Settings) -> None:
    with Catalogue.open(settings.state) as writer:
        writer.set_fact("x", "1")
        here = gate(settings)
        here.log_in()
        assert here.get("/").status_code == 200
