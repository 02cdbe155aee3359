"""Attempts of strangers and other sites: every address without a login, forms from elsewhere, odd headers, odd parameters."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from werkzeug.routing import Rule

from tests.beds.dashboard import CUSTOMER, OPERATOR, PASSWORD, Answer, Dashboard, csrf_of
from tests.beds.gate import examples
from web.app import create_app
from web.dashboard_settings import Settings

OPEN = {"/login", "/healthz", "/api/v1/openapi.json"}
FORM = "application/x-www-form-urlencoded"
VARIABLE = re.compile(r"<(?:[^<>]*:)?(\w+)>")
VALUES = {
    "verb": "run",
    "host": "web0000.example.org",
    "run_id": "1",
    "balance_id": "1",
    "number": "1",
    "vaddr": "0",
    "job": "expire-1",
    "task": "20261121T212902Z-00df1cbb",
    "backup": "2026-11-20T220000Z",
    "name": "allocated",
}


def rules(web: Dashboard, method: str) -> list[Rule]:
    """Returns all of the application's routes with that method, except public files."""
    app = create_app(Settings("main", web.state, web.data.parent / "rules", web.data.parent / "none"))
    return [rule for rule in app.url_map.iter_rules() if method in (rule.methods or ()) and rule.endpoint != "static"]


def filled(rule: Rule, values: dict[str, str] = VALUES) -> str:
    """Returns the rule's address with a value in the place of each variable."""
    return VARIABLE.sub(lambda match: quote(values.get(match[1], "x"), safe=""), rule.rule)


def with_cookie(web: Dashboard, path: str, **headers: str) -> Answer:
    return web.ask("GET", path, Cookie=web.cookie, **headers)


def test_no_address_tells_anything_without_a_login(site: Dashboard) -> None:
    for rule in rules(site, "GET"):
        answer = site.ask("GET", filled(rule))
        if rule.rule in OPEN:
            assert answer.status == 200, rule
        elif rule.rule.startswith(("/api/", "/metrics")):
            assert answer.status == 401, rule
        else:
            assert (answer.status, answer.headers["Location"][:6]) == (303, "/login"), (rule, answer.status)
        assert "example.org" not in answer.text.replace("next=", "").replace(filled(rule), ""), rule


def test_no_form_is_taken_without_a_login_or_its_token(site: Dashboard) -> None:
    posts = rules(site, "POST")
    assert len(posts) > 5
    for rule in posts:
        strange = site.ask("POST", filled(rule), "name=x", Content_Type=FORM)
        assert strange.status in (303, 400, 401), (rule, strange.status)
        assert "/login" in strange.headers.get("Location", "/login")
        forged = site.ask("POST", filled(rule), "name=x", Content_Type=FORM, Cookie=site.cookie)
        assert forged.status == 400, (rule, forged.status)


def test_a_token_of_another_session_is_none(site: Dashboard) -> None:
    mine, other = site.log_in(), site.log_in()
    word = csrf_of(site.ask("GET", "/account", Cookie=other).text)
    body = urlencode({"csrf_token": word})
    assert site.ask("POST", "/account/elsewhere", body, Content_Type=FORM, Cookie=mine).status == 400
    assert site.ask("POST", "/account/elsewhere", body, Content_Type=FORM, Cookie=other).status == 303
    site.cookie = site.log_in()  # that ended it


def test_the_cookie_is_not_for_scripts_nor_for_other_sites(site: Dashboard) -> None:
    form = site.ask("GET", "/login")
    words = urlencode({"name": OPERATOR, "password": PASSWORD, "csrf_token": csrf_of(form.text)})
    done = site.ask("POST", "/login", words, Content_Type=FORM, Cookie=form.cookie)
    cookie = done.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_change_is_never_asked_for_by_an_address_alone(site: Dashboard, method: str) -> None:
    """A picture or a link on another site makes a browser send any GET with the cookie, so no GET may change anything."""
    changing = {filled(rule) for rule in rules(site, "POST")} - {filled(rule) for rule in rules(site, "GET")}
    for path in changing if method == "GET" else ():
        assert with_cookie(site, path).status in (404, 405), path


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "evil.example:8765", ""])
def test_another_name_in_the_host_header_is_refused(site: Dashboard, host: str) -> None:
    answer = site.ask("GET", "/login", Host=host)
    assert answer.status == 400
    assert "evil" not in "".join(answer.headers.values())


@pytest.mark.parametrize("path", ["/login", "/healthz", "/api/v1/hosts", "/static/app.js", "/nothing"])
def test_a_name_that_none_can_be_is_refused_too_and_fills_no_journal(site: Dashboard, path: str) -> None:
    before = site.log_text
    for name in ("evil" * 16, f"evil.{'x' * 5000}"):
        answer = site.ask("GET", path, Host=name)
        assert (answer.status, "has another name" in answer.text, "evil" in answer.text) == (400, True, False)
    assert "Traceback" not in site.log_text.removeprefix(before)


def test_what_a_client_says_of_a_proxy_is_not_believed(site: Dashboard) -> None:
    words = {
        "X_Forwarded_Host": "evil.example",
        "X_Forwarded_Proto": "https",
        "X_Forwarded_For": "1.2.3.4",
        "Forwarded": "host=evil",
    }
    answer = site.ask("GET", "/", **words)
    assert answer.headers["Location"] == "/login"
    assert "Strict-Transport-Security" not in answer.headers


