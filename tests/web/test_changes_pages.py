"""The pages of proposed changes.

Without them an operator needs root's shell for a new exclusion; with a fault in them a proposal says something else than was typed,
or a customer sees the configuration of others.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from playwright.sync_api import Browser

from btrkeep.config import HostConfig
from btrkeep.config.values import parse_window
from btrkeep.serving.protocol import RequestRefused
from tests.beds.browser import LAPTOP, PHONE, enter, visit
from tests.beds.dashboard import Dashboard
from tests.beds.history import every, make_history
from tests.beds.nights import Nights
from tests.beds.serving import Service, serving
from tests.web.made import PASSWORD, client, login_of, token, write
from tests.web.test_axe import EVERYTHING, LOOKS, axe_findings
from web.changes import ChangeForm, changed_keys

PRESENT = ChangeForm.of(
    HostConfig("web1", address="root@w", paths=("/etc", "/srv"), exclude=("/proc/*", "*.iso"), window=parse_window("22:00-06:00"))
)


def test_only_the_fields_that_a_user_changed_are_proposed() -> None:
    assert changed_keys(PRESENT, PRESENT) == {}
    assert changed_keys(PRESENT, replace(PRESENT, exclude="  *.iso\r\n\r\n/proc/*\r\n", paths="/etc\r\n/srv")) == {}
    typed = replace(
        PRESENT, exclude="*.iso\r\n/srv/tmp/*", paths="/etc", window="", rules={**PRESENT.rules, "daily": "7", "grace": ""}
    )
    assert changed_keys(PRESENT, typed) == {
        "paths": ["/etc"],
        "exclude+": ["/srv/tmp/*"],
        "exclude-": ["/proc/*"],
        "window": "none",
        "retention.daily": 7,
        "retention.grace": None,
    }
    for wrong in ("seven", "-1", "1.5", "\u0667", "9" * 30):  # the checker names them
        assert changed_keys(PRESENT, replace(PRESENT, rules={**PRESENT.rules, "daily": wrong})) == {"retention.daily": wrong}


@pytest.fixture
def pool(shared_btrfs: Path) -> Nights:
    nights = Nights(shared_btrfs)
    nights.tables |= {"web": {}, "retention": {"daily": 30}}
    nights.host("web1", "/srv/www", exclude=["/srv/www/cache/*"])
    nights.host("here", "/srv/here", address=None)
    make_history(nights, "web1", every(1, 14, datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)))
    return nights


@pytest.fixture
def service(pool: Nights) -> Iterator[Service]:
    pool.backupd("check", check=False)  # publishes the configuration
    with serving(pool.config, "--login", login_of("admin")) as result:
        yield result


def send(user: FlaskClient, path: str, form: str = "", **words: str) -> Any:
    return user.post(path, data={"csrf_token": token(user.get(form or path).text), **words})


def fields_of(page: str) -> dict[str, str]:
    """Returns the fields of the form as a browser sends them when nothing is typed."""
    inputs = re.findall(r'<input id="(\w+)" name="\w+" value="([^"]*)"', page)
    areas = re.findall(r'<textarea id="(\w+)"[^>]*>\n?(.*?)</textarea>', page, re.DOTALL)
    return {name: unescape(value) for name, value in (*inputs, *areas)}


@pytest.mark.btrfs
def test_an_admin_proposes_sees_the_effect_and_applies_it_with_the_password(pool: Nights, service: Service) -> None:
    ada = client(pool.state, "admin", socket=service.socket)
    assert 'href="/hosts/web1/change"' in ada.get("/hosts/web1").text
    fields = fields_of(ada.get("/hosts/web1/change").text)
    assert (fields["paths"], fields["daily"]) == ("/srv/www", "30")
    before = pool.config.read_bytes()
    nothing = send(ada, "/hosts/web1/change", **fields)
    assert (nothing.status_code, "the proposal changes nothing" in nothing.text) == (400, True)
    typed = {**fields, "exclude": f"{fields['exclude']}\r\n/srv/www/<b>/*", "daily": "5", "why": "the <audit>"}
    wrong = send(ada, "/hosts/web1/change", **{**typed, "window": "25:00"})
    assert (wrong.status_code, 'value="25:00"' in wrong.text, "/srv/www/&lt;b&gt;/*" in wrong.text) == (400, True, True)

    done = send(ada, "/hosts/web1/change", **typed)
    assert done.status_code == 303
    page = ada.get(done.location).text
    assert '"/srv/www/<b>/*",' in unescape(page)
    assert "<b>/" not in page
    assert "the &lt;audit&gt;" in page
    assert "would expire 9 backups of 14" in page
    assert "backupd" in page.partition("Root applies it")[2]
    assert 'type="password"' not in page
    assert done.location in ada.get("/changes").text
    assert pool.config.read_bytes() == before

    pool.settings("web", apply=True)
    before = pool.config.read_bytes()
    page = ada.get(done.location).text
    assert "There is no second factor yet" in page
    digest = re.findall(r'name="digest" value="(\w+)"', page)[0]
    refused = send(ada, f"{done.location}/apply", done.location, digest=digest, password="a wrong password")
    assert (refused.status_code, "The password is wrong" in refused.text) == (400, True)
    changed = send(ada, f"{done.location}/apply", done.location, digest="0" * 32, password=PASSWORD)
    assert (changed.status_code, "was changed after this page was opened" in changed.text) == (409, True)
    assert pool.config.read_bytes() == before
    applied = send(ada, f"{done.location}/apply", done.location, digest=digest, password=PASSWORD)
    assert "The change is applied." in ada.get(applied.location).text
    host = tomllib.loads(pool.config.read_text())["host"]["web1"]
    assert (host["exclude"], host["retention"]) == (["/srv/www/cache/*", "/srv/www/<b>/*"], {"daily": 5})


@pytest.mark.btrfs
def test_a_new_host_is_proposed_and_withdrawn_and_this_server_keeps_its_paths(pool: Nights, service: Service) -> None:
    ada = client(pool.state, "admin", socket=service.socket)
    form = ada.get("/hosts/here/change").text
    assert 'name="paths"' not in form
    kept = send(ada, "/hosts/here/change", **{**fields_of(form), "paths": "/etc"})
    assert (kept.status_code, "here is this server" in unescape(kept.text)) == (409, True)
    again = send(ada, "/changes/new", host="web1", address="root@web1", paths="/etc")
    assert (again.status_code, "is in" in again.text, 'value="root@web1"' in again.text) == (400, True, True)
    done = send(ada, "/changes/new", host="web9.example.org", address="root@web9", paths="/etc", daily="7")
    page = unescape(ada.get(done.location).text)
    assert '[host."web9.example.org"]' in page
    assert "backupd" in page
    assert service.agent("root").ask("proposals")[0]["keys"] == {"address": "root@web9", "paths": ["/etc"], "retention.daily": 7}
    gone = send(ada, f"{done.location}/reject", done.location)
    assert "No proposed change waits" in ada.get(gone.location).text
    assert ada.get(done.location).status_code == 404
    assert not pool.config.with_suffix(".d").exists()


ADDRESSES = ("/changes", "/changes/new", "/changes/abc123", "/hosts/web1/change")


def test_customers_and_viewers_neither_propose_nor_find_a_way_to_it(tmp_path: Path) -> None:
    write(tmp_path, [HostConfig("web1", paths=("/etc",), address="root@w")]).close()
    customer, viewer = client(tmp_path, "operator", ("web*",)), client(tmp_path, "viewer")
    for address in ADDRESSES:
        assert customer.get(address).status_code == 403, address
    assert [viewer.get(address).status_code for address in ("/changes/new", "/hosts/web1/change")] == [403, 403]
    for user in (customer, viewer):
        csrf = token(user.get("/hosts").text)
        for address in ("/changes/new", "/hosts/web1/change", "/changes/abc123/apply", "/changes/abc123/reject"):
            assert user.post(address, data={"csrf_token": csrf}).status_code == 403, address
        assert "/change" not in user.get("/hosts/web1").text.replace('href="/changes"', "" if user is viewer else "x")
    assert 'href="/changes"' not in customer.get("/hosts").text
    operator = client(tmp_path, "operator")
    for address in ("/changes/new", "/hosts/web1/change", "/changes/abc123/apply", "/changes/abc123/reject"):
        assert operator.post(address, data={"host": "web9"}).status_code == 400, address  # without the token of a form
    assert operator.get("/hosts/nobody/change").status_code == 404


@pytest.mark.btrfs
@pytest.mark.root
def test_a_new_exclusion_is_three_clicks_and_one_field_from_the_overview(shop: Dashboard, browser: Browser) -> None:
    assert shop.service
    with visit(browser, shop.url, viewport=LAPTOP) as (page, noticed):
        enter(page, shop.url, shop.cookie)
        page.goto("/")
        page.get_by_role("link", name="Hosts", exact=True).first.click()
        page.get_by_role("link", name="shop", exact=True).first.click()
        page.get_by_role("link", name="Propose a change").click()
        field = page.get_by_label("Exclusions")
        field.fill(f"{field.input_value()}\n/srv/shop/tmp/*")
        page.get_by_role("button", name="Propose it").click()
        page.wait_for_url("**/changes/*")
        assert "/srv/shop/tmp/*" in "".join(page.locator("pre.diff ins").all_inner_texts())
        address = page.url.removeprefix(shop.url)
        try:
            findings = [
                finding
                for scheme, size, rules in (("light", LAPTOP, EVERYTHING), ("dark", PHONE, LOOKS))
                for finding in axe_findings(
                    shop, browser, (address, "/changes", "/changes/new", "/hosts/shop/change"), scheme, size, rules
                )
            ]
            assert findings == []
        finally:
            page.goto(address)
            page.get_by_role("button", name="Withdraw it").click()
            page.wait_for_url("**/changes")
        noticed.nothing()
    with pytest.raises(RequestRefused):
        shop.service.agent("root").ask("proposal", id=address.rsplit("/", 1)[1])
