"""The JSON API: its answers about an invented site and a real pool, compared with sqlite3, find and stat."""

import json
import re
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

import jsonschema_rs
import pytest

from tests.beds import TOP
from tests.beds.dashboard import ADMIN, CUSTOMER, LATIN1, OPERATOR, VIEWER, Answer, Dashboard, csrf_of
from web.api.answers import path_of
from web.app import PAGES
from web.endpoints import ENDPOINTS

ROOT = "/api/v1"


def document(web: Dashboard) -> dict[str, Any]:
    return dict(json.loads(web.ask("GET", f"{ROOT}/openapi.json").body))


def api_answer(web: Dashboard, path: str, who: str = OPERATOR) -> Any:
    answer = web.get(f"{ROOT}{path}", who)
    assert answer.status == 200, (path, answer.status, answer.text, web.log_text[-2000:])
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.body.isascii()
    return json.loads(answer.body)


def rows(web: Dashboard, query: str, *values: Any) -> list[Any]:
    with sqlite3.connect(f"file:{web.state}/catalogue.sqlite?mode=ro", uri=True) as connection:
        return connection.execute(query, values).fetchall()


def test_the_document_and_the_routes_are_the_same(site: Dashboard) -> None:
    in_document = {(method.upper(), path) for path, methods in document(site)["paths"].items() for method in methods}
    from web.app import create_app
    from web.dashboard_settings import Settings

    app = create_app(Settings("main", site.state, site.data.parent / "routes", site.data.parent / "none"))
    in_flask = {
        (method, rule.rule.removeprefix(ROOT).replace("<", "{").replace(">", "}"))
        for rule in app.url_map.iter_rules()
        if rule.endpoint.startswith("api.") and rule.endpoint != "api.openapi"
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    assert in_document == in_flask == {(endpoint.method, path_of(endpoint)) for endpoint in ENDPOINTS}


def test_the_document_is_one_of_openapi_3_1(site: Dashboard) -> None:
    api_document = document(site)
    assert api_document["openapi"] == "3.1.0"
    for schema in api_document["components"]["schemas"].values():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
    names = [method["operationId"] for methods in api_document["paths"].values() for method in methods.values()]
    assert len(names) == len(set(names))


SIMPLE = sorted(
    path_of(endpoint)
    for endpoint in ENDPOINTS
    if endpoint.method == "GET" and "<" not in endpoint.path and not endpoint.needs_root_service
)


@pytest.mark.parametrize("path", SIMPLE)
def test_what_is_answered_is_what_the_document_says(site: Dashboard, path: str) -> None:
    see_schema(site, path, api_answer(site, path))


def see_schema(web: Dashboard, path: str, answer: Any, method: str = "get") -> None:
    """Checks that an answer has exactly the documented fields."""
    api_document = document(web)
    schema = api_document["paths"][path][method]["responses"]["200"]["content"]["application/json"]["schema"]
    strict = _strict({**schema, "components": api_document["components"]})
    jsonschema_rs.Draft202012Validator(strict, validate_formats=True).validate(answer)


def _strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: _strict(value) for key, value in schema.items()}
    return {**inner, "additionalProperties": False} if "properties" in inner and inner.get("type") == "object" else inner


def test_each_field_of_an_answer_has_its_unit_and_the_meaning_of_null_in_the_document(site: Dashboard) -> None:
    """Otherwise the author of a client would have to read our code."""
    schemas = document(site)["components"]["schemas"]
    bare = [
        f"{name}.{field}"
        for name, schema in schemas.items()
        for field, kind in schema.get("properties", {}).items()
        if not kind.get("description")
    ]
    assert bare == []
    assert {"known"} <= schemas["Slot"]["properties"].keys() & schemas["PhaseSum"]["properties"].keys()  # as `backupd day --json`
    assert schemas["BackupRow"]["properties"]["duration"]["description"].startswith("Seconds that the run took;")


def test_hosts_are_those_of_the_catalogue(site: Dashboard) -> None:
    first, second = api_answer(site, "/hosts"), api_answer(site, "/hosts?page=2")
    assert site.made
    assert [row["host"] for row in (*first["rows"], *second["rows"])] == sorted((*site.made.hosts, *site.made.fetched))
    for row in first["rows"][:20]:
        [[count, size]] = rows(
            site,
            "SELECT (SELECT count(*) FROM backup WHERE host = ?1 AND name != ''), "
            "(SELECT bytes FROM backup WHERE host = ?1 AND state = 'complete' ORDER BY started DESC LIMIT 1)",
            row["host"],
        )
        assert (row["backups"], row["size"]) == (count, size), row["host"]