@pytest.mark.parametrize(
    "elsewhere",
    ["https://evil.example/", "//evil.example", "/\\evil.example", "\t//evil.example", "javascript:alert(1)", "/%0d%0aX: y"],
)
def test_a_login_leads_nowhere_else(site: Dashboard, elsewhere: str) -> None:
    form = site.ask("GET", f"/login?next={quote(elsewhere)}")
    words = {"name": OPERATOR, "password": PASSWORD, "csrf_token": csrf_of(form.text), "next": elsewhere}
    done = site.ask("POST", "/login", urlencode(words), Content_Type=FORM, Cookie=form.cookie)
    assert done.status == 303
    assert "evil" not in done.headers["Location"]
    assert done.headers["Location"].startswith("/")
    assert "X" not in done.headers


def test_every_answer_has_its_headers(site: Dashboard) -> None:
    for path in (
        "/",
        "/login",
        "/hosts",
        "/nothing",
        "/api/v1/hosts",
        "/metrics",
        "/healthz",
        "/static/style.css",
        "/pool/picture.png",
    ):
        answer = with_cookie(site, path)
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy, path
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "Server" not in answer.headers
        if answer.headers["Content-Type"].startswith("text/html"):
            assert answer.headers["Cache-Control"] == "no-store", path
            assert "frame-ancestors 'none'" in policy
            assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|style=\"|javascript:", _without_text(answer.text)), path


def _without_text(page: str) -> str:
    """Returns only the tags of a page, with their values."""
    return "".join(re.findall(r"<[^>]*>", page))


ODD = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        ["", "0", "-1", "1e9", "9" * 30, "../..", "%00", "\0", "<b>", "'\"", "latest", "2026-02-30", "\u0663", "\ud800"]
    ),
    st.just("a" * 3000),
)


def raw(text: str) -> str:
    """Returns the text percent-encoded as its bytes; a lone surrogate stays, which is not UTF-8."""
    return quote(text.encode("utf-8", "surrogatepass"), safe="")


def parameters(web: Dashboard) -> Iterator[tuple[str, str]]:
    names = (
        "q state group sort page days date kind before since outcome host size curve colour steady picture order offset path backup"
    )
    for rule in rules(web, "GET"):
        if not rule.rule.startswith("/api/"):  # schemathesis does that
            yield rule.rule, names


@settings(max_examples=examples(400), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, derandomize=True)
@given(data=st.data())
def test_no_parameter_makes_a_page_fail(site: Dashboard, data: st.DataObject) -> None:
    every = _of(site)
    rule, names = data.draw(st.sampled_from(every))
    values = {name: data.draw(ODD) for name in data.draw(st.lists(st.sampled_from(names.split()), max_size=3, unique=True))}
    path = VARIABLE.sub(lambda match: raw(data.draw(st.one_of(st.just(VALUES.get(match[1], "x")), ODD))) or "x", rule)
    query = "&".join(f"{name}={raw(value)}" for name, value in values.items())
    answer = with_cookie(site, f"{path}?{query}")
    # 502 and 503: there is no root service here, and the page must say so.
    assert answer.status < 500 or (answer.status in (502, 503) and "root service" in answer.text), (
        path,
        query,
        site.log_text[-1500:],
    )


_RULES: dict[str, list[tuple[str, str]]] = {}


def _of(web: Dashboard) -> list[tuple[str, str]]:
    if web.url not in _RULES:
        _RULES[web.url] = list(parameters(web))
    return _RULES[web.url]


@pytest.mark.parametrize(
    "path",
    [
        "/files/shop/download?path=/etc/../../../etc/passwd",
        "/files/shop?path=..",
        "/files/..?path=/",
        "/static/..%2f..%2fweb/app.py",
    ],
)
def test_no_path_leads_out(shop: Dashboard, path: str) -> None:
    answer = shop.ask("GET", path, Cookie=shop.cookie)
    assert answer.status in (400, 404), answer.text[:300]
    assert "root:" not in answer.text


def test_a_name_in_a_header_ends_no_header(shop: Dashboard) -> None:
    assert shop.nights
    path = quote(f"{shop.nights.source}/names/two\nlines.txt", safe="")
    answer = shop.ask("GET", f"/files/shop/download?path={path}", Cookie=shop.cookie)
    assert answer.status == 200
    assert answer.body == b"content of two\nlines.txt"
    assert "\n" not in answer.headers["Content-Disposition"]
    assert answer.headers["Content-Disposition"].startswith("attachment")
    assert answer.headers["Content-Type"] == "application/octet-stream"


def test_a_customer_reads_no_page_about_others(site: Dashboard) -> None:
    cookie = site.log_in(CUSTOMER)
    for rule in rules(site, "GET"):
        if rule.rule.startswith("/api/"):
            continue
        answer = site.ask("GET", filled(rule, {**VALUES, "host": "mail0002.example.org"}), Cookie=cookie)
        assert answer.status < 500 or "root service" in answer.text, rule
        others = [name for name in ("database00", "mail00", "shop00", "lab00") if name in _shown(answer.text)]
        assert not others, (rule, others)


def _shown(page: str) -> str:
    """Returns the page without the host in its own address, which the page may repeat in a link back."""
    return page.replace("mail0002.example.org", "")


def test_a_customer_gets_no_file_of_others(shop: Dashboard) -> None:
    cookie = shop.log_in(CUSTOMER)
    seen: dict[str, Any] = {}
    for path in ("/files/shop?path=/", "/files/shop/download?path=/&as=tar", "/files/shop/versions?path=/", "/hosts/shop"):
        seen[path] = shop.ask("GET", path, Cookie=cookie).status
    assert set(seen.values()) == {404}, seen
    assert shop.ask("GET", "/files/lab?path=/", Cookie=cookie).status == 200


def test_passwords_and_tokens_are_nowhere_in_the_log(site: Dashboard) -> None:
    site.log_in()
    site.ask("GET", "/login?name=x&password=hunter2hunter2")
    for secret in (PASSWORD, *site.tokens.values()):
        assert secret not in site.log_text
