"""An operator of some hosts cannot reach the other hosts in any way: on a real pool, with a real root service."""

import http.client
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from urllib.parse import quote

import pytest

from tests.beds.dashboard import OPERATOR, PASSWORD, Answer, Dashboard, csrf_of
from web.auth import Token, User, digest
from web.auth.passwords import hashed
from web.auth.store import Store

pytestmark = [pytest.mark.btrfs, pytest.mark.root]

API = "/api/v1"


class Otto:
    """He may do everything with the host `lab`, and does not know that `shop` exists."""

    def __init__(self, web: Dashboard) -> None:
        self.web, self.token = web, "btrkeep_otto" + "x" * 40
        store, now = Store(web.users), datetime.now(UTC)
        store.add_user(User("otto", "operator", ("lab",), hashed(PASSWORD), now, now))
        store.add_token(Token("otto", "operator", ("lab",), now, None), digest(self.token))
        self.cookie = web.log_in("otto")
        self.csrf = csrf_of(web.ask("GET", "/account", Cookie=self.cookie).text)

    def api(self, method: str, path: str, body: object = None) -> Answer:
        text = None if body is None else json.dumps(body)
        return self.web.ask(method, API + path, text, Authorization=f"Bearer {self.token}", Content_Type="application/json")

    def page(self, method: str, path: str, form: str = "") -> Answer:
        body = f"csrf_token={self.csrf}&{form}" if method == "POST" else None
        return self.web.ask(method, path, body, Cookie=self.cookie, Content_Type="application/x-www-form-urlencoded")


@pytest.fixture(scope="module")
def otto(shop: Dashboard) -> Iterator[Otto]:
    yield Otto(shop)
    store = Store(shop.users)
    store.remove_user("otto")
    store.remove_token("otto")


def started_for_shop(web: Dashboard, verb: str, path: str) -> str:
    """Starts a job of the other host in the root service, waits for its end, and returns its id."""
    assert web.service
    agent = web.service.agent(OPERATOR)
    words = {"paths": [path], "to": "host", "overwrite": "never"} if verb == "restore" else {}
    job: str = agent.ask(verb, host="shop", **({"backup": "latest"} if words else {}), **words)["job"]
    end = time.monotonic() + 60
    while agent.ask("job", job=job)["state"] in ("queued", "running"):
        assert time.monotonic() < end
        time.sleep(0.1)
    return job


def test_the_jobs_of_other_hosts_are_not_there_for_him_nor_what_they_say(shop: Dashboard, otto: Otto) -> None:
    assert shop.nights
    secret = str(shop.nights.source / "prices.txt")
    job = started_for_shop(shop, "restore", secret)
    assert otto.api("GET", f"/tasks/{job}").status == 404
    assert job not in otto.api("GET", "/tasks").text
    assert "shop" not in otto.api("GET", "/tasks").text
    for address in (f"/jobs/{job}", f"/restore/lab/preview/{job}", f"/restore/shop/preview/{job}"):
        answer = otto.page("GET", address)
        assert answer.status == 404, address
        assert "prices.txt" not in answer.text
    assert job in shop.get(f"{API}/tasks").text


def test_nothing_can_be_done_with_another_host_by_whatever_name(shop: Dashboard, otto: Otto) -> None:
    assert shop.nights
    name, source = shop.nights.names("shop")[-1], shop.nights.source
    path = str(source / "prices.txt")
    wish = {"paths": [path], "backup": name}
    before = shop.get(f"{API}/tasks").text
    for host in ("shop", "lab%2F..%2Fshop", "lab/../shop", "%73hop", "shop%00", "shop%20", "SHOP", "lab%0Ashop"):
        for verb, body in (("run", None), ("restore", wish), ("restore/preview", wish), (f"backups/{name}/hold", {})):
            assert otto.api("POST", f"/hosts/{host}/{verb}", body).status in (308, 404, 405), (host, verb)
        form = f"path={quote(path)}&place=original&overwrite=never&backup={name}"
        for address in (f"/restore/{host}", f"/restore/{host}/preview", f"/restore/{host}/start", f"/hosts/{host}/hold"):
            assert otto.page("POST", address, form).status in (308, 404, 405), address
        for address in (f"/files/{host}?path=/", f"/files/{host}/download?path={quote(path)}", f"/hosts/{host}?exact=1"):
            assert otto.page("GET", address).status in (308, 404), address
    assert shop.get(f"{API}/tasks").text == before


def test_in_a_backup_of_his_own_host_there_is_no_way_out_of_it(shop: Dashboard, otto: Otto) -> None:
    """`lab` is the folder `folder` of the source; its backups do not contain the other files of the source."""
    assert shop.nights
    for path in (
        f"{shop.nights.source}/folder/../prices.txt",
        f"{shop.nights.source}/prices.txt",
        "/../../hosts/shop",
        "//etc/shadow",
    ):
        for address in (f"/files/lab/download?path={quote(path)}", f"/files/lab?path={quote(path)}"):
            assert otto.page("GET", address).status in (400, 404), address
        assert otto.api("POST", "/hosts/lab/restore/preview", {"paths": [path]}).status in (400, 404, 502), path


def test_a_method_is_what_it_is_and_nothing_is_echoed(shop: Dashboard, otto: Otto) -> None:
    for method in ("TRACE", "PUT", "DELETE", "CONNECT", "PATCH", "FOO"):
        connection = http.client.HTTPConnection("127.0.0.1", shop.port, timeout=60)
        connection.request(method, "/account", headers={"Cookie": otto.cookie, "X-Secret": "moo"})
        answer = connection.getresponse()
        assert (answer.status, b"moo" in answer.read()) in ((405, False), (404, False), (400, False)), method
        connection.close()
    for header in ("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"):
        shop.ask("GET", "/account?_method=POST", Cookie=otto.cookie, **{header: "POST"})
        assert shop.ask("GET", "/logout", Cookie=otto.cookie, **{header: "POST"}).status == 405
    assert otto.page("GET", "/account").status == 200