def test_a_search_finds_what_a_filter_leaves_and_sorts_it(site: Dashboard) -> None:
    answer = api_answer(site, "/hosts?q=web+example&sort=-size&state=ok")
    sizes = [row["size"] for row in answer["rows"]]
    assert len(sizes) > 5
    assert sizes == sorted(sizes, reverse=True)
    assert all(row["host"].startswith("web") and row["state"] == "ok" for row in answer["rows"])


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("sor=size", "did you mean sort?"),
        ("page=0", "page"),
        ("page=1e3", "not a whole number"),
        ("page=1&page=2", "given twice"),
        ("state=grand", "state"),
        ("q=" + "x" * 201, "q"),
        ("q=%ff", "q"),
        ("host=web1", "no parameter"),
    ],
)
def test_a_parameter_that_does_not_fit_is_named(site: Dashboard, query: str, words: str) -> None:
    answer = site.get(f"{ROOT}/hosts?{query}")
    assert answer.status == 400
    answer_fields = json.loads(answer.body)
    assert set(answer_fields) == {"error", "hint"}
    assert words in f"{answer_fields['error']} {answer_fields['hint']}"


def test_without_a_token_nothing_is_shown(site: Dashboard) -> None:
    for path in (*SIMPLE, "/hosts/web0000.example.org", "/nothing"):
        answer = site.ask("GET", f"{ROOT}{path}")
        assert answer.status == (404 if path == "/nothing" else 401), path
        assert set(json.loads(answer.body)) == {"error", "hint"}
    assert site.ask("GET", f"{ROOT}/hosts", Authorization="Bearer btrkeep_wrong").status == 401
    assert "Bearer" in site.ask("GET", f"{ROOT}/hosts").headers["WWW-Authenticate"]


def test_a_customer_sees_his_hosts_and_no_trace_of_others(site: Dashboard) -> None:
    others = {"database", "mail", "shop", "lab"}
    for path in SIMPLE:
        answer = site.get(f"{ROOT}{path}", CUSTOMER)
        assert answer.status in (200, 403), (path, answer.text)
        assert not [name for name in others if f"{name}00" in answer.text], path
    assert api_answer(site, "/hosts", CUSTOMER)["total"] == 24
    assert api_answer(site, "/runs?limit=500", CUSTOMER)["runs"]
    assert site.get(f"{ROOT}/hosts/mail0002.example.org", CUSTOMER).status == 404
    assert site.get(f"{ROOT}/hosts/web0000.example.org", CUSTOMER).status == 200
    [[number]] = rows(site, "SELECT id FROM run WHERE host = 'mail0002.example.org' LIMIT 1")
    assert site.get(f"{ROOT}/runs/{number}", CUSTOMER).status == 404
    assert site.get("/metrics", CUSTOMER).status == 403


def test_a_viewer_changes_nothing(shop: Dashboard) -> None:
    [backup] = [backup["name"] for backup in api_answer(shop, "/hosts/shop/backups")["backups"]][:1]
    for path in (f"/hosts/shop/backups/{backup}/hold", f"/hosts/shop/backups/{backup}/release", "/hosts/shop/run"):
        assert post(shop, path, {"why": "x"} if path.endswith("hold") else None, VIEWER).status == 403


def post(web: Dashboard, path: str, body: Any = None, who: str = OPERATOR) -> Answer:
    words = {"Content_Type": "application/json"} if body is not None else {}
    data = json.dumps(body) if body is not None else None
    return web.ask("POST", f"{ROOT}{path}", data, Authorization=f"Bearer {web.tokens[who]}", **words)


def test_a_session_reads_and_writes_only_with_its_csrf_token(shop: Dashboard) -> None:
    name = api_answer(shop, "/hosts/shop/backups")["backups"][0]["name"]
    path, words = f"{ROOT}/hosts/shop/backups/{name}/hold", {"Cookie": shop.cookie, "Content_Type": "application/json"}
    assert shop.ask("GET", f"{ROOT}/hosts", Cookie=shop.cookie).status == 200
    refused = shop.ask("POST", path, "{}", **words)
    assert refused.status == 400
    assert set(json.loads(refused.body)) == {"error", "hint"}
    word = csrf_of(shop.ask("GET", "/account", Cookie=shop.cookie).text)
    assert shop.ask("POST", path, "{}", **words, X_CSRFToken=word).status == 200
    assert post(shop, f"/hosts/shop/backups/{name}/release").status == 200
    assert post(shop, f"/hosts/shop/backups/{name}/release").status == 409


def test_a_hold_is_written_into_the_pool(shop: Dashboard) -> None:
    assert shop.nights
    name = shop.nights.names("shop")[0]
    done = post(shop, f"/hosts/shop/backups/{name}/hold", {"why": "the audit"})
    assert done.status == 200, done.text
    see_schema(shop, "/hosts/{host}/backups/{backup}/hold", json.loads(done.body), "post")
    notes = json.loads((shop.nights.pool / "hosts" / "shop" / "notes.json").read_text())
    assert notes["backups"][name]["hold"]["why"].startswith("the audit")
    [[held]] = rows(shop, "SELECT held_why FROM backup WHERE host = 'shop' AND name = ?", name)
    assert held == "the audit (token:olga)"
    assert post(shop, f"/hosts/shop/backups/{name}/release").status == 200
    notes = json.loads((shop.nights.pool / "hosts" / "shop" / "notes.json").read_text())
    assert "hold" not in notes["backups"].get(name, {})


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("{", "application/json"),
        ("[]", "application/json"),
        ('{"whi": ""}', "application/json"),
        ('{"why": "a", "why": "b"}', "application/json"),
        ('{"why": NaN}', "application/json"),
        ('{"why": ' + "9" * 5000 + "}", "application/json"),
        ("{}", "text/plain"),
    ],
)
def test_a_body_that_does_not_fit_is_refused(shop: Dashboard, body: str, kind: str) -> None:
    assert shop.nights
    path = f"{ROOT}/hosts/shop/backups/{shop.nights.names('shop')[0]}/hold"
    answer = shop.ask("POST", path, body, Authorization=f"Bearer {shop.tokens[OPERATOR]}", Content_Type=kind)
    assert answer.status == 400, answer.text
    assert set(json.loads(answer.body)) == {"error", "hint"}


def test_a_folder_is_listed_as_find_does(shop: Dashboard) -> None:
    assert shop.nights
    folder = os_bytes(shop.nights.source) + b"/names"
    listing = api_answer(shop, f"/hosts/shop/files?path={quote_from_bytes(folder)}&sort=size")
    real = os_bytes(shop.nights.data("shop", shop.nights.source / "names"))
    process = subprocess.run(["find", real, "-mindepth", "1", "-printf", "%f\\0%s\\0%i\\0"], capture_output=True, check=True)
    parts = process.stdout.split(b"\0")[:-1]
    names = {parts[at]: (int(parts[at + 1]), int(parts[at + 2])) for at in range(0, len(parts), 3)}
    assert {
        entry["name"].encode("utf-8", "surrogateescape"): (entry["size"], entry["inode"]) for entry in listing["entries"]
    } == names
    odd = [entry for entry in listing["entries"] if "name_encoded" in entry]
    assert {unquote_to_bytes(entry["name_encoded"]) for entry in odd} == {name for name in names if not is_utf8(name)} != set()
    for entry in odd:
        assert (
            api_answer(shop, f"/hosts/shop/files?path={quote_from_bytes(folder)}/{entry['name_encoded']}")["entry"]["inode"]
            == entry["inode"]
        )
    see_schema(shop, "/hosts/{host}/files", listing)


def is_utf8(name: bytes) -> bool:
    try:
        return bool(name.decode())
    except UnicodeDecodeError:
        return False


def os_bytes(path: Path) -> bytes:
    return str(path).encode()


def test_a_download_is_the_file(shop: Dashboard) -> None:
    assert shop.nights
    for name in (b"/large.bin", b"/names/" + LATIN1):
        path = quote_from_bytes(os_bytes(shop.nights.source) + name)
        answer = shop.get(f"{ROOT}/hosts/shop/download?path={path}")
        assert answer.status == 200
        with open(os_bytes(shop.nights.source) + name, "rb") as file:  # noqa: PTH123 - a name that is not text
            assert answer.body == file.read()
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("path", ["relative", "/a/../b", "/./a", "/%00", "/" + "x" * 5000])
def test_a_path_that_leads_elsewhere_is_none(shop: Dashboard, path: str) -> None:
    assert shop.get(f"{ROOT}/hosts/shop/files?path={path}").status == 400


def test_a_symlink_of_the_backup_leads_nowhere(shop: Dashboard) -> None:
    assert shop.nights
    for name in ("shadow", "out/passwd", "out"):
        answer = shop.get(f"{ROOT}/hosts/shop/download?path={shop.nights.source}/{name}")
        assert answer.status in (400, 403, 404), (name, answer.status, answer.body[:200])


def test_versions_and_differences_of_a_file(shop: Dashboard) -> None:
    assert shop.nights
    first, *_, last = shop.nights.names("shop")
    path = f"{shop.nights.source}/prices.txt"
    history = api_answer(shop, f"/hosts/shop/versions?path={path}")
    assert [version["first"] for version in history["versions"]] == shop.nights.names("shop")
    see_schema(shop, "/hosts/{host}/versions", history)
    compared = api_answer(shop, f"/hosts/shop/compare?path={path}&before={first}&after={last}")
    see_schema(shop, "/hosts/{host}/compare", compared)
    assert [line["text"] for line in compared["text"] if line["what"] == "added"] == ["black tea 4.80"]


def test_a_run_that_was_asked_for_is_followed_to_its_end(shop: Dashboard) -> None:
    done = post(shop, "/hosts/lab/run")
    assert done.status == 200, done.text
    see_schema(shop, "/hosts/{host}/run", json.loads(done.body), "post")
    job = json.loads(done.body)["job"]
    ended_task = ended(shop, job)
    assert (ended_task["state"], ended_task["exit"], ended_task["host"]) == ("done", 0, "lab")
    see_schema(shop, "/tasks/{task}", ended_task)
    listed = api_answer(shop, "/tasks", CUSTOMER)["tasks"]
    assert job in [task["job"] for task in listed]
    see_schema(shop, "/tasks", api_answer(shop, "/tasks"))
    every = [task["job"] for task in api_answer(shop, "/tasks")["tasks"]]
    page, pages = api_answer(shop, "/tasks?limit=1"), list[str]()
    while True:
        pages += [task["job"] for task in page["tasks"]]
        if page["next"] is None:
            break
        assert page["next"] == pages[-1]
        page = api_answer(shop, f"/tasks?limit=1&before={page['next']}")
    assert pages == every


def ended(web: Dashboard, job: str) -> Any:
    """Returns the task when it is over."""
    end = time.monotonic() + 60
    while (task := api_answer(web, f"/tasks/{job}"))["state"] in ("queued", "running"):
        assert time.monotonic() < end
        time.sleep(0.2)
    return task


def test_a_restore_is_previewed_and_done(shop: Dashboard) -> None:
    assert shop.nights
    source, first = shop.nights.source, shop.nights.names("shop")[0]
    wish = {"paths": [f"{source}/prices.txt"], "backup": first, "folder": f"{shop.nights.top}/restored"}
    asked = post(shop, "/hosts/shop/restore/preview", wish, ADMIN)
    assert asked.status == 200, asked.text
    see_schema(shop, "/hosts/{host}/restore/preview", json.loads(asked.body), "post")
    counts = json.loads(asked.body)["preview"]["counts"]
    assert counts["overwritten"]["number"] == 0
    assert not (shop.nights.top / "restored").exists()
    done = post(shop, "/hosts/shop/restore", wish, ADMIN)
    assert done.status == 200, done.text
    assert ended(shop, json.loads(done.body)["job"])["state"] == "done"
    [file] = (shop.nights.top / "restored").rglob("prices.txt")
    assert file.read_text() == "black tea 2.80\ngreen tea 3.20\n"


@pytest.mark.parametrize(
    "wish", [{}, {"paths": []}, {"paths": ["a"]}, {"paths": ["/a/../b"]}, {"paths": ["/\ud800"]}, {"paths": ["/"], "folder": "x"}]
)
def test_a_restore_of_nothing_or_to_nowhere_is_refused(shop: Dashboard, wish: Any) -> None:
    for path in ("/hosts/shop/restore", "/hosts/shop/restore/preview"):
        assert post(shop, path, wish).status == 400


def test_the_root_service_is_not_there_and_that_is_said(site: Dashboard) -> None:
    answer = site.get(f"{ROOT}/hosts/web0000.example.org/files")
    assert answer.status == 503
    assert "root service" in json.loads(answer.body)["error"]


def test_the_page_of_the_documentation_has_every_operation() -> None:
    text = (TOP / "docs" / "api.rst").read_text(encoding="utf-8")
    in_docs = re.findall(r"``(GET|POST) (/\S*)``\n\s+- (.*)", text)
    marks = {True: " (operators)", False: ""}
    in_endpoints = [
        (endpoint.method, path_of(endpoint), endpoint.summary + (marks[endpoint.operator] or " (all hosts)" * endpoint.pool_wide))
        for endpoint in ENDPOINTS
    ]
    assert in_docs == in_endpoints


def test_no_room_of_the_dashboard_is_forgotten() -> None:
    """A module that is not imported has no views and no operations."""
    texts = {path: path.read_text(encoding="utf-8") for path in (TOP / "web").rglob("*.py")}
    views = {match[1] for text in texts.values() if (match := re.search(r'^blueprint = Blueprint\("(\w+)"', text, re.MULTILINE))}
    assert views == {page.name for page in PAGES} | {"api"}
    of_rooms = [text.partition("\nENDPOINTS = (")[2] for path, text in texts.items() if path.name != "endpoints.py"]
    assert sum(len(re.findall(r"\b(?:Endpoint|_get|_post)\(", text)) for text in of_rooms) == len(ENDPOINTS)
